"""One sentence for each answer, such as a model can repeat to its user (A4.2b)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crontask_adapters.times import local, relative, span
from crontask_core.answers import Info, Preview, RunAnswer, TaskAnswer
from crontask_core.model import TaskStatus
from crontask_core.policy import ReportResult

__all__ = ["info", "page", "preview", "report", "run", "task"]


def task(answer: TaskAnswer, what: str = "", changed: Sequence[str] = ()) -> str:
    """What happened to a task, and when it fires next. ``changed`` names the fields changed."""
    return f"{_named(answer)} {_done(answer, what, changed)}. {_outlook(answer)}".strip()


def _named(answer: TaskAnswer) -> str:
    row = answer.task
    return f"Task {row.id} ({row.task_key})" if row.id else f"Task {row.task_key}"


def _done(answer: TaskAnswer, what: str, changed: Sequence[str]) -> str:
    if answer.dry_run:
        verb = "changed" if what == "updated" else "created"
        return f"would be {verb}; nothing was stored (dry_run)"
    if what == "created" and not answer.created:
        return "exists already with these arguments; nothing new was created"
    if answer.already:
        state = {"paused": "is paused", "resumed": "is enabled", "deleted": "is deleted"}
        return f"{state[what]} already" if what in state else "is as asked already"
    if what == "updated":
        return f"updated ({', '.join(changed)})"
    if what in ("paused", "deleted"):
        return what + _others(answer)
    return what or f"is {answer.task.status.name.lower()}"


def _others(answer: TaskAnswer) -> str:
    parts = []
    if answer.cancelled:
        parts.append(f"{answer.cancelled} waiting cancelled")
    if answer.running:
        parts.append(f"{answer.running} running go on")
    return f" ({', '.join(parts)})" if parts else ""


def _outlook(answer: TaskAnswer) -> str:
    row = answer.task
    if answer.next_fires:
        first = _when(answer.next_fires[0], row.timezone, answer.now)
        return f"Fires {answer.words}; next {first}."
    if row.status is TaskStatus.DELETED:
        return ""
    if row.status is TaskStatus.COMPLETED:
        return "It will not fire again."
    if row.status is TaskStatus.DISABLED:
        return f"Schedule: {answer.words}; it does not fire until resumed."
    return "Its last fire is under way."


def _when(at: datetime, zone: str, now: datetime) -> str:
    return f"{local(at, zone)} ({relative(at, now)})"


def run(answer: RunAnswer) -> str:
    """A manual fire."""
    row = answer.execution
    if not answer.created:
        return (
            f"This run was asked for before: execution {row.id} is {row.exec_status.name.lower()}."
        )
    return f"Execution {row.id} of task {row.task_id} is queued to run now."


def report(result: ReportResult) -> str:
    """What became of a report."""
    row = result.execution
    if row is None:
        return "Recorded; it is applied when the answer to the callback is stored."
    state = f"execution {row.id} is {row.exec_status.name.lower()}"
    if result.contradicts:
        return f"An earlier, different report stands: {state}. Nothing changed."
    if result.duplicate:
        return f"Known already: {state}. Nothing changed."
    return f"Recorded{' (late)' if result.late else ''}: {state}."


def preview(answer: Preview) -> str:
    """What a schedule would do."""
    if not answer.fires:
        return f"Would fire {answer.words}, but no fire is left."
    return f"Would fire {answer.words}; next {_when(answer.fires[0], answer.zone, answer.now)}."


def info(answer: Info) -> str:
    """Clock, zone, and whether anything fires."""
    zone = answer.rules.zone
    alive = "tasks are being fired" if answer.alive else "no live node fires tasks"
    late = (
        f"; the oldest due task waits {span(answer.now - answer.oldest_due)}"
        if answer.oldest_due
        else ""
    )
    return f"It is {local(answer.now, zone)} ({zone}); {alive}{late}."


def page(noun: str, shown: int, total: int, cursor: str) -> str:
    """How much of a listing this is."""
    nouns = noun if total == 1 else f"{noun}s"
    if not total:
        return f"No {noun}s."
    more = "; more with cursor" if cursor else ""
    return f"{shown} of {total} {nouns}{more}."
