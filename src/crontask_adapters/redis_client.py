"""A Redis client that never makes anybody wait: a budget per question, and a pause after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from crontask_core.errors import ConfigError
from crontask_core.ports import Clock

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["BUDGET", "PAUSE", "Guard", "connect"]

BUDGET = 0.1
"""Seconds a question may take, connecting included, before work goes on without Redis."""

PAUSE = 5.0
"""Seconds without a further question after one that failed."""

T = TypeVar("T")


def connect(url: str) -> Redis:
    """A client for ``redis://``, ``rediss://`` or ``unix://``; connects when first used.

    It repeats nothing by itself: with a repeated SET NX whose first answer was lost, our own key
    would look like another's. Raises ConfigError when the extra ``redis`` is not installed or the
    URL cannot be read.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.maint_notifications import MaintNotificationsConfig
    except ModuleNotFoundError:
        raise ConfigError(
            "redis.url is set, but the Redis client is not installed",
            field="redis.url",
            hint="install the extra: pip install 'crontask[redis]'",
        ) from None
    try:
        return Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=2,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
    except ValueError:
        raise ConfigError(
            "it is not a Redis URL", field="redis.url", example="redis://127.0.0.1:6379/0"
        ) from None


class Guard:
    """Asks Redis within a budget. After a failure nothing is asked for a while, so that a lost
    Redis costs one wait per pause, not one per question."""

    def __init__(self, clock: Clock, budget: float = BUDGET, pause: float = PAUSE) -> None:
        self._clock = clock
        self._budget = budget
        self._pause = pause
        self._closed_until = 0.0

    @property
    def open(self) -> bool:
        """Whether the next question would be asked."""
        return self._clock.elapsed() >= self._closed_until

    async def ask(self, call: Callable[[], Awaitable[T]]) -> tuple[T | None, str]:
        """(answer, "") or (None, what went wrong); (None, "") when nothing was asked."""
        from redis.exceptions import RedisError

        if not self.open:
            return None, ""
        try:
            async with asyncio.timeout(self._budget):
                return await call(), ""
        except TimeoutError:
            error = f"no answer within {self._budget * 1000:.0f} ms"
        except (RedisError, OSError) as lost:
            error = f"{type(lost).__name__}: {lost}"[:200]
        self._closed_until = self._clock.elapsed() + self._pause
        return None, error
