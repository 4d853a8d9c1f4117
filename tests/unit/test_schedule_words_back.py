"""The words of a schedule, read back by a small reader of English, must fire when it fires.

The reader knows sentences and the calendar, and nothing of cron: no field, no star, no step.
"""

from __future__ import annotations

import calendar
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from crontask_core.errors import InvalidInput
from crontask_core.schedule import Cron, Every, Once, explain, fires_after, parse_cron
from tests.unit.test_schedule_properties import CRONS, INSTANTS

FILE = Path(__file__).resolve().parents[1] / "data" / "cron.jsonl"
MONTHS = list(calendar.month_name)
DAYS = list(calendar.day_name)
ORDER = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
DAY_NAME = "|".join(DAYS)
MONTH_NAME = "|".join(MONTHS[1:])
LINKS = re.compile(r"(?:,|\band\b|\bor\b|\s)+")
OnDate = Callable[[date], bool]


def parts(text: str, *shapes: str) -> Iterable[re.Match[str]]:
    """The pieces of a list, each of one of the shapes, with only commas, "and", "or" between."""
    pattern, at = re.compile("|".join(shapes)), 0
    while at < len(text):
        if link := LINKS.match(text, at):
            at = link.end()
            continue
        piece = pattern.match(text, at)
        assert piece, f"cannot be read from {text[at:]!r}"
        yield piece
        at = piece.end()


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for piece in parts(text, r"(?P<low>\d+)-(?P<high>\d+)", r"(?P<one>\d+)"):
        low, high = piece["low"] or piece["one"], piece["high"] or piece["one"]
        found |= set(range(int(low), int(high) + 1))
    return found


# --- times of day -----------------------------------------------------------------------------


def clock(text: str) -> int:
    hour, minute = text.split(":")
    assert 2 == len(hour) == len(minute)
    return int(hour) * 60 + int(minute)


def times(text: str) -> set[int]:
    """The minutes of the day that a phrase means."""
    if text.startswith("every hour at minute "):
        return {60 * hour + int(text.rpartition(" ")[2]) for hour in range(24)}
    if match := re.fullmatch(r"every (?:(\d+) )?(minute|hour)s?(?: (.*))?", text):
        step = int(match[1] or 1) * (60 if match[2] == "hour" else 1)
        return _rhythm(step, match[3] or "")
    if match := re.fullmatch(r"at minutes? (.*) of (every hour|hours? (.*))", text):
        hours = numbers(match[3]) if match[3] else set(range(24))
        return {60 * hour + minute for hour in hours for minute in numbers(match[1])}
    assert text.startswith("at "), text
    return {clock(piece[0]) for piece in parts(text[3:], r"\d\d:\d\d")}


def _rhythm(step: int, within: str) -> set[int]:
    if not within:
        return set(range(0, 1440, step))
    if match := re.fullmatch(r"from (\S+) to (\S+)", within):
        first, last = clock(match[1]), clock(match[2])
        assert 0 == (last - first) % step
        return set(range(first, last + 1, step))
    match = re.fullmatch(r"of hours? (.*)", within)
    assert match, within
    return {60 * hour + minute for hour in numbers(match[1]) for minute in range(0, 60, step)}


# --- dates ------------------------------------------------------------------------------------


def months(text: str) -> set[int]:
    if text == "the month":
        return set(range(1, 13))
    if match := re.fullmatch(rf"({MONTH_NAME}) to ({MONTH_NAME})", text):
        return set(range(MONTHS.index(match[1]), MONTHS.index(match[2]) + 1))
    return {MONTHS.index(piece[0]) for piece in parts(text, MONTH_NAME)}


def length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def is_workday(day: date) -> bool:
    return day.weekday() < 5


def nearest(day: date, number: int) -> bool:
    if number > length(day):
        return False
    workdays = [n for n in range(1, length(day) + 1) if is_workday(day.replace(day=n))]
    return day.day == min(workdays, key=lambda n: (abs(n - number), n))


def on_number(text: str) -> OnDate:
    shapes = (
        r"the last weekday \(Monday to Friday\)(?P<workday>)",
        r"the weekday \(Monday to Friday\) nearest to day (?P<near>\d+)",
        r"the last day(?P<last>)",
        r"days? ",
        r"(?P<low>\d+)-(?P<high>\d+)",
        r"(?P<one>\d+)",
    )
    pieces = list(parts(text, *shapes))

    def check(day: date) -> bool:
        workdays = [n for n in range(1, length(day) + 1) if is_workday(day.replace(day=n))]
        return any(
            (p["workday"] is not None and day.day == workdays[-1])
            or (p["near"] is not None and nearest(day, int(p["near"])))
            or (p["last"] is not None and day.day == length(day))
            or (p["low"] is not None and int(p["low"]) <= day.day <= int(p["high"]))
            or (p["one"] is not None and day.day == int(p["one"]))
            for p in pieces
        )

    return check


def on_weekday(text: str) -> OnDate:
    shapes = (
        rf"the (?P<nth>{'|'.join(ORDER)}) (?P<of>{DAY_NAME}) of the month",
        rf"(?P<first>{DAY_NAME}) to (?P<last>{DAY_NAME})",
        rf"(?P<day>{DAY_NAME})",
    )
    pieces = list(parts(text, *shapes))

    def check(day: date) -> bool:
        same = list(range((day.day - 1) % 7 + 1, length(day) + 1, 7))
        name = DAYS[day.weekday()]
        return any(
            name == p["day"]
            or (p["first"] and DAYS.index(p["first"]) <= day.weekday() <= DAYS.index(p["last"]))
            or (
                name == p["of"] and ORDER[p["nth"]] < len(same) and day.day == same[ORDER[p["nth"]]]
            )
            for p in pieces
        )

    return check


def dates(text: str) -> OnDate:
    if match := re.fullmatch(r"(?:every day)?(?: ?in (.*))?", text):
        within = months(match[1] or "the month")
        return lambda day: day.month in within
    assert text.startswith("on "), text
    text = text[3:]
    if match := re.fullmatch(r"(.*), only when that is (.*) of (.*)", text):
        within, weekday, number = months(match[3]), on_weekday(match[1]), on_number(match[2])
        return lambda day: day.month in within and weekday(day) and number(day)
    if match := re.fullmatch(r"(.*) of (\S+(?: to \S+| month|.*?)), and also on (.*)", text):
        within, number, other = months(match[2]), on_number(match[1]), dates(f"on {match[3]}")
        return lambda day: (day.month in within and number(day)) or other(day)
    match = re.fullmatch(rf"(.*?)(?: in ((?:{MONTH_NAME}).*))?", text)
    if match and re.match(rf"(?:the \w+ )?(?:{DAY_NAME})", match[1]):
        within, weekday = months(match[2] or "the month"), on_weekday(match[1])
        return lambda day: day.month in within and weekday(day)
    match = re.fullmatch(r"(.*) of (.*)", text)
    assert match, text
    within, number = months(match[2]), on_number(match[1])
    return lambda day: day.month in within and number(day)


def split(words: str) -> tuple[str, str]:
    """The phrase of the times and that of the dates."""
    match = re.search(r" (?=every day\b|on |in )", words)
    return (words[: match.start()], words[match.end() :]) if match else (words, "")


def read_back(words: str, start: datetime, end: datetime) -> list[datetime]:
    """When the words say that it fires, from ``start`` (left out) to ``end``, in UTC."""
    on_times, on_dates = split(words)
    minutes, fits = sorted(times(on_times)), dates(on_dates)
    fires = []
    day = start.date()
    while day <= end.date():
        if fits(day):
            midnight = datetime.combine(day, time(), UTC)
            fires += [midnight + timedelta(minutes=n) for n in minutes]
        day += timedelta(days=1)
    return [at for at in fires if start < at <= end]


def check(expr: str, start: datetime, count: int) -> None:
    schedule = parse_cron(expr, "UTC", "UTC", start)
    assert isinstance(schedule, Cron)
    words = explain(schedule, "Asia/Tokyo")
    assert words.endswith(" (UTC)")
    fires = fires_after(schedule, start, count)
    # A century of days is enough for any rule, and takes a moment.
    fires = [at for at in fires if at - start < timedelta(days=36_525)]
    if fires:
        assert fires == read_back(words.removesuffix(" (UTC)"), start, fires[-1]), words


def collected() -> list[str]:
    """Every expression of the collected cases that is one, without its prefix."""
    found = set()
    for line in FILE.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case.get("expect") and "@every" not in case["expr"]:
            schedule = parse_cron(case["expr"], None, "UTC", datetime(2026, 1, 1, tzinfo=UTC))
            assert isinstance(schedule, Cron)
            found.add(schedule.expr)
    return sorted(found)


@pytest.mark.requirement("X-S7")
@pytest.mark.parametrize("expr", collected())
def test_the_words_of_every_collected_case_say_exactly_when_it_fires(expr: str) -> None:
    for year in (2024, 2026):
        check(expr, datetime(year, 2, 27, 13, 7, tzinfo=UTC), 120)


@pytest.mark.requirement("X-S7")
@settings(max_examples=400)
@given(CRONS, INSTANTS)
@example("*/15 9-17 * * 1-5", datetime(2026, 1, 1, tzinfo=UTC))
@example("* 9,10 13 6 5", datetime(2026, 1, 1, tzinfo=UTC))
@example("5,35 */6 1-7,L 2,3,4 5L,1#1", datetime(2026, 1, 1, tzinfo=UTC))
@example("0 0 */10 2-4 */3,5L", datetime(2026, 1, 1, tzinfo=UTC))
def test_the_words_of_any_expression_say_exactly_when_it_fires(expr: str, start: datetime) -> None:
    try:
        parse_cron(expr, "UTC", "UTC", start)
    except InvalidInput:
        assume(False)
    check(expr, start.replace(second=0, microsecond=0), 40)


UNITS = {"day": 86_400, "hour": 3600, "minute": 60, "second": 1, "millisecond": 0.001}


@pytest.mark.requirement("X-S7")
@given(st.integers(1, 10**11).map(lambda n: timedelta(milliseconds=n)), INSTANTS)
@example(timedelta(days=1), datetime(2026, 1, 1, tzinfo=UTC))
@example(timedelta(days=7), datetime(2026, 1, 1, tzinfo=UTC))
def test_the_words_of_an_interval_say_exactly_how_long_it_is(
    interval: timedelta, anchor: datetime
) -> None:
    words = explain(Every(interval, anchor), "Asia/Tokyo")
    match = re.fullmatch(r"every (.*), counted from (.*) \(Asia/Tokyo\)", words)
    assert match
    said = match[1].split(" ")
    pairs = zip(said[::2], said[1::2], strict=True)
    total = sum(float(number) * UNITS[unit.removesuffix("s")] for number, unit in pairs)
    assert round(total * 1000) == interval // timedelta(milliseconds=1)
    assert datetime.fromisoformat(match[2]) == anchor


@pytest.mark.requirement("X-S7")
@given(INSTANTS)
def test_the_words_of_a_one_off_say_exactly_when_it_fires(at: datetime) -> None:
    match = re.fullmatch(r"once, at (.*) \(Asia/Tokyo\)", explain(Once(at), "Asia/Tokyo"))
    assert match
    assert datetime.fromisoformat(match[1]) == at


@pytest.mark.parametrize(
    ("words", "fires"),
    [
        ("at 09:00 on Monday to Friday", ["2026-01-05T09:00", "2026-01-06T09:00"]),
        ("at 09:00 and 18:30 on the last day of the month", ["2026-01-31T09:00"]),
        ("every 2 hours from 00:00 to 22:00 every day in March", ["2026-03-01T00:00"]),
        ("at 00:00 on Monday, only when that is day 1 or 5 of June", ["2026-06-01T00:00"]),
        ("at 00:00 on day 13 of the month, and also on Friday", ["2026-01-09T00:00"]),
    ],
)
def test_the_reader_itself_reads_plain_english(words: str, fires: list[str]) -> None:
    found = read_back(words, datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 6, 30, tzinfo=UTC))
    assert [datetime.fromisoformat(f"{at}+00:00") for at in fires] == found[: len(fires)]
