"""A real ``crontask serve`` as a process of its own, and an agent for it to call."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

START_WAIT = 30.0


@attrs.define
class Served:
    """A running server. ``url`` is its address without a path; ``told`` reads what it wrote."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def told(self) -> str:
        return self.log.read_text()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit code; fails when the process goes on longer."""
        return self.process.wait(seconds)

    async def ended(self, seconds: float) -> int:
        return await asyncio.to_thread(self.wait, seconds)

    @asynccontextmanager
    async def client(self, era: str = "auto", token: str = "") -> AsyncIterator[Client]:
        """A connected client. The SDK leaves a client of ours open, so it is closed here."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with create_mcp_http_client(headers=headers) as http:
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(transport, mode=era) as connected:
                yield connected


def environment(folder: Path) -> dict[str, str]:
    """An environment in which nothing of the machine's user is found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRONTASK_")}
    return kept | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "CRONTASK_STORE_URL": f"sqlite:///{folder / 'tasks.db'}",
    }


@contextmanager
def served(
    folder: Path, *words: str, command: str = "serve", config: str = "", **options: str
) -> Iterator[Served]:
    """Serve on a free port until the block ends; the store is a file in ``folder``.

    ``options`` are settings, with ``__`` for the point: ``server__host="0.0.0.0"``.
    """
    told = folder / f"{command}.log"
    line = [sys.executable, "-m", "crontask_cli", command, *words, "-o", "server.port=0"]
    for name, value in options.items():
        line += ["-o", f"{name.replace('__', '.')}={value}"]
    if config:
        (folder / "crontask.toml").write_text(config)
        line += ["--config", str(folder / "crontask.toml")]
    with told.open("wb") as log:
        process = subprocess.Popen(
            line, cwd=folder, env=environment(folder), stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield Served(process, _address(process, told), told)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], told: Path) -> str:
    deadline = time.monotonic() + START_WAIT
    while time.monotonic() < deadline:
        found = re.search(r"crontask serves .* at (http://\S+:\d+)", told.read_text())
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the server did not start:\n{told.read_text()}")


@attrs.define
class Agent:
    """A small HTTP agent: keeps each callback it gets, and answers when ``go`` is set."""

    url: str = ""
    calls: list[dict[str, Any]] = attrs.field(factory=list)
    called: asyncio.Event = attrs.field(factory=asyncio.Event)
    go: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: (\d+)", head)
            self.calls.append(json.loads(await reader.readexactly(int(size[1]) if size else 0)))
            self.called.set()
            await self.go.wait()
            body = json.dumps({"task_run_id": f"run_{len(self.calls)}"}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def agent(*, answers: bool = True) -> AsyncIterator[Agent]:
    """An agent that listens; with ``answers`` false it waits for ``go`` before it answers."""
    it = Agent()
    if answers:
        it.go.set()
    server = await asyncio.start_server(it._serve, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/task/execute"
    try:
        yield it
    finally:
        it.go.set()
        server.close()


async def until(check: Any, seconds: float = 15.0) -> Any:
    """The first true answer of an async check; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := await check():
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen in time")


def token_config(tokens: Mapping[str, Mapping[str, object]]) -> str:
    """A configuration file with these tokens: secret -> name, scopes, user."""
    from crontask_server.identity import digest

    parts = []
    for secret, entry in tokens.items():
        parts.append("[[server.tokens]]")
        parts.append(f'sha256 = "{digest(secret)}"')
        parts += [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    return "\n".join(parts) + "\n"
