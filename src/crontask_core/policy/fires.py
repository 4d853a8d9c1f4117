"""Planning fires: which are due, which are too late, when the next one is (DESIGN 3.1 and 3.8)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import attrs

from crontask_core.model import (
    MORE_THAN,
    ExecStatus,
    Execution,
    MisfirePolicy,
    OverlapPolicy,
    Rules,
    ScheduleType,
    Task,
    TaskStatus,
    TriggerKind,
    evolve,
    fire_id_of,
    host_of,
    schedule_of,
)
from crontask_core.policy.queue import QueueView, queue_ready
from crontask_core.policy.writes import NewFire, Writes
from crontask_core.schedule import (
    Schedule,
    count_between,
    latest_at_or_before,
    next_after,
)

__all__ = [
    "ClaimPlan",
    "FirePlan",
    "Send",
    "disabled",
    "grace_of",
    "next_fire",
    "plan_claim",
    "plan_fires",
    "start_call",
]

_SKIP_GRACE = timedelta(seconds=60)
_TICK = timedelta(microseconds=1)


@attrs.frozen
class FirePlan:
    """What is due becomes: ``fires`` to run (pending), ``skipped`` rows, and the task after it."""

    task: Task
    fires: tuple[Execution, ...] = ()
    skipped: tuple[Execution, ...] = ()


@attrs.frozen
class Send:
    """A fire that this node has begun and must now deliver: the rows as stored."""

    execution: Execution
    task: Task


@attrs.frozen
class ClaimPlan:
    """``started`` are new executions that go straight to 1 (fast path); ``broken`` names tasks
    that could not be planned and were disabled, with the reason."""

    writes: Writes
    started: tuple[tuple[Execution, Task], ...] = ()
    queued: int = 0
    skipped: int = 0
    broken: tuple[tuple[int, str], ...] = ()


def grace_of(task: Task, rules: Rules) -> timedelta:
    """How late a fire of this task may still run: its own grace, else the window (A5.4)."""
    if task.misfire_grace_ms is not None:
        return timedelta(milliseconds=task.misfire_grace_ms)
    return rules.compensate_window


def next_fire(task: Task, after: datetime) -> datetime | None:
    """The next scheduled instant later than ``after``, or None: ended by ``end_at``, ``max_fires``
    (X-S6), or a one-off that is over."""
    if task.max_fires is not None and task.scheduled_fires >= task.max_fires:
        return None
    found = next_after(schedule_of(task), after)
    if found is not None and task.end_at is not None and found > task.end_at:
        return None
    return found


def plan_fires(task: Task, now: datetime, rules: Rules, *, busy: bool = False) -> FirePlan:
    """What becomes of everything due at ``now``; ``busy`` says an earlier fire is 0, 1 or 7.

    Bounded: a long absence costs one look-up of the latest fire and a count that stops at
    ``MORE_THAN``. Nothing is planned with a fire time after ``now``. ``DESIGN 3.1``, ``A5.4``.
    """
    due = task.next_fire_time
    if due is None or due > now:
        return FirePlan(task=task)
    schedule = schedule_of(task)
    latest = _latest_due(task, schedule, due, now)
    total = 1 + (count_between(schedule, due, latest, MORE_THAN) if latest > due else 0)
    run, why = _to_run(task, schedule, due, latest, now, rules)
    if busy and task.overlap_policy is OverlapPolicy.SKIP and run:
        run, why = [], "overlap: an earlier run of this task is still going"
    fires = tuple(_draft(task, at, task.fire_count + n + 1, now, rules) for n, at in enumerate(run))
    skipped: tuple[Execution, ...] = ()
    if total > len(run):
        # Never before ``due``: that one may stand off the schedule, and earlier rows are others'.
        earlier = latest_at_or_before(schedule, run[0] - _TICK) if run else latest
        last = max(due, earlier) if earlier is not None else due
        skipped = (_skipped_row(task, due, last, min(total - len(run), MORE_THAN + 1), why, now),)
    after = evolve(
        task,
        last_fire_time=run[-1] if run else task.last_fire_time,
        fire_count=task.fire_count + len(run),
        scheduled_fires=task.scheduled_fires + len(run),
        updated_at=now,
    )
    floor = max(now, task.last_fire_time) if task.last_fire_time else now
    following = next_fire(after, floor)
    if following is None and not fires:
        ended = why or "no more fires"
        after = evolve(after, status=TaskStatus.COMPLETED, status_reason=ended[:255])
    elif following is None:
        fires = (*fires[:-1], evolve(fires[-1], last_fire=True))
    return FirePlan(evolve(after, next_fire_time=following), fires, skipped)


def _latest_due(task: Task, schedule: Schedule, due: datetime, now: datetime) -> datetime:
    if task.schedule_type is ScheduleType.ONCE:
        return due
    until = min(now, task.end_at) if task.end_at else now
    found = latest_at_or_before(schedule, until)
    if found is None and task.schedule_type is ScheduleType.CRON:
        raise ValueError(f"no date ever matches {task.cron_expr}")
    # The stored instant is binding even when newer zone data would no longer compute it.
    return found if found is not None and found > due else due


def _to_run(
    task: Task, schedule: Schedule, due: datetime, latest: datetime, now: datetime, rules: Rules
) -> tuple[list[datetime], str]:
    grace = grace_of(task, rules)
    recurring = task.schedule_type is not ScheduleType.ONCE
    if recurring and task.misfire_policy is MisfirePolicy.SKIP and task.misfire_grace_ms is None:
        grace = min(grace, _SKIP_GRACE)
    if now - latest > grace:
        return [], f"too late: found {_span(now - latest)} late, the window is {_span(grace)}"
    run = [latest]
    if recurring and task.misfire_policy is MisfirePolicy.RUN_ALL:
        cap = 1 if task.overlap_policy is OverlapPolicy.SKIP else rules.misfire_cap
        while len(run) < cap:
            earlier = latest_at_or_before(schedule, run[0] - _TICK)
            if earlier is None or earlier < due or now - earlier > grace:
                break
            run.insert(0, earlier)
    if task.max_fires is not None:
        run = run[-max(1, task.max_fires - task.scheduled_fires) :]
    return run, "missed: only the latest due runs of a late task are run"


def _span(span: timedelta) -> str:
    return str(timedelta(seconds=int(span.total_seconds())))


def _draft(task: Task, at: datetime, number: int, now: datetime, rules: Rules) -> Execution:
    return Execution(
        fire_id=fire_id_of(task.uid, TriggerKind.SCHEDULE, at),
        task_id=task.id,
        task_key=task.task_key,
        user_id=task.user_id,
        fire_time=at,
        fire_number=number,
        next_action_at=max(now + _TICK, at + grace_of(task, rules)),
        created_at=now,
        updated_at=now,
    )


def _skipped_row(
    task: Task, first: datetime, last: datetime, count: int, why: str, now: datetime
) -> Execution:
    return Execution(
        fire_id=fire_id_of(task.uid, TriggerKind.SCHEDULE, last),
        task_id=task.id,
        task_key=task.task_key,
        user_id=task.user_id,
        fire_time=last,
        exec_status=ExecStatus.SKIPPED,
        reason=why,
        missed_count=count,
        missed_from=first,
        missed_to=last,
        end_time=now,
        created_at=now,
        updated_at=now,
    )


def plan_claim(
    tasks: Sequence[Task],
    busy: Collection[int],
    queue: QueueView,
    slots: int,
    node: str,
    now: datetime,
    rules: Rules,
    capped_hosts: Collection[str] = (),
) -> ClaimPlan:
    """One claim over all due ``tasks``: up to ``slots`` fires start at once when the queue is
    empty (fast path, DESIGN 3.2), the rest wait in the queue in fair order.

    ``busy`` holds the ids of tasks that have an execution in 0, 1 or 7. A task that cannot be
    planned is disabled with the reason and does not stop the others.
    """
    writes = Writes()
    fires: list[tuple[Execution, Task]] = []
    broken: list[tuple[int, str]] = []
    skipped = 0
    for task in tasks:
        try:
            plan = plan_fires(task, now, rules, busy=task.id in busy)
        except Exception as error:  # noqa: BLE001 - one bad row never stops the others
            why = f"cannot be planned: {error}"[:255]
            broken.append((task.id, why))
            plan = FirePlan(disabled(task, why, now))
        writes.set_task(task, plan.task)
        writes.new.extend(NewFire(row) for row in plan.skipped)
        skipped += sum(max(1, row.missed_count) for row in plan.skipped)
        fires.extend((fire, task) for fire in plan.fires)
    users = [(f.user_id, host_of(t.callback_url or rules.default_callback_url)) for f, t in fires]
    ready = queue_ready(queue, users, now)
    order = sorted(range(len(fires)), key=lambda n: ready[n].queue_key)
    allowed = [n for n in order if ready[n].callback_host not in capped_hosts]
    fast = set(allowed[: slots if queue.head is None else 0])
    started: list[tuple[Execution, Task]] = []
    for n in order:
        execution, task = fires[n]
        if n in fast:
            execution = start_call(execution, node, now, rules)
            started.append((execution, task))
        writes.new.append(NewFire(execution, None if n in fast else ready[n]))
    return ClaimPlan(writes, tuple(started), len(fires) - len(fast), skipped, tuple(broken))


def start_call(execution: Execution, node: str, now: datetime, rules: Rules) -> Execution:
    """The execution as 1 calling: next fence, this node's incarnation, a lease (DESIGN 3.2)."""
    return evolve(
        execution,
        exec_status=ExecStatus.CALLING,
        fence=execution.fence + 1,
        executor_node=node,
        start_time=execution.start_time or now,
        next_action_at=now + rules.lease,
        updated_at=now,
    )


def disabled(task: Task, why: str, now: datetime) -> Task:
    """The task as 0 disabled, with the reason, and no fire to come."""
    return evolve(
        task,
        status=TaskStatus.DISABLED,
        status_reason=why,
        next_fire_time=None,
        updated_at=now,
    )
