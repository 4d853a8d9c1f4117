"""Wake-up hints between nodes: a task was created elsewhere and may be due soon.

A hint carries nothing and guarantees nothing: nodes look at the store every
``scheduler.poll_interval`` anyway. A lost Redis costs at most that much time (DESIGN 3.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crontask_adapters.redis_client import BUDGET, Guard, greet
from crontask_core.ports import Clock

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["RedisHints"]

_QUIET = 15.0
_LONGEST = 30.0


class RedisHints:
    """Sends and receives hints on one channel.

    ``owner`` marks our own hints, which are not heard again. ``prefix`` keeps installations apart.
    ``quiet`` seconds without a word are followed by a ping; a Redis that does not answer it within
    the same time is taken for lost.
    """

    def __init__(
        self,
        client: Redis,
        *,
        owner: str,
        clock: Clock,
        prefix: str = "crontask",
        quiet: float = _QUIET,
        budget: float = BUDGET,
    ) -> None:
        self._client = client
        self._owner = owner.encode()
        self._clock = clock
        self._channel = f"{prefix}:hints"
        self._quiet = quiet
        self._guard = Guard(clock, budget)
        self._wanted = asyncio.Event()
        self._sending = False

    def send(self) -> None:
        """Ask for a hint to go out soon; many in a burst become one. ``run`` sends it."""
        self._wanted.set()

    async def check(self) -> str:
        """``redis_client.greet`` on our channel: "" or what is wrong for now; else ConfigError."""
        return await greet(self._client, self._channel)

    async def flush(self) -> None:
        """Send what ``send`` asked for and what has not gone out, before the process ends."""
        if self._wanted.is_set() or self._sending:
            self._wanted.clear()
            await self.publish()

    async def publish(self) -> bool:
        """Send a hint now. False when it could not be sent; never raises for a lost Redis."""
        heard, _ = await self._guard.ask(self._publish)
        return heard is not None

    async def run(self, wake: Callable[[], None]) -> None:
        """Send what ``send`` asks for and call ``wake`` for each hint of others, until cancelled.

        ``wake`` is also called after each (re)connect: hints may have been missed before it.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_wanted())
            group.create_task(self._listen(wake))

    async def close(self) -> None:
        await self._client.aclose()

    async def _publish(self) -> int:
        return int(await self._client.publish(self._channel, self._owner))

    async def _send_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._sending = True
            await self.publish()
            self._sending = False

    async def _listen(self, wake: Callable[[], None]) -> None:
        from redis.exceptions import RedisError

        failures = 0

        def connected() -> None:
            nonlocal failures
            failures = 0
            wake()

        while True:
            try:
                async with self._client.pubsub() as channel:
                    await channel.subscribe(self._channel)
                    await self._hear(channel, connected, wake)
            except (RedisError, OSError, TimeoutError):
                failures += 1
                await self._clock.sleep(min(0.25 * 2 ** min(failures, 10), _LONGEST))

    async def _hear(
        self, channel: Any, connected: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        asked = False
        while True:
            message = await channel.get_message(timeout=self._quiet)
            if message is None:
                if asked:
                    raise TimeoutError
                await channel.ping()
                asked = True
                continue
            asked = False
            if message["type"] == "subscribe":
                connected()
            elif message["type"] == "message" and message["data"] != self._owner:
                wake()
