"""Time. The only module that reads a clock or waits (DESIGN 3.9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

__all__ = ["SystemClock", "boottime", "utcnow"]

# Linux's CLOCK_MONOTONIC stands still while the machine sleeps; elsewhere it goes on.
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_SLICE = 2.0
"""Longest single timer in seconds: timers of the event loop do not count a machine's sleep."""


def utcnow() -> datetime:
    """The host's wall clock as aware UTC. For log lines and certificates, never for decisions."""
    return datetime.now(UTC)


def boottime() -> float:
    """Seconds since the machine started, its sleep included; never steps."""
    return time.clock_gettime(_BOOTTIME)


class SystemClock:
    """``ports.Clock`` on the database's time (DESIGN 3.9).

    ``now()`` is the last database time taken by ``observe`` plus the elapsed time since. Until the
    first one it is the host's wall clock as read at construction, plus elapsed time: a wall clock
    that is set later changes nothing. From the first one on, no value handed out is smaller than
    one before it: when the database's clock was set back, ``now()`` stands still until that time
    is reached again. What was handed out before it does not bind: a host an hour ahead would
    otherwise stop the clock for an hour.

    ``wall`` and ``elapsed`` are replaced in tests. One object serves one event loop and the threads
    it starts; it keeps no other state.
    """

    def __init__(
        self,
        wall: Callable[[], datetime] = utcnow,
        elapsed: Callable[[], float] = boottime,
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._origin = elapsed()
        self._base = wall()
        self._observed = False
        self._latest: datetime | None = None
        self._offset = timedelta(0)

    def now(self) -> datetime:
        """Aware UTC, microseconds; never backwards."""
        value = self._at(self._elapsed())
        if self._latest is None or value > self._latest:
            self._latest = value
        return self._latest

    def elapsed(self) -> float:
        """Seconds since some fixed point, a machine's sleep included."""
        return self._elapsed()

    @property
    def offset(self) -> timedelta:
        """Database clock minus the host's wall clock, at the last ``observe``; zero before one."""
        return self._offset

    def observe(self, database_now: datetime, sent: float) -> timedelta:
        """Take ``database_now``, which was asked for at ``elapsed()`` = ``sent``.

        The database read its clock at some instant between ``sent`` and now. While the expected
        time fits into that span nothing changes and the answer is zero; otherwise the clock moves
        by the distance to the span, and that distance is the answer (positive: the database is
        ahead). A slow answer is therefore never taken for a jump. The first observation has nothing
        to be compared with: it answers zero.
        """
        received = self._elapsed()
        middle = database_now + timedelta(seconds=max(received - sent, 0.0) / 2)
        self._offset = middle - self._wall()
        if not self._observed:
            self._observed = True
            self._latest = None
            self._origin, self._base = received, middle
            return timedelta(0)
        ahead = database_now - self._at(received)
        behind = database_now - self._at(sent)
        # Not to the middle: the way there and back takes a different time at every question.
        moved = ahead if ahead > timedelta(0) else min(behind, timedelta(0))
        self._base, self._origin = self._at(received) + moved, received
        return moved

    async def sleep(self, seconds: float) -> None:
        """Return once ``seconds`` of elapsed time are over, a machine's sleep included."""
        until = self._elapsed() + seconds
        left = seconds
        while True:
            await asyncio.sleep(min(max(left, 0.0), _SLICE))
            left = until - self._elapsed()
            if left <= 0:
                return

    def _at(self, elapsed: float) -> datetime:
        return self._base + timedelta(seconds=elapsed - self._origin)
