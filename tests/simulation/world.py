"""A whole installation in one process: nodes, a front, a database, agents, callers and trouble."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.model import Callback, Delivery, Execution
from crontask_core.tasks import Tasks
from tests.simulation.agents import Agents, Send
from tests.simulation.callers import Callers
from tests.simulation.database import Database, Txn, commits
from tests.simulation.dice import Dice
from tests.simulation.loop import Stuck, VirtualLoop, rest
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.process import Node, Process
from tests.simulation.trouble import Trouble
from tests.simulation.verdict import judge
from tests.simulation.watch import Watch

__all__ = ["Outcome", "World", "simulate"]

_PATIENCE = 25.0
_ENOUGH = 50
FOREVER = float("inf")


@attrs.frozen
class Outcome:
    """What a history came to. ``trace`` is a hash of everything that happened, in order."""

    seed: int
    plan: Plan
    wrong: tuple[str, ...]
    trace: str
    counts: dict[str, int]
    history: tuple[tuple[float, str, str | Txn], ...]


class World:
    """Everything there is in one history. ``wrong`` collects broken promises."""

    def __init__(self, plan: Plan, loop: VirtualLoop) -> None:
        self.plan = plan
        self.rules = plan.rules
        self.loop = loop
        self.dice = self.stream("world")
        self.db = Database(loop.time)
        self.db.on_commit = self._committed
        self.locks: dict[str, tuple[str, float]] = {}
        self.history: list[tuple[float, str, str | Txn]] = []
        self.violations: list[str] = []
        self.peace = False
        self.disturbances: list[tuple[str, str, float, float]] = []
        self.processes: list[Process] = []
        self.sends: list[Send] = []
        self.by_fire: dict[str, list[Send]] = {}
        self._hash = hashlib.blake2b(digest_size=12)
        agents, callers = loop.lane("agents"), loop.lane("callers")
        self.agents = Agents(self, self.stream("agents"), lambda work: self._start(agents, work))
        self.callers = Callers(self, self.stream("callers"))
        self._callers_lane = callers
        self.watch = Watch(self)
        self.nodes = [Node(self, f"n{n + 1}", True) for n in range(plan.nodes)]
        self.front = Node(self, "front", False)
        self.trouble = Trouble(self, self.stream("trouble"))
        loop.set_exception_handler(self._unhandled)

    def stream(self, name: str) -> Dice:
        """Chance for one purpose: more of one does not shift the others."""
        return Dice(self.plan.seed, name)

    async def rest(self, seconds: float) -> None:
        await rest(seconds)

    def _start(self, lane: Any, work: Any) -> None:
        self.loop.spawn(lane, work)

    # -- what happened -------------------------------------------------------------------------
    def tell(self, who: str, what: str) -> None:
        """One line of the history."""
        self._note(who, what, what)

    def wrong(self, what: str) -> None:
        """A promise is broken."""
        self._note("!!!", what, what)
        self.violations.append(f"{self.loop.time():.3f}: {what}")
        if len(self.violations) >= _ENOUGH:
            raise Stuck("too much is wrong")

    def _note(self, who: str, what: str, entry: str | Txn) -> None:
        at = self.loop.time()
        self.history.append((at, who, entry))
        self._hash.update(f"{at:.6f} {who} {what}\n".encode())

    def _committed(self, txn: Txn) -> None:
        self._note(txn.who, f"{txn.what} {len(txn.changes)}", txn)
        self.watch.committed(txn)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.violations.append(f"nobody took {context.get('exception') or context['message']!r}")

    def disturb(self, kind: str, who: str, since: float, until: float = FOREVER) -> None:
        """Something went wrong on purpose; ``who`` "" means it concerns everybody."""
        self.disturbances.append((kind, who, since, until))

    def disturbed(self, since: float, until: float, who: str | None = None) -> bool:
        """Whether the database, or ``who`` (None: anybody), was disturbed in this time."""
        return any(
            start <= until and end >= since and (not name or who in (None, name))
            for _, name, start, end in self.disturbances
        )

    def moved_clock(self, since: float, until: float) -> bool:
        """Whether the database's clock or its past changed in this time."""
        kinds = ("jump", "fail over")
        return any(k in kinds and since <= end and start <= until
                   for k, _, start, end in self.disturbances)  # fmt: skip

    def trace(self) -> str:
        return f"{self._hash.hexdigest()}-{self.loop.digest:x}"

    # -- agents are called ---------------------------------------------------------------------
    def sent(self, process: Process, callback: Callback) -> Send:
        """A call leaves a process."""
        engine = process.life.engine  # type: ignore[union-attr]
        held = engine._hand.get(callback.execution_id)
        row: Execution | None = self.db.store.executions.get(callback.execution_id)
        task = self.db.store.tasks.get(callback.task_id)
        send = Send(
            at=self.loop.time(),
            who=process.name,
            incarnation=engine.node.incarnation,
            callback=callback,
            fence=held.execution.fence if held is not None else 0,
            uid=held.task.uid if held is not None else "",
            once=held is not None and held.task.delivery is Delivery.AT_MOST_ONCE,
        )
        self.sends.append(send)
        self.by_fire.setdefault(callback.fire_id, []).append(send)
        what = f"calls for fire {callback.fire_id[:8]} of {callback.task_key}"
        self.tell(process.name, f"{what}, attempt {callback.attempt}, fence {send.fence}")
        self.watch.sent(send, row, task)
        return send

    def answered(self, send: Send) -> None:
        answer = send.answer
        what = f"{answer.kind} {answer.status or ''}" if answer else "nothing"
        self.tell(send.who, f"is answered for fire {send.callback.fire_id[:8]}: {what}")

    # -- callers -------------------------------------------------------------------------------
    async def ask(
        self, request: Callable[[Tasks], Awaitable[Any]], txns: list[Txn] | None = None
    ) -> Any:
        """A use case through some process: its answer, the error it answers with, or None when no
        answer came. ``txns`` receives what the request committed, answered or not."""
        ready = [p for p in self.processes if p.ready and not p.lane.dead]
        if not ready:
            return None
        process = self.dice.pick(ready)

        async def serve() -> Any:
            commits.set(txns)
            assert process.app is not None
            try:
                return await request(process.app.tasks)
            except CrontaskError as error:
                return error

        task = self.loop.spawn(process.lane, serve())
        await asyncio.wait({task}, timeout=_PATIENCE)
        if not task.done():
            task.cancel()
            return None
        return None if task.cancelled() else task.result()

    def hint(self, sender: Process) -> None:
        """A wake-up hint goes from one process to the others, and may get lost."""
        for process in self.processes:
            listens = process.ready and process.fires and not process.lane.dead
            if process is not sender and listens and self.dice.chance(self.plan.hints):
                assert process.app is not None
                delay = self.dice.between(0.001, 0.02)
                hinted, context = process.app._hinted, process.lane.context()
                self.loop.call_later(delay, hinted, context=context)

    # -- one history ---------------------------------------------------------------------------
    async def live(self) -> None:
        """Trouble, then peace, then the end; and the verdict on all of it."""
        machines = [asyncio.create_task(node.keep()) for node in (*self.nodes, self.front)]
        callers = self.loop.spawn(self._callers_lane, self.callers.run())
        trouble = asyncio.create_task(self.trouble.run())
        await rest(self.plan.seconds)
        self.tell("world", "peace")
        self.peace = True
        for task in (trouble, callers):
            task.cancel()
        await asyncio.gather(trouble, callers, return_exceptions=True)
        await self.trouble.heal()
        self.agents.kind = True
        await self.callers.wind_up()
        await self._quiet()
        await self._close(machines)
        judge(self)

    async def _quiet(self) -> None:
        """Until every execution is final."""
        rules = self.rules
        limit = self.loop.time() + 600 + 2 * rules.ga_callback_timeout.total_seconds()
        limit += self.trouble.set_back + rules.max_retry_after.total_seconds()
        store = self.db.store
        while store.busy() or any(task.next_fire_time for task in store.tasks.values()):
            if self.loop.time() > limit:
                for row in store.busy():
                    self.wrong(f"execution {row.id} never ends: {row}")
                return
            await rest(1.0)

    async def _close(self, machines: list[asyncio.Task[None]]) -> None:
        """Every process ends as on SIGTERM."""
        for node in (*self.nodes, self.front):
            node.closing = True
            if node.now is not None:
                node.now.stop()
        for task in machines:
            task.add_done_callback(lambda _: None)
        await asyncio.wait(machines, timeout=120.0)
        if not all(task.done() for task in machines):
            self.wrong("a process does not end when it is told to")


def simulate(seed: int, only: tuple[str, ...] | None = None) -> Outcome:
    """One whole history, decided by its seed. ``only`` these kinds of faults."""
    plan = draw_plan(seed, only)
    worlds: list[World] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        worlds.append(World(plan, loop))
        await worlds[0].live()

    fatal: list[str] = []
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(seed)) as runner:
            runner.run(main())
    except Stuck as error:
        fatal.append(str(error))
    world = worlds[0]
    return Outcome(
        seed=seed,
        plan=plan,
        wrong=(*world.violations, *fatal),
        trace=world.trace(),
        counts=world.watch.counts(),
        history=tuple(world.history),
    )
