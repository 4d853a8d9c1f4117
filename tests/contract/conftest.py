"""Every test of this folder runs against every store of ``stores.STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from crontask_core.model import Rules
from crontask_core.ports import Repo
from crontask_core.testing import VirtualClock
from tests.builders import RULES
from tests.contract.stores import STORES, Kind, Setup, View, migrated
from tests.contract.world import World
from tests.services import MariaDb, MySql
from tests.statements import watched
from tests.world import AGENT, Faulty, NewWorld, Store
from tests.world import World as StoryWorld


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_kind" not in metafunc.fixturenames:
        return
    here = metafunc.module.__name__.rpartition(".")[2]
    kinds = {name: kind for name, kind in STORES.items() if not kind.only or here in kind.only}
    params = [pytest.param(name, marks=kind.marks) for name, kind in kinds.items()]
    metafunc.parametrize("store_kind", params, indirect=True)


@pytest.fixture(scope="session", autouse=True)
def _every_statement_is_checked() -> Iterator[None]:
    with watched():
        yield


@pytest.fixture(scope="session")
def mariadb_store() -> Iterator[str]:
    """One MariaDB database for the whole run; ``stores.server`` empties it for each test. Its
    server need not survive a crash, so a commit does not wait for the disk."""
    with MariaDb(flush=0) as server, migrated(server) as url:
        yield url


@pytest.fixture(scope="session")
def mysql_store() -> Iterator[str]:
    """As ``mariadb_store``, on MySQL."""
    with MySql(flush=0) as server, migrated(server) as url:
        yield url


@pytest.fixture
def clock() -> VirtualClock:
    """Stands at T0; ``database_now`` is the store's clock."""
    return VirtualClock()


@pytest.fixture
def store_kind(request: pytest.FixtureRequest) -> tuple[Kind, str]:
    kind = STORES[request.param]
    return kind, request.getfixturevalue(kind.url_fixture) if kind.url_fixture else ""


@pytest.fixture
async def view(
    store_kind: tuple[Kind, str], clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[View]:
    """Makes repositories on one empty store."""
    kind, url = store_kind
    async with kind.open(Setup(clock.database_now, RULES, tmp_path, url)) as make:
        yield make


@pytest.fixture
async def repo(view: View) -> AsyncIterator[Repo]:
    made = await view()
    yield made
    await made.close()


@pytest.fixture
async def world(view: View, repo: Repo, clock: VirtualClock) -> AsyncIterator[World]:
    other = await view()
    yield World(clock, repo, other)
    await other.close()


@pytest.fixture
async def new_world(
    store_kind: tuple[Kind, str], clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[NewWorld]:
    """The world of a story on this store; one in a test, because it empties the store."""
    kind, url = store_kind
    async with AsyncExitStack() as stack:

        async def make(rules: Rules | None = None) -> StoryWorld:
            rules = rules or Rules(default_callback_url=AGENT)
            setup = Setup(clock.database_now, rules, tmp_path, url)
            open_view = await stack.enter_async_context(kind.open(setup))

            async def view() -> Faulty:
                made = await open_view()
                stack.push_async_callback(made.close)
                return Faulty(made)

            repo = await view()
            place = Store(clock, view, repo, await repo.installation_id())
            return StoryWorld(rules, store=place)

        yield make
