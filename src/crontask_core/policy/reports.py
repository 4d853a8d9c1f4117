"""What an agent's report does (A6.2r, DESIGN 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from crontask_core.errors import Conflict, InvalidInput, NotFound
from crontask_core.model import ExecStatus, Execution, InboxReport, Report, Rules, Task, evolve
from crontask_core.policy.calls import report_deadline
from crontask_core.policy.edits import finish
from crontask_core.policy.writes import Writes, end

__all__ = [
    "REPORT_TEXT_LIMIT",
    "ReportResult",
    "apply_inbox",
    "check_report",
    "inbox_report",
    "plan_early_report",
    "plan_report",
    "run_not_found",
]

REPORT_TEXT_LIMIT = 60 * 1024
_MARK = "\n… (shortened by crontask)"
_STATES = ("success", "failed", "running")


@attrs.frozen(kw_only=True)
class ReportResult:
    """What became of a report. ``recorded``: it is durable. ``duplicate``: an earlier final report
    stands and nothing changed; ``contradicts`` says that the two differ. ``late``: it came after
    the fire had ended. ``pending``: kept until its run id is known. ``execution`` is None then."""

    execution: Execution | None
    before: Execution | None = None
    recorded: bool = True
    duplicate: bool = False
    contradicts: bool = False
    late: bool = False
    pending: bool = False


def shorten(text: str, limit: int = REPORT_TEXT_LIMIT) -> str:
    """At most ``limit`` bytes of UTF-8, whole characters, with a mark when cut (never refused)."""
    clean = text.replace("\x00", "�").encode("utf-8", "replace")
    if len(clean) <= limit:
        return clean.decode("utf-8")
    return clean[: limit - len(_MARK.encode())].decode("utf-8", "ignore") + _MARK


def check_report(report: Report) -> Report:
    """The report with its texts shortened. Raises InvalidInput for an unknown status or no name of
    the fire."""
    if report.status not in _STATES:
        raise InvalidInput(
            f"status must be one of {', '.join(_STATES)}",
            field="status",
            received=report.status,
            hint="Report success or failed when the run is over, running while it goes on.",
            example="success",
        )
    if not (report.task_run_id or report.fire_id or report.execution_id):
        raise InvalidInput(
            "the report does not say which run it is about",
            code="MISSING_ARGUMENT",
            field="task_run_id",
            hint="Send the task_run_id you answered the callback with, or its fire_id.",
        )
    return attrs.evolve(report, result=shorten(report.result), error=shorten(report.error))


def plan_report(
    execution: Execution, task: Task, report: Report, now: datetime, rules: Rules
) -> tuple[Writes, ReportResult]:
    """Apply a report to the locked execution it names. The first final report wins.

    Accepted in 1, 7, 4; in 0, 3 and 5 once a call was made (its outcome was unknown here). Raises
    Conflict for a fire that was skipped or never called.
    """
    writes = Writes()
    if execution.reported_at is not None:
        same = _status_of(execution) == report.status or report.status == "running"
        result = ReportResult(
            execution=execution, before=execution, duplicate=True, contradicts=not same
        )
        return writes, result
    _refuse_uncalled(execution)
    after = (
        _heartbeat(execution, task, report, now, rules)
        if report.status == "running"
        else _final(execution, report.status, report.result, report.error, now)
    )
    if after is execution:
        return writes, ReportResult(execution=execution, before=execution, duplicate=True)
    if report.task_run_id and not after.task_run_id:
        after = evolve(after, task_run_id=report.task_run_id)
    writes.set_execution(execution, after)
    if after.is_final:
        finish(writes, task, execution, after, now, rules)
    return writes, ReportResult(execution=after, before=execution, late=after.late)


def _refuse_uncalled(execution: Execution) -> None:
    if execution.exec_status is ExecStatus.SKIPPED or execution.fence == 0:
        what = execution.exec_status.name.lower()
        raise Conflict(
            f"Execution {execution.id} is {what} and its agent was never called.",
            field="fire_id",
            received=execution.fire_id,
            hint="Report only runs that a callback started; check fire_id or task_run_id.",
        )


def _status_of(execution: Execution) -> str:
    return "success" if execution.exec_status is ExecStatus.SUCCESS else "failed"


def _final(execution: Execution, status: str, result: str, error: str, now: datetime) -> Execution:
    good = status == "success"
    late = execution.is_final or execution.late
    return end(
        execution,
        ExecStatus.SUCCESS if good else ExecStatus.FAILED,
        now,
        ga_result=result or execution.ga_result,
        error_msg=None if good else (error or "the agent reported a failure"),
        reason="" if good else "reported as failed by the agent",
        reported_at=now,
        late=late,
    )


def _heartbeat(
    execution: Execution, task: Task, report: Report, now: datetime, rules: Rules
) -> Execution:
    note = report.result or execution.ga_result
    if execution.exec_status is ExecStatus.CALLING:
        return evolve(execution, ga_result=note, updated_at=now)
    if execution.is_final and (
        execution.late or execution.exec_status not in (ExecStatus.TIMED_OUT, ExecStatus.FAILED)
    ):
        return execution
    return evolve(
        execution,
        exec_status=ExecStatus.RUNNING,
        ga_result=note,
        accepted_at=execution.accepted_at or now,
        end_time=None,
        error_msg=None,
        reason="",
        late=execution.is_final or execution.late,
        next_action_at=report_deadline(task, now, rules),
        updated_at=now,
    )


def apply_inbox(execution: Execution, note: InboxReport, now: datetime) -> Execution:
    """The accepted execution with the report that came early; a heartbeat changes nothing more."""
    if note.status == "running" or execution.reported_at is not None:
        return execution
    after = _final(execution, note.status, note.result, note.error, now)
    return evolve(after, reported_at=note.received_at)


def inbox_report(report: Report, deadline: datetime, now: datetime) -> InboxReport:
    """An early report, kept until settle or the sweep learns its run id (DESIGN 3.7)."""
    return InboxReport(
        task_id=report.task_id,
        task_run_id=report.task_run_id,
        status=report.status,
        result=report.result,
        error=report.error,
        received_at=now,
        expires_at=deadline + timedelta(hours=1),
    )


def plan_early_report(
    report: Report,
    task: Task,
    open_executions: Sequence[Execution],
    known: InboxReport | None,
    now: datetime,
    rules: Rules,
) -> tuple[Writes, ReportResult]:
    """A report whose run id stands in no execution and no attempt of its task (DESIGN 3.7).

    Kept in the inbox when a fire of the task was called and its acceptance is not recorded yet
    (0 or 1 with a fence). ``known`` is what the inbox has under this run id: a final report there
    stands, a heartbeat gives way. Raises NotFound when no fire of the task can be meant.
    """
    writes = Writes()
    if known is not None and known.status != "running":
        other = report.status not in ("running", known.status)
        return writes, ReportResult(execution=None, duplicate=True, contradicts=other, pending=True)
    called = any(
        e.fence > 0 and e.exec_status in (ExecStatus.PENDING, ExecStatus.CALLING)
        for e in open_executions
    )
    if not (report.task_run_id and called):
        raise run_not_found(report)
    writes.inbox.append(inbox_report(report, report_deadline(task, now, rules), now))
    return writes, ReportResult(execution=None, pending=True)


def run_not_found(report: Report) -> NotFound:
    """What a report gets when nothing here can be meant by it."""
    named = report.fire_id or (str(report.execution_id) if report.execution_id else "")
    return NotFound(
        f"Task {report.task_id} has no run {report.task_run_id!r}"
        + (f" and no fire {named}" if named else ""),
        code="EXECUTION_NOT_FOUND" if named else "RUN_NOT_FOUND",
        field="fire_id" if report.fire_id else "execution_id" if named else "task_run_id",
        received=named or report.task_run_id,
        hint="Use task_id, task_run_id and fire_id exactly as in the callback and your answer.",
    )
