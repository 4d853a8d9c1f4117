"""Begin: who is called next. The queue, its fairness, and fires that wait too long."""

from __future__ import annotations

import asyncio

import pytest

from crontask_core.model import ExecStatus, TaskStatus
from crontask_core.policy import Pause, Update
from tests.builders import accepted, at, every, once, refused, retry, unreachable
from tests.contract.world import World

SLOW = "http://slow.test:8080/hook"
FAST = "http://fast.test/hook"


async def test_without_free_slots_a_due_fire_waits_in_the_queue(world: World) -> None:
    execution = await world.queue(every())
    assert (execution.exec_status, execution.fence) == (ExecStatus.PENDING, 0)
    assert (execution.executor_node, execution.start_time) == ("", None)
    assert execution.next_action_at == at(minutes=40)  # its give-up time
    assert (await world.repo.horizon()).waiting is True


async def test_with_an_empty_queue_free_slots_are_used_at_once_and_the_rest_wait(
    world: World,
) -> None:
    await world.add(*(every(f"k{n}") for n in range(5)))
    world.tick(minutes=10)
    claimed = await world.claim(slots=2)
    assert (len(claimed.started), claimed.queued) == (2, 3)


async def test_while_fires_wait_new_ones_line_up_behind_them(world: World) -> None:
    first = await world.queue(once("first", at(minutes=1)))
    await world.add_one(once("second", at(minutes=1)))
    claimed = await world.claim(slots=50)
    assert (claimed.started, claimed.queued) == ((), 1)
    begun = await world.begin(slots=1)
    assert [e.id for e, _ in begun.started] == [first.id]


async def test_a_waiting_fire_is_taken_and_begun(world: World) -> None:
    waiting = await world.queue(every())
    world.tick(seconds=5)
    begun = await world.begin("n2")
    [(execution, task)] = begun.started
    assert begun.now == at(minutes=10, seconds=5)
    assert execution == await world.execution(waiting)
    assert (execution.exec_status, execution.fence) == (ExecStatus.CALLING, 1)
    assert (execution.executor_node, execution.start_time) == ("n2", begun.now)
    assert execution.next_action_at == at(minutes=11, seconds=5)
    assert task.task_content == "do what tick says"
    assert (await world.repo.horizon()).waiting is False
    assert (await world.begin()).started == ()


async def test_no_more_fires_are_begun_than_there_are_slots(world: World) -> None:
    await world.add(*(every(f"k{n}") for n in range(5)))
    world.tick(minutes=10)
    await world.claim(slots=0)
    assert (await world.begin(slots=0)).started == ()
    first = await world.begin(slots=3)
    assert (len(first.started), first.more) == (3, True)
    second = await world.begin(slots=3)
    assert (len(second.started), second.more) == (2, False)


@pytest.mark.requirement("A5.5")
async def test_nodes_that_begin_at_once_never_take_the_same_fire(world: World) -> None:
    await world.add(*(every(f"k{n}") for n in range(20)))
    world.tick(minutes=10)
    await world.claim(slots=0)
    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).begin(f"n{n % 2}", 7) for n in range(6))
    )
    taken = [execution.id for begun in answers for execution, _ in begun.started]
    assert len(taken) == len(set(taken))
    taken += [execution.id for execution, _ in (await world.begin()).started]
    assert sorted(taken) == sorted(e.id for e in await world.executions())
    assert {e.fence for e in await world.executions()} == {1}


# -- fair by user ----------------------------------------------------------------------------------


@pytest.mark.requirement("X-F2")
async def test_another_users_single_fire_passes_between_a_users_many(world: World) -> None:
    await world.add(*(every(f"k{n}", user_id="ann") for n in range(30)))
    world.tick(minutes=10)
    await world.claim(slots=0)
    await world.queue(once("lone", at(minutes=10, seconds=1), user_id="bea"))
    begun = await world.begin(slots=2)
    assert sorted(t.user_id for _, t in begun.started) == ["ann", "bea"]


@pytest.mark.requirement("X-F2")
async def test_users_who_wait_take_turns(world: World) -> None:
    await world.add(*(every(f"a{n}", user_id="ann") for n in range(4)))
    await world.add(*(every(f"b{n}", user_id="bea") for n in range(3)))
    await world.add(every("c", user_id="cy"))
    world.tick(minutes=10)
    await world.claim(slots=0)
    order = []
    while (begun := await world.begin(slots=1)).started:
        order += [task.user_id for _, task in begun.started]
    assert [sorted(order[:3]), sorted(order[3:5]), sorted(order[5:7]), order[7:]] == [
        ["ann", "bea", "cy"],
        ["ann", "bea"],
        ["ann", "bea"],
        ["ann"],
    ]


@pytest.mark.requirement("X-F2")
async def test_the_fast_path_is_fair_too(world: World) -> None:
    await world.add(*(every(f"a{n}", user_id="ann") for n in range(10)))
    await world.add(every("b", user_id="bea"))
    world.tick(minutes=10)
    claimed = await world.claim(slots=2)
    assert sorted(t.user_id for _, t in claimed.started) == ["ann", "bea"]


@pytest.mark.requirement("X-F2")
async def test_fires_of_one_user_keep_their_order(world: World) -> None:
    for n in range(4):
        await world.queue(once(f"k{n}", at(minutes=1 + n)))
    order = []
    while (begun := await world.begin(slots=1)).started:
        order += [task.task_key for _, task in begun.started]
    assert order == ["k0", "k1", "k2", "k3"]


# -- fair by host ----------------------------------------------------------------------------------


@pytest.mark.requirement("X-F1")
async def test_a_capped_host_is_passed_over_and_the_others_are_called(world: World) -> None:
    await world.add(*(every(f"s{n}", callback_url=SLOW) for n in range(3)))
    await world.add(every("f", callback_url=FAST), every("d"))
    world.tick(minutes=10)
    claimed = await world.repo.claim("n1", 10, 10, capped_hosts={"slow.test:8080"})
    assert sorted(t.task_key for _, t in claimed.started) == ["d", "f"]
    assert claimed.queued == 3
    begun = await world.repo.begin("n1", 10, capped_hosts=["slow.test:8080"])
    assert (begun.started, begun.more) == ((), False)
    assert len((await world.begin()).started) == 3


@pytest.mark.requirement("X-F1")
async def test_the_default_address_counts_as_a_host(world: World) -> None:
    await world.queue(every("d"))
    await world.queue(every("f", callback_url=FAST))
    begun = await world.repo.begin("n1", 10, capped_hosts=["agent.test"])
    assert [t.task_key for _, t in begun.started] == ["f"]


# -- what becomes of a fire that waits -------------------------------------------------------------


@pytest.mark.requirement("X-F5")
async def test_a_waiting_fire_of_a_task_that_was_paused_meanwhile_is_cancelled(
    world: World,
) -> None:
    """Pausing cancels what waits; a pause after failures is noticed here."""
    task = await world.add_one(every(pause_after_failures=1))
    world.tick(minutes=10)
    [(first, _)] = (await world.claim()).started
    world.tick(minutes=10)
    await world.claim(slots=0)
    await world.settle(first, refused())
    assert await world.status(task) is TaskStatus.DISABLED
    begun = await world.begin()
    assert begun.started == ()
    [ended] = begun.ended
    assert (ended.exec_status, ended.reason) == (ExecStatus.CANCELLED, "paused before the call")
    assert ended == await world.execution(ended)
    assert (await world.repo.horizon()).waiting is False


@pytest.mark.requirement("A5.4")
async def test_a_fire_that_waited_longer_than_its_window_is_skipped(world: World) -> None:
    waiting = await world.queue(every())
    world.tick(minutes=30)
    begun = await world.begin()
    assert begun.started == ()
    [ended] = begun.ended
    assert (ended.id, ended.exec_status) == (waiting.id, ExecStatus.SKIPPED)
    assert ended.reason == "too late: no slot within the window"


@pytest.mark.requirement("A5.4")
async def test_a_retry_that_waited_longer_than_its_window_has_failed(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry())
    world.tick(seconds=10)
    await world.sweep()
    world.tick(minutes=30)
    [ended] = (await world.begin()).ended
    assert (ended.id, ended.exec_status) == (execution.id, ExecStatus.FAILED)
    assert ended.reason == "no slot for the retry within the window"


async def test_a_fire_handed_back_unsent_waits_again_and_is_not_an_attempt(world: World) -> None:
    execution = await world.call(every())
    world.tick(seconds=1)
    settled = await world.settle(execution, None)
    assert (settled.lost, settled.after.exec_status) == (False, ExecStatus.PENDING)
    assert settled.after.retry_count == 0
    assert settled.after == await world.execution(execution)
    assert await world.attempts(execution) == ()
    [(again, _)] = (await world.begin("n2")).started
    assert (again.id, again.fence, again.executor_node) == (execution.id, 2, "n2")


async def test_a_handed_back_fire_lines_up_behind_those_that_wait(world: World) -> None:
    execution = await world.call(every("mine"))
    for n in range(3):
        await world.queue(once(f"k{n}", at(minutes=10)))
    await world.settle(execution, None)
    order = [task.task_key for _, task in (await world.begin()).started]
    assert order == ["k0", "k1", "k2", "mine"]


async def test_a_task_paused_while_its_retry_waits_is_not_called_again(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, unreachable())
    task = await world.task(execution.task_id)
    assert (await world.edit(task, Pause())).cancelled == 1
    world.tick(minutes=1)
    assert (await world.sweep()).moved == ()
    assert (await world.begin()).started == ()
    assert (await world.execution(execution)).exec_status is ExecStatus.CANCELLED


async def test_an_attempt_sends_the_task_as_it_is_at_that_moment(world: World) -> None:
    waiting = await world.queue(every())
    task = await world.task(waiting.task_id)
    await world.edit(task, Update((("task_content", "changed"),)))
    [(_, sent)] = (await world.begin()).started
    assert (sent.task_content, sent.revision) == ("changed", 2)


async def test_a_fire_that_was_begun_does_not_wait_any_more(world: World) -> None:
    execution = await world.queue(every())
    await world.begin()
    await world.settle(await world.execution(execution), accepted())
    assert (await world.begin()).started == ()
    assert (await world.repo.horizon()).waiting is False
