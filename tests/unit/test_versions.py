"""Newer zone data and cron rules: what moves, who may claim, and how it is told (X-S8)."""

from __future__ import annotations

from datetime import datetime

import pytest

from crontask_core.events import FiresRecomputed, NodeOutdated
from crontask_core.model import ExecStatus, Task
from crontask_core.policy.versions import (
    DataState,
    ScheduleData,
    current_data,
    data_state,
    meet,
    plan_recompute,
)
from crontask_core.ports import TaskRef
from crontask_core.schedule import CRON_RULES_VERSION, tzdata_version
from tests.builders import cron, utc
from tests.world import NewWorld, Node, World

pytestmark = pytest.mark.requirement("X-S8")


def data(zones: str = "2026f", rules: int = 1) -> ScheduleData:
    return ScheduleData(zones=zones, rules=rules)


def test_what_this_process_computes_with_is_the_package_and_our_own_rules() -> None:
    assert data(tzdata_version(), CRON_RULES_VERSION) == current_data()
    assert f"zone data {tzdata_version()}, cron rules {CRON_RULES_VERSION}" == str(current_data())


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (data("2025b"), data("2026a")),
        (data("2026e"), data("2026f")),
        (data("2026z"), data("2026za")),
        (data("2025zb"), data("2026a")),
        (data("unknown"), data("1996a")),
        (data(""), data("2026f")),
        (data(rules=1), data(rules=2)),
        (data("2025b", 2), data("2026f", 2)),
    ],
)
def test_versions_have_an_order(older: ScheduleData, newer: ScheduleData) -> None:
    assert (True, False) == (older.older_than(newer), newer.older_than(older))
    assert not newer.older_than(newer)


def test_of_two_that_are_each_older_in_one_part_neither_passes_for_newer() -> None:
    zones, rules = data("2026g", 1), data("2026f", 2)
    assert zones.older_than(rules)
    assert rules.older_than(zones)
    state = DataState(seen=zones)
    assert state == meet(state, rules)


def test_only_newer_data_start_the_pages_afresh() -> None:
    state = DataState(seen=data(), after=7)
    for same in (data(), data("2025b"), data("unknown")):
        assert state == meet(state, same)
    assert DataState(seen=data("2026g"), after=0) == meet(state, data("2026g"))
    assert DataState(seen=data("unknown"), after=0) == meet(data_state(), data("unknown"))
    nameless = DataState(seen=data("unknown"))
    assert nameless == meet(nameless, data("house copy"))


@pytest.mark.parametrize("after", [None, 0, 41])
def test_a_state_is_read_back_as_it_was_kept(after: int | None) -> None:
    state = DataState(seen=data("2026f", 3), after=after)
    assert state == data_state(state.as_rows())


def test_facts_that_cannot_be_read_count_as_none() -> None:
    garbled = {"zone_data": "?", "cron_rules": "two", "recomputed_to": "-1"}
    assert DataState(seen=data("?", 0), after=0) == data_state(garbled)
    assert data("?", 0).older_than(data("1996a", 0))


# --- what moves -------------------------------------------------------------------------------


def planned(task: Task, now: str) -> datetime | None:
    writes = plan_recompute([task], utc(now))
    (wanted,) = [after.next_fire_time for _, after in writes.tasks.values()] or [None]
    return wanted


# The stored fires are what the zone data of 2025b gave; the right ones are of 2026f.
@pytest.mark.parametrize(
    ("zone", "expr", "stored", "right"),
    [
        ("America/Vancouver", "0 9 2 11 *", "2026-11-02 17:00", "2026-11-02 16:00"),
        ("America/Edmonton", "0 9 2 11 *", "2026-11-02 16:00", "2026-11-02 15:00"),
        ("America/Winnipeg", "0 9 2 11 *", "2026-11-02 15:00", "2026-11-02 14:00"),
        ("America/Havana", "0 9 2 11 *", "2026-11-02 14:00", "2026-11-02 13:00"),
        ("Africa/Casablanca", "0 9 1 10 *", "2026-10-01 08:00", "2026-10-01 09:00"),
    ],
)
def test_zones_whose_rules_changed_move_their_fires(
    zone: str, expr: str, stored: str, right: str
) -> None:
    task = cron("t", expr, utc(stored), id=1, timezone=zone)
    assert utc(right) == planned(task, "2026-03-02 01:00")


def test_a_zone_whose_rules_did_not_change_moves_nothing() -> None:
    task = cron("t", "0 9 2 11 *", utc("2026-11-02 14:00"), id=1, timezone="America/New_York")
    assert None is planned(task, "2026-03-02 01:00")


def daily(stored: str, last: str | None = None, **changes: object) -> Task:
    fired = utc(last) if last else None
    fields = {"timezone": "America/Vancouver", "last_fire_time": fired, **changes}
    return cron("t", "0 9 * * *", utc(stored), id=1, **fields)


def test_nothing_moves_to_now_or_before() -> None:
    # At 16:00 the fire of today is the new one; what is stored is an hour late already.
    task = daily("2026-11-02 17:00", "2026-11-02 16:00")
    assert utc("2026-11-03 16:00") == planned(task, "2026-11-02 16:00")


def test_a_fire_that_newer_data_put_into_the_past_keeps_its_promise() -> None:
    task = daily("2026-11-02 17:00", "2026-11-01 16:00")
    assert None is planned(task, "2026-11-02 16:30")
    assert utc("2026-11-02 16:00") == planned(task, "2026-11-02 15:59")


def test_no_fire_is_planned_again_that_was_planned_before_a_clock_went_back() -> None:
    task = daily("2026-11-03 17:00", "2026-11-02 16:00")
    assert utc("2026-11-03 16:00") == planned(task, "2026-11-02 12:00")


def test_a_last_fire_is_not_lost_when_newer_data_would_leave_none() -> None:
    ended = {"end_at": utc("2026-11-02 08:30"), "timezone": "Africa/Casablanca"}
    assert None is planned(daily("2026-11-02 08:00", **ended), "2026-11-02 07:00")


# --- engines ----------------------------------------------------------------------------------


async def node(world: World, mine: ScheduleData) -> Node:
    """A node with these data, as a runtime starts it."""
    made = await world.node()
    made.engine.data = mine
    await made.engine.recompute()
    return made


def told(world: World, kind: type) -> list[object]:
    return [event for event in world.observer.events if isinstance(event, kind)]


async def test_a_node_with_older_data_says_why_it_does_not_claim_and_others_do(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await node(world, data("2026f"))
    old = await node(world, data("2025b"))
    await world.create("one", delay_seconds=10)
    world.clock.tick(10)
    assert (0, None) == (await old.turn(), (await old.engine.horizon()).next_due)
    await world.run()
    assert 1 == len(world.agent.calls)
    (why,) = told(world, NodeOutdated)
    assert why == NodeOutdated(
        here="zone data 2025b, cron rules 1",
        seen="zone data 2026f, cron rules 1",
        remedy="Upgrade the package tzdata here, then start this process again.",
    )


async def test_a_node_that_is_overtaken_while_it_runs_stops_claiming_at_once(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    old = await node(world, data("2026f", 1))
    await world.create("one", delay_seconds=10)
    other = await world.node()
    other.engine.data = data("2026f", 2)
    await other.engine.recompute()
    world.clock.tick(10)
    assert 0 == await old.engine.claim()
    (why,) = told(world, NodeOutdated)
    assert isinstance(why, NodeOutdated)
    assert why.remedy == "Upgrade crontask here, then start this process again."
    assert 1 == await other.engine.claim()


async def test_a_node_with_newer_data_moves_stored_fires_and_the_fire_comes_at_the_new_time(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    first = await node(world, data("2025b"))
    await world.repo.add_tasks(
        [cron("old", "0 9 2 11 *", utc("2026-11-02 17:00"), timezone="America/Vancouver")]
    )
    newer = await node(world, data("2026f"))
    assert [
        FiresRecomputed(data="zone data 2025b, cron rules 1", moved=0, done=True),
        FiresRecomputed(data="zone data 2026f, cron rules 1", moved=1, done=True),
    ] == told(world, FiresRecomputed)
    assert 0 == await newer.engine.recompute()
    world.nodes.remove(first)
    before = utc("2026-11-02 15:59") - world.clock.now()
    world.clock.tick(before.total_seconds())
    await world.run()
    assert [] == world.agent.calls
    await world.after(60)
    (execution,) = await world.executions("old")
    assert (utc("2026-11-02 16:00"), ExecStatus.RUNNING) == (
        execution.fire_time,
        execution.exec_status,
    )


async def test_pages_are_taken_until_none_is_left_and_wake_the_loop_for_what_moved(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await node(world, data("2025b"))
    rows = [
        cron(f"t{n}", "0 9 2 11 *", utc("2026-11-02 17:00"), timezone="America/Vancouver")
        for n in range(5)
    ]
    await world.repo.add_tasks(rows)
    newer = await world.node()
    newer.engine.data = data("2026f")
    woken: list[datetime] = []
    newer.engine.on_later = woken.append
    assert [2, 2, 0, 0] == [await newer.engine.recompute(2) for _ in range(4)]
    assert [utc("2026-11-02 16:00")] * 5 == woken


# --- callers ----------------------------------------------------------------------------------


async def test_a_process_with_older_data_warns_that_its_times_may_be_wrong(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await node(world, data("2099a"))
    await world.create("t", cron_expr="0 9 * * *")
    answer = await world.tasks.resume("ann", TaskRef(key="t"))
    (warning,) = [note for note in answer.warnings if note.startswith("Times here")]
    assert warning == (
        f"Times here may be wrong: {current_data()} here, but the store has seen zone data 2099a, "
        "cron rules 1. Upgrade the package tzdata here, then start this process again."
    )


async def test_a_process_with_the_newest_data_says_nothing_about_it(new_world: NewWorld) -> None:
    world = await new_world()
    await node(world, current_data())
    assert "" == await world.tasks.outdated()
