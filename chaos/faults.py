"""The faults: which, when and to whom, drawn from the seed; and the hand that does them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs

from chaos.agents import Agents
from chaos.evidence import Fault
from chaos.fleet import Fleet, Node
from chaos.plan import Plan
from tests.services import MariaDb, Redis

__all__ = ["KINDS", "Injector", "Step", "draw_skew", "schedule"]

KINDS = {
    "kill": 22,
    "freeze": 12,
    "pause": 8,
    "term": 12,
    "redis-flush": 6,
    "redis-stop": 6,
    "redis-freeze": 3,
    "db-kill-connections": 10,
    "db-restart": 4,
    "db-crash": 4,
    "db-freeze": 3,
    "agents-down": 4,
}
"""How often each is drawn, by weight. ``freeze`` lasts longer than node_timeout, ``pause`` less."""
_LONGEST = 6.5
_AIMED = 0.6
"""How many of the kills and freezes hit a node just as it calls."""
_PATIENCE = 3.0
_SKEWS = (0.0, 0.0, 3600.0, -3600.0, 86_400.0, -45.5, 0.75, -0.25)


@attrs.frozen
class Step:
    """One fault: ``at`` seconds after the start; ``pick`` and ``amount`` (0 to 1) say whom and how
    long."""

    at: float
    kind: str
    pick: float
    amount: float


def schedule(plan: Plan, kinds: Sequence[str]) -> list[Step]:
    """The faults of a run: one of each kind first, then by weight. The last one ends before the
    run does."""
    draw = random.Random(plan.seed)
    first = draw.sample(list(kinds), len(kinds))
    weights = [KINDS[kind] for kind in kinds]
    steps: list[Step] = []
    at = plan.settle_in
    while True:
        # Just after a whole second most fires are in flight.
        at += draw.uniform(0.5, 2.5)
        moment = int(at) + draw.choice((0.02, 0.05, 0.1, 0.2, draw.random()))
        if moment > plan.seconds - _LONGEST:
            return steps
        kind = first.pop() if first else draw.choices(list(kinds), weights)[0]
        steps.append(Step(moment, kind, draw.random(), draw.random()))


def draw_skew(plan: Plan) -> Callable[[], float]:
    """The clock error of each new process, in seconds."""
    draw = random.Random(plan.seed + 1)
    return lambda: draw.choice(_SKEWS)


@attrs.define
class Injector:
    """Does the steps, at their time, several at once where that is possible."""

    plan: Plan
    fleet: Fleet
    agents: Agents
    faults: list[Fault]
    database: MariaDb | None
    redis: Redis | None
    _doing: set[asyncio.Task[None]] = attrs.Factory(set)
    _database_lock: asyncio.Lock = attrs.Factory(asyncio.Lock)
    _redis_lock: asyncio.Lock = attrs.Factory(asyncio.Lock)

    def kinds(self) -> list[str]:
        """The kinds that this run can have."""
        wanted = self.plan.kinds or tuple(KINDS)
        return [
            kind
            for kind in KINDS
            if kind in wanted
            and (self.database is not None or not kind.startswith("db-"))
            and (self.redis is not None or not kind.startswith("redis-"))
        ]

    async def run(self, began: float) -> None:
        """Do every step; returns when the last fault is over."""
        drawn = schedule(self.plan, self.kinds())
        for step in [Step(*words) for words in self.plan.script] or drawn:
            # On the second of the wall clock, where the one-offs are due.
            await asyncio.sleep(max(0.0, int(began) + step.at - time.time()))
            task = asyncio.create_task(self._do(step))
            self._doing.add(task)
            task.add_done_callback(self._doing.discard)
        while self._doing:
            for done in (await asyncio.wait(set(self._doing)))[0]:
                done.result()

    async def _do(self, step: Step) -> None:
        if step.kind.startswith("db-"):
            async with self._database_lock:
                await self._hurt(step, self._database(step))
        elif step.kind.startswith("redis-"):
            async with self._redis_lock:
                await self._hurt(step, self._redis(step))
        elif step.kind == "agents-down":
            await self._hurt(step, self._agents_down(1.5 * step.amount))
        else:
            await self._node(step)

    async def _hurt(self, step: Step, work: Awaitable[None]) -> None:
        start = time.time()
        try:
            await work
        finally:
            self.faults.append(Fault(kind=step.kind, start=start, end=time.time()))

    async def _node(self, step: Step) -> None:
        caller = ""
        if step.kind in ("kill", "freeze") and step.pick < _AIMED:
            caller = await self.agents.caller(self.plan.aim, _PATIENCE)
        node = await self._victim(step, caller)
        if node is None:
            return
        timeout = self.plan.terms.node_timeout
        if step.kind == "freeze":
            await self.fleet.freeze(node, timeout + 1.5 + 2.0 * step.amount, "freeze")
        elif step.kind == "pause":
            await self.fleet.freeze(node, 0.2 + (timeout - 1.0) * step.amount, "pause")
        elif step.kind == "kill":
            await self.fleet.kill(node)
            await asyncio.sleep(1.5 * step.amount)
            await self.fleet.launch(node.slot)
        else:
            await self.fleet.terminate(node)
            await self.fleet.launch(node.slot)

    async def _victim(self, step: Step, caller: str) -> Node | None:
        """A node, maybe one that is only starting, while another one goes on firing; the one that
        calls, if it is such a one."""
        until = time.time() + _PATIENCE
        while len(well := self._well()) < 1:
            if time.time() > until:
                return None
            await asyncio.sleep(0.1)
        aimed = [node for node in well if node.name == caller]
        return aimed[0] if aimed else well[int(step.pick * len(well))]

    def _well(self) -> list[Node]:
        ready = [node for node in self.fleet.nodes.values() if node.ready]
        up = [n for n in self.fleet.nodes.values() if n.up and not n.frozen and not n.wanted]
        return [node for node in up if any(other is not node for other in ready)]

    async def _database(self, step: Step) -> None:
        database = self.database
        if database is None:
            return
        if step.kind == "db-kill-connections":
            await asyncio.to_thread(database.kill_connections)
        elif step.kind == "db-restart":
            await asyncio.to_thread(database.restart)
        elif step.kind == "db-crash":
            await asyncio.to_thread(database.kill)
            await asyncio.to_thread(database.start)
        else:
            database.freeze()
            await asyncio.sleep(0.3 + 2.0 * step.amount)
            database.thaw()

    async def _redis(self, step: Step) -> None:
        redis = self.redis
        if redis is None:
            return
        if step.kind == "redis-flush":
            await asyncio.to_thread(redis.flush)
        elif step.kind == "redis-stop":
            await asyncio.to_thread(redis.stop)
            await asyncio.sleep(3.0 * step.amount)
            await asyncio.to_thread(redis.start)
        else:
            redis.freeze()
            await asyncio.sleep(2.0 * step.amount)
            redis.thaw()

    async def _agents_down(self, seconds: float) -> None:
        self.agents.down = True
        await asyncio.sleep(seconds)
        self.agents.down = False
