"""JWT bearer tokens: checked with a shared secret or a public key (X-I1, ``server.jwt``).

``sub`` is the user of a user token, ``scope`` (or ``scp``, ``scopes``) its scopes; scopes of other
services are left out. A token with act_as is an agent's: its ``default_user`` claim may name whom
it acts for when a call names nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from mcp.server.auth.provider import AccessToken

from crontask_adapters.settings import JwtSettings
from crontask_core.errors import ConfigError
from crontask_server.identity import ALL_SCOPES

__all__ = ["JwtTokens"]

log = logging.getLogger("crontask.http")

_SECRET = ("HS256",)
_PUBLIC = ("RS256", "ES256", "EdDSA")


class JwtTokens:
    """Implements the ``TokenVerifier`` protocol of the MCP SDK. Raises ConfigError for a key file
    that cannot be read. The algorithms follow from the kind of key, never from the token."""

    def __init__(self, settings: JwtSettings) -> None:
        own = settings.secret_file or settings.public_key_file
        name = "secret_file" if settings.secret_file else "public_key_file"
        try:
            self._key = Path(own).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file {own} cannot be read: {error}",
                field=f"server.jwt.{name}",
                hint="Check the path and its permissions.",
            ) from None
        if len(self._key) < 32:
            raise ConfigError(
                f"the key in {own} is shorter than 32 characters",
                field=f"server.jwt.{name}",
                hint="Use a longer secret: a short one can be guessed from any token.",
            )
        self._algorithms = list(_SECRET if settings.secret_file else _PUBLIC)
        self._settings = settings

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who the token is, or None when it is not one of ours, has expired or names no user."""
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=self._algorithms,
                audience=self._settings.audience,
                issuer=self._settings.issuer or None,
                options={"require": ["exp", "aud"]},
            )
        except jwt.PyJWTError as error:
            log.info("a bearer token was refused: %s", type(error).__name__)
            return None
        return _access(claims)


def _access(claims: Mapping[str, Any]) -> AccessToken | None:
    scopes = sorted(_scopes(claims) & ALL_SCOPES)
    subject = claims.get("sub")
    agent = "act_as" in scopes
    if not agent and not (isinstance(subject, str) and subject):
        return None
    default = claims.get("default_user")
    return AccessToken(
        token="",
        client_id=str(claims.get("client_id") or claims.get("azp") or subject or "jwt"),
        scopes=scopes,
        subject=None if agent else subject,
        expires_at=int(claims["exp"]),
        claims={"default_user": default} if isinstance(default, str) and default else None,
    )


def _scopes(claims: Mapping[str, Any]) -> set[str]:
    found = claims.get("scope") or claims.get("scp") or claims.get("scopes") or ()
    parts = found.split() if isinstance(found, str) else found
    return {str(part) for part in parts} if isinstance(parts, list | tuple) else set()
