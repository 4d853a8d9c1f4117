"""plan_edit, finish, manual fires and cancelling, with the rows they write."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from crontask_core.errors import Conflict
from crontask_core.model import (
    ExecStatus,
    Execution,
    ScheduleType,
    Task,
    TaskStatus,
    TriggerKind,
    fire_id_of,
)
from crontask_core.policy import (
    Delete,
    Edit,
    EditResult,
    Pause,
    Resume,
    Update,
    Writes,
    cancel_execution,
    finish,
    manual_fire,
    plan_edit,
    plan_set_aside,
)
from tests.builders import RULES, T0, at, every, once

ENABLED, DISABLED = TaskStatus.ENABLED, TaskStatus.DISABLED
COMPLETED, DELETED = TaskStatus.COMPLETED, TaskStatus.DELETED


def stored(task: Task, status: TaskStatus = ENABLED, **changes: Any) -> Task:
    if status is not ENABLED:
        changes["next_fire_time"] = None
    return attrs.evolve(task, id=7, status=status, **changes)


def execution(status: ExecStatus, **changes: Any) -> Execution:
    defaults: dict[str, Any] = {
        "id": 11,
        "fire_id": "f",
        "task_id": 7,
        "task_key": "tick",
        "user_id": "ann",
        "fire_time": T0,
        "exec_status": status,
        "created_at": T0,
        "updated_at": T0,
    }
    made = Execution(**(defaults | changes))
    return made if made.is_final else attrs.evolve(made, next_action_at=at(minutes=30))


def edit(task: Task, change: Edit, minutes: float = 1, *rows: Execution) -> EditResult:
    return plan_edit(task, rows, change, at(minutes=minutes), RULES)[1]


def update(**changes: object) -> Update:
    return Update(tuple(changes.items()))


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.requirement("A2.2")
@pytest.mark.parametrize(
    ("status", "change", "expected"),
    [
        (ENABLED, Pause(), DISABLED),
        (ENABLED, Resume(), ENABLED),
        (ENABLED, Delete(), DELETED),
        (DISABLED, Pause(), DISABLED),
        (DISABLED, Resume(), ENABLED),
        (DISABLED, Delete(), DELETED),
        (COMPLETED, Pause(), None),
        (COMPLETED, Resume(), None),
        (COMPLETED, Delete(), DELETED),
        (COMPLETED, update(task_name="x"), None),
        (DELETED, Pause(), None),
        (DELETED, Resume(), None),
        (DELETED, Delete(), DELETED),
        (DELETED, update(task_name="x"), None),
    ],
)
def test_every_state_takes_every_edit_as_written_here(
    status: TaskStatus, change: Edit, expected: TaskStatus | None
) -> None:
    task = stored(every(), status)
    if expected is None:
        with pytest.raises(Conflict) as caught:
            edit(task, change)
        assert caught.value.code == "INVALID_STATE"
        assert caught.value.hint
        return
    found = edit(task, change)
    assert found.after.status is expected
    assert found.already is (status is expected)
    assert found.after.revision == (1 if status is expected else 2)


@pytest.mark.requirement("A2.2")
def test_doing_nothing_writes_nothing() -> None:
    task = stored(every(), DISABLED)
    writes, found = plan_edit(task, [], Pause(), at(minutes=99), RULES)
    assert writes == Writes()
    assert found == EditResult(before=task, after=task, already=True)


@pytest.mark.requirement("A3.1b")
def test_deleting_leaves_the_marks_that_free_the_key() -> None:
    after = edit(stored(every()), Delete(), 3).after
    assert (after.is_deleted, after.deleted_at, after.tombstone) == (True, at(minutes=3), 7)
    assert after.next_fire_time is None


@pytest.mark.requirement("X-F5")
@pytest.mark.parametrize(("reason", "streak"), [("paused after 5 failures in a row", 0), ("", 5)])
def test_resuming_forgives_the_failures_that_paused_a_task_by_itself(
    reason: str, streak: int
) -> None:
    task = stored(every(), DISABLED, status_reason=reason, failure_streak=5)
    after = edit(task, Resume()).after
    assert (after.failure_streak, after.status_reason) == (streak, "")


@pytest.mark.parametrize(
    ("task", "field"),
    [
        (once(), "trigger_time"),
        (every(end_at=at(minutes=30)), "max_fires"),
        (every(max_fires=2, scheduled_fires=2), "max_fires"),
    ],
)
def test_a_task_without_a_fire_to_come_is_not_resumed(task: Task, field: str) -> None:
    with pytest.raises(Conflict) as caught:
        edit(stored(task, DISABLED), Resume(), 60)
    assert caught.value.field == field


# -- executions under way --------------------------------------------------------------------------


def test_pausing_cancels_what_waits_and_counts_what_goes_on() -> None:
    rows = [
        execution(ExecStatus.PENDING, id=1),
        execution(ExecStatus.CALLING, id=2),
        execution(ExecStatus.RUNNING, id=3),
        execution(ExecStatus.PENDING, id=4, trigger_kind=TriggerKind.MANUAL),
    ]
    task = stored(every())
    writes, found = plan_edit(task, rows, Pause("tired"), at(minutes=1), RULES)
    assert (found.running, found.cancelled) == (2, 1)
    assert list(writes.executions) == [1]
    assert writes.executions[1][1].reason == "task paused"
    assert writes.unready == {1}
    writes, found = plan_edit(task, rows, Delete(), at(minutes=1), RULES)
    assert (found.running, found.cancelled) == (2, 2)
    assert sorted(writes.executions) == [1, 4]


@pytest.mark.requirement("A5.4")
def test_what_was_due_is_written_as_cancelled_without_a_number() -> None:
    task = stored(once())
    writes, found = plan_edit(task, [], Pause(), at(minutes=12), RULES)
    [new] = writes.new
    assert new.ready is None
    assert new.execution.exec_status is ExecStatus.CANCELLED
    assert (new.execution.fire_number, new.execution.last_fire) == (0, False)
    assert new.execution.reason == "paused before claim"
    assert (found.after.fire_count, found.after.scheduled_fires) == (0, 0)


# -- updates ---------------------------------------------------------------------------------------


@pytest.mark.requirement("X-T1")
def test_equal_values_are_no_change() -> None:
    task = stored(every())
    found = edit(task, update(task_name="name of tick", interval_ms=600_000, anchor_at=at(days=1)))
    assert (found.already, found.after) == (True, task)


@pytest.mark.requirement("X-T1")
def test_other_fields_leave_the_schedule_alone_even_when_something_is_due() -> None:
    task = stored(every())
    writes, found = plan_edit(task, [], update(task_name="x", max_retry=9), at(hours=5), RULES)
    assert found.changed == ("task_name", "max_retry")
    assert found.after.next_fire_time == at(minutes=10)
    assert writes.new == []


@pytest.mark.requirement("X-T1", "X-S5")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"interval_ms": 60_000, "anchor_at": at(minutes=5.5)}, at(minutes=6.5)),
        ({"end_at": at(days=1)}, at(minutes=10)),
        ({"max_fires": 5}, at(minutes=10)),
        (
            {
                "schedule_type": ScheduleType.ONCE,
                "trigger_time": at(minutes=5),
                "interval_ms": None,
                "anchor_at": None,
            },
            at(minutes=5),
        ),
    ],
)
def test_a_new_schedule_is_computed_from_now(changes: dict[str, object], expected: object) -> None:
    found = edit(stored(every()), update(**changes), 5.5)
    assert found.after.next_fire_time == expected
    assert found.after.status is ENABLED


@pytest.mark.requirement("X-S6")
@pytest.mark.parametrize("changes", [{"end_at": at(minutes=9)}, {"max_fires": 2}])
def test_an_end_before_the_next_fire_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(Conflict, match="never fire again"):
        edit(stored(every(scheduled_fires=2)), update(**changes))


@pytest.mark.requirement("X-T1")
@pytest.mark.parametrize(("revision", "fits"), [(None, True), (1, True), (0, False), (2, False)])
def test_a_revision_must_be_the_stored_one(revision: int | None, fits: bool) -> None:
    change = Update((("task_name", "x"),), revision)
    if fits:
        assert edit(stored(every()), change).after.task_name == "x"
    else:
        with pytest.raises(Conflict) as caught:
            edit(stored(every()), change)
        assert caught.value.code == "REVISION_CONFLICT"
        assert caught.value.example == "1"


# -- the end of an execution -----------------------------------------------------------------------


def finished(task: Task, before: Execution, status: ExecStatus, minutes: float = 1) -> Task:
    writes = Writes()
    after = attrs.evolve(before, exec_status=status, next_action_at=None)
    finish(writes, task, before, after, at(minutes=minutes), RULES)
    return writes.task(task)


@pytest.mark.requirement("X-F5")
@pytest.mark.parametrize(
    ("before", "late", "after", "streak"),
    [
        (ExecStatus.RUNNING, False, ExecStatus.SUCCESS, 0),
        (ExecStatus.RUNNING, False, ExecStatus.FAILED, 3),
        (ExecStatus.RUNNING, False, ExecStatus.TIMED_OUT, 3),
        (ExecStatus.CALLING, False, ExecStatus.FAILED, 3),
        (ExecStatus.TIMED_OUT, False, ExecStatus.FAILED, 2),
        (ExecStatus.RUNNING, True, ExecStatus.FAILED, 2),
        (ExecStatus.RUNNING, True, ExecStatus.TIMED_OUT, 2),
        (ExecStatus.FAILED, False, ExecStatus.SUCCESS, 0),
        (ExecStatus.PENDING, False, ExecStatus.CANCELLED, 2),
        (ExecStatus.PENDING, False, ExecStatus.SKIPPED, 2),
    ],
)
def test_each_fire_counts_once_in_the_streak(
    before: ExecStatus, late: bool, after: ExecStatus, streak: int
) -> None:
    task = stored(every(failure_streak=2))
    assert finished(task, execution(before, late=late), after).failure_streak == streak


@pytest.mark.requirement("X-S6")
@pytest.mark.parametrize("status", [2, 3, 4, 5, 6])
def test_a_task_is_completed_when_its_last_fire_is_over_whatever_came_of_it(status: int) -> None:
    task = stored(every(next_fire_time=None))
    last = execution(ExecStatus.PENDING, last_fire=True)
    assert finished(task, last, ExecStatus(status)).status is COMPLETED
    earlier = execution(ExecStatus.PENDING)
    assert finished(task, earlier, ExecStatus(status)).status is ENABLED


def test_a_task_that_got_new_fires_after_its_last_one_goes_on() -> None:
    task = stored(every())
    assert finished(task, execution(ExecStatus.RUNNING, last_fire=True), ExecStatus.SUCCESS) == task


def test_a_paused_or_deleted_task_is_not_completed() -> None:
    for status in (DISABLED, DELETED):
        last = execution(ExecStatus.RUNNING, last_fire=True)
        assert finished(stored(every(), status), last, ExecStatus.SUCCESS).status is status


@pytest.mark.requirement("X-F5")
@pytest.mark.parametrize(("limit", "status"), [(0, ENABLED), (4, ENABLED), (3, DISABLED)])
def test_a_task_pauses_itself_at_its_limit_of_failures(limit: int, status: TaskStatus) -> None:
    task = stored(every(failure_streak=2, pause_after_failures=limit))
    after = finished(task, execution(ExecStatus.RUNNING), ExecStatus.FAILED)
    assert after.status is status
    if status is DISABLED:
        assert after.status_reason == "paused after 3 failures in a row"
        assert after.next_fire_time is None


@pytest.mark.requirement("X-F5")
def test_a_failure_and_a_success_in_one_transaction_end_without_a_streak() -> None:
    """Even at the very microsecond at which the task was last written."""
    task = stored(every(updated_at=at(minutes=1)))
    writes = Writes()
    for before, status in ((1, ExecStatus.FAILED), (2, ExecStatus.SUCCESS)):
        row = execution(ExecStatus.RUNNING, id=before)
        after = attrs.evolve(row, exec_status=status, next_action_at=None)
        finish(writes, task, row, after, at(minutes=1), RULES)
    assert writes.task(task) == task
    assert writes.tasks == {}


# -- by hand ---------------------------------------------------------------------------------------


def test_a_run_on_demand_is_due_at_once_and_counts() -> None:
    after, fire = manual_fire(stored(every(fire_count=3)), None, at(minutes=2), RULES)
    assert (fire.trigger_kind, fire.fire_time, fire.fire_number) == (
        TriggerKind.MANUAL,
        at(minutes=2),
        4,
    )
    assert fire.next_action_at == at(minutes=32)
    assert (after.fire_count, after.scheduled_fires) == (4, 0)
    assert after.next_fire_time == at(minutes=10)


def test_the_fire_id_of_a_run_with_a_key_depends_on_the_key_alone() -> None:
    task = stored(every())
    ids = [manual_fire(task, "k", at(minutes=n), RULES)[1].fire_id for n in (1, 2)]
    assert ids == [fire_id_of(task.uid, TriggerKind.MANUAL, "k")] * 2
    assert manual_fire(task, "other", at(minutes=1), RULES)[1].fire_id != ids[0]


def test_fire_ids_differ_by_task_time_and_kind() -> None:
    a, b = every("a").uid, every("b").uid
    schedule, manual = TriggerKind.SCHEDULE, TriggerKind.MANUAL
    ids = {
        fire_id_of(uid, kind, mark)
        for uid in (a, b)
        for kind in (schedule, manual)
        for mark in (T0, at(seconds=0.000001), "k")
    }
    assert len(ids) == 12


@pytest.mark.parametrize("status", [1, 2, 3, 4, 6, 7])
def test_only_a_pending_fire_can_be_cancelled(status: int) -> None:
    with pytest.raises(Conflict):
        cancel_execution(Writes(), stored(every()), execution(ExecStatus(status)), "", T0, RULES)


def test_cancelling_twice_changes_nothing() -> None:
    writes = Writes()
    gone = execution(ExecStatus.CANCELLED)
    assert cancel_execution(writes, stored(every()), gone, "", T0, RULES) is gone
    assert writes == Writes()


def test_setting_aside_disables_what_is_enabled_without_looking_at_its_schedule() -> None:
    broken = stored(every(interval_ms=None))
    writes = plan_set_aside(
        [broken, attrs.evolve(stored(every(), COMPLETED), id=8)], "r" * 300, at(minutes=1)
    )
    [(_, after)] = writes.tasks.values()
    assert (after.id, after.status, after.next_fire_time) == (7, DISABLED, None)
    assert after.status_reason == "r" * 255
