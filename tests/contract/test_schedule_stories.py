"""What real reports say went wrong with schedules in other schedulers, told on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crontask_core.errors import InvalidInput
from crontask_core.events import RowSetAside
from crontask_core.model import ExecStatus, TaskStatus
from crontask_core.ports import TaskRef
from tests.builders import at, cron
from tests.world import NewWorld, World


async def go(world: World, when: str) -> None:
    """Let time pass to this instant, and everything that is due happen."""
    away = datetime.fromisoformat(when).astimezone(UTC) - world.clock.now()
    world.clock.tick(away.total_seconds())
    await world.run()


async def fires(world: World, key: str) -> list[str]:
    """The fires of a task that ended or go on, as UTC texts, oldest first."""
    return [e.fire_time.isoformat() for e in await world.executions(key)]


# --- rows that should not be there ------------------------------------------------------------


@pytest.mark.requirement("X-S1")
@pytest.mark.parametrize(
    "changes",
    [
        {"cron_expr": "CRON_TZ=UTC"},
        {"cron_expr": "TZ=0"},
        {"cron_expr": "TZ="},
        {"cron_expr": ""},
        {"cron_expr": "R 9 * * *"},
        {"cron_expr": "0 0 30 02 *"},
        {"cron_expr": "0 0 31 2,4,6 *"},
        {"cron_expr": "0 9 * * *", "timezone": "Mars/Olympus"},
    ],
    ids=lambda changes: " ".join(changes.values()),
)
async def test_a_bad_row_in_the_table_is_set_aside_with_its_reason_and_stops_no_other(
    new_world: NewWorld, changes: dict[str, str]
) -> None:
    world = await new_world()
    await world.node()
    # Rows put there by hand, one before and one after a good task in the order of claiming.
    for key, seconds in (("bad-1", 9), ("bad-2", 11)):
        row = cron(key, "0 9 * * *", at(seconds=seconds), **changes)
        await world.repo.add_tasks([row])
    await world.create("good", delay_seconds=10)

    await world.after(12)

    assert ["good"] == [call.task_key for call in world.agent.calls]
    for key in ("bad-1", "bad-2"):
        row = (await world.repo.get_tasks("ann", [TaskRef(key=key)]))[0].task
        assert (TaskStatus.DISABLED, None) == (row.status, row.next_fire_time)
        assert row.status_reason.startswith("cannot be planned: ")
    told = [event for event in world.observer.events if isinstance(event, RowSetAside)]
    assert 2 == len(told)
    assert all(event.reason.startswith("cannot be planned: ") for event in told)


@pytest.mark.requirement("X-S1")
async def test_an_expression_of_128_characters_is_kept_whole_and_a_longer_one_refused(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    exact = ",".join(str(minute) for minute in range(10, 50)) + " 19 * * *"
    assert 128 == len(exact)
    await world.create("exact", cron_expr=exact)
    assert exact == (await world.task("exact")).cron_expr
    longer = ",".join(str(minute) for minute in range(60)) + " 9 * * *"
    with pytest.raises(InvalidInput, match="177 characters; a cron expression has at most 128"):
        await world.create("longer", cron_expr=longer)


# --- clock changes ----------------------------------------------------------------------------

NIGHTLY = {"cron_expr": "30 1 * * *", "timezone": "America/New_York"}


@pytest.mark.requirement("X-S3", "A5.5")
async def test_on_the_night_clocks_go_back_a_daily_task_runs_once(new_world: NewWorld) -> None:
    world = await new_world()
    await go(world, "2026-10-31T20:00:00-04:00")
    await world.node()
    await world.create("nightly", **NIGHTLY)
    for minutes in range(0, 8 * 60, 15):
        await go(world, (datetime(2026, 11, 1, 4, tzinfo=UTC) + minutes * _MINUTE).isoformat())
    assert ["2026-11-01T05:30:00+00:00"] == await fires(world, "nightly")
    (call,) = world.agent.calls
    assert "2026-11-01T01:30:00-04:00" == call.fire_time.astimezone(_EASTERN).isoformat()
    assert datetime(2026, 11, 2, 6, 30, tzinfo=UTC) == (await world.task("nightly")).next_fire_time


@pytest.mark.requirement("X-S3", "X-S4")
async def test_a_node_that_starts_in_the_second_pass_fires_nothing_again(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await go(world, "2026-10-31T20:00:00-04:00")
    first = await world.node()
    await world.create("nightly", **NIGHTLY)
    await go(world, "2026-11-01T01:31:00-04:00")
    world.nodes.remove(first)
    await go(world, "2026-11-01T01:00:00-05:00")
    await world.node()
    await go(world, "2026-11-01T01:45:00-05:00")
    assert ["2026-11-01T05:30:00+00:00"] == await fires(world, "nightly")
    assert datetime(2026, 11, 2, 6, 30, tzinfo=UTC) == (await world.task("nightly")).next_fire_time


@pytest.mark.requirement("X-S3")
async def test_a_time_that_the_clocks_jump_over_runs_right_after_the_jump(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await go(world, "2026-03-07T20:00:00-05:00")
    await world.node()
    await world.create("gap", cron_expr="30 2 * * *", timezone="America/New_York")
    await go(world, "2026-03-08T02:59:00-04:00")
    await go(world, "2026-03-08T03:00:00-04:00")
    await go(world, "2026-03-09T02:30:00-04:00")
    assert ["2026-03-08T07:00:00+00:00", "2026-03-09T06:30:00+00:00"] == await fires(world, "gap")


@pytest.mark.requirement("X-S5")
async def test_an_interval_keeps_its_rhythm_through_the_hour_that_comes_twice(
    new_world: NewWorld,
) -> None:
    world = await new_world()
    await go(world, "2026-11-01T01:59:00-07:00")
    await world.node()
    await world.create("tick", interval_seconds=60, timezone="America/Los_Angeles")
    for minutes in range(1, 5):
        start = datetime.fromisoformat("2026-11-01T01:59:00-07:00")
        await go(world, (start + minutes * _MINUTE).isoformat())
    assert [f"2026-11-01T0{h}:00+00:00" for h in ("9:00", "9:01", "9:02", "9:03")] == (
        await fires(world, "tick")
    )


_MINUTE = timedelta(minutes=1)
_EASTERN = datetime.fromisoformat("2026-11-01T00:00:00-04:00").tzinfo


# --- instants as they are stored --------------------------------------------------------------


@pytest.mark.requirement("X-S2")
@pytest.mark.parametrize(
    ("zone", "expr", "due"),
    [
        ("Asia/Shanghai", "40 17 * * *", "2026-08-19T09:40:00+00:00"),
        ("America/Los_Angeles", "40 2 * * *", "2026-08-19T09:40:00+00:00"),
        ("Pacific/Kiritimati", "40 23 * * *", "2026-08-19T09:40:00+00:00"),
    ],
)
async def test_a_task_is_due_by_its_instant_and_not_by_how_its_zone_writes_it(
    new_world: NewWorld, zone: str, expr: str, due: str
) -> None:
    world = await new_world()
    await go(world, "2026-08-19T09:00:00+00:00")
    await world.node()
    await world.create("t", cron_expr=expr, timezone=zone)
    await go(world, "2026-08-19T09:39:59+00:00")
    assert [] == world.agent.calls
    await go(world, "2026-08-19T09:40:01+00:00")
    assert [due] == await fires(world, "t")


@pytest.mark.requirement("A2.1b")
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("2026-12-31T23:59:59.700+00:00", datetime(2026, 12, 31, 23, 59, 59, 700_000, tzinfo=UTC)),
        (
            "2026-12-31T23:59:59.9999999Z",
            datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ),
        ("2040-01-01T00:00Z", datetime(2040, 1, 1, tzinfo=UTC)),
        ("2999-12-31T23:59:59Z", datetime(2999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
async def test_a_one_off_keeps_its_instant_to_the_microsecond_however_far(
    new_world: NewWorld, text: str, stored: datetime
) -> None:
    world = await new_world()
    await world.create("t", trigger_time=text)
    task = await world.task("t")
    assert (stored, stored) == (task.trigger_time, task.next_fire_time)


@pytest.mark.requirement("A2.1b")
async def test_a_one_off_at_the_end_of_the_calendar_is_refused(new_world: NewWorld) -> None:
    world = await new_world()
    with pytest.raises(InvalidInput, match="the year 9999 is outside 1900-2999"):
        await world.create("t", trigger_time="9999-12-31T00:00:00Z")


@pytest.mark.requirement("X-S4")
async def test_a_yearly_task_goes_on_after_january_2038(new_world: NewWorld) -> None:
    world = await new_world()
    await go(world, "2038-06-01T00:00:00+00:00")
    await world.node()
    await world.create("t", cron_expr="0 0 1 1 *", timezone="UTC")
    await go(world, "2039-01-01T00:00:00+00:00")
    (execution,) = await world.executions("t")
    assert (datetime(2039, 1, 1, tzinfo=UTC), ExecStatus.RUNNING) == (
        execution.fire_time,
        execution.exec_status,
    )
    assert datetime(2040, 1, 1, tzinfo=UTC) == (await world.task("t")).next_fire_time
