"""What the use cases answer with (A4.2b): the task, its next fires, in words, with warnings."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from crontask_core.errors import Conflict
from crontask_core.model import (
    Attempt,
    Execution,
    NodeRow,
    Rules,
    ScheduleType,
    Task,
)
from crontask_core.policy.drafts import differing
from crontask_core.policy.timing import Timing
from crontask_core.schedule import Cron, Every, Once, Schedule, fires_after

__all__ = [
    "NOBODY",
    "ExecutionView",
    "Info",
    "Preview",
    "RunAnswer",
    "TaskAnswer",
    "key_conflict",
    "next_fires",
    "schedule_from",
]


@attrs.frozen(kw_only=True)
class TaskAnswer:
    """A task and what its caller should know about it (A4.2b).

    ``next_fires`` are aware UTC, at most 3; ``words`` says the schedule in plain English;
    ``alive`` whether a live node will fire it; ``changed`` names the fields an edit changed.
    """

    task: Task
    now: datetime
    words: str
    next_fires: tuple[datetime, ...]
    alive: bool
    warnings: tuple[str, ...] = ()
    created: bool = False
    dry_run: bool = False
    already: bool = False
    changed: tuple[str, ...] = ()
    running: int = 0
    cancelled: int = 0
    executions: tuple[Execution, ...] = ()


@attrs.frozen(kw_only=True)
class RunAnswer:
    """``created`` false: the idempotency key named a run that was there already."""

    execution: Execution
    task: Task
    created: bool
    alive: bool
    warnings: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ExecutionView:
    """An execution with its attempts, and the zone to show its times in."""

    execution: Execution
    zone: str
    attempts: tuple[Attempt, ...] = ()


@attrs.frozen(kw_only=True)
class Preview:
    """What a schedule would do (X-S7). ``gap`` is the shortest time between its next fires."""

    schedule_type: int
    words: str
    zone: str
    now: datetime
    fires: tuple[datetime, ...]
    gap: timedelta | None
    warnings: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Info:
    """The state of the installation as a caller may see it."""

    now: datetime
    rules: Rules
    nodes: tuple[NodeRow, ...]
    alive: bool
    oldest_due: datetime | None


NOBODY = "No live node is there to fire this task. Start one: crontask serve, or crontask worker."


def schedule_from(timing: Timing) -> Schedule:
    """The schedule a checked request describes."""
    if timing.schedule_type is ScheduleType.ONCE and timing.trigger_time is not None:
        return Once(at=timing.trigger_time)
    if timing.schedule_type is ScheduleType.CRON:
        return Cron(expr=timing.cron_expr, zone=timing.timezone)
    assert timing.interval_ms is not None and timing.anchor_at is not None
    interval = timedelta(milliseconds=timing.interval_ms)
    return Every(interval=interval, anchor=timing.anchor_at)


def next_fires(task: Task, schedule: Schedule) -> tuple[datetime, ...]:
    """The next at most 3 fires that will really happen: none for a task that may not fire."""
    if task.next_fire_time is None:
        return ()
    count = 3
    if task.max_fires is not None:
        count = min(count, task.max_fires - task.scheduled_fires)
    later = fires_after(schedule, task.next_fire_time, count - 1) if count > 1 else []
    fires = (task.next_fire_time, *later)
    return tuple(f for f in fires if task.end_at is None or f <= task.end_at)


def key_conflict(task: Task, asked: str) -> Conflict:
    """The key is taken by a task created with other arguments (A3.1a); names the differences."""
    names = differing(task.create_digest, asked)
    return Conflict(
        f"task_key {task.task_key} is taken by task {task.id}, created with other "
        f"{', '.join(names) or 'arguments'}",
        code="TASK_KEY_CONFLICT",
        field="task_key",
        received=task.task_key,
        hint="Use update_cron_task to change that task, or another task_key for a new one.",
        example=f"{task.task_key[:120]}-2",
        candidates=names,
    )
