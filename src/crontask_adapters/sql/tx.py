"""One transaction as the store's functions see it, and how they load rows under lock.

Locks are taken in one order: task rows, then executions, then the rest, each by id (DESIGN 3).
Where rows must be found by another key first, they are locked with SKIP LOCKED, so that nothing is
ever waited for out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any

import attrs
from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from crontask_adapters.sql import schema
from crontask_adapters.sql.dialect import among, chunks, database_now, indexed, locked
from crontask_adapters.sql.rows import EXECUTION, INBOX, TASK, TASK_LIGHT
from crontask_adapters.sql.types import on_mysql
from crontask_core.model import Execution, InboxReport, Rules, Task
from crontask_core.policy import QueueView

__all__ = [
    "Terms",
    "Tx",
    "contents",
    "inbox_of",
    "lock_executions",
    "lock_tasks",
    "open_executions",
    "queue_view",
    "tasks_by_id",
]

_E = schema.executions
_R = schema.ready
_T = schema.tasks


@attrs.frozen(kw_only=True)
class Terms:
    """What holds for every transaction of a store. ``clock`` None: the database's own."""

    rules: Rules
    clock: Callable[[], datetime] | None = None
    skip_locked: bool = True


class Tx:
    """A transaction: its connection, its terms, and its one instant."""

    def __init__(self, conn: Connection, terms: Terms) -> None:
        self.conn = conn
        self.rules = terms.rules
        self._terms = terms
        self._now: datetime | None = None

    @property
    def now(self) -> datetime:
        """The database's time, read once in this transaction (DESIGN 3.9)."""
        if self._now is None:
            clock = self._terms.clock
            self._now = clock() if clock is not None else database_now(self.conn)
        return self._now

    def lock(self, statement: Select[Any], *, skip: bool = False) -> Select[Any]:
        """The statement with its rows locked; ``skip`` leaves locked ones out where it can."""
        return locked(statement, skip=skip and self._terms.skip_locked)

    def rows(self, statement: Select[Any]) -> list[Row[*tuple[Any, ...]]]:
        return list(self.conn.execute(statement).all())

    @property
    def on_mysql(self) -> bool:
        return on_mysql(self.conn.dialect)


def lock_tasks(
    tx: Tx, ids: Iterable[int], *, content: bool = False, skip: bool = False
) -> dict[int, Task]:
    """The tasks, locked in the order of their ids; with their big text only when asked for."""
    shape = TASK if content else TASK_LIGHT
    found: dict[int, Task] = {}
    for part in chunks(sorted(set(ids))):
        query = shape.query.where(among(_T.c.id, part)).order_by(_T.c.id)
        for row in tx.rows(tx.lock(indexed(query, _T), skip=skip)):
            found[row.id] = shape.load(row)
    return found


def tasks_by_id(tx: Tx, ids: Iterable[int]) -> dict[int, Task]:
    """The tasks in full, not locked."""
    found: dict[int, Task] = {}
    for part in chunks(sorted(set(ids))):
        for row in tx.rows(TASK.query.where(among(_T.c.id, part))):
            found[row.id] = TASK.load(row)
    return found


def lock_executions(tx: Tx, ids: Iterable[int], *, skip: bool = False) -> dict[int, Execution]:
    """The executions, locked in the order of their ids."""
    found: dict[int, Execution] = {}
    for part in chunks(sorted(set(ids))):
        query = EXECUTION.query.where(among(_E.c.id, part)).order_by(_E.c.id)
        for row in tx.rows(tx.lock(indexed(query, _E), skip=skip)):
            found[row.id] = EXECUTION.load(row)
    return found


def open_executions(tx: Tx, task_ids: Iterable[int]) -> dict[int, list[Execution]]:
    """For each task its executions that are not final, locked."""
    found: dict[int, list[Execution]] = {}
    for part in chunks(sorted(set(task_ids))):
        query = EXECUTION.query.where(
            among(_E.c.task_id, part), _E.c.next_action_at.is_not(None)
        ).order_by(_E.c.id)
        for row in tx.rows(tx.lock(indexed(query, _E, "ix_execution_task_action"))):
            found.setdefault(row.task_id, []).append(EXECUTION.load(row))
    return found


def contents(tx: Tx, task_ids: Collection[int]) -> dict[int, str]:
    """The instructions of tasks."""
    found: dict[int, str] = {}
    for part in chunks(sorted(set(task_ids))):
        query = select(_T.c.id, _T.c.task_content).where(among(_T.c.id, part))
        found.update((row.id, row.task_content) for row in tx.rows(query))
    return found


def queue_view(tx: Tx, users: Iterable[str]) -> QueueView:
    """The smallest waiting key, and the greatest of each of these users (DESIGN 3.2)."""
    head = tx.conn.execute(select(func.min(_R.c.queue_key))).scalar_one_or_none()
    if head is None:
        return QueueView()
    tails: dict[str, int] = {}
    for part in chunks(sorted(set(users))):
        query = (
            select(_R.c.user_id, func.max(_R.c.queue_key))
            .where(among(_R.c.user_id, part))
            .group_by(_R.c.user_id)
        )
        tails.update((row[0], int(row[1])) for row in tx.rows(query))
    return QueueView(int(head), tails)


def inbox_of(tx: Tx, pairs: Collection[tuple[int, str]]) -> dict[tuple[int, str], InboxReport]:
    """The early reports kept under these (task id, run id).

    Keys first: there seldom are any, and two lists of 200 are looked up in 40,000 combinations.
    """
    table = schema.inbox
    there: set[tuple[int, str]] = set()
    for part in chunks(sorted({task_id for task_id, _ in pairs})):
        keys = select(table.c.task_id, table.c.task_run_id).where(among(table.c.task_id, part))
        there.update((row.task_id, row.task_run_id) for row in tx.rows(keys))
    found: dict[tuple[int, str], InboxReport] = {}
    for some in chunks(sorted(there.intersection(pairs)), 50):
        one_of = or_(
            *(and_(table.c.task_id == task, table.c.task_run_id == run) for task, run in some)
        )
        for row in tx.rows(INBOX.query.where(one_of)):
            note = INBOX.load(row)
            found[(note.task_id, note.task_run_id)] = note
    return found
