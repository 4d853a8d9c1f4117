"""Stories of one fire and of many, on several nodes, through the engine's passes.

Here on the store in memory; ``tests/contract/test_engine_stories.py`` tells them on every store.
"""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
import pytest

from crontask_core.errors import CrontaskError, Unavailable
from crontask_core.events import DatabaseClockJumped, ExecutionMoved, RowSetAside
from crontask_core.model import ExecStatus, TaskStatus
from crontask_core.ports import TaskRef
from crontask_core.testing import MemoryLock, no_connection, respond, timeout
from tests.world import NewWorld


@pytest.mark.requirement("A6.1a", "A6.1b")
async def test_a_one_off_is_called_once_with_the_stored_content_and_then_runs(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await world.node()
    await world.create("one", delay_seconds=10, task_content='查 CPA 🚀 {"game": "DNFM"}')

    await world.after(9)
    assert world.agent.calls == []
    await world.after(1)

    (call,) = world.agent.calls
    assert call.task_content == '查 CPA 🚀 {"game": "DNFM"}'
    assert call.fire_time == datetime(2026, 3, 2, 1, 0, 10, tzinfo=UTC)
    assert (call.fire_count, call.attempt, call.schedule_type) == (1, 1, 1)
    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.RUNNING
    assert execution.task_run_id == f"run-{call.task_id}-{execution.id}-1"


@pytest.mark.requirement("A6.2r", "A2.2")
async def test_a_reported_one_off_is_successful_and_its_task_completed(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    await world.create("one", delay_seconds=0)
    await world.run()
    (execution,) = await world.executions("one")

    await world.say(execution, "success", result="CPA 85")

    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.ga_result) == (ExecStatus.SUCCESS, "CPA 85")
    assert (await world.task("one")).status is TaskStatus.COMPLETED


@pytest.mark.requirement("A6.3")
async def test_an_agent_that_answers_503_twice_is_called_again_after_5_and_10_seconds(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await world.node()
    task = await world.create("one", delay_seconds=0)
    world.agent.script(task.id, respond(503), respond(503))

    await world.run()
    assert len(world.agent.calls) == 1
    await world.after(4)
    assert len(world.agent.calls) == 1
    await world.after(2)
    assert len(world.agent.calls) == 2
    await world.after(8)
    assert len(world.agent.calls) == 2
    await world.after(4)

    assert [call.attempt for call in world.agent.calls] == [1, 2, 3]
    assert len({call.fire_id for call in world.agent.calls}) == 1
    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.retry_count) == (ExecStatus.RUNNING, 2)


@pytest.mark.requirement("A6.3")
async def test_retries_that_are_spent_end_in_failed_with_the_reason(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    task = await world.create("one", delay_seconds=0, max_retry=1, retry_interval_ms=1000)
    world.agent.script(task.id, no_connection(), no_connection())

    await world.run()
    await world.after(4)

    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.FAILED
    assert execution.reason == "retries spent (1): connection refused"
    assert (await world.task("one")).status is TaskStatus.COMPLETED


@pytest.mark.requirement("A6.6")
async def test_a_silent_agent_times_out_after_30_minutes(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    await world.create("one", delay_seconds=0)
    await world.run()

    await world.after(29 * 60, step=60)
    assert (await world.executions("one"))[0].exec_status is ExecStatus.RUNNING
    await world.after(2 * 60, step=60)

    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.TIMED_OUT
    assert execution.error_msg == "GA callback timeout, auto-marked"


async def test_an_agent_that_reports_before_it_answers_is_believed(new_world: NewWorld) -> None:
    world = await new_world()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    await node.engine.claim()
    (execution,) = await world.executions("one")

    early = await world.tasks.report(
        attrs.evolve(
            _report(execution.task_id, f"run-{execution.task_id}-{execution.id}-1"),
            status="success",
            result="done already",
        )
    )
    assert early.pending
    await world.run()

    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.ga_result) == (ExecStatus.SUCCESS, "done already")


def _report(task_id: int, run_id: str):
    from crontask_core.model import Report

    return Report(task_id=task_id, task_run_id=run_id, status="success")


@pytest.mark.requirement("A5.5")
async def test_two_nodes_that_claim_at_once_make_one_execution(new_world: NewWorld) -> None:
    world = await new_world()
    one, two = await world.node(), await world.node()
    for n in range(20):
        await world.create(f"t{n}", delay_seconds=0)

    await one.engine.claim()
    await two.engine.claim()
    await world.run()

    assert len(world.agent.calls) == 20
    assert len({call.fire_id for call in world.agent.calls}) == 20


@pytest.mark.requirement("A5.5")
async def test_a_lock_that_grants_everybody_doubles_nothing(new_world: NewWorld) -> None:
    world = await new_world()
    held: dict[str, tuple[str, float]] = {}
    for name in "ab":
        lock = MemoryLock(held, name, world.clock.elapsed)
        lock.down = True
        await world.node(lock=lock)
    for n in range(20):
        await world.create(f"t{n}", delay_seconds=0)

    await world.run()

    assert len(world.agent.calls) == 20


async def test_a_killed_node_is_retired_by_observation_and_its_fire_goes_out_again(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    dead, _alive = await world.node(), await world.node()
    await world.create("one", delay_seconds=0)
    await dead.engine.claim()
    world.nodes.remove(dead)

    await world.after(8)
    assert world.agent.calls == []
    await world.after(6)

    (call,) = world.agent.calls
    assert call.attempt == 2
    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.takeovers) == (ExecStatus.RUNNING, 1)


async def test_a_frozen_node_that_wakes_sends_nothing_that_another_took_over(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    frozen, _alive = await world.node(), await world.node()
    await world.create("one", delay_seconds=0)
    await frozen.engine.claim()
    world.nodes.remove(frozen)
    await world.after(14)
    assert len(world.agent.calls) == 1

    await frozen.deliver()
    await frozen.engine.settle()
    await frozen.engine.heartbeat()
    await frozen.engine.heartbeat()

    assert len(world.agent.calls) == 1
    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.RUNNING
    assert frozen.engine.node.incarnation != "node-1#2"


async def test_a_lost_commit_acknowledgement_of_a_claim_is_adopted_and_sent_once(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    node.repo.fail_after_commit("claim")

    with pytest.raises(Unavailable):
        await node.engine.claim()
    assert await node.engine.claim() == 0
    await world.run()

    assert len(world.agent.calls) == 1
    assert (await world.executions("one"))[0].exec_status is ExecStatus.RUNNING


async def test_a_lost_commit_acknowledgement_of_a_settle_changes_nothing(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    await node.engine.claim()
    await node.deliver()
    node.repo.fail_after_commit("settle")

    with pytest.raises(Unavailable):
        await node.engine.settle()
    await world.run()

    assert len(world.agent.calls) == 1
    assert node.engine.in_hand == 0
    assert (await world.executions("one"))[0].exec_status is ExecStatus.RUNNING


async def test_one_outcome_that_cannot_be_written_does_not_stop_the_others(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    node = await world.node()
    for n in range(5):
        await world.create(f"t{n}", delay_seconds=0)
    await node.engine.claim()
    await node.deliver()
    bad = CrontaskError("the row cannot be written")
    # The batch of five, its first half and its first row fail; everything else is written.
    node.repo.fail_before("settle", times=3, error=bad)

    await node.engine.settle()

    assert [e.kind for e in world.observer.of(RowSetAside)] == ["execution"]
    states = [(await world.executions(f"t{n}"))[0].exec_status for n in range(5)]
    assert states.count(ExecStatus.RUNNING) == 4


@pytest.mark.requirement("X-F2")
async def test_one_users_backlog_does_not_starve_another_users_single_fire(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    node = await world.node(concurrency=2)
    for n in range(30):
        await world.create(f"bulk-{n}", user="bulk", delay_seconds=0)
    await node.engine.claim()
    await world.create("single", user="ann", delay_seconds=0)

    await world.run()

    order = [call.user_id for call in world.agent.calls]
    assert order.index("ann") <= 5
    assert len(order) == 31


@pytest.mark.requirement("A5.4")
async def test_after_an_hour_without_nodes_a_one_off_is_skipped_and_a_cron_task_runs_once(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await world.create("once", delay_seconds=60)
    await world.create("every", cron_expr="*/10 * * * *")
    world.clock.tick(3600 + 120)

    await world.node()
    await world.run()

    (skipped,) = await world.executions("once")
    assert skipped.exec_status is ExecStatus.SKIPPED
    assert skipped.reason == "too late: found 1:01:00 late, the window is 0:30:00"
    assert (await world.task("once")).status is TaskStatus.COMPLETED
    missed, run = await world.executions("every")
    assert (missed.exec_status, missed.missed_count) == (ExecStatus.SKIPPED, 5)
    assert missed.missed_from == datetime(2026, 3, 2, 1, 10, tzinfo=UTC)
    assert missed.missed_to == datetime(2026, 3, 2, 1, 50, tzinfo=UTC)
    assert run.fire_time == datetime(2026, 3, 2, 2, 0, tzinfo=UTC)
    assert [call.task_key for call in world.agent.calls] == ["every"]


async def test_a_paused_task_keeps_no_secret_fire_due_work_is_recorded_as_cancelled(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await world.create("one", delay_seconds=10)
    world.clock.tick(20)

    await world.tasks.pause("ann", TaskRef(key="one"))

    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.CANCELLED
    assert execution.reason == "paused before claim"


@pytest.mark.requirement("X-F5")
async def test_a_task_that_keeps_failing_pauses_itself_when_asked_to(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    await world.create("bad", cron_expr="* * * * *", max_retry=0, pause_after_failures=2)
    world.agent.default = respond(400)

    await world.after(5 * 60, step=30)

    task = await world.task("bad")
    assert (task.status, task.failure_streak) == (TaskStatus.DISABLED, 2)
    assert task.status_reason == "paused after 2 failures in a row"
    assert len(world.agent.calls) == 2


async def test_at_most_once_never_sends_again_what_may_have_arrived(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    task = await world.create("one", delay_seconds=0, delivery="at_most_once")
    world.agent.script(task.id, timeout())

    await world.run()
    await world.after(60)

    assert len(world.agent.calls) == 1
    (execution,) = await world.executions("one")
    assert execution.exec_status is ExecStatus.FAILED
    assert execution.reason.startswith("outcome unknown: no answer within 30 s")


@pytest.mark.requirement("X-F1")
async def test_a_dead_host_never_holds_the_last_slots(new_world: NewWorld) -> None:
    world = await new_world()
    node = await world.node(concurrency=10)
    for n in range(40):
        await world.create(f"dead-{n}", delay_seconds=0, callback_url="http://dead.example/x")
    await node.engine.claim()
    await node.engine.begin()
    held = node.engine.in_hand

    assert 5 <= held <= 9


async def test_a_jump_of_the_database_clock_pauses_claiming_until_two_samples_agree(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    node = await world.node()
    await world.create("one", delay_seconds=30)
    world.clock.jump(3600)

    await node.engine.heartbeat()
    assert [round(e.seconds) for e in world.observer.of(DatabaseClockJumped)] == [3600]
    assert await node.engine.claim() == 0
    await node.engine.heartbeat()

    assert await node.engine.claim() == 1


@pytest.mark.requirement("A5.2")
async def test_a_node_that_stops_hands_back_what_it_did_not_send(new_world: NewWorld) -> None:
    world = await new_world()
    node = await world.node()
    await world.create("one", delay_seconds=0)
    await node.engine.claim()

    node.engine.stopping = True
    await node.deliver()
    await node.engine.settle()
    await node.engine.leave()

    assert world.agent.calls == []
    (execution,) = await world.executions("one")
    assert (execution.exec_status, execution.reason) == (ExecStatus.PENDING, "handed back unsent")
    world.nodes.clear()
    await world.node()
    await world.run()
    assert len(world.agent.calls) == 1


async def test_max_fires_ends_a_task_after_its_last_run_is_over(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    await world.create("two", cron_expr="* * * * *", max_fires=2)

    await world.after(5 * 60, step=30)
    first, second = await world.executions("two")
    assert (await world.task("two")).status is TaskStatus.ENABLED
    await world.say(second, "success")

    assert (await world.task("two")).status is TaskStatus.COMPLETED
    assert not first.last_fire


async def test_overlap_skip_records_the_fire_that_found_its_task_busy(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    await world.create("slow", cron_expr="* * * * *", overlap_policy="skip")

    await world.after(150, step=30)

    first, second = await world.executions("slow")
    assert first.exec_status is ExecStatus.RUNNING
    assert second.exec_status is ExecStatus.SKIPPED
    assert second.reason == "overlap: an earlier run of this task is still going"


async def test_every_move_an_observer_hears_of_is_a_legal_one(new_world: NewWorld) -> None:
    world = await new_world()
    await world.node()
    task = await world.create("one", delay_seconds=0)
    world.agent.script(task.id, respond(503))
    await world.run()
    await world.after(10)

    moves = [(e.before.exec_status, e.after.exec_status) for e in world.observer.of(ExecutionMoved)]
    assert moves == [
        (ExecStatus.CALLING, ExecStatus.PENDING),
        (ExecStatus.PENDING, ExecStatus.PENDING),
        (ExecStatus.CALLING, ExecStatus.RUNNING),
    ]
