"""What a memory store holds, and how it takes ``Writes``: dicts, unique keys, an undo log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

import attrs

from crontask_core.model import (
    Attempt,
    ExecStatus,
    Execution,
    InboxReport,
    NodeRow,
    ReadyFire,
    Task,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import NewFire, QueueView, Writes

__all__ = ["Applied", "MemoryStore"]

K = TypeVar("K")
V = TypeVar("V")
BUSY = frozenset({ExecStatus.PENDING, ExecStatus.CALLING, ExecStatus.RUNNING})
INSTALLATION = "3f0d6a52-8f6f-4f0e-9d5a-0d1d6c9f2b11"


@attrs.frozen
class Applied:
    """What a ``Writes`` came to: the new executions by fire id as stored (those under a taken key
    are missing), and the ids whose guard was lost."""

    new: dict[str, Execution]
    lost_tasks: frozenset[int]
    lost_executions: frozenset[int]


@attrs.define
class MemoryStore:
    """One database. Several ``MemoryRepo`` share it, one for each simulated node.

    The tables are plain dicts by primary key: read them in tests, change them through a repo.
    """

    installation: str = INSTALLATION
    tasks: dict[int, Task] = attrs.Factory(dict)
    executions: dict[int, Execution] = attrs.Factory(dict)
    attempts: dict[tuple[int, int], Attempt] = attrs.Factory(dict)
    ready: dict[int, ReadyFire] = attrs.Factory(dict)
    inbox: dict[tuple[int, str], InboxReport] = attrs.Factory(dict)
    nodes: dict[str, NodeRow] = attrs.Factory(dict)
    meta: dict[str, str] = attrs.Factory(dict)
    # Unique keys and indexes.
    _keys: dict[tuple[str, str, int], int] = attrs.field(init=False, factory=dict)
    _fires: dict[tuple[int, datetime, TriggerKind], int] = attrs.field(init=False, factory=dict)
    _fire_ids: dict[str, int] = attrs.field(init=False, factory=dict)
    _busy: dict[int, bool] = attrs.field(init=False, factory=dict)
    _of_task: dict[int, tuple[int, ...]] = attrs.field(init=False, factory=dict)
    _last_task: int = attrs.field(init=False, default=0)
    _last_execution: int = attrs.field(init=False, default=0)
    _undo: list[tuple[dict[Any, Any], Any, Any]] = attrs.field(init=False, factory=list)

    # -- one transaction -----------------------------------------------------------------------
    def begin(self) -> None:
        self._undo.clear()

    def rollback(self) -> None:
        """Put back what was changed since ``begin``. Ids are not given out again."""
        for table, key, old in reversed(self._undo):
            if old is None:
                table.pop(key, None)
            else:
                table[key] = old
        self._undo.clear()

    def put(self, table: dict[K, V], key: K, row: V | None) -> None:
        """Set or (None) remove a row of any table, so that ``rollback`` can undo it."""
        self._undo.append((table, key, table.get(key)))
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row

    # -- tasks ---------------------------------------------------------------------------------
    def insert_task(self, task: Task) -> Task:
        self._last_task += 1
        task = attrs.evolve(task, id=self._last_task)
        self.put_task(task)
        return task

    def put_task(self, task: Task) -> None:
        """Write a task. Raises ValueError where a database would refuse."""
        if task.status is not TaskStatus.ENABLED and task.next_fire_time is not None:
            raise ValueError("only an enabled task may have next_fire_time")
        key = (task.user_id, task.task_key, task.tombstone)
        if self._keys.get(key, task.id) != task.id:
            raise ValueError(f"the key {key} is taken")
        if (old := self.tasks.get(task.id)) is not None:
            self.put(self._keys, (old.user_id, old.task_key, old.tombstone), None)
        self.put(self._keys, key, task.id)
        self.put(self.tasks, task.id, task)

    def remove_task(self, task: Task) -> None:
        self.put(self._keys, (task.user_id, task.task_key, task.tombstone), None)
        self.put(self.tasks, task.id, None)

    def live_task(self, user_id: str, key: str) -> Task | None:
        found = self._keys.get((user_id, key, 0))
        return None if found is None else self.tasks[found]

    # -- executions ----------------------------------------------------------------------------
    def put_execution(self, execution: Execution) -> None:
        self.put(self.executions, execution.id, execution)
        self.put(self._busy, execution.id, execution.exec_status in BUSY or None)

    def insert_fire(self, new: NewFire) -> Execution | None:
        """Insert an execution, and its place in the queue; None under a taken unique key."""
        fire = new.execution
        key = (fire.task_id, fire.fire_time, fire.trigger_kind)
        if key in self._fires or fire.fire_id in self._fire_ids:
            return None
        self._last_execution += 1
        fire = attrs.evolve(fire, id=self._last_execution)
        self.put_execution(fire)
        self.put(self._fires, key, fire.id)
        self.put(self._fire_ids, fire.fire_id, fire.id)
        self.put(self._of_task, fire.task_id, (*self._of_task.get(fire.task_id, ()), fire.id))
        if new.ready is not None:
            self.put(self.ready, fire.id, attrs.evolve(new.ready, execution_id=fire.id))
        return fire

    def remove_execution(self, gone: Execution) -> None:
        """Remove an execution with its attempts, so that its keys are free."""
        self.put(self.executions, gone.id, None)
        self.put(self._busy, gone.id, None)
        self.put(self._fires, (gone.task_id, gone.fire_time, gone.trigger_kind), None)
        self.put(self._fire_ids, gone.fire_id, None)
        left = tuple(n for n in self._of_task.get(gone.task_id, ()) if n != gone.id)
        self.put(self._of_task, gone.task_id, left or None)
        for key in [key for key in self.attempts if key[0] == gone.id]:
            self.put(self.attempts, key, None)

    def fire(self, fire_id: str) -> Execution | None:
        found = self._fire_ids.get(fire_id)
        return None if found is None else self.executions[found]

    def is_taken(self, task_id: int, at: datetime, kind: TriggerKind) -> bool:
        return (task_id, at, kind) in self._fires

    def of_task(self, task_id: int) -> list[Execution]:
        """The executions of a task, by id."""
        return [self.executions[n] for n in self._of_task.get(task_id, ())]

    def busy(self) -> list[Execution]:
        """The executions in 0, 1 or 7."""
        return [self.executions[n] for n in self._busy]

    def queue(self, users: Iterable[str]) -> QueueView:
        """The smallest waiting key, and the greatest of each of these users who waits."""
        wanted = set(users)
        tails: dict[str, int] = {}
        for row in self.ready.values():
            if row.user_id in wanted:
                tails[row.user_id] = max(row.queue_key, tails.get(row.user_id, 0))
        return QueueView(min((r.queue_key for r in self.ready.values()), default=None), tails)

    # -- writes --------------------------------------------------------------------------------
    def apply(self, writes: Writes) -> Applied:
        """Write what was decided. A row is written only while its guard holds: ``revision`` and
        ``next_fire_time`` of a task, status, fence and node of an execution. Insertions under a
        taken unique key do nothing."""
        lost_tasks = {n for n, (read, _) in writes.tasks.items() if not self._is_task(read)}
        for number, (_, wanted) in writes.tasks.items():
            if number not in lost_tasks:
                self.put_task(wanted)
        inserted = [row for new in writes.new if (row := self.insert_fire(new)) is not None]
        lost = {n for n, (read, _) in writes.executions.items() if not self._is_execution(read)}
        for number, (_, execution) in writes.executions.items():
            if number not in lost:
                self.put_execution(execution)
        for attempt in writes.attempts:
            self.put(self.attempts, (attempt.execution_id, attempt.fence), attempt)
        for number in writes.unready - lost:
            self.put(self.ready, number, None)
        for place in writes.ready:
            if place.execution_id not in lost:
                self.put(self.ready, place.execution_id, place)
        for note in writes.inbox:
            self.put(self.inbox, (note.task_id, note.task_run_id), note)
        for done in writes.inbox_done:
            self.put(self.inbox, done, None)
        return Applied(
            {row.fire_id: row for row in inserted}, frozenset(lost_tasks), frozenset(lost)
        )

    def _is_task(self, read: Task) -> bool:
        stored = self.tasks.get(read.id)
        return stored is not None and (stored.revision, stored.next_fire_time) == (
            read.revision,
            read.next_fire_time,
        )

    def _is_execution(self, read: Execution) -> bool:
        stored = self.executions.get(read.id)
        return stored is not None and (
            stored.exec_status,
            stored.fence,
            stored.executor_node,
        ) == (read.exec_status, read.fence, read.executor_node)
