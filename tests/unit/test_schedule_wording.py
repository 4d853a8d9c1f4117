"""Schedules in words, and the warnings that go with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crontask_core.schedule import Every, Once, explain, parse_cron, schedule_warnings

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def words(expr: str) -> str:
    text = explain(parse_cron(expr, "UTC", "UTC", NOW), "Asia/Tokyo")
    assert text.endswith(" (UTC)")
    return text.removesuffix(" (UTC)")


def warnings(expr: str) -> tuple[str, ...]:
    return schedule_warnings(parse_cron(expr, "UTC", "UTC", NOW), NOW)


@pytest.mark.requirement("X-S7")
@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("0 9 * * 1-5", "at 09:00 on Monday to Friday"),
        ("0 9 * * *", "at 09:00 every day"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0,30 * * * *", "every 30 minutes"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
        ("*/90 * * * *", "every hour at minute 0"),
        ("5 * * * *", "every hour at minute 5"),
        ("5,6 * * * *", "at minutes 5 and 6 of every hour"),
        ("0 */2 * * *", "every 2 hours from 00:00 to 22:00 every day"),
        ("0 */12 * * *", "at 00:00 and 12:00 every day"),
        ("0 */5 * * *", "at 00:00, 05:00, 10:00, 15:00 and 20:00 every day"),
        ("* 9 * * *", "every minute from 09:00 to 09:59 every day"),
        ("* 9,11,13,15 * * *", "every minute of hours 9, 11, 13 and 15 every day"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:45 on Monday to Friday"),
        ("0,30 2 * * *", "at 02:00 and 02:30 every day"),
        ("1-10 9 * * *", "at minutes 1-10 of hour 9 every day"),
        ("30 8,11,14 * * 6,7", "at 08:30, 11:30 and 14:30 on Saturday and Sunday"),
        ("7 0-6,22,23 * * *", "at minute 7 of hours 0-6, 22 and 23 every day"),
        ("0 0 * * 5-7", "at 00:00 on Friday to Sunday"),
        ("0 0 * * 0-2", "at 00:00 on Monday, Tuesday and Sunday"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 1-7,15 * *", "at 00:00 on days 1-7 and 15 of the month"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 LW * *", "at 00:00 on the last weekday (Monday to Friday) of the month"),
        ("0 0 15W 6 *", "at 00:00 on the weekday (Monday to Friday) nearest to day 15 of June"),
        ("0 0 1,L 3,6 *", "at 00:00 on day 1 and the last day of March and June"),
        ("0 0 * * 1#2", "at 00:00 on the second Monday of the month"),
        ("0 0 * * 5L", "at 00:00 on the last Friday of the month"),
        ("0 0 * 2 5L,1#1", "at 00:00 on the last Friday of the month and "
         "the first Monday of the month in February"),
        ("0 0 * 1 *", "at 00:00 every day in January"),
        ("* * * 1-3 *", "every minute in January to March"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month, and also on Friday"),
        ("0 0 13 6 5", "at 00:00 on day 13 of June, and also on Friday in June"),
        ("0 0 1-31 * 1", "at 00:00 every day"),
        ("0 0 */10 * 1", "at 00:00 on Monday, only when that is day 1, 11, 21 or 31 of the month"),
        ("0 0 */31 6 */6", "at 00:00 on Saturday and Sunday, only when that is day 1 of June"),
        ("@weekly", "at 00:00 on Sunday"),
        ("@hourly", "every hour at minute 0"),
    ],
)  # fmt: skip
def test_a_cron_schedule_is_put_into_words(expr: str, expected: str) -> None:
    assert expected == words(expr)


@pytest.mark.requirement("X-S7", "X-S2")
def test_a_cron_schedule_names_its_own_zone() -> None:
    schedule = parse_cron("0 9 * * 1-5", None, "Asia/Shanghai", NOW)
    assert "at 09:00 on Monday to Friday (Asia/Shanghai)" == explain(schedule, "UTC")


@pytest.mark.requirement("X-S7")
def test_a_one_off_is_shown_in_the_zone_asked_for() -> None:
    assert "once, at 2026-11-30 20:00:00+08:00 (Asia/Shanghai)" == explain(
        Once(NOW), "Asia/Shanghai"
    )


@pytest.mark.requirement("X-S7")
@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (timedelta(minutes=90), "90 minutes"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(days=1), "24 hours"),
        (timedelta(days=7), "7 days"),
        (timedelta(seconds=5410), "1 hour 30 minutes 10 seconds"),
        (timedelta(seconds=45), "45 seconds"),
        (timedelta(milliseconds=1500), "1 second 500 milliseconds"),
    ],
)
def test_an_interval_is_shown_with_the_time_it_counts_from(
    interval: timedelta, expected: str
) -> None:
    assert f"every {expected}, counted from 2026-11-30 12:00:00+00:00 (UTC)" == explain(
        Every(interval, NOW), "UTC"
    )


@pytest.mark.requirement("X-S7")
@pytest.mark.parametrize(
    "expr", ["0 9 * * 1-5", "*/15 9-17 * * *", "0 */6 * * *", "0 0 L * *", "0 0 1-28 * *", "@daily"]
)
def test_a_plain_schedule_gets_no_warning(expr: str) -> None:
    assert () == warnings(expr)


@pytest.mark.requirement("X-S7")
@pytest.mark.parametrize(
    ("expr", "parts"),
    [
        ("* 9 * * *", ["60 times a day", "write 0 9 * * *"]),
        ("* 9-10 * * 1-5", ["120 times a day", "write 0 9-10 * * 1-5"]),
        (
            "*/90 * * * *",
            ["not every 90 minutes", "minute 0 of each hour", "interval_seconds 5400"],
        ),
        ("*/60 * * * *", ["not every 60 minutes", "interval_seconds 3600"]),
        ("*/7 * * * *", ["the gap after minute 56 is 4 minutes", "interval_seconds 420"]),
        ("0 */5 * * *", ["the gap after hour 20 is 4 hours", "interval_seconds 18000"]),
        ("0 0/36 * * *", ["not every 36 hours", "interval_seconds 129600"]),
        ("0 0 */2 * *", ["starts again on day 1 of each month"]),
        ("0 0 13 * 5", ["satisfy only one of them: day-of-month 13 or day-of-week 5"]),
        ("0 0 31 * *", ["no day 31 in February, April, June, September and November", "write L"]),
        ("0 0 30 * *", ["no day 30 in February"]),
    ],
)
def test_a_schedule_that_may_not_mean_what_it_seems_to_is_warned_about(
    expr: str, parts: list[str]
) -> None:
    (warning,) = warnings(expr)
    for part in parts:
        assert part in warning


@pytest.mark.requirement("X-S7")
def test_two_day_fields_of_which_one_begins_with_a_star_are_both_needed() -> None:
    assert "must satisfy both: day-of-month */10 and day-of-week 1" in warnings("0 0 */10 * 1")[1]


@pytest.mark.requirement("X-S7")
def test_a_fire_more_than_a_year_away_is_pointed_out() -> None:
    leap = warnings("0 9 29 2 *")
    assert ("29 February comes in leap years only.",) == leap[:1]
    assert "The next fire is more than a year from now, on 2028-02-29." == leap[1]
    far = Once(datetime(2028, 1, 1, tzinfo=UTC))
    assert ("It fires more than a year from now, on 2028-01-01.",) == schedule_warnings(far, NOW)
    assert () == schedule_warnings(Once(NOW + timedelta(days=300)), NOW)
    assert () == schedule_warnings(Once(NOW), NOW)
    assert () == schedule_warnings(Every(timedelta(minutes=5), NOW), NOW)
