"""The agent of the contract page, as it stands, against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web

from crontask_adapters.signing import Signer
from crontask_server.mcp_client import call_tool, mcp_client
from tests.unit.test_docs import DOCS, blocks

AGENT, CHECK = blocks(DOCS / "howto/agent.md", "python")
PATH = "/v1/task/execute"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@attrs.define
class Stage:
    """A server on a fresh SQLite file and the agent of the page, each a process of its own."""

    folder: Path
    server_port: int = attrs.Factory(free_port)
    agent_port: int = attrs.Factory(free_port)
    processes: dict[str, subprocess.Popen[bytes]] = attrs.Factory(dict)

    @property
    def mcp_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"

    @property
    def agent_url(self) -> str:
        return f"http://127.0.0.1:{self.agent_port}{PATH}"

    def start(self, name: str, *command: str, **environ: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**clean, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start_server(self) -> None:
        values = {
            "store.url": f"sqlite:///{self.folder}/crontask.db",
            "server.port": self.server_port,
            "executor.default_callback_url": self.agent_url,
        }
        options = [word for key, value in values.items() for word in ("-o", f"{key}={value}")]
        self.start("server", "-m", "crontask_cli", "serve", *options)
        await self.wait_for(f"http://127.0.0.1:{self.server_port}/readyz", 200)

    async def start_agent(self, source: str = AGENT) -> None:
        port = str(self.agent_port)
        self.start("agent", "-c", source, CRONTASK_MCP_URL=self.mcp_url, PORT=port)
        await self.wait_for(self.agent_url, 405)  # it is there, and wants a POST

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(timeout=20)

    async def wait_for(self, url: str, status: int, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(url) as answer:
                        if answer.status == status:
                            return
                except aiohttp.ClientError:
                    pass
                for name, process in self.processes.items():
                    assert process.poll() is None, (self.folder / f"{name}.log").read_text()
                await asyncio.sleep(0.05)

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        async with mcp_client(self.mcp_url) as client:
            return await call_tool(client, name, arguments)

    async def create(self, content: str) -> int:
        made = await self.tool(
            "create_cron_task",
            task_name="Hello",
            schedule_type=1,
            delay_seconds=0,
            conversation_id="c",
            task_content=content,
        )
        return int(made["task_id"])

    async def execution(
        self, task_id: int, until: Callable[[dict[str, Any]], bool], seconds: float = 20
    ) -> dict[str, Any]:
        """The task's only execution, in full, once it is as wanted."""
        async with asyncio.timeout(seconds):
            while True:
                page = await self.tool("get_task_executions", task_id=task_id)
                if page["executions"] and until(page["executions"][0]):
                    number = page["executions"][0]["execution_id"]
                    full = await self.tool("get_task_executions", execution_id=number)
                    return dict(full["executions"][0])
                await asyncio.sleep(0.05)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    await stage.start_server()
    try:
        yield stage
    finally:
        for process in stage.processes.values():
            process.kill()
            process.wait()


def is_over(execution: dict[str, Any]) -> bool:
    return "end_time" in execution


def runs_of(stage: Stage) -> list[tuple[str, int]]:
    with sqlite3.connect(stage.folder / "agent.db") as db:
        rows = db.execute("SELECT fire_id, over FROM runs").fetchall()
    db.close()
    return rows


@pytest.mark.requirement("A6.1a", "A6.1b")
async def test_the_agent_of_the_page_takes_a_fire_works_and_reports(stage: Stage) -> None:
    await stage.start_agent()

    row = await stage.execution(await stage.create("Say hello."), is_over)

    assert "success" == row["exec_status_text"]
    assert "done: Say hello." == row["result"]["text"]
    assert row["fire_id"] == row["task_run_id"]


async def test_a_fire_that_is_sent_twice_is_worked_on_once(stage: Stage) -> None:
    await stage.start_agent()
    row = await stage.execution(await stage.create("Say hello."), is_over)

    again = {"task_id": row["task_id"], "fire_id": row["fire_id"], "task_content": "Say hello."}
    async with (
        aiohttp.ClientSession() as session,
        session.post(stage.agent_url, json=again) as answer,
    ):
        assert {"task_run_id": row["task_run_id"]} == await answer.json()

    assert [(row["fire_id"], 1)] == runs_of(stage)


async def test_work_that_raises_is_reported_as_failed(stage: Stage) -> None:
    broken = AGENT.replace("    return f\"done: {call['task_content']}\"", "    return 1 / 0")
    assert broken != AGENT
    await stage.start_agent(broken)

    row = await stage.execution(await stage.create("Divide."), is_over)

    assert "failed" == row["exec_status_text"]
    assert "ZeroDivisionError: division by zero" == row["error_msg"]


async def test_an_agent_killed_while_it_works_finishes_after_its_restart(stage: Stage) -> None:
    slow = AGENT.replace('    return f"done:', '    await asyncio.sleep(60)\n    return f"done:')
    assert slow != AGENT
    await stage.start_agent(slow)
    task = await stage.create("Say hello.")
    await stage.execution(task, lambda row: row["exec_status_text"] == "running")

    stage.stop("agent", signal.SIGKILL)
    await stage.start_agent()

    row = await stage.execution(task, is_over)
    assert ("success", 1) == (row["exec_status_text"], row["delivery"]["calls"])


@pytest.mark.requirement("A6.2r")
async def test_a_report_waits_for_a_server_that_is_away(stage: Stage) -> None:
    slow = AGENT.replace('    return f"done:', '    await asyncio.sleep(1.5)\n    return f"done:')
    quick = slow.replace("asyncio.sleep(5)", "asyncio.sleep(0.2)")
    assert quick != slow
    await stage.start_agent(quick)
    task = await stage.create("Say hello.")
    await stage.execution(task, lambda row: row["exec_status_text"] == "running")

    stage.stop("server", signal.SIGKILL)
    await asyncio.sleep(2)
    await stage.start_server()

    row = await stage.execution(task, is_over)
    assert ("success", 1) == (row["exec_status_text"], row["delivery"]["calls"])


@pytest.mark.parametrize(("late", "status"), [(0, 200), (600, 401)])
async def test_the_check_of_the_page_takes_fresh_calls_and_refuses_old_ones(
    late: int, status: int
) -> None:
    space: dict[str, Any] = {}
    exec(compile(CHECK, "docs/howto/agent.md", "exec"), space)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(await space["checked"](request))

    app = web.Application()
    app.router.add_post(PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    body = b'{"fire_id": "f1"}'
    at = datetime.now(UTC) - timedelta(seconds=late)
    headers = Signer(space["KEYS"]).headers("f1", body, at)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{PATH}", data=body, headers=headers) as got,
    ):
        assert status == got.status
    await runner.cleanup()


def test_the_agent_is_as_small_as_the_page_says() -> None:
    assert len(AGENT.splitlines()) < 70
