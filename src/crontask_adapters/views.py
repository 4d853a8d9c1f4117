"""Answers as plain data: the same for MCP and the command line, ready for JSON (A4.2b, X-T4).

A fire time is ``{"local", "utc"}``, a coming one also has ``"in"``; any other time is one local
ISO 8601 text with its offset.
Numbers of the tables come with their word (``status`` and ``status_text``). Fields without a value
are left out. Delivery (did the agent take the fire) and result (what it reported) are two things.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from crontask_adapters import sentences
from crontask_adapters.times import both, local, moment
from crontask_core.answers import ExecutionView, Info, Preview, RunAnswer, TaskAnswer
from crontask_core.errors import CrontaskError
from crontask_core.model import (
    FINAL,
    MORE_THAN,
    Attempt,
    ExecStatus,
    Execution,
    ScheduleType,
    Task,
    TriggerKind,
    schedule_of,
)
from crontask_core.policy import ReportResult
from crontask_core.ports import Page, TaskRow
from crontask_core.schedule import explain

__all__ = [
    "EXCERPT",
    "cancelled",
    "deleted",
    "error",
    "execution",
    "executions",
    "info",
    "preview",
    "printable",
    "report",
    "run",
    "schedule",
    "task",
    "task_row",
    "task_rows",
]

EXCERPT = 300
"""Characters of a result, error or answer that a listing shows; the single view shows all."""

View = dict[str, Any]


def kept(**fields: Any) -> View:
    """The fields that have a value: None, "" and empty lists are left out, 0 and False stay."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}


# -- tasks ---------------------------------------------------------------------------------------


def task(answer: TaskAnswer, what: str = "", *, content: bool = True) -> View:
    """A task with its next fires, its schedule in words, its newest executions and warnings.

    ``what`` (created, updated, paused, resumed, deleted) says what was done, for ``message``.
    """
    row = answer.task
    zone = row.timezone
    fires = [moment(at, zone, answer.now) for at in answer.next_fires]
    # A task that was not stored has no id.
    return kept(
        message=sentences.task(answer, what, _argument_names(answer.changed)),
        **_identity(row),
        created=answer.created if what == "created" else None,
        dry_run=answer.dry_run or None,
        already=answer.already or None,
        changed=_argument_names(answer.changed),
        **_state(row),
        schedule=schedule(row, answer.words),
        next_fire_time=fires[0] if fires else None,
        next_fire_times=fires,
        will_fire=answer.alive if fires else None,
        **_settings(row),
        task_desc=row.task_desc,
        task_content=row.task_content if content else None,
        running_executions=answer.running or None,
        cancelled_executions=answer.cancelled or None,
        executions=[execution(e, zone) for e in answer.executions],
        warnings=list(answer.warnings),
    )


_ARGUMENT = {
    "interval_ms": "interval_seconds",
    "retry_interval": "retry_interval_ms",
    "misfire_grace_ms": "misfire_grace_seconds",
    "report_timeout_ms": "report_timeout_seconds",
    "next_fire_time": "",
    "anchor_at": "",
    "status_reason": "",
}


def _argument_names(changed: tuple[str, ...]) -> list[str]:
    """Changed fields under the names by which a caller set them; what only follows is left out."""
    return [name for field in changed if (name := _ARGUMENT.get(field, field))]


def deleted(answer: TaskAnswer) -> View:
    """What a delete did."""
    row = answer.task
    return kept(
        message=sentences.task(answer, "deleted"),
        task_id=row.id,
        task_key=row.task_key,
        already=answer.already or None,
        status=int(row.status),
        status_text=row.status.name.lower(),
        running_executions=answer.running or None,
        cancelled_executions=answer.cancelled or None,
        warnings=list(answer.warnings),
    )


def _identity(row: Task) -> View:
    return kept(
        task_id=row.id or None,
        task_key=row.task_key,
        task_name=row.task_name,
        user_id=row.user_id,
        conversation_id=row.conversation_id,
    )


def _state(row: Task) -> View:
    fired = row.last_fire_time
    return kept(
        status=int(row.status),
        status_text=row.status.name.lower(),
        status_reason=row.status_reason,
        revision=row.revision,
        fire_count=row.fire_count,
        failure_streak=row.failure_streak,
        last_fire_time=both(fired, row.timezone) if fired else None,
        created_at=local(row.created_at, row.timezone),
        updated_at=local(row.updated_at, row.timezone),
        deleted_at=local(row.deleted_at, row.timezone) if row.deleted_at else None,
    )


def _settings(row: Task) -> View:
    return kept(
        max_retry=row.max_retry,
        retry_interval_ms=row.retry_interval,
        misfire_policy=row.misfire_policy.value,
        misfire_grace_seconds=_seconds(row.misfire_grace_ms),
        overlap_policy=row.overlap_policy.value,
        delivery=row.delivery.value,
        report_timeout_seconds=_seconds(row.report_timeout_ms),
        pause_after_failures=row.pause_after_failures or None,
        callback_url=row.callback_url,
    )


def schedule(row: Task, words: str = "") -> View:
    """The schedule's stored fields and what they mean in words."""
    zone = row.timezone
    once = row.schedule_type is ScheduleType.ONCE
    return kept(
        schedule_type=int(row.schedule_type),
        text=words or _words(row),
        timezone=zone,
        trigger_time=local(row.trigger_time, zone) if once and row.trigger_time else None,
        cron_expr=row.cron_expr,
        interval_seconds=_seconds(row.interval_ms),
        end_at=local(row.end_at, zone) if row.end_at else None,
        max_fires=row.max_fires,
    )


def task_row(row: TaskRow, now: datetime, *, users: bool = False) -> View:
    """One line of a listing: state, next fire, the last execution's state, the failure streak."""
    it = row.task
    coming = it.next_fire_time
    return kept(
        task_id=it.id,
        task_key=it.task_key,
        task_name=it.task_name,
        user_id=it.user_id if users else None,
        status=int(it.status),
        status_text=it.status.name.lower(),
        status_reason=it.status_reason,
        schedule_text=_words(it),
        next_fire_time=moment(coming, it.timezone, now) if coming else None,
        last_execution=_last(row.last, it.timezone) if row.last else None,
        failure_streak=it.failure_streak,
    )


def task_rows(page: Page[TaskRow], now: datetime, *, users: bool = False) -> View:
    """A page of tasks; ``next_cursor`` is there when more follow."""
    return {
        "message": sentences.page("task", len(page.rows), page.total, page.cursor),
        "tasks": [task_row(row, now, users=users) for row in page.rows],
        "total": page.total,
        "has_more": bool(page.cursor),
        **kept(next_cursor=page.cursor),
    }


def _last(row: Execution, zone: str) -> View:
    return kept(
        execution_id=row.id,
        fire_time=both(row.fire_time, zone),
        **_exec_status(row),
        delivery=delivery_state(row),
        result=result_state(row),
    )


# -- executions ----------------------------------------------------------------------------------


def execution(
    row: Execution, zone: str, *, attempts: tuple[Attempt, ...] = (), full: bool = False
) -> View:
    """What became of one fire. ``full`` shows whole texts; otherwise they are excerpts."""
    return kept(
        execution_id=row.id,
        fire_id=row.fire_id,
        task_id=row.task_id,
        task_key=row.task_key,
        user_id=row.user_id if full else None,
        trigger="manual" if row.trigger_kind is TriggerKind.MANUAL else "schedule",
        fire_time=both(row.fire_time, zone),
        **_exec_status(row),
        reason=row.reason,
        delivery=_delivery(row, zone, full=full),
        result=_result(row, zone, full=full),
        error_msg=_excerpt(row.error_msg, full=full),
        task_run_id=row.task_run_id,
        start_time=_when(row.start_time, zone),
        end_time=_when(row.end_time, zone),
        next_action_at=_when(row.next_action_at, zone),
        retry_count=row.retry_count or None,
        missed=_missed(row, zone),
        attempts=[_attempt(a, zone, full=full) for a in attempts],
    )


def _delivery(row: Execution, zone: str, *, full: bool) -> View:
    return kept(
        state=delivery_state(row),
        calls=row.fence,
        http_status=row.http_status or None,
        accepted_at=_when(row.accepted_at, zone),
        response_body=row.response_body if full else None,
    )


def _result(row: Execution, zone: str, *, full: bool) -> View:
    return kept(
        state=result_state(row),
        reported_at=_when(row.reported_at, zone),
        text=_excerpt(row.ga_result, full=full),
        late=row.late or None,
    )


def executions(page: Page[ExecutionView], *, full: bool = False) -> View:
    """A page of executions; ``next_cursor`` is there when more follow."""
    rows = [execution(v.execution, v.zone, attempts=v.attempts, full=full) for v in page.rows]
    return {
        "message": sentences.page("execution", len(rows), page.total, page.cursor),
        "executions": rows,
        "total": page.total,
        "has_more": bool(page.cursor),
        **kept(next_cursor=page.cursor),
    }


def delivery_state(row: Execution) -> str:
    """Whether the agent took the fire: waiting, calling, accepted, failed or not_sent."""
    if row.accepted_at is not None or row.reported_at is not None:
        return "accepted"
    if row.exec_status is ExecStatus.CALLING:
        return "calling"
    if row.exec_status not in FINAL:
        return "waiting"
    return "failed" if row.fence else "not_sent"


def result_state(row: Execution) -> str:
    """What the agent reported: success, failed, timed_out, none, or pending while it may come."""
    if row.reported_at is not None:
        return "success" if row.exec_status is ExecStatus.SUCCESS else "failed"
    if row.exec_status is ExecStatus.TIMED_OUT:
        return "timed_out"
    return "none" if row.exec_status in FINAL else "pending"


def cancelled(row: Execution, zone: str) -> View:
    """What a cancel did."""
    view = execution(row, zone)
    return {"message": f"Execution {row.id} is {view['exec_status_text']}.", **view}


def _exec_status(row: Execution) -> View:
    status = row.exec_status
    return {"exec_status": int(status), "exec_status_text": status.name.lower()}


def _missed(row: Execution, zone: str) -> View | None:
    if row.missed_count <= 1:
        return None
    more = row.missed_count > MORE_THAN
    return kept(
        count=MORE_THAN if more else row.missed_count,
        more_than=more or None,
        first=_when(row.missed_from, zone),
        last=_when(row.missed_to, zone),
    )


def _attempt(row: Attempt, zone: str, *, full: bool) -> View:
    return kept(
        attempt=row.fence,
        started_at=local(row.started_at, zone),
        ended_at=_when(row.ended_at, zone),
        outcome=row.outcome.value,
        http_status=row.http_status or None,
        task_run_id=row.task_run_id,
        error=_excerpt(row.error, full=full),
        answer=_excerpt(row.answer, full=full),
    )


# -- the rest ------------------------------------------------------------------------------------


def run(answer: RunAnswer) -> View:
    """A manual fire as it was queued."""
    row, zone = answer.execution, answer.task.timezone
    return kept(
        message=sentences.run(answer),
        execution_id=row.id,
        fire_id=row.fire_id,
        task_id=row.task_id,
        task_key=row.task_key,
        created=answer.created,
        fire_time=both(row.fire_time, zone),
        **_exec_status(row),
        will_fire=answer.alive,
        warnings=list(answer.warnings),
    )


def report(result: ReportResult) -> View:
    """What became of an agent's report."""
    row = result.execution
    return kept(
        message=sentences.report(result),
        recorded=result.recorded,
        duplicate=result.duplicate,
        contradicts=result.contradicts or None,
        late=result.late,
        pending=result.pending or None,
        **(kept(execution_id=row.id, fire_id=row.fire_id, **_exec_status(row)) if row else {}),
    )


def preview(answer: Preview) -> View:
    """What a schedule would do."""
    fires = [moment(at, answer.zone, answer.now) for at in answer.fires]
    return kept(
        message=sentences.preview(answer),
        schedule_type=answer.schedule_type,
        text=answer.words,
        timezone=answer.zone,
        next_fire_times=fires,
        min_gap_seconds=_number(answer.gap),
        warnings=list(answer.warnings),
    )


def info(answer: Info, version: str) -> View:
    """The installation: its clock, its limits, whether anything fires. Names no host."""
    rules, now = answer.rules, answer.now
    late = now - answer.oldest_due if answer.oldest_due else None
    return kept(
        message=sentences.info(answer),
        server_time=both(now, rules.zone),
        default_timezone=rules.zone,
        limits={
            "min_interval_seconds": _number(rules.min_interval),
            "max_tasks_per_user": rules.tasks_per_user,
            "compensate_window_seconds": _number(rules.compensate_window),
            "callback_timeout_seconds": _number(rules.callback_timeout),
            "report_timeout_seconds": _number(rules.ga_callback_timeout),
        },
        defaults={
            "max_retry": rules.max_retry,
            "retry_interval_ms": rules.retry_interval_ms,
            "overlap_policy": rules.overlap.value,
        },
        scheduler_alive=answer.alive,
        live_nodes=sum("scheduler" in node.roles for node in answer.nodes),
        oldest_overdue_seconds=_number(late) if late else None,
        version=version,
    )


def error(told: CrontaskError, error_id: str = "") -> View:
    """The error shape of every surface: ``ok`` false, ``message`` and ``error``."""
    parts = {**told.as_dict(), **kept(error_id=error_id)}
    detail = {k: printable(v) if isinstance(v, str) else v for k, v in parts.items()}
    return {"ok": False, "message": printable(told.message), "error": detail}


def printable(text: str) -> str:
    """The text with what is no character (lone surrogates) replaced, so that it can be sent."""
    return text.encode("utf-8", "replace").decode()


def _words(row: Task) -> str:
    # A row that cannot be read any more is set aside with its reason and must still be listed.
    try:
        return explain(schedule_of(row), row.timezone)
    except (CrontaskError, ValueError):
        return row.cron_expr or "unreadable schedule"


def _when(at: datetime | None, zone: str) -> str | None:
    return local(at, zone) if at is not None else None


def _seconds(milliseconds: int | None) -> float | int | None:
    return _number(timedelta(milliseconds=milliseconds)) if milliseconds is not None else None


def _number(length: timedelta | None) -> float | int | None:
    """Seconds, whole ones without a point."""
    if length is None:
        return None
    seconds = length.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


def _excerpt(value: str | None, *, full: bool = False) -> str | None:
    if full or value is None or len(value) <= EXCERPT:
        return value
    return f"{value[:EXCERPT]}… ({len(value)} characters; shown whole with execution_id)"
