"""The sample agent: a real HTTP endpoint that takes callbacks, works, and reports over MCP.

It shows what an author of an agent has to do, in this order: answer at once with a run id; know a
``fire_id`` again and not work twice; report when done, and report again when that did not arrive.
And it can misbehave on purpose, to show what crontask does then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import attrs
from aiohttp import web

from crontask_adapters.clock import SystemClock, utcnow
from crontask_core.errors import CrontaskError, InvalidInput
from crontask_server.mcp_client import ToolFailed, call_tool, mcp_client

__all__ = ["BEHAVIOURS", "PATH", "Behaviour", "SampleAgent", "parse_behaviour"]

PATH = "/v1/task/execute"
BEHAVIOURS = {
    "ok": "answers at once, works a moment, reports success",
    "fail": "works a moment, reports failed",
    "flaky": "flaky:N answers 503 the first N times, then as ok",
    "slow": "slow:S takes S seconds to answer, then as ok",
    "silent": "answers, never reports",
    "twice": "reports the result twice",
    "early": "reports before it has answered",
    "late": "late:S reports only S seconds later",
    "refuse": "answers 400",
}
_AMOUNTS = {"flaky": 1.0, "slow": 5.0, "late": 60.0}
_RETRY = (0.2, 0.5, 1.0, 2.0, 5.0)

Tell = Callable[[dict[str, Any]], None]


@attrs.frozen
class Behaviour:
    """What to do with a callback; ``amount`` is times for flaky and seconds for slow and late."""

    kind: str
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.amount:g}" if self.kind in _AMOUNTS else self.kind


def parse_behaviour(text: str) -> Behaviour:
    """``ok``, ``flaky:2``, ``slow:5`` ... Raises InvalidInput with the words there are."""
    kind, colon, number = text.strip().partition(":")
    amount = _AMOUNTS.get(kind, 0.0)
    if kind not in BEHAVIOURS or (colon and kind not in _AMOUNTS):
        raise _bad_behaviour(text)
    if colon:
        try:
            amount = float(number)
        except ValueError:
            raise _bad_behaviour(text) from None
        if not 0 <= amount <= 86_400:
            raise _bad_behaviour(text)
    return Behaviour(kind, amount)


def behaviour_in(content: str, default: Behaviour) -> Behaviour:
    """The behaviour a task asks for with parameters such as ``{"agent": "flaky", "times": 2}``
    somewhere in its content; ``default`` when it asks for none that exists."""
    for found in _objects(content):
        asked = found.get("agent")
        if not isinstance(asked, str):
            continue
        amount = found.get("times", found.get("seconds"))
        try:
            return parse_behaviour(asked if amount is None else f"{asked}:{amount}")
        except CrontaskError:
            return default
    return default


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand in a text, left to right."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        at = text.find("{", end)


def _bad_behaviour(text: str) -> InvalidInput:
    return InvalidInput(
        f"there is no behaviour {text!r}",
        field="behaviour",
        received=text,
        hint="flaky takes a number of times, slow and late take seconds.",
        example="flaky:2",
        candidates=list(BEHAVIOURS),
    )


@attrs.define(kw_only=True)
class Reports:
    """Sends reports through one MCP session, and opens it again when it breaks."""

    url: str
    token: str = ""
    clock: SystemClock
    trouble: Callable[[str], None]
    _queue: asyncio.Queue[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]] = attrs.field(
        factory=asyncio.Queue, init=False
    )

    async def send(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Report, for as long as it takes. Raises ToolFailed when crontask refuses the report."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((arguments, answer))
        return await answer

    async def run(self) -> None:
        """Never returns. What could not be sent is sent again after a pause."""
        failures = 0
        while True:
            item = await self._queue.get()
            try:
                async with mcp_client(self.url, self.token) as client:
                    while True:
                        arguments, answer = item
                        try:
                            done = await call_tool(client, "report_task_result", arguments)
                            if not answer.done():
                                answer.set_result(done)
                        except ToolFailed as error:
                            if error.retryable:
                                raise
                            if not answer.done():
                                answer.set_exception(error)
                        failures = 0
                        item = await self._queue.get()
            except Exception as error:  # noqa: BLE001 - whatever broke, the report must still arrive
                self.trouble(_innermost(error))
                if not item[1].done():
                    self._queue.put_nowait(item)
                await self.clock.sleep(_RETRY[min(failures, len(_RETRY) - 1)])
                failures += 1


def _innermost(error: BaseException) -> str:
    """What went wrong, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


@attrs.define(kw_only=True)
class SampleAgent:
    """One agent process. ``work`` is how long a run takes, in seconds; ``tell`` gets every event
    as plain data with ``at`` and ``event``."""

    mcp_url: str
    token: str = ""
    default: Behaviour = Behaviour("ok")
    work: float = 0.2
    tell: Tell
    clock: SystemClock = attrs.field(factory=SystemClock)
    _runs: dict[str, str] = attrs.field(factory=dict, init=False)
    _tries: dict[str, int] = attrs.field(factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    _reports: Reports = attrs.field(init=False)
    _runner: web.AppRunner | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._reports = Reports(
            url=self.mcp_url,
            token=self.token,
            clock=self.clock,
            trouble=lambda why: self._tell("unreported", error=why),
        )

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the address to give as callback URL. Raises OSError."""
        app = web.Application(client_max_size=1024 * 1024)
        app.router.add_post(PATH, self._callback)
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._spawn(self._reports.run())
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{self._runner.addresses[0][1]}{PATH}"
        self._tell("listening", url=url, mcp_url=self.mcp_url, behaviour=str(self.default))
        return url

    async def stop(self) -> None:
        """Close the port and drop unfinished work. crontask times those runs out."""
        if self._runner is not None:
            await self._runner.cleanup()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tell("stopped", runs=len(self._runs))

    # -- the callback --------------------------------------------------------------------------
    async def _callback(self, request: web.Request) -> web.Response:
        try:
            call = await request.json()
            fire_id, content = str(call["fire_id"]), str(call["task_content"])
        except (ValueError, KeyError, TypeError) as error:
            self._tell("unreadable", error=f"{type(error).__name__}: {error}")
            return web.json_response({"error": "this is not a callback of crontask"}, status=400)
        known = self._runs.get(fire_id)
        if known is not None:
            self._told(call, "repeat", status=200, task_run_id=known)
            return web.json_response({"task_run_id": known})
        behaviour = behaviour_in(content, self.default)
        self._tries[fire_id] = self._tries.get(fire_id, 0) + 1
        refusal = self._refusal(behaviour, self._tries[fire_id])
        self._told(call, "called", status=refusal or 200, behaviour=str(behaviour))
        if refusal:
            return web.json_response({"error": f"asked to answer {refusal}"}, status=refusal)
        # Remembered before anything is awaited: a repeat that comes now must not work again.
        run_id = self._runs[fire_id] = f"run-{fire_id[:13]}"
        if behaviour.kind == "slow":
            await self.clock.sleep(behaviour.amount)
        if behaviour.kind == "early":
            await self._report(call, run_id, behaviour)
        else:
            self._spawn(self._run(call, run_id, behaviour))
        return web.json_response({"task_run_id": run_id})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "runs": len(self._runs)})

    @staticmethod
    def _refusal(behaviour: Behaviour, tries: int) -> int:
        if behaviour.kind == "refuse":
            return 400
        return 503 if behaviour.kind == "flaky" and tries <= behaviour.amount else 0

    # -- the work ------------------------------------------------------------------------------
    async def _run(self, call: dict[str, Any], run_id: str, behaviour: Behaviour) -> None:
        await self.clock.sleep(behaviour.amount if behaviour.kind == "late" else self.work)
        if behaviour.kind == "silent":
            self._told(call, "silent", task_run_id=run_id)
            return
        for _ in range(2 if behaviour.kind == "twice" else 1):
            await self._report(call, run_id, behaviour)

    async def _report(self, call: dict[str, Any], run_id: str, behaviour: Behaviour) -> None:
        failed = behaviour.kind == "fail"
        arguments = {
            "task_id": call["task_id"],
            "task_run_id": run_id,
            "status": "failed" if failed else "success",
            "fire_id": call["fire_id"],
            **(
                {"error": "the sample agent was asked to fail"}
                if failed
                else {"result": f"done: {call.get('task_name', '')}"}
            ),
        }
        try:
            answer = await self._reports.send(arguments)
        except ToolFailed as error:
            self._told(call, "refused", task_run_id=run_id, error=str(error))
            return
        parts = {k: answer[k] for k in ("duplicate", "late", "pending") if answer.get(k)}
        self._told(call, "reported", task_run_id=run_id, status=arguments["status"], **parts)

    # -- inside --------------------------------------------------------------------------------
    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _told(self, call: dict[str, Any], event: str, **more: Any) -> None:
        """An event about a fire, with how late it is by this host's clock."""
        names = ("fire_id", "execution_id", "task_id", "task_key", "task_name", "attempt")
        if event in ("called", "repeat"):
            due = datetime.fromisoformat(call["fire_time"])
            more["lateness_ms"] = round((utcnow() - due) / timedelta(milliseconds=1), 1)
            more["fire_time"] = call["fire_time"]
        self._tell(event, **{name: call.get(name) for name in names}, **more)

    def _tell(self, event: str, **more: Any) -> None:
        self.tell({"at": utcnow().isoformat(), "event": event, **more})
