"""What settings must hold together: limits between keys, and the shape of lists and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from crontask_adapters.settings import Settings
from crontask_adapters.settings_fields import SCOPES, Token, show_duration
from crontask_core.errors import ConfigError

__all__ = ["SEND_MARGIN", "problems_of"]

SEND_MARGIN = timedelta(seconds=5)
"""A call may start up to this long after its fire was begun (DESIGN 3.2), so a lease has to cover
it and the call."""

_HOST = re.compile(r"[A-Za-z0-9._*-]+(:(\d{1,5}|\*))?|\[[0-9a-fA-F:.]+\](:(\d{1,5}|\*))?", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def problems_of(settings: Settings) -> list[ConfigError]:
    """Everything that is wrong with values that can each be read; empty when nothing is."""
    checks = (_times, _addresses, _callbacks, _identity, _tokens, _jwt, _batch)
    return [problem for check in checks for problem in check(settings)]


def _times(settings: Settings) -> Iterator[ConfigError]:
    scheduler, executor = settings.scheduler, settings.executor
    least = executor.callback_timeout + SEND_MARGIN
    if scheduler.lease <= least:
        yield ConfigError(
            f"scheduler.lease is {show_duration(scheduler.lease)}, but a call may take "
            f"{show_duration(executor.callback_timeout)} and start "
            f"{show_duration(SEND_MARGIN)} late: another node would call again meanwhile",
            field="scheduler.lease",
            hint=f"set it above {show_duration(least)}, or lower executor.callback_timeout",
            example=show_duration(least * 2),
        )
    if scheduler.node_timeout <= 3 * scheduler.heartbeat:
        yield ConfigError(
            f"scheduler.node_timeout is {show_duration(scheduler.node_timeout)}, but a heartbeat "
            f"comes every {show_duration(scheduler.heartbeat)}: a live node would be retired",
            field="scheduler.node_timeout",
            hint="set it above three times scheduler.heartbeat",
            example=show_duration(5 * scheduler.heartbeat),
        )


def _addresses(settings: Settings) -> Iterator[ConfigError]:
    url = urlsplit(settings.store.url)
    if not settings.store.url:
        yield ConfigError("it is empty", field="store.url", example="sqlite:///crontask.db")
    elif url.scheme != "sqlite" and not url.path.strip("/"):
        yield ConfigError(
            "the URL names no database",
            field="store.url",
            hint="end it with /DATABASE",
            example="mysql+asyncmy://crontask:secret@db.example.com:3306/crontask",
        )
    elif url.scheme == "sqlite" and url.netloc:
        yield ConfigError(
            "a sqlite URL has three slashes before a relative path, four before an absolute one",
            field="store.url",
            example="sqlite:////var/lib/crontask/crontask.db",
        )
    elif url.scheme != "sqlite" and "@" in url.path + url.query + url.fragment:
        yield ConfigError(
            "the password has a character that ends that part of a URL",
            field="store.url",
            hint="write / ? # @ and : in it as %2F %3F %23 %40 and %3A",
        )
    if settings.redis.lock == "on" and not settings.redis.url:
        yield ConfigError(
            "redis.lock is on, but there is no Redis",
            field="redis.lock",
            hint="set redis.url, or leave redis.lock at auto",
            example="auto",
        )
    for host in settings.server.allowed_hosts:
        if not _HOST.fullmatch(host):
            yield _item("server.allowed_hosts", host, "a host name", "crontask.example.com")
    for origin in settings.server.allowed_origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
            yield _item("server.allowed_origins", origin, "an origin", "https://example.com")


def _callbacks(settings: Settings) -> Iterator[ConfigError]:
    executor, callback = settings.executor, settings.callback
    given: dict[str, Any] = {
        "headers": callback.headers,
        "signing_keys": callback.signing_keys,
        "allow_hosts": callback.allow_hosts,
        "default_callback_url": executor.default_callback_url,
    }
    if not any(given.values()):
        return
    from crontask_adapters.client_options import ClientOptions

    # One by one: the options raise at the first fault, and every fault shall be told.
    for name, value in given.items():
        try:
            ClientOptions(**{name: value})
        except ConfigError as problem:
            yield problem


def _identity(settings: Settings) -> Iterator[ConfigError]:
    if not settings.identity.user or len(settings.identity.user) > 64:
        yield ConfigError(
            "identity.user must have 1 to 64 characters", field="identity.user", example="josetian"
        )


def _tokens(settings: Settings) -> Iterator[ConfigError]:
    names: set[str] = set()
    digests: set[str] = set()
    for token in settings.server.tokens:
        what = _fault(token)
        if token.name in names:
            what = "the name is used twice"
        elif token.sha256 in digests:
            what = "the same sha256 stands under two names"
        names.add(token.name)
        digests.add(token.sha256)
        if what:
            yield ConfigError(
                f"token {token.name!r:.60}: {what}",
                field="server.tokens",
                hint="scopes are " + ", ".join(SCOPES),
                example='{name = "ga", sha256 = "<64 hex digits>", scopes = ["read"], user = "u"}',
            )


def _fault(token: Token) -> str:
    strangers = [scope for scope in token.scopes if scope not in SCOPES]
    if not token.name:
        return "it has no name"
    if not _SHA256.fullmatch(token.sha256):
        return "sha256 is not 64 hex digits"
    if strangers or not token.scopes:
        return f"there is no scope {strangers[0]!r:.40}" if strangers else "it has no scopes"
    agent = "act_as" in token.scopes
    if agent and token.user:
        return "an agent token (act_as) has default_user, not user"
    if token.default_user and not agent:
        return "default_user is for agent tokens (act_as); give user"
    if not agent and not token.user and set(token.scopes) & {"read", "write"}:
        return "it needs a user, or the scope act_as"
    return ""


def _jwt(settings: Settings) -> Iterator[ConfigError]:
    jwt = settings.server.jwt
    if jwt.secret_file and jwt.public_key_file:
        yield ConfigError(
            "a shared secret and a public key are both given",
            field="server.jwt.secret_file",
            hint="keep one: a public key could otherwise pass as a secret",
        )
    keyed = bool(jwt.secret_file or jwt.public_key_file)
    if keyed and not jwt.audience:
        yield ConfigError(
            "JWT tokens are on, but no audience is given",
            field="server.jwt.audience",
            hint="without it a token made for another service would work here",
            example="crontask",
        )
    if not keyed and (jwt.issuer or jwt.audience):
        yield ConfigError(
            "issuer or audience is given, but no key to check tokens with",
            field="server.jwt.secret_file",
            hint="set server.jwt.secret_file or server.jwt.public_key_file",
        )


def _batch(settings: Settings) -> Iterator[ConfigError]:
    if settings.batch.jobs or settings.batch.owners:
        from crontask_adapters.batch_settings import read_batch

        yield from read_batch(settings.batch).problems


def _item(key: str, value: str, what: str, example: str) -> ConfigError:
    return ConfigError(f"{value!r:.60} is not {what}", field=key, received=value, example=example)
