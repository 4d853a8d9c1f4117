"""Every test of this folder runs against every store of ``stores.STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crontask_core.ports import Repo
from crontask_core.testing import VirtualClock
from tests.builders import RULES
from tests.contract.stores import STORES, Kind, Setup, View
from tests.contract.world import World


@pytest.fixture
def clock() -> VirtualClock:
    """Stands at T0; ``database_now`` is the store's clock."""
    return VirtualClock()


@pytest.fixture(params=list(STORES))
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
