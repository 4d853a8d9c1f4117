"""One process of a simulation: a node that fires, or the front that only serves callers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import attrs

from crontask_adapters.clock import SystemClock
from crontask_adapters.wiring import App
from crontask_core.engine import Engine
from crontask_core.errors import CrontaskError
from crontask_core.events import DatabaseClockJumped, Event, NodeChanged, PassFailed, RowSetAside
from crontask_core.model import NodeRow
from crontask_core.tasks import Tasks
from crontask_core.testing import START, MemoryLock
from crontask_server.presence import Presence
from crontask_server.runtime import Runtime
from tests.simulation.agents import Client
from tests.simulation.database import Faults, View

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Lock", "Node", "Process"]

_LOOKS = 200


class Lock(MemoryLock):
    """The lock of a process; a dead one neither takes nor frees."""

    dead = False

    async def release_many(self, keys: list[str]) -> None:  # type: ignore[override]
        if not self.dead:
            await super().release_many(keys)


class Process:
    """One life of a node: from boot to its end, by whatever cause."""

    def __init__(self, world: World, name: str, *, fires: bool) -> None:
        self.world = world
        self.name = name
        self.fires = fires
        self.lane = world.loop.lane(name)
        self.skew = timedelta(seconds=world.dice.between(-90, 90))
        self.view = View(world.db, world.rules, self.lane, world.stream(f"view {name}"))
        self.view.faults = self.usual()
        self.view.trouble = self._trouble
        self.view.asked = self._asked
        self._looks: deque[float] = deque()
        self.clock = SystemClock(self._wall, world.loop.time)
        self.lock: Lock | None = None
        self.app: App | None = None
        self.life: Runtime | Presence | None = None
        self.ready = False
        self.stopping = False
        self._count = itertools.count(1)

    # -- what it is made of --------------------------------------------------------------------
    def usual(self) -> Faults:
        share = 0.0 if self.world.peace else self.world.plan.errors
        return Faults(before=share, after=share, hang=share / 10)

    def _wall(self) -> datetime:
        return START + timedelta(seconds=self.world.loop.time()) + self.skew

    def _trouble(self, method: str, what: str) -> None:
        self.world.tell(self.name, f"fault: {method} {what}")
        now = self.world.loop.time()
        if what.startswith(("hang", "late", "takes")):
            self.world.disturb("hang", self.name, now, now + 25)
        elif method == "heartbeat":
            self.world.disturb("heartbeat", self.name, now, now)
        elif method == "register":
            self.world.disturb("register", self.name, now)

    def _asked(self, method: str) -> None:
        """A loop that looks at the store without end is wrong even if all it does is right."""
        if method == "horizon":
            now = self.world.loop.time()
            self._looks.append(now)
            while self._looks and self._looks[0] < now - 2.0:
                self._looks.popleft()
            if len(self._looks) > _LOOKS:
                self.world.wrong(f"{self.name} looks {_LOOKS} times in 2 s whether anything is due")
                self._looks.clear()

    def new_node(self) -> NodeRow:
        now = self.clock.now()
        return NodeRow(
            incarnation=f"{self.name}#{next(self._count)}",
            node_id=self.name,
            roles="api,scheduler" if self.fires else "api",
            version="0",
            started_at=now,
            seen_at=now,
        )

    def on(self, event: Event) -> None:
        """It is its own observer."""
        if self.lane.dead:
            return
        if isinstance(event, NodeChanged):
            self.world.tell(self.name, f"{event.node.incarnation} {event.what}")
        elif isinstance(event, DatabaseClockJumped):
            self.world.tell(self.name, f"sees the database's clock jump {event.seconds:g} s")
        elif isinstance(event, PassFailed):
            self.world.tell(self.name, f"{event.loop} failed: {event.error}")
            if not event.retryable:
                self.world.wrong(f"{self.name}: {event.loop} failed for good: {event.error}")
        elif isinstance(event, RowSetAside):
            self.world.wrong(f"{self.name}: {event.kind} {event.id} set aside: {event.reason}")

    # -- its life ------------------------------------------------------------------------------
    async def run(self) -> None:
        """Boot as an installation does, then run the real loops until they return."""
        world = self.world
        sent = self.clock.elapsed()
        self.clock.observe((await self.view.horizon()).now, sent)
        installation = await self.view.installation_id()
        keys = itertools.count(1)
        tasks = Tasks(
            repo=self.view,
            clock=self.clock,
            observer=self,
            rules=world.rules,
            installation=installation,
            new_key=lambda: f"{self.name}-{next(keys)}",
            check_url=lambda url: None,
            fires_here=self.fires,
        )
        client = Client(self, world.agents)
        self.app = App(
            settings=world.plan.settings,
            rules=world.rules,
            clock=self.clock,
            repo=self.view,  # type: ignore[arg-type]
            observer=self,
            tasks=tasks,
            engine=self._engine(client) if self.fires else None,
            client=client,
            metrics=None,
            new_node=self.new_node,
        )
        self.app.start(None)
        tasks.wake = self._wake
        self.life = Runtime(self.app) if self.fires else Presence(self.app)
        if self.stopping:
            self.life.stop()
        self.ready = True
        try:
            await self.life.run()
        finally:
            self.ready = False

    def _wake(self, at: datetime) -> None:
        """Something may be due: this process looks, and the others get a hint."""
        assert self.app is not None
        self.app._wake(at)
        self.world.hint(self)

    def _engine(self, client: Client) -> Engine:
        world, scheduler = self.world, self.world.plan.settings.scheduler
        if "lock" in world.plan.kinds:
            self.lock = Lock(world.locks, self.name, self.clock.elapsed)
        return Engine(
            repo=self.view,
            client=client,
            clock=self.clock,
            observer=self,
            rules=world.rules,
            new_node=self.new_node,
            lock=self.lock,
            concurrency=world.plan.concurrency,
            claim_batch=scheduler.claim_batch,
            heartbeat_every=scheduler.heartbeat.total_seconds(),
            node_timeout=scheduler.node_timeout.total_seconds(),
        )

    def stop(self) -> None:
        """What SIGTERM does."""
        self.stopping = True
        if self.life is not None:
            self.life.stop()

    def crash(self, why: str = "is killed") -> None:
        """Nothing of it happens from here on, at whatever step it is."""
        if self.lane.dead:
            return
        self.world.tell(self.name, why)
        self.world.disturb("crash", self.name, self.world.loop.time())
        if self.lock is not None:
            self.lock.dead = True
        self.ready = False
        self.lane.cancel()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after ``seconds``."""
        now = self.world.loop.time()
        self.world.tell(self.name, f"freezes for {seconds:.1f} s")
        self.world.disturb("freeze", self.name, now, now + seconds)
        self.lane.frozen = True
        self.world.loop.call_later(seconds, self._thaw)

    def _thaw(self) -> None:
        if self.lane.frozen:
            self.lane.frozen = False
            self.world.tell(self.name, "thaws")

    def left_over(self) -> list[str]:
        """What it still holds; nothing when it ended as it should."""
        engine = self.app.engine if self.app is not None else None
        held = [] if engine is None else [engine.in_hand, engine.unsettled]
        return [f"{self.name} holds {held}"] if any(held) else []


@attrs.define(eq=False)
class Node:
    """A machine: it starts a process again when it ends."""

    world: World
    name: str
    fires: bool
    lives: int = 0
    now: Process | None = None
    closing: bool = False

    async def keep(self) -> None:
        """Start, wait for the end, start again, until ``closing``."""
        world = self.world
        while not self.closing:
            self.lives += 1
            process = self.now = Process(world, f"{self.name}.{self.lives}", fires=self.fires)
            world.processes.append(process)
            world.tell(process.name, "starts")
            task = world.loop.spawn(process.lane, process.run())
            await asyncio.wait({task})
            self._ended(process, task)
            if not self.closing:
                await world.rest(world.dice.pick((0.1, 1.0, 3.0, 12.0)))

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        world = self.world
        if process.lane.dead or task.cancelled():
            return
        world.disturb("end", process.name, world.loop.time())
        error = task.exception()
        world.tell(process.name, f"ends: {error!r}" if error else "ends")
        if error is not None and not (isinstance(error, CrontaskError) and error.retryable):
            world.wrong(f"{process.name} died of {error!r}")
        if error is None:
            world.watch.stopped(process)
