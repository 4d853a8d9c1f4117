"""The shipped fakes themselves: time, faults, scripts and locks."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from crontask_core.errors import Unavailable
from crontask_core.events import LockUnavailable, ReportReceived
from crontask_core.model import Callback, TaskStatus
from crontask_core.policy import Answer, Pause
from crontask_core.ports import EditRequest, TaskRef
from crontask_core.testing import (
    START,
    MemoryLock,
    MemoryRepo,
    MemoryStore,
    RecordingObserver,
    ScriptedAgent,
    VirtualClock,
    accept,
    respond,
    timeout,
)
from tests.builders import RULES, at, every, once

# -- time ------------------------------------------------------------------------------------------


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    assert (clock.now(), clock.elapsed(), clock.database_now()) == (START, 0.0, START)
    clock.tick(1.5)
    assert (clock.now(), clock.elapsed()) == (at(seconds=1.5), 1.5)


async def test_sleepers_wake_in_order_each_at_its_own_instant() -> None:
    clock = VirtualClock()
    heard: list[tuple[str, float]] = []

    async def nap(name: str, *naps: float) -> None:
        for seconds in naps:
            await clock.sleep(seconds)
            heard.append((name, clock.elapsed()))

    tasks = [asyncio.create_task(nap("a", 3, 3)), asyncio.create_task(nap("b", 2, 2, 2))]
    await clock.settle()
    assert clock.sleepers() == [2.0, 3.0]
    await clock.advance(5)
    assert heard == [("b", 2.0), ("a", 3.0), ("b", 4.0)]
    assert clock.sleepers() == [6.0, 6.0]
    await clock.advance(1)
    assert heard[3:] == [("a", 6.0), ("b", 6.0)]
    await asyncio.gather(*tasks)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.settle()
    task.cancel()
    await clock.settle()
    assert clock.sleepers() == []
    await clock.advance(10)
    assert task.cancelled()


async def test_sleeping_for_nothing_gives_others_a_turn() -> None:
    clock = VirtualClock()
    other = asyncio.create_task(clock.sleep(0))
    await clock.sleep(0)
    await clock.sleep(0)
    assert other.done()


async def test_the_databases_clock_jumps_apart_from_elapsed_time() -> None:
    clock = VirtualClock()
    clock.tick(10)
    clock.jump(-60)
    assert clock.database_now() == at(seconds=-50)
    assert (clock.now(), clock.elapsed()) == (at(seconds=10), 10.0)
    assert clock.observe(clock.database_now(), clock.elapsed()) == timedelta(seconds=-60)
    assert clock.now() == at(seconds=10)  # never backwards
    clock.tick(61)
    assert clock.now() == at(seconds=11)
    clock.jump(3600)
    assert clock.observe(clock.database_now(), clock.elapsed()) == timedelta(hours=1)
    assert clock.now() == at(hours=1, seconds=11)


# -- faults ----------------------------------------------------------------------------------------


async def test_a_call_fails_before_anything_is_written() -> None:
    repo = MemoryRepo(now=VirtualClock().database_now)
    repo.fail_before("add_tasks")
    with pytest.raises(Unavailable) as caught:
        await repo.add_tasks([every()])
    assert caught.value.retryable is True
    assert repo.store.tasks == {}
    assert len(await repo.add_tasks([every()])) == 1


async def test_a_commit_may_be_lost_on_the_way_back_though_all_is_written() -> None:
    clock = VirtualClock()
    store = MemoryStore()
    repo = MemoryRepo(store, now=clock.database_now, rules=RULES)
    other = MemoryRepo(store, now=clock.database_now, rules=RULES)
    await repo.add_tasks([once("k", START)])
    repo.fail_after_commit("claim")
    with pytest.raises(Unavailable):
        await repo.claim("n1", 10, 10)
    assert [e.executor_node for e, _ in await other.mine("n1")] == ["n1"]
    assert (await repo.claim("n1", 10, 10)).tasks == 0


async def test_a_store_that_is_down_answers_nothing_until_it_is_up() -> None:
    repo = MemoryRepo(now=VirtualClock().database_now)
    repo.down = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            await repo.horizon()
    repo.down = False
    assert (await repo.horizon()).waiting is False


async def test_a_fault_may_be_of_any_kind_and_hit_whatever_comes_next() -> None:
    repo = MemoryRepo(now=VirtualClock().database_now)
    repo.fail_before("*", times=2, error=ConnectionError("gone"))
    for call in (repo.horizon, repo.nodes):
        with pytest.raises(ConnectionError):
            await call()
    assert await repo.nodes() == []


async def test_a_transaction_that_breaks_half_way_leaves_nothing() -> None:
    clock = VirtualClock()
    repo = MemoryRepo(now=clock.database_now, rules=RULES)
    [good, bad] = [a.task for a in await repo.add_tasks([every("a"), every("b", interval_ms=None)])]
    before = dict(repo.store.tasks)
    clock.tick(600)
    requests = [
        EditRequest(user_id=None, ref=TaskRef(id=task.id), edit=Pause()) for task in (good, bad)
    ]
    with pytest.raises(ValueError, match="without interval_ms"):
        await repo.edit_tasks(requests)
    assert repo.store.tasks == before
    assert repo.store.executions == {}
    await repo.edit_tasks(requests[:1])
    assert repo.store.tasks[good.id].status is TaskStatus.DISABLED
    assert len(repo.store.executions) == 1


# -- agents ----------------------------------------------------------------------------------------


def callback(task_id: int = 1, fire_id: str = "f", attempt: int = 1) -> Callback:
    return Callback(
        url="http://agent.test",
        task_id=task_id,
        task_key=f"key-{task_id}",
        task_name="n",
        user_id="ann",
        conversation_id="c",
        task_content="do",
        fire_time=START,
        timezone="UTC",
        schedule_type=1,
        fire_count=1,
        fire_id=fire_id,
        execution_id=9,
        attempt=attempt,
        revision=1,
    )


async def test_an_agent_accepts_everything_unless_told_otherwise() -> None:
    agent = ScriptedAgent()
    assert await agent.call(callback()) == accept("run-1-9-1")
    assert agent.calls == [callback()]
    await agent.close()
    assert agent.closed is True


async def test_a_script_is_followed_by_fire_then_by_task_then_by_default() -> None:
    agent = ScriptedAgent(default=accept("default"))
    agent.script("f", timeout())
    agent.script(1, respond(503))
    agent.script("key-1", respond(400))
    answers = [await agent.call(callback()) for _ in range(4)]
    assert answers == [timeout(), respond(503), respond(400), accept("default")]
    assert await agent.call(callback(2, "g")) == accept("default")
    assert len(agent.calls_of(1)) == len(agent.calls_of("key-1")) == 4


async def test_an_agent_may_take_its_time_and_counts_what_is_in_flight() -> None:
    clock = VirtualClock()

    async def slow(call: Callback) -> Answer:
        await clock.sleep(30)
        return accept(f"slow-{call.fire_id}")

    agent = ScriptedAgent(default=slow)
    calls = [asyncio.create_task(agent.call(callback(fire_id=f"f{n}"))) for n in range(3)]
    await clock.settle()
    assert (agent.in_flight, agent.most_in_flight) == (3, 3)
    await clock.advance(30)
    assert [task.result() for task in calls] == [accept(f"slow-f{n}") for n in range(3)]
    assert (agent.in_flight, agent.most_in_flight) == (0, 3)


def test_an_observer_keeps_events_in_order_and_by_class() -> None:
    observer = RecordingObserver()
    told = ReportReceived(task_id=1, status="success", duplicate=False, late=False, pending=False)
    observer.on(LockUnavailable(error="slow"))
    observer.on(told)
    assert observer.events == [LockUnavailable(error="slow"), told]
    assert observer.of(ReportReceived) == [told]


# -- lock ------------------------------------------------------------------------------------------


async def test_one_owner_holds_a_key_until_it_lets_go_or_five_seconds_are_over() -> None:
    clock = VirtualClock()
    held: dict[str, tuple[str, float]] = {}
    a, b = (MemoryLock(held, name, clock.elapsed) for name in "ab")
    assert await a.try_acquire_many(["x", "y"]) == [True, True]
    assert await b.try_acquire_many(["y", "z"]) == [False, True]
    assert await a.try_acquire_many(["x", "z"]) == [True, False]
    await b.release_many(["x", "z"])
    assert await b.try_acquire_many(["x"]) == [False]
    await a.release_many(["x"])
    assert await b.try_acquire_many(["x"]) == [True]
    clock.tick(5)
    assert await b.try_acquire_many(["y"]) == [True]


async def test_a_lost_lock_service_stops_nobody() -> None:
    clock = VirtualClock()
    held: dict[str, tuple[str, float]] = {}
    a, b = (MemoryLock(held, name, clock.elapsed) for name in "ab")
    await a.try_acquire_many(["x"])
    b.down = True
    assert await b.try_acquire_many(["x"]) == [True]
