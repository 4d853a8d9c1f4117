"""The table of legal moves, written out, and what guards it."""

from __future__ import annotations

from datetime import datetime

import attrs
import pytest

from crontask_core.model import (
    EXEC_MOVES,
    FINAL,
    TASK_MOVES,
    ExecStatus,
    Execution,
    TaskStatus,
)
from crontask_core.policy import Writes
from tests.builders import T0, at, every

EXECUTION_MOVES = {
    0: {1, 2, 3, 5, 6, 7},
    1: {0, 2, 3, 7},
    2: set(),
    3: {2, 7},
    4: {2, 3, 7},
    5: {2, 3},
    6: set(),
    7: {2, 3, 4},
}


def execution(status: int, next_action_at: datetime | None = None) -> Execution:
    return Execution(
        id=1,
        fire_id="f",
        task_id=7,
        task_key="k",
        user_id="ann",
        fire_time=T0,
        exec_status=ExecStatus(status),
        next_action_at=next_action_at,
        created_at=T0,
        updated_at=T0,
    )


def in_state(status: int) -> Execution:
    return execution(status, None if ExecStatus(status) in FINAL else at(minutes=1))


@pytest.mark.parametrize("old", range(8))
@pytest.mark.parametrize("new", range(8))
def test_an_execution_moves_only_along_the_table(old: int, new: int) -> None:
    legal = new in EXECUTION_MOVES[old]
    assert ((ExecStatus(old), ExecStatus(new)) in EXEC_MOVES) is legal
    writes = Writes()
    if legal or old == new:
        writes.set_execution(in_state(old), in_state(new))
        assert writes.executions[1][1].exec_status == new
    else:
        with pytest.raises(ValueError, match="illegal execution move"):
            writes.set_execution(in_state(old), in_state(new))


@pytest.mark.requirement("A2.2")
def test_a_task_moves_only_along_the_table() -> None:
    assert {(int(old), int(new)) for old, new in TASK_MOVES} == {
        (1, 0),
        (0, 1),
        (1, 2),
        (1, 3),
        (0, 3),
        (2, 3),
    }


@pytest.mark.requirement("A2.2")
@pytest.mark.parametrize("old", list(TaskStatus))
@pytest.mark.parametrize("new", list(TaskStatus))
def test_every_other_move_of_a_task_is_refused(old: TaskStatus, new: TaskStatus) -> None:
    before = attrs.evolve(every(next_fire_time=None, status=old), id=7)
    writes = Writes()
    if old is new or (old, new) in TASK_MOVES:
        writes.set_task(before, attrs.evolve(before, status=new))
        assert (7 in writes.tasks) is (old is not new)
    else:
        with pytest.raises(ValueError, match="illegal task move"):
            writes.set_task(before, attrs.evolve(before, status=new))


def test_the_final_states_are_those_in_which_nothing_moves_by_itself() -> None:
    assert {int(status) for status in FINAL} == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("status", range(8))
def test_a_final_execution_has_no_next_action_and_every_other_has_one(status: int) -> None:
    wrong = execution(status, at(minutes=1) if ExecStatus(status) in FINAL else None)
    with pytest.raises(ValueError, match="next_action_at"):
        Writes().set_execution(wrong, wrong)


def test_only_an_enabled_task_may_have_a_next_fire() -> None:
    task = attrs.evolve(every(), id=7)
    with pytest.raises(ValueError, match="next_fire_time"):
        Writes().set_task(task, attrs.evolve(task, status=TaskStatus.DISABLED))


def test_a_second_change_of_a_row_keeps_the_first_read_as_its_guard() -> None:
    writes = Writes()
    read = attrs.evolve(every(), id=7)
    once_more = attrs.evolve(read, failure_streak=1)
    writes.set_task(read, once_more)
    assert writes.task(read) == once_more
    writes.set_task(once_more, attrs.evolve(once_more, failure_streak=2))
    assert writes.tasks[7] == (read, attrs.evolve(read, failure_streak=2))


def test_what_leaves_pending_leaves_the_queue() -> None:
    writes = Writes()
    writes.set_execution(in_state(0), in_state(1))
    assert writes.unready == {1}
    again = Writes()
    again.set_execution(in_state(1), in_state(0))
    assert again.unready == set()
