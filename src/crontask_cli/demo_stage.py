"""The demo's two processes, the server and the agent, and their clean end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from crontask_adapters.clock import SystemClock
from crontask_core.errors import CrontaskError

__all__ = ["DemoFailed", "Stage", "free_ports"]

_STOP_SECONDS = 8.0
_LOG_LINES = 15


class DemoFailed(CrontaskError):
    """The demo did not show what it should; the message says what is off."""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on just now, each another."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(sock.getsockname()[1]) for sock in held]
    for sock in held:
        sock.close()
    return ports


@attrs.define(kw_only=True)
class Stage:
    """Server and agent as processes of their own, with everything they write in ``folder``.

    ``hear`` gets each event of the agent. Use as ``async with``: whatever happens inside, both
    processes have ended afterwards.
    """

    folder: Path
    hear: Callable[[dict[str, Any]], None]
    clock: SystemClock
    mcp_url: str = ""
    agent_url: str = ""
    _processes: dict[str, asyncio.subprocess.Process] = attrs.field(factory=dict, init=False)
    _listener: asyncio.Task[None] | None = attrs.field(default=None, init=False)

    async def __aenter__(self) -> Stage:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def pids(self) -> dict[str, int]:
        """The process ids, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def check(self) -> None:
        """Raise DemoFailed, with the end of its log, when a process has ended by itself."""
        for name, process in self._processes.items():
            if process.returncode is not None:
                raise DemoFailed(
                    f"the {name} ended with code {process.returncode}; its last words:\n"
                    + self._log_end(name)
                )

    # -- inside --------------------------------------------------------------------------------
    async def _start(self) -> None:
        server_port, agent_port = free_ports(2)
        self.mcp_url = f"http://127.0.0.1:{server_port}/mcp"
        self.agent_url = f"http://127.0.0.1:{agent_port}/v1/task/execute"
        config = self.folder / "crontask.toml"
        config.write_text(self._config(server_port), encoding="utf-8")
        await self._spawn("server", "serve", "--config", str(config))
        await self._spawn(
            "agent", "agent", "--config", str(config), "--port", str(agent_port), "--json"
        )
        self._listener = asyncio.create_task(self._listen())
        ready = f"http://127.0.0.1:{server_port}/readyz"
        await self._wait_for(ready)
        await self._wait_for(f"http://127.0.0.1:{agent_port}/healthz")

    def _config(self, server_port: int) -> str:
        values = {
            "store.url": f"sqlite:///{self.folder / 'crontask.db'}",
            "server.host": "127.0.0.1",
            "server.port": server_port,
            "executor.default_callback_url": self.agent_url,
            "quota.min_interval": "1s",
            "identity.user": "demo",
            "log.format": "json",
        }
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())

    async def _spawn(self, name: str, *arguments: str) -> None:
        # What the user has configured for a real installation must not reach the demo.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "crontask_cli", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if name == "agent" else log,
                stderr=log,
                env=environ,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends both in order
            )

    async def _listen(self) -> None:
        stdout = self._processes["agent"].stdout
        assert stdout is not None
        async for line in stdout:
            with contextlib.suppress(ValueError):
                self.hear(json.loads(line))

    async def _wait_for(self, url: str, seconds: float = 30.0) -> None:
        import aiohttp

        until = self.clock.elapsed() + seconds
        async with aiohttp.ClientSession() as session:
            while True:
                self.check()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return
                if self.clock.elapsed() > until:
                    raise DemoFailed(f"{url} was not ready within {seconds:g} s")
                await self.clock.sleep(0.05)

    async def _stop(self) -> None:
        running = [p for p in self._processes.values() if p.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                for process in running:
                    await process.wait()
        finally:
            for process in running:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def _log_end(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:]) or "(nothing)"
