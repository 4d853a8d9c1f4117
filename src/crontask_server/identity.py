"""Who calls, whom they act for, and what they may do (X-I1, DESIGN 6).

A user token acts for its user. An agent token (scope act_as) serves many users and names one in
each call: in ``_meta["io.crontask/user_id"]``, which the agent's harness sets and a model cannot
see, else in the argument ``user_id``, else its default user. ``admin`` includes every scope.
Headers and client names identify nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier

from crontask_adapters.settings import IdentitySettings, ServerSettings
from crontask_adapters.settings_fields import Token
from crontask_core.errors import Forbidden, InvalidInput

__all__ = [
    "ALL_SCOPES",
    "EXECUTION_META",
    "USER_META",
    "AnyOf",
    "Caller",
    "StaticTokens",
    "by_settings",
    "by_token",
    "digest",
    "tokens_required",
]

USER_META = "io.crontask/user_id"
EXECUTION_META = "io.crontask/execution_id"
ALL_SCOPES = frozenset({"read", "write", "report", "act_as", "admin"})
_NAMED = "Name the user: _meta io.crontask/user_id, or the argument user_id."


@attrs.frozen(kw_only=True)
class Caller:
    """The principal of one call. ``user`` is whom a user token acts for, "" for an agent.

    ``default_user`` is whom an agent acts for when it names nobody. ``name`` is for logs.
    """

    user: str = ""
    scopes: frozenset[str] = ALL_SCOPES
    may_act: bool = False
    default_user: str = ""
    name: str = ""

    def need(self, scope: str) -> None:
        """Raises Forbidden (FORBIDDEN) when the token lacks ``scope``."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise Forbidden(
                f"this needs the scope {scope}, and the token has {self._scopes()}",
                hint=f"Ask the operator for a token with the scope {scope}.",
            )

    def acting_for(self, meta: Mapping[str, Any] | None, argument: str | None) -> str:
        """The user this call is about. Raises Forbidden, and InvalidInput when none is named."""
        named = self._named(meta, argument)
        if not self.may_act:
            if named not in ("", self.user):
                raise Forbidden(
                    f"this token acts for {self.user} only",
                    field="user_id",
                    received=named,
                    hint="Leave out user_id; acting for others needs the scope act_as.",
                )
            named = self.user
        who = named or self.default_user
        if not who:
            raise InvalidInput(
                "nobody is named to act for",
                code="MISSING_ARGUMENT",
                field="user_id",
                hint=_NAMED,
                example="josetian",
            )
        return who

    def reporting_for(self, meta: Mapping[str, Any] | None, argument: str | None) -> str | None:
        """Whose executions may be reported: the user's own, or, for an agent that names nobody,
        anybody's (None): the execution knows its user."""
        named = self._named(meta, argument)
        if self.user and not self.may_act:
            return self.acting_for(meta, argument)
        return named or None

    def _named(self, meta: Mapping[str, Any] | None, argument: str | None) -> str:
        """Whom the call names. What the harness says stands above what the model says."""
        told = (meta or {}).get(USER_META, "")
        if not isinstance(told, str):
            raise InvalidInput(
                f"_meta {USER_META} must be a text",
                field="user_id",
                received=told,
                hint=_NAMED,
                example="josetian",
            )
        if told and argument and told != argument:
            raise Forbidden(
                f"user_id is not the user this conversation belongs to ({told})",
                field="user_id",
                received=argument,
                hint="Leave out user_id.",
            )
        return told or argument or ""

    def _scopes(self) -> str:
        return ", ".join(sorted(self.scopes)) or "none"


def by_settings(identity: IdentitySettings) -> Callable[[], Caller]:
    """For stdio and a server without tokens: the one principal of the settings."""
    agent = identity.role == "agent"
    caller = Caller(
        user="" if agent else identity.user,
        may_act=agent,
        default_user=identity.user if agent else "",
        name="settings",
    )
    return lambda: caller


def by_token() -> Caller:
    """The principal of the verified bearer token of this request. Raises Forbidden without one."""
    token = get_access_token()
    if token is None:
        raise Forbidden(
            "no valid bearer token came with the request",
            code="UNAUTHENTICATED",
            hint="Send Authorization: Bearer <token>.",
        )
    claims = token.claims or {}
    scopes = frozenset(token.scopes)
    return Caller(
        user=token.subject or "",
        scopes=scopes,
        may_act="act_as" in scopes or ("admin" in scopes and not token.subject),
        default_user=str(claims.get("default_user", "")),
        name=token.client_id,
    )


def digest(token: str) -> str:
    """The hex sha256 under which a token stands in ``server.tokens``."""
    return hashlib.sha256(token.encode()).hexdigest()


class StaticTokens:
    """Tokens of the configuration, by hash: what is compared is never the secret itself.

    Implements the ``TokenVerifier`` protocol of the MCP SDK.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens: Mapping[str, Token] = MappingProxyType({t.sha256: t for t in tokens})

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who the token is, or None. The answer does not carry the token."""
        found = self._tokens.get(digest(token))
        if found is None:
            return None
        return AccessToken(
            token="",
            client_id=found.name,
            scopes=list(found.scopes),
            subject=found.user or None,
            claims={"default_user": found.default_user} if found.default_user else None,
        )


class AnyOf:
    """The first verifier that knows the token."""

    def __init__(self, verifiers: Iterable[TokenVerifier]) -> None:
        self._verifiers = tuple(verifiers)

    async def verify_token(self, token: str) -> AccessToken | None:
        for verifier in self._verifiers:
            found = await verifier.verify_token(token)
            if found is not None:
                return found
        return None


def tokens_required(server: ServerSettings) -> bool:
    """Whether callers over HTTP need a bearer token: some kind of token is configured."""
    return bool(server.tokens or server.jwt.secret_file or server.jwt.public_key_file)
