"""What every HTTP client that calls agents has in common (A6.1, A6.4, X-F4, DESIGN 3.4 and 6).

An adapter only opens a request and hands the answer's pieces over; where a call may go, what is
sent, how long it may take, how much is read and what a failure means is decided here, once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import datetime
from functools import partial
from urllib.parse import urlsplit

import attrs

from crontask_adapters.address_guard import (
    AllowList,
    Target,
    addresses_refusal,
    check_callback_url,
    parse_target,
)
from crontask_adapters.callback_body import callback_body
from crontask_adapters.client_options import ClientOptions
from crontask_adapters.signing import Signer
from crontask_core.errors import ConfigError, InvalidInput
from crontask_core.model import Callback
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import MaySend, always

__all__ = [
    "ANSWER_LIMIT",
    "KEEP_ALIVE",
    "AddressRefused",
    "Flight",
    "HttpGaClient",
    "Look",
    "Names",
    "NotSent",
    "Route",
    "tls_context",
]

ANSWER_LIMIT = 65_536
"""Bytes of an answer that are read, as sent and as inflated (A6.4, X-F4)."""

KEEP_ALIVE = 1.5
"""Seconds an unused connection is kept. Shorter than any common server's, which leaves hardly a
moment in which a request meets a connection that the server is closing: such a request may or may
not have arrived, and is not repeated within the attempt."""

Look = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks a host name up: (host, port) to addresses as text. Raises OSError when it cannot."""


class AddressRefused(Exception):
    """The guard forbids the address; the text says why."""


class NotSent(Exception):
    """The call may no longer be made by this process; nothing was written."""


@attrs.frozen
class Route:
    """A URL that may be called. ``trusted``: the operator named the host, so its addresses are not
    checked and it is sent ``callback.headers``. Trusted and other calls share no connection."""

    target: Target
    trusted: bool

    @property
    def place(self) -> str:
        return f"{self.target.host}:{self.target.port}"


@attrs.define
class Flight:
    """How far one call has come: what a failure means depends on it."""

    route: Route
    body: bytes = attrs.field(repr=False)
    headers: dict[str, str] = attrs.field(repr=False)
    may_send: MaySend = always
    connected: bool = False
    status: int = 0

    def start(self) -> None:
        """To be called by an adapter immediately before it writes. Raises NotSent, which may come
        back wrapped."""
        if not self.may_send():
            raise NotSent
        self.connected = True


class Names:
    """Host names to addresses, checked by the guard. Look-ups have threads of their own, so that a
    dead name server holds up nobody but those who ask for its names (X-F1)."""

    def __init__(self, allow: AllowList, threads: int, look: Look | None) -> None:
        self._allow = allow
        self._look = look or self._ask_system
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="crontask-dns")

    async def find(self, host: str, port: int, *, trusted: bool) -> list[str]:
        """The addresses to connect to, and no others. Raises OSError when the name cannot be
        resolved, AddressRefused when any of its addresses may not be called."""
        found = list(dict.fromkeys(await self._look(host, port)))
        if not found:
            raise OSError(f"{host} has no address")
        reason = "" if trusted else addresses_refusal(host, found, self._allow)
        if reason:
            raise AddressRefused(reason)
        return found

    async def _ask_system(self, host: str, port: int) -> list[str]:
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            infos = await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        except UnicodeError:
            raise OSError(f"{host:.60} is not a valid host name") from None
        return [str(info[4][0]) for info in infos]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class HttpGaClient(ABC):
    """``ports.GaClient`` over HTTP. One object serves one event loop.

    ``now`` gives aware UTC for signatures; ``look`` replaces the system's name look-up. Connections
    are made when first needed. ``call`` raises nothing but CancelledError.
    """

    def __init__(
        self, options: ClientOptions, *, now: Callable[[], datetime], look: Look | None = None
    ) -> None:
        self.options = options
        self.names = Names(AllowList.parse(options.allow_hosts), options.concurrency, look)
        self._now = now
        self._signer = Signer(options.signing_keys)
        self._seconds = options.callback_timeout.total_seconds()
        self._routes: dict[str, Route] = {}
        self._tls: ssl.SSLContext | None = None
        self._tls_lock = asyncio.Lock()

    @abstractmethod
    async def _exchange(self, flight: Flight) -> Answer:
        """One request and its answer. Sets ``flight.connected`` once a connection is there and
        calls ``flight.start`` immediately before anything is written."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections; calls under way end as broken."""

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        """One POST, under one deadline over everything: waiting for a connection, name look-up,
        connecting, TLS, headers and body of the answer (A6.1a, A6.4, X-F4).

        An answer whose status line came is a RESPONSE even when its body breaks off: the agent has
        decided. One that is still trickling in at the deadline is a TIMEOUT. Redirects are
        answers, cookies are forgotten, the environment's proxies are not asked.
        """
        try:
            flight = self._prepare(callback, may_send)
        except InvalidInput as error:
            refused = error.code == "CALLBACK_REFUSED"
            kind = AnswerKind.REFUSED if refused else AnswerKind.CONNECT
            return Answer(kind=kind, error=error.message)
        except Exception as error:  # noqa: BLE001 - a body that cannot be written is this task's
            return Answer(kind=AnswerKind.CONNECT, error=f"nothing to send: {_reason(error)}")
        deadline = asyncio.timeout(self._seconds)
        try:
            async with deadline:
                return await self._exchange(flight)
        except Exception as error:  # noqa: BLE001 - whatever happened, this call is over
            # Not every TimeoutError is ours: the system has time-outs, which are mere failures.
            return self._timed_out(flight) if deadline.expired() else failure(error, flight)

    def _prepare(self, callback: Callback, may_send: MaySend) -> Flight:
        route = self._routes.get(callback.url)
        if route is None:
            route = self._routes[callback.url] = self._route(callback.url)
            if len(self._routes) > 1_024:
                self._routes.pop(next(iter(self._routes)))
        body = callback_body(callback)
        headers = dict(self.options.headers) if route.trusted else {}
        headers |= {"Content-Type": "application/json", "Accept": "application/json"}
        # Asked for plainly, and inflated with a limit where a server compresses all the same.
        headers |= {"Accept-Encoding": "identity", "User-Agent": "crontask"}
        headers |= self._signer.headers(callback.fire_id, body, self._now())
        return Flight(route, body, headers, may_send)

    def _route(self, url: str) -> Route:
        target = parse_target(url)
        if url == self.options.default_callback_url:
            return Route(target, trusted=True)
        # Checked again: the list may have become shorter since the task was made.
        check_callback_url(url, self.options.allow_hosts)
        allow = AllowList.parse(self.options.allow_hosts)
        return Route(target, trusted=allow.lists(target.host))

    def _timed_out(self, flight: Flight) -> Answer:
        place = flight.route.place
        if not flight.connected:
            what = f"no connection to {place} within {self._seconds:g} s"
            return Answer(kind=AnswerKind.CONNECT, error=what)
        begun = f" (HTTP {flight.status} had begun)" if flight.status else ""
        what = f"no complete answer from {place} within {self._seconds:g} s{begun}"
        return Answer(kind=AnswerKind.TIMEOUT, error=what)

    async def tls(self) -> ssl.SSLContext:
        """The TLS settings, made once and off the loop: loading authorities takes 20 to 50 ms.
        Raises ConfigError when ``ca_file`` cannot be used."""
        if self._tls is None:
            async with self._tls_lock:
                if self._tls is None:
                    self._tls = await asyncio.to_thread(tls_context, self.options)
        return self._tls


def tls_context(options: ClientOptions) -> ssl.SSLContext:
    """Verifying TLS for HTTP/1.1, with the system's authorities and those of ``ca_file``.

    Raises ConfigError when the file cannot be read or holds no certificate; call it at start to
    learn that early.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if options.ca_file:
        try:
            context.load_verify_locations(options.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"callback.ca_file cannot be used: {error}",
                field="callback.ca_file",
                hint="give a PEM file with at least one certificate",
            ) from error
    return context


async def answer_from(
    flight: Flight, status: int, headers: Mapping[str, str], chunks: AsyncGenerator[bytes, None]
) -> Answer:
    """The answer whose head has come, with as much of its body as is wanted and comes.

    Stops reading at ``ANSWER_LIMIT``; the caller then closes the connection. ``headers`` ignore
    case.
    """
    flight.status = status
    raw, note = bytearray(), ""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                raw += chunk
                if len(raw) > ANSWER_LIMIT:
                    note = "the answer is longer than 64 KB: the rest was not read"
                    break
    except Exception as error:  # noqa: BLE001 - the status is what counts, however the body ended
        note = f"the answer broke off: {_reason(error)}"
    if 300 <= status < 400:
        note = f"redirect to {_origin(headers.get('location', ''))} not followed"
    body, cut = _plain(bytes(raw[:ANSWER_LIMIT]), headers.get("content-encoding", ""))
    return Answer(
        kind=AnswerKind.RESPONSE,
        status=status,
        body=body,
        retry_after=headers.get("retry-after", "")[:64],
        error=note or ("the answer is longer than 64 KB when inflated" if cut else ""),
    )


def _plain(raw: bytes, encoding: str) -> tuple[bytes, bool]:
    """The body inflated up to the limit, and whether there was more; unknown codings as sent."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        return raw, False
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        engine = zlib.decompressobj(window)
        try:
            return engine.decompress(raw, ANSWER_LIMIT), bool(engine.unconsumed_tail)
        except zlib.error:
            continue
    return raw, False


def _origin(location: str) -> str:
    """Where a redirect points, without what may be secret in it."""
    try:
        parts = urlsplit(location)
        return f"{parts.scheme}://{parts.hostname}"[:100] if parts.hostname else "another path"
    except ValueError:
        return "an unreadable place"


def failure(error: Exception, flight: Flight) -> Answer:
    """What it means that a call ended in ``error`` with no status line (DESIGN 3.4).

    A certificate that does not verify is TLS, a forbidden address REFUSED, anything else before
    the connection was there CONNECT; after that the request may have arrived: BROKEN.
    """
    place = flight.route.place
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AddressRefused):
            return Answer(kind=AnswerKind.REFUSED, error=str(seen))
        if isinstance(seen, NotSent):
            return Answer(kind=AnswerKind.UNSENT, error="handed back: this process was held up")
        # aiohttp's own error is of this class too, without the message.
        if isinstance(seen, ssl.SSLCertVerificationError) and hasattr(seen, "verify_message"):
            text = f"the certificate of {place} does not verify: {seen.verify_message}"
            return Answer(kind=AnswerKind.TLS, error=text)
        if isinstance(seen, socket.gaierror):
            text = f"the name of {place} cannot be resolved: {seen.strerror}"
            return Answer(kind=AnswerKind.CONNECT, error=text)
        seen = seen.__cause__ or seen.__context__
    if not flight.connected:
        text = f"cannot connect to {place}: {_reason(error)}"
        return Answer(kind=AnswerKind.CONNECT, error=text)
    text = f"the connection to {place} broke before an answer: {_reason(error)}"
    return Answer(kind=AnswerKind.BROKEN, error=text)


def _reason(error: BaseException) -> str:
    """What went wrong in a few words, from the innermost cause; no URL is in it."""
    while not isinstance(error, ConfigError):
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:200] or type(error).__name__
