"""The stores that the repository contract is held against. One entry makes one store.

An entry opens an empty store for one test and gives a function that makes views of it: each view
is a repository of its own, like the repositories of two nodes on one database. The store must take
its ``now`` from ``Setup.now``, never from its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import attrs
import pytest
from sqlalchemy import make_url

from crontask_adapters.sql import schema
from crontask_adapters.sql.repo import open_repo
from crontask_adapters.sql.runner import MySqlRunner
from crontask_adapters.sql.upgrade import upgrade
from crontask_core.model import Rules
from crontask_core.ports import Repo
from crontask_core.testing import MemoryRepo, MemoryStore
from tests.services import SqlServer

_EMPTY = "empty_all"


@attrs.frozen
class Setup:
    """What a store is made from. ``folder`` is empty and the test's own; ``url`` is what the
    fixture named by the entry gave, "" without one."""

    now: Callable[[], datetime]
    rules: Rules
    folder: Path
    url: str = ""


View = Callable[[], Awaitable[Repo]]


@attrs.frozen
class Kind:
    """``only``: the test files it is for, all when empty."""

    open: Callable[[Setup], AbstractAsyncContextManager[View]]
    url_fixture: str = ""
    only: frozenset[str] = frozenset()
    marks: tuple[pytest.MarkDecorator, ...] = ()


@asynccontextmanager
async def memory(setup: Setup) -> AsyncIterator[View]:
    store = MemoryStore()

    async def view() -> Repo:
        return MemoryRepo(store, now=setup.now, rules=setup.rules)

    yield view


@asynccontextmanager
async def sqlite(setup: Setup) -> AsyncIterator[View]:
    # Making the schema is most of the work: it is done once per run, and copied.
    empty = setup.folder.parent / "empty-crontask.db"
    if not empty.exists():
        await (await open_repo(f"sqlite:///{empty}", rules=setup.rules, now=setup.now)).close()
    path = Path(shutil.copy(empty, setup.folder / "crontask.db"))

    async def view() -> Repo:
        return await open_repo(f"sqlite:///{path}", rules=setup.rules, now=setup.now)

    yield view


@asynccontextmanager
async def server(setup: Setup, *, skip_locked: bool = True) -> AsyncIterator[View]:
    runner = MySqlRunner(make_url(setup.url), 1)
    await runner.write(lambda conn: conn.exec_driver_sql(f"CALL {_EMPTY}()") and None)
    await runner.close()

    async def view() -> Repo:
        return await open_repo(setup.url, rules=setup.rules, now=setup.now, skip_locked=skip_locked)

    yield view


@contextlib.contextmanager
def migrated(on: SqlServer) -> Iterator[str]:
    """The URL of a database with the tables in it, and a procedure that empties them at once:
    to make them anew for each test would take longer than the tests."""
    with on.database() as url, ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, upgrade(url)).result()
        name = make_url(url).database
        kept = [row[0] for row in on.execute(f"SELECT name FROM {name}.t_cron_meta")]
        names = ", ".join(f"'{one}'" for one in kept)
        lines = [
            f"DELETE FROM {table}" + (f" WHERE name NOT IN ({names})" * (table == "t_cron_meta"))
            for table in schema.TABLES
        ]
        on.execute(f"CREATE PROCEDURE {name}.{_EMPTY}() BEGIN {'; '.join(lines)}; END")
        yield url


_HOT = frozenset(
    {
        "test_repo_firing",
        "test_repo_queue",
        "test_repo_settle",
        "test_repo_nodes",
        "test_engine_stories",
    }
)

STORES: dict[str, Kind] = {
    "memory": Kind(memory),
    "sqlite": Kind(sqlite),
    "mariadb": Kind(server, "mariadb_store"),
    # SKIP LOCKED only saves work: with the rows of others waited for, all must hold as well.
    "mariadb-waits": Kind(partial(server, skip_locked=False), "mariadb_store", _HOT),
    "mysql": Kind(server, "mysql_store", marks=(pytest.mark.mysql,)),
}
