"""What unit tests share: the world of a story is in memory."""

from __future__ import annotations

import pytest

from crontask_core.model import Rules
from tests.world import NewWorld, World


@pytest.fixture
def new_world() -> NewWorld:
    async def make(rules: Rules | None = None) -> World:
        return World(rules)

    return make
