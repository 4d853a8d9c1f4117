"""The agents: an HTTP sink that logs every delivery, behaves badly by a hash of the seed, and
reports back through the use cases until each report is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import attrs
import orjson
from aiohttp import web

from chaos.evidence import Delivery, Sent, us
from crontask_core.errors import CrontaskError
from crontask_core.model import Report
from crontask_core.policy import ReportResult, check_report
from crontask_core.tasks import Tasks

__all__ = ["PATH", "Agents", "Mood", "Reporter", "share"]

PATH = "/v1/task/execute"
NODE_HEADER = "X-Chaos-Node"
_BATCH = 50
_PAUSE = 0.02
_AGAIN = 0.3
_ALONE = 0.15


def share(*parts: object) -> float:
    """From 0 to 1, always the same for the same parts."""
    return zlib.crc32("/".join(map(str, parts)).encode()) / 2**32


def _pick(at: float, shares: Sequence[tuple[str, float]]) -> str:
    for name, part in shares:
        if at < part:
            return name
        at -= part
    return shares[0][0]


@attrs.frozen(kw_only=True)
class Mood:
    """How often the agents do what. What is left of 1 is the first of each list."""

    answers: tuple[tuple[str, float], ...] = (
        ("accepted", 0.0),
        ("busy", 0.03),
        ("hang", 0.012),
        ("reset", 0.02),
        ("slow", 0.012),
        ("late-accepted", 0.15),
    )
    reports: tuple[tuple[str, float], ...] = (
        ("plain", 0.0),
        ("early", 0.08),
        ("late", 0.02),
        ("running", 0.05),
        ("twice", 0.06),
        ("contradict", 0.04),
        ("silent", 0.03),
    )
    think: float = 0.0
    callback_timeout: float = 2.0
    report_timeout: float = 6.0


@attrs.define
class Reporter:
    """Sends reports, each until it is answered: some one by one as MCP does, most of them many in
    one transaction, which leaves the processor to the nodes."""

    tasks: Tasks
    log: list[Sent]
    _waiting: list[tuple[Report, asyncio.Future[ReportResult | CrontaskError]]] = attrs.Factory(
        list
    )
    _some: asyncio.Event = attrs.Factory(asyncio.Event)

    async def send(self, sent: Sent) -> None:
        """Send one report until there is an answer."""
        self.log.append(sent)
        named = sent.fire_id if sent.named == "fire" else ""
        good = sent.status != "failed"
        report = Report(
            task_id=sent.task_id,
            task_run_id=sent.run_id,
            status=sent.status,
            result=sent.token if good else "",
            error="" if good else sent.token,
            fire_id=named,
        )
        while not sent.outcome:
            sent.tries += 1
            alone = share("alone", sent.fire_id) < _ALONE
            answer = await (self._say(report) if alone else self._ask(report))
            sent.outcome = _outcome(answer, sent.status)
            sent.answered = time.time() if sent.outcome else None
            if not sent.outcome:
                await asyncio.sleep(_AGAIN)

    async def _say(self, report: Report) -> ReportResult | CrontaskError:
        try:
            return await self.tasks.report(report)
        except CrontaskError as error:
            return error

    async def _ask(self, report: Report) -> ReportResult | CrontaskError:
        asked: asyncio.Future[ReportResult | CrontaskError]
        asked = asyncio.get_running_loop().create_future()
        self._waiting.append((check_report(report), asked))
        self._some.set()
        return await asked

    async def run(self) -> None:
        """Write what waits, for ever; two of these at once let one wait for a lock."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_PAUSE)
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            if not self._waiting:
                self._some.clear()
            if not batch:
                continue
            answers: Sequence[ReportResult | CrontaskError]
            try:
                answers = await self.tasks.repo.report([report for report, _ in batch])
            except CrontaskError as error:
                answers = [error] * len(batch)
            for (_, asked), answer in zip(batch, answers, strict=True):
                if not asked.done():
                    asked.set_result(answer)


def _outcome(answer: ReportResult | CrontaskError, status: str) -> str:
    if isinstance(answer, CrontaskError):
        return "" if answer.retryable else f"refused:{answer.code}"
    if answer.contradicts:
        return "contradicts"
    if answer.duplicate:
        return "duplicate"
    return "pending" if answer.pending else "recorded"


@attrs.define
class Agents:
    """All agents in one: what it does with a fire depends on the seed and the fire alone."""

    seed: int
    mood: Mood
    reporter: Reporter
    log: list[Delivery]
    down: bool = False
    _runs: dict[str, str] = attrs.Factory(dict)
    _open: Counter[str] = attrs.Factory(Counter)
    _called: asyncio.Event = attrs.Factory(asyncio.Event)
    _work: set[asyncio.Task[None]] = attrs.Factory(set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address that nodes call."""
        app = web.Application()
        app.router.add_post(PATH, self.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
        finally:
            for task in self._work:
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            await runner.cleanup()

    async def handle(self, request: web.Request) -> web.Response:
        """Take one delivery."""
        at = time.time()
        body = orjson.loads(await request.read())
        call = Delivery(
            at=at,
            node=request.headers.get(NODE_HEADER, ""),
            fire_id=body["fire_id"],
            execution_id=body["execution_id"],
            task_id=body["task_id"],
            task_key=body["task_key"],
            fire_us=us(datetime.fromisoformat(body["fire_time"])),
            manual=body["trigger"] == "manual",
            attempt=body["attempt"],
        )
        call.answer = self._answer(call)
        self.log.append(call)
        self._open[call.node] += 1
        self._called.set()
        try:
            return await self._act(call, request)
        finally:
            call.until = time.time()
            self._open[call.node] -= 1

    def _answer(self, call: Delivery) -> str:
        if self.down:
            return "busy"
        return _pick(share(self.seed, "answer", call.fire_id, call.attempt), self.mood.answers)

    async def _act(self, call: Delivery, request: web.Request) -> web.Response:
        first = call.fire_id not in self._runs
        works = call.answer in ("accepted", "late-accepted", "slow")
        if not works and share(self.seed, "works", call.fire_id, call.attempt) < 0.5:
            works = True  # its answer does not arrive, its result will
        dedupes = share(self.seed, "dedupe", call.fire_id) < 0.7
        call.run_id = f"r-{call.fire_id}-{call.attempt}" if works else ""
        if works and dedupes:
            call.run_id = self._runs.setdefault(call.fire_id, call.run_id)
        if works and call.answer != "busy" and (first or not dedupes):
            self._runs.setdefault(call.fire_id, call.run_id)
            await self._start(call)
        return await self._respond(call, request)

    async def _respond(self, call: Delivery, request: web.Request) -> web.Response:
        if call.answer == "busy":
            return web.Response(status=503)
        if call.answer == "reset":
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        if call.answer in ("hang", "slow"):
            await asyncio.sleep(self.mood.callback_timeout + 0.5)
        await asyncio.sleep(self.mood.think)
        if call.answer == "late-accepted":
            call.answer = "accepted"
            await asyncio.sleep(0.1 + 0.5 * share(self.seed, "wait", call.fire_id))
        return web.json_response({"task_run_id": call.run_id})

    async def _start(self, call: Delivery) -> None:
        """Begin the work of a run. An early reporter has its report answered before it answers."""
        kind = _pick(share(self.seed, "report", call.fire_id), self.mood.reports)
        if kind == "silent":
            return
        if kind == "early" and call.answer in ("accepted", "late-accepted"):
            early = asyncio.create_task(self.reporter.send(self._report(call, "")))
            self._keep(early)
            await asyncio.wait({early}, timeout=self.mood.callback_timeout / 4)
            return
        self._keep(asyncio.create_task(self._later(call, kind)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _later(self, call: Delivery, kind: str) -> None:
        busy = 0.05 + 1.5 * share(self.seed, "busy", call.fire_id)
        if kind == "late":
            busy += self.mood.report_timeout + 0.5
        await asyncio.sleep(busy)
        if kind == "running":
            await self.reporter.send(self._report(call, "", status="running"))
            await asyncio.sleep(busy)
        await self.reporter.send(self._report(call, ""))
        if kind == "twice":
            await self.reporter.send(self._report(call, ""))
        if kind == "contradict":
            good = self._status(call) == "success"
            await self.reporter.send(
                self._report(call, "-2", status="failed" if good else "success")
            )

    def _status(self, call: Delivery) -> str:
        return "failed" if share(self.seed, "fails", call.fire_id) < 0.1 else "success"

    def _report(self, call: Delivery, mark: str, status: str = "") -> Sent:
        return Sent(
            task_id=call.task_id,
            fire_id=call.fire_id,
            run_id=call.run_id,
            named="fire" if share(self.seed, "named", call.fire_id) < 0.6 else "run",
            status=status or self._status(call),
            token=f"said:{call.run_id}{mark}",
            asked=time.time(),
        )

    async def caller(self, calls: int, seconds: float) -> str:
        """The node that is the next to call, with so many calls open. "" when none is in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    self._called.clear()
                    await self._called.wait()
                    if self._open[self.log[-1].node] >= calls:
                        return self.log[-1].node
        return ""

    async def finished(self) -> None:
        """Return once every report has been answered."""
        while self._work:
            await asyncio.wait(set(self._work))
