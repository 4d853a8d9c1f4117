"""The loops around the batch side's passes, and its graceful stop (DESIGN 7, B9).

A role of its own in the processes that fire tasks: its own slots, its own port for gRPC health.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import attrs

from crontask_core.batch import Drainer
from crontask_core.batch_model import BatchKey
from crontask_core.errors import CrontaskError
from crontask_core.events import PassFailed
from crontask_core.ports import Clock, Observer

if TYPE_CHECKING:
    from crontask_adapters.batch_wiring import Batch
    from crontask_server.batch_health import GrpcHealth
    from crontask_server.presence import Presence
    from crontask_server.runtime import Runtime

__all__ = ["BatchRuntime", "WithBatch", "with_batch"]

_BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)
_UPKEEP_EVERY = 30.0
_SHORT = 0.02
_TO_WRITE = 5.0
"""Seconds for the last writes, beyond the longest call that is under way."""
T = TypeVar("T")
log = logging.getLogger("crontask.batch")


@attrs.define
class BatchRuntime:
    """Runs one node's batch side. ``run()`` returns after ``stop()``.

    One loop acquires; it sleeps until the next tick, ``poll`` at most, or until a wake-up.
    ``slots`` workers make calls; one task writes what is over, all that waits in one transaction.
    """

    drainer: Drainer
    clock: Clock
    observer: Observer
    poll: float = 1.0
    _wake: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _over: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _stop: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _now: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _started: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _rounds: asyncio.Queue[BatchKey] = attrs.field(factory=asyncio.Queue, init=False)
    _until: datetime | None = attrs.field(default=None, init=False)
    _ages: dict[str, float] = attrs.field(factory=dict, init=False)
    _failures: dict[str, int] = attrs.field(factory=dict, init=False)

    def stop(self) -> None:
        """Stop gracefully: no new run, calls under way end within their time-out (B9)."""
        self._stop.set()

    def stop_now(self) -> None:
        """Stop at once: what is under way is taken over when its lease ends."""
        self._stop.set()
        self._now.set()

    async def started(self) -> None:
        """Return once the leases are there and the loops run."""
        await self._started.wait()

    def loop_ages(self) -> dict[str, float]:
        """Seconds since the loop that acquires last made a good pass."""
        at = self.clock.elapsed()
        return {name: at - last for name, last in self._ages.items() if name == "batch"}

    def healthy(self) -> bool:
        """Whether ticks are looked for, and this node does not stop."""
        if not self._started.is_set() or self._stop.is_set():
            return False
        return all(age < max(15.0, 3 * self.poll) for age in self.loop_ages().values())

    # -- life ----------------------------------------------------------------------------------
    async def run(self) -> None:
        """Make the leases, then acquire, call and write until stopped. Raises only before the
        first pass."""
        drainer = self.drainer
        drainer.on_ready = self._hand_out
        drainer.on_over = self._over.set
        drainer.on_later = self._later
        await drainer.prepare()
        self._ages["batch"] = self.clock.elapsed()
        loops = [self._acquire_loop, self._settle_loop, self._upkeep_loop]
        loops += [self._work] * drainer.slots
        tasks = [asyncio.create_task(loop()) for loop in loops]
        self._started.set()
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self) -> None:
        """Wait for the calls under way, each bounded by its own time-out, and write their ends."""
        self.drainer.stopping = True
        longest = max((job.timeout.total_seconds() for job in self.drainer.jobs), default=0.0)
        until = self.clock.elapsed() + longest + _TO_WRITE
        while self.drainer.busy and not self._now.is_set():
            if self.clock.elapsed() > until:
                break
            await self._wait(self._now, _SHORT)

    # -- loops ---------------------------------------------------------------------------------
    async def _acquire_loop(self) -> None:
        while True:
            self._wake.clear()
            self._until = None
            rest = await self._attempt("batch", lambda: self.drainer.acquire(self.poll))
            if rest is not None:
                self._until = _later_than(self.clock, rest)
                await self._wait(self._wake, max(rest, _SHORT / 4))

    async def _settle_loop(self) -> None:
        while True:
            await self._over.wait()
            self._over.clear()
            if await self._attempt("batch settle", self.drainer.settle):
                # Slots are free: what waited for one may be acquired now.
                self._wake.set()
            if self.drainer.unwritten:
                self._over.set()

    async def _upkeep_loop(self) -> None:
        while True:
            await self.clock.sleep(_UPKEEP_EVERY)
            await self._attempt("batch upkeep", self.drainer.prepare)

    async def _work(self) -> None:
        while True:
            key = await self._rounds.get()
            try:
                await self.drainer.step(key)
            except Exception as error:  # noqa: BLE001 - a worker outlives any one round
                self._failed("batch call", error)

    # -- inside --------------------------------------------------------------------------------
    def _hand_out(self) -> None:
        while (key := self.drainer.next_round()) is not None:
            self._rounds.put_nowait(key)

    def _later(self, at: datetime) -> None:
        if self._until is None or at < self._until:
            self._wake.set()

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return when the event is set, or after so many seconds of this runtime's clock."""
        waits = [
            asyncio.ensure_future(event.wait()),
            asyncio.ensure_future(self.clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _attempt(self, loop: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """One pass. What it raises is told to the observer and never ends the loop."""
        try:
            done = await step()
        except Exception as error:  # noqa: BLE001 - one bad pass must not end the loop
            failures = self._failures[loop] = self._failures.get(loop, 0) + 1
            self._failed(loop, error)
            await self.clock.sleep(_BACKOFF[min(failures, len(_BACKOFF)) - 1])
            return None
        self._failures.pop(loop, None)
        self._ages[loop] = self.clock.elapsed()
        return done

    def _failed(self, loop: str, error: Exception) -> None:
        self.observer.on(
            PassFailed(
                loop=loop,
                error=error.line() if isinstance(error, CrontaskError) else repr(error),
                retryable=isinstance(error, CrontaskError) and error.retryable,
            )
        )


def _later_than(clock: Clock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


# -- beside the agent side -------------------------------------------------------------------------
@attrs.define
class WithBatch:
    """A process's agent side and batch side under one life: they start, stop and fail together.

    gRPC health on ``batch.grpc_health_port`` says SERVING while both are healthy.
    """

    inner: Runtime | Presence
    batch: Batch
    side: BatchRuntime
    _health: GrpcHealth | None = attrs.field(default=None, init=False)

    def stop(self) -> None:
        self.inner.stop()
        self.side.stop()

    def stop_now(self) -> None:
        self.inner.stop_now()
        self.side.stop_now()

    async def started(self) -> None:
        await self.inner.started()
        await self.side.started()

    def healthy(self) -> bool:
        return self.inner.healthy() and self.side.healthy()

    async def run(self) -> None:
        """Run both until stopped. Raises what either raises before its first pass, and Unavailable
        (PORT_IN_USE) for the health port."""
        self._health = await _health(self.batch)
        sides = {asyncio.create_task(self.inner.run()), asyncio.create_task(self.side.run())}
        telling = asyncio.create_task(self._tell())
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await asyncio.wait(sides)
        finally:
            for task in (telling, *sides):
                task.cancel()
            await asyncio.gather(telling, *sides, return_exceptions=True)
            if self._health is not None:
                await self._health.close()
        for side in sides:
            side.result()

    async def _tell(self) -> None:
        await self.started()
        while self._health is not None:
            await self._health.tell(self.healthy())
            await self.side.clock.sleep(0.5)


async def _health(batch: Batch) -> GrpcHealth | None:
    settings = batch.app.settings
    port = settings.batch.grpc_health_port
    if not port:
        return None
    try:
        from crontask_server.batch_health import GrpcHealth
    except ModuleNotFoundError as error:
        log.warning(
            "no gRPC health on port %s: %s is not installed; install the extra (pip install "
            "'crontask[grpc]') or set batch.grpc_health_port to 0",
            port,
            error.name,
        )
        return None
    return await GrpcHealth.open(settings.server.host, port)


def with_batch(runtime: Runtime | Presence, batch: Batch) -> WithBatch:
    """The runtime with the batch side beside it."""
    poll = batch.app.settings.scheduler.poll_interval.total_seconds()
    app = batch.app
    return WithBatch(runtime, batch, BatchRuntime(batch.drainer, app.clock, app.observer, poll))
