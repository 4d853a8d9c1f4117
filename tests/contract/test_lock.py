"""Every lock keeps the same contract; the Redis one also when Redis is slow, lost or forgetful."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import pytest

from crontask_adapters.redis_client import connect
from crontask_adapters.redis_lock import NoLock, RedisLock
from crontask_core.errors import ConfigError
from crontask_core.events import LockUnavailable
from crontask_core.ports import Lock
from crontask_core.testing import MemoryLock, RecordingObserver, VirtualClock
from tests.services import HOST, Redis

MakeLock = Callable[[str], Lock]


class Proxy:
    """Stands between client and Redis. ``drop``: the server does what it is asked, but the answer
    is lost with the connection. ``hold``: answers are kept back."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.mode = "pass"
        self._ended = asyncio.Event()
        self._served: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._ended.set()
        await asyncio.gather(*self._served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        up_reader, up_writer = await asyncio.open_connection(HOST, self._upstream)
        pumps: list[asyncio.Task[object]] = [
            asyncio.create_task(self._requests(reader, up_writer)),
            asyncio.create_task(self._answers(up_reader, writer)),
            asyncio.create_task(self._ended.wait()),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, up_writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _requests(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> object:
        while data := await reader.read(65_536):
            to.write(data)
            await to.drain()
        return None

    async def _answers(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> object:
        while data := await reader.read(65_536):
            if self.mode == "drop":
                return None
            if self.mode == "hold":
                await asyncio.Event().wait()
            to.write(data)
            await to.drain()
        return None


class Bench:
    """Locks of several owners on one Redis, with one clock and one observer."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.observer = RecordingObserver()
        self._locks: list[RedisLock] = []

    def lock(self, url: str, owner: str, prefix: str = "crontask", budget: float = 5) -> RedisLock:
        # The budget of 0.1 s is for production; a loaded test machine may take longer.
        lock = RedisLock(
            connect(url),
            owner=owner,
            clock=self.clock,
            observer=self.observer,
            prefix=prefix,
            budget=budget,
        )
        self._locks.append(lock)
        return lock

    @property
    def losses(self) -> list[str]:
        return [e.error for e in self.observer.events if isinstance(e, LockUnavailable)]

    async def close(self) -> None:
        for lock in self._locks:
            await lock.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture(params=["memory", "redis"])
def make_lock(request: pytest.FixtureRequest, bench: Bench) -> MakeLock:
    if request.param == "memory":
        held: dict[str, tuple[str, float]] = {}
        return lambda owner: MemoryLock(held, owner, bench.clock.elapsed)
    url = request.getfixturevalue("redis_url")
    return lambda owner: bench.lock(url, owner)


@pytest.mark.requirement("A5.5")
async def test_a_key_has_one_owner_and_others_are_told_no(make_lock: MakeLock) -> None:
    a, b = make_lock("a"), make_lock("b")
    assert await a.try_acquire_many(["1:x", "2:x"]) == [True, True]
    assert await b.try_acquire_many(["1:x", "3:x", "2:x"]) == [False, True, False]


async def test_an_own_key_counts_as_acquired(make_lock: MakeLock) -> None:
    a = make_lock("a")
    assert await a.try_acquire_many(["1:x"]) == [True]
    assert await a.try_acquire_many(["1:x", "1:x"]) == [True, True]


async def test_a_released_key_can_be_taken(make_lock: MakeLock) -> None:
    a, b = make_lock("a"), make_lock("b")
    await a.try_acquire_many(["1:x", "2:x"])
    await a.release_many(["1:x"])
    assert await b.try_acquire_many(["1:x", "2:x"]) == [True, False]


async def test_a_key_of_another_is_not_released(make_lock: MakeLock) -> None:
    a, b = make_lock("a"), make_lock("b")
    await a.try_acquire_many(["1:x"])
    await b.release_many(["1:x", "never:taken"])
    assert await b.try_acquire_many(["1:x"]) == [False]


async def test_no_keys_are_no_question(make_lock: MakeLock) -> None:
    lock = make_lock("a")
    assert await lock.try_acquire_many([]) == []
    await lock.release_many([])


async def test_many_keys_are_answered_in_order(make_lock: MakeLock) -> None:
    a, b = make_lock("a"), make_lock("b")
    await a.try_acquire_many([f"{n}:x" for n in range(0, 200, 2)])
    answers = await b.try_acquire_many([f"{n}:x" for n in range(200)])
    assert answers == [False, True] * 100


async def test_no_lock_grants_everything() -> None:
    assert await NoLock().try_acquire_many(["1:x", "2:x"]) == [True, True]
    await NoLock().release_many(["1:x"])


async def test_a_key_runs_out_by_itself_within_five_seconds(
    bench: Bench, redis_server: Redis, redis_url: str
) -> None:
    await bench.lock(redis_url, "a").try_acquire_many(["1:x"])
    assert 0 < int(redis_server.ask("PTTL crontask:lock:1:x").removeprefix(":")) <= 5000


async def test_refused_keys_are_counted(bench: Bench, redis_url: str) -> None:
    a, b = bench.lock(redis_url, "a"), bench.lock(redis_url, "b")
    await a.try_acquire_many(["1:x", "2:x"])
    await b.try_acquire_many(["1:x", "2:x", "3:x"])
    assert (a.denied, b.denied) == (0, 2)


async def test_installations_that_share_a_redis_do_not_meet(bench: Bench, redis_url: str) -> None:
    a = bench.lock(redis_url, "a", prefix="crontask:one")
    b = bench.lock(redis_url, "b", prefix="crontask:two")
    await a.try_acquire_many(["1:x"])
    assert await b.try_acquire_many(["1:x"]) == [True]


@pytest.mark.requirement("A5.5")
async def test_a_lost_answer_does_not_lock_its_owner_out(
    bench: Bench, redis_server: Redis, redis_url: str
) -> None:
    async with Proxy(redis_server.port) as proxy:
        a, b = bench.lock(proxy.url, "a"), bench.lock(redis_url, "b")
        await a.try_acquire_many(["0:x"])
        proxy.mode = "drop"
        assert await a.try_acquire_many(["1:x"]) == [True]
        assert len(bench.losses) == 1
        assert redis_server.ask("EXISTS crontask:lock:1:x") == ":1"
        proxy.mode = "pass"
        bench.clock.tick(5)
        assert await a.try_acquire_many(["1:x"]) == [True]
        assert await b.try_acquire_many(["1:x"]) == [False]
        assert len(bench.losses) == 1
        await bench.close()


@pytest.mark.requirement("A5.5")
async def test_a_slow_redis_is_not_waited_for(bench: Bench, redis_server: Redis) -> None:
    async with Proxy(redis_server.port) as proxy:
        a = bench.lock(proxy.url, "a", budget=0.1)
        proxy.mode = "hold"
        assert await a.try_acquire_many(["1:x", "2:x"]) == [True, True]
        assert bench.losses == ["no answer within 100 ms"]
        await bench.close()


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(
    bench: Bench, redis_server: Redis, redis_url: str
) -> None:
    async with Proxy(redis_server.port) as proxy:
        a, b = bench.lock(proxy.url, "a", budget=0.3), bench.lock(redis_url, "b")
        await b.try_acquire_many(["2:x"])
        await a.try_acquire_many(["0:x"])
        proxy.mode = "hold"
        await a.try_acquire_many(["1:x"])
        proxy.mode = "pass"
        bench.clock.tick(5)
        assert await a.try_acquire_many(["2:x", "1:x"]) == [False, True]
        await bench.close()


@pytest.mark.requirement("A5.5")
async def test_a_lost_redis_costs_one_try_per_pause_and_work_goes_on(bench: Bench) -> None:
    own = Redis()
    with own as server:
        a, b = bench.lock(server.url, "a"), bench.lock(server.url, "b")
        await a.try_acquire_many(["1:x"])
        server.kill()
        for _ in range(10):
            assert await a.try_acquire_many(["1:x"]) == [True]
            await a.release_many(["1:x"])
        assert len(bench.losses) == 1
        bench.clock.tick(5)
        assert await a.try_acquire_many(["1:x"]) == [True]
        assert len(bench.losses) == 2
        server.start()
        bench.clock.tick(5)
        assert await a.try_acquire_many(["1:x"]) == [True]
        assert await b.try_acquire_many(["1:x"]) == [False]
        assert len(bench.losses) == 2
        await bench.close()


async def test_a_redis_that_refuses_writes_counts_as_lost(
    bench: Bench, redis_server: Redis, redis_url: str
) -> None:
    a = bench.lock(redis_url, "a")
    redis_server.ask("CONFIG SET maxmemory 1")
    try:
        assert await a.try_acquire_many(["1:x"]) == [True]
        assert bench.losses[0].startswith("OutOfMemoryError")
    finally:
        redis_server.ask("CONFIG SET maxmemory 0")


def test_a_url_that_is_not_redis_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError) as caught:
        connect("http://127.0.0.1:1/")
    assert caught.value.field == "redis.url"
    assert urlsplit(caught.value.example).scheme == "redis"
