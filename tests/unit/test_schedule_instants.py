"""Times, zones and durations out of text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crontask_core.errors import InvalidInput
from crontask_core.schedule import (
    parse_duration,
    parse_instant,
    parse_zone,
    tzdata_version,
    zone,
)

NOW = datetime(2026, 4, 22, 1, 30, tzinfo=UTC)


def instant(text: Any, in_zone: str = "Asia/Shanghai") -> str:
    at, warnings = parse_instant(text, in_zone, NOW, "trigger_time")
    assert at.tzinfo is UTC
    assert () == warnings
    return at.isoformat()


def refusal(text: Any, in_zone: str = "Asia/Shanghai") -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_instant(text, in_zone, NOW, "trigger_time")
    assert "trigger_time" == caught.value.field
    parse_instant(caught.value.example, in_zone, NOW, "trigger_time")
    return caught.value


@pytest.mark.requirement("A2.1b")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-04-23T09:00:00+08:00", "2026-04-23T01:00:00+00:00"),
        ("2026-04-23T01:00:00Z", "2026-04-23T01:00:00+00:00"),
        ("2026-04-23t01:00z", "2026-04-23T01:00:00+00:00"),
        ("2026-04-23 09:00", "2026-04-23T01:00:00+00:00"),
        (" 2026-04-23 09:00:00 +08:00\n", "2026-04-23T01:00:00+00:00"),
        ("2026-04-23T09:00:00+08", "2026-04-23T01:00:00+00:00"),
        ("20260423T090000+0800", "2026-04-23T01:00:00+00:00"),
        ("2026-04-23T09:00:00.5", "2026-04-23T01:00:00.500000+00:00"),
        ("2026-04-23T09:00:00,123456", "2026-04-23T01:00:00.123456+00:00"),
        ("2026-12-31T23:59:59.999999999Z", "2026-12-31T23:59:59.999999+00:00"),
        ("2026-04-22T20:30-04:30", "2026-04-23T01:00:00+00:00"),
        (datetime.fromisoformat("2026-04-23T09:00"), "2026-04-23T01:00:00+00:00"),
        (datetime(2026, 4, 23, 1, tzinfo=UTC), "2026-04-23T01:00:00+00:00"),
        ("2040-01-01T00:00Z", "2040-01-01T00:00:00+00:00"),
    ],
)
def test_an_iso_time_is_read_to_the_microsecond_and_without_offset_in_the_zone(
    text: Any, expected: str
) -> None:
    assert expected == instant(text)


@pytest.mark.requirement("A2.1b", "X-S2")
@pytest.mark.parametrize("host_zone", ["UTC", "Asia/Tokyo"])
def test_the_zone_of_the_machine_is_never_used(
    monkeypatch: pytest.MonkeyPatch, host_zone: str
) -> None:
    monkeypatch.setenv("TZ", host_zone)
    assert "2026-05-06T15:00:00+00:00" == instant("2026-05-06T10:00", "America/Chicago")


@pytest.mark.requirement("A2.1b")
@pytest.mark.parametrize(
    ("text", "in_zone", "after_the_gap"),
    [
        ("2026-03-08T02:30", "America/New_York", "2026-03-08T03:00:00-04:00"),
        ("2026-03-08T02:00", "America/New_York", "2026-03-08T03:00:00-04:00"),
        ("2025-10-05T02:15", "Australia/Lord_Howe", "2025-10-05T02:30:00+11:00"),
        ("2011-12-30T09:00", "Pacific/Apia", "2011-12-31T00:00:00+14:00"),
        ("2025-04-25T00:59:59.999999", "Africa/Cairo", "2025-04-25T01:00:00+03:00"),
    ],
)
def test_a_local_time_that_does_not_exist_is_refused_with_the_next_that_does(
    text: str, in_zone: str, after_the_gap: str
) -> None:
    error = refusal(text, in_zone)
    assert ("NONEXISTENT_LOCAL_TIME", after_the_gap) == (error.code, error.example)


@pytest.mark.requirement("A2.1b")
def test_a_local_time_that_comes_twice_means_the_first_and_says_so() -> None:
    at, warnings = parse_instant("2026-11-01T01:30", "America/New_York", NOW, "trigger_time")
    assert "2026-11-01T05:30:00+00:00" == at.isoformat()
    assert 1 == len(warnings)
    assert "2026-11-01T01:30:00-04:00" in warnings[0]
    assert "2026-11-01T01:30:00-05:00" in warnings[0]
    assert "2026-11-01T06:30:00+00:00" == instant("2026-11-01T01:30-05:00", "America/New_York")


@pytest.mark.parametrize(
    "number",
    ["1776906000", "1776906000.0", "1776906000000", "1776906000000000", 1776906000, 1776906000.0],
)
def test_a_unix_time_is_refused_and_shown_as_the_iso_time_it_stands_for(number: Any) -> None:
    error = refusal(number)
    assert ("INVALID_TIME", "2026-04-23T09:00:00+08:00") == (error.code, error.example)
    assert "2026-04-23T09:00:00+08:00" in error.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tomorrow 9am", "this is not an ISO 8601 time"),
        ("in 5 minutes", "this is not an ISO 8601 time"),
        ("明天九点", "this is not an ISO 8601 time"),
        ("２０２６-04-23T09:00", "this is not an ISO 8601 time"),
        ("2026/04/23 09:00", "this is not an ISO 8601 time"),
        ("2026-04-31", "this is not an ISO 8601 time"),
        (None, "this is not an ISO 8601 time"),
        ("9" * 400, "this is not an ISO 8601 time"),
        ("2026-W17-4T09:00", "week and day-of-year dates are not taken"),
        ("2026-113T09:00", "week and day-of-year dates are not taken"),
        ("2026-04-23", "a date without a time"),
        ("20260423", "a date without a time"),
        ("09:00", "a time without a date"),
        ("", "the time is empty"),
        ("12", "a number is not a time"),
        ("2026-04-23T09:00+08:00[Asia/Shanghai]", "a zone in brackets is not taken"),
        ("2026-02-30T09:00", "day is out of range for month"),
        ("2026-04-23T24:00", "hour must be in 0..23"),
        ("2026-04-23T09:00:60", "second must be in 0..59"),
        ("2026-04-23T09:00+19:00", "there is no offset +19:00"),
        ("2026-04-23T09:00.5", "a fraction needs seconds before it"),
        ("9999-12-31T00:00Z", "the year 9999 is outside 1900-2999"),
        ("0001-01-01T00:00", "the year 1 is outside 1900-2999"),
    ],
)
def test_any_other_text_is_refused_with_a_time_that_is_accepted(text: Any, message: str) -> None:
    error = refusal(text)
    assert "INVALID_TIME" == error.code
    assert error.message.startswith(message)
    assert "2026-04-23T09:00:00+08:00" == error.example  # tomorrow at nine, or the date given


def test_the_year_is_judged_before_the_zone_can_overflow() -> None:
    for extreme in ("9999-12-31T23:59:59.999999", "0001-01-01T00:00:00"):
        for offset in ("", "+00:00", "+14:00", "-12:00"):
            given = datetime.fromisoformat(extreme + offset)
            assert "INVALID_TIME" == refusal(given).code


@pytest.mark.requirement("X-S2")
def test_an_iana_name_is_taken_as_it_stands() -> None:
    for name in ("Asia/Shanghai", "US/Eastern", "Etc/GMT+12", "UTC", "America/Argentina/Salta"):
        assert name == parse_zone(name) == str(zone(name))


@pytest.mark.requirement("X-S2")
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("asia/shanghai", "Asia/Shanghai"),
        (" Asia/Tokyo ", "Asia/Tokyo"),
        ("utc", "UTC"),
        ("Z", "UTC"),
        ("Asia/Beijing", "Asia/Shanghai"),
        ("Shanghai", "Asia/Shanghai"),
        ("China Standard Time", "Asia/Shanghai"),
        ("New York", "America/New_York"),
        ("America/NewYork", "America/New_York"),
        ("Europe/Berln", "Europe/Berlin"),
        ("America/Los Angeles", "America/Los_Angeles"),
        ("CST", "Asia/Shanghai"),
        ("UTC+8", "Asia/Shanghai"),
        ("+08:00", "Asia/Shanghai"),
        ("GMT-5", "Etc/GMT+5"),
        ("UTC+5:30", "Asia/Kolkata"),
    ],
)
def test_a_wrong_zone_is_refused_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_zone(wrong)
    error = caught.value
    assert ("UNKNOWN_TIMEZONE", "timezone") == (error.code, error.field)
    assert meant == error.candidates[0] == parse_zone(error.example)
    assert meant in error.hint


@pytest.mark.requirement("X-S2")
@pytest.mark.parametrize(
    "wrong", ["", "../etc/passwd", "Factory", "localtime", "zone.tab", "Asia", None, 8, "x" * 9999]
)
def test_what_is_no_zone_at_all_is_refused_and_never_read_as_utc(wrong: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        zone(wrong)
    assert "UNKNOWN_TIMEZONE" == caught.value.code
    parse_zone(caught.value.example)


@pytest.mark.requirement("X-S8")
def test_zones_come_from_the_tzdata_package_and_its_version_is_told() -> None:
    import tzdata

    assert tzdata.IANA_VERSION == tzdata_version()
    # British Columbia keeps summer time since 2026: a system copy of 2025 does not know it.
    winter = datetime(2026, 12, 1, 20, tzinfo=UTC)
    assert timedelta(hours=-7) == winter.astimezone(zone("America/Vancouver")).utcoffset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45s", 45),
        ("500ms", 0.5),
        ("2d", 172_800),
        ("1d2h3m4s5ms", 93_784.005),
        ("0s", 0),
        ("0.000001s", 0.000001),
    ],
)
def test_a_duration_is_read_exactly(text: str, seconds: float) -> None:
    assert timedelta(seconds=seconds) == parse_duration(text)


@pytest.mark.parametrize(
    "text",
    ["", "5", "m", "-5m", "+5m", "5 m", "1m1h", "5m5m", "1e3s", "1..5h", ".", "1.5.5s", "5M", "５m",
     "0.0000001s", "36526d", "9" * 400 + "s", None, 5],
)  # fmt: skip
def test_a_wrong_duration_is_refused_with_a_right_one(text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert "INVALID_ARGUMENT" == caught.value.code
    assert timedelta(minutes=90) == parse_duration(caught.value.example)
