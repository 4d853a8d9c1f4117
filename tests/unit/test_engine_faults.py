"""Stories of faults that fall between two steps; each was first met in a simulated history."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from crontask_core.errors import Unavailable
from crontask_core.model import ExecStatus, Execution
from crontask_core.policy import QueueView, inbox_report, plan_settle
from tests.builders import RULES, T0, accepted, every, outcome, report
from tests.world import Node, World


class Gate:
    """Holds back the answers of one method of a node's repository, after its commit."""

    def __init__(self, node: Node, method: str) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self._real = getattr(node.repo, method)
        setattr(node.repo, method, self._call)

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self._real(*args, **kwargs)
        self.asked.set()
        await self.open.wait()
        return answer


async def test_a_claim_without_an_answer_is_adopted_at_once_even_when_nothing_else_is_due() -> None:
    world = World()
    node = await world.node()
    await world.create("one", delay_seconds=0, delivery="at_most_once")
    node.repo.fail_after_commit("claim")
    with pytest.raises(Unavailable):
        await node.engine.claim()

    await world.run()

    assert len(world.agent.calls) == 1
    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.RUNNING


@pytest.mark.requirement("A5.5")
async def test_a_fire_that_is_settled_while_a_node_looks_for_forgotten_ones_is_not_sent_again() -> (
    None
):
    world = World()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    await node.engine.claim()
    await node.deliver()
    await world.create("two", delay_seconds=0)
    node.repo.fail_before("claim")
    with pytest.raises(Unavailable):
        await node.engine.claim()
    gate = Gate(node, "mine")

    looking = asyncio.create_task(node.engine.claim())
    await gate.asked.wait()
    await node.engine.settle()
    gate.open.set()
    await looking
    await node.deliver()

    assert [call.task_key for call in world.agent.calls] == ["one", "two"]


async def test_a_node_without_a_fresh_heartbeat_begins_nothing_that_it_could_not_send() -> None:
    world = World()
    node = await world.node(concurrency=1)
    await world.create("one", delay_seconds=0)
    world.clock.tick(6)

    await node.engine.claim()
    for _ in range(5):
        await node.engine.horizon()
        await node.engine.begin()
        await node.deliver()
        await node.engine.settle()

    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.fence) == (ExecStatus.PENDING, 0)
    await node.turn()
    assert len(world.agent.calls) == 1


@pytest.mark.requirement("A5.2")
async def test_a_heartbeat_while_a_node_leaves_does_not_bring_it_back() -> None:
    world = World()
    node = await world.node()
    node.engine.stopping = True
    gate = Gate(node, "nodes")

    leaving = asyncio.create_task(node.engine.leave())
    await gate.asked.wait()
    await node.engine.heartbeat()
    gate.open.set()
    await leaving

    assert [n.incarnation for n in await world.repo.nodes()] == []


async def test_an_answer_does_not_settle_another_fire_that_got_the_same_number() -> None:
    """A database that fails over and loses a fire gives its number to the next one."""
    world = World()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    await node.engine.claim()
    await node.deliver()
    (lost,) = await world.executions("one")
    world.store.begin()
    world.store.remove_execution(lost)
    world.store.put(world.store.tasks, lost.task_id, None)
    world.store._last_execution -= 1

    await world.create("two", delay_seconds=0)
    other = await world.node()
    await other.engine.claim()
    await node.engine.settle()
    (two,) = await world.executions("two")
    assert (two.id, two.exec_status) == (lost.id, ExecStatus.CALLING)
    assert (await world.repo.attempts([two.id]))[two.id] == ()
    await world.run()

    assert [call.task_key for call in world.agent.calls] == ["one", "two"]
    (two,) = await world.executions("two")
    assert two.exec_status is ExecStatus.RUNNING


@pytest.mark.requirement("A5.2")
async def test_a_node_leaves_although_a_heartbeat_of_its_own_comes_in_between() -> None:
    world = World()
    node = await world.node()
    node.engine.stopping = True
    gate = Gate(node, "nodes")

    leaving = asyncio.create_task(node.engine.leave())
    await gate.asked.wait()
    await world.repo.heartbeat(node.engine.node.incarnation)
    gate.open.set()
    await leaving

    assert await world.repo.nodes() == []


@pytest.mark.requirement("A6.2r")
async def test_an_early_report_of_a_fire_that_a_fail_over_made_a_missed_one_stops_nobody() -> None:
    """The begin was lost with the fail-over, and the fire is recorded as skipped since."""
    skipped = Execution(
        id=1,
        fire_id="f",
        task_id=1,
        task_key="tick",
        user_id="ann",
        fire_time=T0,
        exec_status=ExecStatus.SKIPPED,
        missed_count=1,
        created_at=T0,
        updated_at=T0,
    )
    task = every(id=1)
    answer = outcome(attrs.evolve(skipped, fence=1), accepted("run-1"), T0)
    note = inbox_report(report(1, "run-1", "failed"), T0, T0)

    _, [settled] = plan_settle(
        [(answer, skipped, task)], {(1, "run-1"): note}, QueueView(), "n1", T0, RULES
    )

    assert (settled.after, settled.lost) == (skipped, True)
