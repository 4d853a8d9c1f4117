"""Times and durations out of text: strict, with errors that show a right way to write it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from crontask_core.errors import InvalidInput
from crontask_core.zones import zone as load_zone

__all__ = ["parse_duration", "parse_instant"]

_YEARS = range(1900, 3000)
_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d|\d{8}(?=[Tt]))(?:[Tt]| +)"
    r"(?P<time>\d\d:\d\d(?::\d\d)?|\d\d\d\d(?:\d\d)?)(?:[.,](?P<fraction>\d{1,9}))?"
    r" ?(?P<offset>[Zz]|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_NUMBER = re.compile(r"[+-]?(\d{1,20})(?:\.\d*)?", re.ASCII)
_DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)", re.ASCII)
_WEEK_OR_DAY = re.compile(r"\d{4}-?(?:W\d\d|\d{3}(?!\d)).*", re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?(\.\d+)?", re.ASCII)
_DURATION = re.compile(
    r"(?:(?P<d>[\d.]+)d)?(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m)?"
    r"(?:(?P<s>[\d.]+)s)?(?:(?P<ms>[\d.]+)ms)?",
    re.ASCII,
)
_LONGEST = 100
_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 10**6, "ms": 1000}


def parse_instant(
    text: str | datetime, zone: str, now: datetime, field: str
) -> tuple[datetime, tuple[str, ...]]:
    """An ISO 8601 time as an aware UTC instant, to the microsecond, and warnings (`A2.1b`).

    A time without an offset is read in ``zone``; with one, the offset wins. A repeated local time
    means its first pass, with a warning. Digits past microseconds are cut. Past or future is not
    judged; ``now`` only serves the examples. Raises InvalidInput for ``field``: ``INVALID_TIME``,
    ``NONEXISTENT_LOCAL_TIME`` (the example is the first instant after the gap) or
    ``UNKNOWN_TIMEZONE``.
    """
    local_zone = load_zone(zone)
    read = text if isinstance(text, datetime) else _read(text, local_zone, now, field)
    if read.year not in _YEARS:
        raise _bad(
            f"the year {read.year} is outside {_YEARS.start}-{_YEARS.stop - 1}",
            "give a time within that range", text, local_zone, now, field,
        )  # fmt: skip
    if read.tzinfo is not None:
        return read.astimezone(UTC), ()
    return _place(read, local_zone, field, text)


def _place(
    read: datetime, local_zone: tzinfo, field: str, text: object
) -> tuple[datetime, tuple[str, ...]]:
    """Put a local time on the time line."""
    first = read.replace(tzinfo=local_zone, fold=0)
    second = first.replace(fold=1)
    at = first.astimezone(UTC)
    if first.utcoffset() == second.utcoffset():
        return at, ()
    if at.astimezone(local_zone).replace(tzinfo=None) == read.replace(fold=0):
        later = second.isoformat()
        return at, (
            f"{read.isoformat(sep=' ')} comes twice in {local_zone} because clocks go back; the "
            f"first, {first.isoformat()}, is meant. For the second give {later}",
        )
    after = _end_of_gap(at, local_zone)
    raise InvalidInput(
        f"{read.isoformat(sep=' ')} does not exist in {local_zone}: clocks go forward over it",
        code="NONEXISTENT_LOCAL_TIME",
        field=field,
        received=str(text),
        hint="the first time after the change is in the example",
        example=after.isoformat(),
    )


def _end_of_gap(at: datetime, local_zone: tzinfo) -> datetime:
    """The first instant after the gap that ``at``, read with the offset before it, lies beyond."""
    low, high = int(at.timestamp()) - 2 * 86_400, int(at.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        same = _offset(middle, local_zone) == _offset(high, local_zone)
        low, high = (low, middle) if same else (middle, high)
    return datetime.fromtimestamp(high, local_zone)


def _offset(seconds: int, local_zone: tzinfo) -> timedelta | None:
    return datetime.fromtimestamp(seconds, local_zone).utcoffset()


def _read(text: str, local_zone: tzinfo, now: datetime, field: str) -> datetime:
    """The text as a datetime, naive when it has no offset."""
    stripped = text.strip() if isinstance(text, str) else str(text)
    match = _ISO.fullmatch(stripped)
    if match is None:
        raise _unreadable(stripped, local_zone, now, field)
    day, clock = match["date"].replace("-", ""), match["time"].replace(":", "")
    micro = int((match["fraction"] or "0").ljust(6, "0")[:6])
    numbers = [int(day[:4]), int(day[4:6]), int(day[6:])]
    numbers += [int(clock[i : i + 2]) for i in range(0, len(clock), 2)]
    try:
        if match["fraction"] and len(clock) == 4:
            raise ValueError("a fraction needs seconds before it")
        read = datetime(*numbers[:5], *numbers[5:], microsecond=micro)  # type: ignore[arg-type, misc]  # noqa: DTZ001
        return read.replace(tzinfo=_fixed(match["offset"]))
    except ValueError as error:
        raise _bad(str(error), "", stripped, local_zone, now, field) from None


def _fixed(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text in "Zz":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise ValueError(f"there is no offset {text}")
    span = timedelta(hours=hours, minutes=minutes)
    return timezone(-span if text[0] == "-" else span)


def _unreadable(text: str, local_zone: tzinfo, now: datetime, field: str) -> InvalidInput:
    """What is wrong with a text that is not ISO 8601 as we take it."""
    if not text:
        return _bad("the time is empty", "", text, local_zone, now, field)
    day = _DATE.fullmatch(text)
    example = _morning("-".join(day.groups()), local_zone) if day else ""
    if example:
        hint = "add the time of day"
        return _bad("a date without a time", hint, text, local_zone, now, field, example)
    if number := _NUMBER.fullmatch(text):
        return _epoch_number(text, number[1], local_zone, now, field)
    if _WEEK_OR_DAY.fullmatch(text):
        hint = "give year-month-day"
        return _bad("week and day-of-year dates are not taken", hint, text, local_zone, now, field)
    if _CLOCK.fullmatch(text):
        return _bad("a time without a date", "add the date", text, local_zone, now, field)
    if text.endswith("]"):
        hint = "leave out the part in brackets; a zone has its own argument"
        return _bad("a zone in brackets is not taken", hint, text, local_zone, now, field)
    hint = "give the date and time in full; for a time from now give delay_seconds"
    return _bad("this is not an ISO 8601 time", hint, text, local_zone, now, field)


def _epoch_number(
    text: str, whole: str, local_zone: tzinfo, now: datetime, field: str
) -> InvalidInput:
    """An error that shows a Unix time, in whatever unit, as the ISO time it stands for."""
    unit = 10 ** max(0, (len(whole) - 9) // 3 * 3)
    hint, example = "give an ISO 8601 time", ""
    try:
        meant = datetime.fromtimestamp(float(text) / unit, UTC)
        if meant.year in _YEARS and len(whole) >= 9:
            example = meant.astimezone(local_zone).isoformat()
            hint = f"as a Unix time it would be {example}; give it so"
            if _over(example, now, field):
                hint = f"as a Unix time it would be {example}, which has passed; give a later one"
    except (ValueError, OverflowError, OSError):
        pass
    return _bad("a number is not a time", hint, text, local_zone, now, field, example)


def _over(example: str, now: datetime, field: str) -> bool:
    """Whether this example would be refused in its turn: a one-off must lie ahead."""
    return field == "trigger_time" and datetime.fromisoformat(example) <= now


def _morning(day: str, local_zone: tzinfo) -> str:
    """09:00 of that date with its offset, or "" when there is no such date."""
    try:
        at = datetime.fromisoformat(f"{day}T09:00:00").replace(tzinfo=local_zone)
        return at.isoformat() if at.year in _YEARS else ""
    except ValueError:
        return ""


def _bad(
    message: str,
    hint: str,
    text: object,
    local_zone: tzinfo,
    now: datetime,
    field: str,
    example: str = "",
) -> InvalidInput:
    tomorrow = now.astimezone(local_zone) + timedelta(days=1)
    if example and _over(example, now, field):
        example = ""
    return InvalidInput(
        message,
        code="INVALID_TIME",
        field=field,
        received=str(text),
        hint=hint or "write date, T, time and offset",
        example=example or _morning(f"{tomorrow:%Y-%m-%d}", local_zone),
    )


def parse_duration(text: str) -> timedelta:
    """A duration such as ``90m``, ``1h30m``, ``45s``, ``500ms``, ``2d``, ``1.5h``.

    Units d, h, m, s, ms, largest first, each at most once; no signs, no blanks. Exact to the
    microsecond. Raises InvalidInput ``INVALID_ARGUMENT``.
    """
    short = isinstance(text, str) and 0 < len(text) <= _LONGEST
    match = _DURATION.fullmatch(text) if short else None
    if match is None:
        raise _bad_duration(text, "a duration is a number and a unit: d, h, m, s or ms")
    parts = {unit: value for unit, value in match.groupdict().items() if value is not None}
    if not all(re.fullmatch(r"\d{1,12}(\.\d{1,9})?", value) for value in parts.values()):
        raise _bad_duration(text, "give plain numbers such as 90 or 1.5")
    micro = sum(Decimal(value) * _MICROSECONDS[unit] for unit, value in parts.items())
    if micro != int(micro):
        raise _bad_duration(text, "microseconds are the finest there is")
    if micro > 36_525 * 86_400 * 10**6:
        raise _bad_duration(text, "a hundred years is the longest")
    return timedelta(microseconds=int(micro))


def _bad_duration(text: object, hint: str) -> InvalidInput:
    return InvalidInput(
        f"{text!r:.60} is not a duration", received=str(text), hint=hint, example="1h30m"
    )
