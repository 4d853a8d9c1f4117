"""The default client of agents, on aiohttp (A6.1, A6.4, DESIGN 3.4)."""

from __future__ import annotations

import asyncio
import select
import socket
import weakref
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from datetime import datetime

from aiohttp import (
    BytesPayload,
    ClientRequest,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    StreamReader,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, AbstractStreamWriter, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from crontask_adapters.client_options import ClientOptions
from crontask_adapters.ga_http import (
    KEEP_ALIVE,
    Flight,
    HttpGaClient,
    Look,
    Names,
    answer_from,
)
from crontask_core.policy import Answer

__all__ = ["AiohttpClient"]

# The call that is asking for a connection: the connector runs in the caller's task.
_flight: ContextVar[Flight] = ContextVar("flight")

_NO_TIMEOUT = ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_HEAD_LIMIT = 65_536


class AiohttpClient(HttpGaClient):
    """``ports.GaClient`` on aiohttp: pooled HTTP/1.1 connections.

    aiohttp itself repeats only idempotent methods over a lost connection, so a POST is sent once.
    """

    _closed = False

    def __init__(
        self, options: ClientOptions, *, now: Callable[[], datetime], look: Look | None = None
    ) -> None:
        super().__init__(options, now=now, look=look)
        self._sessions: dict[bool, ClientSession] = {}

    async def _exchange(self, flight: Flight) -> Answer:
        _flight.set(flight)
        target = flight.route.target
        tls = await self.tls() if target.scheme == "https" else True
        async with self._session(flight.route.trusted).post(
            target.url,
            data=_Body(flight),
            headers=flight.headers,
            allow_redirects=False,
            ssl=tls,
        ) as response:
            return await answer_from(
                flight, response.status, response.headers, _chunks(response.content)
            )

    def _session(self, trusted: bool) -> ClientSession:
        if self._closed:
            raise RuntimeError("the client is closed")
        session = self._sessions.get(trusted)
        if session is None:
            session = self._sessions[trusted] = ClientSession(
                connector=_Connector(self.names, self.options, trusted=trusted),
                timeout=_NO_TIMEOUT,
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                max_line_size=_HEAD_LIMIT,
                max_field_size=_HEAD_LIMIT,
            )
        return session

    async def close(self) -> None:
        self._closed = True
        while self._sessions:
            await self._sessions.popitem()[1].close()
        self.names.close()


class _Body(BytesPayload):
    """Asks at the last moment: aiohttp holds the headers back until the body is written, and that
    may be a turn of the event loop after the connection was there."""

    def __init__(self, flight: Flight) -> None:
        super().__init__(flight.body)
        self._flight = flight

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self._flight.start()
        await super().write_with_length(writer, content_length)


class _Connector(TCPConnector):
    """The pool. ``trusted``: its hosts are the operator's, addresses are not checked."""

    def __init__(self, names: Names, options: ClientOptions, *, trusted: bool) -> None:
        super().__init__(
            resolver=_Resolver(names, trusted=trusted),
            limit=options.concurrency,
            limit_per_host=options.per_host,
            keepalive_timeout=KEEP_ALIVE,
        )
        self._max_idle = options.max_idle
        self._used: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> Connection:
        """A connection on which nothing has come that nobody asked for."""
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or protocol not in self._used:
                break
            if not _has_news(protocol.transport):
                break
            connection.close()
        if protocol is not None:
            self._used.add(protocol)
        _flight.get().connected = True
        return connection

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        # aiohttp bounds the connections in use, not the idle ones.
        full = sum(map(len, self._conns.values())) >= self._max_idle
        super()._release(key, protocol, should_close=should_close or full)


class _Resolver(AbstractResolver):
    """Hands the connector checked addresses only: what is connected to is what was checked."""

    def __init__(self, names: Names, *, trusted: bool) -> None:
        self._names = names
        self._trusted = trusted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._names.find(host, port, trusted=self._trusted)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing to close: the names outlive the connector."""


def _has_news(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer of an idle connection has closed it, or sent something, which the event
    loop has not seen yet. Such a connection must not carry a request."""
    handle = transport.get_extra_info("socket") if transport else None
    if handle is None:
        return True
    poll = select.poll()
    poll.register(handle.fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def _chunks(content: StreamReader) -> AsyncGenerator[bytes, None]:
    while chunk := await content.readany():
        yield chunk
