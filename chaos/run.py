"""One run: servers, nodes, agents, callers and faults together, then quiet, then the evidence."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from chaos.agents import Agents, Mood, Reporter
from chaos.callers import Callers
from chaos.evidence import Evidence, Fault
from chaos.faults import Injector, draw_skew
from chaos.fleet import Fleet, skew_library
from chaos.plan import Plan
from chaos.tables import drop_unique_keys, left_to_do, read_tables
from crontask_adapters.embed import open_tasks
from crontask_adapters.settings_load import load
from crontask_adapters.wiring import App
from tests.services import MariaDb, Redis

__all__ = ["Servers", "run"]

_WARM = 60.0
_STALL = 0.5
_NOT_EXPECTED = ("Traceback", "exception was never retrieved", "never awaited")
Tell = Callable[[str], None]


@attrs.frozen
class Servers:
    """Where the nodes keep their tasks; without ``database`` it is a SQLite file."""

    url: str
    database: MariaDb | None = None
    redis: Redis | None = None


async def run(plan: Plan, servers: Servers, folder: Path, tell: Tell = print) -> Evidence:
    """Do it all, and return what is there to be checked. Blocks on nothing but the run."""
    evidence = Evidence(terms=plan.terms)
    await asyncio.to_thread(_upgrade, servers.url, folder)
    if plan.drop_keys:
        await drop_unique_keys(servers.url)
    mood = Mood(
        think=plan.think,
        callback_timeout=plan.terms.callback_timeout,
        report_timeout=plan.terms.report_timeout,
    )
    agents = Agents(plan.seed, mood, None, evidence.deliveries)  # type: ignore[arg-type]
    async with agents.serving() as address:
        options = {
            **plan.options(),
            "store.url": servers.url,
            "executor.default_callback_url": address,
            **({"redis.url": servers.redis.url} if servers.redis is not None else {}),
        }
        async with _caller_app(options, folder) as app, _reporting(app, agents, evidence):
            library = skew_library() if servers.database is not None else ""
            if servers.database is not None and not library:
                tell("libfaketime is not installed: all nodes have the right time")
            fleet = Fleet(
                plan, options, folder, evidence.faults, evidence.exits, draw_skew(plan), library
            )
            try:
                await _play(plan, servers, app, agents, fleet, evidence, tell)
            finally:
                await fleet.abort()
    await read_tables(servers.url, evidence)
    evidence.logged = _logged(folder)
    return evidence


async def _play(
    plan: Plan,
    servers: Servers,
    app: App,
    agents: Agents,
    fleet: Fleet,
    evidence: Evidence,
    tell: Tell,
) -> None:
    callers = Callers(plan, app.tasks, evidence.actions)
    injector = Injector(plan, fleet, agents, evidence.faults, servers.database, servers.redis)
    await fleet.start()
    async with asyncio.timeout(_WARM):
        while not all(node.ready for node in fleet.nodes.values()):
            await asyncio.sleep(0.1)
    evidence.started = began = time.time()
    until = began + plan.seconds
    async with _watching(evidence.faults):
        await callers.populate()
        async with asyncio.TaskGroup() as group:
            group.create_task(callers.one_offs(until))
            group.create_task(callers.bursts(until))
            group.create_task(callers.edits(until))
            group.create_task(injector.run(began))
            group.create_task(_telling(evidence, until, tell))
        await callers.close()
        evidence.drained = await _drain(plan, servers.url, agents)
        evidence.ended = time.time()
        await fleet.close()


async def _drain(plan: Plan, url: str, agents: Agents) -> bool:
    """Wait until every execution has ended and every report is answered."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(plan.drain):
            await agents.finished()
            while await left_to_do(url):
                await asyncio.sleep(0.25)
            await agents.finished()
            return True
    return False


def _upgrade(url: str, folder: Path) -> None:
    command = [sys.executable, "-m", "crontask_cli", "-o", f"store.url={url}", "db", "upgrade"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)


@asynccontextmanager
async def _caller_app(options: dict[str, str], folder: Path) -> AsyncIterator[App]:
    async with open_tasks(load(options, environ={}, folder=folder).settings) as app:
        yield app


@asynccontextmanager
async def _reporting(app: App, agents: Agents, evidence: Evidence) -> AsyncIterator[None]:
    agents.reporter = Reporter(app.tasks, evidence.reports)
    writers = [asyncio.create_task(agents.reporter.run()) for _ in range(3)]
    try:
        yield
    finally:
        for writer in writers:
            writer.cancel()
        ends = await asyncio.gather(*writers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end


@asynccontextmanager
async def _watching(faults: list[Fault]) -> AsyncIterator[None]:
    """Notes when this very process got no processor time: then the agents were late as well."""

    async def watch() -> None:
        while True:
            before = time.time()
            await asyncio.sleep(0.1)
            if time.time() - before > 0.1 + _STALL:
                faults.append(Fault(kind="stall", start=before, end=time.time()))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


async def _telling(evidence: Evidence, until: float, tell: Tell) -> None:
    while time.time() < until:
        await asyncio.sleep(min(10.0, max(0.0, until - time.time())))
        left = max(0, round(until - time.time()))
        calls, faults = len(evidence.deliveries), len(evidence.faults)
        tell(f"{left:>4} s left: {calls} deliveries, {faults} faults")


def _logged(folder: Path) -> list[str]:
    """Lines that no node should ever write."""
    return [
        f"{path.stem} logged {line[:300]}"
        for path in sorted(folder.glob("n*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if any(word in line for word in _NOT_EXPECTED)
    ]
