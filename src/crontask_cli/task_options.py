"""The options that describe a task, shared by create, update and preview."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from crontask_cli.shell import Argument

if TYPE_CHECKING:
    from crontask_core.ports import TaskRef

__all__ = ["given", "schedule_options", "setting_options", "task_argument", "task_ref"]

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """``90``, ``90s``, ``1h30m``: seconds as a number."""

    name = "DURATION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return value
        from crontask_core.errors import InvalidInput
        from crontask_core.schedule import parse_duration

        try:
            seconds = float(value) if _is_number(value) else parse_duration(value).total_seconds()
        except InvalidInput:
            self.fail(f"{value!r} is not a duration such as 90s, 10m, 1h30m or 2d", param, ctx)
        return int(seconds) if seconds.is_integer() else seconds


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


DURATION = Duration()

_SCHEDULE = (
    click.option("--cron", "--cron-expr", "cron_expr", metavar="EXPR", help="Fire by cron."),
    click.option(
        "--every",
        "--interval-seconds",
        "interval_seconds",
        type=DURATION,
        help="Fire again and again, such as 90m or a number of seconds.",
    ),
    click.option(
        "--at",
        "--trigger-time",
        "trigger_time",
        metavar="ISO",
        help="Fire once at this time; without an offset it is read in the zone.",
    ),
    click.option(
        "--in",
        "--delay-seconds",
        "delay_seconds",
        type=DURATION,
        help="Fire once after this long, such as 10m.",
    ),
    click.option(
        "--schedule-type",
        type=int,
        metavar="1|2|3",
        help="1 one-off, 2 cron, 3 every; follows from the option above when left out.",
    ),
    click.option(
        "--timezone", "--tz", metavar="ZONE", help="IANA zone name (default: scheduler.timezone)."
    ),
    click.option("--end-at", metavar="ISO", help="No fire after this time."),
    click.option("--max-fires", type=int, metavar="N", help="Complete after this many fires."),
)

_SETTINGS = (
    click.option("--desc", "--task-desc", "task_desc", metavar="TEXT", help="What it is for."),
    click.option("--conversation", "--conversation-id", "conversation_id", metavar="ID",
                 help="The conversation it came from."),
    click.option("--callback-url", metavar="URL", help="Where this task is sent instead."),
    click.option("--max-retry", type=int, metavar="N", help="Retries of a call, 0 to 20."),
    click.option("--retry-interval-ms", type=int, metavar="MS", help="Wait before the first."),
    click.option("--misfire-policy", metavar="WORD", help="run_once, run_all or skip."),
    click.option("--misfire-grace", "--misfire-grace-seconds", "misfire_grace_seconds",
                 type=DURATION, help="How late a fire may still run."),
    click.option("--overlap-policy", metavar="WORD", help="allow or skip."),
    click.option("--delivery", metavar="WORD", help="at_least_once or at_most_once."),
    click.option("--report-timeout", "--report-timeout-seconds", "report_timeout_seconds",
                 type=DURATION, help="How long a run may take until its report."),
    click.option("--pause-after-failures", type=int, metavar="N", help="Pause after N in a row."),
    click.option("--content", "--task-content", "task_content", metavar="TEXT",
                 help="The whole instruction for the agent."),
    click.option("--content-file", type=click.File(encoding="utf-8"), metavar="FILE",
                 help="The instruction from a file; - is standard input."),
)  # fmt: skip


def schedule_options(command: F) -> F:
    """When a task fires."""
    for option in reversed(_SCHEDULE):
        command = option(command)
    return command


def setting_options(command: F) -> F:
    """What it says and how it is delivered."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


def task_argument(command: F) -> F:
    """TASK and --by-key."""
    by_key = click.option(
        "--by-key", is_flag=True, help="TASK is a key even if it is made of digits."
    )
    argument = click.argument("task", cls=Argument, doc="A task's id, or its key.")
    return argument(by_key(command))


def task_ref(task: str, by_key: bool) -> TaskRef:
    """A task by id when it is all digits, else by key."""
    from crontask_core.ports import TaskRef

    if task.isascii() and task.isdigit() and len(task) < 19 and not by_key:
        return TaskRef(id=int(task))
    return TaskRef(key=task)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, under the names of ``NewTask``."""
    fields = {name: value for name, value in options.items() if value is not None}
    file: IO[str] | None = fields.pop("content_file", None)
    if file is not None:
        if "task_content" in fields:
            raise click.UsageError("give --content or --content-file, not both")
        try:
            fields["task_content"] = file.read()
        except UnicodeDecodeError:
            raise click.UsageError("what --content-file names is not UTF-8 text") from None
    return fields
