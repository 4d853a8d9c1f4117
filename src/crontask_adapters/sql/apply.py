"""Writing a decision: the one place that turns ``Writes`` into statements (DESIGN 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import delete, select, tuple_
from sqlalchemy.exc import IntegrityError

from crontask_adapters.sql import schema
from crontask_adapters.sql.dialect import (
    ATOMIC,
    Change,
    among,
    chunks,
    delete_rows,
    insert_rows,
    update_rows,
)
from crontask_adapters.sql.errors import is_duplicate
from crontask_adapters.sql.rows import ATTEMPT, EXECUTION, INBOX, READY, TASK
from crontask_adapters.sql.tx import Tx
from crontask_core.errors import Unavailable
from crontask_core.model import ExecStatus, Execution, ReadyFire, Task, evolve
from crontask_core.policy import NewFire, Writes

__all__ = ["Applied", "apply", "merge"]

_E = schema.executions
_NEW_EXECUTION = EXECUTION.names.index("id")
_NO_ID = tuple(column for column in EXECUTION.columns if column.name != "id")
_EMPTY: Mapping[str, int] = {}


@attrs.frozen
class Applied:
    """What became of the new fires: the id of each fire id, and those that stood there before."""

    ids: Mapping[str, int] = _EMPTY
    taken: frozenset[str] = frozenset()

    def stored(self, execution: Execution) -> Execution | None:
        """A new execution with its id; None when another stands under its key."""
        if execution.fire_id in self.taken:
            return None
        return evolve(execution, id=self.ids[execution.fire_id])


def apply(tx: Tx, writes: Writes) -> Applied:
    """Write everything a decision wants, in this transaction.

    Raises Unavailable (retryable) when a row is no longer what was read; the transaction must then
    be rolled back. A new fire under a taken unique key is left out (DESIGN 3.1).
    """
    _update_tasks(tx, writes)
    applied, waiting = _insert_fires(tx, writes.new)
    _update_executions(tx, writes)
    if writes.attempts:
        rows = [ATTEMPT.values(attempt) for attempt in writes.attempts]
        insert_rows(tx.conn, ATTEMPT.columns, rows, "replace")
    delete_rows(tx.conn, schema.ready.c.execution_id, _leaving(writes))
    places = [READY.values(place) for place in (*waiting, *writes.ready)]
    insert_rows(tx.conn, READY.columns, places, "replace")
    for pairs in chunks(sorted(writes.inbox_done)):
        key = tuple_(schema.inbox.c.task_id, schema.inbox.c.task_run_id)
        tx.conn.execute(delete(schema.inbox).where(key.in_(pairs)))
    insert_rows(tx.conn, INBOX.columns, [INBOX.values(note) for note in writes.inbox], "replace")
    return applied


def merge(into: Writes, more: Writes) -> None:
    """Add a later decision of the same transaction; rows keep as their guard what was read."""
    for task_id, (read, wanted) in more.tasks.items():
        into.tasks[task_id] = (into.tasks.get(task_id, (read, wanted))[0], wanted)
    for row_id, (was, after) in more.executions.items():
        into.executions[row_id] = (into.executions.get(row_id, (was, after))[0], after)
    into.new.extend(more.new)
    into.attempts.extend(more.attempts)
    into.ready.extend(more.ready)
    into.unready |= more.unready
    into.inbox.extend(more.inbox)
    into.inbox_done |= more.inbox_done


def _leaving(writes: Writes) -> list[int]:
    """The executions to take out of the queue: one that was not pending has no place in it."""
    rows = writes.executions
    return [
        number
        for number in writes.unready
        if number not in rows or rows[number][0].exec_status is ExecStatus.PENDING
    ]


def _update_tasks(tx: Tx, writes: Writes) -> None:
    changes = [_task_change(read, wanted) for read, wanted in writes.tasks.values()]
    _expect(update_rows(tx.conn, schema.tasks, changes), len(changes), "task")


def _task_change(read: Task, wanted: Task) -> Change:
    # A task read without its instruction has none in either value, so none is written.
    guards = {"revision": read.revision, "next_fire_time": read.next_fire_time}
    return Change(read.id, TASK.diff(read, wanted), guards)


def _update_executions(tx: Tx, writes: Writes) -> None:
    changes = [
        Change(
            read.id,
            EXECUTION.diff(read, wanted),
            {
                "exec_status": read.exec_status,
                "fence": read.fence,
                "executor_node": read.executor_node,
            },
        )
        for read, wanted in writes.executions.values()
    ]
    _expect(update_rows(tx.conn, _E, changes), len(changes), "execution")


def _expect(matched: int, wanted: int, what: str) -> None:
    if matched != wanted:
        raise Unavailable(
            f"{wanted - matched} of {wanted} {what} rows were changed by another process meanwhile",
            hint="Nothing was written; try again.",
            retryable=True,
        )


def _insert_fires(tx: Tx, new: Sequence[NewFire]) -> tuple[Applied, list[ReadyFire]]:
    """Insert new executions; their ids, and the places in the queue of those that were new."""
    if not new:
        return Applied(), []
    taken: set[str] = set()
    for batch in chunks([fire.execution for fire in new], ATOMIC):
        taken |= _insert_executions(tx, batch)
    ids: dict[str, int] = {}
    for part in chunks([fire.execution.fire_id for fire in new]):
        query = select(_E.c.fire_id, _E.c.id).where(among(_E.c.fire_id, part))
        ids.update((row.fire_id, row.id) for row in tx.rows(query))
    waiting = [
        attrs.evolve(fire.ready, execution_id=ids[fire.execution.fire_id])
        for fire in new
        if fire.ready is not None and fire.execution.fire_id not in taken
    ]
    return Applied(ids, frozenset(taken)), waiting


def _insert_executions(tx: Tx, rows: Sequence[Execution]) -> set[str]:
    """Insert; the fire ids of those whose unique key was taken, and who were left out.

    Usually none is, so all are simply inserted. Only when that is refused is each looked up.
    """
    try:
        insert_rows(tx.conn, _NO_ID, [_without_id(row) for row in rows])
        return set()
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
    taken = _taken(tx, rows)
    seen: set[tuple[Any, ...]] = set()
    fresh = []
    for row in rows:
        key = (row.task_id, row.fire_time, row.trigger_kind)
        if key in seen:
            taken.add(row.fire_id)
        elif row.fire_id not in taken:
            fresh.append(_without_id(row))
        seen.add(key)
    insert_rows(tx.conn, _NO_ID, fresh)
    return taken


def _without_id(row: Execution) -> tuple[Any, ...]:
    values = EXECUTION.values(row)
    return values[:_NEW_EXECUTION] + values[_NEW_EXECUTION + 1 :]


def _taken(tx: Tx, rows: Sequence[Execution]) -> set[str]:
    taken: set[str] = set()
    key = tuple_(_E.c.task_id, _E.c.fire_time, _E.c.trigger_kind)
    by_key = {(row.task_id, row.fire_time, row.trigger_kind): row.fire_id for row in rows}
    query = select(_E.c.fire_id).where(_E.c.fire_id.in_(list(by_key.values())))
    taken.update(row.fire_id for row in tx.rows(query))
    fires = select(_E.c.task_id, _E.c.fire_time, _E.c.trigger_kind).where(key.in_(list(by_key)))
    taken.update(by_key[tuple(row)] for row in tx.rows(fires))
    return taken
