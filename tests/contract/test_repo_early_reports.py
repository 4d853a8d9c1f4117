"""Reports that come before we know the run, and of runs whose node lost its fence."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from crontask_core.model import ExecStatus, Execution, TaskStatus
from tests.builders import accepted, at, every, once, report, retry
from tests.contract.world import World, bad

pytestmark = pytest.mark.requirement("A6.2r")


async def _taken_over_and_called_again(world: World) -> Execution:
    """n1's call, now called again by n2. Returns the execution as n1 began it."""
    execution = await world.call(every())
    world.tick(seconds=60)
    await world.sweep()
    await world.begin("n2")
    return execution


# -- early: the agent is faster than we are --------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"), [("success", ExecStatus.SUCCESS), ("failed", ExecStatus.FAILED)]
)
async def test_a_report_before_its_run_id_is_known_is_kept_and_applied(
    world: World, status: str, expected: ExecStatus
) -> None:
    calling = await world.call(once("k"))
    told = await world.report(report(calling.task_id, "fast", status, result="r", error="e"))
    assert (told.pending, told.recorded, told.execution) == (True, True, None)
    assert await world.execution(calling) == calling
    world.tick(seconds=2)
    settled = await world.settle(calling, accepted("fast"))
    assert (settled.reported, settled.lost) == (True, False)
    after = await world.execution(calling)
    assert (after, after.exec_status) == (settled.after, expected)
    assert (after.task_run_id, after.ga_result, after.late) == ("fast", "r", False)
    assert (after.reported_at, after.accepted_at) == (at(minutes=10), at(minutes=10, seconds=2))
    assert await world.status(await world.task(calling.task_id)) is TaskStatus.COMPLETED
    again = await world.report(report(calling.task_id, "fast", status))
    assert (again.duplicate, again.pending) == (True, False)


async def test_a_report_after_its_run_id_is_known_needs_no_waiting(world: World) -> None:
    calling = await world.call(every())
    await world.settle(calling, accepted("slow"))
    told = await world.report(report(calling.task_id, "slow"))
    assert (told.pending, told.duplicate) == (False, False)
    assert (await world.execution(calling)).exec_status is ExecStatus.SUCCESS


async def test_an_early_report_and_the_settle_at_once_end_in_the_report(world: World) -> None:
    tasks = [every(f"k{n}") for n in range(6)]
    calls = [await world.call(task) for task in tasks]

    async def settle(n: int) -> None:
        await world.settle(calls[n], accepted(f"fast-{n}"))

    async def tell(n: int) -> None:
        await world.other.report([report(calls[n].task_id, f"fast-{n}")])

    await asyncio.gather(*(f(n) for n in range(6) for f in (settle, tell)))
    rows = [await world.execution(e) for e in calls]
    assert [e.exec_status for e in rows] == [ExecStatus.SUCCESS] * 6


async def test_an_early_report_by_fire_id_needs_no_run_id(world: World) -> None:
    calling = await world.call(every())
    told = await world.report(report(calling.task_id, "fast", fire_id=calling.fire_id))
    assert (told.pending, told.late) == (False, False)
    after = await world.execution(calling)
    assert (after.exec_status, after.task_run_id) == (ExecStatus.SUCCESS, "fast")
    settled = await world.settle(calling, accepted("fast"))
    assert settled.lost is True
    assert await world.execution(calling) == after
    assert (await world.attempts(calling))[0].task_run_id == "fast"


async def test_the_same_early_report_again_is_a_duplicate_and_the_first_final_one_stands(
    world: World,
) -> None:
    calling = await world.call(every())
    answers = [
        await world.report(report(calling.task_id, "fast", status, result=status))
        for status in ("running", "success", "success", "failed", "running")
    ]
    assert all(a.pending and a.recorded for a in answers)
    assert [(a.duplicate, a.contradicts) for a in answers] == [
        (False, False),
        (False, False),
        (True, False),
        (True, True),
        (True, False),
    ]
    await world.settle(calling, accepted("fast"))
    after = await world.execution(calling)
    assert (after.exec_status, after.ga_result) == (ExecStatus.SUCCESS, "success")


async def test_an_early_report_waits_for_a_call_that_is_repeated(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry("no answer within 30 s"))
    assert (await world.report(report(execution.task_id, "fast"))).pending is True
    world.tick(seconds=10)
    await world.sweep()
    [(again, _)] = (await world.begin()).started
    settled = await world.settle(again, accepted("fast"))
    assert (settled.reported, settled.after.exec_status) == (True, ExecStatus.SUCCESS)


async def test_an_early_report_under_another_run_id_is_not_guessed_to_be_this_one(
    world: World,
) -> None:
    calling = await world.call(every())
    await world.report(report(calling.task_id, "something-else"))
    settled = await world.settle(calling, accepted("mine"))
    assert (settled.reported, settled.after.exec_status) == (False, ExecStatus.RUNNING)


async def test_an_early_report_is_kept_for_its_own_task(world: World) -> None:
    a, b = await world.call(every("a")), await world.call(once("b", at(minutes=10)))
    await world.report(report(a.task_id, "same"))
    assert (await world.settle(b, accepted("same"))).reported is False
    assert (await world.settle(a, accepted("same"))).reported is True


async def test_nothing_is_kept_for_a_task_that_calls_nobody(world: World) -> None:
    waiting = await world.queue(every("waiting"))
    error = bad(await world.try_report(report(waiting.task_id, "unknown")))
    assert error.code == "RUN_NOT_FOUND"
    world.tick(minutes=40)
    await world.sweep()
    assert bad(await world.try_report(report(waiting.task_id, "unknown"))).exit_code == 3


# -- after a take-over -----------------------------------------------------------------------------


async def test_the_run_of_a_node_that_lost_its_fence_can_be_reported(world: World) -> None:
    first = await _taken_over_and_called_again(world)
    assert (await world.settle(first, accepted("old"))).lost is True
    told = await world.report(report(first.task_id, "old"))
    assert told.execution is not None
    assert (told.execution.id, told.execution.exec_status) == (first.id, ExecStatus.SUCCESS)
    second = attrs.evolve(first, fence=2)
    assert (await world.settle(second, accepted("new"), node="n2")).lost is True
    assert (await world.report(report(first.task_id, "new"))).duplicate is True


async def test_an_early_report_of_a_run_whose_node_lost_its_fence_counts(world: World) -> None:
    first = await _taken_over_and_called_again(world)
    assert (await world.report(report(first.task_id, "old", result="done"))).pending is True
    settled = await world.settle(first, accepted("old"))
    assert (settled.lost, settled.reported) == (True, True)
    after = await world.execution(first)
    assert after == settled.after
    assert (after.exec_status, after.ga_result) == (ExecStatus.SUCCESS, "done")
    assert after.reported_at == at(minutes=11)
    assert (await world.report(report(first.task_id, "old"))).duplicate is True
