"""The commands that stay: serve, worker, mcp."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from crontask_cli.shell import Command, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_adapters.settings import Settings

__all__ = ["mcp_command", "serve_command", "worker_command"]


@click.command(
    "serve",
    cls=Command,
    examples=[
        "crontask serve -o executor.default_callback_url=http://127.0.0.1:8351/v1/task/execute",
        "crontask serve --no-scheduler -o server.port=8360",
    ],
)
@click.option("--no-scheduler", is_flag=True, help="Take calls only; workers fire.")
@pass_shell
def serve_command(shell: Shell, no_scheduler: bool) -> None:
    """Serve MCP over HTTP and fire due tasks.

    With health, metrics and dashboard on server.host and server.port. SIGTERM or Ctrl-C stops it in
    order: calls that are under way finish first. A second one ends it at once, with nothing lost.
    """
    settings = shell.for_store()
    if not settings.executor.default_callback_url:
        click.echo(_next_steps(settings), err=True)
    roles = frozenset({"api"} if no_scheduler else {"api", "scheduler"})
    asyncio.run(_serve(settings, roles))


def _next_steps(settings: Settings) -> str:
    server = settings.server
    return (
        "No agent to call is configured (executor.default_callback_url), so only tasks with a "
        "callback_url of their own can be created. To try it with the sample agent, stop this and "
        "run:\n"
        f"  crontask agent --port 8351 --mcp-url http://{server.host}:{server.port}/mcp\n"
        "  crontask serve -o executor.default_callback_url=http://127.0.0.1:8351/v1/task/execute"
    )


@click.command("worker", cls=Command, examples=["crontask worker -o server.port=8361"])
@pass_shell
def worker_command(shell: Shell) -> None:
    """Fire due tasks, without MCP.

    With health and metrics on server.host and server.port. Stops as serve does.
    """
    asyncio.run(_serve(shell.for_store(), frozenset({"scheduler"})))


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
    from crontask_server.runtime import Runtime

    app = await open_app(settings, roles=roles, log=True)
    try:
        await serve_http(app, Runtime(app) if "scheduler" in roles else None, mcp="api" in roles)
    finally:
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
