"""The lock that saves work where the database cannot skip locked rows (DESIGN 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crontask_adapters.redis_client import BUDGET, PAUSE, Guard
from crontask_core.events import LockUnavailable
from crontask_core.ports import Clock, Observer

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["NoLock", "RedisLock"]

TTL_MS = 5_000

# Ours only: a key that ran out and was taken by another stays.
_RELEASE = """
for _, key in ipairs(KEYS) do
  if redis.call('get', key) == ARGV[1] then redis.call('del', key) end
end
"""


class NoLock:
    """``ports.Lock`` without a lock: everything is granted, the database decides."""

    async def try_acquire_many(self, keys: Sequence[str]) -> list[bool]:
        return [True] * len(keys)

    async def release_many(self, keys: Sequence[str]) -> None:
        return None


class RedisLock:
    """``ports.Lock`` on one Redis: an economy, never a guarantee (`A5.5`).

    ``owner`` is unique per process start. ``prefix`` keeps installations that share a Redis apart.
    A key lives ``ttl_ms``; our own key counts as acquired, so an answer lost on the way does no
    harm. Slow (over ``budget`` seconds) or lost: every answer is True, a LockUnavailable event
    says so, and Redis is left alone for ``pause`` seconds. ``denied`` counts keys others held.
    """

    def __init__(
        self,
        client: Redis,
        *,
        owner: str,
        clock: Clock,
        observer: Observer,
        prefix: str = "crontask",
        ttl_ms: int = TTL_MS,
        budget: float = BUDGET,
        pause: float = PAUSE,
    ) -> None:
        self._client = client
        self._owner = owner.encode()
        self._observer = observer
        self._prefix = prefix
        self._ttl_ms = ttl_ms
        self._guard = Guard(clock, budget, pause)
        self.denied = 0

    async def try_acquire_many(self, keys: Sequence[str]) -> list[bool]:
        """One round trip for all keys; every key is asked for on its own."""
        if not keys:
            return []
        replies, error = await self._guard.ask(lambda: self._set_and_get(keys))
        if replies is None:
            self._lost(error)
            return [True] * len(keys)
        answers = [
            bool(made) or holder == self._owner
            for made, holder in zip(replies[::2], replies[1::2], strict=True)
        ]
        self.denied += answers.count(False)
        return answers

    async def release_many(self, keys: Sequence[str]) -> None:
        """Free what is ours, atomically per call; what cannot be freed runs out by itself."""
        if keys:
            _, error = await self._guard.ask(lambda: self._release(keys))
            self._lost(error)

    async def close(self) -> None:
        await self._client.aclose()

    async def _set_and_get(self, keys: Sequence[str]) -> list[Any]:
        # SET with NX and GET in one needs Redis 7; two commands work everywhere.
        async with self._client.pipeline(transaction=False) as pipe:
            for name in self._names(keys):
                pipe.set(name, self._owner, nx=True, px=self._ttl_ms)
                pipe.get(name)
            return await pipe.execute()

    async def _release(self, keys: Sequence[str]) -> None:
        names = self._names(keys)
        await self._client.eval(_RELEASE, len(names), *names, self._owner)

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._prefix}:lock:{key}" for key in keys]

    def _lost(self, error: str) -> None:
        if error:
            self._observer.on(LockUnavailable(error=error))
