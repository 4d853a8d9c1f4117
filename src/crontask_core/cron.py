"""The strict cron parser: text to fields, or what is wrong with which field.

The dialect is Debian cron's five fields with a few spellings more (`X-S1`); the reference page
``docs/reference/cron.md`` states it exactly. Nothing here knows about time zones or clock changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import attrs

__all__ = [
    "CRON_RULES_VERSION",
    "MAX_LENGTH",
    "DayField",
    "Days",
    "Rule",
    "Unreadable",
    "read_rule",
]

MAX_LENGTH = 128
CRON_RULES_VERSION = 1
"""Raised whenever the meaning of any accepted expression changes (`X-S8`)."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@attrs.frozen(kw_only=True)
class _Spec:
    """What one field may hold. ``star_max`` is the end of ``*``, ``max`` the end of ``N/step``."""

    name: str
    min: int
    max: int
    star_max: int
    names: tuple[str, ...] = ()
    good: str = "0"

    @property
    def takes(self) -> str:
        """The values allowed, in words, for a hint."""
        text = f"{self.name} takes {self.min}-{self.star_max}"
        return f"{text} or {self.names[0]}-{self.names[-1]}" if self.names else text


SPECS = (
    _Spec(name="minute", min=0, max=59, star_max=59),
    _Spec(name="hour", min=0, max=23, star_max=23, good="9"),
    _Spec(name="day-of-month", min=1, max=31, star_max=31, good="*"),
    _Spec(name="month", min=1, max=12, star_max=12, names=MONTH_NAMES, good="*"),
    _Spec(name="day-of-week", min=0, max=6, star_max=7, names=DAY_NAMES, good="1-5"),
)
_DOM, _DOW = 2, 4
_LAYOUT = "minute hour day-of-month month day-of-week"
_ITEM = re.compile(
    r"(?P<star>\*)(?:/(?P<star_step>[0-9]+))?"
    r"|(?P<low>[0-9]+|[a-z]{3})(?:-(?P<high>[0-9]+|[a-z]{3}))?(?:/(?P<step>[0-9]+))?"
)
_DOM_SPECIAL = re.compile(r"l|lw|(?P<near>[0-9]+)w")
_DOW_SPECIAL = re.compile(r"(?P<day>[0-9]|[a-z]{3})(?:#(?P<nth>[0-9]+)|(?P<last>l))")


@attrs.frozen(kw_only=True)
class DayField:
    """A day field: plain ``values``, and ``specials`` spelled ``L LW 15W`` or ``1#2 5L``.

    ``star`` is true when the text begins with ``*`` or is ``?``; ``whole`` when no day is left out.
    """

    values: tuple[int, ...]
    specials: tuple[str, ...]
    star: bool
    whole: bool


@attrs.frozen(cache_hash=True)
class Days:
    """The two day fields: which dates of a month match, whatever the month and the time.

    ``both`` is true when a date must satisfy both fields, as when one begins with ``*``; either
    is enough otherwise. ``every`` is true when that lets every date through.
    """

    by_number: DayField
    by_weekday: DayField

    both: bool = attrs.field(init=False)
    every: bool = attrs.field(init=False)

    @both.default
    def _both(self) -> bool:
        return self.by_number.star or self.by_weekday.star

    @every.default
    def _every(self) -> bool:
        wholes = (self.by_number.whole, self.by_weekday.whole)
        return all(wholes) if self.both else any(wholes)


@lru_cache(maxsize=4096)
def _shared(days: Days) -> Days:
    """The first of all equal values: few kinds of days serve very many expressions."""
    return days


@attrs.frozen(kw_only=True, eq=False)
class Rule:
    """A parsed expression. Immutable, so that one object serves every task that uses the text.

    ``follows_clock`` is true when minute or hour begins with ``*``: a wildcard job (`X-S3`).
    ``any_date`` is true when no date of the year is left out.
    ``texts`` are the five fields in lower case, aliases spelled out.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    months: tuple[int, ...]
    follows_clock: bool
    texts: tuple[str, ...]
    any_date: bool = attrs.field(init=False)

    @any_date.default
    def _any_date(self) -> bool:
        return self.days.every and len(self.months) == 12


class Unreadable(Exception):
    """Why a text is not a cron expression. ``tries`` may be what was meant; not all need parse."""

    def __init__(
        self, message: str, hint: str = "", tries: Sequence[str] = (), near: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or f"write five fields: {_LAYOUT}"
        self.tries = tuple(tries)
        self.near = tuple(near)


def read_rule(expr: str) -> Rule:
    """Read a normalised expression without a zone prefix (an alias or five fields) (`X-S1`).

    Raises Unreadable. Whether it ever fires is not looked at here.
    """
    text = expr.lower()
    texts = tuple(_expand_alias(text).split(" ")) if text.startswith("@") else _split(text)
    return Rule(
        minutes=_plain_field(texts, 0),
        hours=_plain_field(texts, 1),
        days=_shared(Days(_day_field(texts, _DOM), _day_field(texts, _DOW))),
        months=_plain_field(texts, 3),
        follows_clock=texts[0].startswith("*") or texts[1].startswith("*"),
        texts=texts,
    )


def _expand_alias(text: str) -> str:
    fields = ALIASES.get(text)
    if fields is not None:
        return fields
    if text.startswith("@reboot"):
        raise Unreadable(
            "@reboot has no time of its own",
            "a stored task does not start with a machine; give a time",
            ["@daily"],
        )
    from difflib import get_close_matches

    close = get_close_matches(text, ALIASES, n=3, cutoff=0.5)
    raise Unreadable(
        f"{text} is not a known alias",
        f"known are {', '.join(ALIASES)} and @every followed by a duration such as 90m",
        [*close, "@daily"],
        close,
    )


def _split(text: str) -> tuple[str, ...]:
    fields = tuple(text.split(" ")) if text else ()
    if len(fields) == 5:
        return fields
    found = f"a cron expression has 5 fields ({_LAYOUT}), found {len(fields)}"
    note = next((i for i, field in enumerate(fields) if field.startswith("#")), 0)
    if note:
        tries = [" ".join(fields[:note])]
        raise Unreadable(f"{found}; {fields[note]} begins a comment", "leave it out", tries)
    if len(fields) in (6, 7):
        raise Unreadable(
            found,
            "seconds and years are not a cron matter: drop that field, "
            "or give interval_seconds for a rhythm in seconds",
            _without_extras(fields),
        )
    raise Unreadable(found, tries=[f"{text} *"])


def _without_extras(fields: tuple[str, ...]) -> list[str]:
    from_second, to_fifth = " ".join(fields[1:6]), " ".join(fields[:5])
    has_year = re.fullmatch(r"[0-9]{4}([-,/].*)?", fields[-1]) is not None
    return [to_fifth, from_second] if has_year and len(fields) == 6 else [from_second, to_fifth]


@attrs.frozen
class _At:
    """Where the parser is: one item of one field, with the way to complain about it."""

    texts: tuple[str, ...]
    index: int
    item: str

    @property
    def spec(self) -> _Spec:
        return SPECS[self.index]

    def error(self, what: str, hint: str, better: str = "") -> Unreadable:
        """Tries ``better`` in the item's place, then a good value in the field's."""
        field = self.texts[self.index]
        items = [better if item == self.item else item for item in field.split(",")]
        fields = [",".join(item for item in items if item), self.spec.good]
        before, after = self.texts[: self.index], self.texts[self.index + 1 :]
        return Unreadable(
            f"{self.spec.name} field {field!r}: {what}",
            hint,
            [" ".join((*before, text, *after)) for text in fields if text],
            [better] if better else [],
        )


def _plain_field(texts: tuple[str, ...], index: int) -> tuple[int, ...]:
    values: set[int] = set()
    for item in texts[index].split(","):
        values |= _item(_At(texts, index, item))
    return tuple(sorted(values))


def _day_field(texts: tuple[str, ...], index: int) -> DayField:
    text, spec = texts[index], SPECS[index]
    values: set[int] = set()
    specials: list[str] = []
    for item in ("*",) if text == "?" else text.split(","):
        at = _At(texts, index, item)
        special = _day_of_month_special(at) if index == _DOM else _weekday_special(at)
        if special:
            specials.append(special)
        else:
            values |= _item(at)
    if index == _DOW:
        values = {value % 7 for value in values}
    return DayField(
        values=tuple(sorted(values)),
        specials=tuple(dict.fromkeys(specials)),
        star=text.startswith("*") or text == "?",
        whole=len(values) == spec.max - spec.min + 1,
    )


def _day_of_month_special(at: _At) -> str:
    """L, LW or nW in that spelling, "" for any other item."""
    match = _DOM_SPECIAL.fullmatch(at.item)
    if match is None:
        return ""
    if match["near"] is None:
        return at.item.upper()
    day = int(match["near"])
    if not 1 <= day <= 31:
        raise at.error(f"{at.item} is out of range", "write 1W to 31W", "15W")
    return f"{day}W"


def _weekday_special(at: _At) -> str:
    """d#n or dL with the day as 0-6, "" for any other item."""
    match = _DOW_SPECIAL.fullmatch(at.item)
    if match is None:
        return ""
    day = _number(at, match["day"]) % 7
    if match["last"]:
        return f"{day}L"
    nth = int(match["nth"])
    if not 1 <= nth <= 5:
        raise at.error(f"there is no weekday number {nth} in a month", "1 to 5", f"{day}#1")
    return f"{day}#{nth}"


def _item(at: _At) -> set[int]:
    spec = at.spec
    match = _ITEM.fullmatch(at.item)
    if match is None:
        raise _unreadable(at)
    step_text = match["star_step"] or match["step"]
    step = int(step_text or 1)
    if step == 0:
        raise at.error(f"the step in {at.item} is 0", "a step is 1 or more")
    if match["star"]:
        return set(range(spec.min, spec.star_max + 1, step))
    low = _number(at, match["low"])
    high = _number(at, match["high"]) if match["high"] else spec.max if step_text else low
    if low > high and not match["high"]:
        raise at.error(f"{at.item} counts Sunday as 7", "count it as 0", f"0/{step}")
    if low > high:
        better = _unwrapped(at, low, high, step)
        raise at.error(f"the range {at.item} runs backwards", f"write {better}", better)
    return set(range(low, high + 1, step))


def _number(at: _At, text: str) -> int:
    spec = at.spec
    if text.isdigit():
        value = int(text)
        if spec.min <= value <= spec.star_max:
            return value
        raise at.error(f"{text} is out of range", spec.takes)
    if text in spec.names:
        return spec.names.index(text) + spec.min
    raise at.error(f"{text} is not a value of this field", spec.takes)


def _unwrapped(at: _At, low: int, high: int, step: int) -> str:
    """What a backward range such as ``22-6`` must have meant, as a list."""
    spec = at.spec
    size = spec.max - spec.min + 1
    if step == 1 and at.item[0].isdigit():
        head = str(low) if low >= spec.max else f"{low}-{spec.max}"
        tail = str(high) if high == spec.min else f"{spec.min}-{high}"
        return f"{head},{tail}"
    values = [(v - spec.min) % size for v in range(low, high + size + 1, step)]
    if at.item[0].isalpha():
        return ",".join(spec.names[v] for v in values)
    return ",".join(str(v + spec.min) for v in values)


def _unreadable(at: _At) -> Unreadable:
    """The most helpful error for an item that has no known form."""
    item, spec = at.item, at.spec
    if item == "":
        return at.error("an empty item in the list", "drop the extra comma")
    if near := re.fullmatch(r"\*([0-9]+)", item):
        return at.error(f"{item} lacks a slash", f"write */{near[1]}", f"*/{near[1]}")
    if re.fullmatch(r"/[0-9]+", item):
        return at.error(f"{item} has no start", f"write *{item}", f"*{item}")
    if re.fullmatch(r"[hr](\(.*\))?(/[0-9]+)?", item):
        return at.error(f"{item} would pick a time nobody sees", "write the value itself")
    if item.isalpha() and (name := next((n for n in spec.names if item.startswith(n)), "")):
        return at.error(f"{item} is not known", f"write {name}", name)
    if at.index == _DOW and re.fullmatch(r"l[0-7]?", item):
        return at.error(f"{item} is not known", "the last Friday is 5L", f"{item[1:] or '6'}L")
    if at.index == _DOM and item.startswith("l-"):
        return at.error(f"{item} is not known", "only L, LW and nW count from the end", "L")
    if "?" in item:
        return at.error(f"{item}: ? stands alone, and in a day field only", "write *", "*")
    if at.index not in (_DOM, _DOW) and re.search(r"[lw#]", item):
        return at.error(f"{item}: L, W and # belong to the day fields", spec.takes)
    return at.error(f"{item} cannot be read", f"{spec.takes}; also *, lists, a-b and /n")
