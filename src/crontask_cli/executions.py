"""What became of fires: executions, cancel, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from crontask_cli.render import View, details, emit, table, tell
from crontask_cli.shell import Argument, Command, Shell, pass_shell
from crontask_cli.task_options import task_ref

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_core.answers import ExecutionView
    from crontask_core.ports import Page

__all__ = ["cancel_command", "executions_command", "report_command", "show_executions"]

STATUSES = {
    "pending": 0,
    "calling": 1,
    "success": 2,
    "failed": 3,
    "timed_out": 4,
    "cancelled": 5,
    "skipped": 6,
    "running": 7,
}


@click.command(
    "executions",
    cls=Command,
    examples=[
        "crontask executions",
        "crontask executions 7 --status failed --attempts",
        "crontask executions --id 31 --json",
    ],
)
@click.argument("task", required=False, cls=Argument, doc="Only those of this task: id or key.")
@click.option("--by-key", is_flag=True, help="TASK is a key even if it is made of digits.")
@click.option("--id", "execution_id", type=int, metavar="N", help="One execution, in full.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(list(STATUSES), case_sensitive=False),
    help="Only executions in this state; may be repeated.",
)
@click.option("--since", metavar="ISO", help="Fire time at or after this.")
@click.option("--until", metavar="ISO", help="Fire time before this.")
@click.option("--attempts", is_flag=True, help="Show each call of the agent.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Rows of a page."
)
@click.option("--cursor", default="", metavar="TEXT", help="Go on after the page before.")
@pass_shell
def executions_command(
    shell: Shell,
    /,
    task: str | None,
    by_key: bool,
    execution_id: int | None,
    statuses: tuple[str, ...],
    attempts: bool,
    **options: Any,
) -> None:
    """List what became of fires, newest first.

    Delivery (did the agent take it) and result (what it reported) are two things.
    """
    from crontask_adapters import views
    from crontask_core.ports import ExecutionFilter

    user = shell.reader()
    if execution_id is not None:
        number = execution_id
        found = shell.with_app(lambda app: app.tasks.execution(user, number))
        view = views.execution(found.execution, found.zone, attempts=found.attempts, full=True)
        emit(shell, view, _show_execution)
        return

    async def use(app: App) -> Page[ExecutionView]:
        where = ExecutionFilter(
            user_id=user,
            statuses=tuple(STATUSES[s.lower()] for s in statuses),
            limit=options["limit"],
            cursor=options["cursor"],
            **_spans(app, options["since"], options["until"]),
        )
        if task is not None:
            answer = await app.tasks.get(user, task_ref(task, by_key), executions=0)
            where = attrs.evolve(where, task_id=answer.task.id)
        return await app.tasks.executions(where, attempts=attempts)

    emit(shell, views.executions(shell.with_app(use)), _show_page)


def _spans(app: App, since: str | None, until: str | None) -> dict[str, Any]:
    from crontask_core.schedule import parse_instant

    now = app.clock.now()
    return {
        name: parse_instant(text, app.rules.zone, now, name)[0]
        for name, text in (("since", since), ("until", until))
        if text is not None
    }


def show_executions(view: View) -> None:
    """Executions as a table, attempts below their execution."""
    rows: list[list[object]] = []
    for row in view["executions"]:
        delivery, result = row["delivery"], row["result"]
        rows.append(
            [
                row["execution_id"],
                f"{row['task_id']} {row['task_key']}",
                row["fire_time"]["local"],
                row["exec_status_text"],
                delivery["state"],
                delivery["calls"],
                result["state"],
                row.get("error_msg") or row.get("reason") or result.get("text") or "",
            ]
        )
        rows += [_attempt(attempt) for attempt in row.get("attempts", ())]
    heads = ("ID", "TASK", "FIRE TIME", "STATE", "DELIVERY", "CALLS", "RESULT", "NOTE")
    table(heads, rows, right="ID CALLS")


def _attempt(attempt: View) -> list[object]:
    code = attempt.get("http_status") or ""
    note = " ".join(str(part) for part in (code, attempt.get("error", "")) if part)
    number = attempt["attempt"]
    return ["", f"  call {number}", attempt["started_at"], "", attempt["outcome"], "", "", note]


def _show_page(view: View) -> None:
    show_executions(view)
    tell(view)
    if view.get("next_cursor"):
        click.echo(f"more: --cursor {view['next_cursor']}")


def _show_execution(view: View) -> None:
    flat: list[tuple[str, object]] = []
    for name, value in view.items():
        if name in ("delivery", "result", "missed"):
            flat += [(f"{name} {part}", inner) for part, inner in value.items()]
        elif name != "attempts":
            flat.append((name, value))
    details(flat)
    if view.get("attempts"):
        click.echo()
        heads = ("CALL", "STARTED", "ENDED", "OUTCOME", "HTTP", "RUN", "ERROR")
        names = ("attempt", "started_at", "ended_at", "outcome", "http_status", "task_run_id")
        table(heads, [[a.get(n) for n in (*names, "error")] for a in view["attempts"]])


@click.command("cancel", cls=Command, examples=['crontask cancel 31 --reason "not needed"'])
@click.argument("execution", type=int, cls=Argument, doc="An execution's id.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept with the execution.")
@pass_shell
def cancel_command(shell: Shell, execution: int, reason: str) -> None:
    """Cancel a fire that waits to be sent.

    One that was sent already is not cancelled: the agent may be working on it.
    """
    from crontask_adapters import views

    user = shell.reader()

    async def use(app: App) -> ExecutionView:
        await app.tasks.cancel(user, execution, reason)
        return await app.tasks.execution(user, execution)

    found = shell.with_app(use)
    emit(shell, views.cancelled(found.execution, found.zone), tell)


@click.command(
    "report",
    cls=Command,
    examples=[
        'crontask report 7 run-42 success --result "3 rows sent"',
        'crontask report 7 run-42 failed --error "no data for yesterday"',
    ],
)
@click.argument("task_id", type=int, cls=Argument, doc="The task's id.")
@click.argument("task_run_id", cls=Argument, doc="The run id the agent answered with.")
@click.argument("status", cls=Argument, doc="success, failed, or running (still at work).")
@click.option("--result", default="", metavar="TEXT", help="What came out.")
@click.option("--error", default="", metavar="TEXT", help="What went wrong.")
@click.option("--fire-id", default="", metavar="ID", help="The fire, where the run id is unknown.")
@click.option("--execution-id", type=int, default=0, metavar="N", help="The same, by execution.")
@pass_shell
def report_command(shell: Shell, /, **fields: Any) -> None:
    """Report the result of a run, as an agent would.

    The first final report counts; the same again changes nothing.
    """
    from crontask_adapters import views
    from crontask_core.model import Report

    report = Report(**fields, user_id=shell.reader())
    emit(shell, views.report(shell.with_app(lambda app: app.tasks.report(report))), tell)
