"""``crontask agent``: the sample agent as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime
from typing import Any

import click

from crontask_cli.shell import Command, Shell, pass_shell

__all__ = ["agent_command", "event_line"]


@click.command(
    "agent",
    cls=Command,
    examples=[
        "crontask agent --port 8351",
        "crontask agent --behaviour flaky:2 --mcp-url http://127.0.0.1:8350/mcp",
    ],
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8351,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--mcp-url", metavar="URL", help="Where to report (default: the server configured).")
@click.option(
    "--token",
    envvar="SAMPLE_AGENT_TOKEN",
    metavar="TOKEN",
    default="",
    help="Bearer token to report with (or $SAMPLE_AGENT_TOKEN).",
)
@click.option(
    "--behaviour",
    default="ok",
    show_default=True,
    metavar="WORD",
    help="ok, fail, flaky:N (503 N times first), slow:S, silent, twice, early, late:S, refuse.",
)
@click.option(
    "--work",
    type=click.FloatRange(0, 3600),
    default=0.2,
    show_default=True,
    metavar="SECONDS",
    help="How long a run takes.",
)
@pass_shell
def agent_command(
    shell: Shell, host: str, port: int, mcp_url: str | None, token: str, behaviour: str, work: float
) -> None:
    """Run the sample agent: it answers callbacks and reports back.

    A real HTTP endpoint and a real MCP client. One line per event; with --json one object a line.
    A task may ask for another behaviour with parameters in its content, such as
    {"agent": "flaky", "times": 2}. Stops on SIGTERM or Ctrl-C.
    """
    from crontask_server.sample_agent import SampleAgent, parse_behaviour

    wanted = parse_behaviour(behaviour)
    if mcp_url is None:
        server = shell.settings.server
        mcp_url = f"http://{server.host}:{server.port}/mcp"

    def tell(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event, ensure_ascii=False) if shell.as_json else event_line(event))

    async def run() -> None:
        agent = SampleAgent(mcp_url=mcp_url, token=token, default=wanted, work=work, tell=tell)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        try:
            await agent.start(host, port)
        except OSError as error:
            raise _port_error(host, port, error) from error
        await stop.wait()
        await agent.stop()

    asyncio.run(run())


def _port_error(host: str, port: int, error: OSError) -> Exception:
    from crontask_core.errors import Unavailable

    return Unavailable(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        code="PORT_IN_USE",
        field="--port",
        received=str(port),
        hint="Stop the other program, or give another port.",
        example="--port 0",
    )


def event_line(event: dict[str, Any]) -> str:
    """One event for a person."""
    at = datetime.fromisoformat(event["at"]).astimezone()
    head = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}  {event['event']:<12}"
    if event["event"] == "listening":
        return (
            f"{head}{event['url']}, reports to {event['mcp_url']}, behaviour {event['behaviour']}"
        )
    if "fire_id" not in event:
        left_out = ("at", "event")
        return head + ", ".join(f"{k} {v}" for k, v in event.items() if k not in left_out)
    parts = [f"{event['task_name']!r} (task {event['task_id']}, fire {event['fire_id'][:8]})"]
    if "lateness_ms" in event:
        parts.append(f"attempt {event['attempt']}, {event['lateness_ms']:+.0f} ms")
        parts.append(f"answered {event['status']}")
    elif "status" in event:
        parts.append(event["status"])
    parts += [word for word in ("duplicate", "late", "pending") if event.get(word)]
    if event.get("error"):
        parts.append(event["error"])
    return head + ", ".join(parts)
