"""Real ``crontask`` processes on one store, and what the tests of several nodes ask of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
from aiohttp import web

START_WAIT = 40.0


def environment(folder: Path) -> dict[str, str]:
    """An environment in which nothing of the machine's user is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRONTASK_")}
    return kept | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
    }


def line(words: tuple[str, ...], options: Mapping[str, str]) -> list[str]:
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    return [sys.executable, "-m", "crontask_cli", *words, *given]


@attrs.frozen
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def crontask(folder: Path, *words: str, seconds: float = 60, **options: str) -> Ended:
    """Run a command to its end. ``options`` are settings, with ``__`` for the point."""
    settings = {name.replace("__", "."): value for name, value in options.items()}
    process = await asyncio.create_subprocess_exec(
        *line(words, settings),
        cwd=folder,
        env=environment(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@attrs.define
class Node:
    """A process that stays. ``told`` reads what it wrote."""

    process: asyncio.subprocess.Process
    log: Path

    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event; lines for people are left out."""
        lines = [json.loads(text) for text in self.told().splitlines() if text.startswith("{")]
        return [found for found in lines if found["event"] == name]

    async def says(self, text: str, count: int = 1, seconds: float = START_WAIT) -> None:
        """Return once it has written ``text`` ``count`` times."""
        until = time.monotonic() + seconds
        while self.told().count(text) < count:
            assert self.process.returncode is None, f"it ended:\n{self.told()}"
            assert time.monotonic() < until, f"it did not say {text!r}:\n{self.told()}"
            await asyncio.sleep(0.05)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 30) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()


@asynccontextmanager
async def node(folder: Path, *words: str, name: str = "", **options: str) -> AsyncIterator[Node]:
    """A command that stays, on a free port, up once it says so; killed at the end of the block."""
    settings = {"server.port": "0", "log.format": "json"}
    settings |= {key.replace("__", "."): value for key, value in options.items()}
    log = folder / f"{name or words[0]}.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *line(words, settings),
            cwd=folder,
            env=environment(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    it = Node(process, log)
    try:
        await it.says("crontask serves")
        yield it
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@attrs.define
class Sink:
    """An agent that accepts everything: (task key, arrival in Unix seconds, body) of each call."""

    url: str = ""
    calls: list[tuple[str, float, dict[str, Any]]] = attrs.field(factory=list)

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((body["task_key"], time.time(), body))
        return web.json_response({"task_run_id": f"run-{body['fire_id']}-{body['attempt']}"})

    async def got(self, count: int, seconds: float = 30) -> None:
        """Return once there were ``count`` calls."""
        until = time.monotonic() + seconds
        while len(self.calls) < count:
            assert time.monotonic() < until, f"{len(self.calls)} calls, not {count}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def sink() -> AsyncIterator[Sink]:
    it = Sink()
    app = web.Application()
    app.router.add_post("/v1/task/execute", it._handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/task/execute"
    try:
        yield it
    finally:
        await runner.cleanup()
