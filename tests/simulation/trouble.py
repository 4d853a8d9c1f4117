"""What goes wrong, and how it is put right again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.simulation.database import Faults
from tests.simulation.dice import Dice
from tests.simulation.loop import rest

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["Trouble"]


class Trouble:
    """Draws one fault after another of the kinds its plan allows. ``counts`` says how many."""

    def __init__(self, world: World, dice: Dice) -> None:
        self.world = world
        self.counts: dict[str, int] = {}
        self.set_back = 0.0
        """Seconds by which the database's clock was set back in all: deadlines stay ahead."""
        self._dice = dice
        self._after: list[asyncio.Task[None]] = []
        self._acts = {
            "crash": self._crash,
            "freeze": self._freeze,
            "flaky": self._flaky,
            "lost answers": self._lost_answers,
            "cut": self._cut,
            "restart database": self._restart_database,
            "slow database": self._slow_database,
            "fail over": self._fail_over,
            "jump": self._jump,
            "skew": self._skew,
            "roll": self._roll,
            "kill": self._kill,
            "lock": self._lock,
        }

    async def run(self) -> None:
        """Until cancelled."""
        plan = self.world.plan
        while plan.kinds:
            await rest(self._dice.spread(plan.pause))
            kind = self._dice.pick(plan.kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            await self._acts[kind]()

    async def heal(self) -> None:
        """Everything works again, and time passes until all have noticed."""
        world = self.world
        await asyncio.gather(*self._after, return_exceptions=True)
        world.db.start()
        for process in world.processes:
            process.lane.doom = None
            process.view.faults = Faults()
            process._thaw()
        await rest(25.0)

    # -- one kind each -------------------------------------------------------------------------
    def _victim(self) -> Process | None:
        live = [p for p in self.world.processes if not p.lane.dead and p.ready]
        return self._dice.pick(live) if live else None

    def _later(self, work) -> None:  # type: ignore[no-untyped-def]
        self._after = [task for task in self._after if not task.done()]
        self._after.append(asyncio.create_task(work))

    async def _crash(self) -> None:
        if (victim := self._victim()) is not None:
            victim.lane.on_doom = victim.crash
            victim.lane.doom = 1 + self._dice.below(60)

    async def _freeze(self) -> None:
        if (victim := self._victim()) is not None and not victim.lane.frozen:
            victim.freeze(self._dice.pick((1.0, 4.0, 8.0, 12.0, 20.0, 45.0, 90.0)))

    async def _flaky(self) -> None:
        if (victim := self._victim()) is not None:
            share = self._dice.pick((0.05, 0.2))
            self.world.tell(victim.name, f"has a bad line to the database ({share:g})")
            victim.view.faults = Faults(share, share, self._dice.pick((0.0, 0.03)), 0.2)
            self._later(self._restore(victim, self._dice.between(3, 25)))

    async def _lost_answers(self) -> None:
        if (victim := self._victim()) is not None:
            self.world.tell(victim.name, "loses answers to what it commits")
            victim.view.faults = Faults(lost=0.4)
            self._later(self._restore(victim, self._dice.between(3, 25)))

    async def _restore(self, victim: Process, seconds: float) -> None:
        await rest(seconds)
        victim.view.faults = victim.usual()

    async def _cut(self) -> None:
        if (victim := self._victim()) is not None:
            seconds = self._dice.between(1, 30)
            now = self.world.loop.time()
            self.world.tell(victim.name, f"is cut off from the database for {seconds:.1f} s")
            self.world.disturb("cut", victim.name, now, now + seconds + 22)
            victim.view.faults = Faults(cut=True)
            self._later(self._restore(victim, seconds))

    async def _restart_database(self) -> None:
        await self._down(self._dice.pick((0.3, 2.0, 6.0, 15.0, 40.0)), "restarts")

    async def _slow_database(self) -> None:
        seconds = self._dice.between(2, 25)
        self.world.tell("database", f"is slow for {seconds:.1f} s")
        for process in self.world.processes:
            if not process.lane.dead:
                process.view.faults = Faults(late=self._dice.pick((0.1, 0.4)))
                self._later(self._restore(process, seconds))

    async def _down(self, seconds: float, what: str, kind: str = "restart database") -> None:
        world = self.world
        now = world.loop.time()
        world.tell("database", f"{what}, {seconds:.1f} s")
        world.disturb(kind, "", now, now + seconds + 22)
        world.db.stop()
        await rest(seconds)
        world.db.start()
        world.tell("database", "is back")

    async def _fail_over(self) -> None:
        world = self.world
        lost = self._dice.pick((0.05, 0.5, 2.0, 5.0))
        since = world.loop.time() - lost
        txns = world.db.lose(since)
        world.watch.lost(txns, since)
        world.db.offset += timedelta(seconds=self._dice.between(-1.0, 1.0))
        what = f"fails over, {len(txns)} transactions of {lost:g} s are lost"
        world.disturb("fail over", "", since, world.loop.time() + 30)
        await self._down(self._dice.between(0.2, 5), what, "fail over")

    async def _jump(self) -> None:
        seconds = self._dice.pick((-150.0, -40.0, -7.0, 7.0, 40.0, 150.0))
        world = self.world
        now = world.loop.time()
        world.tell("database", f"has its clock moved by {seconds:g} s")
        world.disturb("jump", "", now, now + 15)
        world.db.offset += timedelta(seconds=seconds)
        self.set_back += max(0.0, -seconds)

    async def _skew(self) -> None:
        if (victim := self._victim()) is not None:
            victim.skew = timedelta(seconds=self._dice.between(-7200, 7200))

    async def _roll(self) -> None:
        if (victim := self._victim()) is not None and not victim.stopping:
            self.world.tell(victim.name, "is told to stop")
            self.world.disturb("roll", victim.name, self.world.loop.time())
            victim.stop()

    async def _kill(self) -> None:
        """A second signal: the end at once."""
        if (victim := self._victim()) is not None and victim.life is not None:
            self.world.tell(victim.name, "is told to stop now")
            self.world.disturb("kill", victim.name, self.world.loop.time())
            victim.stopping = True
            victim.life.stop_now()

    async def _lock(self) -> None:
        world = self.world
        world.locks.clear()
        lost = self._dice.chance(0.5)
        world.tell("lock", "is lost" if lost else "is flushed")
        for process in world.processes:
            if process.lock is not None:
                process.lock.down = lost
