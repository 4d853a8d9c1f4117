"""What the clients that call agents need to know, out of the settings (A6.4, DESIGN 3.4 and 6)."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

import attrs

from crontask_adapters.address_guard import AllowList, parse_target
from crontask_core.errors import ConfigError, InvalidInput

__all__ = ["ClientOptions"]

KEY_BYTES = 24
"""Shortest signing key; the Standard Webhooks specification asks for as much."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset(
    {
        "content-length", "content-type", "host", "idempotency-key", "transfer-encoding",
        "accept-encoding", "connection", "webhook-id", "webhook-timestamp", "webhook-signature",
    }
)  # fmt: skip


def _frozen(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(given))


def _masked(_value: object) -> str:
    return "***"


@attrs.frozen(kw_only=True)
class ClientOptions:
    """Options of every ``GaClient``; a wrong one raises ConfigError here, before anything runs.

    ``callback_timeout`` bounds one call in total. ``headers`` are secret: they go to the
    operator's own agent and to hosts that ``allow_hosts`` lists, never to a host that only ``*``
    admits. ``ca_file`` is a PEM file of authorities to trust besides the system's.
    ``signing_keys`` (``whsec_`` and base64, at least 24 bytes) all sign, so that one can take
    over from another. ``default_callback_url`` is the operator's own and exempt from the address
    check.
    """

    callback_timeout: timedelta = timedelta(seconds=30)
    concurrency: int = 50
    max_idle: int = 200
    per_host: int = 50
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=_masked, converter=_frozen)
    ca_file: str | None = None
    signing_keys: tuple[str, ...] = attrs.field(default=(), repr=_masked)
    allow_hosts: tuple[str, ...] = ()
    default_callback_url: str = attrs.field(default="", repr=_masked)

    def __attrs_post_init__(self) -> None:
        if self.callback_timeout <= timedelta(0):
            raise _wrong("executor.callback_timeout", "must be longer than zero", example="30s")
        for key, value in (
            ("executor.concurrency", self.concurrency),
            ("http.per_host", self.per_host),
        ):
            if value < 1:
                raise _wrong(key, "must be at least 1", example="50")
        if self.max_idle < 0:
            raise _wrong("http.max_idle", "must be at least 0", example="200")
        self._check_secrets()
        AllowList.parse(self.allow_hosts)
        if self.default_callback_url:
            try:
                parse_target(self.default_callback_url)
            except InvalidInput as error:
                url = "http://127.0.0.1:8000/v1/task/execute"
                raise _wrong("executor.default_callback_url", error.message, example=url) from None

    def _check_secrets(self) -> None:
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise _wrong("callback.headers", f"{name!r:.40} is not a valid header in ASCII")
            if name.lower() in _OURS:
                raise _wrong("callback.headers", f"{name} is set by crontask itself")
        for number, key in enumerate(self.signing_keys, 1):
            if not _is_key(key):
                what = f"key {number} is not whsec_ and 24 bytes or more in base64"
                raise _wrong("callback.signing_keys", what)


def _is_key(key: str) -> bool:
    text = key.removeprefix("whsec_").rstrip("=")
    try:
        return len(b64decode(text + "=" * (-len(text) % 4), validate=True)) >= KEY_BYTES
    except ValueError:
        return False


def _wrong(field: str, what: str, example: str = "") -> ConfigError:
    return ConfigError(f"{field}: {what}", field=field, example=example)
