"""What an agent says of its runs: found, applied once, early, late, again, and of whom."""

from __future__ import annotations

import asyncio

import pytest

from crontask_core.model import ExecStatus, TaskStatus
from crontask_core.policy import Delete, Pause
from tests.builders import accepted, at, every, once, refused, report, retry
from tests.contract.world import World, bad

pytestmark = pytest.mark.requirement("A6.2r")


# -- the ordinary case -----------------------------------------------------------------------------


async def test_a_success_is_recorded_with_its_result(world: World) -> None:
    running = await world.run(every(), "run-1")
    world.tick(minutes=3)
    text = '{"cpa": 85, "note": "CPA 均值=85 ✅"}'
    told = await world.report(report(running.task_id, "run-1", result=text))
    assert (told.recorded, told.duplicate, told.late, told.pending) == (True, False, False, False)
    after = await world.execution(running)
    assert (told.before, told.execution) == (running, after)
    assert (after.exec_status, after.ga_result) == (ExecStatus.SUCCESS, text)
    assert (after.reported_at, after.end_time) == (at(minutes=13), at(minutes=13))
    assert (after.next_action_at, after.error_msg, after.reason) == (None, None, "")


async def test_a_failure_is_recorded_with_its_error(world: World) -> None:
    running = await world.run(once("k"), "run-1")
    await world.report(report(running.task_id, "run-1", "failed", error="无权限"))
    after = await world.execution(running)
    assert (after.exec_status, after.error_msg) == (ExecStatus.FAILED, "无权限")
    assert after.reason == "reported as failed by the agent"
    task = await world.task(running.task_id)
    assert (task.status, task.failure_streak) == (TaskStatus.COMPLETED, 1)


async def test_a_result_of_sixty_kilobytes_is_kept_whole(world: World) -> None:
    running = await world.run(every())
    text = "报告📊" * 6_100
    await world.report(report(running.task_id, "run-1", result=text))
    assert (await world.execution(running)).ga_result == text


@pytest.mark.parametrize("by", ["fire_id", "execution_id", "both"])
async def test_a_run_is_found_by_its_fire_id_or_execution_id(world: World, by: str) -> None:
    await world.run(every("other", seconds=300), "r")
    running = await world.run(every(), "")
    named = {"fire_id": running.fire_id, "execution_id": running.id}
    if by != "both":
        named = {by: named[by]}
    told = await world.report(report(running.task_id, "chosen-by-agent", **named))
    assert told.execution is not None
    assert (told.execution.id, told.execution.exec_status) == (running.id, ExecStatus.SUCCESS)
    assert told.execution.task_run_id == "chosen-by-agent"


async def test_the_newest_run_that_is_not_over_is_meant_when_a_run_id_is_used_again(
    world: World,
) -> None:
    task = await world.add_one(every())
    runs = []
    for _ in range(3):
        world.tick(minutes=10)
        [(execution, _)] = (await world.claim()).started
        runs.append((await world.settle(execution, accepted("same"))).after)
    for expected in (runs[2], runs[1], runs[0]):
        told = await world.report(report(task.id, "same"))
        assert told.execution is not None
        assert told.execution.id == expected.id
    assert (await world.report(report(task.id, "same"))).duplicate is True


async def test_a_run_id_belongs_to_its_task(world: World) -> None:
    first = await world.run(every("a"), "same")
    second = await world.run(once("b", at(minutes=10)), "same")
    await world.report(report(second.task_id, "same"))
    assert await world.execution(first) == first
    assert (await world.execution(second)).exec_status is ExecStatus.SUCCESS


# -- again and otherwise ---------------------------------------------------------------------------


async def test_the_same_report_again_is_a_duplicate_and_changes_nothing(world: World) -> None:
    running = await world.run(every())
    await world.report(report(running.task_id, "run-1", result="first"))
    before = await world.execution(running)
    world.tick(minutes=1)
    again = await world.report(report(running.task_id, "run-1", result="second"))
    assert (again.duplicate, again.contradicts) == (True, False)
    assert again.execution == before == await world.execution(running)


async def test_the_first_of_two_contradicting_reports_stands(world: World) -> None:
    running = await world.run(every())
    await world.report(report(running.task_id, "run-1", "failed", error="no"))
    before = await world.execution(running)
    again = await world.report(report(running.task_id, "run-1", "success"))
    assert (again.duplicate, again.contradicts) == (True, True)
    assert await world.execution(running) == before


async def test_of_contradicting_reports_at_once_one_wins(world: World) -> None:
    running = await world.run(every())
    reports = [report(running.task_id, "run-1", s) for s in ("success", "failed") * 3]
    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).report([r]) for n, r in enumerate(reports))
    )
    wins = [n for n, [a] in enumerate(answers) if not getattr(a, "duplicate", True)]
    assert len(wins) == 1
    expected = ExecStatus.SUCCESS if wins[0] % 2 == 0 else ExecStatus.FAILED
    assert (await world.execution(running)).exec_status is expected
    assert (await world.task(running.task_id)).failure_streak == wins[0] % 2


async def test_reports_in_one_list_apply_one_after_the_other(world: World) -> None:
    a = await world.run(every("a"), "r")
    b = await world.run(once("b", at(minutes=10)), "r")
    answers = await world.repo.report(
        [
            report(a.task_id, "r", "running"),
            report(999_999, "r"),
            report(b.task_id, "r", "failed"),
            report(a.task_id, "r"),
            report(a.task_id, "r", "failed"),
        ]
    )
    assert bad(answers[1]).code == "RUN_NOT_FOUND"
    assert [getattr(x, "duplicate", None) for x in answers] == [False, None, False, False, True]
    assert (await world.execution(a)).exec_status is ExecStatus.SUCCESS
    assert (await world.execution(b)).exec_status is ExecStatus.FAILED


# -- heartbeats ------------------------------------------------------------------------------------


@pytest.mark.requirement("X-F3")
async def test_a_sign_of_life_moves_the_deadline(world: World) -> None:
    running = await world.run(every(seconds=36_000))
    for _ in range(3):
        world.tick(minutes=25)
        told = await world.report(report(running.task_id, "run-1", "running", result="step"))
        assert (told.recorded, told.duplicate, told.late) == (True, False, False)
        assert (await world.sweep()).moved == ()
    after = await world.execution(running)
    assert (after.exec_status, after.ga_result) == (ExecStatus.RUNNING, "step")
    assert after.next_action_at == at(minutes=600 + 75 + 30)
    assert after.reported_at is None
    world.tick(minutes=30)
    assert len((await world.sweep()).moved) == 1


@pytest.mark.requirement("X-F3")
async def test_a_timed_out_run_is_revived_once(world: World) -> None:
    running = await world.run(every(seconds=36_000))
    world.tick(minutes=30)
    await world.sweep()
    told = await world.report(report(running.task_id, "run-1", "running"))
    assert told.late is True
    after = await world.execution(running)
    assert (after.exec_status, after.end_time, after.late) == (ExecStatus.RUNNING, None, True)
    assert after.error_msg is None
    world.tick(minutes=30)
    await world.sweep()
    again = await world.report(report(running.task_id, "run-1", "running"))
    assert again.duplicate is True
    assert (await world.execution(running)).exec_status is ExecStatus.TIMED_OUT
    await world.report(report(running.task_id, "run-1"))
    assert (await world.execution(running)).exec_status is ExecStatus.SUCCESS


@pytest.mark.requirement("X-F5")
async def test_a_revived_run_that_fails_counts_as_one_failure(world: World) -> None:
    running = await world.run(every(seconds=36_000))
    world.tick(minutes=30)
    await world.sweep()
    assert (await world.task(running.task_id)).failure_streak == 1
    await world.report(report(running.task_id, "run-1", "running"))
    await world.report(report(running.task_id, "run-1", "failed"))
    assert (await world.task(running.task_id)).failure_streak == 1


@pytest.mark.requirement("X-F3")
async def test_a_sign_of_life_during_the_call_is_kept_and_moves_nothing(world: World) -> None:
    calling = await world.call(every())
    await world.report(
        report(calling.task_id, "", "running", fire_id=calling.fire_id, result="started")
    )
    after = await world.execution(calling)
    assert (after.exec_status, after.ga_result) == (ExecStatus.CALLING, "started")
    assert after.next_action_at == calling.next_action_at
    settled = await world.settle(calling, accepted())
    assert (settled.lost, settled.after.ga_result) == (False, "started")


async def test_a_sign_of_life_after_the_final_report_changes_nothing(world: World) -> None:
    running = await world.run(every())
    await world.report(report(running.task_id, "run-1"))
    told = await world.report(report(running.task_id, "run-1", "running"))
    assert (told.duplicate, told.contradicts) == (True, False)
    assert (await world.execution(running)).exec_status is ExecStatus.SUCCESS


# -- late ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"), [("success", ExecStatus.SUCCESS), ("failed", ExecStatus.FAILED)]
)
async def test_a_report_after_the_time_out_counts_and_is_marked_late(
    world: World, status: str, expected: ExecStatus
) -> None:
    running = await world.run(once("k"))
    world.tick(minutes=31)
    await world.sweep()
    told = await world.report(report(running.task_id, "run-1", status, result="late"))
    assert (told.late, told.duplicate) == (True, False)
    after = await world.execution(running)
    assert (after.exec_status, after.late) == (expected, True)
    assert (after.reported_at, after.end_time) == (at(minutes=41), at(minutes=41))
    task = await world.task(running.task_id)
    assert task.failure_streak == (0 if status == "success" else 1)
    assert task.status is TaskStatus.COMPLETED


async def test_a_report_cancels_the_retry_of_a_call_that_did_arrive(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry("no answer within 30 s"))
    await world.report(report(execution.task_id, "r", fire_id=execution.fire_id))
    world.tick(minutes=1)
    assert (await world.sweep()).moved == ()
    assert (await world.begin()).started == ()
    assert (await world.execution(execution)).exec_status is ExecStatus.SUCCESS


async def test_a_report_takes_a_waiting_retry_out_of_the_queue(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry())
    world.tick(seconds=10)
    await world.sweep()
    await world.report(report(execution.task_id, "r", "running", fire_id=execution.fire_id))
    after = await world.execution(execution)
    assert (after.exec_status, after.accepted_at) == (
        ExecStatus.RUNNING,
        at(minutes=10, seconds=10),
    )
    assert (await world.begin()).started == ()
    assert (await world.repo.horizon()).waiting is False


async def test_a_report_after_retries_were_spent_counts_and_is_late(world: World) -> None:
    execution = await world.call(every(max_retry=0))
    await world.settle(execution, retry("no answer within 30 s"))
    assert (await world.task(execution.task_id)).failure_streak == 1
    told = await world.report(report(execution.task_id, "r", fire_id=execution.fire_id))
    assert told.late is True
    assert (await world.execution(execution)).exec_status is ExecStatus.SUCCESS
    assert (await world.task(execution.task_id)).failure_streak == 0


async def test_a_report_of_a_call_made_before_the_cancellation_counts(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry())
    await world.edit(await world.task(execution.task_id), Pause())
    assert (await world.execution(execution)).exec_status is ExecStatus.CANCELLED
    told = await world.report(report(execution.task_id, "r", fire_id=execution.fire_id))
    assert told.late is True
    assert (await world.execution(execution)).exec_status is ExecStatus.SUCCESS


async def test_runs_of_a_deleted_task_can_still_be_reported(world: World) -> None:
    running = await world.run(every())
    await world.edit(await world.task(running.task_id), Delete())
    await world.report(report(running.task_id, "run-1"))
    assert (await world.execution(running)).exec_status is ExecStatus.SUCCESS
    assert await world.status(await world.task(running.task_id)) is TaskStatus.DELETED


# -- refused ---------------------------------------------------------------------------------------


async def test_a_skipped_fire_cannot_be_reported(world: World) -> None:
    await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=60)
    [skipped] = (await world.claim()).skipped
    error = bad(await world.try_report(report(skipped.task_id, "r", fire_id=skipped.fire_id)))
    assert (error.code, error.field) == ("INVALID_STATE", "fire_id")
    assert await world.execution(skipped) == skipped


async def test_a_fire_that_was_never_called_cannot_be_reported(world: World) -> None:
    waiting = await world.queue(every())
    for _ in range(2):
        error = bad(await world.try_report(report(waiting.task_id, "r", fire_id=waiting.fire_id)))
        assert error.code == "INVALID_STATE"
        await world.repo.cancel(None, [waiting.id], "not needed")


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({}, "RUN_NOT_FOUND"),
        ({"fire_id": "0b7c1f0e-0000-5000-8000-000000000000"}, "EXECUTION_NOT_FOUND"),
        ({"execution_id": 987_654}, "EXECUTION_NOT_FOUND"),
    ],
)
async def test_an_unknown_run_is_not_found(
    world: World, named: dict[str, object], code: str
) -> None:
    running = await world.run(every(), "run-1")
    run_id = "run-1" if named else "run-2"  # a wrong name is wrong, whatever the run id
    error = bad(await world.try_report(report(running.task_id, run_id, **named)))
    assert (error.code, error.exit_code) == (code, 3)
    assert await world.execution(running) == running


@pytest.mark.parametrize("by", ["fire_id", "execution_id"])
async def test_a_fire_of_another_task_is_not_found(world: World, by: str) -> None:
    a, b = await world.run(every("a"), "ra"), await world.run(once("b", at(minutes=10)), "rb")
    named = {"fire_id": a.fire_id, "execution_id": a.id}[by]
    error = bad(await world.try_report(report(b.task_id, "rb", **{by: named})))
    assert error.code == "EXECUTION_NOT_FOUND"
    assert [await world.execution(e) for e in (a, b)] == [a, b]


async def test_another_users_run_is_not_found(world: World) -> None:
    running = await world.run(every(user_id="bea"))
    named = {"fire_id": running.fire_id}
    for extra in ({}, named):
        told = report(running.task_id, "run-1", user_id="ann", **extra)
        assert bad(await world.try_report(told)).exit_code == 3
    assert await world.execution(running) == running
    await world.report(report(running.task_id, "run-1", user_id="bea"))
    assert (await world.execution(running)).exec_status is ExecStatus.SUCCESS


async def test_a_refused_call_can_still_turn_out_to_have_run(world: World) -> None:
    execution = await world.call(every(seconds=36_000))
    await world.settle(execution, refused())
    told = await world.report(report(execution.task_id, "r", "running", fire_id=execution.fire_id))
    assert told.late is True
    after = await world.execution(execution)
    assert (after.exec_status, after.next_action_at) == (
        ExecStatus.RUNNING,
        at(minutes=630),
    )
