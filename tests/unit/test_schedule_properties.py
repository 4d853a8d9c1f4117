"""What must hold for every expression, zone and instant, against two other ways to compute it.

The first is Debian cron itself, played minute by minute: a clock that wakes once a minute and
decides by how far wall time has moved. The second is the cronsim library.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from crontask_core.errors import InvalidInput
from crontask_core.schedule import (
    Cron,
    Every,
    Once,
    Schedule,
    count_between,
    explain,
    fires_after,
    latest_at_or_before,
    next_after,
    parse_cron,
    schedule_warnings,
    shortest_gap,
    zone,
)

TICK = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Clock changes of every kind: an hour, half an hour, two hours, at midnight, for good, a whole day.
CHANGES = [
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Dublin", "2026-10-25T01:00"),
    ("Australia/Lord_Howe", "2025-10-04T15:30"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Antarctica/Troll", "2026-03-29T01:00"),
    ("Antarctica/Troll", "2026-10-25T01:00"),
    ("Africa/Cairo", "2025-04-24T22:00"),
    ("America/Santiago", "2025-04-06T03:00"),
    ("Pacific/Chatham", "2025-09-27T14:00"),
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("Asia/Pyongyang", "2015-08-14T15:00"),
    ("Pacific/Apia", "2011-12-30T10:00"),
    ("Africa/Casablanca", "2025-02-23T02:00"),
    ("America/St_Johns", "2010-11-07T02:31"),
    ("Asia/Almaty", "2024-02-29T18:00"),
    ("Pacific/Kwajalein", "1969-09-30T13:00"),
]


# --- expressions with their meaning, built together so that no parser is trusted ----------------


def field(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """The text of one field and the values it stands for."""

    def whole(step: int) -> tuple[str, frozenset[int]]:
        text = "*" if step == 1 else f"*/{step}"
        return text, frozenset(range(low, high + 1, step))

    def stretch(a: int, b: int, step: int) -> tuple[str, frozenset[int]]:
        a, b = min(a, b), max(a, b)
        text = f"{a}-{b}" if step == 1 else f"{a}-{b}/{step}"
        return text, frozenset(range(a, b + 1, step))

    def listed(
        items: list[tuple[str, frozenset[int]]],
    ) -> tuple[str, frozenset[int]]:
        return ",".join(text for text, _ in items), frozenset().union(*(s for _, s in items))

    values = st.integers(low, high)
    single = values.map(lambda v: (str(v), frozenset({v})))
    ranges = st.builds(stretch, values, values, st.integers(1, 7))
    return st.one_of(
        st.integers(1, (high - low) // 2).map(whole),
        single,
        st.lists(st.one_of(single, ranges), min_size=1, max_size=4).map(listed),
    )


NEARLY_ANY_DAY = st.one_of(st.just(("*", frozenset(range(1, 32)))), field(1, 31))
NEARLY_ANY_WEEKDAY = st.one_of(st.just(("*", frozenset(range(7)))), field(0, 6))
ANY_MONTH = st.one_of(st.just(("*", frozenset(range(1, 13)))), field(1, 12))
EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), NEARLY_ANY_DAY, ANY_MONTH, NEARLY_ANY_WEEKDAY)
Fields = tuple[tuple[str, frozenset[int]], ...]


def text_of(fields: Fields) -> str:
    return " ".join(text for text, _ in fields)


def date_matches(fields: Fields, day: date) -> bool:
    (_, days), (_, months), (_, weekdays) = fields[2:]
    if day.month not in months:
        return False
    hits = (day.day in days, day.isoweekday() % 7 in weekdays)
    both = fields[2][0].startswith("*") or fields[4][0].startswith("*")
    return all(hits) if both else any(hits)


# --- Debian cron, minute by minute ------------------------------------------------------------


@lru_cache(maxsize=64)
def wall_minutes(name: str, start: int, count: int) -> tuple[int, ...]:
    """For each minute of real time, the minute that the clock on the wall shows."""
    where = zone(name)
    real = (EPOCH + timedelta(minutes=start + i) for i in range(count))
    return tuple(
        start + i + int(at.astimezone(where).utcoffset() / MINUTE)  # type: ignore[operator]
        for i, at in enumerate(real)
    )


def debian(fields: Fields, name: str, start: int, count: int) -> list[datetime]:
    """The fires of cron in ``count`` minutes from ``start``, collapsed to one per minute."""
    wildcard = fields[0][0].startswith("*") or fields[1][0].startswith("*")
    dates: dict[int, bool] = {}

    def due(wall: int) -> bool:
        day, minute = divmod(wall, 1440)
        if minute // 60 not in fields[1][1] or minute % 60 not in fields[0][1]:
            return False
        if day not in dates:
            dates[day] = date_matches(fields, (EPOCH + timedelta(days=day)).date())
        return dates[day]

    walls = wall_minutes(name, start - 1, count + 1)
    reached, fires = walls[0], []
    for index, wall in enumerate(walls[1:]):
        moved = wall - reached
        if moved == 1 or abs(moved) >= 180:
            fire, reached = due(wall), wall
        elif moved > 1:
            fire = due(wall) if wildcard else any(map(due, range(reached + 1, wall + 1)))
            reached = wall
        else:
            fire = wildcard and due(wall)
        if fire:
            fires.append(EPOCH + timedelta(minutes=start + index))
    return fires


WINDOW = 3 * 1440


@pytest.mark.requirement("X-S1", "X-S3", "X-S4")
@settings(max_examples=250)
@given(EXPRESSIONS, st.sampled_from(CHANGES), st.integers(0, WINDOW * 60_000_000))
def test_around_a_clock_change_cron_fires_as_debian_cron_does(
    fields: Fields, change: tuple[str, str], asked: int
) -> None:
    name, at = change
    middle = int((datetime.fromisoformat(at + "+00:00") - EPOCH) / MINUTE)
    start = middle - WINDOW // 2
    begin = EPOCH + timedelta(minutes=start)
    expected = debian(fields, name, start, WINDOW)
    schedule = Cron(text_of(fields), name)

    found = fires_after(schedule, begin - TICK, len(expected) + 1)
    assert expected == [fire for fire in found if fire < begin + timedelta(minutes=WINDOW)]

    t = begin + timedelta(microseconds=asked)
    later = [fire for fire in expected if fire > t]
    earlier = [fire for fire in expected if fire <= t]
    if later:
        assert later[0] == next_after(schedule, t)
    if earlier:
        assert earlier[-1] == latest_at_or_before(schedule, t)
    assert len(earlier) == count_between(schedule, begin - TICK, t, 10_000)


ZONES = st.sampled_from(sorted({name for name, _ in CHANGES} | {"UTC", "Asia/Shanghai"}))
INSTANTS = st.integers(-2_208_988_800_000_000, 13_569_465_600_000_000).map(  # 1900 to 2399
    lambda microseconds: EPOCH + timedelta(microseconds=microseconds)
)
SPECIAL_DAYS = st.sampled_from(["L", "LW", "15W", "1W", "31W", "1,L", "L,10W", "*/9", "13", "*"])
SPECIAL_WEEKDAYS = st.sampled_from(["*", "5L", "1#1", "2#5", "1#2,3L", "1", "*/2", "6,0L", "1-5"])
CRONS = st.one_of(
    EXPRESSIONS.map(text_of),
    st.tuples(
        st.sampled_from(["0", "*/20", "7"]),
        st.sampled_from(["2", "*", "1,2,23"]),
        SPECIAL_DAYS,
        st.sampled_from(["*", "2", "2,4", "12"]),
        SPECIAL_WEEKDAYS,
    ).map(" ".join),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return Once(draw(INSTANTS))
    if kind == 1:
        every = draw(st.timedeltas(timedelta(milliseconds=1), timedelta(days=900)))
        return Every(every, draw(INSTANTS))
    name = draw(ZONES)
    try:
        return parse_cron(draw(CRONS), name, "UTC", EPOCH)
    except InvalidInput as error:
        assert "NEVER_FIRES" == error.code
        return parse_cron(error.example, name, "UTC", EPOCH)


@pytest.mark.requirement("X-S3", "X-S4", "X-S5")
@settings(max_examples=300)
@given(schedules(), INSTANTS)
@example(Cron("30 1 * * *", "America/New_York"), datetime(2026, 11, 1, 6, tzinfo=UTC))
@example(Cron("0 9 * * *", "Pacific/Kwajalein"), datetime(1969, 9, 30, 13, tzinfo=UTC))
def test_next_and_latest_are_mirrors_and_strictly_ordered(schedule: Schedule, t: datetime) -> None:
    following, latest = next_after(schedule, t), latest_at_or_before(schedule, t)
    assert following is None or following > t
    assert latest is None or latest <= t
    if following is not None:
        assert following == next_after(schedule, following - TICK)
        assert following == latest_at_or_before(schedule, following)
        assert latest == latest_at_or_before(schedule, following - TICK)
    if latest is not None:
        assert latest == next_after(schedule, latest - TICK)
        assert following == next_after(schedule, latest)


@pytest.mark.requirement("X-S4")
@settings(max_examples=150)
@given(schedules(), INSTANTS, st.floats(0, 1))
def test_walking_the_fires_and_asking_from_anywhere_give_the_same(
    schedule: Schedule, t: datetime, part: float
) -> None:
    fires = fires_after(schedule, t, 8)
    for earlier, later in pairwise(fires):
        asked = earlier + (later - earlier) * part
        assert later == next_after(schedule, min(asked, later - TICK))
        assert earlier == latest_at_or_before(schedule, min(asked, later - TICK))
    if fires:
        assert len(fires) == count_between(schedule, t, fires[-1], 8)
        assert len(fires) == count_between(schedule, t, fires[-1], len(fires))


@pytest.mark.requirement("X-S1")
@settings(max_examples=200)
@given(CRONS, st.integers(0, 3_800_000_000).map(lambda s: EPOCH + timedelta(seconds=s)))
def test_on_plain_time_cronsim_gives_the_same_dates(expr: str, start: datetime) -> None:
    assume("W" not in expr.replace("LW", ""))  # cronsim has no nearest weekday
    try:
        schedule = parse_cron(expr, "UTC", "UTC", EPOCH)
    except InvalidInput:
        assume(False)
    theirs = CronSim(_for_cronsim(expr), start)
    expected = [next(theirs) for _ in range(5)]
    assert expected == fires_after(schedule, start, 5)


def _for_cronsim(expr: str) -> str:
    """cronsim runs a stepped range of one value on to the end of the field: spell it plainly."""
    fields = []
    for text in expr.split(" "):
        items = []
        for item in text.split(","):
            bounds, _, _ = item.partition("/")
            low, dash, high = bounds.partition("-")
            items.append(low if dash and low == high else item)
        fields.append(",".join(items))
    return " ".join(fields)


@pytest.mark.requirement("X-S1")
@settings(max_examples=200)
@given(CRONS, st.integers(0, 3_800_000_000).map(lambda s: EPOCH + timedelta(seconds=s)))
def test_on_plain_time_croniter_gives_the_same_dates_but_for_the_named_differences(
    expr: str, start: datetime
) -> None:
    assume(_croniter_agrees_on(expr))
    try:
        schedule = parse_cron(expr, "UTC", "UTC", EPOCH)
    except InvalidInput:
        assume(False)
    naive = start.replace(tzinfo=None)
    theirs = croniter(_for_croniter(expr), naive, max_years_between_matches=100)
    expected = [theirs.get_next(datetime).replace(tzinfo=UTC) for _ in range(3)]
    assert expected == fires_after(schedule, start, 3)


def _croniter_agrees_on(expr: str) -> bool:
    """Outside of the differences that docs/reference/cron.md names: no LW, no W in a list, 31W is
    the last workday of a short month, plain and special weekdays never in one list, and its own
    way about and/or where a day field begins with a star or holds a special."""
    _, _, day, _, weekday = expr.split(" ")
    both = day != "*" and weekday != "*"
    starred = day.startswith("*") or weekday.startswith("*")
    special = any(letter in "LW#" for letter in day + weekday)
    odd = "W" in day and ("," in day or day in ("LW", "31W"))
    mixed = len({item.isdigit() or item[0] == "*" for item in weekday.split(",")}) > 1
    return not odd and not mixed and not (both and (starred or special))


def _for_croniter(expr: str) -> str:
    """A range of one value is the whole field there, and the last Friday is L5: spell it so."""
    fields = _for_cronsim(expr).split(" ")
    items = fields[4].split(",")
    fields[4] = ",".join(f"L{item[0]}" if item.endswith("L") else item for item in items)
    return " ".join(fields)


# --- every zone there is ----------------------------------------------------------------------

ALL_ZONES = sorted(
    name
    for name in (files("tzdata") / "zones").read_text(encoding="utf-8").split()
    if name != "Factory"
)
RULES = ["30 2 * * *", "0 0 * * *", "*/30 * * * *", "15 */3 * * *", "45 1,23 * * 0,6", "0 9 L * *"]
CENTURY = st.integers(-2_208_988_800, 4_102_444_800)  # 1900 to 2099


@pytest.mark.requirement("X-S2", "X-S3", "X-S4")
def test_in_every_zone_a_day_around_each_change_of_2026_fires_as_debian_cron_does() -> None:
    fields = {
        "30 2 * * *": _plain_fields("30 2 * * *", {30}, {2}),
        "5,35 0-23 * * *": _plain_fields("5,35 0-23 * * *", {5, 35}, set(range(24))),
        "*/20 * * * *": _plain_fields("*/20 * * * *", {0, 20, 40}, set(range(24))),
    }
    for name in ALL_ZONES:
        for at in _changes(name, 2026):
            start = int((at - EPOCH) / MINUTE) - 720
            begin = EPOCH + timedelta(minutes=start)
            for expr, meaning in fields.items():
                expected = debian(meaning, name, start, 1440)
                found = fires_after(Cron(expr, name), begin - TICK, len(expected) + 1)
                inside = [fire for fire in found if fire < begin + timedelta(days=1)]
                assert expected == inside, (name, expr, at)


def _plain_fields(expr: str, minutes: set[int], hours: set[int]) -> Fields:
    texts = expr.split(" ")
    rest = (range(1, 32), range(1, 13), range(7))
    values = (frozenset(minutes), frozenset(hours), *map(frozenset, rest))
    return tuple(zip(texts, values, strict=True))


def _changes(name: str, year: int) -> list[datetime]:
    """The hours of a year in which the offset of a zone changes."""
    where, hour = zone(name), timedelta(hours=1)
    at, found = datetime(year, 1, 1, tzinfo=UTC), []
    while at.year == year:
        week = at + timedelta(days=7)
        if at.astimezone(where).utcoffset() != week.astimezone(where).utcoffset():
            while at.astimezone(where).utcoffset() == (at + hour).astimezone(where).utcoffset():
                at += hour
            found.append(at + hour)
        at = week if not found or found[-1] < at else at + timedelta(days=7)
    return found


@pytest.mark.requirement("X-S2", "X-S3", "X-S4")
@settings(max_examples=400)
@given(st.sampled_from(ALL_ZONES), st.one_of(st.sampled_from(RULES), CRONS), CENTURY)
def test_in_every_zone_next_is_later_least_and_mirrored(name: str, expr: str, start: int) -> None:
    try:
        schedule = parse_cron(expr, name, "UTC", EPOCH)
    except InvalidInput:
        assume(False)
    t = EPOCH + timedelta(seconds=start)
    fires = fires_after(schedule, t, 4)
    for earlier, later in pairwise([t, *fires]):
        assert later > earlier
        assert later == next_after(schedule, later - TICK) == next_after(schedule, earlier)
        assert later == latest_at_or_before(schedule, later)
        local = later.astimezone(zone(name))
        assert 0 == local.second == local.microsecond


@pytest.mark.requirement("X-S3", "X-S4")
@settings(max_examples=150)
@given(
    st.sampled_from(ALL_ZONES),
    CRONS,
    CENTURY,
    st.lists(st.timedeltas(timedelta(0), timedelta(days=40)), min_size=1, max_size=4),
)
def test_the_fires_of_a_window_do_not_depend_on_where_one_started(
    name: str, expr: str, start: int, leads: list[timedelta]
) -> None:
    try:
        schedule = parse_cron(expr, name, "UTC", EPOCH)
    except InvalidInput:
        assume(False)
    begin = EPOCH + timedelta(seconds=start)
    fires = fires_after(schedule, begin, 60)
    assume(fires)
    for lead in leads:
        at, seen = begin - lead, []
        fire = latest_at_or_before(schedule, begin - lead) or at
        for _ in range(4_000):
            fire = next_after(schedule, fire)
            if fire is None or fire > fires[-1]:
                break
            if fire > begin:
                seen.append(fire)
        else:
            # Too many fires before the window: jump to it, as a restart would.
            seen = fires_after(schedule, begin, 60)
        assert fires == seen


@pytest.mark.requirement("X-S7")
@settings(max_examples=150)
@given(schedules(), INSTANTS)
def test_every_schedule_has_words_warnings_and_a_gap(schedule: Schedule, t: datetime) -> None:
    words = explain(schedule, "Asia/Shanghai")
    assert words
    assert "\n" not in words
    assert all(note.endswith(".") for note in schedule_warnings(schedule, t))
    gap = shortest_gap(schedule, t, 20)
    fires = fires_after(schedule, t, 20)
    if len(fires) < 2:
        assert gap is None
    else:
        assert gap is not None
        near = [at for at in fires if at - fires[0] <= timedelta(days=730)]
        assert gap <= min(b - a for a, b in pairwise([*fires[:2], *near[2:]]))


@pytest.mark.requirement("X-S1", "X-S4")
@settings(max_examples=300)
@given(
    st.one_of(st.text(max_size=140), st.text("0123456789*/,-?LW#@ \tCRON_TZ=monfeb", max_size=140))
)
def test_any_text_at_all_is_taken_or_refused_with_an_example_that_is_taken(text: str) -> None:
    try:
        schedule = parse_cron(text, None, "UTC", EPOCH)
    except InvalidInput as error:
        schedule = parse_cron(error.example, None, "UTC", EPOCH)
    assert next_after(schedule, EPOCH) is not None
