"""Nodes, upkeep and small facts in SQL. Decisions come from ``policy``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, delete, exists, select, update

from crontask_adapters.sql import schema
from crontask_adapters.sql.apply import apply
from crontask_adapters.sql.dialect import among, chunks, delete_rows, indexed, insert_rows
from crontask_adapters.sql.rows import NODE
from crontask_adapters.sql.tx import Tx, lock_executions, lock_tasks, queue_view
from crontask_core.model import ExecStatus, Execution, NodeRow, TaskStatus
from crontask_core.policy import plan_take_over
from crontask_core.ports import Moved

__all__ = [
    "INSTALLATION",
    "get_meta",
    "heartbeat",
    "keep_meta",
    "nodes",
    "prune_executions",
    "prune_tasks",
    "register",
    "retire",
    "set_meta",
    "stale_executions",
    "stale_tasks",
]

_E = schema.executions
_T = schema.tasks
_N = schema.nodes
_M = schema.meta
INSTALLATION = "installation_id"
_SLACK = 1_000


# -- nodes -------------------------------------------------------------------------------------
def register(tx: Tx, node: NodeRow) -> datetime:
    """``Repo.register``."""
    insert_rows(tx.conn, NODE.columns, [NODE.values(node)])
    return tx.now


def heartbeat(tx: Tx, incarnation: str) -> tuple[datetime, bool]:
    """``Repo.heartbeat``."""
    query = update(_N).where(_N.c.incarnation == incarnation, _N.c.retired_at.is_(None))
    moved = tx.conn.execute(query.values(counter=_N.c.counter + 1, seen_at=tx.now))
    return tx.now, moved.rowcount == 1


def nodes(tx: Tx, retired: bool = False) -> list[NodeRow]:
    """``Repo.nodes``."""
    query = NODE.query.order_by(_N.c.started_at, _N.c.incarnation)
    if not retired:
        query = query.where(_N.c.retired_at.is_(None))
    return [NODE.load(row) for row in tx.rows(query)]


def retire(tx: Tx, seen: Sequence[tuple[str, int]], why: str) -> list[Moved]:
    """``Repo.retire``. Nobody who holds a task or execution waits for a node's row, so taking
    those first cannot close a circle."""
    gone = []
    for incarnation, counter in sorted(seen):
        query = update(_N).where(
            _N.c.incarnation == incarnation, _N.c.counter == counter, _N.c.retired_at.is_(None)
        )
        if tx.conn.execute(query.values(retired_at=tx.now)).rowcount == 1:
            gone.append(incarnation)
    rows = _calling(tx, gone)
    if not rows:
        return []
    tasks = lock_tasks(tx, rows.values())
    executions = [e for e in lock_executions(tx, rows).values() if _is_held(e, gone)]
    pairs = [(e, tasks[e.task_id]) for e in executions if e.task_id in tasks]
    queue = queue_view(tx, {execution.user_id for execution, _ in pairs})
    writes = plan_take_over(pairs, queue, why, tx.now, tx.rules)
    apply(tx, writes)
    return [Moved(before=a, after=b) for a, b in writes.executions.values()]


def _calling(tx: Tx, incarnations: Sequence[str]) -> dict[int, int]:
    """The executions these incarnations are calling, with their tasks; not locked."""
    if not incarnations:
        return {}
    query = select(_E.c.id, _E.c.task_id).where(
        _E.c.executor_node.in_(incarnations),
        _E.c.next_action_at.is_not(None),
        _E.c.exec_status == ExecStatus.CALLING,
    )
    return {row.id: row.task_id for row in tx.rows(query)}


def _is_held(execution: Execution, incarnations: Sequence[str]) -> bool:
    calling = execution.exec_status is ExecStatus.CALLING
    return calling and execution.executor_node in incarnations


# -- prune -------------------------------------------------------------------------------------
def stale_executions(tx: Tx, before: datetime, limit: int) -> list[int]:
    """Old final executions, found without reading the whole history: rows lie in the order they
    were made, so the old ones are in front, among a few that are not final."""
    front = (
        select(_E.c.id, _E.c.updated_at, _E.c.next_action_at)
        .order_by(_E.c.id)
        .limit(limit + _SLACK)
        .subquery()
    )
    query = (
        select(front.c.id)
        .where(front.c.updated_at < before, front.c.next_action_at.is_(None))
        .limit(limit)
    )
    return [row.id for row in tx.rows(query)]


def prune_executions(tx: Tx, ids: Sequence[int], before: datetime) -> int:
    """Delete these executions, with their calls, if they still are old and final."""
    old = select(_E.c.id).where(_E.c.updated_at < before, _E.c.next_action_at.is_(None))
    gone = _lock_ids(tx, old, _E, ids)
    delete_rows(tx.conn, _E.c.id, gone)
    delete_rows(tx.conn, schema.attempts.c.execution_id, gone)
    delete_rows(tx.conn, schema.ready.c.execution_id, gone)
    return len(gone)


def _lock_ids(tx: Tx, query: Select[Any], table: Table, ids: Sequence[int]) -> list[int]:
    """Those of the rows that still answer to the query and that nobody else holds, locked."""
    found: list[int] = []
    for part in chunks(sorted(ids)):
        narrow = indexed(query.where(among(table.c.id, part)), table)
        found += [row.id for row in tx.rows(tx.lock(narrow, skip=True))]
    return found


def stale_tasks(tx: Tx, before: datetime, limit: int) -> list[int]:
    """Completed and deleted tasks without executions, long untouched."""
    query = select(_T.c.id).where(*_over(before)).order_by(_T.c.id).limit(limit)
    return [row.id for row in tx.rows(query)]


def prune_tasks(tx: Tx, ids: Sequence[int], before: datetime) -> int:
    """Delete these tasks if they still are over, early reports nobody asked for, and nodes that
    were retired long ago: each heartbeat of each node reads them all."""
    notes = schema.inbox
    tx.conn.execute(delete(notes).where(notes.c.expires_at <= tx.now))
    tx.conn.execute(delete(_N).where(_N.c.retired_at < before))
    gone = _lock_ids(tx, select(_T.c.id).where(*_over(before)), _T, ids)
    delete_rows(tx.conn, _T.c.id, gone)
    return len(gone)


def _over(before: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        _T.c.status.in_((TaskStatus.COMPLETED, TaskStatus.DELETED)),
        _T.c.updated_at < before,
        ~exists().where(_E.c.task_id == _T.c.id),
    )


# -- small facts -------------------------------------------------------------------------------
def get_meta(tx: Tx, key: str) -> str | None:
    """``Repo.get_meta``."""
    query = select(_M.c.value).where(_M.c.name == key)
    return tx.conn.execute(query).scalar_one_or_none()


def set_meta(tx: Tx, key: str, value: str) -> None:
    """``Repo.set_meta``."""
    insert_rows(tx.conn, [_M.c.name, _M.c.value], [(key, value)], "replace")


def keep_meta(tx: Tx, key: str, value: str) -> str:
    """The value under a key, which becomes ``value`` if it had none: whoever comes first wins."""
    stored = get_meta(tx, key)
    if stored is None:
        insert_rows(tx.conn, [_M.c.name, _M.c.value], [(key, value)], "nothing")
        stored = get_meta(tx, key)
    return stored if stored is not None else value
