"""An HTTP server over bare sockets that can misbehave in every way a network or an agent can.

A behaviour is a coroutine function of one ``Connection``; it is run once per connection and the
connection is closed when it returns. Nothing here is timed by the clock except ``drip``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

import orjson

__all__ = ["BadServer", "Behaviour", "Connection", "Request", "answering", "http_answer"]

WITHIN = 60.0


class Request(NamedTuple):
    """One request as it came: ``headers`` by lower-case name."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, object]:
        found: dict[str, object] = orjson.loads(self.body)
        return found


class Connection:
    """One accepted connection."""

    def __init__(
        self, server: BadServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer

    async def request(self) -> Request | None:
        """The next whole request; None when the client has closed the connection."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head[:-4].split("\r\n")
            pairs = (text.split(":", 1) for text in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        request = Request(line, headers, body)
        self.server.requests.append(request)
        await self.server.changed()
        return request

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def drip(self, pieces: Iterable[bytes], gap: float = 0.02) -> None:
        """Send piece by piece with a pause after each, until the server stops or the client goes
        away."""
        for piece in pieces:
            self.writer.write(piece)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.server.stopping.wait(), gap)
            if self.server.stopping.is_set() or self.writer.transport.is_closing():
                return

    async def silence(self) -> None:
        """Say nothing until the client closes or the server stops."""
        gone = asyncio.create_task(self.reader.read())
        stop = asyncio.create_task(self.server.stopping.wait())
        await asyncio.wait({gone, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, stop):
            task.cancel()
        await asyncio.gather(gone, stop, return_exceptions=True)

    def reset(self) -> None:
        """Tear the connection down with RST instead of FIN."""
        plug = self.writer.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Behaviour = Callable[[Connection], Awaitable[None]]


class BadServer:
    """Listens while the ``async with`` lasts. ``requests`` are those read whole, ``accepted``
    counts connections, ``open`` those still there."""

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        name: str = "",
    ) -> None:
        self._behaviour = behaviour
        self._host = host
        self._tls = tls
        self._name = name or (f"[{host}]" if ":" in host else host)
        self.requests: list[Request] = []
        self.accepted = 0
        self.open = 0
        self.stopping = asyncio.Event()
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, self._host, 0, ssl=self._tls, backlog=200
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self._name}:{self.port}/v1/task/execute"

    async def changed(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[BadServer], bool]) -> None:
        """Return as soon as ``condition`` holds; TimeoutError when it does not come to hold."""
        async with asyncio.timeout(WITHIN), self._news:
            await self._news.wait_for(lambda: condition(self))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self.open += 1
        try:
            await self._behaviour(Connection(self, reader, writer))
        except (ConnectionError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            # Python 3.11 logs an error for a handler that ends cancelled.
            if not self.stopping.is_set():
                raise
        finally:
            # A TLS farewell that the client does not return would take half a minute.
            writer.transport.abort() if self.stopping.is_set() else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self.open -= 1
            self._tasks.discard(task)
            await self.changed()


def http_answer(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """A whole answer; ``retry_after="7"`` becomes ``retry-after: 7``."""
    lines = [f"HTTP/1.1 {status} Word", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(data: bytes) -> Behaviour:
    """Answers every request of a connection with ``data`` and keeps the connection."""

    async def behave(connection: Connection) -> None:
        while await connection.request() is not None:
            await connection.send(data)

    return behave
