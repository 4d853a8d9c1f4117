"""Serving over HTTP: the socket, the signals, and an orderly end (A5.2, X-I1).

Signals are ours, not uvicorn's: its own handling would let one open listening stream keep a
stopping process alive, and would close the port before running calls could be reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from crontask_adapters.settings import ServerSettings
from crontask_core.errors import ConfigError, CrontaskError, Unavailable
from crontask_server.http_app import HttpFace, listen
from crontask_server.identity import tokens_required
from crontask_server.signalling import signals

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_server.batch_runtime import WithBatch
    from crontask_server.presence import Presence
    from crontask_server.runtime import Runtime

__all__ = ["bind", "listening_host", "raise_failure", "serve_http"]

_LAST_ANSWERS = 5
"""Seconds that requests under way get after everything else has stopped."""


async def serve_http(
    app: App, runtime: Runtime | Presence | WithBatch | None, *, mcp: bool = True
) -> None:
    """Serve until SIGTERM or SIGINT, or until ``runtime`` fails, whose error is raised. Nothing is
    answered before ``runtime`` has started: a store that cannot be written is found first.

    The first signal: readiness fails, listening streams end, the runtime drains while callers are
    still answered (the agents it called report here), then the port is closed. A second signal ends
    it at once. Without ``mcp`` only health and metrics are served. Raises Unavailable
    (PORT_IN_USE), and ConfigError for an address that cannot be used.
    """
    settings = app.settings.server
    host = listening_host(settings)
    sock = bind(host, settings.port)
    port = sock.getsockname()[1]
    face = HttpFace(app=app, runtime=runtime, host=host, port=port, mcp=mcp)
    listen(app, face.feed)
    server = _Server(
        uvicorn.Config(
            face.starlette(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=_LAST_ANSWERS,
        ),
        lambda: _announce(face),
    )
    await _Life(face, server, runtime).live(sock)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling; says when it listens."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


class _Life:
    """From the first request to the last: one server and, maybe, one runtime."""

    def __init__(
        self, face: HttpFace, server: _Server, runtime: Runtime | Presence | WithBatch | None
    ) -> None:
        self._face = face
        self._server = server
        self._runtime = runtime
        self._asked = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def live(self, sock: socket.socket) -> None:
        asked = asyncio.create_task(self._asked.wait())
        parts: set[asyncio.Task[Any]] = {asked}
        firing = asyncio.create_task(self._runtime.run()) if self._runtime else None
        if firing is not None:
            parts.add(firing)
        try:
            with signals(self._on_signal):
                if await self._started(parts):
                    self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
                    parts.add(self._serving)
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                await self._end(firing)
        finally:
            sock.close()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        raise_failure(firing, self._serving)

    async def _started(self, parts: set[asyncio.Task[Any]]) -> bool:
        """Whether the runtime has started; false when it failed, or a signal came, before that."""
        if self._runtime is None:
            return True
        started = asyncio.create_task(self._runtime.started())
        done, _ = await asyncio.wait({started, *parts}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        return started in done

    async def _end(self, firing: asyncio.Task[None] | None) -> None:
        self._face.stopping = True
        self._face.feed.close()
        if self._runtime is not None and firing is not None:
            self._runtime.stop()
            await asyncio.wait({firing})
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving})

    def _on_signal(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            return
        if self._runtime is not None:
            self._runtime.stop_now()
        # Requests and streams cut off now would each leave a stack trace in the log.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server.force_exit = self._server.should_exit = True
        if self._serving is not None:
            self._serving.cancel()


def raise_failure(*tasks: asyncio.Task[None] | None) -> None:
    """Raise what the first of these finished tasks failed with, if one did."""
    for task in tasks:
        error = task.exception() if task is not None and not task.cancelled() else None
        if error is not None:
            raise error


def listening_host(server: ServerSettings) -> str:
    """The address to listen on: without tokens loopback only, whatever is configured (X-I1)."""
    if tokens_required(server) or _is_loopback(server.host):
        return server.host
    return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises Unavailable or ConfigError."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _bad_host(host, error) from None
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Two sockets may be bound to one port; only the second listen tells.
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from None
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> CrontaskError:
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"port {port} on {host} is in use by another program",
            code="PORT_IN_USE",
            field="server.port",
            received=port,
            hint="Stop that program, or choose another port; 0 takes a free one.",
            example=str(port + 1 if port < 65_535 else 8350),
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            f"this user may not listen on port {port}",
            field="server.port",
            received=port,
            hint="Ports below 1024 are for root.",
            example="8350",
        )
    return _bad_host(host, error)


def _bad_host(host: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}: {error.strerror or error}",
        field="server.host",
        received=host,
        hint="Give an address of this machine.",
        example="127.0.0.1",
    )


def _announce(face: HttpFace) -> None:
    """Say where callers find the server and what it asks of them, on standard error."""
    server = face.app.settings.server
    shown = f"[{face.host}]" if ":" in face.host else face.host
    what, path = ("MCP", "/mcp") if face.mcp else ("health and metrics", "")
    lines = [f"crontask serves {what} at http://{shown}:{face.port}{path}"]
    if face.host != server.host:
        lines.append(
            f"No token is configured (server.tokens): listening on {face.host} only, "
            f"not on {server.host}."
        )
    elif face.mcp and not face.tokens_required:
        who = face.app.settings.identity
        lines.append(f"No token is needed; callers act as {who.role} {who.user}.")
    if face.tokens_required:
        keyed = server.jwt.secret_file or server.jwt.public_key_file
        kinds = [f"{len(server.tokens)} configured", *(["JWT accepted"] if keyed else [])]
        lines.append(f"A bearer token is needed ({', '.join(kinds)}).")
    lines.append(f"Host headers taken: {', '.join(face.allowed.allowed_hosts)}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
