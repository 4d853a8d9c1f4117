"""Agents that accept, refuse, hang and lie, and report early, late, twice or never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.model import Callback, Report
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import MaySend, always
from crontask_core.testing import accept, broken, no_connection, respond, timeout
from tests.simulation.database import Txn
from tests.simulation.dice import Dice
from tests.simulation.loop import rest

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

__all__ = ["HOSTS", "Agents", "Client", "Said", "Send"]

HOSTS = ("good.example", "slow.example", "liar.example")
MOODS: dict[str, tuple[str, ...]] = {
    "good.example": ("accept",) * 18 + ("unavailable", "down"),
    "slow.example": ("accept", "slow", "slow", "slow", "late", "hang", "down", "nameless"),
    "liar.example": (
        "accept", "accept", "slow", "late", "hang", "hang unheard", "unavailable",
        "unavailable but done", "reset", "reset unheard", "down", "busy", "refused", "nameless",
        "not deployed",
    ),
}  # fmt: skip
MANNERS = (
    "success", "success", "success", "failed", "failed", "early", "twice", "contradict", "beats",
    "silent", "overdue", "confused",
)  # fmt: skip


@attrs.define(eq=False)
class Send:
    """One call as the caller made it. ``heard``: the agent acted on it. ``answer``: what came back
    to the caller, None while nothing has."""

    at: float
    who: str
    incarnation: str
    callback: Callback
    fence: int
    uid: str
    once: bool
    heard: bool = False
    answer: Answer | None = None


@attrs.define(eq=False)
class Said:
    """A report that was answered. ``txns``: the transactions that made it durable."""

    report: Report
    fire_id: str
    run_id: str
    recorded: bool
    duplicate: bool
    pending: bool
    error: str
    txns: list[Txn]


@attrs.define
class Run:
    callback: Callback
    run_id: str
    manner: str


class Client:
    """The ``GaClient`` of one process."""

    def __init__(self, process: Process, agents: Agents) -> None:
        self._process = process
        self._agents = agents

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        await self._agents.connect()
        if not may_send():
            return Answer(kind=AnswerKind.UNSENT, error="handed back")
        send = self._agents.world.sent(self._process, callback)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._agents.start(self._agents.serve(send, future))
        try:
            async with asyncio.timeout(self._agents.patience):
                send.answer = await future
        except TimeoutError:
            send.answer = timeout()
        self._agents.world.answered(send)
        return send.answer

    async def close(self) -> None:
        """Nothing is held."""


class Agents:
    """Every agent behind every host. ``kind`` makes them all well-behaved and quick."""

    def __init__(
        self, world: World, dice: Dice, start: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self.world = world
        self.start = start
        self.patience = world.rules.callback_timeout.total_seconds()
        self.kind = False
        self.said: list[Said] = []
        self.heard: dict[str, int] = {}
        self._dice = dice
        self._runs: dict[str, Run] = {}

    # -- being called --------------------------------------------------------------------------
    async def connect(self) -> None:
        """What it takes until a request can be written."""
        slow = not self.kind and self._dice.chance(0.02)
        await rest(self._dice.between(0.001, 0.6 * self.patience if slow else 0.01))

    async def serve(self, send: Send, future: asyncio.Future[Answer]) -> None:
        """What happens at the agent's side; the caller may be gone long before the end."""
        dice, callback = self._dice, send.callback
        host = callback.url.split("/")[2]
        mood = "accept" if self.kind else dice.pick(MOODS[host])
        await rest(dice.between(0.001, 0.03))
        if mood in ("down", "busy", "refused", "not deployed", "hang unheard", "reset unheard"):
            self._answer(future, mood)
            return
        send.heard = True
        self.heard[callback.fire_id] = self.heard.get(callback.fire_id, 0) + 1
        self.world.tell("agent", f"hears {_short(callback)} attempt {callback.attempt}: {mood}")
        run = self._runs.get(callback.fire_id)
        again = run is not None and dice.chance(0.6)
        if run is None or not again:
            run = self._begin(callback)
        if mood == "slow":
            await rest(dice.between(0.3, 0.8 * self.patience))
        elif mood == "late":
            await rest(self.patience + dice.between(0.05, 3.0))
        if mood in ("accept", "slow", "late"):
            gone = again and callback.attempt > 1 and dice.chance(0.3)
            _give(future, accept(run.run_id, 409 if gone else 200))
        else:
            self._answer(future, mood)

    def _answer(self, future: asyncio.Future[Answer], mood: str) -> None:
        answers = {
            "down": no_connection(),
            "busy": respond(429, retry_after=str(self._dice.below(8))),
            "refused": respond(400, "no such parameter"),
            "not deployed": respond(404),
            "unavailable": respond(503),
            "unavailable but done": respond(503),
            "reset": broken(),
            "reset unheard": broken(),
            "nameless": respond(200, json.dumps({"ok": True})),
        }
        if mood in answers:
            _give(future, answers[mood])

    def _begin(self, callback: Callback) -> Run:
        known = self._runs.get(callback.fire_id)
        count = 1 if known is None else 2 + self._dice.below(1000)
        manner = "success" if self.kind else self._dice.pick(MANNERS)
        run = Run(callback, f"r{callback.execution_id}-{callback.fire_id[:4]}-{count}", manner)
        self._runs[callback.fire_id] = run
        self.start(self._work(run))
        return run

    # -- reporting -----------------------------------------------------------------------------
    async def _work(self, run: Run) -> None:
        dice, manner = self._dice, run.manner
        by_fire = dice.chance(0.6)
        if manner == "silent":
            return
        if manner != "early":
            await rest(dice.between(0.05, 12.0))
        if manner == "overdue":
            await rest(
                dice.between(0.5, 1.5) * self.world.rules.ga_callback_timeout.total_seconds()
            )
        if manner == "confused":
            await self._say(run, "success", by_fire=False, run_id="no-such-run")
            return
        if manner == "beats":
            for _ in range(dice.below(3)):
                await self._say(run, "running", by_fire=by_fire)
                await rest(dice.between(1.0, 20.0))
        status = "failed" if manner == "failed" else "success"
        await self._say(run, status, by_fire=by_fire)
        if manner in ("twice", "contradict"):
            await rest(dice.between(0.0, 3.0))
            other = "failed" if manner == "contradict" else status
            await self._say(run, other, by_fire=dice.chance(0.5))

    async def _say(self, run: Run, status: str, *, by_fire: bool, run_id: str = "") -> None:
        """Report until there is an answer; an agent gives up after some tries."""
        callback = run.callback
        report = Report(
            task_id=callback.task_id,
            task_run_id=run_id or run.run_id,
            status=status,
            fire_id=callback.fire_id if by_fire else "",
        )
        for _ in range(30):
            txns: list[Txn] = []
            found = await self.world.ask(lambda tasks: tasks.report(report), txns)
            if found is not None and not (isinstance(found, CrontaskError) and found.retryable):
                break
            await rest(self._dice.between(0.5, 4.0))
        else:
            return
        wrong = isinstance(found, CrontaskError)
        said = Said(
            report=report,
            fire_id=callback.fire_id,
            run_id=report.task_run_id,
            recorded=not wrong and found.recorded,
            duplicate=not wrong and found.duplicate,
            pending=not wrong and found.pending,
            error=found.code if wrong else "",
            txns=txns,
        )
        self.said.append(said)
        what = said.error or (
            "duplicate" if said.duplicate else "pending" if said.pending else "ok"
        )
        self.world.tell(
            "agent", f"reports {_short(callback)} {report.task_run_id} {status}: {what}"
        )


def _short(callback: Callback) -> str:
    return f"fire {callback.fire_id[:8]} of {callback.task_key}"


def _give(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
