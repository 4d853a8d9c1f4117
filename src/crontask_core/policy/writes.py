"""What a decision wants written. A repository applies one ``Writes`` in one transaction.

Decisions never touch a store: they take loaded rows and the time, and add to a ``Writes``. That is
why the memory, SQLite and MySQL repositories cannot disagree about what should happen.
"""

from __future__ import annotations

from datetime import datetime

import attrs

from crontask_core.model import (
    EXEC_MOVES,
    TASK_MOVES,
    Attempt,
    ExecStatus,
    Execution,
    InboxReport,
    ReadyFire,
    Task,
    TaskStatus,
    evolve,
)

__all__ = ["NewFire", "Writes"]


@attrs.frozen
class NewFire:
    """An execution to insert; ``ready`` is its place in the queue when it has to wait.

    ``ready.execution_id`` is 0: the repository fills it in once the row has its id.
    """

    execution: Execution
    ready: ReadyFire | None = None


@attrs.define
class Writes:
    """Rows to write, with the rows as they were read, which are the guards.

    ``tasks`` and ``executions`` map an id to (as read, as wanted). A repository writes only the
    fields that differ, guarded by ``revision`` and ``next_fire_time`` of a task and by
    ``exec_status``, ``fence`` and ``executor_node`` of an execution. ``attempts`` replace what
    stands under their key. ``new`` under a taken unique key is a no-op (DESIGN 3.1 step 4).
    """

    tasks: dict[int, tuple[Task, Task]] = attrs.Factory(dict)
    new: list[NewFire] = attrs.Factory(list)
    executions: dict[int, tuple[Execution, Execution]] = attrs.Factory(dict)
    attempts: list[Attempt] = attrs.Factory(list)
    ready: list[ReadyFire] = attrs.Factory(list)
    unready: set[int] = attrs.Factory(set)
    inbox: list[InboxReport] = attrs.Factory(list)
    inbox_done: set[tuple[int, str]] = attrs.Factory(set)

    def task(self, task: Task) -> Task:
        """The task as this transaction will leave it."""
        return self.tasks[task.id][1] if task.id in self.tasks else task

    def set_task(self, before: Task, after: Task) -> None:
        """Want ``after``; ``before`` is what was read (or an earlier want of this transaction)."""
        read = self.tasks[before.id][0] if before.id in self.tasks else before
        if read.status is not after.status and (read.status, after.status) not in TASK_MOVES:
            raise ValueError(f"illegal task move {read.status!r} -> {after.status!r}")
        if after.status is not TaskStatus.ENABLED and after.next_fire_time is not None:
            raise ValueError("only an enabled task may have next_fire_time")
        self.tasks[before.id] = (read, after)
        if after == read:
            del self.tasks[before.id]

    def set_execution(self, before: Execution, after: Execution) -> None:
        """Want ``after``. The move must be in ``EXEC_MOVES``; final means no next action."""
        read = self.executions[before.id][0] if before.id in self.executions else before
        check_move(read.exec_status, after.exec_status)
        if after.is_final != (after.next_action_at is None):
            raise ValueError("next_action_at must be None exactly in final states")
        self.executions[before.id] = (read, after)
        if after.exec_status is not ExecStatus.PENDING:
            self.unready.add(before.id)


def check_move(old: ExecStatus, new: ExecStatus) -> None:
    """Raise ValueError unless an execution may go from ``old`` to ``new``."""
    if old is not new and (old, new) not in EXEC_MOVES:
        raise ValueError(f"illegal execution move {old!r} -> {new!r}")


def end(execution: Execution, status: ExecStatus, now: datetime, **changes: object) -> Execution:
    """The execution in a final state, its clocks stopped; ``reason`` is cut to its column."""
    if isinstance(reason := changes.get("reason"), str):
        changes["reason"] = reason[:255]
    return evolve(
        execution,
        exec_status=status,
        next_action_at=None,
        end_time=now,
        updated_at=now,
        **changes,
    )
