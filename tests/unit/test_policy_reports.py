"""What a report does to a fire in each state, and how long texts are cut."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from crontask_core.errors import Conflict, InvalidInput, NotFound
from crontask_core.model import ExecStatus, Execution, InboxReport, Report
from crontask_core.policy import (
    ReportResult,
    Writes,
    apply_inbox,
    check_report,
    inbox_report,
    plan_early_report,
    plan_report,
    run_not_found,
)
from tests.builders import RULES, T0, at, every, report

pytestmark = pytest.mark.requirement("A6.2r")

TASK = attrs.evolve(every(), id=7)


def execution(status: int, **changes: Any) -> Execution:
    defaults: dict[str, Any] = {
        "id": 11,
        "fire_id": "f",
        "task_id": 7,
        "task_key": "tick",
        "user_id": "ann",
        "fire_time": T0,
        "fence": 1,
        "exec_status": ExecStatus(status),
        "task_run_id": "r",
        "created_at": T0,
        "updated_at": T0,
    }
    made = Execution(**(defaults | changes))
    return made if made.is_final else attrs.evolve(made, next_action_at=at(minutes=30))


def tell(row: Execution, status: str, **more: Any) -> ReportResult:
    return plan_report(row, TASK, report(7, "r", status, **more), at(minutes=5), RULES)[1]


@pytest.mark.parametrize("status", [0, 1, 3, 4, 5, 7])
@pytest.mark.parametrize(("word", "expected"), [("success", 2), ("failed", 3)])
def test_a_final_report_ends_the_fire_in_every_state_that_was_called(
    status: int, word: str, expected: int
) -> None:
    found = tell(execution(status), word, result="res", error="err")
    assert found.execution is not None
    after = found.execution
    assert (after.exec_status, after.reported_at) == (expected, at(minutes=5))
    assert (after.ga_result, after.next_action_at) == ("res", None)
    assert after.error_msg == (None if word == "success" else "err")
    assert found.late is (status in (3, 4, 5))


@pytest.mark.requirement("X-F3")
@pytest.mark.parametrize(
    ("status", "late", "expected", "duplicate"),
    [
        (0, False, 7, False),
        (1, False, 1, False),
        (7, False, 7, False),
        (3, False, 7, False),
        (4, False, 7, False),
        (3, True, 3, True),
        (4, True, 4, True),
        (5, False, 5, True),
    ],
)
def test_a_sign_of_life_in_every_state_that_was_called(
    status: int, late: bool, expected: int, duplicate: bool
) -> None:
    found = tell(execution(status, late=late), "running", result="step 2")
    assert found.execution is not None
    assert (found.execution.exec_status, found.duplicate) == (expected, duplicate)
    if expected == 7:
        assert found.execution.next_action_at == at(minutes=35)
    if not duplicate:
        assert found.execution.ga_result == "step 2"


@pytest.mark.parametrize(("status", "fence"), [(6, 0), (6, 1), (0, 0), (5, 0), (3, 0)])
@pytest.mark.parametrize("word", ["success", "failed", "running"])
def test_a_fire_that_was_skipped_or_never_called_cannot_be_reported(
    status: int, fence: int, word: str
) -> None:
    with pytest.raises(Conflict) as caught:
        tell(execution(status, fence=fence), word)
    assert "its agent was never called" in caught.value.message


@pytest.mark.parametrize(
    ("status", "word", "contradicts"),
    [
        (2, "success", False),
        (2, "failed", True),
        (2, "running", False),
        (3, "failed", False),
        (3, "success", True),
    ],
)
def test_after_the_first_final_report_nothing_changes(
    status: int, word: str, contradicts: bool
) -> None:
    row = execution(status, reported_at=T0)
    writes, found = plan_report(row, TASK, report(7, "r", word), at(minutes=5), RULES)
    assert writes == Writes()
    assert (found.duplicate, found.contradicts, found.recorded) == (True, contradicts, True)
    assert found.execution is row


def test_the_agents_run_id_is_kept_where_none_was_known() -> None:
    assert tell(execution(1, task_run_id=""), "success").execution.task_run_id == "r"  # type: ignore[union-attr]
    other = plan_report(execution(7), TASK, report(7, "x"), T0, RULES)[1].execution
    assert other is not None
    assert other.task_run_id == "r"


def test_a_failure_without_words_says_so() -> None:
    found = tell(execution(7), "failed").execution
    assert found is not None
    assert found.error_msg == "the agent reported a failure"


# -- the words of a report -------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["result", "error"])
def test_sixty_kilobytes_are_kept_and_longer_texts_shortened_with_a_mark(field: str) -> None:
    fits = "数" * 20_480  # 61,440 bytes
    assert getattr(check_report(report(7, "r", **{field: fits})), field) == fits
    cut = getattr(check_report(report(7, "r", **{field: fits + "a"})), field)
    assert cut.endswith("\n… (shortened by crontask)")
    assert len(cut.encode()) <= 61_440
    assert set(cut.removesuffix("\n… (shortened by crontask)")) == {"数"}


def test_json_looking_text_stays_text() -> None:
    text = '{"a": [1, 2], "b": "\\u4e2d"}'
    assert check_report(report(7, "r", result=text)).result == text


def test_what_no_database_keeps_is_replaced() -> None:
    checked = check_report(report(7, "r", result="a\x00b", error="c\ud800d"))
    assert checked.result == "a�b"
    assert checked.error.encode() == b"c?d"


@pytest.mark.parametrize("status", ["", "done", "SUCCESS", "timeout"])
def test_an_unknown_status_is_refused_with_the_right_ones(status: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_report(report(7, "r", status))
    assert "success, failed, running" in caught.value.message
    assert caught.value.example == "success"


def test_a_report_must_name_its_run() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_report(report(7, ""))
    assert (caught.value.code, caught.value.field) == ("MISSING_ARGUMENT", "task_run_id")
    assert check_report(report(7, "", fire_id="f")).fire_id == "f"
    assert check_report(report(7, "", execution_id=3)).execution_id == 3


@pytest.mark.parametrize(
    ("told", "code", "field"),
    [
        (report(7, "r"), "RUN_NOT_FOUND", "task_run_id"),
        (report(7, "r", fire_id="f"), "EXECUTION_NOT_FOUND", "fire_id"),
        (report(7, "r", execution_id=3), "EXECUTION_NOT_FOUND", "execution_id"),
    ],
)
def test_what_is_not_found_is_named(told: Report, code: str, field: str) -> None:
    error = run_not_found(told)
    assert (error.code, error.field) == (code, field)


# -- early -----------------------------------------------------------------------------------------


def note(status: str = "success") -> InboxReport:
    told = report(7, "r", status, result="res", error="err")
    return inbox_report(told, at(minutes=30), T0)


def early(
    status: str, rows: list[Execution], known: InboxReport | None = None, run_id: str = "r"
) -> tuple[Writes, ReportResult]:
    return plan_early_report(report(7, run_id, status), TASK, rows, known, T0, RULES)


@pytest.mark.parametrize("status", [0, 1])
def test_an_early_report_is_kept_while_a_call_is_not_settled(status: int) -> None:
    writes, found = early("success", [execution(7), execution(status)])
    [kept] = writes.inbox
    assert (kept.task_id, kept.task_run_id, kept.status) == (7, "r", "success")
    assert (kept.received_at, kept.expires_at) == (T0, at(minutes=90))
    assert (found.pending, found.recorded, found.execution) == (True, True, None)


@pytest.mark.parametrize("rows", [[], [execution(7)], [execution(0, fence=0)]])
def test_an_early_report_of_nobodys_call_is_not_found(rows: list[Execution]) -> None:
    with pytest.raises(NotFound):
        early("success", rows)


def test_without_a_run_id_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(NotFound):
        early("success", [execution(1)], run_id="")


@pytest.mark.parametrize(
    ("known", "word", "kept", "contradicts"),
    [
        ("running", "success", True, False),
        ("running", "running", True, False),
        ("success", "success", False, False),
        ("success", "failed", False, True),
        ("success", "running", False, False),
        ("failed", "success", False, True),
    ],
)
def test_the_first_final_early_report_stands(
    known: str, word: str, kept: bool, contradicts: bool
) -> None:
    writes, found = early(word, [execution(1)], note(known))
    assert bool(writes.inbox) is kept
    assert (found.duplicate, found.contradicts, found.pending) == (not kept, contradicts, True)


@pytest.mark.parametrize(("word", "expected"), [("success", 2), ("failed", 3), ("running", 7)])
def test_an_early_report_is_applied_with_the_time_it_came(word: str, expected: int) -> None:
    after = apply_inbox(execution(7), note(word), at(minutes=1))
    assert (after.exec_status, after.late) == (expected, False)
    if expected != 7:
        assert (after.reported_at, after.end_time) == (T0, at(minutes=1))
        assert after.ga_result == "res"


def test_an_early_report_does_not_overrule_one_that_was_applied() -> None:
    row = execution(2, reported_at=T0)
    assert apply_inbox(row, note("failed"), at(minutes=1)) is row
