"""Making, changing and looking at tasks: create, update, get, list, preview."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs
import click

from crontask_cli.render import View, details, emit, fires, moment, table, tell
from crontask_cli.shell import Argument, Command, Shell, pass_shell
from crontask_cli.task_options import (
    given,
    schedule_options,
    setting_options,
    task_argument,
    task_ref,
)

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_core.answers import Preview
    from crontask_core.ports import Page, TaskRow

__all__ = [
    "create_command",
    "get_command",
    "list_command",
    "preview_command",
    "show_task",
    "update_command",
]

STATUSES = {"disabled": 0, "paused": 0, "enabled": 1, "completed": 2, "deleted": 3}


@click.command(
    "create",
    cls=Command,
    examples=[
        'crontask create "Stand-up" --content "Post the stand-up agenda." --cron "0 9 * * 1-5"',
        'crontask create "Tea" --content "Say that the tea is ready." --in 4m --key tea-1',
    ],
)
@click.argument("name", cls=Argument, doc="What the task is called.")
@click.option("--key", "--task-key", "task_key", metavar="KEY", help="Idempotency key.")
@schedule_options
@setting_options
@click.option("--paused", is_flag=True, help="Create it paused.")
@click.option("--dry-run", is_flag=True, help="Check and show; store nothing.")
@pass_shell
def create_command(shell: Shell, /, name: str, dry_run: bool, **options: Any) -> None:
    """Create a task.

    It needs --content (or --content-file) and one of --cron, --every, --at, --in. With a --key
    the same call may be repeated: the stored task comes back.
    """
    from crontask_adapters import views
    from crontask_core.model import NewTask

    user = shell.owner()
    new = NewTask(task_name=name, **{"task_content": "", **given(options)})
    answer = shell.with_app(lambda app: app.tasks.create(user, new, dry_run=dry_run))
    emit(shell, views.task(answer, "created", content=False), tell)


@click.command(
    "update",
    cls=Command,
    examples=[
        'crontask update 7 --cron "30 8 * * 1-5"',
        "crontask update tea-1 --max-retry 0 --unset end_at --revision 3",
    ],
)
@task_argument
@click.option("--name", "--task-name", "task_name", metavar="TEXT", help="What it is called.")
@schedule_options
@setting_options
@click.option("--unset", multiple=True, metavar="FIELD", help="Clear an optional field.")
@click.option("--revision", type=int, metavar="N", help="Refuse if it was changed since.")
@click.option("--dry-run", is_flag=True, help="Check and show; store nothing.")
@pass_shell
def update_command(
    shell: Shell,
    /,
    task: str,
    by_key: bool,
    unset: tuple[str, ...],
    revision: int | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Change fields of a task.

    Only the fields given change. A new schedule counts from now on.
    """
    from crontask_adapters import views
    from crontask_core.errors import InvalidInput

    fields = given(options)
    if not fields and not unset:
        raise InvalidInput(
            "nothing to change",
            code="MISSING_ARGUMENT",
            hint="Give at least one field. See: crontask update --help",
            example=f"crontask update {task} --max-retry 5",
        )
    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(
        lambda app: app.tasks.update(
            user, ref, fields, unset=unset, revision=revision, dry_run=dry_run
        )
    )
    emit(shell, views.task(answer, "updated", content=False), tell)


@click.command("get", cls=Command, examples=["crontask get 7", "crontask get tea-1 --json"])
@task_argument
@click.option(
    "--executions",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    metavar="N",
    help="How many of its newest executions to show.",
)
@pass_shell
def get_command(shell: Shell, task: str, by_key: bool, executions: int) -> None:
    """Show a task and its newest executions.

    With when it fires next, in words, and whether a live node will fire it.
    """
    from crontask_adapters import views

    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(lambda app: app.tasks.get(user, ref, executions=executions))
    emit(shell, views.task(answer), show_task)


def show_task(view: View) -> None:
    """A task in full, for a person."""
    from crontask_cli.executions import show_executions

    schedule = view["schedule"]
    shown_apart = {"schedule", "next_fire_time", "next_fire_times", "executions", "warnings"}
    plain = [(k, v) for k, v in view.items() if k not in shown_apart and k != "message"]
    content = [pair for pair in plain if pair[0] == "task_content"]
    details(
        [
            *(pair for pair in plain if pair[0] not in ("task_content", "status")),
            ("schedule", schedule["text"]),
            *((k, schedule.get(k)) for k in ("cron_expr", "timezone", "end_at", "max_fires")),
            ("next fires", fires(view)),
            *content,
        ]
    )
    if view.get("executions"):
        click.echo()
        show_executions(view)


@click.command(
    "list",
    cls=Command,
    examples=["crontask list", "crontask list --status enabled --text report --json"],
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(list(STATUSES), case_sensitive=False),
    help="Only tasks in this state; may be repeated.",
)
@click.option("--conversation", "--conversation-id", "conversation_id", default="", metavar="ID",
              help="Only tasks of this conversation.")  # fmt: skip
@click.option("--schedule-type", type=click.IntRange(1, 3), help="1 one-off, 2 cron, 3 every.")
@click.option("--text", default="", metavar="TEXT", help="Looked for in name, key, description.")
@click.option("--next-from", metavar="ISO", help="Next fire at or after this time.")
@click.option("--next-to", metavar="ISO", help="Next fire before this time.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Rows of a page."
)
@click.option("--cursor", default="", metavar="TEXT", help="Go on after the page before.")
@pass_shell
def list_command(
    shell: Shell,
    /,
    statuses: tuple[str, ...],
    next_from: str | None,
    next_to: str | None,
    **options: Any,
) -> None:
    """List tasks, newest first.

    Each with its state, its next fire, its last execution and how often it failed in a row.
    Deleted ones are listed only when asked for.
    """
    from crontask_adapters import views
    from crontask_core.ports import TaskFilter
    from crontask_core.schedule import parse_instant

    asked = statuses or ("paused", "enabled", "completed")
    numbers = tuple(sorted({STATUSES[word.lower()] for word in asked}))
    where = TaskFilter(user_id=shell.reader(), statuses=numbers, **options)

    async def use(app: App) -> tuple[Page[TaskRow], datetime]:
        nonlocal where
        now = app.clock.now()
        if next_from is not None:
            since, _ = parse_instant(next_from, app.rules.zone, now, "next_from")
            where = attrs.evolve(where, next_from=since)
        if next_to is not None:
            until, _ = parse_instant(next_to, app.rules.zone, now, "next_to")
            where = attrs.evolve(where, next_to=until)
        return await app.tasks.list(where), now

    page, now = shell.with_app(use)
    emit(shell, views.task_rows(page, now, users=where.user_id is None), _show_tasks)


def _show_tasks(view: View) -> None:
    rows = view["tasks"]
    users = any("user_id" in row for row in rows)
    heads = ["ID", *(["USER"] if users else []), "KEY", "NAME", "STATE", "SCHEDULE", "NEXT", "LAST"]
    table(
        [*heads, "FAILS"],
        [
            [
                row["task_id"],
                *([row.get("user_id")] if users else []),
                row["task_key"],
                row["task_name"],
                row["status_text"],
                row["schedule_text"],
                moment(row.get("next_fire_time")),
                _last(row.get("last_execution")),
                row.get("failure_streak") or "",
            ]
            for row in rows
        ],
        right="ID FAILS",
    )
    tell(view)
    if view.get("next_cursor"):
        click.echo(f"more: --cursor {view['next_cursor']}")


def _last(execution: View | None) -> str:
    return f"{execution['exec_status_text']}, result {execution['result']}" if execution else ""


@click.command(
    "preview",
    cls=Command,
    examples=[
        'crontask preview --cron "0 9 L * *" --timezone Europe/Berlin',
        "crontask preview --every 90m --count 3",
    ],
)
@schedule_options
@click.option("--after", metavar="ISO", help="Start after this instant (default: now).")
@click.option("--count", type=click.IntRange(1, 50), default=5, show_default=True, help="How many.")
@pass_shell
def preview_command(shell: Shell, /, after: str | None, count: int, **options: Any) -> None:
    """Show when a schedule would fire, creating nothing.

    In words and as times, with warnings about what is easily misread.
    """
    from crontask_adapters import views
    from crontask_core.model import NewTask

    new = NewTask(task_name="preview", task_content="preview", **given(options))

    async def use(app: App) -> Preview:
        return app.tasks.preview(new, count=count, after=after)

    emit(shell, views.preview(shell.with_app(use)), _show_preview)


def _show_preview(view: View) -> None:
    tell(view)
    if view.get("next_fire_times"):
        click.echo(fires(view))
