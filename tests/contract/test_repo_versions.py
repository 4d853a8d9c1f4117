"""Zone data and cron rules: what the store has seen, and tasks moved to newer ones (X-S8)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from crontask_core.model import Task, TaskStatus
from crontask_core.policy import Pause
from crontask_core.policy.versions import DataState, ScheduleData
from crontask_core.ports import Recomputed
from tests.builders import T0, at, cron, every, once, utc
from tests.contract.world import World

pytestmark = pytest.mark.requirement("X-S8")

OLD = ScheduleData(zones="2025b", rules=1)
NEW = ScheduleData(zones="2026f", rules=1)
NOTHING = ScheduleData(zones="", rules=0)


def vancouver(key: str, next_fire_time: datetime, **changes: object) -> Task:
    """09:00 in Vancouver on 2 November: 16:00 UTC since 2026, 17:00 by the zone data of 2025."""
    fields = {"timezone": "America/Vancouver", **changes}
    return cron(key, "0 9 2 11 *", next_fire_time, **fields)


async def note(world: World, data: ScheduleData) -> None:
    """The store has been worked on with these data, and nothing is left to do."""
    while (await world.repo.recompute(data, 500)).state.after is not None:
        pass


async def test_a_store_that_never_noted_any_has_seen_nothing(world: World) -> None:
    assert await world.repo.data_state() == DataState(seen=NOTHING, after=0)


async def test_the_newest_data_are_noted_and_older_ones_change_nothing(world: World) -> None:
    await note(world, NEW)
    state = DataState(seen=NEW, after=None)
    assert await world.repo.recompute(OLD, 500) == Recomputed(before=state, state=state)
    assert await world.other.data_state() == state
    assert await world.repo.get_meta("zone_data") == "2026f"
    assert await world.repo.get_meta("cron_rules") == "1"


async def test_newer_data_move_the_fires_they_change_and_no_others(world: World) -> None:
    await note(world, OLD)
    moved, right, unchanged, once_, tick = await world.add(
        vancouver("moved", utc("2026-11-02 17:00")),
        vancouver("right", utc("2026-11-02 16:00")),
        cron("unchanged", "0 9 * * *", utc("2026-03-03 01:00")),
        once(when=utc("2026-11-02 17:00"), timezone="America/Vancouver"),
        every(),
    )
    world.tick(seconds=60)
    done = await world.repo.recompute(NEW, 500)
    assert (done.before.seen, done.state) == (OLD, DataState(seen=NEW, after=None))
    [(was, now)] = done.moved
    assert (was.id, was.next_fire_time) == (moved.id, utc("2026-11-02 17:00"))
    assert (now.id, now.next_fire_time) == (moved.id, utc("2026-11-02 16:00"))
    stored = await world.task(moved)
    assert (stored.next_fire_time, stored.updated_at) == (now.next_fire_time, at(seconds=60))
    # A caller's view of the task is as fresh as before: nothing of what it set has changed.
    assert (stored.revision, stored.task_content) == (moved.revision, moved.task_content)
    for task in (right, unchanged, once_, tick):
        assert await world.task(task) == task


async def test_newer_cron_rules_are_newer_data(world: World) -> None:
    await note(world, NEW)
    [task] = await world.add(vancouver("moved", utc("2026-11-02 17:00")))
    await world.repo.recompute(NEW, 500)
    assert (await world.task(task)).next_fire_time == utc("2026-11-02 17:00")
    await world.repo.recompute(ScheduleData(zones="2026f", rules=2), 500)
    assert (await world.task(task)).next_fire_time == utc("2026-11-02 16:00")


async def test_a_row_that_is_due_is_left_alone(world: World) -> None:
    await note(world, OLD)
    [due] = await world.add(vancouver("due", T0))
    await world.repo.recompute(NEW, 500)
    assert await world.task(due) == due
    assert (await world.claim()).tasks == 1


async def test_paused_tasks_are_left_alone(world: World) -> None:
    await note(world, OLD)
    [task] = await world.add(vancouver("paused", utc("2026-11-02 17:00")))
    await world.edit(task, Pause())
    await world.repo.recompute(NEW, 500)
    stored = await world.task(task)
    assert (stored.status, stored.next_fire_time) == (TaskStatus.DISABLED, None)


async def test_pages_go_on_where_the_last_one_ended_whoever_takes_them(world: World) -> None:
    await note(world, OLD)
    tasks = await world.add(*(vancouver(f"t{n}", utc("2026-11-02 17:00")) for n in range(5)))
    pages = [await (world.repo, world.other)[n % 2].recompute(NEW, 2) for n in range(4)]
    assert [[t.id for _, t in page.moved] for page in pages] == [
        [tasks[0].id, tasks[1].id],
        [tasks[2].id, tasks[3].id],
        [tasks[4].id],
        [],
    ]
    assert [page.state.after for page in pages] == [tasks[1].id, tasks[3].id, None, None]


async def test_nodes_that_start_together_move_every_task_once(world: World) -> None:
    await note(world, OLD)
    await world.add(*(vancouver(f"t{n}", utc("2026-11-02 17:00")) for n in range(6)))

    async def all_pages(repo: object) -> list[int]:
        ids: list[int] = []
        for _ in range(4):
            ids += [t.id for _, t in (await repo.recompute(NEW, 2)).moved]  # type: ignore[attr-defined]
        return ids

    mine, theirs = await asyncio.gather(all_pages(world.repo), all_pages(world.other))
    assert len(mine) + len(theirs) == len({*mine, *theirs}) == 6
    assert (await world.repo.data_state()).after is None


async def test_a_node_with_older_data_claims_nothing_and_is_told_why(world: World) -> None:
    await note(world, NEW)
    [task] = await world.add(every())
    world.tick(minutes=10)
    claimed = await world.repo.claim("n1", 200, 50, data=OLD)
    assert (claimed.tasks, claimed.started, claimed.newer) == (0, (), NEW)
    assert await world.task(task) == task
    claimed = await world.repo.claim("n1", 200, 50, data=NEW)
    assert (claimed.tasks, claimed.newer) == (1, None)


async def test_a_move_to_newer_data_and_a_claim_meet_without_losing_a_fire(world: World) -> None:
    await note(world, OLD)
    tasks = await world.add(
        *(cron(f"t{n}", "0 9 * * *", at(minutes=1), timezone="UTC") for n in range(8))
    )
    world.tick(minutes=1)
    claimed, done = await asyncio.gather(
        world.repo.claim("n1", 200, 50, data=NEW), world.other.recompute(NEW, 500)
    )
    assert (claimed.tasks, done.moved) == (8, ())
    for task in tasks:
        assert (await world.task(task)).next_fire_time == utc("2026-03-02 09:00")
        assert [e.fire_time for e in await world.executions(task)] == [at(minutes=1)]


async def test_a_task_that_cannot_be_computed_does_not_stop_the_page(world: World) -> None:
    await note(world, OLD)
    bad, moved = await world.add(
        cron("bad", "CRON_TZ=UTC", T0 + timedelta(hours=1)),
        vancouver("moved", utc("2026-11-02 17:00")),
    )
    done = await world.repo.recompute(NEW, 500)
    assert [task.id for _, task in done.moved] == [moved.id]
    assert await world.task(bad) == bad
