"""``SqlRepo``: the port over the functions of this package, one transaction each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from crontask_adapters.clock import utcnow
from crontask_adapters.ids import installation_id
from crontask_adapters.sql import fire_sql, node_sql, reads, report_sql, task_sql, zone_sql
from crontask_adapters.sql.dialect import skips_locked
from crontask_adapters.sql.runner import MySqlRunner, Runner, SqliteRunner, make_runner
from crontask_adapters.sql.tx import Terms, Tx
from crontask_adapters.sql.upgrade import SchemaState, ready_state, state_of, upgrade_in_place
from crontask_core.errors import CrontaskError, Unavailable
from crontask_core.model import Attempt, Execution, NodeRow, Report, Rules, Task
from crontask_core.policy import EditResult, Outcome, ReportResult, Settled
from crontask_core.policy.versions import DataState, ScheduleData
from crontask_core.ports import (
    Added,
    Begin,
    Claimed,
    EditRequest,
    ExecutionFilter,
    Horizon,
    ManualFire,
    ManualRequest,
    Moved,
    Page,
    Pruned,
    Recomputed,
    Repo,
    Swept,
    TaskFilter,
    TaskRef,
    TaskRow,
)

__all__ = ["SqlRepo", "open_repo"]

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("crontask.store")
_FIRST_ANSWER = 8.0
"""Seconds until whatever listens at store.url is taken for no database."""


async def open_repo(
    url: str,
    *,
    rules: Rules,
    now: Callable[[], datetime] | None = None,
    pool_size: int = 20,
    skip_locked: bool = True,
) -> SqlRepo:
    """The store at ``url``, checked and ready.

    A SQLite file is made, or upgraded, under a lock that holds for all processes; MySQL and MariaDB
    only when told (``crontask db upgrade``). ``now`` replaces the database's clock in tests; SQLite
    has none and takes the host's. Raises ConfigError for a URL that cannot be used, Unavailable
    (STORE_UNAVAILABLE or SCHEMA_MISMATCH, with the remedy) otherwise.
    """
    runner = make_runner(url, pool_size)
    try:
        if isinstance(runner, SqliteRunner):
            state = await _ready_file(runner)
        else:
            state = await _first(runner)
            skip_locked = skip_locked and await _skips(runner)
        if state.warning:
            _log.warning("%s", state.warning)
        own_clock = utcnow if isinstance(runner, SqliteRunner) else None
        terms = Terms(rules=rules, clock=now or own_clock, skip_locked=skip_locked)
        repo = SqlRepo(runner, terms, schema=state)
        await repo.installation_id()
    except BaseException:
        await runner.close()
        raise
    return repo


async def _ready_file(runner: SqliteRunner) -> SchemaState:
    """The state of a file; only one that must be made or upgraded waits for others to write."""
    state = await runner.read(state_of)
    if state.current and state.problem is None:
        return state
    return await runner.write(upgrade_in_place)


async def _first(runner: MySqlRunner) -> SchemaState:
    """The first question. Something else than a database may listen there, and say nothing."""
    try:
        async with asyncio.timeout(_FIRST_ANSWER):
            return await runner.write(ready_state)
    except TimeoutError:
        raise Unavailable(
            f"the database gave no answer within {_FIRST_ANSWER:g} s",
            field="store.url",
            hint="Check that host and port in store.url are those of a MySQL or MariaDB server, "
            "and that it is not frozen or overloaded.",
            retryable=True,
        ) from None


async def _skips(runner: MySqlRunner) -> bool:
    return await runner.read(lambda conn: skips_locked(conn.dialect))


class SqlRepo:
    """``crontask_core.ports.Repo`` on a database (which says what each method does).

    ``runner`` decides how work runs; embedders pass a ``ConnectionRunner`` with their own
    connection, and everything happens inside their transaction.
    """

    def __init__(self, runner: Runner, terms: Terms, *, schema: SchemaState | None = None) -> None:
        self._runner = runner
        self._terms = terms
        self._installation = ""
        self.schema = schema

    @property
    def skips_locked(self) -> bool:
        """Whether claims leave rows out that others hold; else a lock service saves work."""
        return self._terms.skip_locked

    async def _write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        terms = self._terms
        return await self._runner.write(lambda conn: work(Tx(conn, terms), *args, **kwargs))

    async def _read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        terms = self._terms
        return await self._runner.read(lambda conn: work(Tx(conn, terms), *args, **kwargs))

    # -- tasks ---------------------------------------------------------------------------------
    async def installation_id(self) -> str:
        if not self._installation:
            found = await self._read(node_sql.get_meta, node_sql.INSTALLATION)
            if found is None:
                new = installation_id()
                found = await self._write(node_sql.keep_meta, node_sql.INSTALLATION, new)
            self._installation = found
        return self._installation

    async def add_tasks(self, tasks: Sequence[Task]) -> list[Added]:
        return await self._write(task_sql.add_tasks, tasks)

    async def get_tasks(self, user_id: str | None, refs: Sequence[TaskRef]) -> list[TaskRow | None]:
        return await self._read(task_sql.get_tasks, user_id, refs)

    async def list_tasks(self, where: TaskFilter) -> Page[TaskRow]:
        return await self._read(reads.list_tasks, where)

    async def count_tasks(self, user_id: str) -> int:
        return await self._read(task_sql.count_tasks, user_id)

    async def similar_tasks(self, task: Task) -> list[Task]:
        return await self._read(task_sql.similar_tasks, task)

    async def edit_tasks(self, requests: Sequence[EditRequest]) -> list[EditResult | CrontaskError]:
        return await self._write(task_sql.edit_tasks, requests)

    async def fire_now(self, requests: Sequence[ManualRequest]) -> list[ManualFire | CrontaskError]:
        return await self._write(task_sql.fire_now, requests)

    # -- executions ----------------------------------------------------------------------------
    async def list_executions(self, where: ExecutionFilter) -> Page[Execution]:
        return await self._read(reads.list_executions, where)

    async def attempts(self, execution_ids: Sequence[int]) -> dict[int, tuple[Attempt, ...]]:
        return await self._read(reads.attempts, execution_ids)

    async def cancel(
        self, user_id: str | None, execution_ids: Sequence[int], reason: str
    ) -> list[Moved | CrontaskError]:
        return await self._write(report_sql.cancel, user_id, execution_ids, reason)

    async def report(self, reports: Sequence[Report]) -> list[ReportResult | CrontaskError]:
        return await self._write(report_sql.report, reports)

    # -- firing --------------------------------------------------------------------------------
    async def horizon(self) -> Horizon:
        return await self._read(fire_sql.horizon)

    async def due(self, limit: int) -> list[tuple[int, datetime]]:
        return await self._read(fire_sql.due, limit)

    async def claim(
        self,
        node: str,
        limit: int,
        slots: int,
        *,
        capped_hosts: Collection[str] = (),
        only: Collection[int] | None = None,
        data: ScheduleData | None = None,
    ) -> Claimed:
        return await self._write(fire_sql.claim, node, limit, slots, capped_hosts, only, data)

    async def begin(self, node: str, slots: int, *, capped_hosts: Collection[str] = ()) -> Begin:
        return await self._write(fire_sql.begin, node, slots, capped_hosts)

    async def settle(self, node: str, outcomes: Sequence[Outcome]) -> list[Settled]:
        return await self._write(fire_sql.settle, node, outcomes)

    async def sweep(self, limit: int) -> Swept:
        return await self._write(fire_sql.sweep, limit)

    async def mine(self, node: str) -> list[tuple[Execution, Task]]:
        return await self._read(fire_sql.mine, node)

    async def set_aside(self, task_ids: Sequence[int], reason: str) -> None:
        await self._write(task_sql.set_aside, task_ids, reason)

    # -- nodes ---------------------------------------------------------------------------------
    async def register(self, node: NodeRow) -> datetime:
        return await self._write(node_sql.register, node)

    async def heartbeat(self, incarnation: str) -> tuple[datetime, bool]:
        return await self._write(node_sql.heartbeat, incarnation)

    async def nodes(self, *, retired: bool = False) -> list[NodeRow]:
        return await self._read(node_sql.nodes, retired)

    async def retire(self, seen: Sequence[tuple[str, int]], why: str) -> list[Moved]:
        return await self._write(node_sql.retire, seen, why)

    # -- upkeep --------------------------------------------------------------------------------
    async def data_state(self) -> DataState:
        return await self._read(zone_sql.data_of)

    async def recompute(self, data: ScheduleData, limit: int) -> Recomputed:
        """``Repo.recompute``. Nearly always nothing is to be written, and that is seen unlocked."""
        state = await self.data_state()
        if zone_sql.is_settled(state, data):
            return Recomputed(before=state, state=state)
        return await self._write(zone_sql.recompute, data, limit)

    async def prune(
        self, executions_before: datetime, tasks_before: datetime, limit: int
    ) -> Pruned:
        """``Repo.prune``. What is old is looked for outside of the writing transactions, which stay
        short; each row is checked again where it is deleted."""
        fires = await self._read(node_sql.stale_executions, executions_before, limit)
        executions = 0
        if fires:
            executions = await self._write(node_sql.prune_executions, fires, executions_before)
        over = await self._read(node_sql.stale_tasks, tasks_before, limit)
        tasks = await self._write(node_sql.prune_tasks, over, tasks_before)
        return Pruned(executions=executions, tasks=tasks)

    async def get_meta(self, key: str) -> str | None:
        return await self._read(node_sql.get_meta, key)

    async def set_meta(self, key: str, value: str) -> None:
        await self._write(node_sql.set_meta, key, value)

    async def close(self) -> None:
        """Give the connections back. The repository cannot be used after it."""
        await self._runner.close()


def _is_a_repo(repo: SqlRepo) -> Repo:
    return repo  # mypy checks the contract here
