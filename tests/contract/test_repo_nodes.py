"""Nodes: heartbeats, one winner when a dead one is retired, and what it leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from crontask_core.model import AttemptClass, Delivery, ExecStatus
from tests.builders import T0, accepted, at, every, node, once, refused, report
from tests.contract.world import World


async def test_a_node_registers_and_is_seen(world: World) -> None:
    row = node("n1", roles="scheduler,mcp", version="0.1.0")
    assert await world.repo.register(row) == T0
    assert await world.other.nodes() == [row]


async def test_a_heartbeat_moves_the_counter_and_tells_the_time(world: World) -> None:
    await world.register("n1", "n2")
    world.tick(seconds=2)
    assert await world.repo.heartbeat("n1") == (at(seconds=2), True)
    world.tick(seconds=2)
    assert await world.repo.heartbeat("n1") == (at(seconds=4), True)
    first, second = await world.repo.nodes()
    assert (first.counter, first.seen_at, first.started_at) == (2, at(seconds=4), T0)
    assert (second.counter, second.seen_at) == (0, T0)


async def test_a_node_nobody_knows_is_told_that_it_is_out(world: World) -> None:
    assert await world.repo.heartbeat("ghost") == (T0, False)


async def test_a_retired_node_is_told_that_it_is_out(world: World) -> None:
    await world.register("n1", "n2")
    world.tick(seconds=20)
    await world.repo.retire([("n1", 0)], "silent")
    assert await world.repo.heartbeat("n1") == (at(seconds=20), False)
    assert [n.incarnation for n in await world.repo.nodes()] == ["n2"]
    gone = next(n for n in await world.repo.nodes(retired=True) if n.incarnation == "n1")
    assert (gone.retired_at, gone.counter) == (at(seconds=20), 0)


async def test_a_node_whose_counter_moved_is_not_retired(world: World) -> None:
    await world.register("n1")
    execution = await world.call(every())
    await world.repo.heartbeat("n1")
    assert await world.repo.retire([("n1", 0)], "silent") == []
    assert [n.incarnation for n in await world.repo.nodes()] == ["n1"]
    assert await world.execution(execution) == execution


async def test_what_a_dead_node_was_calling_is_taken_over(world: World) -> None:
    await world.register("n1", "n2")
    execution = await world.call(every())
    running = await world.run(once("other", at(minutes=10)))
    world.tick(seconds=15)
    [moved] = await world.repo.retire([("n1", 0)], "node n1 is silent")
    assert moved.before == execution
    assert moved.after == await world.execution(execution)
    assert (moved.after.exec_status, moved.after.takeovers) == (ExecStatus.PENDING, 1)
    assert moved.after.reason == "taken over: node n1 is silent"
    assert await world.execution(running) == running
    [attempt] = await world.attempts(execution)
    assert (attempt.outcome, attempt.error) == (AttemptClass.UNKNOWN, "node n1 is silent")
    [(again, _)] = (await world.begin("n2")).started
    assert (again.id, again.fence) == (execution.id, 2)


async def test_a_dead_node_has_one_heir(world: World) -> None:
    await world.register("n1")
    execution = await world.call(every())
    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).retire([("n1", 0)], "silent") for n in range(4))
    )
    assert sorted(len(moved) for moved in answers) == [0, 0, 0, 1]
    assert (await world.execution(execution)).takeovers == 1


async def test_several_dead_nodes_are_retired_together(world: World) -> None:
    await world.register("n1", "n2", "n3")
    await world.repo.heartbeat("n2")
    moved = await world.repo.retire([("n1", 0), ("n2", 0), ("n3", 0), ("ghost", 0)], "silent")
    assert moved == []
    assert [n.incarnation for n in await world.repo.nodes()] == ["n2"]
    assert await world.repo.retire([], "nobody") == []


async def test_what_may_not_be_sent_twice_fails_when_its_node_dies(world: World) -> None:
    await world.register("n1")
    execution = await world.call(every(delivery=Delivery.AT_MOST_ONCE))
    [moved] = await world.repo.retire([("n1", 0)], "node n1 is silent")
    assert moved.after.exec_status is ExecStatus.FAILED
    assert moved.after.reason == "outcome unknown: node n1 is silent"
    assert (await world.task(execution.task_id)).failure_streak == 1


async def test_a_retired_node_that_wakes_still_settles_what_nobody_began_again(
    world: World,
) -> None:
    await world.register("n1", "n2")
    kept = await world.call(every("kept"))
    await world.repo.retire([("n1", 0)], "silent")
    assert (await world.settle(kept, accepted("run-kept"))).lost is False
    assert (await world.begin("n2")).started == ()


@pytest.mark.requirement("A6.2r")
async def test_a_report_for_the_run_of_a_dead_node_is_found_by_its_attempt(world: World) -> None:
    await world.register("n1", "n2")
    execution = await world.call(every())
    await world.repo.retire([("n1", 0)], "silent")
    await world.begin("n2")
    assert (await world.settle(execution, accepted("old-run"))).lost is True
    told = await world.report(report(execution.task_id, "old-run", result="done"))
    assert told.execution is not None
    assert (told.execution.id, told.execution.exec_status) == (execution.id, ExecStatus.SUCCESS)


async def test_a_node_finds_the_calls_that_are_its_own(world: World) -> None:
    await world.add(every("a"), every("b"), every("c"), every("d"))
    world.tick(minutes=10)
    begun = [execution for execution, _ in (await world.claim("n1", slots=3)).started]
    [(other, _)] = (await world.begin("n2")).started
    await world.settle(begun[0], accepted())
    mine = await world.repo.mine("n1")
    assert sorted(e.id for e, _ in mine) == sorted(e.id for e in begun[1:])
    assert all(e.exec_status is ExecStatus.CALLING and e.task_id == t.id for e, t in mine)
    assert {t.task_content for _, t in mine} <= {f"do what {k} says" for k in "abcd"}
    assert [e.id for e, _ in await world.repo.mine("n2")] == [other.id]
    assert await world.repo.mine("n3") == []


async def test_a_settled_call_is_nobodys_any_more(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, refused())
    assert await world.repo.mine("n1") == []
