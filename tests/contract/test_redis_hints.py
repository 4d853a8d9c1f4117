"""Nodes wake each other through Redis, and nothing is lost with it but a little time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from crontask_adapters.clock import SystemClock
from crontask_adapters.redis_client import connect
from crontask_adapters.redis_hints import RedisHints
from crontask_core.ports import Clock
from crontask_core.testing import VirtualClock
from tests.services import Redis

LONG = 20.0


class Woken:
    """Counts wake-ups and lets a test wait for the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._changed.set()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(LONG):
            while self.count < count:
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def running(hints: RedisHints, wake: Callable[[], None]) -> AsyncIterator[None]:
    task = asyncio.create_task(hints.run(wake))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await hints.close()


def node(
    url: str,
    owner: str,
    *,
    clock: Clock | None = None,
    prefix: str = "crontask",
    quiet: float = 15.0,
) -> RedisHints:
    return RedisHints(
        connect(url),
        owner=owner,
        clock=clock or SystemClock(),
        prefix=prefix,
        quiet=quiet,
        budget=5,  # 0.1 s is for production; a loaded test machine may take longer
    )


async def test_a_hint_wakes_the_others_and_not_its_sender(redis_url: str) -> None:
    a, b, c = (node(redis_url, name) for name in "abc")
    woken_a, woken_b, woken_c = Woken(), Woken(), Woken()
    async with running(a, woken_a), running(b, woken_b), running(c, woken_c):
        for woken in (woken_a, woken_b, woken_c):
            await woken.reach(1)  # connected
        assert await a.publish()
        await woken_b.reach(2)
        await woken_c.reach(2)
        assert await b.publish()
        await woken_a.reach(2)
        assert woken_a.count == 2


async def test_a_burst_asked_for_from_plain_code_goes_out_as_few_hints(redis_url: str) -> None:
    a, b = node(redis_url, "a"), node(redis_url, "b")
    woken = Woken()
    async with running(a, Woken()), running(b, woken):
        await woken.reach(1)
        for _ in range(1000):
            a.send()
        await woken.reach(2)
        a.send()
        await woken.reach(3)
        assert woken.count == 3


async def test_other_installations_are_not_woken(redis_url: str) -> None:
    a, b = node(redis_url, "a", prefix="one"), node(redis_url, "b", prefix="two")
    other = node(redis_url, "c", prefix="two")
    woken = Woken()
    async with running(b, woken):
        await woken.reach(1)
        assert await a.publish()
        assert await other.publish()
        await woken.reach(2)
        assert woken.count == 2
    await a.close()
    await other.close()


async def test_a_restarted_redis_is_found_again_and_wakes_for_what_was_missed() -> None:
    with Redis() as server:
        a, b = node(server.url, "a"), node(server.url, "b")
        woken = Woken()
        async with running(b, woken):
            await woken.reach(1)
            server.kill()
            assert not await a.publish()
            server.start()
            await woken.reach(2)
        await a.close()


async def test_a_frozen_redis_is_noticed_by_its_silence() -> None:
    with Redis() as server:
        clock, woken = VirtualClock(), Woken()
        async with running(node(server.url, "b", clock=clock, quiet=0.1), woken):
            await woken.reach(1)
            server.freeze()
            assert await back_off(clock) == 0.5
            server.thaw()
            clock.tick(0.5)
            await woken.reach(2)


async def test_without_redis_sending_is_harmless_and_waits_grow() -> None:
    with Redis() as server:
        url = server.url
    clock, woken = VirtualClock(), Woken()
    hints = node(url, "a", clock=clock)
    async with running(hints, woken):
        assert not await hints.publish()
        for wait in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            assert await back_off(clock) == wait
            clock.tick(wait)
            await clock.settle()
    assert woken.count == 0


async def back_off(clock: VirtualClock) -> float:
    """How long the listener has decided to wait, once it has."""
    async with asyncio.timeout(LONG):
        while not clock.sleepers():
            await SystemClock().sleep(0.005)
    return clock.sleepers()[0] - clock.elapsed()


@pytest.mark.requirement("A5.5")
async def test_a_failed_hint_is_not_tried_again_at_once() -> None:
    with Redis() as server:
        clock = VirtualClock()
        hints = node(server.url, "a", clock=clock)
        server.kill()
        assert not await hints.publish()
        server.start()
        assert not await hints.publish()
        clock.tick(5)
        assert await hints.publish()
        await hints.close()
