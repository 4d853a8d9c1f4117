"""Serving over standard input and output: one client, one process, gone when the client goes.

Standard output carries MCP and nothing else; logs go to standard error. The client kills a process
that does not end within 2 s, so the drain is shorter (A5.2).
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
from mcp.server.stdio import stdio_server

from crontask_adapters.wiring import VERSION
from crontask_core.errors import CrontaskError
from crontask_server.http_app import listen
from crontask_server.http_serve import raise_failure
from crontask_server.identity import by_settings
from crontask_server.mcp_server import Feed, McpFace
from crontask_server.signalling import signals

if TYPE_CHECKING:
    from mcp.server import Server

    from crontask_adapters.wiring import App
    from crontask_server.runtime import Runtime

__all__ = ["serve_stdio"]

_DRAIN = timedelta(seconds=0.7)


async def serve_stdio(app: App, runtime: Runtime | None) -> None:
    """Serve until standard input is closed; then drain and return.

    On SIGTERM and SIGINT it drains, closes ``app`` and ends the process with code 0; when
    ``runtime`` fails, with the exit code of its error, which is written to standard error. It ends
    the process itself because the thread that reads standard input cannot be woken. Calls of agents
    still under way after 0.7 s are handed on.
    """
    limit = min(app.settings.executor.stop_timeout, _DRAIN)
    executor = attrs.evolve(app.settings.executor, stop_timeout=limit)
    app.settings = attrs.evolve(app.settings, executor=executor)
    feed = Feed()
    listen(app, feed)
    face = McpFace(
        tasks=app.tasks,
        caller=by_settings(app.settings.identity),
        version=VERSION,
        ignore=app.settings.server.ignore_arguments,
        feed=feed,
    )
    asked = asyncio.Event()
    with signals(asked.set):
        failure = await _live(face.server(), runtime, feed, asked)
        if asked.is_set() or failure is not None:
            await app.close()
            os._exit(_tell(failure))


async def _live(
    server: Server[Any], runtime: Runtime | None, feed: Feed, asked: asyncio.Event
) -> BaseException | None:
    """What ``runtime`` failed with, if it did while the input was open."""
    waiting = asyncio.create_task(asked.wait())
    serving = asyncio.create_task(_serve(server))
    parts: set[asyncio.Task[Any]] = {waiting, serving}
    firing = asyncio.create_task(runtime.run()) if runtime else None
    if firing is not None:
        parts.add(firing)
    await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    feed.close()
    if runtime is not None and firing is not None:
        runtime.stop()
        await asyncio.wait({firing})
    if not serving.done():
        return firing.exception() if firing is not None else None
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    raise_failure(firing, serving)
    return None


def _tell(failure: BaseException | None) -> int:
    """Write a failure to standard error; the exit code."""
    code = 0
    if failure is not None:
        code = failure.exit_code if isinstance(failure, CrontaskError) else 1
        text = failure.line() if isinstance(failure, CrontaskError) else repr(failure)
        sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()
    return code


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
