"""The stories of the engine, told on every store: what holds in memory holds on a database.

And one that only means something where nodes really are at work at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from crontask_core.model import ExecStatus
from crontask_core.testing import respond
from tests.unit.test_engine import *  # noqa: F403 - the stories are told there
from tests.world import NewWorld


@pytest.mark.requirement("A5.5", "A6.3")
async def test_four_nodes_at_work_at_once_call_every_fire_once_and_again_only_after_a_503(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    nodes = [await world.node(concurrency=10) for _ in range(4)]
    for n in range(60):
        task = await world.create(f"t{n}", user=f"user-{n % 7}", interval_seconds=60)
        if n % 10 == 0:
            world.agent.script(task.id, respond(503))

    for _ in range(20):
        world.clock.tick(5)
        while any(await asyncio.gather(*(node.turn() for node in nodes))):
            pass

    fires = Counter(call.fire_id for call in world.agent.calls)
    assert len(fires) == 60
    assert sorted(Counter(fires.values()).items()) == [(1, 54), (2, 6)]
    states = [
        e.exec_status for n in range(60) for e in await world.executions(f"t{n}", f"user-{n % 7}")
    ]
    assert states == [ExecStatus.RUNNING] * 60
