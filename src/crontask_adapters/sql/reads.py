"""Listings and look-ups in SQL: keyset pages, never an OFFSET, no query per row."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    func,
    literal,
    or_,
    select,
)

from crontask_adapters.sql import schema
from crontask_adapters.sql.dialect import chunks
from crontask_adapters.sql.rows import ATTEMPT, EXECUTION, TASK
from crontask_adapters.sql.tx import Tx
from crontask_core.errors import InvalidInput
from crontask_core.model import Attempt, Execution
from crontask_core.ports import ExecutionFilter, Page, TaskFilter, TaskRow

__all__ = ["attempts", "last_executions", "list_executions", "list_tasks"]

_T = schema.tasks
_E = schema.executions
_A = schema.attempts


def list_tasks(tx: Tx, where: TaskFilter) -> Page[TaskRow]:
    """``Repo.list_tasks``: newest first, a page at a time."""
    wanted = _task_conditions(tx, where)
    total = _count(tx, wanted, _T)
    query = TASK.query.where(and_(True, *wanted))
    if where.cursor:
        query = query.where(_T.c.id < int(_open(where.cursor, "t", 1)[0]))
    rows = tx.rows(query.order_by(_T.c.id.desc()).limit(where.limit + 1))
    page = [TASK.load(row) for row in rows[: where.limit]]
    last = last_executions(tx, [task.id for task in page])
    cursor = _seal("t", page[-1].id) if page and len(rows) > len(page) else ""
    listed = tuple(TaskRow(task=task, last=last.get(task.id)) for task in page)
    return Page(listed, total, cursor)


def _task_conditions(tx: Tx, where: TaskFilter) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if where.user_id is not None:
        wanted.append(_T.c.user_id == where.user_id)
    if where.statuses:
        wanted.append(_T.c.status.in_(where.statuses))
    else:
        wanted.append(_T.c.is_deleted.is_(False))
    if where.conversation_id:
        wanted.append(_T.c.conversation_id == where.conversation_id)
    if where.schedule_type is not None:
        wanted.append(_T.c.schedule_type == where.schedule_type)
    if where.next_from is not None:
        wanted.append(_T.c.next_fire_time >= where.next_from)
    if where.next_to is not None:
        wanted.append(_T.c.next_fire_time <= where.next_to)
    if where.text:
        columns = (_T.c.task_name, _T.c.task_key, _T.c.task_desc)
        sought = func.lower(where.text)
        wanted.append(or_(*(func.instr(func.lower(c), sought) > 0 for c in columns)))
    return wanted


def list_executions(tx: Tx, where: ExecutionFilter) -> Page[Execution]:
    """``Repo.list_executions``: newest fire first, a page at a time."""
    wanted = _execution_conditions(where)
    total = _count(tx, wanted, _E)
    query = EXECUTION.query.where(and_(True, *wanted))
    # Two fires of one instant: within a task the index tells them apart by kind, else the id does.
    second = _E.c.id if where.task_id is None else _E.c.trigger_kind
    if where.cursor:
        at, number = _open(where.cursor, "e", 2)
        moment = datetime.fromisoformat(at)
        same = and_(_E.c.fire_time == moment, second < literal(int(number), BigInteger()))
        query = query.where(or_(_E.c.fire_time < moment, same))
    query = query.order_by(_E.c.fire_time.desc(), second.desc()).limit(where.limit + 1)
    rows = tx.rows(query)
    page = tuple(EXECUTION.load(row) for row in rows[: where.limit])
    cursor = ""
    if page and len(rows) > len(page):
        last = page[-1]
        mark = last.id if where.task_id is None else int(last.trigger_kind)
        cursor = _seal("e", last.fire_time.isoformat(), mark)
    return Page(page, total, cursor)


def _execution_conditions(where: ExecutionFilter) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if where.task_id is not None:
        wanted.append(_E.c.task_id == where.task_id)
        if where.user_id is not None:
            # Asked of the task, so that no planner walks all fires of the user for those of one.
            owner = select(_T.c.user_id).where(_T.c.id == where.task_id).scalar_subquery()
            wanted.append(owner == where.user_id)
    elif where.user_id is not None:
        wanted.append(_E.c.user_id == where.user_id)
    if where.execution_id is not None:
        wanted.append(_E.c.id == where.execution_id)
    if where.statuses:
        wanted.append(_E.c.exec_status.in_(where.statuses))
    if where.since is not None:
        wanted.append(_E.c.fire_time >= where.since)
    if where.until is not None:
        wanted.append(_E.c.fire_time <= where.until)
    return wanted


def _count(tx: Tx, wanted: Sequence[ColumnElement[bool]], table: Any) -> int:
    query: Select[Any] = select(func.count()).select_from(table).where(and_(True, *wanted))
    return int(tx.conn.execute(query).scalar_one())


def last_executions(tx: Tx, task_ids: Iterable[int]) -> dict[int, Execution]:
    """The newest execution of each task: by fire time, then kind. Two queries for all of them; each
    task costs one step in the index of its fires, however long its history."""
    inner = _E.alias("x")
    newest = (
        select(inner.c.id)
        .where(inner.c.task_id == _T.c.id)
        .order_by(inner.c.fire_time.desc(), inner.c.trigger_kind.desc())
        .limit(1)
        .scalar_subquery()
        .correlate(_T)
    )
    found: dict[int, Execution] = {}
    for part in chunks(sorted(set(task_ids))):
        rows = tx.rows(select(newest.label("newest")).where(_T.c.id.in_(part)))
        ids = [row.newest for row in rows if row.newest is not None]
        if not ids:
            continue
        for row in tx.rows(EXECUTION.query.where(_E.c.id.in_(ids))):
            found[row.task_id] = EXECUTION.load(row)
    return found


def attempts(tx: Tx, execution_ids: Sequence[int]) -> dict[int, tuple[Attempt, ...]]:
    """``Repo.attempts``."""
    found: dict[int, list[Attempt]] = {number: [] for number in execution_ids}
    for part in chunks(sorted(found)):
        query = ATTEMPT.query.where(_A.c.execution_id.in_(part)).order_by(_A.c.fence)
        for row in tx.rows(query):
            found[row.execution_id].append(ATTEMPT.load(row))
    return {number: tuple(rows) for number, rows in found.items()}


# -- cursors -----------------------------------------------------------------------------------
def _seal(*parts: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, parts)).encode()).decode().rstrip("=")


def _open(cursor: str, kind: str, count: int) -> list[str]:
    """The parts of a cursor of this kind. Raises InvalidInput for anything else."""
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        found, *parts = base64.urlsafe_b64decode(padded).decode().split(" ")
        if found != kind or len(parts) != count or not parts[-1].isdecimal():
            raise ValueError(cursor)
        if kind == "e" and datetime.fromisoformat(parts[0]).tzinfo is None:
            raise ValueError(cursor)
    except (ValueError, binascii.Error) as error:
        raise InvalidInput(
            "this is not a cursor of this listing",
            field="cursor",
            received=cursor,
            hint="Use the cursor of the page before, or none for the first page.",
        ) from error
    return parts
