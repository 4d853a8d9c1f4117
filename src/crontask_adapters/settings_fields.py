"""What a setting is: its kind, unit, range and help, and how its value is read and shown.

A value comes as text (environment, option) or as TOML has it (file); both end as the same Python
value. Reading raises ``Bad`` with what is wrong and a right example; nothing here knows where a
value came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import attrs

from crontask_core.errors import CrontaskError

__all__ = [
    "MASK",
    "SCOPES",
    "Bad",
    "Kind",
    "Spec",
    "Token",
    "read",
    "setting",
    "show",
    "show_duration",
]

MASK = "***"
SCOPES = ("read", "write", "report", "act_as", "admin")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class Kind(StrEnum):
    """How a value is written. LIST is comma separated as text, MAP is ``Name: value`` pairs;
    TOKENS and TABLES exist in the TOML file only."""

    TEXT = "text"
    INT = "integer"
    BOOL = "true or false"
    DURATION = "duration"
    CHOICE = "choice"
    ZONE = "time zone"
    URL = "URL"
    LIST = "list"
    MAP = "table of texts"
    TOKENS = "array of tables"
    TABLES = "tables"


class Bad(Exception):
    """A value cannot be read: what is wrong, and a value that would work."""

    def __init__(self, what: str, example: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.example = example


@attrs.frozen(kw_only=True)
class Spec:
    """One setting. ``low`` and ``high``, both or neither, are included in the range."""

    kind: Kind
    help: str
    unit: str = ""
    low: Any = None
    high: Any = None
    choices: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    secret: bool = False
    shown_default: str = ""
    example: str = ""


@attrs.frozen(kw_only=True)
class Token:
    """A bearer token of ``server.tokens`` (X-I1). ``sha256`` is the hex digest of the token: the
    token itself is stored nowhere. ``user`` is whom a user token acts for; an agent token has the
    scope act_as instead, and may have a ``default_user``."""

    name: str
    sha256: str = attrs.field(repr=lambda _: MASK)
    scopes: tuple[str, ...]
    user: str = ""
    default_user: str = ""


def setting(default: Any, help_text: str, kind: Kind = Kind.TEXT, **more: Any) -> Any:
    """An attrs field with its ``Spec``; a secret is masked in ``repr``."""
    spec = Spec(kind=kind, help=help_text, **more)
    hide = spec.secret or kind in (Kind.URL, Kind.TOKENS)
    return attrs.field(
        default=default,
        metadata={"spec": spec},
        repr=(lambda value: show(spec, value)) if hide else True,
    )


def read(spec: Spec, raw: object) -> Any:
    """The value of a setting out of text or out of TOML. Raises ``Bad``."""
    value = _READERS[spec.kind](spec, raw)
    if spec.low is not None and not spec.low <= value <= spec.high:
        low, high = _plain(spec.low), _plain(spec.high)
        raise Bad(f"{_plain(value)} is out of range: it must be between {low} and {high}", low)
    return value


def show(spec: Spec, value: Any) -> str:
    """The value as a person may see it, secrets masked; "" when it is not set."""
    if spec.kind is Kind.URL:
        return _masked_url(value)
    if spec.kind is Kind.TOKENS:
        return ", ".join(f"{t.name} ({' '.join(t.scopes)})" for t in value)
    if spec.kind is Kind.MAP:
        return ", ".join(f"{k}: {MASK if spec.secret else v}" for k, v in value.items())
    if spec.kind is Kind.TABLES:
        return ", ".join(value)
    if spec.secret:
        count = len(value) if isinstance(value, tuple) else 1
        return (MASK if count == 1 else f"{MASK} ({count})") if value else ""
    return _plain(value)


def show_duration(span: timedelta) -> str:
    """The shortest text that reads back as ``span``: ``1h30m``, ``500ms``, ``0s``."""
    left = span // timedelta(microseconds=1)
    parts = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000)):
        count, left = divmod(left, size)
        parts.append(f"{count}{unit}" if count else "")
    seconds, micros = divmod(left, 1_000_000)
    parts.append(f"{seconds}s" if seconds else "")
    parts.append(f"{micros / 1000:g}ms" if micros else "")
    return "".join(parts) or "0s"


def _plain(value: Any) -> str:
    if isinstance(value, timedelta):
        return show_duration(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _masked_url(url: str) -> str:
    """The URL without its password, and without query values whose names say secret."""
    # Up to the last "@": a password with a "#" or "/" in it splits a URL in the wrong place.
    url = re.sub(r"^([\w.+-]+://[^:@/]*):.*@", rf"\1:{MASK}@", url, flags=re.DOTALL)
    return re.sub(
        r"([?&][^=&#]*(?:pass|pwd|secret|token|key|auth)[^=&#]*=)[^&#]*",
        rf"\1{MASK}",
        url,
        flags=re.IGNORECASE,
    )


def _text(spec: Spec, raw: object) -> str:
    if not isinstance(raw, str):
        raise Bad(f"{_kind_of(raw)} where a text is expected", spec.example)
    if any(not c.isprintable() for c in raw):
        raise Bad("it has characters that cannot be printed", spec.example)
    return raw.strip()


def _int(spec: Spec, raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    text = raw.strip() if isinstance(raw, str) else ""
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) is None:
        raise Bad(f"{_quoted(raw)} is not a whole number", str(spec.low or 1))
    return int(text)


def _bool(_spec: Spec, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = raw.strip().lower() if isinstance(raw, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Bad(f"{_quoted(raw)} is neither true nor false", "true")


def _duration(_spec: Spec, raw: object) -> timedelta:
    from crontask_core.schedule import parse_duration

    if isinstance(raw, (int, float)) and not isinstance(raw, bool) and math.isfinite(raw):
        raw = f"{raw}s"
    text = raw.strip() if isinstance(raw, str) else ""
    if re.fullmatch(r"[\d.]+", text, re.ASCII):
        text += "s"
    try:
        return parse_duration(text)
    except CrontaskError as error:
        raise Bad(f"{_quoted(raw)} is not a duration; {error.hint}", "1h30m") from None


def _choice(spec: Spec, raw: object) -> str:
    # TOML and YAML habits: `lock = on` is a boolean there.
    text = ("on" if raw else "off") if isinstance(raw, bool) else str(raw).strip().lower()
    if text not in spec.choices:
        raise Bad(f"{_quoted(raw)} is not one of {', '.join(spec.choices)}", spec.choices[0])
    return text


def _zone(_spec: Spec, raw: object) -> str:
    from crontask_core.schedule import parse_zone

    try:
        return parse_zone(raw.strip() if isinstance(raw, str) else str(raw))
    except CrontaskError as error:
        raise Bad(f"{error.message}; {error.hint}", error.example) from None


def _url(spec: Spec, raw: object) -> str:
    text = _text(spec, raw)
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - reading it is the check
    except ValueError:
        raise Bad("it is not a URL", spec.example) from None
    if parts.scheme not in spec.schemes or "://" not in text:
        known = ", ".join(f"{scheme}://" for scheme in spec.schemes)
        raise Bad(f"a URL that starts with one of {known} is expected", spec.example)
    if not parts.hostname and parts.scheme not in ("sqlite", "unix"):
        raise Bad("the URL names no host", spec.example)
    return text


def _list(spec: Spec, raw: object) -> tuple[str, ...]:
    items: list[Any] = raw.split(",") if isinstance(raw, str) else _sequence(raw)
    texts = tuple(_text(spec, item) for item in items)
    return tuple(text for text in texts if text)


def _map(spec: Spec, raw: object) -> Mapping[str, str]:
    if isinstance(raw, str):
        pairs = [item.partition(":") for item in raw.split(",") if item.strip()]
        if not all(colon for _, colon, _ in pairs):
            raise Bad("pairs are written Name: value, with commas between them", spec.example)
        raw = {name.strip(): value for name, _, value in pairs}
    if not isinstance(raw, Mapping):
        raise Bad(f"{_kind_of(raw)} where a table is expected", spec.example)
    return MappingProxyType({str(name): _text(spec, value) for name, value in raw.items()})


def _tables(_spec: Spec, raw: object) -> Mapping[str, Mapping[str, object]]:
    if not isinstance(raw, Mapping) or not all(isinstance(v, Mapping) for v in raw.values()):
        raise Bad("it is made of tables and can only be given in the TOML file")
    return MappingProxyType({k: MappingProxyType(dict(v)) for k, v in raw.items()})


def _tokens(_spec: Spec, raw: object) -> tuple[Token, ...]:
    if not isinstance(raw, (list, tuple)):
        raise Bad("it is an array of tables and can only be given in the TOML file")
    return tuple(_token(n, entry) for n, entry in enumerate(raw, 1))


def _token(number: int, entry: object) -> Token:
    if isinstance(entry, Token):
        return entry
    known = {field.name for field in attrs.fields(Token)}
    if not isinstance(entry, Mapping):
        raise Bad(f"entry {number} is not a table")
    if strangers := sorted(set(entry) - known):
        raise Bad(f"entry {number} has an unknown key {strangers[0]}; known: {sorted(known)}")
    if missing := sorted({"name", "sha256", "scopes"} - set(entry)):
        raise Bad(f"entry {number} has no {missing[0]}")
    texts = {k: v for k, v in entry.items() if k != "scopes"}
    if not all(isinstance(v, str) for v in texts.values()):
        raise Bad(f"entry {number}: name, sha256, user and default_user are texts")
    scopes = tuple(str(scope) for scope in _sequence(entry["scopes"]))
    return Token(**{**texts, "sha256": str(texts["sha256"]).lower()}, scopes=scopes)


def _sequence(raw: object) -> list[Any]:
    if not isinstance(raw, (list, tuple)):
        raise Bad(f"{_kind_of(raw)} where a list is expected")
    return list(raw)


def _kind_of(raw: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(raw), "a table" if isinstance(raw, Mapping) else "a list")


def _quoted(raw: object) -> str:
    return f"{raw!r:.60}"


_READERS: Mapping[Kind, Any] = MappingProxyType(
    {
        Kind.TEXT: _text,
        Kind.INT: _int,
        Kind.BOOL: _bool,
        Kind.DURATION: _duration,
        Kind.CHOICE: _choice,
        Kind.ZONE: _zone,
        Kind.URL: _url,
        Kind.LIST: _list,
        Kind.MAP: _map,
        Kind.TOKENS: _tokens,
        Kind.TABLES: _tables,
    }
)
