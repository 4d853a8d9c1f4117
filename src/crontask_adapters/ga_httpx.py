"""The client of agents on httpx2, for those who use it elsewhere already (extra ``httpx``).

It behaves as the default one does and takes several times the processor time per call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from weakref import WeakValueDictionary

import attrs
import httpx2
from httpcore2 import (
    AnyIOBackend,
    AsyncConnectionPool,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
)

from crontask_adapters.client_options import ClientOptions
from crontask_adapters.ga_http import KEEP_ALIVE, Flight, HttpGaClient, Look, Names, answer_from
from crontask_core.policy import Answer

__all__ = ["HttpxClient"]

PATIENCE = 2.0
"""Seconds an address of a host gets to take the connection while there is another one to try."""


@attrs.define
class _Call:
    """``heard``: something was read from the network since the request was to be sent."""

    flight: Flight
    heard: bool = False


# The call that uses a connection: the transport runs in the caller's task.
_call: ContextVar[_Call] = ContextVar("call")


class HttpxClient(HttpGaClient):
    """``ports.GaClient`` on httpx2's transport: pooled HTTP/1.1 connections.

    The transport is used without httpx2's client around it, which would keep cookies and inflate
    answers without a limit. A connection that the agent closed while it was idle is noticed before
    anything is sent; nothing else is repeated.
    """

    _closed = False

    def __init__(
        self, options: ClientOptions, *, now: Callable[[], datetime], look: Look | None = None
    ) -> None:
        super().__init__(options, now=now, look=look)
        self._transports: dict[tuple[bool, bool], _Transport] = {}
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def _exchange(self, flight: Flight) -> Answer:
        call = _Call(flight)
        _call.set(call)
        request = httpx2.Request(
            "POST", flight.route.target.url, content=flight.body, headers=flight.headers
        )
        async with self._slot(flight.route.place):
            transport = await self._transport(flight)
            response = await transport.handle_async_request(request)
            try:
                if not call.heard:
                    raise ConnectionError("an answer came before the request")
                return await answer_from(
                    flight, response.status_code, response.headers, _chunks(response)
                )
            finally:
                await response.aclose()

    def _slot(self, place: str) -> asyncio.Semaphore:
        """A turn at this host: httpx2 bounds connections in all, not per host."""
        slot = self._slots.get(place)
        if slot is None:
            slot = self._slots[place] = asyncio.Semaphore(self.options.per_host)
        return slot

    async def _transport(self, flight: Flight) -> _Transport:
        secure = flight.route.target.scheme == "https"
        tls = await self.tls() if secure else None
        if self._closed:
            raise RuntimeError("the client is closed")
        key = (flight.route.trusted, secure)
        transport = self._transports.get(key)
        if transport is None:
            backend = _Backend(self.names, trusted=flight.route.trusted)
            # Plain HTTP needs no authorities; a context without any trusts nobody.
            context = tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            transport = self._transports[key] = _Transport(context, self.options, backend)
        return transport

    async def close(self) -> None:
        self._closed = True
        while self._transports:
            await self._transports.popitem()[1].aclose()
        self.names.close()


class _Transport(httpx2.AsyncHTTPTransport):
    """httpx2's transport over a pool that connects through our backend."""

    def __init__(
        self, context: ssl.SSLContext, options: ClientOptions, backend: AsyncNetworkBackend
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = AsyncConnectionPool(
            ssl_context=context,
            max_connections=options.concurrency,
            max_keepalive_connections=options.max_idle,
            keepalive_expiry=KEEP_ALIVE,
            network_backend=backend,
        )


class _Backend(AnyIOBackend):
    """Connects to checked addresses only. The host stays what it was in ``Host`` and for TLS."""

    def __init__(self, names: Names, *, trusted: bool) -> None:
        self._names = names
        self._trusted = trusted

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        found = await self._names.find(host, port, trusted=self._trusted)
        for address in found[:-1]:
            try:
                async with asyncio.timeout(PATIENCE):
                    return _Stream(await super().connect_tcp(address, port))
            except (ConnectError, TimeoutError):
                continue
        return _Stream(await super().connect_tcp(found[-1], port))


class _Stream(AsyncNetworkStream):
    """Notes on the call that is using the connection what was written and read for it."""

    def __init__(self, inner: AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        _call.get().heard = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        flight = _call.get().flight
        if not flight.connected:
            flight.start()
        await self._inner.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> AsyncNetworkStream:
        try:
            return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            # httpcore2 leaves the socket open when a handshake is cancelled.
            await self._inner.aclose()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


async def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_raw():
        yield chunk
