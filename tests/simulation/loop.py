"""An event loop on virtual time whose order is decided by a seed; it never waits and does no I/O.

Every process of a simulation is a *lane*: what a process starts runs in its lane, in the order it
was scheduled, as on a loop of its own. Which lane runs next is drawn. A frozen lane runs nothing
while time goes on; a killed one has its tasks cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import attrs

from tests.simulation.dice import Dice

__all__ = ["Lane", "Stuck", "VirtualLoop", "play", "rest", "turn"]

T = TypeVar("T")
_AT_ONCE = 200_000
"""Steps at one instant of virtual time that mean: something spins."""


class Stuck(AssertionError):
    """Nothing will ever happen again, or something never waits."""


@attrs.define(eq=False)
class Lane:
    """One process: what is ready to run in it, and its tasks."""

    name: str
    number: int
    ready: deque[asyncio.Handle] = attrs.Factory(deque)
    frozen: bool = False
    dead: bool = False
    doom: int | None = None
    """Steps left until ``on_doom`` is called: a crash may fall between any two steps."""
    on_doom: Callable[[], None] = lambda: None
    tasks: list[asyncio.Task[Any]] = attrs.Factory(list)

    def context(self) -> contextvars.Context:
        """A context in which everything started belongs to this lane."""
        made = contextvars.copy_context()
        made.run(_LANE.set, self)
        return made

    def cancel(self) -> None:
        """Mark it dead and cancel every task of it, so that coroutines are closed in order."""
        self.dead, self.frozen, self.doom = True, False, None
        for task in self.tasks:
            task.cancel()


_LANE: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("lane", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Time moves only when nothing can run, and then straight to the next timer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.set_debug(False)
        self._dice = Dice(seed, "loop")
        self._at = 0.0
        self._at_once = 0
        self._world = Lane("world", 0)
        self.lanes = [self._world]
        self.digest = 0
        self.steps = 0
        self._made = 0
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._at

    def lane(self, name: str) -> Lane:
        """A new lane; those of dead processes that have come to rest are forgotten."""
        self.lanes = [old for old in self.lanes if old.ready or not old.dead]
        self._made += 1
        made = Lane(name, self._made)
        self.lanes.append(made)
        return made

    def spawn(self, lane: Lane, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start ``work`` as a task of a lane."""
        return self.create_task(work, context=lane.context())

    # -- what BaseEventLoop asks of a loop -----------------------------------------------------
    def _call_soon(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    def _put(self, handle: asyncio.Handle) -> None:
        lane = handle._context.get(_LANE) or self._world
        lane.ready.append(handle)

    def _run_once(self) -> None:
        live = [lane for lane in self.lanes if lane.ready and not lane.frozen]
        if not live:
            self._advance()
            return
        if len(live) == 1:
            lane = live[0]
        else:
            lane = live[self._dice.below(len(live))]
            self.digest = (self.digest * 31 + lane.number) & 0xFFFFFFFFFFFF
        self._at_once += 1
        if self._at_once > _AT_ONCE:
            raise Stuck(f"{lane.name} spins at {self._at:.6f}: {lane.ready[0]}")
        handle = lane.ready.popleft()
        if not handle.cancelled():
            self.steps += 1
            handle._run()
            if lane.doom is not None:
                self._count_down(lane)

    def _count_down(self, lane: Lane) -> None:
        lane.doom = (lane.doom or 0) - 1
        if lane.doom <= 0:
            lane.doom = None
            lane.on_doom()

    def _advance(self) -> None:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise Stuck("everything waits and no timer is set")
        if timers[0].when() > self._at:
            self._at, self._at_once = timers[0].when(), 0
        while timers and timers[0].when() <= self._at:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer.cancelled():
                self._put(timer)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """There is no thread to wake."""


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    lane = (context or contextvars.copy_context()).get(_LANE)
    if lane is not None:
        if len(lane.tasks) > 100:
            lane.tasks = [t for t in lane.tasks if not t.done()]
        lane.tasks.append(task)
        if lane.dead:
            task.cancel()
    return task


class _Turn:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def turn() -> None:
    """Let others run; no time passes."""
    await _Turn()


async def rest(seconds: float) -> None:
    """Return after ``seconds`` of virtual time."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _set, over)
    try:
        await over
    except asyncio.CancelledError:
        timer.cancel()
        raise


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def play(main: Callable[[], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run a coroutine on a loop of its own; whatever it leaves behind is cancelled."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
        return runner.run(main())
