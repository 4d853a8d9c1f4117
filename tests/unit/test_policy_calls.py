"""What an answer means (judge), how long to wait (backoff), what becomes of the fire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from crontask_core.model import (
    AttemptClass,
    Delivery,
    ExecStatus,
    Execution,
    Rules,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import (
    Answer,
    AnswerKind,
    Begun,
    Verdict,
    after_call,
    backoff,
    callback_of,
    judge,
    plan_begin,
    report_deadline,
)
from crontask_core.testing import accept, broken, no_connection, respond, timeout
from tests.builders import RULES, T0, accepted, at, every, once, refused, retry, unreachable

ACCEPTED, RETRY, FINAL = AttemptClass.ACCEPTED, AttemptClass.RETRY, AttemptClass.FINAL


def verdict(answer: Answer, attempt: int = 1) -> Verdict:
    return judge(answer, attempt, T0, RULES)


# -- accepted --------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_accepted(status: int) -> None:
    found = verdict(accept("run_20260423_0900_abc123", status))
    assert (found.outcome, found.http_status) == (ACCEPTED, status)
    assert (found.task_run_id, found.warning) == ("run_20260423_0900_abc123", "")


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize(
    ("body", "run_id"),
    [
        ('{"task_run_id": "run-1"}', "run-1"),
        ('{"task_run_id": "  run-1 "}', "run-1"),
        ('{"task_run_id": 12345678901234567890}', "12345678901234567890"),
        ('{"task_run_id": "跑-1", "other": [1]}', "跑-1"),
        ('{"task_run_id": "' + "x" * 128 + '"}', "x" * 128),
    ],
)
def test_the_run_id_is_read_from_the_json_of_the_answer(body: str, run_id: str) -> None:
    found = verdict(respond(200, body))
    assert (found.task_run_id, found.warning) == (run_id, "")
    assert found.answer == body


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"OK",
        b"\xff\xfe",
        b"[]",
        b'"run-1"',
        b"null",
        b"{}",
        b'{"task_run_id": null}',
        b'{"task_run_id": true}',
        b'{"task_run_id": ""}',
        b'{"task_run_id": "  "}',
        b'{"task_run_id": 1.5}',
        b'{"task_run_id": ["a"]}',
        b'{"task_run_id": "a\\u0000b"}',
        b'{"task_run_id": "a\\nb"}',
        b'{"task_run_id": "' + b"x" * 129 + b'"}',
        b"[" * 100_000,
    ],
)
def test_a_2xx_without_a_usable_run_id_is_accepted_with_a_warning(body: bytes) -> None:
    found = verdict(respond(200, body))
    assert (found.outcome, found.task_run_id) == (ACCEPTED, "")
    assert found.warning.startswith("accepted, but ")


@pytest.mark.requirement("A6.1b")
def test_a_409_to_a_repeat_means_the_agent_has_it_already() -> None:
    assert verdict(respond(409, '{"task_run_id": "r"}'), 2).outcome is ACCEPTED
    assert verdict(respond(409, '{"task_run_id": "r"}'), 2).task_run_id == "r"
    assert verdict(respond(409), 1).outcome is FINAL


@pytest.mark.requirement("A6.4")
def test_eight_kilobytes_of_an_answer_are_kept() -> None:
    found = verdict(respond(200, b"a" * 65_536))
    assert len(found.answer) == 8_192
    assert "\x00" not in verdict(respond(200, b"a\x00b")).answer


# -- retried ---------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("status", [404, 408, 425, 429, 500, 502, 503, 504, 507, 599])
def test_answers_that_pass_are_retried(status: int) -> None:
    found = verdict(respond(status, "later"))
    assert (found.outcome, found.http_status) == (RETRY, status)
    assert found.reason == f"the agent answered HTTP {status}"
    assert (found.answer, found.delay) == ("later", None)


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize(
    ("answer", "arrived"), [(timeout(), True), (broken(), True), (no_connection(), False)]
)
def test_no_answer_is_retried(answer: Answer, arrived: bool) -> None:
    found = verdict(answer)
    assert (found.outcome, found.arrived, found.http_status) == (RETRY, arrived, 0)
    assert found.reason == answer.error


@pytest.mark.parametrize(
    ("status", "arrived"), [(404, False), (408, True), (425, False), (429, False), (503, True)]
)
def test_an_agent_that_is_busy_or_absent_has_not_acted(status: int, arrived: bool) -> None:
    assert verdict(respond(status)).arrived is arrived


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 120 ", 120),
        ("600", 600),
        ("601", 600),
        ("999999999999999999999", 600),
        ("Mon, 02 Mar 2026 01:02:00 GMT", 120),
        ("Mon, 02 Mar 2026 00:00:00 GMT", 0),
        ("Tue, 03 Mar 2026 01:00:00 GMT", 600),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("１２", None),
        ("Mon, 02 Mar 2026", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_up_to_ten_minutes(
    header: str, seconds: int | None, status: int
) -> None:
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert verdict(respond(status, retry_after=header)).delay == expected


# -- final -----------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("status", [400, 401, 403, 405, 409, 410, 413, 422, 451])
def test_other_4xx_are_final(status: int) -> None:
    found = verdict(respond(status, "no"))
    assert (found.outcome, found.arrived) == (FINAL, False)
    assert found.reason == f"the agent answered HTTP {status}"


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_final_and_the_reason_says_why(status: int) -> None:
    found = verdict(respond(status))
    assert found.outcome is FINAL
    assert found.reason == f"the agent answered HTTP {status}: redirects are not followed"


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("kind", [AnswerKind.TLS, AnswerKind.REFUSED])
def test_a_bad_certificate_or_refused_address_is_final(kind: AnswerKind) -> None:
    found = verdict(Answer(kind=kind, error="certificate has expired"))
    assert (found.outcome, found.reason) == (FINAL, "certificate has expired")
    assert found.arrived is False


# -- back-off --------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize(
    ("retry_number", "base_ms", "seconds"),
    [
        (1, 5_000, 5),
        (2, 5_000, 10),
        (3, 5_000, 20),
        (4, 5_000, 40),
        (5, 5_000, 60),
        (20, 5_000, 60),
        (1, 100, 0.1),
        (1, 3_600_000, 60),
        (10_000, 100, 60),
    ],
)
def test_the_wait_doubles_up_to_a_minute_give_or_take_a_tenth(
    retry_number: int, base_ms: int, seconds: float
) -> None:
    waits = [backoff(retry_number, base_ms, f"fire-{n}", RULES) for n in range(200)]
    low, high = timedelta(seconds=seconds * 0.9), timedelta(seconds=seconds * 1.1)
    assert all(low <= wait <= high for wait in waits)
    assert max(waits) - min(waits) > (high - low) / 2


def test_equal_fires_wait_equally_and_different_ones_differ() -> None:
    assert backoff(1, 5_000, "a", RULES) == backoff(1, 5_000, "a", RULES)
    assert backoff(1, 5_000, "a", RULES) != backoff(1, 5_000, "b", RULES)


# -- what becomes of the fire ----------------------------------------------------------------------


def calling(**changes: Any) -> Execution:
    defaults: dict[str, Any] = {
        "id": 11,
        "fire_id": "f",
        "task_id": 7,
        "task_key": "tick",
        "user_id": "ann",
        "fire_time": T0,
        "fire_number": 4,
        "exec_status": ExecStatus.CALLING,
        "fence": 1,
        "executor_node": "n1",
        "next_action_at": at(minutes=1),
        "created_at": T0,
        "updated_at": T0,
    }
    return Execution(**(defaults | changes))


@pytest.mark.requirement("A6.6")
def test_an_accepted_fire_runs_until_its_deadline() -> None:
    after = after_call(calling(), every(), accepted("r"), at(seconds=1), RULES)
    assert (after.exec_status, after.task_run_id) == (ExecStatus.RUNNING, "r")
    assert after.next_action_at == at(minutes=30, seconds=1)
    assert report_deadline(every(report_timeout_ms=1_500), T0, RULES) == at(seconds=1.5)


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize(
    ("retries", "max_retry", "status"),
    [(0, 3, 0), (2, 3, 0), (3, 3, 3), (0, 0, 3), (19, 20, 0), (20, 20, 3), (5, 3, 3)],
)
def test_a_fire_is_tried_again_as_often_as_its_task_says(
    retries: int, max_retry: int, status: int
) -> None:
    after = after_call(calling(retry_count=retries), every(max_retry=max_retry), retry(), T0, RULES)
    assert after.exec_status == status
    assert after.retry_count == retries + (status == 0)


@pytest.mark.requirement("A6.3")
def test_the_longer_of_back_off_and_the_agents_wish_counts() -> None:
    for wish, expected in ((1, backoff(1, 5_000, "f", RULES)), (300, timedelta(seconds=300))):
        told = attrs.evolve(retry(), delay=timedelta(seconds=wish))
        assert after_call(calling(), every(), told, T0, RULES).next_action_at == T0 + expected


def test_a_refusal_is_final_whatever_retries_are_left() -> None:
    after = after_call(calling(), every(max_retry=20), refused("x" * 400), T0, RULES)
    assert (after.exec_status, after.next_action_at) == (ExecStatus.FAILED, None)
    assert after.reason == "x" * 255
    assert after.error_msg == "x" * 400


def test_at_most_once_gives_up_only_where_the_request_may_have_arrived() -> None:
    task = every(delivery=Delivery.AT_MOST_ONCE)
    lost = after_call(calling(), task, retry("no answer within 30 s"), T0, RULES)
    assert lost.exec_status is ExecStatus.FAILED
    assert lost.reason.startswith("outcome unknown: no answer within 30 s")
    again = after_call(calling(), task, unreachable(), T0, RULES)
    assert again.exec_status is ExecStatus.PENDING


@pytest.mark.requirement("A6.1a")
def test_a_callback_carries_the_task_as_it_is_and_the_fires_own_time_and_number() -> None:
    task = attrs.evolve(once("k", fire_count=9, revision=3), id=7)
    sent = callback_of(calling(fence=9, retry_count=1), task, RULES)
    assert sent.url == "http://agent.test/v1/task/execute"
    assert (sent.task_id, sent.task_key, sent.task_name) == (7, "k", "name of k")
    assert (sent.user_id, sent.conversation_id) == ("ann", "conv-1")
    assert sent.task_content == "do what k says"
    assert (sent.fire_time, sent.fire_count, sent.attempt) == (T0, 4, 2)
    assert (sent.fire_id, sent.execution_id, sent.revision) == ("f", 11, 3)
    assert (sent.schedule_type, sent.timezone, sent.manual) == (1, "Asia/Shanghai", False)


def test_a_tasks_own_address_comes_before_the_installations() -> None:
    task = every(callback_url="http://mine.test/hook")
    assert callback_of(calling(), task, RULES).url == "http://mine.test/hook"
    assert callback_of(calling(), every(), Rules()).url == ""


# -- begin: what became of the task while the fire waited ------------------------------------------


def begin_one(row: Execution, status: TaskStatus, minutes: float = 1) -> Begun:
    task = attrs.evolve(every(next_fire_time=None), id=7, status=status)
    return plan_begin([(row, task)], "n2", at(minutes=minutes), RULES)


def waiting(**changes: Any) -> Execution:
    defaults: dict[str, Any] = {
        "exec_status": ExecStatus.PENDING,
        "fence": 0,
        "executor_node": "",
        "next_action_at": at(minutes=30),
    }
    return calling(**(defaults | changes))


@pytest.mark.requirement("A2.2")
@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (TaskStatus.ENABLED, TriggerKind.SCHEDULE, ""),
        (TaskStatus.DISABLED, TriggerKind.SCHEDULE, "paused before the call"),
        (TaskStatus.DISABLED, TriggerKind.MANUAL, ""),
        (TaskStatus.COMPLETED, TriggerKind.MANUAL, ""),
        (TaskStatus.DELETED, TriggerKind.SCHEDULE, "deleted before the call"),
        (TaskStatus.DELETED, TriggerKind.MANUAL, "deleted before the call"),
    ],
)
def test_a_fire_is_not_begun_when_its_task_was_paused_or_deleted(
    status: TaskStatus, kind: TriggerKind, reason: str
) -> None:
    begun = begin_one(waiting(trigger_kind=kind), status)
    [(after, _)] = begun.started or begun.ended
    expected = ExecStatus.CANCELLED if reason else ExecStatus.CALLING
    assert (after.exec_status, after.reason) == (expected, reason)
    assert bool(begun.started) is not bool(reason)
    assert begun.writes.unready == {11}


def test_a_begun_fire_has_the_next_fence_and_keeps_when_it_first_started() -> None:
    row = waiting(fence=1, executor_node="n1", start_time=T0)
    [(after, _)] = begin_one(row, TaskStatus.ENABLED).started
    assert (after.fence, after.executor_node, after.start_time) == (2, "n2", T0)
    assert after.next_action_at == at(minutes=2)


@pytest.mark.parametrize(("fence", "status"), [(0, ExecStatus.SKIPPED), (1, ExecStatus.FAILED)])
def test_a_fire_that_waited_too_long_is_not_begun(fence: int, status: ExecStatus) -> None:
    [(after, _)] = begin_one(waiting(fence=fence), TaskStatus.ENABLED, 30).ended
    assert after.exec_status is status


def test_a_queue_row_whose_fire_moved_on_is_only_removed() -> None:
    begun = begin_one(calling(), TaskStatus.ENABLED)
    assert (begun.started, begun.ended, begun.writes.executions) == ((), (), {})
    assert begun.writes.unready == {11}
