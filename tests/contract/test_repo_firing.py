"""Claim: the one place that decides who fires. Due, late, missed, last, and at most once."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from crontask_core.model import (
    ExecStatus,
    MisfirePolicy,
    OverlapPolicy,
    TaskStatus,
    TriggerKind,
    fire_id_of,
)
from crontask_core.policy import Update
from crontask_core.ports import Horizon
from tests.builders import T0, accepted, at, cron, every, once, report
from tests.contract.world import World


async def test_nothing_is_due_in_an_empty_store(world: World) -> None:
    claimed = await world.claim()
    assert (claimed.now, claimed.tasks, claimed.started) == (T0, 0, ())
    assert (claimed.queued, claimed.skipped, claimed.broken, claimed.more) == (0, (), (), False)
    assert await world.repo.horizon() == Horizon(now=T0)
    assert await world.repo.due(10) == []


async def test_a_task_fires_at_its_instant_and_not_before(world: World) -> None:
    task = await world.add_one(every())
    world.clock.tick(600 - 0.000001)
    assert (await world.claim()).tasks == 0
    world.clock.tick(0.000001)
    assert await world.repo.due(10) == [(task.id, at(minutes=10))]
    assert (await world.claim()).tasks == 1


@pytest.mark.requirement("A6.1a")
async def test_a_due_task_becomes_a_call_with_a_fence_a_lease_and_its_own_fire_id(
    world: World,
) -> None:
    task = await world.add_one(every())
    world.tick(minutes=10, seconds=2)
    claimed = await world.claim("n1")
    [(execution, sent)] = claimed.started
    assert (claimed.now, claimed.tasks, claimed.queued) == (at(minutes=10, seconds=2), 1, 0)
    assert (sent.id, sent.task_content, sent.revision) == (task.id, "do what tick says", 1)
    assert execution == await world.execution(execution)
    assert execution.fire_id == fire_id_of(task.uid, TriggerKind.SCHEDULE, at(minutes=10))
    assert (execution.task_key, execution.user_id) == ("tick", "ann")
    assert (execution.exec_status, execution.fence) == (ExecStatus.CALLING, 1)
    assert (execution.executor_node, execution.fire_number) == ("n1", 1)
    assert execution.fire_time == at(minutes=10)
    assert execution.start_time == at(minutes=10, seconds=2)
    assert execution.next_action_at == at(minutes=11, seconds=2)
    after = await world.task(task)
    assert (after.next_fire_time, after.last_fire_time) == (at(minutes=20), at(minutes=10))
    assert (after.fire_count, after.scheduled_fires, after.revision) == (1, 1, 1)
    assert (await world.claim()).tasks == 0


@pytest.mark.requirement("A5.5")
async def test_two_nodes_that_claim_at_once_make_one_execution_per_fire(world: World) -> None:
    tasks = await world.add(*(every(f"k{n}") for n in range(12)))
    world.tick(minutes=10)
    answers = await asyncio.gather(
        *(
            (world.repo if n % 2 else world.other).claim(f"n{n % 2}", 200, 50, only=None)
            for n in range(6)
        )
    )
    started = [execution.id for claimed in answers for execution, _ in claimed.started]
    rows = await world.executions()
    assert sorted(e.task_id for e in rows) == [t.id for t in tasks]
    assert sorted(started) == sorted(e.id for e in rows)
    assert sum(claimed.tasks for claimed in answers) == 12


@pytest.mark.requirement("A5.5")
async def test_a_fire_that_is_on_record_is_not_made_again_and_the_task_still_advances(
    world: World,
) -> None:
    task = await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=1)
    for when in (at(minutes=5), at(minutes=1)):  # away and back to the instant on record
        await world.edit(task, Update((("trigger_time", when),)))
    [on_record] = await world.executions(task)
    claimed = await world.claim()
    assert (claimed.tasks, claimed.started, claimed.queued) == (1, (), 0)
    assert await world.executions(task) == [on_record]
    assert on_record.exec_status is ExecStatus.CANCELLED
    assert (await world.task(task)).next_fire_time is None
    assert (await world.claim()).tasks == 0


async def test_due_tasks_are_claimed_in_order_of_their_time_up_to_the_limit(world: World) -> None:
    late, early, middle = await world.add(
        once("late", at(minutes=3)), once("early", at(minutes=1)), once("middle", at(minutes=2))
    )
    world.tick(minutes=5)
    assert [n for n, _ in await world.repo.due(2)] == [early.id, middle.id]
    first = await world.claim(limit=2)
    assert [t.id for _, t in first.started] == [early.id, middle.id]
    assert (first.tasks, first.more) == (2, True)
    second = await world.claim(limit=2)
    assert ([t.id for _, t in second.started], second.more) == ([late.id], False)


async def test_only_the_tasks_named_are_claimed(world: World) -> None:
    a, b, _ = await world.add(every("a"), every("b"), every("c"))
    world.tick(minutes=10)
    claimed = await world.repo.claim("n1", 10, 10, only=[b.id, a.id, 999_999])
    assert sorted(t.id for _, t in claimed.started) == [a.id, b.id]
    assert (await world.repo.claim("n1", 10, 10, only=[])).tasks == 0
    assert len(await world.repo.due(10)) == 1


async def test_the_horizon_names_what_comes_next(world: World) -> None:
    await world.add(once("later", at(minutes=9)), once("soon", at(minutes=3)))
    assert await world.repo.horizon() == Horizon(now=T0, next_due=at(minutes=3))
    world.tick(minutes=3)
    await world.claim()
    assert await world.repo.horizon() == Horizon(
        now=at(minutes=3), next_due=at(minutes=9), next_action=at(minutes=4)
    )
    world.tick(minutes=6)
    await world.claim(slots=0)
    assert (await world.repo.horizon()).waiting is True


# -- late and missed -------------------------------------------------------------------------------


@pytest.mark.requirement("A5.4")
async def test_a_late_task_runs_its_latest_fire_and_records_the_older_as_one_row(
    world: World,
) -> None:
    task = await world.add_one(every())
    world.tick(minutes=45)
    claimed = await world.claim()
    [(run, _)] = claimed.started
    [skipped] = claimed.skipped
    assert (run.fire_time, run.fire_number) == (at(minutes=40), 1)
    assert skipped == await world.execution(skipped)
    assert (skipped.exec_status, skipped.missed_count) == (ExecStatus.SKIPPED, 3)
    assert (skipped.missed_from, skipped.missed_to) == (at(minutes=10), at(minutes=30))
    assert (skipped.fire_time, skipped.next_action_at) == (at(minutes=30), None)
    assert skipped.reason
    after = await world.task(task)
    assert (after.next_fire_time, after.fire_count, after.scheduled_fires) == (
        at(minutes=50),
        1,
        1,
    )


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(("late", "status"), [(30 * 60, 1), (30 * 60 + 1, 6)])
async def test_a_one_off_runs_up_to_thirty_minutes_late(
    world: World, late: float, status: int
) -> None:
    task = await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=1, seconds=late)
    await world.claim()
    [row] = await world.executions(task)
    assert row.exec_status == status


@pytest.mark.requirement("A5.4")
async def test_a_one_off_that_is_too_late_is_skipped_with_the_reason_and_over(
    world: World,
) -> None:
    task = await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=61, seconds=5)
    claimed = await world.claim()
    [row] = claimed.skipped
    assert row.reason == "too late: found 1:00:05 late, the window is 0:30:00"
    assert (row.missed_count, row.fire_time, row.fence) == (1, at(minutes=1), 0)
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.COMPLETED, None)
    assert (after.fire_count, after.last_fire_time) == (0, None)


@pytest.mark.requirement("A5.4")
async def test_a_recurring_task_that_is_too_late_goes_on(world: World) -> None:
    task = await world.add_one(cron("k", "0 9 * * *", at(days=1)))
    world.tick(minutes=24 * 60 + 31)
    claimed = await world.claim()
    assert (claimed.started, [e.missed_count for e in claimed.skipped]) == ((), [1])
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.ENABLED, at(days=2))
    assert after.scheduled_fires == 0


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(("missed", "count"), [(999, 999), (1_000, 1_000), (5_000, 1_001)])
async def test_missed_runs_are_counted_exactly_to_a_thousand(
    world: World, missed: int, count: int
) -> None:
    task = await world.add_one(every("k", seconds=60))
    world.tick(minutes=missed + 1)  # the latest one runs
    await world.claim()
    skipped, run = await world.executions(task)
    assert skipped.missed_count == count
    assert (skipped.missed_from, skipped.missed_to) == (at(minutes=1), at(minutes=missed))
    assert run.fire_time == at(minutes=missed + 1)


@pytest.mark.requirement("A5.4")
async def test_a_tasks_own_grace_replaces_the_window(world: World) -> None:
    strict, patient = await world.add(
        once("strict", at(minutes=1), misfire_grace_ms=0),
        once("patient", at(minutes=1), misfire_grace_ms=7_200_000),
    )
    world.tick(minutes=91)
    await world.claim()
    assert [e.exec_status for e in await world.executions(strict)] == [ExecStatus.SKIPPED]
    assert [e.exec_status for e in await world.executions(patient)] == [ExecStatus.CALLING]


@pytest.mark.requirement("A5.4")
async def test_run_all_makes_up_at_most_ten_inside_the_window(world: World) -> None:
    task = await world.add_one(every("k", seconds=60, misfire_policy=MisfirePolicy.RUN_ALL))
    world.tick(minutes=15)
    claimed = await world.claim()
    runs = sorted(e.fire_time for e, _ in claimed.started)
    assert runs == [at(minutes=n) for n in range(6, 16)]
    [skipped] = claimed.skipped
    assert (skipped.missed_count, skipped.missed_to) == (5, at(minutes=5))
    numbers = [e.fire_number for e in await world.executions(task) if e.fire_number]
    assert numbers == list(range(1, 11))
    assert (await world.task(task)).scheduled_fires == 10


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(("late", "status"), [(60, ExecStatus.CALLING), (61, ExecStatus.SKIPPED)])
async def test_skip_runs_nothing_that_is_more_than_a_minute_late(
    world: World, late: float, status: ExecStatus
) -> None:
    task = await world.add_one(every(misfire_policy=MisfirePolicy.SKIP))
    world.tick(minutes=10, seconds=late)
    await world.claim()
    [row] = await world.executions(task)
    assert row.exec_status is status


# -- the last fire ---------------------------------------------------------------------------------


@pytest.mark.requirement("A2.2")
async def test_a_one_off_is_completed_when_its_fire_is_over(world: World) -> None:
    execution = await world.run(once("k"))
    assert execution.last_fire is True
    task = await world.task(execution.task_id)
    assert (task.status, task.next_fire_time) == (TaskStatus.ENABLED, None)
    await world.report(report(task.id, "run-1"))
    assert await world.status(task) is TaskStatus.COMPLETED


@pytest.mark.requirement("X-S6")
async def test_max_fires_ends_a_recurring_task_after_its_last_fire(world: World) -> None:
    task = await world.add_one(every(max_fires=2))
    marks = []
    for run_id in ("r1", "r2"):
        world.tick(minutes=10)
        [(execution, _)] = (await world.claim()).started
        marks.append(execution.last_fire)
        await world.settle(execution, accepted(run_id))
        assert await world.status(task) is TaskStatus.ENABLED
        await world.report(report(task.id, run_id))
    assert marks == [False, True]
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.COMPLETED, None)
    assert (after.scheduled_fires, after.fire_count) == (2, 2)


@pytest.mark.requirement("X-S6")
async def test_fires_skipped_at_claim_do_not_count_towards_max_fires(world: World) -> None:
    task = await world.add_one(every(max_fires=2))
    world.tick(minutes=45)
    await world.claim()
    assert (await world.task(task)).scheduled_fires == 1
    world.tick(minutes=10)
    [(execution, _)] = (await world.claim()).started
    assert (execution.fire_time, execution.last_fire) == (at(minutes=50), True)


@pytest.mark.requirement("X-S6")
async def test_end_at_is_the_last_instant_that_fires(world: World) -> None:
    task = await world.add_one(every(end_at=at(minutes=20)))
    marks = []
    for _ in range(2):
        world.tick(minutes=10)
        [(execution, _)] = (await world.claim()).started
        marks.append(execution.last_fire)
    assert marks == [False, True]
    assert (await world.task(task)).next_fire_time is None


@pytest.mark.requirement("X-S6", "A5.4")
async def test_a_task_whose_end_passed_during_an_outage_is_completed(world: World) -> None:
    task = await world.add_one(every(end_at=at(minutes=20)))
    world.tick(minutes=120)
    await world.claim()
    [row] = await world.executions(task)
    assert (row.exec_status, row.missed_count) == (ExecStatus.SKIPPED, 2)
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.COMPLETED, None)
    assert after.status_reason.startswith("too late")


@pytest.mark.requirement("X-S5")
async def test_a_late_claim_does_not_shift_the_phase_of_an_interval(world: World) -> None:
    anchor = at(seconds=3.25)
    task = await world.add_one(
        every(anchor_at=anchor, next_fire_time=anchor + timedelta(minutes=10))
    )
    world.tick(minutes=17)
    [(execution, _)] = (await world.claim()).started
    assert execution.fire_time == at(minutes=10, seconds=3.25)
    assert (await world.task(task)).next_fire_time == at(minutes=20, seconds=3.25)


# -- overlap, broken rows --------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["waiting", "calling", "running"])
async def test_with_overlap_skip_a_fire_is_skipped_while_an_earlier_one_goes_on(
    world: World, stage: str
) -> None:
    task = every(overlap_policy=OverlapPolicy.SKIP)
    if stage == "waiting":
        first = await world.queue(task)
    else:
        first = await world.call(task)
    if stage == "running":
        await world.settle(first, accepted())
    world.tick(minutes=10)
    claimed = await world.claim()
    assert (claimed.started, claimed.queued) == ((), 0)
    [skipped] = claimed.skipped
    assert skipped.reason == "overlap: an earlier run of this task is still going"
    assert (await world.task(first.task_id)).next_fire_time == at(minutes=30)


async def test_with_overlap_skip_a_fire_runs_once_the_earlier_one_is_over(world: World) -> None:
    first = await world.run(every(overlap_policy=OverlapPolicy.SKIP))
    await world.report(report(first.task_id, "run-1"))
    world.tick(minutes=10)
    assert len((await world.claim()).started) == 1


async def test_overlap_is_allowed_by_default(world: World) -> None:
    await world.run(every())
    world.tick(minutes=10)
    assert len((await world.claim()).started) == 1


async def test_a_task_that_cannot_be_planned_is_disabled_and_does_not_stop_the_others(
    world: World,
) -> None:
    broken, fine = await world.add(
        cron("broken", "not a cron line", at(minutes=1)), once("fine", at(minutes=1))
    )
    world.tick(minutes=1)
    claimed = await world.claim()
    assert [n for n, _ in claimed.broken] == [broken.id]
    assert [t.id for _, t in claimed.started] == [fine.id]
    after = await world.task(broken)
    assert (after.status, after.next_fire_time) == (TaskStatus.DISABLED, None)
    assert after.status_reason.startswith("cannot be planned")
    assert (await world.claim()).tasks == 0


async def test_a_clock_set_back_fires_nothing_twice(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=10)
    await world.claim()
    world.clock.jump(-300)
    assert (await world.claim()).tasks == 0
    world.tick(minutes=5)
    assert (await world.claim()).tasks == 0
    world.tick(minutes=10)
    await world.claim()
    assert await _times(world, task.id) == [at(minutes=10), at(minutes=20)]


async def _times(world: World, task_id: int) -> list[datetime]:
    return [e.fire_time for e in await world.executions() if e.task_id == task_id]


async def test_two_hundred_due_tasks_are_one_claim(world: World) -> None:
    tasks = await world.add(*(every(f"k{n}") for n in range(200)))
    world.tick(minutes=10)
    claimed = await world.claim(slots=50)
    assert (claimed.tasks, len(claimed.started), claimed.queued) == (200, 50, 150)
    rows = await world.executions()
    assert sorted(e.task_id for e in rows) == [t.id for t in tasks]
    ids = {e.id for e in rows if e.exec_status is ExecStatus.CALLING}
    assert ids == {e.id for e, _ in claimed.started}
