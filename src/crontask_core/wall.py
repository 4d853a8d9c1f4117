"""Cron fires as instants: the calendar of wall time, the clock changes of a zone, both joined.

Times are whole seconds since 1970, as ``int``: *utc* seconds, or *wall* seconds (utc plus the
offset in force). A zone is cut into pieces of constant offset. Within a piece wall time and utc
differ by a constant, so all that is special about a clock change happens where a piece begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Set
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

import attrs

from crontask_core.cron import DayField, Days, Rule
from crontask_core.zones import zone

__all__ = ["LAST_SECOND", "first_fire_after", "has_a_day", "last_fire_until", "next_day"]

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
LAST_SECOND = (_LAST_DAY - 1) * _DAY - 1
"""9999-12-29T23:59:59Z, the last second that every zone can still write; nothing fires later."""
_NEVER = 4 * LAST_SECOND
_SMALL_CHANGE = 3 * 3600
_NEAR = 2 * _DAY
_LOOK = 3 * _DAY


# --- the calendar: which days match -----------------------------------------------------------


@lru_cache(maxsize=1)
def _sample_months() -> dict[int, datetime]:
    """For each weekday (0 Monday) a month whose first day it is: every year has them all."""
    firsts = (datetime(2000, month, 1) for month in range(1, 13))  # noqa: DTZ001 - wall time
    return {first.weekday(): first for first in firsts}


def _shape(year: int, month: int) -> tuple[int, int]:
    first = date(year, month, 1)
    if month != 2:
        return first.weekday(), 30 if month in (4, 6, 9, 11) else 31
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return first.weekday(), 29 if leap else 28


@lru_cache(maxsize=49)
def _first_on(weekday: int, first: int) -> int:
    """The first day of a month that is ``weekday`` (0 Sunday) when day 1 is ``first`` (0 Monday).

    The one question croniter is asked: in the plainest spelling there is, on naive wall time. All
    days of ours follow from its 49 answers, so hostile input cannot make it work (`X-S4`).
    """
    from croniter import croniter

    month = _sample_months()[first]
    found = croniter(f"0 0 * * {weekday}", month - timedelta(minutes=1)).get_next(datetime)
    return int(found.day)


def _all_on(weekday: int, shape: tuple[int, int]) -> range:
    first, length = shape
    return range(_first_on(weekday, first), length + 1, 7)


@lru_cache(maxsize=4096)
def _month_days(days: Days, shape: tuple[int, int]) -> tuple[int, ...]:
    """The matching days, ascending, of a month of this shape."""
    if days.every:
        return tuple(range(1, shape[1] + 1))
    numbers = _days_by_number(days.by_number, shape)
    weekdays = _days_by_weekday(days.by_weekday, shape)
    return tuple(sorted(numbers & weekdays if days.both else numbers | weekdays))


def _days_by_number(field: DayField, shape: tuple[int, int]) -> set[int]:
    days = {day for day in field.values if day <= shape[1]}
    return days.union(*(_special_day(special, shape) for special in field.specials))


@lru_cache(maxsize=1024)
def _special_day(special: str, shape: tuple[int, int]) -> Set[int]:
    """The day that L, LW or nW means in a month of this shape; none for a day it has not."""
    length = shape[1]
    if special == "L":
        return {length}
    workdays = _workdays(shape)
    if special == "LW":
        return {max(workdays)}
    near = int(special[:-1])
    if near > length:
        return set()
    return {next(day for day in (near, near - 1, near + 1, near - 2, near + 2) if day in workdays)}


@lru_cache(maxsize=28)
def _workdays(shape: tuple[int, int]) -> frozenset[int]:
    return frozenset(day for weekday in range(1, 6) for day in _all_on(weekday, shape))


def _days_by_weekday(field: DayField, shape: tuple[int, int]) -> set[int]:
    found = set[int]()
    for weekday in field.values:
        found.update(_all_on(weekday, shape))
    for special in field.specials:
        days = _all_on(int(special[0]), shape)
        if special.endswith("L"):
            found.add(days[-1])
        else:
            found.update(days[int(special[-1]) - 1 : int(special[-1])])
    return found


def has_a_day(rule: Rule) -> bool:
    """Whether any date at all matches.

    Exact: within the 400 years of the calendar every month begins on every weekday, 29 February
    included, so the months' shapes are all there is to look at.
    """
    lengths = {_shape(year, month)[1] for year in (2023, 2024) for month in rule.months}
    shapes = ((first, length) for length in sorted(lengths, reverse=True) for first in range(7))
    return any(_month_days(rule.days, shape) for shape in shapes)


def next_day(rule: Rule, day: int) -> int | None:
    """The first matching day >= ``day``, in days since 1970; None after the year 9999."""
    day = max(day, _FIRST_DAY)
    if day > _LAST_DAY:
        return None
    here = date.fromordinal(day + _EPOCH_DAY)
    place = bisect_left(rule.months, here.month)
    if place < len(rule.months) and rule.months[place] == here.month:
        days = _month_days(rule.days, _shape(here.year, here.month))
        found = bisect_left(days, here.day)
        if found < len(days):
            return day + days[found] - here.day
        place += 1
    return _first_day_from(rule.days, rule.months, here.year, place)


@lru_cache(maxsize=4096)
def _first_day_from(days: Days, months: tuple[int, ...], year: int, place: int) -> int | None:
    """The first matching day from the month ``months[place]`` of the year on.

    Remembered, so that 29 February costs no more than tomorrow (`X-S4`); forty years at most.
    """
    while year <= 9999:
        for month in months[place:]:
            if found := _month_days(days, _shape(year, month)):
                return date(year, month, found[0]).toordinal() - _EPOCH_DAY
        year, place = year + 1, 0
    return None


def _previous_day(rule: Rule, day: int) -> int | None:
    """The last matching day <= ``day``; None before the year 1."""
    day = min(day, _LAST_DAY)
    if day < _FIRST_DAY:
        return None
    here = date.fromordinal(day + _EPOCH_DAY)
    place = bisect_left(rule.months, here.month)
    if place < len(rule.months) and rule.months[place] == here.month:
        days = _month_days(rule.days, _shape(here.year, here.month))
        found = bisect_right(days, here.day)
        if found:
            return day + days[found - 1] - here.day
    return _last_day_before(rule.days, rule.months, here.year, place)


@lru_cache(maxsize=4096)
def _last_day_before(days: Days, months: tuple[int, ...], year: int, place: int) -> int | None:
    """The last matching day before the month ``months[place]`` of the year."""
    while year >= 1:
        for month in reversed(months[:place]):
            if found := _month_days(days, _shape(year, month)):
                return date(year, month, found[-1]).toordinal() - _EPOCH_DAY
        year, place = year - 1, 12
    return None


# --- the calendar: which minutes match --------------------------------------------------------


def _next_wall(rule: Rule, wall: int) -> int:
    """The first matching wall second >= ``wall``; ``_NEVER`` when there is none."""
    day, minute = divmod(-(-wall // 60), 1440)
    found = day if rule.any_date and _FIRST_DAY <= day <= _LAST_DAY else next_day(rule, day)
    if found == day:
        hour, minute = divmod(minute, 60)
        place = bisect_left(rule.hours, hour)
        if place < len(rule.hours) and rule.hours[place] == hour:
            index = bisect_left(rule.minutes, minute)
            if index < len(rule.minutes):
                return day * _DAY + hour * 3600 + rule.minutes[index] * 60
            place += 1
        if place < len(rule.hours):
            return day * _DAY + rule.hours[place] * 3600 + rule.minutes[0] * 60
        found = next_day(rule, day + 1)
    if found is None:
        return _NEVER
    return found * _DAY + rule.hours[0] * 3600 + rule.minutes[0] * 60


def _previous_wall(rule: Rule, wall: int) -> int:
    """The last matching wall second <= ``wall``; ``-_NEVER`` when there is none."""
    day, minute = divmod(wall // 60, 1440)
    found = _previous_day(rule, day)
    if found == day:
        hour, minute = divmod(minute, 60)
        place = bisect_right(rule.hours, hour)
        if place and rule.hours[place - 1] == hour:
            index = bisect_right(rule.minutes, minute)
            if index:
                return day * _DAY + hour * 3600 + rule.minutes[index - 1] * 60
            place -= 1
        if place:
            return day * _DAY + rule.hours[place - 1] * 3600 + rule.minutes[-1] * 60
        found = _previous_day(rule, day - 1)
    if found is None:
        return -_NEVER
    return found * _DAY + rule.hours[-1] * 3600 + rule.minutes[-1] * 60


# --- the zone: pieces of constant offset ------------------------------------------------------


@attrs.frozen
class _Piece:
    """Utc seconds ``start <= u < end`` with one ``offset``; ``before`` is the offset before it."""

    start: int
    end: int
    offset: int
    before: int


def _offset_at(name: str, utc: int) -> int:
    """The offset in seconds; a day off both ends of the calendar is read as that end."""
    inside = min(max(utc, (_FIRST_DAY + 2) * _DAY), LAST_SECOND)
    offset = (_EPOCH + timedelta(seconds=inside)).astimezone(zone(name)).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _change_between(name: str, low: int, high: int) -> int:
    """The first second in (low, high] with another offset than at ``low``."""
    old = _offset_at(name, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_at(name, middle) == old:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=8192)
def _pieces(name: str, year: int) -> tuple[tuple[int, ...], tuple[_Piece, ...]]:
    """The pieces of one utc year, cut at its ends, with their starts for bisection.

    Found by looking every three days: no zone has ever changed twice within six.
    """
    begin = (date(year, 1, 1).toordinal() - _EPOCH_DAY) * _DAY
    end = (
        LAST_SECOND + 1 if year == 9999 else (date(year + 1, 1, 1).toordinal() - _EPOCH_DAY) * _DAY
    )
    cuts, offsets = [begin], [_offset_at(name, begin)]
    low = begin
    for high in (*range(begin + _LOOK, end, _LOOK), end - 1):
        if _offset_at(name, high) != offsets[-1]:
            cuts.append(_change_between(name, low, high))
            offsets.append(_offset_at(name, high))
        low = high
    befores = [_offset_at(name, begin - 1), *offsets]
    pieces = map(_Piece, cuts, [*cuts[1:], end], offsets, befores)
    return tuple(cuts), tuple(pieces)


def _piece_at(name: str, utc: int) -> _Piece:
    day = min(max(utc // _DAY, _FIRST_DAY), _LAST_DAY) + _EPOCH_DAY
    starts, pieces = _pieces(name, date.fromordinal(day).year)
    return pieces[max(bisect_right(starts, utc) - 1, 0)]


# --- the two joined ---------------------------------------------------------------------------


def _catch_up(rule: Rule, piece: _Piece) -> int | None:
    """The fire that stands for all fixed times skipped where the piece begins, if there were any.

    At the first whole minute after the gap. A wildcard job, and a jump of three hours or more,
    have none (`X-S3`).
    """
    skipped = piece.offset - piece.before
    if rule.follows_clock or not 0 < skipped < _SMALL_CHANGE:
        return None
    after_gap = piece.start + piece.offset
    if _next_wall(rule, piece.start + piece.before) >= after_gap:
        return None
    return piece.start + -after_gap % 60


def _first_new_wall(rule: Rule, piece: _Piece) -> int:
    """Where wall time begins to count in this piece: after the repeated stretch, if one counts."""
    repeated = piece.before - piece.offset
    if not rule.follows_clock and 0 < repeated < _SMALL_CHANGE:
        return piece.start + piece.before
    return piece.start + piece.offset


def first_fire_after(rule: Rule, name: str, utc: int) -> int | None:
    """The least fire > ``utc`` in zone ``name``, or None. All in utc seconds (`X-S3`, `X-S4`)."""
    at = utc + 1
    while at <= LAST_SECOND:
        piece = _piece_at(name, at)
        wall = at + piece.offset
        if piece.offset != piece.before:
            wall = max(wall, _first_new_wall(rule, piece))
        fire = _next_wall(rule, wall) - piece.offset
        if piece.offset != piece.before:
            caught_up = _catch_up(rule, piece)
            if caught_up is not None and at <= caught_up:
                fire = min(fire, caught_up)
        if fire < piece.end:
            return fire if fire <= LAST_SECOND else None
        # A clock change moves wall time by a day at most, so what lies between is empty.
        at = piece.end if piece.end <= utc + _NEAR else max(piece.end, fire - _NEAR)
    return None


def last_fire_until(rule: Rule, name: str, utc: int) -> int | None:
    """The greatest fire <= ``utc`` in zone ``name``, or None: the mirror of the above."""
    at = min(utc, LAST_SECOND)
    first = _FIRST_DAY * _DAY
    while at >= first:
        piece = _piece_at(name, at)
        fire = _previous_wall(rule, at + piece.offset) - piece.offset
        floor = piece.start
        if piece.offset != piece.before:
            floor = _first_new_wall(rule, piece) - piece.offset
            caught_up = _catch_up(rule, piece)
            if fire < floor and caught_up is not None and caught_up <= at:
                return caught_up
        if fire >= floor:
            return fire
        at = piece.start - 1 if piece.start >= utc - _NEAR else min(piece.start - 1, fire + _NEAR)
    return None
