"""Tasks in SQL: get-or-create, look-ups, edits, runs on demand. Decisions come from ``policy``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.exc import IntegrityError

from crontask_adapters.sql import schema
from crontask_adapters.sql.apply import apply, merge
from crontask_adapters.sql.dialect import chunks, insert_rows
from crontask_adapters.sql.errors import is_duplicate
from crontask_adapters.sql.reads import last_executions
from crontask_adapters.sql.rows import EXECUTION, TASK
from crontask_adapters.sql.tx import Tx, lock_tasks, open_executions, queue_view, tasks_by_id
from crontask_core.errors import CrontaskError, NotFound, Unavailable
from crontask_core.model import Execution, Task, TaskStatus, TriggerKind, fire_id_of, host_of
from crontask_core.policy import (
    EditResult,
    NewFire,
    QueueView,
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
    TaskRef,
    TaskRow,
)

__all__ = [
    "add_tasks",
    "count_tasks",
    "edit_tasks",
    "fire_now",
    "get_tasks",
    "set_aside",
    "similar_tasks",
]

_T = schema.tasks
_E = schema.executions
_TICK = timedelta(microseconds=1)
_TRIES = 5
_NO_ID = tuple(column for column in TASK.columns if column.name != "id")
_ID = TASK.names.index("id")
_SAME = ("task_name", "schedule_type", "trigger_time", "cron_expr", "timezone", "interval_ms")
Key = tuple[str, str]


# -- create ------------------------------------------------------------------------------------
def add_tasks(tx: Tx, tasks: Sequence[Task]) -> list[Added]:
    """``Repo.add_tasks``: atomically get-or-create by (user, key), in the order given."""
    made: set[Key] = set()
    first: dict[Key, Task] = {}
    for task in tasks:
        first.setdefault((task.user_id, task.task_key), task)
    # Fifty instructions of 60 KB, escaped, stay below the smallest packet limit there is.
    for part in chunks(first.values(), 50):
        made |= _insert_tasks(tx, part)
    stored = _live(tx, first)
    added = []
    for task in tasks:
        key = (task.user_id, task.task_key)
        added.append(Added(task=stored[key], created=key in made))
        made.discard(key)
    return added


def _insert_tasks(tx: Tx, tasks: Sequence[Task]) -> set[Key]:
    """Insert those whose key is free; their keys. Others may insert the same at any moment."""
    missing = {(task.user_id, task.task_key): task for task in tasks}
    for _ in range(_TRIES):
        if not missing:
            return set()
        try:
            insert_rows(tx.conn, _NO_ID, [_without_id(task) for task in missing.values()])
            return set(missing)
        except IntegrityError as error:
            if not is_duplicate(error):
                raise
        # The insert waited for whoever had the key, so the row is committed by now.
        for key in _live(tx, missing):
            del missing[key]
    if not missing:
        return set()
    raise Unavailable("these keys are taken and freed again all the time", retryable=True)


def _without_id(task: Task) -> tuple[Any, ...]:
    values = TASK.values(task)
    return values[:_ID] + values[_ID + 1 :]


def _live(tx: Tx, keys: Iterable[Key]) -> dict[Key, Task]:
    """The tasks that hold these keys now."""
    by_user: dict[str, list[str]] = {}
    for user, key in keys:
        by_user.setdefault(user, []).append(key)
    found: dict[Key, Task] = {}
    for user, names in by_user.items():
        for part in chunks(names):
            query = TASK.query.where(
                _T.c.user_id == user, _T.c.task_key.in_(part), _T.c.tombstone == 0
            )
            for row in tx.rows(query):
                found[(row.user_id, row.task_key)] = TASK.load(row)
    return found


# -- look up -----------------------------------------------------------------------------------
def ids_of_keys(tx: Tx, user_id: str | None, keys: Iterable[str]) -> dict[str, int]:
    """The ids of a user's live tasks by key. Without a user: of the oldest live task with it."""
    found: dict[str, int] = {}
    for part in chunks(sorted(set(keys))):
        query = select(_T.c.task_key, func.min(_T.c.id)).where(
            _T.c.task_key.in_(part), _T.c.tombstone == 0
        )
        if user_id is not None:
            query = query.where(_T.c.user_id == user_id)
        found.update((row[0], int(row[1])) for row in tx.rows(query.group_by(_T.c.task_key)))
    return found


def get_tasks(tx: Tx, user_id: str | None, refs: Sequence[TaskRef]) -> list[TaskRow | None]:
    """``Repo.get_tasks``."""
    keys = ids_of_keys(tx, user_id, [ref.key for ref in refs if ref.id is None and ref.key])
    ids = [ref.id if ref.id is not None else keys.get(ref.key or "") for ref in refs]
    tasks = tasks_by_id(tx, [n for n in ids if n is not None])
    ours = {n: task for n, task in tasks.items() if user_id in (None, task.user_id)}
    last = last_executions(tx, ours)
    rows = {n: TaskRow(task=task, last=last.get(n)) for n, task in ours.items()}
    return [None if n is None else rows.get(n) for n in ids]


def count_tasks(tx: Tx, user_id: str) -> int:
    """``Repo.count_tasks``."""
    counted = (TaskStatus.ENABLED, TaskStatus.DISABLED)
    query = select(func.count()).where(_T.c.user_id == user_id, _T.c.status.in_(counted))
    return int(tx.conn.execute(query).scalar_one())


def similar_tasks(tx: Tx, task: Task) -> list[Task]:
    """``Repo.similar_tasks``."""
    query = TASK.query.where(
        _T.c.user_id == task.user_id, _T.c.status == TaskStatus.ENABLED, _T.c.id != task.id
    ).where(and_(*(_same(name, getattr(task, name)) for name in _SAME)))
    return [TASK.load(row) for row in tx.rows(query.order_by(_T.c.id).limit(3))]


def _same(name: str, value: object) -> ColumnElement[bool]:
    return _T.c[name].is_(None) if value is None else _T.c[name] == value


# -- edit --------------------------------------------------------------------------------------
class _Meant:
    """The tasks that a list of requests means, locked, and as this transaction leaves them."""

    def __init__(
        self, tx: Tx, requests: Sequence[EditRequest | ManualRequest], *, content: bool
    ) -> None:
        self._keys: dict[tuple[str | None, str], int] = {}
        for user in {r.user_id for r in requests if r.ref.id is None}:
            keys = [r.ref.key or "" for r in requests if r.user_id == user and r.ref.id is None]
            found = ids_of_keys(tx, user, keys)
            self._keys.update(((user, key), n) for key, n in found.items())
        ids = {r.ref.id if r.ref.id is not None else self._by_key(r) for r in requests}
        self.tasks = lock_tasks(tx, [n for n in ids if n is not None], content=content)

    def _by_key(self, request: EditRequest | ManualRequest) -> int | None:
        return self._keys.get((request.user_id, request.ref.key or ""))

    def find(self, request: EditRequest | ManualRequest) -> Task | CrontaskError:
        """The task, or NotFound. A key was looked up before the lock: it must still be live."""
        ref = request.ref
        number = ref.id if ref.id is not None else self._by_key(request)
        task = self.tasks.get(number) if number is not None else None
        if task is None or request.user_id not in (None, task.user_id):
            return _no_task(ref)
        return _no_task(ref) if ref.id is None and task.tombstone else task


def _no_task(ref: TaskRef) -> NotFound:
    what = f"id {ref.id}" if ref.id is not None else f"key {ref.key!r}"
    return NotFound(
        f"There is no task with {what}.",
        field="task_id" if ref.id is not None else "task_key",
        received=ref.id if ref.id is not None else ref.key,
        hint="list_cron_tasks shows your tasks.",
    )


def edit_tasks(tx: Tx, requests: Sequence[EditRequest]) -> list[EditResult | CrontaskError]:
    """``Repo.edit_tasks``: later requests of a list see what earlier ones did."""
    meant = _Meant(tx, requests, content=True)
    running = open_executions(tx, meant.tasks)
    total = Writes()
    answers: list[EditResult | CrontaskError] = []
    for request in requests:
        task = meant.find(request)
        if isinstance(task, CrontaskError):
            answers.append(task)
            continue
        try:
            rows = [e for e in running.get(task.id, []) if not e.is_final]
            writes, result = plan_edit(task, rows, request.edit, tx.now, tx.rules)
        except CrontaskError as error:
            answers.append(error)
            continue
        merge(total, writes)
        meant.tasks[task.id] = result.after
        running[task.id] = [writes.executions.get(e.id, (e, e))[1] for e in rows]
        answers.append(result)
    apply(tx, total)
    return answers


def set_aside(tx: Tx, task_ids: Sequence[int], reason: str) -> None:
    """``Repo.set_aside``. A row that cannot even be read is disabled as it is."""
    for task_id in sorted(set(task_ids)):
        try:
            tasks = lock_tasks(tx, [task_id])
        except (KeyError, ValueError, TypeError):
            query = update(_T).where(_T.c.id == task_id, _T.c.status == TaskStatus.ENABLED)
            tx.conn.execute(
                query.values(
                    status=TaskStatus.DISABLED,
                    status_reason=reason,
                    next_fire_time=None,
                    updated_at=tx.now,
                )
            )
        else:
            apply(tx, plan_set_aside(list(tasks.values()), reason, tx.now))


# -- run now -----------------------------------------------------------------------------------
def fire_now(tx: Tx, requests: Sequence[ManualRequest]) -> list[ManualFire | CrontaskError]:
    """``Repo.fire_now``: a manual fire under the task's row lock, into the queue."""
    meant = _Meant(tx, requests, content=True)
    known = _known_runs(tx, meant, requests)
    taken = _manual_times(tx, meant.tasks)
    queue = queue_view(tx, {task.user_id for task in meant.tasks.values()})
    total = Writes()
    answers: list[ManualFire | CrontaskError] = []
    for request in requests:
        task = meant.find(request)
        if isinstance(task, CrontaskError):
            answers.append(task)
            continue
        if (stored := known.get(_run_id(task, request))) is not None:
            answers.append(ManualFire(execution=stored, task=task, created=False))
            continue
        at = tx.now if task.id not in taken else max(tx.now, taken[task.id] + _TICK)
        try:
            after, execution = manual_fire(task, request.key, at, tx.rules)
        except CrontaskError as error:
            answers.append(error)
            continue
        queue = _enqueue(total, queue, task, execution, tx)
        total.set_task(task, after)
        meant.tasks[task.id], taken[task.id] = after, at
        if request.key:
            known[execution.fire_id] = execution
        answers.append(ManualFire(execution=execution, task=after, created=True))
    applied = apply(tx, total)
    return [_with_id(answer, applied.ids) for answer in answers]


def _run_id(task: Task, request: ManualRequest) -> str:
    return fire_id_of(task.uid, TriggerKind.MANUAL, request.key) if request.key else ""


def _enqueue(
    writes: Writes, queue: QueueView, task: Task, execution: Execution, tx: Tx
) -> QueueView:
    host = host_of(task.callback_url or tx.rules.default_callback_url)
    [place] = queue_ready(queue, [(task.user_id, host)], execution.fire_time)
    writes.new.append(NewFire(execution, place))
    head = place.queue_key if queue.head is None else queue.head
    return QueueView(head, {**queue.tails, task.user_id: place.queue_key})


def _known_runs(tx: Tx, meant: _Meant, requests: Sequence[ManualRequest]) -> dict[str, Execution]:
    """The runs that stand under the keys given, by fire id."""
    ids = set()
    for request in requests:
        task = meant.find(request)
        if request.key and isinstance(task, Task):
            ids.add(_run_id(task, request))
    found: dict[str, Execution] = {}
    for part in chunks(sorted(ids)):
        for row in tx.rows(EXECUTION.query.where(_E.c.fire_id.in_(part))):
            found[row.fire_id] = EXECUTION.load(row)
    return found


def _manual_times(tx: Tx, task_ids: Iterable[int]) -> dict[int, datetime]:
    """The newest manual fire time of each task, where it is not past."""
    found: dict[int, datetime] = {}
    for part in chunks(sorted(task_ids)):
        query = (
            select(_E.c.task_id, func.max(_E.c.fire_time))
            .where(
                _E.c.task_id.in_(part),
                _E.c.fire_time >= tx.now,
                _E.c.trigger_kind == TriggerKind.MANUAL,
            )
            .group_by(_E.c.task_id)
        )
        found.update((row[0], row[1]) for row in tx.rows(query))
    return found


def _with_id(
    answer: ManualFire | CrontaskError, ids: dict[str, int] | Any
) -> ManualFire | CrontaskError:
    if isinstance(answer, CrontaskError) or answer.execution.id:
        return answer
    execution = attrs.evolve(answer.execution, id=ids[answer.execution.fire_id])
    return attrs.evolve(answer, execution=execution)
