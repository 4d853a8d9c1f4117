"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import attrs

__all__ = ["START", "VirtualClock"]

START = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)
"""Where a virtual clock starts: Monday 2026-03-02, 09:00 in Shanghai."""

_BLIND_TURNS = 50
_TURNS = 1_000_000


class _Turn:
    """Awaiting one lets every other runnable task of the loop have a turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@attrs.define(order=True)
class _Sleeper:
    at: timedelta
    number: int
    future: asyncio.Future[None] = attrs.field(order=False)


class VirtualClock:
    """A ``Clock`` and the database's clock of a simulation, on one line of elapsed time.

    ``now()`` and ``elapsed()`` are the process's view (the ``Clock`` port); ``database_now()`` is
    what a store reads, and may be set off against it with ``jump``. Time moves by ``tick`` (at
    once, from synchronous code) or ``advance`` (sleeper by sleeper, each run until it waits again).
    """

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = timedelta(0)
        self._offset = timedelta(0)
        self._seen = start
        self._seen_at = timedelta(0)
        self._last = start
        self._sleepers: list[_Sleeper] = []
        self._slept = 0

    # -- the port ------------------------------------------------------------------------------
    def now(self) -> datetime:
        """Aware UTC: the last database time observed plus elapsed time; never backwards."""
        self._last = max(self._last, self._seen + (self._elapsed - self._seen_at))
        return self._last

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._elapsed.total_seconds()

    def observe(self, database_now: datetime, sent: float) -> timedelta:
        """Take a database time; returns how far it is from what was expected at ``sent``."""
        at = timedelta(seconds=sent)
        step = database_now - (self._seen + (at - self._seen_at))
        self._seen, self._seen_at = database_now, at
        return step

    async def sleep(self, seconds: float) -> None:
        """Return once time has been moved by ``seconds``; zero or less gives up one turn."""
        if seconds <= 0:
            await _Turn()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slept += 1
        sleeper = _Sleeper(self._elapsed + timedelta(seconds=seconds), self._slept, future)
        heapq.heappush(self._sleepers, sleeper)
        await future

    # -- for tests -----------------------------------------------------------------------------
    def database_now(self) -> datetime:
        """What a store's ``now`` reads: the start, elapsed time, and all jumps."""
        return self._start + self._elapsed + self._offset

    def jump(self, seconds: float) -> None:
        """Set the database's clock forward, or back when negative. Elapsed time stays."""
        self._offset += timedelta(seconds=seconds)

    def tick(self, seconds: float) -> datetime:
        """Move elapsed time at once; whoever is due wakes, in order, when the loop next runs.
        Returns the database's time."""
        self._elapsed += timedelta(seconds=seconds)
        self._wake()
        return self.database_now()

    async def advance(self, seconds: float) -> datetime:
        """Move elapsed time, stopping at each sleeper's instant until it has run and waits again.
        Work in threads is not waited for. Returns the database's time."""
        target = self._elapsed + timedelta(seconds=seconds)
        await self.settle()
        while (due := self._next()) is not None and due <= target:
            self._elapsed = max(self._elapsed, due)
            self._wake()
            await self.settle()
        self._elapsed = max(self._elapsed, target)
        await self.settle()
        return self.database_now()

    async def settle(self) -> None:
        """Let everything that can run, run, until all that is left waits. Raises RuntimeError when
        something never waits."""
        # asyncio keeps what is runnable in ``_ready``; other loops get a fixed number of turns.
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        for turn in range(_TURNS):
            if (turn >= _BLIND_TURNS) if ready is None else (turn and not ready):
                return
            await _Turn()
        raise RuntimeError(f"still busy after {_TURNS} turns: something runs without waiting")

    def sleepers(self) -> list[float]:
        """When each sleeper will wake, in seconds of elapsed time, the next one first."""
        waiting = sorted(s for s in self._sleepers if not s.future.done())
        return [sleeper.at.total_seconds() for sleeper in waiting]

    def _next(self) -> timedelta | None:
        while self._sleepers and self._sleepers[0].future.done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0].at if self._sleepers else None

    def _wake(self) -> None:
        while (at := self._next()) is not None and at <= self._elapsed:
            heapq.heappop(self._sleepers).future.set_result(None)
