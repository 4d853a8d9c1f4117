"""One argument of a call: what it takes, what harmless variants it forgives, how it refuses.

A model sends ``"2"`` for 2, ``3.0`` for 3, ``"null"`` for nothing, full-width digits. Those are
understood. Anything that could mean two things is refused with an example that works.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import attrs

from crontask_core.errors import InvalidInput

__all__ = ["ABSENT", "Argument", "Kind"]

ABSENT = object()
"""What ``Argument.read`` answers for a value that means "not given"."""

_NOTHING = frozenset({"", "null", "none", "undefined"})
_WHOLE = re.compile(r"[+-]?\d{1,30}(?:\.0{1,9})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,9})?|\.\d{1,9})", re.ASCII)
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
_MOST = 2**63 - 1


class Kind(StrEnum):
    """How a value is read."""

    CONTENT = "content"  # text byte for byte
    LOOSE = "loose"  # text byte for byte; anything else becomes JSON text rather than be lost
    ID = "id"  # text byte for byte; a whole number is taken as its digits
    RUN = "run"  # an id that is stored without outer blanks
    PLAIN = "plain"  # trimmed text
    WORD = "word"  # one of a few words, in any case
    WHOLE = "whole"
    NUMBER = "number"
    FLAG = "flag"
    TIME = "time"  # ISO 8601 text; read further by the core
    NAMES = "names"  # a list of words


@attrs.frozen(kw_only=True)
class Argument:
    """One argument. ``low`` and ``high`` are included. ``words`` maps further spellings to values.
    ``example`` is a value that is accepted as it stands."""

    name: str
    kind: Kind
    example: str
    required: bool = False
    low: int = -_MOST
    high: int = _MOST
    words: Mapping[str, object] | None = None

    def read(self, value: object) -> Any:
        """The value in its type, or ``ABSENT``. Raises InvalidInput (INVALID_ARGUMENT)."""
        if value is None or self._means_nothing(value):
            return ABSENT
        return _READERS[self.kind](self, value)

    def _means_nothing(self, value: object) -> bool:
        if not isinstance(value, str):
            return value == [] and self.kind is Kind.NAMES
        if self.kind in (Kind.CONTENT, Kind.LOOSE, Kind.ID, Kind.RUN):
            return value == ""
        return value.strip().lower() in _NOTHING

    def refuse(self, value: object, what: str, hint: str) -> InvalidInput:
        """The error for a value that is not taken."""
        return InvalidInput(
            f"{self.name} {what}",
            field=self.name,
            received=value if isinstance(value, str) else _json(value),
            hint=hint,
            example=self.example,
        )


def _content(argument: Argument, value: object) -> str:
    if isinstance(value, str):
        return value
    kind = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else ""
    raise argument.refuse(
        value,
        f"must be a text, not {kind or _json(value)}",
        "Send one string; write structured parameters into it as JSON text.",
    )


def _loose(_argument: Argument, value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _id(argument: Argument, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _content(argument, value)


def _run(argument: Argument, value: object) -> str:
    return _id(argument, value).strip()


def _plain(argument: Argument, value: object) -> str:
    return _content(argument, value).strip()


def _word(argument: Argument, value: object) -> object:
    """A word in any case, or its number where the words stand for numbers."""
    words = argument.words
    text = _folded(value).lower() if isinstance(value, str) else value
    if words is None:
        return _plain(argument, text)
    if isinstance(text, str) and text in words:
        return words[text]
    if isinstance(text, str) and not _WHOLE.fullmatch(text):
        known = ", ".join(words)
        raise argument.refuse(value, f"must be one of {known}", "Send one of them, or its number.")
    return _whole(argument, value)


def _whole(argument: Argument, value: object) -> int:
    number: int | None = None
    if isinstance(value, str):
        text = _folded(value)
        number = int(text.split(".")[0]) if _WHOLE.fullmatch(text) else None
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if number is None:
        raise argument.refuse(value, "must be a whole number", "Send a plain integer.")
    if not argument.low <= number <= argument.high:
        raise argument.refuse(
            value,
            f"must be between {argument.low} and {argument.high}",
            f"Send an integer from {argument.low} to {argument.high}.",
        )
    return number


def _number(argument: Argument, value: object) -> int | float:
    number: int | float | None = None
    if isinstance(value, str):
        text = _folded(value)
        number = float(text) if _NUMBER.fullmatch(text) else None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        raise argument.refuse(value, "must be a number", "Send plain seconds, such as 90 or 1.5.")
    if abs(number) > _MOST:
        raise argument.refuse(value, "is too large", "Send a smaller number.")
    # 600 and 600.0 and "600" are one request: its digest must not differ (A3.1a).
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _flag(argument: Argument, value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _folded(value).lower() if isinstance(value, str) else str(value)
    if text in _FLAGS:
        return _FLAGS[text]
    raise argument.refuse(value, "must be true or false", "Send true or false.")


def _time(argument: Argument, value: object) -> str:
    # A number is no time, but the core's refusal shows which time it would be.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _folded(_content(argument, value))


def _names(argument: Argument, value: object) -> tuple[str, ...]:
    given: object = value
    if isinstance(value, str):
        text = value.strip()
        try:
            given = json.loads(text) if text.startswith("[") else text.split(",")
        except ValueError:
            given = None
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise argument.refuse(value, "must be a list of names", "Send a list of strings.")
    return tuple(name.strip() for name in given if name.strip())


_READERS: Mapping[Kind, Callable[[Argument, object], Any]] = {
    Kind.CONTENT: _content,
    Kind.LOOSE: _loose,
    Kind.ID: _id,
    Kind.RUN: _run,
    Kind.PLAIN: _plain,
    Kind.WORD: _word,
    Kind.WHOLE: _whole,
    Kind.NUMBER: _number,
    Kind.FLAG: _flag,
    Kind.TIME: _time,
    Kind.NAMES: _names,
}


def _folded(text: str) -> str:
    """Full-width digits and letters as plain ones, without outer blanks."""
    return unicodedata.normalize("NFKC", text).strip()


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)
