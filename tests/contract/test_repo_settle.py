"""Settle and sweep: what a call came to, retries, lost fences, leases, silence."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import attrs
import pytest

from crontask_core.model import AttemptClass, Delivery, ExecStatus, Execution, TaskStatus
from crontask_core.policy import backoff
from tests.builders import (
    RULES,
    accepted,
    at,
    every,
    once,
    outcome,
    refused,
    report,
    retry,
    unreachable,
)
from tests.contract.world import World

GA_TIMEOUT = "GA callback timeout, auto-marked"


@pytest.mark.requirement("A6.1b", "A6.6")
async def test_an_accepted_call_is_running_until_its_report_or_thirty_minutes(
    world: World,
) -> None:
    execution = await world.call(every())
    world.tick(seconds=2)
    verdict = attrs.evolve(accepted("run-中文-1"), answer='{"task_run_id": "run-中文-1"}')
    settled = await world.settle(execution, verdict)
    after = settled.after
    assert (settled.before, settled.lost, settled.reported) == (execution, False, False)
    assert after == await world.execution(execution)
    assert (after.exec_status, after.task_run_id) == (ExecStatus.RUNNING, "run-中文-1")
    assert (after.accepted_at, after.end_time) == (at(minutes=10, seconds=2), None)
    assert after.next_action_at == at(minutes=40, seconds=2)
    assert (after.http_status, after.response_body) == (200, '{"task_run_id": "run-中文-1"}')
    assert after.error_msg is None


@pytest.mark.requirement("A6.6")
async def test_a_task_may_set_its_own_report_timeout(world: World) -> None:
    running = await world.run(every(report_timeout_ms=90_500))
    assert running.next_action_at == at(minutes=10, seconds=90.5)


@pytest.mark.requirement("A6.1b")
async def test_an_acceptance_without_a_run_id_is_running_with_a_warning(world: World) -> None:
    execution = await world.call(every())
    settled = await world.settle(execution, accepted("", warning="no usable task_run_id"))
    assert settled.after.exec_status is ExecStatus.RUNNING
    assert (settled.after.task_run_id, settled.after.reason) == ("", "no usable task_run_id")


async def test_every_call_leaves_an_attempt_row(world: World) -> None:
    execution = await world.call(every())
    world.tick(seconds=3)
    await world.settle(execution, retry(answer="busy, 请稍后"))
    [attempt] = await world.attempts(execution)
    assert (attempt.execution_id, attempt.fence, attempt.node) == (execution.id, 1, "n1")
    assert (attempt.started_at, attempt.ended_at) == (at(minutes=10), at(minutes=10, seconds=3))
    assert (attempt.outcome, attempt.http_status) == (AttemptClass.RETRY, 503)
    assert (attempt.error, attempt.answer) == ("the agent answered HTTP 503", "busy, 请稍后")
    assert (attempt.task_run_id, attempt.revision) == ("", 1)


# -- retries ---------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.3")
async def test_a_retry_is_a_row_that_enters_the_queue_when_its_time_comes(world: World) -> None:
    execution = await world.call(every())
    after = (await world.settle(execution, retry())).after
    assert (after.exec_status, after.retry_count) == (ExecStatus.PENDING, 1)
    assert after.reason == "retry 1 of 3: the agent answered HTTP 503"
    wait = backoff(1, 5_000, execution.fire_id, RULES)
    assert timedelta(seconds=4.5) <= wait <= timedelta(seconds=5.5)
    assert after.next_action_at == at(minutes=10) + wait
    assert (await world.begin()).started == ()
    world.tick(seconds=4)
    assert (await world.sweep()).moved == ()
    world.tick(seconds=2)
    [moved] = (await world.sweep()).moved
    assert moved.before == after
    assert moved.after == await world.execution(execution)
    assert moved.after.next_action_at == at(minutes=40, seconds=6)
    [(again, _)] = (await world.begin("n2")).started
    assert (again.fence, again.retry_count, again.fire_id) == (2, 1, execution.fire_id)
    assert (again.start_time, again.executor_node) == (at(minutes=10), "n2")


@pytest.mark.requirement("A6.3")
async def test_the_agents_wish_to_wait_is_honoured(world: World) -> None:
    execution = await world.call(every())
    after = (await world.settle(execution, retry(delay=timedelta(minutes=4)))).after
    assert after.next_action_at == at(minutes=14)


async def _until_spent(world: World, execution: Execution, tries: int) -> Execution:
    for _ in range(tries):
        execution = (await world.settle(execution, retry())).after
        world.tick(minutes=2)
        await world.sweep()
        begun = await world.begin()
        if begun.started:
            execution = begun.started[0][0]
    return execution


@pytest.mark.requirement("A6.3")
async def test_after_three_retries_the_fire_has_failed(world: World) -> None:
    execution = await _until_spent(world, await world.call(every(seconds=3_600)), 4)
    assert (execution.exec_status, execution.fence) == (ExecStatus.FAILED, 4)
    assert execution.reason == "retries spent (3): the agent answered HTTP 503"
    assert execution.error_msg == "the agent answered HTTP 503"
    assert (execution.next_action_at, execution.retry_count) == (None, 3)
    assert [a.fence for a in await world.attempts(execution)] == [1, 2, 3, 4]


@pytest.mark.requirement("A6.3")
async def test_a_task_may_have_no_retries(world: World) -> None:
    execution = await world.call(every(max_retry=0))
    assert (await world.settle(execution, retry())).after.exec_status is ExecStatus.FAILED


@pytest.mark.requirement("A6.3")
async def test_a_refusal_fails_at_once_with_the_reason(world: World) -> None:
    execution = await world.call(once("k"))
    after = (await world.settle(execution, refused())).after
    assert (after.exec_status, after.reason) == (ExecStatus.FAILED, "the agent answered HTTP 400")
    assert (after.end_time, after.http_status, after.response_body) == (at(minutes=10), 400, "no")
    assert await world.status(await world.task(execution.task_id)) is TaskStatus.COMPLETED


@pytest.mark.parametrize(
    ("verdict", "status"), [(retry(), ExecStatus.FAILED), (unreachable(), ExecStatus.PENDING)]
)
async def test_at_most_once_sends_again_only_what_cannot_have_arrived(
    world: World, verdict: object, status: ExecStatus
) -> None:
    execution = await world.call(every(delivery=Delivery.AT_MOST_ONCE))
    after = (await world.settle(execution, verdict)).after  # type: ignore[arg-type]
    assert after.exec_status is status
    assert after.reason.startswith("outcome unknown") is (status is ExecStatus.FAILED)


@pytest.mark.requirement("X-F5")
async def test_failures_in_a_row_are_counted_and_a_success_ends_the_row(world: World) -> None:
    task = await world.add_one(every())
    streaks = []
    for verdict in (refused(), refused(), accepted("good"), refused()):
        world.tick(minutes=10)
        [(execution, _)] = (await world.claim()).started
        await world.settle(execution, verdict)
        if verdict.task_run_id:
            await world.report(report(task.id, "good"))
        streaks.append((await world.task(task)).failure_streak)
    assert streaks == [1, 2, 0, 1]
    assert await world.status(task) is TaskStatus.ENABLED


@pytest.mark.requirement("X-F5")
async def test_a_task_pauses_itself_after_so_many_failures_in_a_row(world: World) -> None:
    task = await world.add_one(every(pause_after_failures=2))
    for _ in range(2):
        world.tick(minutes=10)
        [(execution, _)] = (await world.claim()).started
        await world.settle(execution, refused())
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.DISABLED, None)
    assert (after.status_reason, after.failure_streak) == ("paused after 2 failures in a row", 2)


@pytest.mark.requirement("X-F5")
async def test_what_was_due_when_a_task_pauses_itself_is_on_record(world: World) -> None:
    execution = await world.call(every(pause_after_failures=1))
    world.tick(minutes=10)
    await world.settle(execution, refused())
    failed, due = await world.executions()
    assert (failed.exec_status, due.exec_status) == (ExecStatus.FAILED, ExecStatus.CANCELLED)
    assert due.reason == "paused after 1 failures in a row before claim"


async def test_many_outcomes_are_settled_together_each_with_its_answer(world: World) -> None:
    await world.add(*(every(f"k{n}") for n in range(6)))
    world.tick(minutes=10)
    begun = [execution for execution, _ in (await world.claim()).started]
    now = at(minutes=10, seconds=1)
    verdicts = [accepted("a"), retry(), refused(), None, accepted("b"), retry()]
    outcomes = [outcome(e, v, now) for e, v in zip(begun, verdicts, strict=True)]
    outcomes[5] = attrs.evolve(outcomes[5], fence=9)
    answers = await world.repo.settle("n1", outcomes)
    assert [a.before.id for a in answers] == [e.id for e in begun]
    assert [a.lost for a in answers] == [False] * 5 + [True]
    assert [a.after.exec_status for a in answers] == [
        ExecStatus.RUNNING,
        ExecStatus.PENDING,
        ExecStatus.FAILED,
        ExecStatus.PENDING,
        ExecStatus.RUNNING,
        ExecStatus.CALLING,
    ]
    assert [await world.execution(e) for e in begun] == [a.after for a in answers]
    assert await world.repo.settle("n1", []) == []


async def test_several_fires_of_one_task_are_settled_together(world: World) -> None:
    task = await world.add_one(every())
    begun = []
    for _ in range(3):
        world.tick(minutes=10)
        begun += [execution for execution, _ in (await world.claim()).started]
    await world.repo.settle("n1", [outcome(e, refused(), at(minutes=30)) for e in begun])
    assert (await world.task(task)).failure_streak == 3


# -- lost fences -----------------------------------------------------------------------------------


async def _lease_ends(world: World) -> None:
    world.tick(seconds=60)
    await world.sweep()


async def test_a_call_settled_twice_counts_once(world: World) -> None:
    execution = await world.call(every())
    first = await world.settle(execution, accepted("one"))
    second = await world.settle(execution, accepted("one"))
    assert (first.lost, second.lost) == (False, True)
    assert await world.execution(execution) == first.after
    assert len(await world.attempts(execution)) == 1


async def test_another_nodes_outcome_does_not_touch_the_row(world: World) -> None:
    execution = await world.call(every())
    settled = await world.settle(execution, refused(), node="n2")
    assert (settled.lost, settled.after) == (True, execution)
    assert await world.execution(execution) == execution


async def test_a_node_that_lost_its_fence_leaves_only_its_attempt(world: World) -> None:
    execution = await world.call(every())
    await _lease_ends(world)
    [(again, _)] = (await world.begin("n2")).started
    settled = await world.settle(execution, accepted("late-run"))
    assert (settled.lost, settled.after) == (True, again)
    assert await world.execution(execution) == again
    [attempt] = await world.attempts(execution)
    assert (attempt.fence, attempt.node, attempt.task_run_id) == (1, "n1", "late-run")
    assert attempt.outcome is AttemptClass.ACCEPTED  # no longer "unknown"


async def test_an_acceptance_is_kept_when_the_fire_was_taken_over_but_not_begun_again(
    world: World,
) -> None:
    execution = await world.call(every())
    await _lease_ends(world)
    settled = await world.settle(execution, accepted("run-1"))
    assert (settled.lost, settled.after.exec_status) == (False, ExecStatus.RUNNING)
    assert (await world.begin("n2")).started == ()
    await world.report(report(execution.task_id, "run-1"))
    assert (await world.execution(execution)).exec_status is ExecStatus.SUCCESS


async def test_a_failure_is_not_kept_when_the_fire_was_taken_over(world: World) -> None:
    execution = await world.call(every())
    await _lease_ends(world)
    assert (await world.settle(execution, refused())).lost is True
    assert len((await world.begin("n2")).started) == 1


async def test_a_fire_handed_back_after_it_was_taken_over_stays_where_it_is(world: World) -> None:
    execution = await world.call(every())
    await _lease_ends(world)
    assert (await world.settle(execution, None)).lost is True
    assert len((await world.begin("n2")).started) == 1


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.6")
async def test_a_silent_agent_times_out_after_thirty_minutes(world: World) -> None:
    running = await world.run(once("k"))
    world.tick(minutes=30, seconds=-1)
    assert (await world.sweep()).moved == ()
    world.tick(seconds=1)
    swept = await world.sweep()
    [moved] = swept.moved
    assert (swept.now, moved.before) == (at(minutes=40), running)
    assert moved.after == await world.execution(running)
    assert (moved.after.exec_status, moved.after.error_msg) == (ExecStatus.TIMED_OUT, GA_TIMEOUT)
    assert (moved.after.end_time, moved.after.next_action_at) == (at(minutes=40), None)
    task = await world.task(running.task_id)
    assert (task.status, task.failure_streak) == (TaskStatus.COMPLETED, 1)
    assert (await world.sweep()).moved == ()


async def test_a_call_whose_lease_ended_is_taken_over_at_once_and_counted(world: World) -> None:
    execution = await world.call(every())
    world.tick(seconds=59)
    assert (await world.sweep()).moved == ()
    world.tick(seconds=1)
    [moved] = (await world.sweep()).moved
    assert (moved.before, moved.after.exec_status) == (execution, ExecStatus.PENDING)
    assert (moved.after.takeovers, moved.after.retry_count) == (1, 0)
    assert moved.after.reason == "taken over: the lease of the call ended"
    [attempt] = await world.attempts(execution)
    assert (attempt.outcome, attempt.node) == (AttemptClass.UNKNOWN, "n1")
    [(again, _)] = (await world.begin("n2")).started
    assert (again.id, again.fence, again.fire_id) == (execution.id, 2, execution.fire_id)


async def test_a_fire_taken_over_five_times_is_given_up_at_the_sixth(world: World) -> None:
    execution = await world.call(every(seconds=36_000))
    for _ in range(5):
        await _lease_ends(world)
        assert len((await world.begin()).started) == 1
    await _lease_ends(world)
    after = await world.execution(execution)
    assert (after.exec_status, after.fence) == (ExecStatus.FAILED, 6)
    assert after.reason == "taken over 5 times, gave up: the lease of the call ended"


async def test_at_most_once_is_never_taken_over_to_be_sent_again(world: World) -> None:
    execution = await world.call(every(delivery=Delivery.AT_MOST_ONCE))
    await _lease_ends(world)
    after = await world.execution(execution)
    assert after.exec_status is ExecStatus.FAILED
    assert after.reason == "outcome unknown: the lease of the call ended"
    assert (await world.begin()).started == ()


@pytest.mark.requirement("A5.4")
async def test_the_sweep_gives_up_what_waited_longer_than_its_window(world: World) -> None:
    tried = await world.call(once("tried", at(minutes=1), retry_interval=100))
    await world.settle(tried, retry())
    fresh = await world.queue(once("fresh", at(minutes=1)))
    world.tick(seconds=1)
    await world.sweep()
    world.tick(minutes=31)
    await world.sweep()
    rows = [await world.execution(e) for e in (fresh, tried)]
    assert [e.exec_status for e in rows] == [ExecStatus.SKIPPED, ExecStatus.FAILED]
    assert (await world.repo.horizon()).waiting is False
    for row in rows:
        assert await world.status(await world.task(row.task_id)) is TaskStatus.COMPLETED


async def test_the_sweep_takes_the_oldest_first_up_to_its_limit(world: World) -> None:
    for n in range(5):
        await world.run(once(f"k{n}", at(minutes=1 + n)), f"r{n}")
    world.tick(minutes=60)
    first = await world.sweep(3)
    assert ([m.after.task_key for m in first.moved], first.more) == (["k0", "k1", "k2"], True)
    second = await world.sweep(3)
    assert ([m.after.task_key for m in second.moved], second.more) == (["k3", "k4"], False)


async def test_sweeps_at_once_move_each_row_once(world: World) -> None:
    for n in range(6):
        await world.run(once(f"k{n}", at(minutes=1)), f"r{n}")
    world.tick(minutes=60)
    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).sweep(10) for n in range(4))
    )
    moved = [m.after.id for swept in answers for m in swept.moved]
    assert sorted(moved) == [e.id for e in sorted(await world.executions(), key=lambda e: e.id)]


@pytest.mark.requirement("A6.2r")
async def test_a_report_and_the_time_out_at_once_leave_the_report(world: World) -> None:
    running = await world.run(once("k"))
    world.tick(minutes=30)
    await asyncio.gather(
        world.repo.sweep(10), world.other.report([report(running.task_id, "run-1")])
    )
    after = await world.execution(running)
    assert after.exec_status is ExecStatus.SUCCESS
    assert (await world.task(running.task_id)).failure_streak == 0
