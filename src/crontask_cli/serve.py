"""The commands that stay: serve, worker, mcp."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from crontask_cli.shell import Command, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_adapters.batch_wiring import Batch
    from crontask_adapters.settings import Settings
    from crontask_server.batch_runtime import WithBatch

__all__ = ["mcp_command", "serve_command", "worker_command"]

_LATEST = 15.0
"""Seconds after executor.stop_timeout until a process that does not end is killed."""


def _processes(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        metavar="N",
        help="Processes on this machine; each that fires is a node.",
    )(command)
    told = "Started by another: end when the standard input closes."
    return click.option("--child", is_flag=True, hidden=True, help=told)(command)


@click.command(
    "serve",
    cls=Command,
    examples=[
        "crontask serve -o executor.default_callback_url=http://127.0.0.1:8351/v1/task/execute",
        "crontask serve --no-scheduler -o server.port=8360",
        "crontask serve --processes 4",
    ],
)
@click.option("--no-scheduler", is_flag=True, help="Take calls only; workers fire.")
@_processes
@pass_shell
def serve_command(shell: Shell, no_scheduler: bool, processes: int, child: bool) -> None:
    """Serve MCP over HTTP and fire due tasks.

    With health, metrics and dashboard on server.host and server.port. SIGTERM or Ctrl-C stops it in
    order: calls that are under way finish first. A second one ends it at once, with nothing lost.
    With --processes one process serves MCP and the others are workers.
    """
    settings = shell.for_store()
    if not child and not settings.executor.default_callback_url:
        click.echo(_next_steps(settings), err=True)
    roles = frozenset({"api"} if no_scheduler else {"api", "scheduler"})
    words = ["serve", *(["--no-scheduler"] if no_scheduler else [])]
    _run(shell, roles, words, processes, child)


def _next_steps(settings: Settings) -> str:
    server = settings.server
    return (
        "No agent to call is configured (executor.default_callback_url), so only tasks with a "
        "callback_url of their own can be created. To try it with the sample agent, stop this and "
        "run:\n"
        f"  crontask agent --port 8351 --mcp-url http://{server.host}:{server.port}/mcp\n"
        "  crontask serve -o executor.default_callback_url=http://127.0.0.1:8351/v1/task/execute"
    )


@click.command(
    "worker",
    cls=Command,
    examples=["crontask worker -o server.port=8361", "crontask worker --processes 4"],
)
@_processes
@pass_shell
def worker_command(shell: Shell, processes: int, child: bool) -> None:
    """Fire due tasks, without MCP.

    With health and metrics on server.host and server.port. Stops as serve does.
    """
    _run(shell, frozenset({"scheduler"}), ["worker"], processes, child)


def _run(
    shell: Shell, roles: frozenset[str], words: list[str], processes: int, child: bool
) -> None:
    """Serve in this process, or be the parent of several that do."""
    settings = shell.for_store()
    if processes > 1:
        sys.exit(asyncio.run(_family(shell, settings, words, processes)))
    if child:
        from crontask_server.signalling import end_with_parent

        end_with_parent()
    asyncio.run(_serve(settings, roles))


async def _family(shell: Shell, settings: Settings, words: list[str], processes: int) -> int:
    from crontask_adapters.clock import SystemClock
    from crontask_adapters.observers import setup_logging
    from crontask_server.processes import Family

    setup_logging(settings.log.format, settings.log.level)
    family = Family(
        lines=list(_lines(shell, settings, words, processes)),
        clock=SystemClock(),
        stop_seconds=settings.executor.stop_timeout.total_seconds() + _LATEST,
    )
    return await family.run()


def _lines(
    shell: Shell, settings: Settings, words: list[str], processes: int
) -> Iterator[list[str]]:
    """The command line of each process. The first listens where it was told, the others on a free
    port, for health and metrics only."""
    for number in range(processes):
        options = dict(shell.overrides)
        if settings.scheduler.node_id:
            options["scheduler.node_id"] = f"{settings.scheduler.node_id}/{number + 1}"
        if number:
            options["server.port"] = "0"
            options["batch.grpc_health_port"] = "0"
        line = [sys.executable, "-m", "crontask_cli", *(words if number == 0 else ["worker"])]
        if shell.config is not None:
            line += ["--config", str(shell.config)]
        for key, value in options.items():
            line += ["-o", f"{key}={value}"]
        yield [*line, "--child"]


@click.command(
    "mcp",
    cls=Command,
    examples=["crontask mcp", "crontask mcp --scheduler -o identity.user=josetian"],
)
@click.option(
    "--scheduler/--no-scheduler",
    default=None,
    help="Fire due tasks too (default: on a SQLite store).",
)
@pass_shell
def mcp_command(shell: Shell, scheduler: bool | None) -> None:
    """Serve MCP over standard input and output.

    For an agent that starts crontask itself. On a SQLite store it fires the tasks too, so that they
    do fire; on MySQL only with --scheduler. Ends when its input closes.
    """
    settings = shell.for_store()
    if scheduler is None:
        scheduler = settings.store.url.startswith("sqlite")
    asyncio.run(_stdio(settings, frozenset({"api", "scheduler"} if scheduler else {"api"})))


async def _serve(settings: Settings, roles: frozenset[str]) -> None:
    from crontask_adapters.wiring import open_app
    from crontask_server.http_serve import serve_http
    from crontask_server.presence import Presence
    from crontask_server.runtime import Runtime

    if "scheduler" in roles and settings.batch.jobs:
        roles |= {"batch"}
    app = await open_app(settings, roles=roles, log=True)
    batch: Batch | None = None
    try:
        runtime: Runtime | Presence | WithBatch
        runtime = Runtime(app) if "scheduler" in roles else Presence(app)
        if "batch" in roles:
            from crontask_adapters.batch_wiring import open_batch
            from crontask_server.batch_runtime import with_batch

            batch = await open_batch(app)
            runtime = with_batch(runtime, batch)
        await serve_http(app, runtime, mcp="api" in roles)
    finally:
        if batch is not None:
            await batch.close()
        await app.close()


async def _stdio(settings: Settings, roles: frozenset[str]) -> None:
    from crontask_adapters.wiring import open_app
    from crontask_server.runtime import Runtime
    from crontask_server.stdio_serve import serve_stdio

    app = await open_app(settings, roles=roles, log=True)
    try:
        await serve_stdio(app, Runtime(app) if "scheduler" in roles else None)
    finally:
        await app.close()
