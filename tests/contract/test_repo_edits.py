"""Pause, resume, delete and update: idempotent, forward only, and no fire vanishes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from crontask_core.model import ExecStatus, ScheduleType, TaskStatus, TriggerKind
from crontask_core.policy import Delete, Edit, Pause, Resume, Update
from crontask_core.ports import EditRequest, TaskRef
from tests.builders import T0, accepted, at, cron, every, once, report
from tests.contract.world import World, bad, edit_request, good


@pytest.mark.requirement("A2.2")
async def test_pausing_stops_the_schedule_at_once_and_says_why(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=1)
    done = await world.edit(task, Pause("on holiday"))
    assert (done.already, done.before) == (False, task)
    after = await world.task(task)
    assert after == done.after
    assert (after.status, after.next_fire_time) == (TaskStatus.DISABLED, None)
    assert (after.status_reason, after.revision, after.updated_at) == (
        "on holiday",
        2,
        at(minutes=1),
    )
    world.tick(minutes=60)
    assert (await world.claim()).tasks == 0


@pytest.mark.requirement("A2.2")
@pytest.mark.parametrize("edit", [Pause(), Delete()])
async def test_doing_it_again_answers_already_and_changes_nothing(world: World, edit: Edit) -> None:
    task = await world.add_one(every())
    first = await world.edit(task, edit)
    world.tick(minutes=1)
    second = await world.edit(task, edit)
    assert (first.already, second.already) == (False, True)
    assert second.after == first.after == await world.task(task)


@pytest.mark.requirement("A2.2")
async def test_resuming_an_enabled_task_answers_already(world: World) -> None:
    task = await world.add_one(every())
    done = await world.edit(task, Resume())
    assert (done.already, done.after) == (True, task)


@pytest.mark.requirement("A2.2", "A5.4")
async def test_resuming_only_computes_forward(world: World) -> None:
    task = await world.add_one(every())
    await world.edit(task, Pause())
    world.tick(minutes=25)
    done = await world.edit(task, Resume())
    assert (done.after.status, done.after.next_fire_time) == (TaskStatus.ENABLED, at(minutes=30))
    assert (await world.claim()).tasks == 0
    assert await world.executions(task) == []


@pytest.mark.requirement("A2.2")
async def test_a_completed_or_deleted_task_cannot_be_resumed(world: World) -> None:
    over, gone = await world.add(once("over", at(minutes=1)), every("gone"))
    world.tick(minutes=40)
    await world.claim(limit=1)
    await world.edit(gone, Delete())
    assert await world.status(over) is TaskStatus.COMPLETED
    for task in (over, gone):
        before = await world.task(task)
        error = bad(await world.try_edit(task, Resume()))
        assert (error.code, error.exit_code) == ("INVALID_STATE", 4)
        assert error.hint
        assert await world.task(task) == before


@pytest.mark.requirement("A2.2")
async def test_a_completed_task_can_be_deleted_but_not_paused_or_updated(world: World) -> None:
    task = await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=40)
    await world.claim()
    for edit in (Pause(), Update((("task_name", "new"),))):
        assert bad(await world.try_edit(task, edit)).code == "INVALID_STATE"
    assert (await world.edit(task, Delete())).after.status is TaskStatus.DELETED


@pytest.mark.requirement("A2.2")
async def test_a_one_off_whose_time_passed_while_paused_cannot_be_resumed_until_updated(
    world: World,
) -> None:
    task = await world.add_one(once())
    await world.edit(task, Pause())
    world.tick(minutes=11)
    error = bad(await world.try_edit(task, Resume()))
    assert (error.code, error.field) == ("INVALID_STATE", "trigger_time")
    await world.edit(task, Update((("trigger_time", at(minutes=30)),)))
    done = await world.edit(task, Resume())
    assert done.after.next_fire_time == at(minutes=30)


# -- nothing vanishes between due and claim --------------------------------------------------------


@pytest.mark.requirement("A2.2", "A5.4")
@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Pause(), "paused before claim"),
        (Delete(), "deleted before claim"),
        (Update((("interval_ms", 3_600_000), ("anchor_at", at(minutes=11)))), "rescheduled"),
        (Update((("end_at", at(days=9)),)), "rescheduled before claim"),
    ],
)
async def test_what_was_due_but_not_claimed_is_recorded_as_cancelled(
    world: World, edit: Edit, reason: str
) -> None:
    task = await world.add_one(every())
    world.tick(minutes=11)
    await world.edit(task, edit)
    [row] = await world.executions(task)
    assert (row.exec_status, row.fire_time) == (ExecStatus.CANCELLED, at(minutes=10))
    assert row.reason.startswith(reason)
    assert (row.fence, row.next_action_at, row.end_time) == (0, None, at(minutes=11))
    assert (await world.claim()).tasks == 0
    assert (await world.begin()).started == ()


@pytest.mark.requirement("A5.4")
async def test_several_missed_runs_are_recorded_when_a_task_is_paused(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=35)
    await world.edit(task, Pause())
    missed, latest = await world.executions(task)
    assert (missed.exec_status, missed.missed_count) == (ExecStatus.SKIPPED, 2)
    assert (missed.missed_from, missed.missed_to) == (at(minutes=10), at(minutes=20))
    assert (latest.exec_status, latest.fire_time) == (ExecStatus.CANCELLED, at(minutes=30))


async def test_a_pause_and_a_claim_at_once_leave_exactly_one_row_for_the_fire(
    world: World,
) -> None:
    task = await world.add_one(every())
    world.tick(minutes=10)
    await asyncio.gather(
        world.repo.claim("n1", 10, 10),
        world.other.edit_tasks([edit_request("ann", TaskRef(id=task.id), Pause())]),
    )
    [row] = await world.executions(task)
    assert row.fire_time == at(minutes=10)
    assert row.exec_status in (ExecStatus.CALLING, ExecStatus.CANCELLED)
    after = await world.task(task)
    assert (after.status, after.next_fire_time) == (TaskStatus.DISABLED, None)


# -- what is under way -----------------------------------------------------------------------------


@pytest.mark.requirement("A2.2")
@pytest.mark.parametrize(("edit", "reason"), [(Pause(), "task paused"), (Delete(), "task deleted")])
async def test_waiting_fires_are_cancelled_and_going_ones_go_on(
    world: World, edit: Edit, reason: str
) -> None:
    task = await world.add_one(every())
    world.tick(minutes=10)
    [(first, _)] = (await world.claim()).started
    await world.settle(first, accepted())
    world.tick(minutes=10)
    await world.claim(slots=1)
    world.tick(minutes=10)
    await world.claim(slots=0)
    done = await world.edit(task, edit)
    assert (done.running, done.cancelled) == (2, 1)
    rows = await world.executions(task)
    assert [e.exec_status for e in rows] == [
        ExecStatus.RUNNING,
        ExecStatus.CALLING,
        ExecStatus.CANCELLED,
    ]
    assert rows[2].reason == reason
    assert (await world.begin()).started == ()
    assert (await world.repo.horizon()).waiting is False
    told = await world.report(report(task.id, "run-1"))
    assert told.execution is not None
    assert told.execution.exec_status is ExecStatus.SUCCESS


async def test_pausing_leaves_runs_on_demand_and_deleting_cancels_them(world: World) -> None:
    task = await world.add_one(every())
    await world.run_now(task)
    assert (await world.edit(task, Pause())).cancelled == 0
    assert (await world.edit(task, Delete())).cancelled == 1
    [row] = await world.executions(task)
    assert (row.trigger_kind, row.exec_status) == (TriggerKind.MANUAL, ExecStatus.CANCELLED)


@pytest.mark.requirement("A3.1b")
async def test_a_deleted_task_keeps_its_executions_and_its_marks(world: World) -> None:
    execution = await world.run(every())
    task = await world.task(execution.task_id)
    world.tick(minutes=1)
    done = await world.edit(task, Delete())
    after = done.after
    assert (after.status, after.is_deleted, after.deleted_at) == (
        TaskStatus.DELETED,
        True,
        at(minutes=11),
    )
    assert [e.id for e in await world.executions(task)] == [execution.id]


# -- update ----------------------------------------------------------------------------------------


@pytest.mark.requirement("X-T1")
async def test_an_update_changes_only_the_fields_given(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=1)
    done = await world.edit(task, Update((("task_name", "new name"), ("task_content", "new 内容"))))
    assert done.changed == ("task_name", "task_content")
    after = await world.task(task)
    assert after == done.after
    assert (after.task_name, after.task_content) == ("new name", "new 内容")
    assert (after.revision, after.updated_at) == (2, at(minutes=1))
    assert (after.next_fire_time, after.created_at) == (task.next_fire_time, T0)


@pytest.mark.requirement("X-T1")
async def test_a_stale_revision_is_refused_and_a_fresh_one_is_not(world: World) -> None:
    task = await world.add_one(every())
    await world.edit(task, Update((("task_name", "two"),), revision=1))
    error = bad(await world.try_edit(task, Update((("task_name", "three"),), revision=1)))
    assert (error.code, error.example) == ("REVISION_CONFLICT", "2")
    assert (await world.task(task)).task_name == "two"
    await world.edit(task, Update((("task_name", "three"),), revision=2))
    assert (await world.task(task)).revision == 3


@pytest.mark.requirement("X-T1")
async def test_of_concurrent_updates_of_one_revision_one_wins(world: World) -> None:
    task = await world.add_one(every())

    def update(n: int) -> EditRequest:
        return edit_request("ann", TaskRef(id=task.id), Update((("task_name", f"n{n}"),), 1))

    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).edit_tasks([update(n)]) for n in range(8))
    )
    codes = [getattr(answer, "code", "") for [answer] in answers]
    assert sorted(codes) == [""] + ["REVISION_CONFLICT"] * 7
    won = codes.index("")
    after = await world.task(task)
    assert (after.task_name, after.revision) == (f"n{won}", 2)


@pytest.mark.requirement("X-T1")
async def test_a_new_schedule_is_computed_forward(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=5)
    done = await world.edit(
        task,
        Update(
            (
                ("schedule_type", ScheduleType.CRON),
                ("cron_expr", "30 9 * * *"),
                ("interval_ms", None),
                ("anchor_at", None),
            )
        ),
    )
    assert done.after.next_fire_time == at(minutes=30)  # 09:30 in Shanghai
    assert await world.executions(task) == []


@pytest.mark.requirement("X-T1")
async def test_a_new_time_zone_moves_the_next_fire(world: World) -> None:
    task = await world.add_one(cron("k", "0 12 * * *", at(hours=3)))  # noon in Shanghai
    done = await world.edit(task, Update((("timezone", "Europe/Berlin"),)))
    assert done.after.next_fire_time == at(hours=10)  # noon in Berlin, UTC+1


@pytest.mark.requirement("X-T1", "X-S5")
async def test_setting_an_equal_schedule_changes_nothing(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=7)
    done = await world.edit(task, Update((("interval_ms", 600_000), ("anchor_at", at(minutes=7)))))
    assert (done.already, await world.task(task)) == (True, task)


@pytest.mark.requirement("X-T1")
async def test_a_paused_task_is_rescheduled_without_starting(world: World) -> None:
    task = await world.add_one(every())
    await world.edit(task, Pause())
    done = await world.edit(task, Update((("interval_ms", 60_000), ("anchor_at", at(minutes=0)))))
    assert (done.after.status, done.after.next_fire_time) == (TaskStatus.DISABLED, None)
    assert (await world.edit(task, Resume())).after.next_fire_time == at(minutes=1)


@pytest.mark.requirement("X-S6")
async def test_an_end_that_leaves_no_fire_is_refused_and_nothing_changes(world: World) -> None:
    task = await world.add_one(every())
    error = bad(await world.try_edit(task, Update((("end_at", at(minutes=5)),))))
    assert (error.code, error.field) == ("INVALID_STATE", "end_at")
    assert await world.task(task) == task


# -- several at once -------------------------------------------------------------------------------


async def test_an_edit_that_fails_does_not_stop_the_others(world: World) -> None:
    mine, hers, gone = await world.add(every("a"), every("b", user_id="bea"), every("c"))
    await world.edit(gone, Delete())
    answers = await world.repo.edit_tasks(
        [
            edit_request("ann", TaskRef(id=hers.id), Pause()),
            edit_request("ann", TaskRef(key="nope"), Delete()),
            edit_request("ann", TaskRef(id=gone.id), Resume()),
            edit_request("ann", TaskRef(key="a"), Pause()),
        ]
    )
    assert [bad(a).code for a in answers[:3]] == [
        "TASK_NOT_FOUND",
        "TASK_NOT_FOUND",
        "INVALID_STATE",
    ]
    assert good(answers[3]).after.status is TaskStatus.DISABLED
    assert await world.task(hers) == hers
    assert await world.status(mine) is TaskStatus.DISABLED


async def test_several_edits_of_one_task_in_one_list_apply_one_after_the_other(
    world: World,
) -> None:
    task = await world.add_one(every())
    ref = TaskRef(id=task.id)
    edits: list[Edit] = [Pause(), Pause(), Resume(), Update((("task_name", "x"),), 3), Delete()]
    answers = await world.repo.edit_tasks([edit_request("ann", ref, e) for e in edits])
    assert [good(a).already for a in answers] == [False, True, False, False, False]
    after = await world.task(task)
    assert (after.status, after.task_name, after.revision) == (TaskStatus.DELETED, "x", 5)
    assert await world.executions(task) == []


async def test_concurrent_edits_of_many_tasks_in_other_orders_all_succeed(world: World) -> None:
    tasks = await world.add(*(every(f"k{n}") for n in range(8)))

    def edits(edit: Edit, order: int) -> list[EditRequest]:
        return [edit_request("ann", TaskRef(id=t.id), edit) for t in tasks[::order]]

    await asyncio.gather(
        world.repo.edit_tasks(edits(Pause(), 1)),
        world.other.edit_tasks(edits(Update((("task_desc", "d"),)), -1)),
    )
    for task in tasks:
        after = await world.task(task)
        assert (after.status, after.task_desc) == (TaskStatus.DISABLED, "d")
        assert after.revision == 3


async def test_an_edit_knows_nothing_of_a_fire_that_is_not_due_yet(world: World) -> None:
    task = await world.add_one(every())
    world.clock.tick(600 - 0.000001)
    assert world.clock.database_now() == at(minutes=10) - timedelta(microseconds=1)
    await world.edit(task, Pause())
    assert await world.executions(task) == []
