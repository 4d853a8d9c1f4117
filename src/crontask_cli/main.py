"""The ``crontask`` command. It loads a command's module only when that command is used."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from crontask_cli.failure import UnknownCommand, report_failure
from crontask_cli.shell import Group, Shell

__all__ = ["COMMANDS", "cli", "main"]

# Section -> command -> (module, one line). The lines stand here so that help loads no module.
COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Serve": {
        "serve": ("serve", "Serve MCP over HTTP and fire due tasks."),
        "worker": ("serve", "Fire due tasks, without MCP."),
        "mcp": ("serve", "Serve MCP over standard input and output."),
    },
    "Tasks": {
        "create": ("tasks", "Create a task."),
        "update": ("tasks", "Change fields of a task."),
        "get": ("tasks", "Show a task and its newest executions."),
        "list": ("tasks", "List tasks, newest first."),
        "pause": ("moves", "Stop a task from firing until it is resumed."),
        "resume": ("moves", "Let a paused task fire again, from now on."),
        "delete": ("moves", "Delete a task; its executions stay readable."),
        "run": ("moves", "Fire a task once, now, outside its schedule."),
        "preview": ("tasks", "Show when a schedule would fire, creating nothing."),
        "next": ("next_fires", "Print the next fire times of a cron expression."),
        "import": ("transfer", "Create tasks from a file of JSON lines."),
        "export": ("transfer", "Write tasks as JSON lines."),
    },
    "Executions": {
        "executions": ("executions", "List what became of fires, newest first."),
        "cancel": ("executions", "Cancel a fire that waits to be sent."),
        "report": ("executions", "Report the result of a run, as an agent would."),
    },
    "Operate": {
        "batch": ("batch", "Look after the batch jobs of owner services."),
        "db": ("upkeep", "Look after the database."),
        "nodes": ("upkeep", "List the nodes that share the store."),
        "doctor": ("doctor", "Say what is wrong with this installation, and the remedy."),
        "config": ("upkeep", "Show each setting, its value and where it came from."),
    },
    "Try it": {
        "demo": ("demo", "Watch the main job: tasks made, fired, reported and checked."),
        "agent": ("agent", "Run the sample agent: it answers callbacks and reports back."),
    },
}


class Root(Group):
    """The top group: lazy commands, and one place where every error ends."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in COMMANDS.values():
            if cmd_name in section:
                module = import_module(f"crontask_cli.{section[cmd_name][0]}")
                found = getattr(module, f"{cmd_name}_command")
                assert isinstance(found, click.Command)
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), 3, 0.5)
            raise UnknownCommand(name, near, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in section.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _reader_gone()
            return 0

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run a command line and exit with its code. Never shows a stack trace."""
        words = list(sys.argv[1:] if args is None else args)
        shell = extra.setdefault("obj", Shell())
        extra["standalone_mode"] = False
        try:
            code = super().main(words, prog_name or "crontask", **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _reader_gone()
            sys.exit(0)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place to catch
            debug = shell.overrides.get("log.level") == "debug"
            sys.exit(report_failure(error, as_json="--json" in words, debug=debug))
        sys.exit(code if isinstance(code, int) else 0)


def _reader_gone() -> None:
    """The reader of our output, such as head, has seen enough: write no more, and be content."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"crontask {version('crontask')}")
        ctx.exit()


@click.group(
    "crontask",
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=["crontask demo", "crontask COMMAND --help"],
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version.",
)
def cli() -> None:
    """An alarm clock that AI agents can trust.

    Agents create tasks over MCP; crontask calls them back on time over HTTP, and every fire is
    accounted for. Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 not found,
    4 conflict, 5 unavailable.
    """


def main() -> NoReturn:
    """The entry point of the ``crontask`` command."""
    cli.main()
