"""Pausing, resuming, deleting, finishing: what changes a task once made (A2.2, DESIGN 4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from crontask_core.errors import Conflict
from crontask_core.model import (
    ExecStatus,
    Execution,
    Rules,
    ScheduleType,
    Task,
    TaskStatus,
    TriggerKind,
    evolve,
    fire_id_of,
)
from crontask_core.policy.fires import disabled, grace_of, next_fire, plan_fires
from crontask_core.policy.writes import NewFire, Writes, end

__all__ = [
    "Delete",
    "Edit",
    "EditResult",
    "Pause",
    "Resume",
    "Update",
    "cancel_execution",
    "finish",
    "manual_fire",
    "plan_edit",
    "plan_set_aside",
    "stop_firing",
]


@attrs.frozen
class Pause:
    reason: str = ""


@attrs.frozen
class Resume:
    pass


@attrs.frozen
class Delete:
    pass


@attrs.frozen
class Update:
    """``changes`` are new values of ``Task`` fields, already checked (``policy.drafts``).

    ``revision`` is what the caller had read, or None for "whatever it is" (X-T1).
    """

    changes: tuple[tuple[str, object], ...]
    revision: int | None = None


Edit = Pause | Resume | Delete | Update


@attrs.frozen(kw_only=True)
class EditResult:
    """The task before and after; ``already`` when nothing had to change; ``changed`` field names;
    ``running`` counts fires that go on in 1 or 7; ``cancelled`` counts pending fires ended."""

    before: Task
    after: Task
    already: bool = False
    changed: tuple[str, ...] = ()
    running: int = 0
    cancelled: int = 0


_SCHEDULE = frozenset({"schedule_type", "trigger_time", "cron_expr", "timezone", "interval_ms"})
_FIRING = _SCHEDULE | {"end_at", "max_fires", "anchor_at"}


def stop_firing(writes: Writes, task: Task, why: str, now: datetime, rules: Rules) -> Task:
    """The task with ``next_fire_time`` None. What was due but not yet claimed is recorded as 5
    first, so that no fire vanishes between due and claim (DESIGN 3.1)."""
    plan = plan_fires(task, now, rules) if task.next_fire_time is not None else None
    if plan is not None:
        for fire in plan.fires:
            gone = end(fire, ExecStatus.CANCELLED, now, reason=f"{why} before claim")
            writes.new.append(NewFire(evolve(gone, fire_number=0, last_fire=False)))
        writes.new.extend(NewFire(row) for row in plan.skipped)
    return evolve(task, next_fire_time=None, updated_at=now)


def finish(
    writes: Writes, task: Task, before: Execution, after: Execution, now: datetime, rules: Rules
) -> None:
    """What the end of an execution does to its task: streak (X-F5), completion, auto-pause."""
    task = writes.task(task)
    changed = task
    if after.exec_status is ExecStatus.SUCCESS:
        changed = evolve(changed, failure_streak=0)
    elif after.exec_status in (ExecStatus.FAILED, ExecStatus.TIMED_OUT):
        # A fire that timed out, was revived and then failed counts once: revived ones are late.
        counted = before.late or before.exec_status in (ExecStatus.FAILED, ExecStatus.TIMED_OUT)
        changed = evolve(changed, failure_streak=changed.failure_streak + (not counted))
    live = changed.status is TaskStatus.ENABLED
    if live and after.last_fire and changed.next_fire_time is None:
        changed = evolve(changed, status=TaskStatus.COMPLETED, status_reason="")
    elif live and 0 < changed.pause_after_failures <= changed.failure_streak:
        why = f"paused after {changed.failure_streak} failures in a row"
        changed = stop_firing(writes, changed, why, now, rules)
        changed = evolve(changed, status=TaskStatus.DISABLED, status_reason=why)
    if changed != task:
        writes.set_task(task, evolve(changed, updated_at=now))


def plan_edit(
    task: Task, open_executions: Sequence[Execution], edit: Edit, now: datetime, rules: Rules
) -> tuple[Writes, EditResult]:
    """Apply one edit to a locked task. ``open_executions`` are its executions that are not final.

    Raises Conflict (INVALID_STATE, REVISION_CONFLICT). Pause, resume and delete are idempotent.
    """
    writes = Writes()
    if isinstance(edit, Pause):
        after = _pause(writes, task, edit, now, rules)
    elif isinstance(edit, Delete):
        after = _delete(writes, task, now, rules)
    elif isinstance(edit, Resume):
        after = _resume(task, now)
    else:
        after = _update(writes, task, edit, now, rules)
    cancelled = 0
    if not isinstance(edit, (Resume, Update)) and after is not task:
        cancelled = _cancel_pending(writes, task, open_executions, edit, now)
    going = sum(e.exec_status in (ExecStatus.CALLING, ExecStatus.RUNNING) for e in open_executions)
    changed = tuple(
        a.name
        for a in attrs.fields(Task)
        if a.name not in ("updated_at", "revision")
        and getattr(task, a.name) != getattr(after, a.name)
    )
    if after is not task and changed:
        after = evolve(after, revision=task.revision + 1, updated_at=now)
        writes.set_task(task, after)
    else:
        after = task
    return writes, EditResult(
        before=task,
        after=after,
        already=after is task,
        changed=changed,
        running=going,
        cancelled=cancelled,
    )


def plan_set_aside(tasks: Sequence[Task], why: str, now: datetime) -> Writes:
    """Disable enabled tasks whose rows cannot be worked on; their schedule is not looked at, it
    may be what is broken (DESIGN 3)."""
    writes = Writes()
    for task in tasks:
        if task.status is TaskStatus.ENABLED:
            writes.set_task(task, disabled(task, why[:255], now))
    return writes


def _cancel_pending(
    writes: Writes, task: Task, rows: Sequence[Execution], edit: Edit, now: datetime
) -> int:
    cancelled = 0
    why = "deleted" if isinstance(edit, Delete) else "paused"
    for row in rows:
        scheduled = row.trigger_kind is TriggerKind.SCHEDULE
        if row.exec_status is ExecStatus.PENDING and (scheduled or isinstance(edit, Delete)):
            writes.set_execution(row, end(row, ExecStatus.CANCELLED, now, reason=f"task {why}"))
            cancelled += 1
    return cancelled


def _pause(writes: Writes, task: Task, edit: Pause, now: datetime, rules: Rules) -> Task:
    _alive(task, "paused")
    if task.status is TaskStatus.DISABLED:
        return task
    if task.status is TaskStatus.COMPLETED:
        raise _state(task, "It is completed and will not fire again.", "There is nothing to pause.")
    stopped = stop_firing(writes, task, "paused", now, rules)
    return evolve(stopped, status=TaskStatus.DISABLED, status_reason=edit.reason[:255])


def _delete(writes: Writes, task: Task, now: datetime, rules: Rules) -> Task:
    if task.status is TaskStatus.DELETED:
        return task
    stopped = stop_firing(writes, task, "deleted", now, rules)
    return evolve(
        stopped,
        status=TaskStatus.DELETED,
        status_reason="",
        is_deleted=True,
        deleted_at=now,
        tombstone=task.id,
    )


def _resume(task: Task, now: datetime) -> Task:
    _alive(task, "resumed")
    if task.status is TaskStatus.ENABLED:
        return task
    if task.status is TaskStatus.COMPLETED:
        raise _state(task, "It is completed.", "Create a new task for further fires.")
    following = next_fire(task, _floor(task, now))
    if following is None and task.schedule_type is ScheduleType.ONCE:
        raise _state(
            task,
            "Its trigger_time has passed.",
            "Update trigger_time, then resume.",
            "trigger_time",
        )
    if following is None:
        raise _state(
            task, "It has no fire left.", "Raise or clear end_at or max_fires.", "max_fires"
        )
    return evolve(
        task,
        status=TaskStatus.ENABLED,
        status_reason="",
        failure_streak=0 if task.status_reason.startswith("paused after") else task.failure_streak,
        next_fire_time=following,
    )


def _update(writes: Writes, task: Task, edit: Update, now: datetime, rules: Rules) -> Task:
    _alive(task, "updated")
    if edit.revision is not None and edit.revision != task.revision:
        raise Conflict(
            f"The task is at revision {task.revision}, not {edit.revision}.",
            code="REVISION_CONFLICT",
            field="revision",
            received=edit.revision,
            hint="Read the task again and decide whether the change still fits.",
            example=str(task.revision),
        )
    if task.status is TaskStatus.COMPLETED:
        raise _state(task, "It is completed.", "Create a new task instead.")
    changes = {k: v for k, v in edit.changes if getattr(task, k) != v}
    if changes.keys() & {"anchor_at"} and not changes.keys() & _SCHEDULE:
        # An equal interval keeps its phase: setting an equal schedule changes nothing.
        changes.pop("anchor_at")
    if not changes:
        return task
    wanted = evolve(task, **changes)
    if changes.keys() & _FIRING and task.status is TaskStatus.ENABLED:
        stopped = stop_firing(writes, task, "rescheduled", now, rules)
        wanted = evolve(stopped, **changes)
        # A time at most a minute past was allowed by the check of the request: it fires at once.
        one_off = wanted.schedule_type is ScheduleType.ONCE and "trigger_time" in changes
        following = wanted.trigger_time if one_off else next_fire(wanted, _floor(task, now))
        if following is None:
            raise _state(task, "It would never fire again.", "Give a later end_at.", "end_at")
        wanted = evolve(wanted, next_fire_time=following)
    return wanted


def _floor(task: Task, now: datetime) -> datetime:
    """Never plan a fire again that was planned before a clock went back."""
    return max(now, task.last_fire_time) if task.last_fire_time is not None else now


def _alive(task: Task, verb: str) -> None:
    if task.status is TaskStatus.DELETED:
        raise Conflict(
            f"The task was deleted and cannot be {verb}.",
            field="task_id",
            received=str(task.id),
            hint="Create it again with create_cron_task; its key is free.",
        )


def _state(task: Task, what: str, hint: str, field: str = "task_id") -> Conflict:
    return Conflict(
        f"Task {task.id} cannot do this. {what}", field=field, received=str(task.id), hint=hint
    )


def manual_fire(task: Task, key: str | None, now: datetime, rules: Rules) -> tuple[Task, Execution]:
    """A fire of kind ``manual`` on an enabled or paused task, due now (DESIGN 4)."""
    if task.status in (TaskStatus.COMPLETED, TaskStatus.DELETED):
        _alive(task, "run")
        raise _state(task, "It is completed.", "Create a new task instead.")
    execution = Execution(
        fire_id=fire_id_of(task.uid, TriggerKind.MANUAL, key if key else now),
        task_id=task.id,
        task_key=task.task_key,
        user_id=task.user_id,
        fire_time=now,
        trigger_kind=TriggerKind.MANUAL,
        fire_number=task.fire_count + 1,
        next_action_at=now + grace_of(task, rules),
        created_at=now,
        updated_at=now,
    )
    return evolve(task, fire_count=task.fire_count + 1, updated_at=now), execution


def cancel_execution(
    writes: Writes, task: Task, execution: Execution, reason: str, now: datetime, rules: Rules
) -> Execution:
    """0 -> 5; already 5 is left as it is. Raises Conflict in any other state (DESIGN 4)."""
    if execution.exec_status is ExecStatus.CANCELLED:
        return execution
    if execution.exec_status is not ExecStatus.PENDING:
        raise Conflict(
            f"Execution {execution.id} is {execution.exec_status.name.lower()}; only a pending one "
            "can be cancelled.",
            field="execution_id",
            received=str(execution.id),
            hint="A call that has begun goes on; pause or delete the task to stop later fires.",
        )
    after = end(execution, ExecStatus.CANCELLED, now, reason=(reason or "cancelled")[:255])
    writes.set_execution(execution, after)
    finish(writes, task, execution, after, now, rules)
    return after
