"""Callers that cannot count: what they write for a time, a zone, a rhythm, and what they get.

Everything goes through the argument layer of the MCP tools; what Python callers can write as well
also goes straight to the use case. The clock stands at Monday 2026-03-02 09:00 in Shanghai.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from crontask_adapters import views
from crontask_core.errors import CrontaskError
from crontask_core.model import NewTask, Rules
from crontask_core.policy.timing import draft_timing
from crontask_core.schedule import parse_cron
from crontask_core.testing import START
from crontask_server.identity import Caller
from crontask_server.tools import answer
from tests.faces import AGENT_URL, World, world

TEXTS = {
    "task_name": "Tea",
    "conversation_id": "c1",
    "task_content": "Make tea.",
}
NEW_YORK = {"timezone": "America/New_York"}


async def send(on: World, **when: Any) -> dict[str, Any]:
    return await answer(on.tasks, Caller(user="ann"), "create_cron_task", {**TEXTS, **when})


async def preview(on: World, **when: Any) -> dict[str, Any]:
    return await answer(on.tasks, Caller(user="ann"), "preview_schedule", when)


async def created(**when: Any) -> dict[str, Any]:
    on = world()
    await on.live_node()
    return await send(on, **when)


async def refused(**when: Any) -> CrontaskError:
    with pytest.raises(CrontaskError) as caught:
        await send(world(), **when)
    return caught.value


# --- taken ------------------------------------------------------------------------------------


@pytest.mark.requirement("A2.1a", "A2.1b", "A4.2b")
@pytest.mark.parametrize(
    ("when", "local", "utc"),
    [
        ({"delay_seconds": 600}, "2026-03-02T09:10:00+08:00", "2026-03-02T01:10:00Z"),
        ({"delay_seconds": "90.5"}, "2026-03-02T09:01:30.500+08:00", "2026-03-02T01:01:30.500Z"),
        ({"delay_seconds": 0}, "2026-03-02T09:00:00+08:00", "2026-03-02T01:00:00Z"),
        ({"trigger_time": "2026-04-23 09:00"}, "2026-04-23T09:00:00+08:00", "2026-04-23T01:00:00Z"),
        ({"trigger_time": "2026-04-23T09:00"}, "2026-04-23T09:00:00+08:00", "2026-04-23T01:00:00Z"),
        ({"trigger_time": "20260423T0900"}, "2026-04-23T09:00:00+08:00", "2026-04-23T01:00:00Z"),
        (
            {"trigger_time": "2026-04-23T01:00:00Z"},
            "2026-04-23T09:00:00+08:00",
            "2026-04-23T01:00:00Z",
        ),
        (
            {"trigger_time": "2026-04-23T09:00:00-04:00"},
            "2026-04-23T21:00:00+08:00",
            "2026-04-23T13:00:00Z",
        ),
        (
            {"trigger_time": "２０２６-04-23 09:00"},
            "2026-04-23T09:00:00+08:00",
            "2026-04-23T01:00:00Z",
        ),
        (
            {"trigger_time": "2026-05-06T10:00", "timezone": "America/Chicago"},
            "2026-05-06T10:00:00-05:00",
            "2026-05-06T15:00:00Z",
        ),
        ({"cron_expr": "0 9 * * 1-5"}, "2026-03-03T09:00:00+08:00", "2026-03-03T01:00:00Z"),
        ({"cron_expr": "@every 90m"}, "2026-03-02T10:30:00+08:00", "2026-03-02T02:30:00Z"),
        ({"interval_seconds": "3600"}, "2026-03-02T10:00:00+08:00", "2026-03-02T02:00:00Z"),
    ],
)
async def test_what_is_clear_is_taken_and_shown_in_the_zone_and_in_utc(
    when: dict[str, Any], local: str, utc: str
) -> None:
    told = await created(**when)
    shown = told["next_fire_time"]
    assert (local, utc) == (shown["local"], shown["utc"])
    assert shown["in"]
    assert "warnings" not in told
    on = world()
    args = {name: value for name, value in when.items() if name != "delay_seconds"}
    if args == when:
        task = (await on.tasks.create("ann", NewTask(**_plain(when), **TEXTS))).task
        assert views.moment(task.next_fire_time, task.timezone, START)["utc"] == utc  # type: ignore[arg-type, attr-defined]


def _plain(when: Mapping[str, Any]) -> dict[str, Any]:
    """What the argument layer forgives, as a Python caller writes it."""
    out = {k: v.replace("２０２６", "2026") if isinstance(v, str) else v for k, v in when.items()}
    if "interval_seconds" in out:
        out["interval_seconds"] = float(out["interval_seconds"])
    return out


# --- taken, with a warning --------------------------------------------------------------------


@pytest.mark.requirement("A2.1b", "X-S7")
@pytest.mark.parametrize(
    ("when", "warning"),
    [
        (
            {"trigger_time": "2026-11-01T01:30", **NEW_YORK},
            "2026-11-01 01:30:00 comes twice in America/New_York because clocks go back; the "
            "first, 2026-11-01T01:30:00-04:00, is meant. For the second give "
            "2026-11-01T01:30:00-05:00",
        ),
        (
            {"trigger_time": "2027-04-23 09:00"},
            "It fires more than a year from now, on 2027-04-23.",
        ),
        ({"delay_seconds": 400 * 86_400}, "It fires more than a year from now, on 2027-04-06."),
        (
            {"cron_expr": "* 9 * * *"},
            "This fires every minute of the hours given, 60 times a day. For the full hour only, "
            "write 0 9 * * *.",
        ),
        (
            {"cron_expr": "* 9-17 * * 1-5"},
            "This fires every minute of the hours given, 540 times a day. For the full hour only, "
            "write 0 9-17 * * 1-5.",
        ),
        (
            {"cron_expr": "0 11 1-7 * FRI"},
            "Both day fields are given, so a day need satisfy only one of them: day-of-month 1-7 "
            "or day-of-week fri.",
        ),
        (
            {"cron_expr": "*/90 * * * *"},
            "*/90 is not every 90 minutes: it fires at minute 0 of each hour and no other. For "
            "every 90 minutes give interval_seconds 5400.",
        ),
    ],
)
async def test_what_may_not_be_meant_is_taken_with_a_warning_in_create_and_preview(
    when: dict[str, Any], warning: str
) -> None:
    assert [warning] == (await created(**when))["warnings"]
    assert [warning] == (await preview(world(), **when))["warnings"]


# --- refused ----------------------------------------------------------------------------------

CRON = ("INVALID_CRON", "cron_expr")
NEVER = ("NEVER_FIRES", "cron_expr")
TIME = ("INVALID_TIME", "trigger_time")
ZONE = ("UNKNOWN_TIMEZONE", "timezone")
DAILY = {"cron_expr": "0 9 * * *"}

# The code, the field, what is sent, and the example that comes back ("" when it may be anything).
BAD: list[tuple[tuple[str, str], dict[str, Any], str]] = [
    # Expressions.
    *((CRON, {"cron_expr": text}, example) for text, example in {
        "0 0 9 * * ?": "0 9 * * ?",
        "0 0 9 * * 2": "0 9 * * 2",
        "30 * * * * *": "* * * * *",
        "0 0 12 1/1 * ? *": "0 12 1/1 * ?",
        "0 9 * *": "0 9 * * *",
        "0 9": "0 9 * * 1-5",
        "every day at 9": "0 9 * * 1-5",
        "9:00": "0 9 * * 1-5",
        "0 22-6 * * *": "0 22-23,0-6 * * *",
        "0 0 * * sat-mon": "0 0 * * sat,sun,mon",
        "*5 * * * *": "*/5 * * * *",
        "0 9 * * monday": "0 9 * * mon",
        "0 9 * * 8": "0 9 * * 1-5",
        "0 24 * * *": "0 9 * * *",
        "60 * * * *": "0 * * * *",
        "0 9 0 * *": "0 9 * * *",
        "0 9 * 13 *": "0 9 * * *",
        "0 9 * * 1,,5": "0 9 * * 1,5",
        "0 9 L-3 * *": "0 9 L * *",
        "0 9 * * L5": "0 9 * * 5L",
        "0 9 * * 1#6": "0 9 * * 1#1",
        "R 9 * * *": "0 9 * * *",
        "H 9 * * *": "0 9 * * *",
        "*/0 * * * *": "0 * * * *",
        "１ ９ * * *": "0 9 * * 1-5",
        "0 0 * * ſun": "0 9 * * 1-5",
        "0\u30009 * * *": "0 9 * * 1-5",
        "@reboot": "@daily",
        "@weekely": "@weekly",
        "@every 5": "@every 90m",
        "@every 1h 30m": "@every 90m",
        "TZ=Asia/Tokyo 0 8 * * *": "CRON_TZ=Asia/Tokyo 0 8 * * *",
        "CRON_TZ=UTC": "CRON_TZ=UTC 0 9 * * 1-5",
        "TZ=0": "CRON_TZ=Asia/Shanghai 0 9 * * 1-5",
        "TZ=": "CRON_TZ=Asia/Shanghai 0 9 * * 1-5",
        ",".join(map(str, range(60))) + " 9 * * *": "0 9 * * 1-5",
    }.items()),
    (NEVER, {"cron_expr": "0 0 30 2 *"}, "0 0 L 2 *"),
    (NEVER, {"cron_expr": "0 0 30 02 *"}, "0 0 L 02 *"),
    (NEVER, {"cron_expr": "0 0 31 4 *"}, "0 0 L 4 *"),
    (NEVER, {"cron_expr": "0 0 31 2,4,6 *"}, "0 0 L 2,4,6 *"),
    (("UNKNOWN_TIMEZONE", "cron_expr"), {"cron_expr": "CRON_TZ=Asia/Beijing 0 8 * * *"},
     "CRON_TZ=Asia/Shanghai 0 8 * * *"),
    (("INVALID_CRON", "timezone"), {"cron_expr": "CRON_TZ=Europe/Berlin 0 9 * * *",
                                    "timezone": "Asia/Tokyo"}, "Europe/Berlin"),
    (("INVALID_ARGUMENT", "cron_expr"), {"cron_expr": ["0 9 * * *"]}, "0 9 * * 1-5"),
    (("INVALID_ARGUMENT", "cron_expr"), {"cron_expr": 9}, "0 9 * * 1-5"),
    # Times.
    *((TIME, {"trigger_time": text}, example) for text, example in {
        "tomorrow 9am": "2026-03-03T09:00:00+08:00",
        "in 5 minutes": "2026-03-03T09:00:00+08:00",
        "明天早上九点": "2026-03-03T09:00:00+08:00",
        "now": "2026-03-03T09:00:00+08:00",
        "2026/04/23 09:00": "2026-03-03T09:00:00+08:00",
        "04/23/2026 9:00 AM": "2026-03-03T09:00:00+08:00",
        "2026-04-23": "2026-04-23T09:00:00+08:00",
        "09:00": "2026-03-03T09:00:00+08:00",
        "2026-W17-4T09:00": "2026-03-03T09:00:00+08:00",
        "2026-W17": "2026-03-03T09:00:00+08:00",
        "2026-113T09:00": "2026-03-03T09:00:00+08:00",
        "2026-02-30T09:00": "2026-03-03T09:00:00+08:00",
        "2026-04-23T24:00": "2026-03-03T09:00:00+08:00",
        "2026-04-23T09:00+08:00[Asia/Shanghai]": "2026-03-03T09:00:00+08:00",
        "1776906000": "2026-04-23T09:00:00+08:00",
        "1776906000000": "2026-04-23T09:00:00+08:00",
        "1700000000": "2026-03-03T09:00:00+08:00",
        "2020-01-31": "2026-03-03T09:00:00+08:00",
        "9999-12-31T00:00Z": "2026-03-03T09:00:00+08:00",
    }.items()),
    (TIME, {"trigger_time": 1776906000}, "2026-04-23T09:00:00+08:00"),
    (TIME, {"trigger_time": 1776906000.0}, "2026-04-23T09:00:00+08:00"),
    (TIME, {"trigger_time": 1776906000000}, "2026-04-23T09:00:00+08:00"),
    (TIME, {"trigger_time": 10**400}, "2026-03-03T09:00:00+08:00"),
    (("INVALID_ARGUMENT", "trigger_time"), {"trigger_time": {"at": "09:00"}}, ""),
    (("TIME_IN_PAST", "trigger_time"), {"trigger_time": "2026-03-01T09:00"},
     "2026-03-02T10:00:00+08:00"),
    (("NONEXISTENT_LOCAL_TIME", "trigger_time"), {"trigger_time": "2026-03-08T02:30", **NEW_YORK},
     "2026-03-08T03:00:00-04:00"),
    (("NONEXISTENT_LOCAL_TIME", "end_at"), {"end_at": "2026-03-29T02:30", **DAILY,
                                            "timezone": "Europe/Berlin"},
     "2026-03-29T03:00:00+02:00"),
    (("INVALID_TIME", "end_at"), {"end_at": "next week", **DAILY}, "2026-03-03T09:00:00+08:00"),
    (("NEVER_FIRES", "end_at"), {"end_at": "2026-03-02T10:00", **DAILY},
     "2026-03-03T01:00:00+00:00"),
    (("NEVER_FIRES", "end_at"), {"end_at": "2026-04-02T10:00", "cron_expr": "0 0 29 2 *"},
     "2028-02-28T16:00:00+00:00"),
    # Zones.
    *((ZONE, {"timezone": text, **DAILY}, example) for text, example in {
        "asia/shanghai": "Asia/Shanghai",
        "Asia/Beijing": "Asia/Shanghai",
        "Shanghai": "Asia/Shanghai",
        "China Standard Time": "Asia/Shanghai",
        "New York": "America/New_York",
        "America/NewYork": "America/New_York",
        "Europe/Berln": "Europe/Berlin",
        "PST": "America/Los_Angeles",
        "CST": "Asia/Shanghai",
        "UTC+8": "Asia/Shanghai",
        "+08:00": "Asia/Shanghai",
        "GMT-5": "Etc/GMT+5",
        "Mars/Olympus": "Asia/Shanghai",
        "local": "",
        "../etc/passwd": "Asia/Shanghai",
    }.items()),
    (("INVALID_ARGUMENT", "timezone"), {"timezone": 8, **DAILY}, "Asia/Shanghai"),
    # Rhythms and delays.
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": 0}, "3600"),
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": -60}, "3600"),
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": "1h"}, "3600"),
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": 10**12}, "3600"),
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": "1e3"}, "3600"),
    (("INVALID_ARGUMENT", "interval_seconds"), {"interval_seconds": True}, "3600"),
    (("TOO_FREQUENT", "interval_seconds"), {"interval_seconds": 5}, "60"),
    (("TOO_FREQUENT", "cron_expr"), {"cron_expr": "@every 1s"}, "@every 60s"),
    (("INVALID_ARGUMENT", "delay_seconds"), {"delay_seconds": -1}, "600"),
    (("INVALID_ARGUMENT", "delay_seconds"), {"delay_seconds": "10 minutes"}, "600"),
    (("INVALID_ARGUMENT", "delay_seconds"), {"delay_seconds": "PT10M"}, "600"),
    (("INVALID_ARGUMENT", "delay_seconds"), {"delay_seconds": 10**30}, "600"),
    (("INVALID_ARGUMENT", "max_fires"), {"max_fires": 0, **DAILY}, "10"),
    (("INVALID_ARGUMENT", "schedule_type"), {"schedule_type": "daily", **DAILY}, "2"),
    (("INVALID_ARGUMENT", "schedule_type"), {"schedule_type": 9, **DAILY}, "2"),
    (("INVALID_ARGUMENT", "schedule_type"), {"schedule_type": 4, "delay_seconds": 60}, "1"),
    (("INVALID_ARGUMENT", "schedule_type"), {"schedule_type": 2, "delay_seconds": 60}, "1"),
    (("INVALID_ARGUMENT", "schedule_type"), {"schedule_type": 1, "interval_seconds": 60}, "3"),
    (("MISSING_ARGUMENT", "cron_expr"), {"timezone": "Asia/Tokyo"}, "0 9 * * 1-5"),
]  # fmt: skip


def label(value: object) -> str:
    return repr(value)[:60] if isinstance(value, dict) else ""


def test_the_corpus_of_bad_schedules_is_a_large_one() -> None:
    assert len(BAD) >= 60
    assert {"cron_expr", "trigger_time", "timezone", "interval_seconds", "delay_seconds"} <= {
        field for (_, field), _, _ in BAD
    }


@pytest.mark.requirement("A2.1a", "A2.1b", "X-S1", "X-S2", "A4.2")
@pytest.mark.parametrize(("told", "when", "example"), BAD, ids=label)
async def test_what_is_wrong_is_named_and_the_example_is_accepted_when_sent_back(
    told: tuple[str, str], when: dict[str, Any], example: str
) -> None:
    error = await refused(**when)
    assert told == (error.code, error.field)
    assert error.message
    assert error.hint
    assert example in ("", error.example)
    answered = await created(**{**when, error.field: error.example})
    assert answered["next_fire_time"]["utc"]


@pytest.mark.requirement("X-S1", "X-S2", "A2.1b")
@pytest.mark.parametrize(
    ("told", "when"),
    [(told, when) for told, when, _ in BAD if all(isinstance(v, str) for v in when.values())],
    ids=label,
)
async def test_a_python_caller_is_told_the_same(
    told: tuple[str, str], when: dict[str, Any]
) -> None:
    on = world()
    with pytest.raises(CrontaskError) as caught:
        await on.tasks.create("ann", NewTask(**when, **TEXTS))
    assert told[1] == caught.value.field
    assert caught.value.hint
    assert 0 == len(on.repo.store.tasks)


@pytest.mark.requirement("A2.1b")
@pytest.mark.parametrize("number", ["1776906000", 1776906000, 1776906000000, 1776906000.0])
async def test_an_epoch_number_is_refused_with_the_time_it_stands_for_in_the_hint(
    number: object,
) -> None:
    error = await refused(trigger_time=number)
    assert "as a Unix time it would be 2026-04-23T09:00:00+08:00; give it so" == error.hint


@pytest.mark.requirement("A2.1b")
async def test_an_epoch_number_that_has_passed_is_not_offered_back() -> None:
    error = await refused(trigger_time="1700000000")
    assert error.hint == (
        "as a Unix time it would be 2023-11-15T06:13:20+08:00, which has passed; give a later one"
    )


@pytest.mark.requirement("A2.1a")
@pytest.mark.parametrize(
    ("when", "field", "hint"),
    [
        (
            {"schedule_type": 2, "cron_expr": "0 9 * * *", "delay_seconds": 60},
            "delay_seconds",
            "Leave out delay_seconds.",
        ),
        (
            {"trigger_time": "2030-01-31T09:00:00+08:00", "delay_seconds": 60},
            "trigger_time",
            "Give exactly one of trigger_time and delay_seconds.",
        ),
        (
            {"cron_expr": "0 9 * * *", "interval_seconds": 60},
            "schedule_type",
            "Give exactly one of trigger_time, delay_seconds, cron_expr, interval_seconds.",
        ),
    ],
)
async def test_two_schedules_at_once_are_refused_without_a_value_that_would_fail_again(
    when: dict[str, Any], field: str, hint: str
) -> None:
    error = await refused(**when)
    assert ("INVALID_ARGUMENT", field, hint, "") == (
        error.code,
        error.field,
        error.hint,
        error.example,
    )


@pytest.mark.requirement("X-S2")
async def test_a_zone_that_is_nearly_right_is_offered_in_the_hint() -> None:
    error = await refused(timezone="Asia/Beijing", cron_expr="0 9 * * *")
    assert "did you mean Asia/Shanghai?" == error.hint
    assert ("Asia/Shanghai",) == error.candidates
    error = await refused(timezone="UTC+8", cron_expr="0 9 * * *")
    assert "An offset is not a zone: it knows no clock changes" in error.hint


@pytest.mark.requirement("A2.1b", "X-S2")
async def test_a_time_that_is_past_is_shown_with_the_servers_now_in_the_zone() -> None:
    error = await refused(trigger_time="2026-03-01T09:00", timezone="America/New_York")
    assert error.message == (
        "trigger_time 2026-03-01T09:00:00-05:00 has passed; the server's now is "
        "2026-03-01T20:00:00-05:00 (America/New_York)"
    )


@pytest.mark.parametrize("value", ["600", None, True, float("nan"), float("inf"), 10**400, [1]])
@pytest.mark.parametrize("field", ["delay_seconds", "interval_seconds"])
async def test_a_python_caller_with_a_wrong_type_gets_an_error_of_ours(
    field: str, value: Any
) -> None:
    with pytest.raises(CrontaskError) as caught:
        await world().tasks.create("ann", NewTask(**{field: value}, **TEXTS))
    assert caught.value.hint


@pytest.mark.requirement("X-T3")
@pytest.mark.parametrize("least", [90, 7200, 90_000, 700_000, 3_000_000])
@pytest.mark.parametrize("field", ["cron_expr", "interval_seconds"])
def test_what_is_too_frequent_is_answered_with_what_is_not_whatever_the_limit(
    field: str, least: int
) -> None:
    rules = Rules(default_callback_url=AGENT_URL, min_interval=timedelta(seconds=least))
    too_often: dict[str, Any] = {"cron_expr": "* * * * *", "interval_seconds": 60.0}
    with pytest.raises(CrontaskError) as caught:
        draft_timing(NewTask(**{field: too_often[field]}, **TEXTS), START, rules)
    assert "TOO_FREQUENT" == caught.value.code
    example: Any = caught.value.example
    if field == "interval_seconds":
        example = float(example)
    assert draft_timing(NewTask(**{field: example}, **TEXTS), START, rules).next_fire_time > START


@pytest.mark.requirement("X-S1")
async def test_an_update_to_a_date_that_never_comes_leaves_the_task_as_it_was() -> None:
    on = world()
    made = await send(on, cron_expr="0 9 * * *", task_key="k")
    before = dict(on.repo.store.tasks)
    with pytest.raises(CrontaskError) as caught:
        await answer(
            on.tasks,
            Caller(user="ann"),
            "update_cron_task",
            {"task_id": made["task_id"], "cron_expr": "0 0 31 2,4,6 *"},
        )
    assert "NEVER_FIRES" == caught.value.code
    assert before == on.repo.store.tasks


@pytest.mark.requirement("X-S7", "X-S2")
async def test_a_preview_shows_what_a_schedule_would_do_in_every_way() -> None:
    shown = await preview(
        world(), cron_expr="30 2 * * *", after="2026-03-07T12:00", count=2, **NEW_YORK
    )
    assert shown["text"] == "at 02:30 every day (America/New_York)"
    assert shown["timezone"] == "America/New_York"
    assert [at["local"] for at in shown["next_fire_times"]] == [
        "2026-03-08T03:00:00-04:00",
        "2026-03-09T02:30:00-04:00",
    ]
    assert [at["utc"] for at in shown["next_fire_times"]] == [
        "2026-03-08T07:00:00Z",
        "2026-03-09T06:30:00Z",
    ]
    assert shown["min_gap_seconds"] == 84_600


@pytest.mark.requirement("X-S7")
async def test_a_preview_ends_where_the_task_would() -> None:
    rule = {"cron_expr": "0 9 * * *", "count": 5}
    two = await preview(world(), max_fires=2, **rule)
    assert 2 == len(two["next_fire_times"])
    until = await preview(world(), end_at="2026-03-04T09:00", **rule)
    assert [at["local"] for at in until["next_fire_times"]] == [
        "2026-03-03T09:00:00+08:00",
        "2026-03-04T09:00:00+08:00",
    ]
    late = await preview(world(), trigger_time="2026-03-02T08:59:30")
    assert ["2026-03-02T08:59:30+08:00"] == [at["local"] for at in late["next_fire_times"]]


@pytest.mark.requirement("X-S1")
def test_an_example_stands_for_the_zone_it_is_given_with() -> None:
    with pytest.raises(CrontaskError) as caught:
        parse_cron("CRON_TZ=Asia/Tokio 0 8 * * *", None, "UTC", START)
    assert "CRON_TZ=Asia/Tokyo 0 8 * * *" == caught.value.example
