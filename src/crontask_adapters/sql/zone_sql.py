"""Zone data and cron rules in SQL: what the store has seen, and moving tasks to newer (`X-S8`)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from sqlalchemy import select

from crontask_adapters.sql import schema
from crontask_adapters.sql.apply import apply
from crontask_adapters.sql.dialect import indexed, insert_rows
from crontask_adapters.sql.node_sql import INSTALLATION
from crontask_adapters.sql.tx import Tx, lock_tasks
from crontask_core.model import ScheduleType, Task, TaskStatus
from crontask_core.policy.versions import (
    DATA_KEYS,
    DataState,
    ScheduleData,
    data_state,
    meet,
    plan_recompute,
)
from crontask_core.ports import Recomputed

__all__ = ["data_of", "is_settled", "recompute"]

_M = schema.meta
_T = schema.tasks


def data_of(tx: Tx) -> DataState:
    """What the store has seen; takes no lock and waits for none."""
    query = select(_M.c.name, _M.c.value).where(_M.c.name.in_(DATA_KEYS))
    return data_state({row.name: row.value for row in tx.rows(query)})


def is_settled(state: DataState, data: ScheduleData) -> bool:
    """Whether a node with ``data`` has nothing to write."""
    return meet(state, data) == state and (state.after is None or state.seen != data)


def recompute(tx: Tx, data: ScheduleData, limit: int) -> Recomputed:
    """``Repo.recompute``. The small facts are locked before the tasks; nobody who holds a task
    waits for them, so that cannot close a circle. One that is always there stands for all."""
    names = select(_M.c.name).where(_M.c.name.in_((INSTALLATION, *DATA_KEYS)))
    tx.rows(tx.lock(indexed(names, _M)))
    before = data_of(tx)
    state = meet(before, data)
    moved: tuple[tuple[Task, Task], ...] = ()
    if state.seen == data and state.after is not None:
        looked, tasks = _page(tx, state.after, limit)
        writes = plan_recompute(tasks, tx.now)
        apply(tx, writes)
        moved = tuple(writes.tasks.values())
        state = attrs.evolve(state, after=looked[-1] if len(looked) == limit else None)
    if state != before:
        insert_rows(tx.conn, [_M.c.name, _M.c.value], list(state.as_rows().items()), "replace")
    return Recomputed(before=before, state=state, moved=moved)


def _page(tx: Tx, after: int, limit: int) -> tuple[Sequence[int], list[Task]]:
    """The ids of the next tasks of any kind, so that a page is short however few are of cron, and
    those among them that may have to move, locked."""
    query = (
        select(_T.c.id, _T.c.next_fire_time)
        .add_columns((_T.c.schedule_type == ScheduleType.CRON).label("cron"))
        .add_columns((_T.c.status == TaskStatus.ENABLED).label("enabled"))
        .where(_T.c.id > after)
        .order_by(_T.c.id)
        .limit(limit)
    )
    rows = tx.rows(query)
    ids = [row.id for row in rows if row.cron and row.enabled and row.next_fire_time is not None]
    return [row.id for row in rows], _lock_readable(tx, ids)


def _lock_readable(tx: Tx, ids: Sequence[int]) -> list[Task]:
    """The tasks, locked. A row that cannot be read is left to its claim, which sets it aside."""
    try:
        return list(lock_tasks(tx, ids).values())
    except (LookupError, TypeError, ValueError):
        if len(ids) <= 1:
            return []
        middle = len(ids) // 2
        return [*_lock_readable(tx, ids[:middle]), *_lock_readable(tx, ids[middle:])]
