"""What the cron parser takes, what it refuses, and what it then says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crontask_core.errors import InvalidInput
from crontask_core.schedule import Cron, Every, fires_after, next_after, parse_cron

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def parse(expr: Any, zone: str | None = None) -> Cron | Every:
    return parse_cron(expr, zone, "Asia/Shanghai", NOW)


def refusal(expr: Any, zone: str | None = None) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse(expr, zone)
    return caught.value


def fires(expr: str, count: int, zone: str = "UTC", after: datetime = NOW) -> list[str]:
    schedule = parse(expr, zone)
    return [f"{at:%Y-%m-%d %H:%M}" for at in fires_after(schedule, after, count)]


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    ("expr", "normal"),
    [
        ("0 9 * * 1-5", "0 9 * * 1-5"),
        (" \t0\t9   * * MON-FRI \r\n", "0 9 * * MON-FRI"),
        ("CRON_TZ=Asia/Shanghai  0 9 * * *", "0 9 * * *"),
        ("@Daily", "@daily"),
    ],
)
def test_an_expression_is_kept_trimmed_and_without_its_prefix(expr: str, normal: str) -> None:
    assert Cron(normal, "Asia/Shanghai") == parse(expr)


@pytest.mark.requirement("X-S2")
def test_the_zone_is_the_prefix_else_the_argument_else_the_default() -> None:
    assert Cron("0 9 * * *", "Europe/Berlin") == parse("CRON_TZ=Europe/Berlin 0 9 * * *")
    assert Cron("0 9 * * *", "Europe/Berlin") == parse("0 9 * * *", "Europe/Berlin")
    assert Cron("0 9 * * *", "Asia/Shanghai") == parse("0 9 * * *")
    both = parse("CRON_TZ=Europe/Berlin 0 9 * * *", "Europe/Berlin")
    assert Cron("0 9 * * *", "Europe/Berlin") == both


@pytest.mark.requirement("X-S1")
def test_a_prefix_and_another_timezone_are_refused_together() -> None:
    error = refusal("CRON_TZ=Europe/Berlin 0 9 * * *", "Asia/Tokyo")
    assert ("INVALID_CRON", "timezone", "Europe/Berlin") == (error.code, error.field, error.example)


@pytest.mark.requirement("X-S1", "X-S5")
def test_every_becomes_an_interval_with_its_anchor() -> None:
    assert Every(timedelta(minutes=90), NOW) == parse("@every 90m")
    assert Every(timedelta(hours=1, minutes=30, seconds=10), NOW) == parse("@EVERY  1h30m10s")
    assert Every(timedelta(milliseconds=500), NOW) == parse("CRON_TZ=UTC @every 500ms")


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize("text", ["@every", "@every 0s", "@every 5", "@every 1h 30m", "@every90m"])
def test_a_wrong_interval_is_refused_with_a_right_one(text: str) -> None:
    error = refusal(text)
    assert ("INVALID_CRON", "cron_expr", "@every 90m") == (error.code, error.field, error.example)


@pytest.mark.requirement("X-S1")
def test_the_day_extras_fire_on_the_days_they_name() -> None:
    assert ["2026-12-31 05:00", "2027-01-29 05:00"] == fires("0 5 LW * *", 2)
    assert ["2026-11-30 13:00", "2026-12-31 13:00"] == fires("0 13 L * *", 2)
    assert ["2026-12-25 00:00", "2027-01-29 00:00"] == fires("0 0 * * 5L", 2)
    assert ["2026-12-25 00:00", "2027-01-29 00:00"] == fires("0 0 * * friL", 2)
    assert ["2026-12-07 00:00", "2027-01-04 00:00"] == fires("0 0 * * 1#1", 2)
    assert ["2026-12-15 00:00", "2027-01-15 00:00", "2027-02-15 00:00"] == fires("0 0 15W * *", 3)


@pytest.mark.requirement("X-S1")
def test_the_day_extras_fire_where_other_libraries_go_wrong() -> None:
    october = datetime(2023, 10, 1, tzinfo=UTC)
    assert ["2023-10-31 05:00"] == fires("0 5 LW * *", 1, after=october)
    july = datetime(2024, 7, 11, tzinfo=UTC)
    assert ["2024-07-26 00:00"] == fires("0 0 * * 5L", 1, after=july)
    assert ["2024-07-15 00:00", "2024-08-15 00:00"] == fires("0 0 15W * *", 2, after=july)


@pytest.mark.requirement("X-S1")
def test_weekday_names_and_numbers_are_the_same_days_and_both_0_and_7_are_sunday() -> None:
    names = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
    for number, name in enumerate(names):
        assert fires(f"30 7 * * {number}", 5) == fires(f"30 7 * * {name}", 5)
        assert fires(f"30 7 * * {number}", 5) == fires(f"30 7 * * {name.upper()}", 5)
    assert fires("30 7 * * 0", 5) == fires("30 7 * * 7", 5)
    thursday = fires("30 7 * * 4", 1, after=datetime(2018, 2, 9, tzinfo=UTC))
    assert ["2018-02-15 07:30"] == thursday


@pytest.mark.requirement("X-S1")
def test_the_nearest_weekday_stays_inside_its_month() -> None:
    july = datetime(2026, 7, 31, tzinfo=UTC)  # 1 August 2026 is a Saturday, 31 October too
    assert ["2026-08-03 00:00"] == fires("0 0 1W 8 *", 1, after=july)
    assert ["2026-10-30 00:00"] == fires("0 0 31W 10 *", 1, after=july)
    assert ["2026-08-14 00:00"] == fires("0 0 15W 8 *", 1, after=july)
    assert ["2026-08-17 00:00"] == fires("0 0 16W 8 *", 1, after=july)


@pytest.mark.requirement("X-S1")
def test_the_nearest_weekday_to_a_day_the_month_lacks_is_no_day() -> None:
    assert ["2026-12-31 00:00", "2027-01-29 00:00", "2027-03-31 00:00"] == fires("0 0 31W * *", 3)


@pytest.mark.requirement("X-S1")
def test_day_extras_combine_with_plain_days_and_each_other() -> None:
    assert [
        "2026-12-15 00:00",
        "2026-12-25 00:00",
        "2026-12-31 00:00",
        "2027-01-15 00:00",
        "2027-01-29 00:00",
    ] == fires("0 0 15,L * 5L", 5)
    assert ["2027-01-31 00:00", "2027-02-28 00:00"] == fires("0 0 L * */7", 2)
    assert ["2027-02-22 00:00"] == fires("0 0 */21 2 1L", 1)


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    ("expr", "field", "example"),
    [
        ("*5 * * * *", "minute", "*/5 * * * *"),
        ("/5 * * * *", "minute", "*/5 * * * *"),
        ("61 9 * * *", "minute", "0 9 * * *"),
        ("0 22-6 * * *", "hour", "0 22-23,0-6 * * *"),
        ("0 22-6/2 * * *", "hour", "0 22,0,2,4,6 * * *"),
        ("0 1,22-6,9 * * *", "hour", "0 1,22-23,0-6,9 * * *"),
        ("0 9 31-1 * *", "day-of-month", "0 9 31,1 * *"),
        ("0 9 L-3 * *", "day-of-month", "0 9 L * *"),
        ("0 9 32W * *", "day-of-month", "0 9 15W * *"),
        ("0 9 * nov-feb *", "month", "0 9 * nov,dec,jan,feb *"),
        ("0 9 ? ? *", "month", "0 9 ? * *"),
        ("0 9 * * sat-mon", "day-of-week", "0 9 * * sat,sun,mon"),
        ("0 9 * * fri-sun", "day-of-week", "0 9 * * fri,sat,sun"),
        ("0 9 * * 5-0", "day-of-week", "0 9 * * 5-6,0"),
        ("0 9 * * Monday", "day-of-week", "0 9 * * mon"),
        ("0 9 * * 7/2", "day-of-week", "0 9 * * 0/2"),
        ("0 9 * * L5", "day-of-week", "0 9 * * 5L"),
        ("0 9 * * L", "day-of-week", "0 9 * * 6L"),
        ("0 9 * * 1#6", "day-of-week", "0 9 * * 1#1"),
        ("0 9 * * 1,,5", "day-of-week", "0 9 * * 1,5"),
        ("0 9 * * 1-5,", "day-of-week", "0 9 * * 1-5"),
        ("H 9 * * *", "minute", "0 9 * * *"),
        ("R 9 * * *", "minute", "0 9 * * *"),
        ("5L 9 * * *", "minute", "0 9 * * *"),
    ],
)
def test_a_wrong_field_is_named_and_put_right(expr: str, field: str, example: str) -> None:
    error = refusal(expr)
    assert error.message.startswith(f"{field} field ")
    assert ("INVALID_CRON", "cron_expr") == (error.code, error.field)
    assert example.lower() == error.example.lower()
    assert next_after(parse(error.example), NOW)


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    ("expr", "found", "example"),
    [
        ("0 0 9 * * ?", 6, "0 9 * * ?"),
        ("0 0 9 * * 2", 6, "0 9 * * 2"),
        ("30 * * * * *", 6, "* * * * *"),
        ("0 9 * * * 2027", 6, "0 9 * * *"),
        ("0 0 12 1/1 * ? *", 7, "0 12 1/1 * ?"),
        ("99 99 9 * * ?", 6, "0 9 * * 1-5"),
    ],
)
def test_six_or_seven_fields_are_pointed_to_intervals(expr: str, found: int, example: str) -> None:
    error = refusal(expr)
    assert f"has 5 fields (minute hour day-of-month month day-of-week), found {found}" in (
        error.message
    )
    assert "interval_seconds" in error.hint
    assert example == error.example


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    ("expr", "place"),
    [
        ("０ ９ * * *", "character 1 is '\\uff10'"),
        ("0 0 * * ſun", "character 9 is '\\u017f'"),
        ("0　9 * * *", "character 2 is '\\u3000'"),
        ("0\u00a09 * * *", "character 2 is '\\xa0'"),
        ("\u00a00 9 * * *", "character 1 is '\\xa0'"),
        ("0 9 * *\n*", "character 8 is '\\n'"),
        ("0 9 * * *\x00", "character 10 is '\\x00'"),
        ("每天 9 点", "character 1 is '\\u6bcf'"),
    ],
)
def test_only_plain_ascii_is_read_and_the_place_is_named(expr: str, place: str) -> None:
    assert place in refusal(expr).message


@pytest.mark.requirement("X-S1")
def test_128_characters_are_taken_whole_and_129_refused() -> None:
    exact = ",".join(str(minute) for minute in range(10, 50)) + " 19 * * *"
    assert 128 == len(exact)
    assert Cron(exact, "Asia/Shanghai") == parse(exact)
    every_minute = ",".join(str(m) for m in range(60)) + " 9 * * *"
    assert "at most 128" in refusal(every_minute).message
    assert "129 characters" in refusal("1" + exact).message


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize("expr", [None, 5, b"0 9 * * *", ["0 9 * * *"], "", "   ", "a"])
def test_what_is_no_expression_is_refused_as_one(expr: Any) -> None:
    error = refusal(expr)
    assert ("INVALID_CRON", "cron_expr", "0 9 * * 1-5") == (error.code, error.field, error.example)


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    "expr",
    [
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 31W 4 *",
        "0 0 */31 2 1#5",
        "0 0 */15 * 2#2",
        "0 0 */30 2,4 1#5",
    ],
)
def test_an_expression_that_never_fires_is_refused(expr: str) -> None:
    error = refusal(expr)
    assert ("NEVER_FIRES", "cron_expr") == (error.code, error.field)
    assert next_after(parse(error.example), NOW)


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize("expr", ["0 0 29 2 *", "0 0 */28 2 1#5", "0 0 29 2 */7", "0 0 29W 2 *"])
def test_a_rare_expression_is_not_taken_for_one_that_never_fires(expr: str) -> None:
    assert next_after(parse(expr), NOW) is not None


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    ("expr", "example"),
    [
        ("TZ=Asia/Tokyo 0 8 * * *", "CRON_TZ=Asia/Tokyo 0 8 * * *"),
        ("cron_tz=Asia/Tokyo 0 8 * * *", "CRON_TZ=Asia/Tokyo 0 8 * * *"),
        ("TZ=0", "CRON_TZ=Asia/Shanghai 0 9 * * 1-5"),
        ("TZ=", "CRON_TZ=Asia/Shanghai 0 9 * * 1-5"),
        ("CRON_TZ=UTC", "CRON_TZ=UTC 0 9 * * 1-5"),
        ("CRON_TZ=UTC 0 0 30 2 *", "0 0 L 2 *"),
        ("CRON_TZ=Asia/Beijing 0 8 * * *", "CRON_TZ=Asia/Shanghai 0 8 * * *"),
        ("CRON_TZ= 0 8 * * *", "CRON_TZ=Asia/Shanghai 0 8 * * *"),
    ],
)
def test_a_wrong_zone_prefix_is_refused_with_a_right_one(expr: str, example: str) -> None:
    error = refusal(expr)
    assert ("cron_expr", example) == (error.field, error.example)
    assert next_after(parse(error.example), NOW)


@pytest.mark.requirement("X-S1")
def test_an_unknown_alias_names_the_known_ones() -> None:
    assert "@weekly" == refusal("@weekely").candidates[0]
    assert "@daily" == refusal("@reboot").example
    assert "@every" in refusal("@fortnightly").hint
