"""Answers as plain data: times in every way, words beside numbers, delivery apart from result."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest

from crontask_adapters import views
from crontask_adapters.times import local, relative, span, utc
from crontask_core.answers import ExecutionView, Info, Preview, RunAnswer, TaskAnswer
from crontask_core.errors import Conflict, InvalidInput
from crontask_core.model import (
    Attempt,
    AttemptClass,
    ExecStatus,
    Execution,
    Rules,
    Task,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import ReportResult
from crontask_core.ports import Page, TaskRow
from tests.builders import T0, at, cron, every, once

NINE = {"local": "2026-03-02T09:00:00+08:00", "utc": "2026-03-02T01:00:00Z"}


def told(task: Task, **more: Any) -> TaskAnswer:
    fires = (task.next_fire_time,) if task.next_fire_time else ()
    return TaskAnswer(
        **{
            "task": task,
            "now": T0,
            "words": "in words",
            "next_fires": fires,
            "alive": True,
            **more,
        }
    )


def fire(**more: Any) -> Execution:
    return Execution(
        **{
            "id": 5001,
            "fire_id": "f-1",
            "task_id": 1001,
            "task_key": "k",
            "user_id": "ann",
            "fire_time": T0,
            "created_at": T0,
            "updated_at": T0,
            **more,
        }
    )


@pytest.mark.requirement("X-S2")
def test_a_time_is_shown_in_its_zone_with_offset_and_in_utc() -> None:
    assert NINE["local"] == local(T0, "Asia/Shanghai")
    assert NINE["utc"] == utc(T0)
    half = T0 + timedelta(microseconds=500_400)
    assert "2026-03-01T20:00:00.500-05:00" == local(half, "America/New_York")
    assert "2026-03-02T01:00:00.500Z" == utc(half)


def test_a_time_in_a_zone_that_is_gone_is_shown_in_utc() -> None:
    assert "2026-03-02T01:00:00+00:00" == local(T0, "Gone/Away")


@pytest.mark.requirement("A4.2b")
@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (0.3, "now"),
        (0.7, "in 700 ms"),
        (45, "in 45 s"),
        (120, "in 2 min"),
        (180, "in 3 min"),
        (7_500, "in 2 h 5 min"),
        (86_400, "in 24 h"),
        (3 * 86_400, "in 3 days"),
        (-5, "5 s ago"),
        (-28_800, "8 h ago"),
    ],
)
def test_how_far_away_a_time_is_in_words(seconds: float, words: str) -> None:
    assert words == relative(T0 + timedelta(seconds=seconds), T0)


def test_a_span_uses_its_largest_useful_units() -> None:
    assert ["1 s", "99 s", "2 min", "99 min", "1 h 40 min", "3 days"] == [
        span(timedelta(seconds=s)) for s in (1, 99, 100, 5_940, 6_000, 259_200)
    ]


@pytest.mark.requirement("A4.2b", "X-S2")
def test_a_task_says_when_it_fires_next_in_words_and_whether_a_node_will() -> None:
    task = cron("daily", "0 9 * * *", at(days=1), id=1001)
    view = views.task(told(task, created=True, next_fires=(at(days=1), at(days=2))), "created")
    assert {
        "local": "2026-03-03T09:00:00+08:00",
        "utc": "2026-03-03T01:00:00Z",
        "in": "in 24 h",
    } == view["next_fire_time"]
    assert 2 == len(view["next_fire_times"])
    assert view["will_fire"] is True and view["created"] is True
    assert {"schedule_type": 2, "text": "in words", "timezone": "Asia/Shanghai",
            "cron_expr": "0 9 * * *"} == view["schedule"]  # fmt: skip
    assert (1, "enabled", 0) == (view["status"], view["status_text"], view["failure_streak"])
    assert (
        "Task 1001 (daily) created. Fires in words; next 2026-03-03T09:00:00+08:00 (in 24 h)."
        == view["message"]
    )


def test_fields_without_a_value_are_left_out() -> None:
    view = views.task(told(once(id=1)))
    absent = {
        "task_desc", "callback_url", "status_reason", "last_fire_time", "deleted_at", "dry_run",
        "already", "changed", "executions", "warnings", "misfire_grace_seconds",
    }  # fmt: skip
    assert set() == absent & view.keys()
    assert "None" not in json.dumps(view)


@pytest.mark.requirement("X-T1")
def test_a_change_is_told_by_the_names_of_the_arguments() -> None:
    fields = ("interval_ms", "next_fire_time", "anchor_at", "retry_interval", "task_name")
    view = views.task(told(every(id=1), changed=fields), "updated", content=False)
    assert ["interval_seconds", "retry_interval_ms", "task_name"] == view["changed"]
    assert "updated (interval_seconds, retry_interval_ms, task_name)" in view["message"]
    assert "task_content" not in view


@pytest.mark.parametrize(
    ("task", "what", "more", "said"),
    [
        (once(id=0), "created", {"dry_run": True}, "would be created; nothing was stored"),
        (once(id=1), "created", {"created": False}, "exists already with these arguments"),
        (once(id=1), "updated", {"already": True}, "is as asked already"),
        (once(id=1), "paused", {"already": True}, "is paused already"),
        (once(id=1), "paused", {"running": 1, "cancelled": 2},
         "paused (2 waiting cancelled, 1 running go on)"),
        (once(id=1, next_fire_time=None), "", {}, "is enabled. Its last fire is under way."),
        (once(id=1, next_fire_time=None, status=TaskStatus.COMPLETED), "", {},
         "is completed. It will not fire again."),
        (once(id=1, next_fire_time=None, status=TaskStatus.DISABLED), "", {},
         "it does not fire until resumed."),
    ],
)  # fmt: skip
def test_the_message_says_what_happened(
    task: Task, what: str, more: dict[str, Any], said: str
) -> None:
    assert said in views.task(told(task, **more), what)["message"]


@pytest.mark.requirement("A3.1b")
def test_a_second_delete_says_already() -> None:
    gone = once(id=1, status=TaskStatus.DELETED, next_fire_time=None)
    view = views.deleted(told(gone, already=True))
    assert (True, 3, "deleted") == (view["already"], view["status"], view["status_text"])
    assert "Task 1 (once) is deleted already." == view["message"]


@pytest.mark.requirement("X-T4", "X-F5")
def test_a_listing_shows_the_last_executions_state_and_the_failure_streak() -> None:
    task = cron("daily", "0 9 * * *", at(days=1), id=1001, failure_streak=3)
    last = fire(exec_status=ExecStatus.FAILED, fence=4)
    view = views.task_row(TaskRow(task=task, last=last), T0)
    assert {
        "execution_id": 5001,
        "fire_time": NINE,
        "exec_status": 3,
        "exec_status_text": "failed",
        "delivery": "failed",
        "result": "none",
    } == view["last_execution"]
    assert 3 == view["failure_streak"]
    assert "at 09:00 every day (Asia/Shanghai)" == view["schedule_text"]
    assert "task_content" not in view and "user_id" not in view


def test_a_page_says_how_many_there_are_in_all_and_how_to_go_on() -> None:
    rows = (TaskRow(task=once(id=2)), TaskRow(task=once(id=1)))
    view = views.task_rows(Page(rows, 7, "1"), T0, users=True)
    assert "2 of 7 tasks; more with cursor." == view["message"]
    assert (7, True, "1") == (view["total"], view["has_more"], view["next_cursor"])
    assert ["ann", "ann"] == [row["user_id"] for row in view["tasks"]]
    last = views.task_rows(Page((), 0), T0)
    assert "No tasks." == last["message"]
    assert "next_cursor" not in last and last["has_more"] is False


@pytest.mark.requirement("X-T4")
@pytest.mark.parametrize(
    ("row", "delivery", "result"),
    [
        (fire(), "waiting", "pending"),
        (fire(exec_status=ExecStatus.PENDING, fence=2), "waiting", "pending"),
        (fire(exec_status=ExecStatus.CALLING, fence=1), "calling", "pending"),
        (fire(exec_status=ExecStatus.RUNNING, fence=1, accepted_at=T0), "accepted", "pending"),
        (fire(exec_status=ExecStatus.SUCCESS, fence=1, accepted_at=T0, reported_at=T0),
         "accepted", "success"),
        (fire(exec_status=ExecStatus.FAILED, fence=1, accepted_at=T0, reported_at=T0),
         "accepted", "failed"),
        (fire(exec_status=ExecStatus.SUCCESS, fence=1, reported_at=T0), "accepted", "success"),
        (fire(exec_status=ExecStatus.FAILED, fence=4), "failed", "none"),
        (fire(exec_status=ExecStatus.TIMED_OUT, fence=1, accepted_at=T0), "accepted", "timed_out"),
        (fire(exec_status=ExecStatus.CANCELLED), "not_sent", "none"),
        (fire(exec_status=ExecStatus.SKIPPED), "not_sent", "none"),
    ],
)  # fmt: skip
def test_delivery_and_result_are_two_things(row: Execution, delivery: str, result: str) -> None:
    view = views.execution(row, "Asia/Shanghai")
    assert (delivery, result) == (view["delivery"]["state"], view["result"]["state"])


def test_an_execution_shows_its_numbers_with_words_and_its_attempts() -> None:
    attempt = Attempt(
        execution_id=5001, fence=1, node="n", started_at=T0, ended_at=at(seconds=30),
        outcome=AttemptClass.RETRY, http_status=503, error="HTTP 503",
    )  # fmt: skip
    row = fire(
        fence=1, retry_count=1, next_action_at=at(seconds=35), trigger_kind=TriggerKind.MANUAL
    )
    page = Page((ExecutionView(execution=row, zone="Asia/Shanghai", attempts=(attempt,)),), 1)
    view = views.executions(page, full=True)["executions"][0]
    assert NINE == view["fire_time"]
    assert (0, "pending", "manual") == (
        view["exec_status"],
        view["exec_status_text"],
        view["trigger"],
    )
    assert "2026-03-02T09:00:35+08:00" == view["next_action_at"]
    assert [
        {
            "attempt": 1,
            "started_at": "2026-03-02T09:00:00+08:00",
            "ended_at": "2026-03-02T09:00:30+08:00",
            "outcome": "retry",
            "http_status": 503,
            "error": "HTTP 503",
        }
    ] == view["attempts"]


@pytest.mark.requirement("X-T2")
def test_a_listing_shows_excerpts_and_the_single_view_everything() -> None:
    row = fire(exec_status=ExecStatus.SUCCESS, ga_result="均" * 5_000, reported_at=T0)
    short = views.execution(row, "Asia/Shanghai")["result"]["text"]
    assert short == "均" * 300 + "… (5000 characters; shown whole with execution_id)"
    assert "均" * 5_000 == views.execution(row, "Asia/Shanghai", full=True)["result"]["text"]


@pytest.mark.requirement("A5.4")
def test_one_skipped_row_says_how_many_runs_it_stands_for() -> None:
    row = fire(exec_status=ExecStatus.SKIPPED, missed_count=4, missed_from=T0,
               missed_to=at(minutes=30))  # fmt: skip
    span_of_four = {
        "count": 4,
        "first": "2026-03-02T09:00:00+08:00",
        "last": "2026-03-02T09:30:00+08:00",
    }
    assert span_of_four == views.execution(row, "Asia/Shanghai")["missed"]
    many = views.execution(attrs.evolve(row, missed_count=1_001), "Asia/Shanghai")["missed"]
    assert (1_000, True) == (many["count"], many["more_than"])


def test_a_manual_run_and_a_repeated_one() -> None:
    answer = RunAnswer(
        execution=fire(trigger_kind=TriggerKind.MANUAL),
        task=once(id=1001),
        created=True,
        alive=True,
    )
    view = views.run(answer)
    assert "Execution 5001 of task 1001 is queued to run now." == view["message"]
    assert (5001, True, "pending") == (
        view["execution_id"],
        view["created"],
        view["exec_status_text"],
    )
    again = views.run(attrs.evolve(answer, created=False))
    assert "This run was asked for before: execution 5001 is pending." == again["message"]


@pytest.mark.requirement("A6.2r")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "Recorded: execution 5001 is success."),
        ({"late": True}, "Recorded (late): execution 5001 is success."),
        ({"duplicate": True}, "Known already: execution 5001 is success. Nothing changed."),
        (
            {"duplicate": True, "contradicts": True},
            "An earlier, different report stands: execution 5001 is success. Nothing changed.",
        ),
    ],
)
def test_what_became_of_a_report(more: dict[str, bool], said: str) -> None:
    view = views.report(ReportResult(execution=fire(exec_status=ExecStatus.SUCCESS), **more))
    assert said == view["message"]
    assert (True, 2) == (view["recorded"], view["exec_status"])


@pytest.mark.requirement("A6.2r")
def test_an_early_report_is_told_to_be_pending() -> None:
    view = views.report(ReportResult(execution=None, pending=True))
    assert (True, True) == (view["recorded"], view["pending"])
    assert "execution_id" not in view


@pytest.mark.requirement("X-S7")
def test_a_preview_shows_words_times_and_the_shortest_gap() -> None:
    fires: tuple[datetime, ...] = (at(minutes=5), at(minutes=10))
    preview = Preview(
        schedule_type=2, words="every 5 minutes", zone="Asia/Shanghai", now=T0, fires=fires,
        gap=timedelta(minutes=5), warnings=(),
    )  # fmt: skip
    view = views.preview(preview)
    assert ["in 5 min", "in 10 min"] == [entry["in"] for entry in view["next_fire_times"]]
    assert 300 == view["min_gap_seconds"]
    assert (
        "Would fire every 5 minutes; next 2026-03-02T09:05:00+08:00 (in 5 min)." == view["message"]
    )


def test_the_installation_shows_its_clock_limits_and_health_but_no_host() -> None:
    info = Info(now=T0, rules=Rules(), nodes=(), alive=False, oldest_due=at(seconds=-90))
    view = views.info(info, "1.2.3")
    assert NINE == view["server_time"]
    assert ("Asia/Shanghai", False, 90) == (
        view["default_timezone"],
        view["scheduler_alive"],
        view["oldest_overdue_seconds"],
    )
    assert {
        "min_interval_seconds": 60,
        "max_tasks_per_user": 1000,
        "compensate_window_seconds": 1800,
        "callback_timeout_seconds": 30,
        "report_timeout_seconds": 1800,
    } == view["limits"]
    assert "no live node fires tasks; the oldest due task waits 90 s" in view["message"]


def test_an_error_has_code_field_hint_example_and_whether_to_try_again() -> None:
    error = Conflict("taken", code="TASK_KEY_CONFLICT", field="task_key", received="k", hint="h",
                     example="k-2", candidates=("cron_expr",))  # fmt: skip
    assert {
        "ok": False,
        "message": "taken",
        "error": {
            "code": "TASK_KEY_CONFLICT",
            "message": "taken",
            "field": "task_key",
            "received": "k",
            "hint": "h",
            "example": "k-2",
            "candidates": ["cron_expr"],
            "retryable": False,
            "error_id": "e-1",
        },
    } == views.error(error, "e-1")


def test_an_error_about_a_lone_surrogate_can_be_sent() -> None:
    view = views.error(InvalidInput("bad \ud83d", field="task_content", received="\ud83d"))
    assert "bad ?" == view["message"]
    json.dumps(view, ensure_ascii=False).encode()
