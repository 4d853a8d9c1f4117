"""The loops around the engine's passes, wake-ups, and the graceful stop (A5.2).

Needs no MCP and no HTTP server: an embedding service runs it as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import attrs

from crontask_core.engine import Engine, Send
from crontask_core.errors import CrontaskError
from crontask_core.events import PassFailed
from crontask_core.ports import Horizon

if TYPE_CHECKING:
    from crontask_adapters.wiring import App

__all__ = ["Runtime"]

_SHORT = 0.02
_GATHER = 0.005
_BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)
_PRUNE_EVERY = 86_400.0
_DATA_EVERY = 10.0
T = TypeVar("T")


@attrs.define
class Runtime:
    """Runs one node. ``run()`` returns after ``stop()``; nothing begun is lost either way.

    One loop claims, sweeps and begins; it sleeps until the smallest of the next due task, the next
    action and ``scheduler.poll_interval``, or until ``wake``. ``executor.concurrency`` workers
    deliver; one task settles whatever is finished, in one transaction at a time.
    """

    app: App
    _wake: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _outcome: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _room: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _stop: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _now: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _sends: asyncio.Queue[Send] = attrs.field(factory=asyncio.Queue, init=False)
    _until: datetime | None = attrs.field(default=None, init=False)
    _looked: float = attrs.field(default=0.0, init=False)
    _ages: dict[str, float] = attrs.field(factory=dict, init=False)
    _failures: dict[str, int] = attrs.field(factory=dict, init=False)
    _started: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)

    @property
    def engine(self) -> Engine:
        if self.app.engine is None:
            raise ValueError("this process has no scheduler role")
        return self.app.engine

    def wake(self, at: datetime) -> None:
        """Something may be due at ``at``: look again if that is sooner than the loop would."""
        if self._until is None or at < self._until:
            self._wake.set()

    def stop(self) -> None:
        """Stop gracefully: no new claims, running calls finish, outcomes are written."""
        self._stop.set()

    def stop_now(self) -> None:
        """Stop at once: what was sent and not answered is left to take-over."""
        self._stop.set()
        self._now.set()

    async def started(self) -> None:
        """Return once this node is registered and its loops run."""
        await self._started.wait()

    def loop_ages(self) -> dict[str, float]:
        """Seconds since each loop last finished a good pass; loops that only react are left out."""
        at = self.app.clock.elapsed()
        return {n: at - last for n, last in self._ages.items() if n in ("fire", "heartbeat")}

    def healthy(self) -> bool:
        """Whether every loop made a good pass lately."""
        limit = max(15.0, 3 * self._poll)
        return self._started.is_set() and all(age < limit for age in self.loop_ages().values())

    @property
    def _poll(self) -> float:
        return self.app.settings.scheduler.poll_interval.total_seconds()

    # -- life ----------------------------------------------------------------------------------
    async def run(self) -> None:
        """Register, sweep, then fire until stopped (A5.2). Raises only before the first pass."""
        engine = self.engine
        engine.on_ready = self._hand_out
        engine.on_outcome = self._outcome.set
        engine.on_later = self.wake
        self.app.wakers.append(self.wake)
        await engine.heartbeat()
        await engine.recompute()
        await engine.sweep()
        tasks = [asyncio.create_task(self._deliveries()) for _ in range(engine.concurrency)]
        loops = {
            "fire": self._fire_loop,
            "settle": self._settle_loop,
            "heartbeat": self._heartbeat_loop,
            "watch": self._watch_loop,
            "prune": self._prune_loop,
            "recompute": self._recompute_loop,
        }
        tasks += [asyncio.create_task(loop(), name=name) for name, loop in loops.items()]
        self._started.set()
        try:
            await self._stop.wait()
            await self._drain()
        finally:
            self.app.wakers.remove(self.wake)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self) -> None:
        """Wait for running calls, write their outcomes, hand back the unsent, retire this node."""
        self.engine.stopping = True
        limit = self.app.settings.executor.stop_timeout.total_seconds()
        waiting = asyncio.create_task(self._drained())
        impatient = asyncio.create_task(self._now.wait())
        await asyncio.wait({waiting, impatient}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        impatient.cancel()
        await asyncio.gather(waiting, impatient, return_exceptions=True)
        if self._now.is_set():
            return
        try:
            await self.engine.settle()
            await self.engine.leave()
        except CrontaskError as error:
            self._failed("stop", error)

    async def _drained(self) -> None:
        while self.engine.in_hand or self.engine.unsettled:
            await self.app.clock.sleep(_SHORT)

    # -- loops ---------------------------------------------------------------------------------
    async def _fire_loop(self) -> None:
        while True:
            self._wake.clear()
            self._until = None
            idle = await self._attempt("fire", self._fire_pass)
            if idle is not None:
                await self._rest(idle)

    async def _fire_pass(self) -> Horizon | None:
        """Claim, sweep and begin what is due; the horizon to sleep by when there was nothing."""
        engine = self.engine
        horizon = await engine.horizon()
        self._looked = self.app.clock.elapsed()
        did = 0
        if horizon.next_due is not None and horizon.next_due <= horizon.now:
            did += await engine.claim()
        if horizon.next_action is not None and horizon.next_action <= horizon.now:
            did += await engine.sweep()
        did += await engine.begin()
        return None if did else horizon

    async def _rest(self, horizon: Horizon) -> None:
        # In the database's time throughout: when its clock was set back, ours stands still.
        until = horizon.now + timedelta(seconds=self._poll)
        for at in (horizon.next_due, horizon.next_action):
            if at is not None:
                until = min(until, max(at, horizon.now))
        self._until = until
        gone = self.app.clock.elapsed() - self._looked
        # Something is due that this node could not take: others hold it, or it pauses.
        least = _SHORT if until <= horizon.now else 0.0
        await self._wait(self._wake, max(least, (until - horizon.now).total_seconds() - gone))

    async def _settle_loop(self) -> None:
        busy = False
        while True:
            await self._outcome.wait()
            if busy and not self.engine.congested:
                # In a burst a moment's patience halves the number of transactions.
                await self.app.clock.sleep(_GATHER)
            self._outcome.clear()
            done = await self._attempt("settle", self.engine.settle)
            busy = (done or 0) >= self.engine.concurrency // 2
            self._room.set()
            if self.engine.unsettled:
                self._outcome.set()
            if self.engine.waiting:
                self._wake.set()

    async def _heartbeat_loop(self) -> None:
        while True:
            await self.app.clock.sleep(self.engine.heartbeat_every)
            await self._attempt("heartbeat", self.engine.heartbeat)
            if self.engine.waiting:
                # Without a fresh heartbeat nothing was begun: what waits may go now.
                self._wake.set()

    async def _watch_loop(self) -> None:
        """Not in one loop with the heartbeat: a slow look at the others would stop our own."""
        while True:
            await self.app.clock.sleep(self.engine.heartbeat_every)
            if await self._attempt("watch", self.engine.watch):
                self._wake.set()

    async def _prune_loop(self) -> None:
        while True:
            await self.app.clock.sleep(_PRUNE_EVERY)
            await self._attempt("prune", self.app.prune)

    async def _recompute_loop(self) -> None:
        """Newer zone data or cron rules: page after page, then a look now and then (X-S8)."""
        while True:
            if not await self._attempt("recompute", self.engine.recompute):
                await self.app.clock.sleep(_DATA_EVERY)

    async def _deliveries(self) -> None:
        while True:
            send = await self._sends.get()
            while self.engine.congested:
                self._room.clear()
                await self._room.wait()
            try:
                await self.engine.deliver(send)
            except Exception as error:  # noqa: BLE001 - a worker outlives any one call
                self._failed("deliver", error)

    # -- inside --------------------------------------------------------------------------------
    def _hand_out(self) -> None:
        while (send := self.engine.next_send()) is not None:
            self._sends.put_nowait(send)

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    async def _attempt(self, loop: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """One pass. What it raises is told to the observer and never ends the loop."""
        try:
            done = await step()
        except Exception as error:  # noqa: BLE001 - one bad pass must not end the loop
            failures = self._failures[loop] = self._failures.get(loop, 0) + 1
            self._failed(loop, error)
            await self.app.clock.sleep(_BACKOFF[min(failures, len(_BACKOFF)) - 1])
            return None
        self._failures.pop(loop, None)
        self._ages[loop] = self.app.clock.elapsed()
        return done

    def _failed(self, loop: str, error: Exception) -> None:
        self.app.observer.on(
            PassFailed(
                loop=loop,
                error=error.line() if isinstance(error, CrontaskError) else repr(error),
                retryable=isinstance(error, CrontaskError) and error.retryable,
            )
        )
