"""A process that is frozen between its decision to send and the write to the socket."""

from __future__ import annotations

import attrs
import pytest

from crontask_core.model import Callback, ExecStatus
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import MaySend, always
from crontask_core.testing import ScriptedAgent, VirtualClock
from tests.world import World


@attrs.define
class SlowToConnect:
    """An agent whose connection takes ``seconds``; ``asked`` is what the node then said."""

    agent: ScriptedAgent
    clock: VirtualClock
    seconds: float
    asked: list[bool] = attrs.Factory(list)

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        self.clock.tick(self.seconds)
        self.asked.append(may_send())
        if not self.asked[-1]:
            return Answer(kind=AnswerKind.UNSENT)
        return await self.agent.call(callback)

    async def close(self) -> None:
        await self.agent.close()


@pytest.mark.requirement("A5.5", "A5.2")
@pytest.mark.parametrize(("seconds", "sent"), [(4.9, True), (5.1, False)])
async def test_a_call_is_given_back_when_the_heartbeat_grew_old_while_it_connected(
    seconds: float, sent: bool
) -> None:
    world = World()
    node = await world.node()
    node.engine.client = slow = SlowToConnect(world.agent, world.clock, seconds)
    await world.create("one", delay_seconds=0)
    await node.turn()
    assert slow.asked == [sent]
    assert len(world.agent.calls) == int(sent)
    (row,) = world.store.executions.values()
    assert row.exec_status is (ExecStatus.RUNNING if sent else ExecStatus.PENDING)
    # Given back it is in the queue again, and the next begin sends it.
    slow.seconds = 0.0
    await node.turn()
    assert [call.fire_id for call in world.agent.calls] == [row.fire_id]
