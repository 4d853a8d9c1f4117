"""The task half of ``MemoryRepo``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from crontask_core.errors import CrontaskError, NotFound
from crontask_core.model import Execution, Task, TaskStatus, TriggerKind, fire_id_of, host_of
from crontask_core.policy import (
    EditResult,
    NewFire,
    Writes,
    manual_fire,
    plan_edit,
    plan_set_aside,
    queue_ready,
)
from crontask_core.ports import (
    Added,
    EditRequest,
    ManualFire,
    ManualRequest,
    Page,
    TaskFilter,
    TaskRef,
    TaskRow,
)
from crontask_core.testing.base import MemoryBase, newest, transaction

__all__ = ["TaskRepo"]

_TICK = timedelta(microseconds=1)
_SAME = ("task_name", "schedule_type", "trigger_time", "cron_expr", "timezone", "interval_ms")


class TaskRepo(MemoryBase):
    """Tasks: ``crontask_core.ports.Repo`` says what each method does."""

    @transaction
    def add_tasks(self, tasks: Sequence[Task]) -> list[Added]:
        added = []
        for task in tasks:
            stored = self.store.live_task(task.user_id, task.task_key)
            row = stored or self.store.insert_task(task)
            added.append(Added(task=row, created=stored is None))
        return added

    @transaction
    def get_tasks(self, user_id: str | None, refs: Sequence[TaskRef]) -> list[TaskRow | None]:
        found = [self.find(user_id, ref) for ref in refs]
        return [self._row(task) if task is not None else None for task in found]

    @transaction
    def list_tasks(self, where: TaskFilter) -> Page[TaskRow]:
        rows = [task for task in self.store.tasks.values() if _matches(task, where)]
        rows.sort(key=lambda task: task.id, reverse=True)
        rest = [task for task in rows if not where.cursor or task.id < int(where.cursor)]
        page = rest[: where.limit]
        cursor = str(page[-1].id) if page and len(rest) > len(page) else ""
        return Page(tuple(self._row(task) for task in page), len(rows), cursor)

    @transaction
    def count_tasks(self, user_id: str) -> int:
        counted = (TaskStatus.ENABLED, TaskStatus.DISABLED)
        rows = self.store.tasks.values()
        return sum(t.user_id == user_id and t.status in counted for t in rows)

    @transaction
    def similar_tasks(self, task: Task) -> list[Task]:
        rows = (t for t in self.store.tasks.values() if t.id != task.id)
        return [t for t in rows if _is_similar(t, task)][:3]

    @transaction
    def edit_tasks(self, requests: Sequence[EditRequest]) -> list[EditResult | CrontaskError]:
        return [self._edit(request) for request in requests]

    def _edit(self, request: EditRequest) -> EditResult | CrontaskError:
        task = self.find(request.user_id, request.ref)
        if task is None:
            return _no_task(request.ref)
        running = [e for e in self.store.of_task(task.id) if not e.is_final]
        try:
            writes, result = plan_edit(task, running, request.edit, self._now(), self.rules)
        except CrontaskError as error:
            return error
        self.store.apply(writes)
        return result

    @transaction
    def fire_now(self, requests: Sequence[ManualRequest]) -> list[ManualFire | CrontaskError]:
        return [self._fire_now(request) for request in requests]

    def _fire_now(self, request: ManualRequest) -> ManualFire | CrontaskError:
        task = self.find(request.user_id, request.ref)
        if task is None:
            return _no_task(request.ref)
        if request.key:
            known = self.store.fire(fire_id_of(task.uid, TriggerKind.MANUAL, request.key))
            if known is not None:
                return ManualFire(execution=known, task=task, created=False)
        at = self._now()
        while self.store.is_taken(task.id, at, TriggerKind.MANUAL):
            at += _TICK
        try:
            after, execution = manual_fire(task, request.key, at, self.rules)
        except CrontaskError as error:
            return error
        host = host_of(task.callback_url or self.rules.default_callback_url)
        [place] = queue_ready(self.queue_of([execution]), [(task.user_id, host)], at)
        writes = Writes(new=[NewFire(execution, place)])
        writes.set_task(task, after)
        stored = self.store.apply(writes).new[execution.fire_id]
        return ManualFire(execution=stored, task=after, created=True)

    @transaction
    def set_aside(self, task_ids: Sequence[int], reason: str) -> None:
        rows = [self.store.tasks[n] for n in task_ids if n in self.store.tasks]
        self.store.apply(plan_set_aside(rows, reason, self._now()))

    def _row(self, task: Task) -> TaskRow:
        rows: list[Execution] = newest(self.store.of_task(task.id))
        return TaskRow(task=task, last=rows[0] if rows else None)


def _no_task(ref: TaskRef) -> NotFound:
    what = f"id {ref.id}" if ref.id is not None else f"key {ref.key!r}"
    return NotFound(
        f"There is no task with {what}.",
        field="task_id" if ref.id is not None else "task_key",
        received=ref.id if ref.id is not None else ref.key,
        hint="list_cron_tasks shows your tasks.",
    )


def _is_similar(stored: Task, task: Task) -> bool:
    return (
        stored.status is TaskStatus.ENABLED
        and stored.user_id == task.user_id
        and all(getattr(stored, name) == getattr(task, name) for name in _SAME)
    )


def _matches(task: Task, where: TaskFilter) -> bool:
    at = task.next_fire_time
    texts = (task.task_name, task.task_key, task.task_desc)
    return (
        where.user_id in (None, task.user_id)
        and (task.status in where.statuses or not (where.statuses or task.is_deleted))
        and where.conversation_id in ("", task.conversation_id)
        and where.schedule_type in (None, task.schedule_type)
        and (not where.text or _lower(where.text) in "\n".join(map(_lower, texts)))
        and (where.next_from is None or (at is not None and at >= where.next_from))
        and (where.next_to is None or (at is not None and at <= where.next_to))
    )


def _lower(text: str) -> str:
    return "".join(_ascii_lower(text))


def _ascii_lower(text: str) -> Iterable[str]:
    return (c.lower() if c.isascii() else c for c in text)
