"""Errors as people and programs read them, and the exit code of each (X-CLI).

0 done, 1 failed, 2 usage or configuration, 3 not found, 4 conflict, 5 unavailable; 130 when
interrupted. A stack trace is written only to a log of level debug.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from crontask_core.errors import CrontaskError

__all__ = ["as_error", "block", "report_failure"]


def report_failure(error: BaseException, *, as_json: bool, debug: bool = False) -> int:
    """Write the error to stderr, as one block or as one JSON object; returns the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        click.echo("interrupted", err=True)
        return 130
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.ctx.get_help())
        return 0
    told = as_error(error)
    if as_json:
        parts = told.as_dict()
        problems = getattr(told, "problems", ())
        if len(problems) > 1:
            parts["problems"] = [problem.as_dict() for problem in problems]
        body = {"ok": False, "message": told.message, "error": parts}
        click.echo(json.dumps(body, ensure_ascii=False), err=True)
    else:
        click.echo(block(told), err=True)
    if debug and told.code == "INTERNAL":
        sys.excepthook(type(error), error, error.__traceback__)
    return told.exit_code


def block(error: CrontaskError) -> str:
    """The error for a person: what, where, what to do, what works."""
    where = f" ({error.field})" if error.field else ""
    lines = [f"error: {error.message}", f"  code:    {error.code}{where}"]
    if error.hint:
        lines.append(f"  hint:    {_for_people(error.hint)}")
    if error.candidates:
        lines.append(f"  near:    {', '.join(error.candidates)}")
    if error.example:
        lines.append(f"  example: {error.example}")
    return "\n".join(lines)


# Hints name the tools of MCP and their arguments; here the same thing is a command or an option.
_COMMANDS = {
    "list_cron_tasks": "crontask list",
    "get_cron_task": "crontask get",
    "update_cron_task": "crontask update",
    "create_cron_task": "crontask create",
    "delete_cron_task": "crontask delete",
    "pause_cron_task": "crontask pause",
    "resume_cron_task": "crontask resume",
    "get_task_executions": "crontask executions",
    "run_cron_task_now": "crontask run",
    "cancel_task_execution": "crontask cancel",
    "report_task_result": "crontask report",
    "preview_schedule": "crontask preview",
    "trigger_time": "--at",
    "delay_seconds": "--in",
    "cron_expr": "--cron",
    "interval_seconds": "--every",
}


def _for_people(hint: str) -> str:
    for tool, command in _COMMANDS.items():
        hint = hint.replace(tool, command)
    return hint


def as_error(error: BaseException) -> CrontaskError:
    """Any failure as one of ours, so that each has a code and an exit code."""
    from crontask_core.errors import CrontaskError, InvalidInput, Unavailable

    if isinstance(error, CrontaskError):
        return error
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return InvalidInput(error.format_message())
    if isinstance(error, OSError) and error.filename:
        return InvalidInput(
            f"{error.filename}: {error.strerror}", hint="Check the path and its permissions."
        )
    if isinstance(error, ConnectionError | TimeoutError):
        return Unavailable(str(error) or type(error).__name__, retryable=True)
    from crontask_adapters.ids import error_id

    return CrontaskError(
        f"{type(error).__name__}: {error} (error id {error_id()})",
        hint="This is a fault in crontask. Run it again with -o log.level=debug and report what "
        "is shown.",
    )


def _usage(error: click.UsageError) -> CrontaskError:
    from crontask_core.errors import InvalidInput

    code, near, field = "INVALID_ARGUMENT", list[str](), ""
    if isinstance(error, click.NoSuchOption):
        code, field, near = "UNKNOWN_ARGUMENT", error.option_name, list(error.possibilities or ())
    elif isinstance(error, UnknownCommand):
        code, field, near = "UNKNOWN_ARGUMENT", error.name, error.near
    elif isinstance(error, click.MissingParameter):
        code = "MISSING_ARGUMENT"
    if isinstance(error, click.BadParameter) and error.param is not None:
        param = error.param
        field = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
    elif isinstance(error, click.BadOptionUsage) and not field:
        field = error.option_name
    path = error.ctx.command_path if error.ctx is not None else "crontask"
    command = error.ctx.command if error.ctx is not None else None
    examples = getattr(command, "examples", ())
    return InvalidInput(
        _sentence(error),
        code=code,
        field=field,
        hint=f"See: {path} --help",
        example=examples[0] if examples else "",
        candidates=near,
    )


def _sentence(error: click.UsageError) -> str:
    text = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return text[:1].lower() + text[1:].rstrip(".")


class UnknownCommand(click.UsageError):
    """No such command; ``near`` are the names most like it."""

    def __init__(self, name: str, near: list[str], ctx: click.Context) -> None:
        super().__init__(f"there is no command {name!r}", ctx)
        self.name = name
        self.near = near
