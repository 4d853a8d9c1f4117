"""When schedules fire: intervals, one-offs, clock changes, counting, cost."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from time import process_time
from timeit import repeat

import pytest

from crontask_core import expressions, wall
from crontask_core.errors import InvalidInput
from crontask_core.schedule import (
    Cron,
    Every,
    Once,
    Schedule,
    count_between,
    fires_after,
    latest_at_or_before,
    next_after,
    parse_cron,
    schedule_warnings,
    shortest_gap,
    zone,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)


def cron(expr: str, in_zone: str = "UTC") -> Schedule:
    return parse_cron(expr, in_zone, "UTC", NOW)


def local_fires(expr: str, in_zone: str, after: str, count: int) -> list[str]:
    fires = fires_after(cron(expr, in_zone), datetime.fromisoformat(after), count)
    return [at.astimezone(zone(in_zone)).isoformat() for at in fires]


# --- one-offs and intervals -------------------------------------------------------------------


def test_a_one_off_fires_once_at_its_instant() -> None:
    once = Once(NOW)
    assert NOW == next_after(once, NOW - TICK) == latest_at_or_before(once, NOW)
    assert None is next_after(once, NOW)
    assert None is latest_at_or_before(once, NOW - TICK)
    assert [NOW] == fires_after(once, NOW - HOUR, 5)
    assert (1, 0) == (count_between(once, NOW - TICK, NOW, 9), count_between(once, NOW, NOW, 9))
    assert None is shortest_gap(once, NOW - HOUR)


@pytest.mark.requirement("X-S5")
def test_an_interval_keeps_its_phase_however_late_it_is_asked() -> None:
    anchor = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    every = Every(timedelta(seconds=90), anchor)
    assert anchor + timedelta(seconds=90) == next_after(every, anchor - HOUR)
    assert anchor + timedelta(seconds=90) == next_after(every, anchor)
    assert anchor + timedelta(seconds=180) == next_after(every, anchor + timedelta(seconds=90))
    for late in (TICK, timedelta(seconds=44.9), timedelta(seconds=90) - TICK):
        due = anchor + 1000 * every.interval
        assert due + every.interval == next_after(every, due + late)
        assert due == latest_at_or_before(every, due + late)
    assert None is latest_at_or_before(every, anchor + timedelta(seconds=90) - TICK)


@pytest.mark.requirement("X-S5")
def test_an_interval_runs_on_real_time_through_a_clock_change() -> None:
    start = datetime.fromisoformat("2026-11-01T01:59:50-07:00").astimezone(UTC)
    fires = fires_after(Every(timedelta(seconds=5), start), start, 6)
    assert [5, 10, 15, 20, 25, 30] == [(at - start).seconds for at in fires]


@pytest.mark.requirement("X-S5")
def test_the_fires_of_an_interval_are_counted_without_walking_them() -> None:
    every = Every(timedelta(milliseconds=1), NOW)
    assert 1000 == count_between(every, NOW, NOW + timedelta(seconds=1), 1000)
    assert 1001 == count_between(every, NOW - HOUR, NOW + timedelta(days=30_000), 1000)
    assert 0 == count_between(every, NOW - HOUR, NOW, 1000)
    assert 0 == count_between(every, NOW + HOUR, NOW, 1000)


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(seconds=-1)])
def test_an_interval_must_be_longer_than_zero(interval: timedelta) -> None:
    with pytest.raises(InvalidInput):
        Every(interval, NOW)


# --- clock changes beyond the shared cases ----------------------------------------------------


@pytest.mark.requirement("X-S3")
def test_nothing_fires_again_when_asked_inside_the_second_pass() -> None:
    nightly = cron("30 1 * * *", "America/New_York")
    fired = datetime.fromisoformat("2026-11-01T01:30:00-04:00").astimezone(UTC)
    assert fired == next_after(nightly, fired - HOUR)
    for minutes in range(0, 120, 5):
        asked = fired + timedelta(minutes=minutes)
        assert datetime(2026, 11, 2, 6, 30, tzinfo=UTC) == next_after(nightly, asked)
        assert fired == latest_at_or_before(nightly, asked)


@pytest.mark.requirement("X-S3")
def test_a_star_in_the_hour_follows_real_hours_and_a_full_range_does_not() -> None:
    after = "2026-11-01T00:30:00-04:00"
    assert [
        "2026-11-01T01:00:00-04:00",
        "2026-11-01T01:00:00-05:00",
        "2026-11-01T02:00:00-05:00",
    ] == local_fires("0 * * * *", "America/New_York", after, 3)
    assert [
        "2026-11-01T01:00:00-04:00",
        "2026-11-01T02:00:00-05:00",
    ] == local_fires("0 0-23 * * *", "America/New_York", after, 2)


@pytest.mark.requirement("X-S3")
def test_a_day_that_a_zone_skipped_is_not_caught_up() -> None:
    assert [
        "2011-12-29T09:00:00-10:00",
        "2011-12-31T09:00:00+14:00",
    ] == local_fires("0 9 * * *", "Pacific/Apia", "2011-12-28T12:00:00-10:00", 2)
    assert ["2012-12-30T00:00:00+14:00"] == local_fires(
        "0 0 30 12 *", "Pacific/Apia", "2010-12-31T00:00:00-10:00", 1
    )


@pytest.mark.requirement("X-S3")
def test_a_day_that_a_zone_repeated_is_no_daylight_saving_and_fires_twice() -> None:
    # Kwajalein went back from +11 to -12 at the end of 30 September 1969.
    assert [
        "1969-09-30T09:00:00+11:00",
        "1969-09-30T09:00:00-12:00",
        "1969-10-01T09:00:00-12:00",
    ] == local_fires("0 9 * * *", "Pacific/Kwajalein", "1969-09-29T12:00:00+11:00", 3)


@pytest.mark.requirement("X-S3")
def test_a_rare_wildcard_job_does_not_lose_its_second_pass() -> None:
    yearly = cron("*/30 1 1 11 *", "America/New_York")
    first, second = "2026-11-01T01:30:00-04:00", "2026-11-01T01:00:00-05:00"
    asked = datetime.fromisoformat("2026-11-01T01:45:00-04:00")
    assert datetime.fromisoformat(second) == next_after(yearly, asked)
    assert datetime.fromisoformat(first) == latest_at_or_before(yearly, asked)


@pytest.mark.requirement("X-S3")
def test_a_fire_stays_the_latest_when_clocks_go_back_to_the_day_before_it() -> None:
    # Newfoundland went from 00:01 on 7 November 2010 back to 23:01 on the 6th.
    job = cron("* 0 7 11 *", "America/St_Johns")
    midnight = datetime.fromisoformat("2010-11-07T00:00:00-02:30")
    asked = datetime.fromisoformat("2010-11-06T23:30:00-03:30")
    assert midnight == next_after(job, midnight - TICK) == latest_at_or_before(job, asked)
    assert datetime.fromisoformat("2010-11-07T00:00:00-03:30") == next_after(job, midnight)


@pytest.mark.requirement("X-S3")
def test_two_clock_changes_a_week_apart_are_both_kept() -> None:
    assert [
        "2000-10-07T00:30:00-04:00",
        "2000-10-08T01:00:00-03:00",
        "2000-10-09T00:30:00-03:00",
        "2000-10-10T00:30:00-03:00",
        "2000-10-11T00:30:00-03:00",
        "2000-10-12T00:30:00-03:00",
        "2000-10-13T00:30:00-03:00",
        "2000-10-14T00:30:00-03:00",
        "2000-10-15T00:30:00-04:00",
    ] == local_fires("30 0 * * *", "America/Boa_Vista", "2000-10-06T12:00:00-04:00", 9)


@pytest.mark.requirement("X-S2", "X-S3")
def test_the_same_expression_keeps_local_time_in_every_zone() -> None:
    for name in ("Asia/Shanghai", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"):
        for at in fires_after(cron("0 9 * * *", name), NOW, 400):
            assert "09:00:00" == f"{at.astimezone(zone(name)):%H:%M:%S}"


# --- the ends of the calendar -----------------------------------------------------------------


@pytest.mark.requirement("X-S4")
@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "America/New_York"])
def test_the_end_of_the_calendar_is_the_end_of_the_fires(name: str) -> None:
    last = datetime(9999, 12, 29, 23, 59, tzinfo=UTC)
    minutely = cron("* * * * *", name)
    assert last == next_after(minutely, last - TICK) == latest_at_or_before(minutely, last)
    for t in (last, last + HOUR, datetime.max.replace(tzinfo=UTC)):
        assert None is next_after(minutely, t)
        assert last == latest_at_or_before(minutely, t)
        assert [] == fires_after(minutely, t, 3)
    assert None is next_after(cron("0 0 29 2 *", name), datetime(9997, 1, 1, tzinfo=UTC))
    last.astimezone(zone(name))


@pytest.mark.requirement("X-S4")
def test_before_the_first_year_there_is_no_fire() -> None:
    first = datetime.min.replace(tzinfo=UTC)
    assert None is latest_at_or_before(cron("0 0 29 2 *"), first + timedelta(days=365))
    assert first + timedelta(hours=9) == next_after(cron("0 9 * * *"), first)
    yearly = next_after(cron("0 9 1 6 *", "America/New_York"), first)
    assert yearly is not None
    assert (1, 6, 1) == (yearly.year, yearly.month, yearly.day)


@pytest.mark.requirement("X-S4")
def test_an_interval_that_leaves_the_calendar_has_no_next_fire() -> None:
    every = Every(timedelta(days=400 * 365), NOW)
    assert None is next_after(every, datetime(9900, 1, 1, tzinfo=UTC))


def test_past_2038_and_2100_the_calendar_goes_on() -> None:
    assert datetime(2039, 1, 1, tzinfo=UTC) == next_after(
        cron("0 0 1 1 *"), datetime(2038, 6, 1, tzinfo=UTC)
    )
    leap = cron("0 0 29 2 *")
    assert [2096, 2104] == [
        at.year for at in fires_after(leap, datetime(2095, 1, 1, tzinfo=UTC), 2)
    ]
    assert datetime(2096, 2, 29, tzinfo=UTC) == latest_at_or_before(
        leap, datetime(2103, 12, 31, tzinfo=UTC)
    )


# --- counting and gaps ------------------------------------------------------------------------


def test_fires_are_counted_exactly_up_to_the_limit_and_then_as_one_more() -> None:
    hourly = cron("0 * * * *")
    assert 24 == count_between(hourly, NOW, NOW + timedelta(days=1), 1000)
    assert 1 == count_between(hourly, NOW - TICK, NOW, 1000)
    assert 0 == count_between(hourly, NOW, NOW, 1000)
    assert 0 == count_between(hourly, NOW + HOUR, NOW, 1000)
    assert 1000 == count_between(hourly, NOW, NOW + 1000 * HOUR, 1000)
    assert 1001 == count_between(hourly, NOW, NOW + 1001 * HOUR, 1000)
    assert 1001 == count_between(hourly, NOW, NOW + timedelta(days=365_000), 1000)


@pytest.mark.requirement("X-S7")
def test_a_preview_lists_the_next_fires_and_no_more_than_there_are() -> None:
    assert [NOW + HOUR, NOW + 2 * HOUR] == fires_after(cron("0 * * * *"), NOW, 2)
    assert [] == fires_after(cron("0 * * * *"), NOW, 0)
    assert [] == fires_after(Once(NOW), NOW, 3)


@pytest.mark.requirement("X-T3")
@pytest.mark.parametrize(
    ("expr", "minutes"),
    [
        ("0 9 * * *", 24 * 60),
        ("0,1 9 * * *", 1),
        ("59,0 9,10 * * *", 1),
        ("*/7 * * * *", 4),
        ("0 */5 * * *", 4 * 60),
        ("0 0 1,15 * *", 14 * 24 * 60),
        ("0-50/10 0-22 1-14/2,28,29 * *", 10),
        ("0,59 0,23 1-27/2,28 * *", 1),
        ("5,6 4 29 2 *", 1),
    ],
)
def test_the_shortest_gap_finds_clusters_however_rare(expr: str, minutes: int) -> None:
    assert timedelta(minutes=minutes) == shortest_gap(cron(expr), NOW)


@pytest.mark.requirement("X-T3")
def test_the_shortest_gap_of_an_interval_is_the_interval() -> None:
    assert timedelta(seconds=5) == shortest_gap(Every(timedelta(seconds=5), NOW), NOW)


# --- robustness and cost ----------------------------------------------------------------------


def test_a_stored_schedule_that_cannot_be_read_is_an_error_and_not_a_crash() -> None:
    for expr in ("CRON_TZ=UTC", "", "R 9 * * *", "99 * * * *", "0 ９ * * *"):
        with pytest.raises(InvalidInput):
            next_after(Cron(expr, "UTC"), NOW)
    with pytest.raises(InvalidInput):
        next_after(Cron("0 9 * * *", "Mars/Olympus"), NOW)
    assert None is next_after(Cron("0 0 30 2 *", "UTC"), NOW)
    assert None is latest_at_or_before(Cron("0 0 30 2 *", "UTC"), NOW)


def microseconds(action: str, names: dict[str, object], number: int = 300) -> float:
    return min(repeat(action, globals=names, number=number, repeat=7)) / number * 1e6


@pytest.mark.requirement("X-S4")
def test_a_rare_expression_costs_no_more_than_ten_times_a_common_one() -> None:
    for name in ("UTC", "America/New_York"):
        costs = {
            expr: microseconds("f(s, t)", {"f": next_after, "s": cron(expr, name), "t": NOW})
            for expr in ("0 9 * * *", "*/5 * * * *", "0 0 29 2 *", "0 0 */28 2 1#5", "0 0 31 7 *")
        }
        assert max(costs.values()) <= 10 * min(costs.values()), costs


@pytest.mark.requirement("X-S4")
def test_the_next_fire_costs_less_than_croniter_alone_on_naive_time() -> None:
    from croniter import croniter

    for expr in ("0 9 * * 1-5", "*/5 * * * *", "0 0 29 2 *"):
        theirs = croniter(expr, NOW.replace(tzinfo=None))
        slow = microseconds("f(d)", {"f": theirs.get_next, "d": datetime}, 50)
        fast = microseconds(
            "f(s, t)", {"f": next_after, "s": cron(expr, "America/New_York"), "t": NOW}
        )
        assert fast < slow, expr


def test_the_module_loads_neither_croniter_nor_tzdata_before_they_are_needed() -> None:
    script = (
        "import sys, crontask_core.schedule\n"
        "heavy = {'croniter', 'dateutil', 'tzdata', 'sqlalchemy', 'mcp', 'click', 'cattrs'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "[]\n" == done.stdout


@pytest.mark.requirement("X-S4")
@pytest.mark.parametrize(
    "expr",
    [
        "* * LW * */6",
        "0 0 " + ",".join(f"{day}W" for day in range(1, 21)) + " * */6",
        "0 0 */31 2 1#1,2#1,3#1,4#1,5#1,6#1,0#1",
        "0 0 31W 2,4,6,9,11 1#5,2#5",
        "0 0 29 2 1#5,2#5",
        "CRON_TZ=America/" + "x" * 60 + " 0 9 * * *",
        "*/" + "9" * 120 + " * * * *",
        "9" * 100_000,
    ],
)
def test_an_expression_made_to_hurt_is_read_and_warned_about_within_5_ms(expr: str) -> None:
    def read() -> None:
        wall._month_days.cache_clear()
        wall._special_day.cache_clear()
        expressions.parse_fields.cache_clear()
        try:
            schedule = parse_cron(expr, None, "UTC", NOW)
        except InvalidInput:
            return
        next_after(schedule, NOW)
        shortest_gap(schedule, NOW)
        schedule_warnings(schedule, NOW)

    read()
    assert min(repeat(read, number=1, repeat=7, timer=process_time)) < 0.005
