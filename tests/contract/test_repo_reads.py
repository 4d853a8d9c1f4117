"""Listings, cancelling by hand, pruning, and what the store keeps about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from crontask_core.model import ExecStatus, Task, TaskStatus
from crontask_core.policy import Delete, Pause
from crontask_core.ports import ExecutionFilter, Page, Pruned, TaskFilter, TaskRef
from tests.builders import accepted, at, cron, every, once, refused, report, retry
from tests.contract.world import World, bad, good


async def _keys(world: World, **where: Any) -> list[str]:
    page = await world.repo.list_tasks(TaskFilter(**({"user_id": "ann"} | where)))
    assert page.total == len(page.rows)
    return [row.task.task_key for row in page.rows]


async def _pages(read: Callable[[str], Awaitable[Page[Any]]]) -> list[Page[Any]]:
    pages = [await read("")]
    while pages[-1].cursor:
        pages.append(await read(pages[-1].cursor))
        assert len(pages) < 50
    return pages


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.requirement("X-T2")
async def test_tasks_are_listed_newest_first_and_only_the_users_own(world: World) -> None:
    await world.add(every("a"), every("b"), every("hers", user_id="bea"), every("c"))
    assert await _keys(world) == ["c", "b", "a"]
    assert await _keys(world, user_id="bea") == ["hers"]
    assert await _keys(world, user_id="nobody") == []
    assert await _keys(world, user_id=None) == ["c", "hers", "b", "a"]


@pytest.mark.requirement("X-T2")
@pytest.mark.parametrize("size", [1, 3, 7, 10])
async def test_pages_hold_every_task_once_and_say_how_many_there_are(
    world: World, size: int
) -> None:
    tasks = await world.add(*(every(f"k{n}") for n in range(7)))
    pages = await _pages(
        lambda cursor: world.repo.list_tasks(TaskFilter(user_id="ann", limit=size, cursor=cursor))
    )
    ids = [row.task.id for page in pages for row in page.rows]
    assert ids == [t.id for t in reversed(tasks)]
    assert {page.total for page in pages} == {7}
    assert [len(p.rows) for p in pages[:-1]] == [size] * (len(pages) - 1)
    assert len(pages) == -(-7 // size)


@pytest.mark.requirement("X-T2")
async def test_paging_goes_on_where_it_was_while_tasks_come_and_go(world: World) -> None:
    tasks = await world.add(*(every(f"k{n}") for n in range(6)))
    first = await world.repo.list_tasks(TaskFilter(user_id="ann", limit=3))
    await world.edit(tasks[3], Delete())  # the last one shown
    await world.edit(tasks[1], Delete())
    await world.add(every("new"))
    rest = await world.repo.list_tasks(TaskFilter(user_id="ann", limit=3, cursor=first.cursor))
    assert [row.task.task_key for row in first.rows] == ["k5", "k4", "k3"]
    assert [row.task.task_key for row in rest.rows] == ["k2", "k0"]
    assert rest.cursor == ""


@pytest.mark.requirement("X-T2", "A3.1b")
async def test_tasks_are_listed_by_state_and_deleted_ones_only_when_asked_for(
    world: World,
) -> None:
    done, paused, gone, _ = await world.add(
        once("done", at(minutes=1)), every("paused"), every("gone"), every("on", 7_200)
    )
    await world.edit(paused, Pause())
    await world.edit(gone, Delete())
    world.tick(minutes=60)
    await world.claim()
    assert await world.status(done) is TaskStatus.COMPLETED
    assert await _keys(world) == ["on", "paused", "done"]
    assert await _keys(world, statuses=(1,)) == ["on"]
    assert await _keys(world, statuses=(0, 2)) == ["paused", "done"]
    assert await _keys(world, statuses=(3,)) == ["gone"]
    assert await _keys(world, statuses=(0, 1, 2, 3)) == ["on", "gone", "paused", "done"]


@pytest.mark.requirement("X-T2")
async def test_tasks_are_filtered_by_conversation_and_kind(world: World) -> None:
    await world.add(
        every("a", conversation_id="c1"),
        once("b", conversation_id="c1"),
        cron("c", "0 9 * * *", at(days=1), conversation_id="C1"),
    )
    assert await _keys(world, conversation_id="c1") == ["b", "a"]
    assert await _keys(world, conversation_id="c1", schedule_type=1) == ["b"]
    assert await _keys(world, schedule_type=2) == ["c"]
    assert await _keys(world, conversation_id="c") == []


@pytest.mark.requirement("X-T2")
@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("report", ["d", "k-REPORT", "a"]),
        ("Report", ["d", "k-REPORT", "a"]),
        ("报告", ["b"]),
        ("100%", ["c"]),
        ("0%_", ["c"]),
        ("%", ["c"]),
        ("\\", ["d"]),
        ("a_b", ["d"]),
        ("nothing", []),
    ],
)
async def test_text_is_looked_for_in_name_key_and_description_literally(
    world: World, text: str, keys: list[str]
) -> None:
    await world.add(
        every("a", task_name="Daily REPORT"),
        every("b", task_name="每日报告 📈"),
        every("c", task_name="plain", task_desc="100%_done"),
        every("k-REPORT", task_name="plain", task_desc="axb"),
        every("d", task_name="plain", task_desc="RePoRt a_b \\ c"),
    )
    assert await _keys(world, text=text) == keys


@pytest.mark.requirement("X-T2")
async def test_tasks_are_filtered_by_when_they_fire_next(world: World) -> None:
    *_, paused = await world.add(
        once("a", at(hours=1)), once("b", at(hours=2)), once("c", at(hours=3)), every("d", 5_400)
    )
    await world.edit(paused, Pause())
    assert await _keys(world, next_from=at(hours=2)) == ["c", "b"]
    assert await _keys(world, next_to=at(hours=2)) == ["b", "a"]
    assert await _keys(world, next_from=at(hours=1.5), next_to=at(hours=2.5)) == ["b"]


@pytest.mark.requirement("X-T4", "X-F5")
async def test_a_listing_shows_the_last_execution_and_the_streak_of_each_task(
    world: World,
) -> None:
    await world.add(every("ok"), every("bad"), once("new", at(days=9)))
    world.tick(minutes=10)
    started = {task.task_key: execution for execution, task in (await world.claim()).started}
    await world.settle(started["ok"], accepted())
    await world.settle(started["bad"], refused())
    rows = (await world.repo.list_tasks(TaskFilter(user_id="ann"))).rows
    assert [
        (r.task.task_key, r.task.failure_streak, r.last and r.last.exec_status) for r in rows
    ] == [("new", 0, None), ("bad", 1, ExecStatus.FAILED), ("ok", 0, ExecStatus.RUNNING)]


# -- executions ------------------------------------------------------------------------------------


async def _fires(world: World, task: Task, count: int) -> None:
    for _ in range(count):
        world.tick(minutes=10)
        await world.repo.claim("n1", 50, 50, only=[task.id])


async def _times(world: World, **where: Any) -> list[datetime]:
    page = await world.repo.list_executions(ExecutionFilter(**({"user_id": None} | where)))
    assert page.total == len(page.rows)
    return [row.fire_time for row in page.rows]


@pytest.mark.requirement("X-T2")
async def test_executions_are_listed_newest_first_of_one_user_and_task(world: World) -> None:
    mine, hers = await world.add(every("a"), every("b", user_id="bea"))
    world.tick(minutes=10)
    await world.claim()
    world.tick(minutes=10)
    await world.claim()
    both = [at(minutes=20), at(minutes=10)]
    assert await _times(world, user_id="ann") == both
    assert await _times(world, user_id="ann", task_id=mine.id) == both
    assert await _times(world, user_id="ann", task_id=hers.id) == []
    assert await _times(world, task_id=hers.id) == both
    assert len(await _times(world)) == 4
    newest = (await world.executions(hers))[-1]
    assert await _times(world, user_id="ann", execution_id=newest.id) == []
    assert await _times(world, execution_id=newest.id) == [at(minutes=20)]


@pytest.mark.requirement("X-T2")
async def test_executions_are_filtered_by_state_and_span(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=35)  # one skipped row for 10 and 20, one call for 30
    await world.claim()
    await _fires(world, task, 2)
    assert await _times(world, statuses=(6,)) == [at(minutes=20)]
    assert await _times(world, statuses=(1, 6), since=at(minutes=20), until=at(minutes=40)) == [
        at(minutes=40),
        at(minutes=30),
        at(minutes=20),
    ]
    assert await _times(world, since=at(minutes=41)) == [at(minutes=50)]
    assert await _times(world, until=at(minutes=19)) == []


@pytest.mark.requirement("X-T2")
@pytest.mark.parametrize("size", [1, 4, 9])
async def test_pages_of_executions_hold_each_once_even_at_equal_times(
    world: World, size: int
) -> None:
    await world.add(*(every(f"k{n}") for n in range(4)))
    for _ in range(2):
        world.tick(minutes=10)
        await world.claim()
    pages = await _pages(
        lambda cursor: world.repo.list_executions(
            ExecutionFilter(user_id="ann", limit=size, cursor=cursor)
        )
    )
    rows = [row for page in pages for row in page.rows]
    assert len({row.id for row in rows}) == len(rows) == 8
    assert [r.fire_time for r in rows] == [at(minutes=20)] * 4 + [at(minutes=10)] * 4
    assert {page.total for page in pages} == {8}


async def test_attempts_are_listed_by_execution_in_the_order_of_the_calls(world: World) -> None:
    execution = await world.call(every("a", seconds=3_600))
    await world.settle(execution, retry())
    world.tick(seconds=10)
    await world.sweep()
    [(again, _)] = (await world.begin()).started
    await world.settle(again, accepted("r"))
    untried = await world.queue(once("b", at(hours=1, seconds=20)))
    found = await world.repo.attempts([untried.id, execution.id])
    assert {n: [a.fence for a in rows] for n, rows in found.items()} == {
        untried.id: [],
        execution.id: [1, 2],
    }
    assert [a.task_run_id for a in found[execution.id]] == ["", "r"]
    assert await world.repo.attempts([]) == {}


# -- cancelling ------------------------------------------------------------------------------------


async def test_a_waiting_fire_can_be_cancelled(world: World) -> None:
    waiting = await world.queue(once("k"))
    world.tick(seconds=1)
    [answer] = await world.repo.cancel("ann", [waiting.id], "not today")
    moved = good(answer)
    assert (moved.before, moved.after) == (waiting, await world.execution(waiting))
    assert (moved.after.exec_status, moved.after.reason) == (ExecStatus.CANCELLED, "not today")
    assert (moved.after.end_time, moved.after.next_action_at) == (at(minutes=10, seconds=1), None)
    assert (await world.begin()).started == ()
    assert (await world.repo.horizon()).waiting is False
    assert await world.status(await world.task(waiting.task_id)) is TaskStatus.COMPLETED
    [again] = await world.repo.cancel("ann", [waiting.id], "not today")
    assert good(again).after == moved.after


async def test_a_waiting_retry_can_be_cancelled(world: World) -> None:
    execution = await world.call(every())
    await world.settle(execution, retry())
    [answer] = await world.repo.cancel(None, [execution.id], "")
    assert (good(answer).after.exec_status, good(answer).after.reason) == (
        ExecStatus.CANCELLED,
        "cancelled",
    )
    world.tick(minutes=1)
    assert (await world.sweep()).moved == ()


async def test_a_call_or_run_cannot_be_cancelled_and_does_not_stop_the_others(
    world: World,
) -> None:
    running = await world.run(every("running"))
    calling = await world.call(once("calling", at(minutes=10)))
    hers = await world.queue(once("hers", at(minutes=10), user_id="bea"))
    waiting = await world.queue(once("waiting", at(minutes=10)))
    ids = [running.id, calling.id, hers.id, 999_999, waiting.id]
    answers = await world.repo.cancel("ann", ids, "x")
    assert [bad(a).code for a in answers[:4]] == [
        "INVALID_STATE",
        "INVALID_STATE",
        "EXECUTION_NOT_FOUND",
        "EXECUTION_NOT_FOUND",
    ]
    assert good(answers[4]).after.exec_status is ExecStatus.CANCELLED
    assert [await world.execution(e) for e in (running, calling, hers)] == [
        running,
        calling,
        hers,
    ]


async def test_a_cancel_and_a_begin_at_once_leave_one_of_the_two(world: World) -> None:
    waiting = await world.queue(every())
    begun, _ = await asyncio.gather(
        world.repo.begin("n1", 5), world.other.cancel("ann", [waiting.id], "x")
    )
    after = await world.execution(waiting)
    expected = ExecStatus.CALLING if begun.started else ExecStatus.CANCELLED
    assert after.exec_status is expected


# -- pruning ---------------------------------------------------------------------------------------


async def _prune(world: World, before: datetime, limit: int) -> Pruned:
    executions = tasks = 0
    while (done := await world.repo.prune(before, before, limit)) != Pruned():
        assert done.executions <= limit
        assert done.tasks <= limit
        executions += done.executions
        tasks += done.tasks
    return Pruned(executions=executions, tasks=tasks)


@pytest.mark.parametrize("limit", [2, 100])
async def test_old_final_executions_and_closed_tasks_are_pruned_in_small_steps(
    world: World, limit: int
) -> None:
    live, over, gone = await world.add(every("live"), once("over", at(minutes=10)), every("gone"))
    for _ in range(3):
        world.tick(minutes=10)
        for execution, _task in (await world.claim()).started:
            await world.settle(execution, refused())
    await world.edit(gone, Delete())
    assert len(await world.executions()) == 7
    world.tick(minutes=60 * 24)
    assert await _prune(world, at(minutes=5), limit) == Pruned()
    [first, *_] = await world.executions(live)
    assert await _prune(world, at(days=1), limit) == Pruned(executions=7, tasks=2)
    assert await world.executions() == []
    assert (await world.repo.attempts([first.id]))[first.id] == ()
    rows = await world.repo.get_tasks(None, [TaskRef(id=t.id) for t in (live, over, gone)])
    assert [row is not None for row in rows] == [True, False, False]
    [again] = await world.repo.add_tasks([once("over", at(days=9))])
    assert again.created is True


async def test_what_is_not_over_or_not_old_is_never_pruned(world: World) -> None:
    running = await world.run(every("a"), "ra")
    just_over = await world.run(once("c", at(minutes=10)), "rc")
    waiting = await world.queue(once("b", at(minutes=10)))
    world.tick(minutes=60 * 24)
    await world.report(report(just_over.task_id, "rc"))
    assert await _prune(world, at(days=1), 100) == Pruned()
    left = [e.id for e in await world.executions()]
    assert sorted(left) == [running.id, just_over.id, waiting.id]


async def test_nodes_retired_long_ago_are_forgotten(world: World) -> None:
    await world.register("old", "new", "alive")
    await world.repo.retire([("old", 0)], "silent")
    world.tick(minutes=60 * 24)
    await world.repo.retire([("new", 0)], "silent")
    assert await world.repo.prune(at(hours=1), at(hours=1), 10) == Pruned()
    assert {row.incarnation for row in await world.repo.nodes(retired=True)} == {"new", "alive"}
    assert (await world.repo.heartbeat("old"))[1] is False


async def test_a_closed_task_stays_while_it_has_executions(world: World) -> None:
    task = await world.add_one(every())
    await world.edit(task, Delete())
    world.tick(minutes=60 * 24)
    await world.run(every("other", anchor_at=at(days=1), next_fire_time=at(days=1, minutes=10)))
    assert await world.repo.prune(at(days=1), at(days=1), 10) == Pruned(tasks=1)
    running = await world.run(
        every("k", anchor_at=at(days=1), next_fire_time=at(days=1, minutes=10)), "rk"
    )
    await world.edit(await world.task(running.task_id), Delete())
    world.tick(minutes=60 * 24)
    assert await world.repo.prune(at(days=9), at(days=9), 10) == Pruned()


# -- about itself ----------------------------------------------------------------------------------


async def test_a_store_has_one_installation_id(world: World) -> None:
    ids = await asyncio.gather(world.repo.installation_id(), world.other.installation_id())
    assert ids[0] == ids[1] == await world.repo.installation_id()
    assert len(ids[0]) >= 32


async def test_what_is_noted_is_read_back_by_everybody(world: World) -> None:
    assert await world.repo.get_meta("zone_data") is None
    await world.repo.set_meta("zone_data", "2026a")
    await world.repo.set_meta("other", "区")
    await world.other.set_meta("zone_data", "2026b")
    assert await world.repo.get_meta("zone_data") == "2026b"
    assert await world.other.get_meta("other") == "区"
