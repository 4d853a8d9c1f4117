"""The stores that the repository contract is held against. One entry makes one store.

An entry opens an empty store for one test and gives a function that makes views of it: each view
is a repository of its own, like the repositories of two nodes on one database. The store must take
its ``now`` from ``Setup.now``, never from its own clock.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path

import attrs

from crontask_adapters.sql.repo import open_repo
from crontask_core.model import Rules
from crontask_core.ports import Repo
from crontask_core.testing import MemoryRepo, MemoryStore


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
    open: Callable[[Setup], AbstractAsyncContextManager[View]]
    url_fixture: str = ""


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


STORES: dict[str, Kind] = {
    "memory": Kind(memory),
    "sqlite": Kind(sqlite),
}
