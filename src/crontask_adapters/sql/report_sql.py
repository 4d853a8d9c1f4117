"""Reports and cancellations in SQL. Decisions come from ``policy``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, or_, select

from crontask_adapters.sql import schema
from crontask_adapters.sql.apply import apply, merge
from crontask_adapters.sql.dialect import chunks
from crontask_adapters.sql.tx import Tx, inbox_of, lock_executions, lock_tasks, open_executions
from crontask_core.errors import CrontaskError, NotFound
from crontask_core.model import Execution, InboxReport, Report, Task
from crontask_core.policy import (
    ReportResult,
    Writes,
    cancel_execution,
    plan_early_report,
    plan_report,
    run_not_found,
)
from crontask_core.ports import Moved

__all__ = ["cancel", "report"]

_E = schema.executions
_A = schema.attempts
Pair = tuple[int, str]


def cancel(
    tx: Tx, user_id: str | None, execution_ids: Sequence[int], reason: str
) -> list[Moved | CrontaskError]:
    """``Repo.cancel``: 0 -> 5, an answer per id."""
    owners = _owners(tx, execution_ids)
    tasks = lock_tasks(tx, owners.values())
    rows = lock_executions(tx, owners)
    writes = Writes()
    answers: list[Moved | CrontaskError] = []
    for number in execution_ids:
        row = rows.get(number)
        task = tasks.get(row.task_id) if row is not None else None
        if row is None or task is None or user_id not in (None, row.user_id):
            answers.append(_no_execution(number))
            continue
        try:
            after = cancel_execution(writes, writes.task(task), row, reason, tx.now, tx.rules)
        except CrontaskError as error:
            answers.append(error)
            continue
        rows[number] = after
        answers.append(Moved(before=row, after=after))
    apply(tx, writes)
    return answers


def _owners(tx: Tx, execution_ids: Sequence[int]) -> dict[int, int]:
    """The task of each execution that there is."""
    found: dict[int, int] = {}
    for part in chunks(sorted(set(execution_ids))):
        query = select(_E.c.id, _E.c.task_id).where(_E.c.id.in_(part))
        found.update((row.id, row.task_id) for row in tx.rows(query))
    return found


def _no_execution(number: int) -> NotFound:
    return NotFound(
        f"There is no execution {number}.",
        code="EXECUTION_NOT_FOUND",
        field="execution_id",
        received=number,
        hint="get_task_executions shows the executions of a task.",
    )


def report(tx: Tx, reports: Sequence[Report]) -> list[ReportResult | CrontaskError]:
    """``Repo.report`` (DESIGN 3.7). Everything is looked up under the tasks' locks: settle takes
    them too, so a run id that is not known yet will find the early report in the inbox."""
    state = _State(tx, reports)
    total = Writes()
    answers: list[ReportResult | CrontaskError] = []
    for item in reports:
        try:
            writes, result = _plan(tx, state, item)
        except CrontaskError as error:
            answers.append(error)
            continue
        merge(total, writes)
        state.take(writes)
        answers.append(result)
    apply(tx, total)
    return answers


def _plan(tx: Tx, state: _State, item: Report) -> tuple[Writes, ReportResult]:
    task = state.tasks.get(item.task_id)
    if task is None or item.user_id not in (None, task.user_id):
        raise run_not_found(item)
    execution = state.meant(item)
    if execution is not None:
        return plan_report(execution, task, item, tx.now, tx.rules)
    if item.fire_id or item.execution_id:
        raise run_not_found(item)
    rows = state.open.get(item.task_id, [])
    known = state.inbox.get((item.task_id, item.task_run_id))
    return plan_early_report(item, task, rows, known, tx.now, tx.rules)


class _State:
    """What a list of reports is about: locked rows, as this transaction will leave them."""

    def __init__(self, tx: Tx, reports: Sequence[Report]) -> None:
        self.tasks: dict[int, Task] = lock_tasks(tx, [r.task_id for r in reports])
        named = [r for r in reports if r.fire_id or r.execution_id]
        by_run = {(r.task_id, r.task_run_id) for r in reports if not (r.fire_id or r.execution_id)}
        ids = _named(tx, named)
        self._runs = _runs(tx, by_run)
        ids.update(number for numbers in self._runs.values() for number in numbers)
        self._rows: dict[int, Execution] = lock_executions(tx, ids)
        lost = [pair for pair in by_run if pair not in self._runs]
        self.open = open_executions(tx, {task_id for task_id, _ in lost})
        self.inbox: dict[Pair, InboxReport] = inbox_of(tx, lost)

    def meant(self, item: Report) -> Execution | None:
        """The execution a report names, else the newest with its run id, one not final first."""
        if item.fire_id or item.execution_id:
            for row in self._rows.values():
                fits = item.fire_id in ("", row.fire_id) and item.execution_id in (0, row.id)
                if fits and row.task_id == item.task_id:
                    return row
            return None
        numbers = self._runs.get((item.task_id, item.task_run_id), set())
        rows = [self._rows[number] for number in numbers if number in self._rows]
        return max(rows, key=lambda row: (not row.is_final, row.id), default=None)

    def take(self, writes: Writes) -> None:
        """See later reports of the list what an earlier one did."""
        for task_id, (_, task) in writes.tasks.items():
            self.tasks[task_id] = task
        for number, (_, execution) in writes.executions.items():
            self._rows[number] = execution
        for note in writes.inbox:
            self.inbox[(note.task_id, note.task_run_id)] = note


def _named(tx: Tx, reports: Sequence[Report]) -> set[int]:
    """The executions named by fire id or number."""
    found: set[int] = set()
    for part in chunks(reports):
        fires = [r.fire_id for r in part if r.fire_id]
        numbers = [r.execution_id for r in part if r.execution_id]
        query = select(_E.c.id).where(or_(_E.c.fire_id.in_(fires), _E.c.id.in_(numbers)))
        found.update(row.id for row in tx.rows(query))
    return found


def _runs(tx: Tx, pairs: set[Pair]) -> dict[Pair, set[int]]:
    """The executions that have each run id of a task, in themselves or in one of their calls."""
    found: dict[Pair, set[int]] = {}
    named = sorted(pair for pair in pairs if pair[1])
    rows: list[Row[*tuple[Any, ...]]] = []
    for part in chunks(named):
        called = (
            select(_E.c.id, _E.c.task_id, _A.c.task_run_id)
            .join_from(_A, _E, _A.c.execution_id == _E.c.id)
            .where(_A.c.task_run_id.in_(sorted({run_id for _, run_id in part})))
        )
        rows += tx.rows(called)
    for direct in _direct(tx, named):
        rows += tx.rows(direct)
    for row in rows:
        pair = (row.task_id, row.task_run_id)
        if pair in pairs:
            found.setdefault(pair, set()).add(row.id)
    return found


def _direct(tx: Tx, named: Sequence[Pair]) -> Iterator[Select[Any]]:
    """The queries for executions that carry these (task, run id) pairs themselves."""
    query = select(_E.c.id, _E.c.task_id, _E.c.task_run_id)
    if not tx.on_mysql:
        # SQLite reads the whole table for a list of pairs, and an index for each term of an OR.
        for part in chunks(named, 200):
            terms = [and_(_E.c.task_id == task, _E.c.task_run_id == run) for task, run in part]
            yield query.where(or_(*terms))
        return
    # MariaDB looks up no list of pairs by index, and two lists in every combination: 20 by 20.
    for part in chunks(named, 20):
        tasks = sorted({task_id for task_id, _ in part})
        runs = sorted({run_id for _, run_id in part})
        yield query.where(_E.c.task_id.in_(tasks), _E.c.task_run_id.in_(runs))
