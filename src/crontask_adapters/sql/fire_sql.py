"""Firing in SQL: what is due, claim, begin, settle, sweep. Decisions come from ``policy``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import attrs
from sqlalchemy import Select, delete, func, select

from crontask_adapters.sql import schema
from crontask_adapters.sql.apply import Applied, apply
from crontask_adapters.sql.dialect import among, chunks, delete_rows, indexed
from crontask_adapters.sql.rows import EXECUTION, TASK, TASK_LIGHT
from crontask_adapters.sql.tx import (
    Tx,
    contents,
    inbox_of,
    lock_executions,
    lock_tasks,
    queue_view,
    tasks_by_id,
)
from crontask_adapters.sql.zone_sql import data_of
from crontask_core.model import ExecStatus, Execution, OverlapPolicy, Task
from crontask_core.policy import (
    ClaimPlan,
    Outcome,
    QueueView,
    Settled,
    plan_begin,
    plan_claim,
    plan_settle,
    plan_sweep,
)
from crontask_core.policy.versions import ScheduleData
from crontask_core.ports import Begin, Claimed, Horizon, Moved, Swept

__all__ = ["begin", "claim", "due", "horizon", "mine", "settle", "sweep"]

_T = schema.tasks
_E = schema.executions
_R = schema.ready
_I = schema.inbox
_DUE_INDEX = "ix_cron_task_next_fire"
_ACTION_INDEX = "ix_execution_next_action"
_PAIRS = indexed(
    select(*EXECUTION.columns, *TASK.columns).join_from(_E, _T, _E.c.task_id == _T.c.id), _E
)


# -- what is to be done ------------------------------------------------------------------------
def horizon(tx: Tx) -> Horizon:
    """``Repo.horizon``: three index probes, no lock."""
    fire = _T.c.next_fire_time
    action = _E.c.next_action_at
    query = select(
        select(fire)
        .where(fire.is_not(None))
        .order_by(fire)
        .limit(1)
        .scalar_subquery()
        .label("due"),
        select(action)
        .where(action.is_not(None))
        .order_by(action)
        .limit(1)
        .scalar_subquery()
        .label("action"),
        select(func.min(_R.c.queue_key)).scalar_subquery().label("head"),
    )
    row = tx.conn.execute(query).one()
    return Horizon(
        now=tx.now, next_due=row.due, next_action=row.action, waiting=row.head is not None
    )


def due(tx: Tx, limit: int) -> list[tuple[int, datetime]]:
    """``Repo.due``."""
    query = (
        select(_T.c.id, _T.c.next_fire_time)
        .where(_T.c.next_fire_time <= tx.now)
        .order_by(_T.c.next_fire_time, _T.c.id)
        .limit(limit)
    )
    return [(row.id, row.next_fire_time) for row in tx.rows(query)]


def mine(tx: Tx, node: str) -> list[tuple[Execution, Task]]:
    """``Repo.mine``."""
    query = EXECUTION.query.where(
        _E.c.executor_node == node,
        _E.c.next_action_at.is_not(None),
        _E.c.exec_status == ExecStatus.CALLING,
    ).order_by(_E.c.id)
    rows = [EXECUTION.load(row) for row in tx.rows(query)]
    tasks = tasks_by_id(tx, [row.task_id for row in rows])
    return [(row, tasks[row.task_id]) for row in rows if row.task_id in tasks]


# -- claim -------------------------------------------------------------------------------------
def claim(
    tx: Tx,
    node: str,
    limit: int,
    slots: int,
    capped_hosts: Collection[str] = (),
    only: Collection[int] | None = None,
    data: ScheduleData | None = None,
) -> Claimed:
    """``Repo.claim`` (DESIGN 3.1): one handful of statements for the whole batch."""
    tasks = _lock_due(tx, limit, only)
    if not tasks:
        return Claimed(now=tx.now)
    seen = data_of(tx).seen if data is not None else None
    if data is not None and seen is not None and data.older_than(seen):
        return Claimed(now=tx.now, newer=seen)
    queue = queue_view(tx, {task.user_id for task in tasks})
    busy = _busy(tx, [t.id for t in tasks if t.overlap_policy is OverlapPolicy.SKIP])
    plan = plan_claim(tasks, busy, queue, slots, node, tx.now, tx.rules, capped_hosts)
    applied = apply(tx, plan.writes)
    fresh = [e for fire in plan.writes.new if (e := applied.stored(fire.execution)) is not None]
    return Claimed(
        now=tx.now,
        tasks=len(tasks),
        started=_with_content(tx, plan, applied),
        queued=sum(e.exec_status is ExecStatus.PENDING for e in fresh),
        skipped=tuple(e for e in fresh if e.exec_status is ExecStatus.SKIPPED),
        broken=plan.broken,
        more=len(tasks) == limit,
    )


def _lock_due(tx: Tx, limit: int, only: Collection[int] | None) -> list[Task]:
    """The due tasks in the order of their index, locked, without their big text."""
    query = (
        TASK_LIGHT.query.where(_T.c.next_fire_time <= tx.now)
        .order_by(_T.c.next_fire_time, _T.c.id)
        .limit(limit)
    )
    if only is None:
        query = indexed(query, _T, _DUE_INDEX)
    else:
        query = query.where(among(_T.c.id, sorted(only)))
    return [TASK_LIGHT.load(row) for row in tx.rows(tx.lock(query, skip=True))]


def _busy(tx: Tx, task_ids: Sequence[int]) -> set[int]:
    """Those of the tasks that have an execution in 0, 1 or 7."""
    found: set[int] = set()
    for part in chunks(task_ids):
        query = select(_E.c.task_id).where(
            among(_E.c.task_id, part), _E.c.next_action_at.is_not(None)
        )
        query = indexed(query.distinct(), _E, "ix_execution_task_action")
        found.update(row.task_id for row in tx.rows(query))
    return found


def _with_content(tx: Tx, plan: ClaimPlan, applied: Applied) -> tuple[tuple[Execution, Task], ...]:
    """What this node is to send now: the rows as stored, with the texts that go out."""
    stored = [(applied.stored(execution), task) for execution, task in plan.started]
    texts = contents(tx, [task.id for execution, task in stored if execution is not None])
    return tuple(
        (execution, attrs.evolve(task, task_content=texts[task.id]))
        for execution, task in stored
        if execution is not None
    )


# -- begin -------------------------------------------------------------------------------------
def begin(tx: Tx, node: str, slots: int, capped_hosts: Collection[str] = ()) -> Begin:
    """``Repo.begin`` (DESIGN 3.2). Rows that another transaction holds are left for the next."""
    if slots <= 0:
        return Begin(now=tx.now)
    # Exactly the order of the index: to sort, the server would read and lock the whole queue.
    query = select(_R.c.execution_id).order_by(
        _R.c.queue_key, _R.c.callback_host, _R.c.execution_id
    )
    if capped_hosts:
        query = query.where(_R.c.callback_host.not_in(sorted(capped_hosts)))
    in_order = indexed(query, _R, "ix_ready_queue")
    ids = _lock_places(tx, in_order, slots) if not capped_hosts else _pass_over(tx, in_order, slots)
    rows = _lock_pairs(tx, ids)
    if len(rows) < len(ids):
        _forget_gone(tx, ids)
    begun = plan_begin(rows, node, tx.now, tx.rules)
    apply(tx, begun.writes)
    more = len(ids) == slots and bool(tx.rows(query.limit(1)))
    ended = tuple(execution for execution, _ in begun.ended)
    return Begin(now=tx.now, started=begun.started, ended=ended, more=more)


def _lock_places(tx: Tx, query: Select[int], slots: int) -> list[int]:
    """The first places of the queue that are free, locked."""
    return [row.execution_id for row in tx.rows(tx.lock(query.limit(slots), skip=True))]


def _pass_over(tx: Tx, query: Select[int], slots: int) -> list[int]:
    """``_lock_places`` under a condition. MariaDB keeps locked what a condition throws out, which
    is all that waits for a dead host: so the places are looked for first, and locked by number."""
    ids: list[int] = []
    for part in chunks([row.execution_id for row in tx.rows(query.limit(slots * 4))], slots):
        places = select(_R.c.execution_id).where(among(_R.c.execution_id, part))
        free = {row[0] for row in tx.rows(tx.lock(indexed(places, _R), skip=True))}
        ids += [number for number in part if number in free][: slots - len(ids)]
        if len(ids) == slots:
            break
    return ids


def _lock_pairs(tx: Tx, ids: Sequence[int]) -> list[tuple[Execution, Task]]:
    """The executions with their tasks, both locked, in the order given. One that is held by
    another is left out: nothing may be waited for while rows are locked out of order."""
    found: dict[int, tuple[Execution, Task]] = {}
    width = len(EXECUTION.columns)
    for part in chunks(ids):
        query = _PAIRS.where(among(_E.c.id, part))
        for row in tx.rows(tx.lock(query, skip=True)):
            execution = EXECUTION.load(row[:width])
            found[execution.id] = (execution, TASK.load(row[width:]))
    return [found[number] for number in ids if number in found]


def _forget_gone(tx: Tx, ids: Sequence[int]) -> None:
    """Take places out of the queue whose execution is no longer there at all."""
    there: set[int] = set()
    for part in chunks(ids):
        there.update(row.id for row in tx.rows(select(_E.c.id).where(among(_E.c.id, part))))
    gone = [number for number in ids if number not in there]
    if gone:
        delete_rows(tx.conn, _R.c.execution_id, gone)


# -- settle ------------------------------------------------------------------------------------
def settle(tx: Tx, node: str, outcomes: Sequence[Outcome]) -> list[Settled]:
    """``Repo.settle`` (DESIGN 3.5): one transaction for all finished calls."""
    tasks = lock_tasks(tx, [outcome.task_id for outcome in outcomes])
    executions = lock_executions(tx, [outcome.execution_id for outcome in outcomes])
    rows = [
        (outcome, executions[outcome.execution_id], tasks[outcome.task_id])
        for outcome in outcomes
        if outcome.execution_id in executions and outcome.task_id in tasks
    ]
    pairs = {
        (outcome.task_id, outcome.verdict.task_run_id)
        for outcome in outcomes
        if outcome.verdict is not None and outcome.verdict.task_run_id
    }
    returned = [execution.user_id for outcome, execution, _ in rows if outcome.verdict is None]
    queue = queue_view(tx, returned) if returned else QueueView()
    writes, settled = plan_settle(rows, inbox_of(tx, pairs), queue, node, tx.now, tx.rules)
    apply(tx, writes)
    return settled


# -- sweep -------------------------------------------------------------------------------------
def sweep(tx: Tx, limit: int) -> Swept:
    """``Repo.sweep`` (DESIGN 3.6)."""
    query = (
        EXECUTION.query.where(_E.c.next_action_at <= tx.now)
        .order_by(_E.c.next_action_at, _E.c.id)
        .limit(limit)
    )
    found = tx.rows(tx.lock(indexed(query, _E, _ACTION_INDEX), skip=True))
    executions = [EXECUTION.load(row) for row in found]
    _drop_expired(tx)
    if not executions:
        return Swept(now=tx.now)
    tasks = lock_tasks(tx, [execution.task_id for execution in executions], skip=True)
    waiting = _waiting(tx, [e.id for e in executions if e.exec_status is ExecStatus.PENDING])
    rows = [(e, tasks[e.task_id], e.id in waiting) for e in executions if e.task_id in tasks]
    silent = {(e.task_id, e.task_run_id) for e in executions if e.task_run_id}
    queue = queue_view(tx, {execution.user_id for execution, _, _ in rows})
    writes = plan_sweep(rows, inbox_of(tx, silent), queue, tx.now, tx.rules)
    apply(tx, writes)
    moved = tuple(Moved(before=a, after=b) for a, b in writes.executions.values())
    return Swept(now=tx.now, moved=moved, more=len(executions) == limit)


def _waiting(tx: Tx, ids: Iterable[int]) -> set[int]:
    """Those of the executions that have a place in the queue."""
    found: set[int] = set()
    for part in chunks(ids):
        query = select(_R.c.execution_id).where(among(_R.c.execution_id, part))
        found.update(row.execution_id for row in tx.rows(query))
    return found


def _drop_expired(tx: Tx) -> None:
    """Forget early reports whose run never became known."""
    query = select(_I.c.task_id).where(_I.c.expires_at <= tx.now).limit(1)
    if tx.rows(query):
        tx.conn.execute(delete(_I).where(_I.c.expires_at <= tx.now))
