"""A Redis client that never makes anybody wait: a budget per question, and a pause after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from crontask_core.errors import ConfigError
from crontask_core.ports import Clock

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["BUDGET", "PAUSE", "Guard", "connect", "greet"]

BUDGET = 0.1
"""Seconds a question may take, connecting included, before work goes on without Redis."""

PAUSE = 5.0
"""Seconds without a further question after one that failed."""

_FIRST_ANSWER = 2.0
"""Seconds the first question of a process may take: nobody waits for a fire yet."""

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


async def greet(client: Redis, channel: str) -> str:
    """Whether hints will get through, asked once at start by sending one on ``channel``.

    "" when they will; what is wrong for now, when Redis cannot be reached: work goes on without it.
    Raises ConfigError when waiting cannot help: a wrong password or database, missing rights, or
    something that is not Redis.
    """
    from redis import exceptions

    for_now = (exceptions.MasterDownError, exceptions.TryAgainError, exceptions.ClusterDownError)
    try:
        async with asyncio.timeout(_FIRST_ANSWER):
            await client.publish(channel, b"")
        return ""
    except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
        raise _refused(error) from None
    except for_now as error:
        return f"{type(error).__name__}: {error}"[:200]
    except exceptions.ResponseError as error:
        raise _refused(error) from None
    except (exceptions.RedisError, OSError, TimeoutError) as error:
        told = await _first_words(client)
        if told and not told.startswith((b"+", b"-", b"$", b":")):
            raise ConfigError(
                f"what answers at the address in redis.url is not Redis: it says {_shown(told)}",
                field="redis.url",
                hint="Correct host and port, or leave redis.url out: crontask works without it.",
                example="redis://127.0.0.1:6379/0",
            ) from None
        return f"{type(error).__name__}: {error}"[:200]


def _refused(error: Exception) -> ConfigError:
    return ConfigError(
        f"Redis refuses us: {error}"[:300],
        field="redis.url",
        hint="Correct user, password and database number in redis.url: "
        "redis://USER:PASSWORD@HOST:6379/0. The user needs rights on channels and keys that begin "
        "with crontask:",
    )


async def _first_words(client: Redis) -> bytes:
    """What the other side says to a plain PING; b"" when it says nothing or cannot be asked."""
    from redis.asyncio import Connection

    pool = client.connection_pool
    if pool.connection_class is not Connection:  # a socket file, or TLS
        return b""
    host = pool.connection_kwargs.get("host", "localhost")
    port = pool.connection_kwargs.get("port", 6379)
    try:
        async with asyncio.timeout(_FIRST_ANSWER):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"PING\r\n")
                return await reader.read(64)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def _shown(raw: bytes) -> str:
    text = raw.decode("ascii", "replace")
    return repr("".join(c if c.isascii() and c.isprintable() else " " for c in text).strip()[:40])


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
