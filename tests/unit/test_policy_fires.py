"""plan_fires and plan_claim: what is due, what is late, what is next, all by hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest

from crontask_core.model import (
    ExecStatus,
    MisfirePolicy,
    OverlapPolicy,
    Task,
    TaskStatus,
    TriggerKind,
    fire_id_of,
    host_of,
)
from crontask_core.policy import FirePlan, QueueView, next_fire, plan_claim, plan_fires
from tests.builders import RULES, T0, at, cron, every, once, utc


def plan(task: Task, now: datetime, **more: Any) -> FirePlan:
    return plan_fires(attrs.evolve(task, id=7), now, RULES, **more)


def times(found: FirePlan) -> list[datetime]:
    return [fire.fire_time for fire in found.fires]


def test_nothing_is_planned_before_its_time() -> None:
    task = every()
    before = at(minutes=10) - timedelta(microseconds=1)
    assert plan(task, before) == FirePlan(task=attrs.evolve(task, id=7))
    assert plan(every(next_fire_time=None), at(days=1)).fires == ()


def test_a_due_fire_is_pending_with_its_number_id_and_give_up_time() -> None:
    found = plan(every(fire_count=4, scheduled_fires=3), at(minutes=10))
    [fire] = found.fires
    assert fire.fire_id == fire_id_of(every().uid, TriggerKind.SCHEDULE, at(minutes=10))
    assert (fire.task_id, fire.fire_time, fire.fire_number) == (7, at(minutes=10), 5)
    assert (fire.exec_status, fire.fence, fire.last_fire) == (ExecStatus.PENDING, 0, False)
    assert fire.next_action_at == at(minutes=40)
    assert found.skipped == ()
    assert found.task.next_fire_time == at(minutes=20)
    assert found.task.last_fire_time == at(minutes=10)
    assert (found.task.fire_count, found.task.scheduled_fires) == (5, 4)
    assert found.task.revision == 1


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(
    ("late_seconds", "run", "missed", "span", "following"),
    [
        (0, 10, 0, None, 20),
        (599, 10, 0, None, 20),
        (600, 20, 1, (10, 10), 30),
        (1_500, 30, 2, (10, 20), 40),
        (86_400, 1_450, 144, (10, 1_440), 1_460),
    ],
)
def test_run_once_runs_the_latest_and_counts_the_older(
    late_seconds: int, run: int, missed: int, span: tuple[int, int] | None, following: int
) -> None:
    found = plan(every(), at(minutes=10, seconds=late_seconds))
    assert times(found) == [at(minutes=run)]
    assert found.task.next_fire_time == at(minutes=following)
    if span is None:
        assert found.skipped == ()
        return
    [row] = found.skipped
    assert (row.exec_status, row.missed_count) == (ExecStatus.SKIPPED, missed)
    assert (row.missed_from, row.missed_to) == (at(minutes=span[0]), at(minutes=span[1]))
    assert row.fire_time == row.missed_to
    assert row.reason == "missed: only the latest due runs of a late task are run"


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(
    ("grace_ms", "late", "runs"),
    [
        (None, timedelta(minutes=30), True),
        (None, timedelta(minutes=30, microseconds=1), False),
        (0, timedelta(0), True),
        (0, timedelta(microseconds=1), False),
        (90_000, timedelta(seconds=90), True),
        (90_000, timedelta(seconds=91), False),
        (86_400_000, timedelta(hours=23), True),
    ],
)
def test_the_window_is_the_tasks_own_or_thirty_minutes_to_the_microsecond(
    grace_ms: int | None, late: timedelta, runs: bool
) -> None:
    found = plan(once(misfire_grace_ms=grace_ms), at(minutes=10) + late)
    assert len(found.fires) == (1 if runs else 0)
    assert len(found.skipped) == (0 if runs else 1)


@pytest.mark.requirement("A5.4")
def test_a_one_off_outside_its_window_is_over() -> None:
    found = plan(once(), at(minutes=41))
    [row] = found.skipped
    assert row.reason == "too late: found 0:31:00 late, the window is 0:30:00"
    assert (found.task.status, found.task.next_fire_time) == (TaskStatus.COMPLETED, None)
    assert found.task.last_fire_time is None


def test_the_fire_of_a_one_off_is_its_last_and_does_not_complete_it_yet() -> None:
    found = plan(once(), at(minutes=10))
    assert [fire.last_fire for fire in found.fires] == [True]
    assert (found.task.status, found.task.next_fire_time) == (TaskStatus.ENABLED, None)


@pytest.mark.requirement("A5.4")
def test_run_all_runs_what_the_window_still_holds_oldest_first() -> None:
    found = plan(every(misfire_policy=MisfirePolicy.RUN_ALL), at(minutes=75))
    assert times(found) == [at(minutes=50), at(minutes=60), at(minutes=70)]
    assert [fire.fire_number for fire in found.fires] == [1, 2, 3]
    [row] = found.skipped
    assert (row.missed_count, row.missed_from, row.missed_to) == (4, at(minutes=10), at(minutes=40))


@pytest.mark.requirement("A5.4")
def test_run_all_is_capped_at_ten() -> None:
    found = plan(every(seconds=60, misfire_policy=MisfirePolicy.RUN_ALL), at(minutes=20))
    assert times(found) == [at(minutes=n) for n in range(11, 21)]
    assert found.skipped[0].missed_count == 10


def test_run_all_runs_one_where_runs_may_not_overlap() -> None:
    task = every(misfire_policy=MisfirePolicy.RUN_ALL, overlap_policy=OverlapPolicy.SKIP)
    assert times(plan(task, at(minutes=35))) == [at(minutes=30)]


@pytest.mark.requirement("X-S6")
def test_run_all_stops_at_max_fires_and_the_latest_are_kept() -> None:
    task = every(misfire_policy=MisfirePolicy.RUN_ALL, max_fires=5, scheduled_fires=3)
    found = plan(task, at(minutes=45))
    assert times(found) == [at(minutes=30), at(minutes=40)]
    assert [fire.last_fire for fire in found.fires] == [False, True]
    assert found.task.scheduled_fires == 5
    assert found.task.next_fire_time is None


@pytest.mark.requirement("A5.4")
@pytest.mark.parametrize(("late", "runs"), [(60, 1), (61, 0)])
def test_skip_allows_a_minute(late: int, runs: int) -> None:
    found = plan(every(misfire_policy=MisfirePolicy.SKIP), at(minutes=10, seconds=late))
    assert len(found.fires) == runs
    assert found.task.next_fire_time == at(minutes=20)


def test_skip_with_a_grace_of_its_own_uses_that() -> None:
    task = every(misfire_policy=MisfirePolicy.SKIP, misfire_grace_ms=300_000)
    assert len(plan(task, at(minutes=15)).fires) == 1
    assert len(plan(task, at(minutes=15, seconds=1)).fires) == 0


@pytest.mark.parametrize(("missed", "count"), [(1_000, 1_000), (1_001, 1_001), (90_000, 1_001)])
def test_missed_runs_are_counted_to_a_thousand_and_then_as_more(missed: int, count: int) -> None:
    found = plan(every(seconds=60), at(minutes=missed + 1))
    assert found.skipped[0].missed_count == count
    assert found.skipped[0].missed_to == at(minutes=missed)


def test_ten_years_of_absence_are_planned_like_one_hour() -> None:
    found = plan(cron("k", "*/5 * * * *", at(minutes=5)), at(days=3_650, minutes=7))
    assert times(found) == [at(days=3_650, minutes=5)]
    assert found.skipped[0].missed_from == at(minutes=5)
    assert found.skipped[0].missed_to == at(days=3_650)


def test_with_overlap_skip_a_busy_task_skips_everything_due() -> None:
    task = every(overlap_policy=OverlapPolicy.SKIP)
    found = plan(task, at(minutes=25), busy=True)
    assert found.fires == ()
    [row] = found.skipped
    assert (row.missed_count, row.fire_time) == (2, at(minutes=20))
    assert row.reason == "overlap: an earlier run of this task is still going"
    assert found.task.scheduled_fires == 0
    assert len(plan(every(), at(minutes=25), busy=True).fires) == 1


@pytest.mark.requirement("X-S6")
def test_no_fire_lies_beyond_end_at() -> None:
    task = every(end_at=at(minutes=25))
    assert plan(task, at(minutes=10)).task.next_fire_time == at(minutes=20)
    last = plan(attrs.evolve(task, next_fire_time=at(minutes=20)), at(minutes=28))
    assert times(last) == [at(minutes=20)]
    assert last.fires[0].last_fire is True
    assert last.task.next_fire_time is None


@pytest.mark.requirement("X-S6")
def test_what_an_outage_swallowed_up_to_the_end_completes_the_task() -> None:
    found = plan(every(end_at=at(minutes=25)), at(hours=3))
    assert found.fires == ()
    assert (found.skipped[0].missed_count, found.skipped[0].missed_to) == (2, at(minutes=20))
    assert found.task.status is TaskStatus.COMPLETED
    assert found.task.status_reason.startswith("too late")


def test_the_next_fire_lies_after_the_last_even_when_the_clock_was_set_back() -> None:
    task = every(last_fire_time=at(minutes=30), next_fire_time=at(minutes=10))
    assert plan(task, at(minutes=12)).task.next_fire_time == at(minutes=40)


@pytest.mark.requirement("X-S8")
def test_a_stored_instant_that_newer_rules_would_not_compute_still_fires() -> None:
    task = every(next_fire_time=at(minutes=13))
    assert times(plan(task, at(minutes=14))) == [at(minutes=13)]


@pytest.mark.requirement("X-S8")
def test_a_missed_row_never_reaches_back_before_what_was_due() -> None:
    """The row's time is a unique key: that of an earlier fire would swallow it."""
    found = plan(every(next_fire_time=at(minutes=13)), at(minutes=24))
    assert times(found) == [at(minutes=20)]
    [row] = found.skipped
    assert (row.missed_count, row.missed_from, row.missed_to) == (1, at(minutes=13), at(minutes=13))
    assert row.fire_time == at(minutes=13)


@pytest.mark.requirement("X-S3")
def test_a_daily_task_keeps_its_wall_time_over_a_clock_change() -> None:
    task = cron("k", "30 9 * * *", utc("2026-03-28 08:30"), timezone="Europe/Berlin")
    found = plan(task, utc("2026-03-28 08:30"))
    assert found.task.next_fire_time == utc("2026-03-29 07:30")


@pytest.mark.requirement("X-S6")
@pytest.mark.parametrize(
    ("task", "after", "expected"),
    [
        (every(), T0, at(minutes=10)),
        (every(), at(minutes=10), at(minutes=20)),
        (every(max_fires=3, scheduled_fires=2), T0, at(minutes=10)),
        (every(max_fires=3, scheduled_fires=3), T0, None),
        (every(end_at=at(minutes=10)), T0, at(minutes=10)),
        (every(end_at=at(minutes=10)), at(minutes=10), None),
        (once(), T0, at(minutes=10)),
        (once(), at(minutes=10), None),
        (cron("k", "0 9 * * 1-5", at(days=1)), T0, at(days=1)),
    ],
)
def test_the_next_fire(task: Task, after: datetime, expected: datetime | None) -> None:
    assert next_fire(task, after) == expected


# -- one claim over many tasks ---------------------------------------------------------------------


def due(count: int, **changes: Any) -> list[Task]:
    return [attrs.evolve(every(f"k{n}", **changes), id=n + 1) for n in range(count)]


def test_free_slots_are_used_when_nobody_waits() -> None:
    found = plan_claim(due(3), (), QueueView(), 2, "n1", at(minutes=10), RULES)
    assert len(found.started) == 2
    assert found.queued == 1
    for execution, _ in found.started:
        assert (execution.exec_status, execution.fence) == (ExecStatus.CALLING, 1)
        assert (execution.executor_node, execution.start_time) == ("n1", at(minutes=10))
        assert execution.next_action_at == at(minutes=11)
    [waiting] = [new for new in found.writes.new if new.ready is not None]
    assert waiting.execution.exec_status is ExecStatus.PENDING


def test_nobody_overtakes_those_who_wait() -> None:
    found = plan_claim(due(3), (), QueueView(head=5), 50, "n1", at(minutes=10), RULES)
    assert (found.started, found.queued) == ((), 3)


@pytest.mark.requirement("X-F1")
def test_a_capped_host_does_not_get_the_fast_path() -> None:
    tasks = due(2)
    tasks[0] = attrs.evolve(tasks[0], callback_url="https://Slow.test:8443/x")
    found = plan_claim(tasks, (), QueueView(), 50, "n1", at(minutes=10), RULES, {"slow.test:8443"})
    assert [task.id for _, task in found.started] == [2]
    assert found.queued == 1


def test_a_task_that_cannot_be_planned_is_disabled_with_the_reason() -> None:
    tasks = due(3)
    tasks[1] = attrs.evolve(tasks[1], interval_ms=None)
    found = plan_claim(tasks, (), QueueView(), 50, "n1", at(minutes=10), RULES)
    assert found.broken == (
        (2, "cannot be planned: an interval task without interval_ms or anchor_at"),
    )
    before, after = found.writes.tasks[2]
    assert (before.status, after.status) == (TaskStatus.ENABLED, TaskStatus.DISABLED)
    assert (after.next_fire_time, after.status_reason) == (None, found.broken[0][1])
    assert [task.id for _, task in found.started] == [1, 3]


def test_skipped_fires_are_counted_one_by_one() -> None:
    found = plan_claim(due(2), (), QueueView(), 50, "n1", at(minutes=35), RULES)
    assert (len(found.started), found.skipped) == (2, 4)


def test_only_a_task_that_is_busy_is_held_back_by_overlap() -> None:
    tasks = due(2, overlap_policy=OverlapPolicy.SKIP)
    found = plan_claim(tasks, {1}, QueueView(), 50, "n1", at(minutes=10), RULES)
    assert [task.id for _, task in found.started] == [2]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("", ""),
        ("http://Agent.Test/v1", "agent.test"),
        ("https://user:secret@agent.test:8443/x?y=1", "agent.test:8443"),
        ("http://[::1]:80/", "[::1]:80"),
    ],
)
def test_fairness_counts_by_host_and_port(url: str, host: str) -> None:
    assert host_of(url) == host
