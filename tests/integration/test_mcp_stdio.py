"""``crontask mcp`` as a real process over standard input and output."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.faces import CRON, call, refused
from tests.integration.served import agent, environment, until

URL = "http://127.0.0.1:9/v1/task/execute"
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


def words(url: str) -> list[str]:
    return ["-m", "crontask_cli", "mcp", "-o", f"executor.default_callback_url={url}"]


BROKEN = """
import asyncio
from crontask_adapters.settings_load import load
from crontask_adapters.wiring import open_app
from crontask_core.errors import Unavailable
from crontask_server.stdio_serve import serve_stdio

class Runtime:
    async def run(self):
        raise Unavailable("the store is gone")
    def stop(self):
        pass

async def main():
    app = await open_app(load().settings)
    await serve_stdio(app, Runtime())

asyncio.run(main())
"""


class Raw:
    """The process with its pipes: one JSON line in, one out."""

    def __init__(self, folder: Path, url: str = URL, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words(url), *more],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = (
            self.process.stdin,
            self.process.stdout,
            self.process.stderr,
        )
        self.lines: list[bytes] = []
        self.send(HELLO)
        assert "crontask" == self.receive()["result"]["serverInfo"]["name"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        self.stdin.write(json.dumps(message).encode() + b"\n")
        self.stdin.flush()

    def receive(self) -> dict[str, Any]:
        self.lines.append(self.stdout.readline())
        return dict(json.loads(self.lines[-1]))

    def tool(self, name: str, **args: object) -> dict[str, Any]:
        params = {"name": name, "arguments": args}
        self.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        return dict(self.receive()["result"]["structuredContent"])

    def end(self, seconds: float) -> tuple[int, float]:
        """Wait for the end, at most so long: the exit code and how long it took."""
        began = time.monotonic()
        try:
            code = self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
        took = time.monotonic() - began
        self.lines += self.stdout.readlines()
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        return code, took


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_client_of_either_era_works_over_stdio(tmp_path: Path, era: str) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=words(URL), env=environment(tmp_path), cwd=tmp_path
    )
    async with Client(server, mode=era) as client:
        assert 13 == len((await client.list_tools()).tools)
        made = await call(client, "create_cron_task", **CRON, task_key="k")
        assert ("local", True) == (made["user_id"], made["will_fire"])
        error = await refused(client, "create_cron_task", **CRON, tz="UTC")
        assert "UNKNOWN_ARGUMENT" == error["code"]
        assert "FORBIDDEN" == (await refused(client, "list_cron_tasks", user_id="bob"))["code"]


@pytest.mark.requirement("A5.2")
async def test_on_a_sqlite_store_the_tasks_do_fire(tmp_path: Path) -> None:
    async with agent() as ga:
        server = StdioServerParameters(
            command=sys.executable, args=words(ga.url), env=environment(tmp_path), cwd=tmp_path
        )
        once = {**CRON, "schedule_type": 1, "delay_seconds": 0.5}
        del once["cron_expr"]
        async with Client(server) as client:
            await call(client, "create_cron_task", **once)
            await asyncio.wait_for(ga.called.wait(), 10)
            assert CRON["task_content"] == ga.calls[0]["task_content"]

            async def running() -> bool:
                rows = (await call(client, "get_task_executions"))["executions"]
                return [e["exec_status_text"] for e in rows] == ["running"]

            await until(running)
            report = {"task_id": 1, "task_run_id": "run_1", "status": "success", "result": "ok"}
            assert (await call(client, "report_task_result", **report))["recorded"] is True
            shown = await call(client, "get_cron_task", task_id=1)
            assert "completed" == shown["status_text"]


@pytest.mark.requirement("A5.2")
def test_it_ends_with_0_within_2_s_of_the_end_of_its_input(tmp_path: Path) -> None:
    raw = Raw(tmp_path)
    assert raw.tool("create_cron_task", **CRON)["created"] is True
    raw.stdin.close()
    code, took = raw.end(10)
    assert 0 == code
    assert took < 2


@pytest.mark.requirement("A5.2")
async def test_a_call_under_way_does_not_hold_it_up_and_is_handed_on(
    tmp_path: Path,
) -> None:
    async with agent(answers=False) as ga:
        raw = Raw(tmp_path, ga.url)
        raw.tool("create_cron_task", **CRON)
        raw.tool("run_cron_task_now", task_id=1)
        await asyncio.wait_for(ga.called.wait(), 10)
        raw.stdin.close()
        code, took = await asyncio.to_thread(raw.end, 10)
    assert 0 == code
    assert took < 2
    db = sqlite3.connect(tmp_path / "tasks.db")
    rows = db.execute("SELECT exec_status, takeovers FROM t_task_execution").fetchall()
    db.close()
    assert [(0, 1)] == rows


@pytest.mark.requirement("A5.2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_although_its_input_stays_open(
    tmp_path: Path, number: signal.Signals
) -> None:
    raw = Raw(tmp_path)
    raw.tool("create_cron_task", **CRON)
    raw.process.send_signal(number)
    code, took = raw.end(10)
    assert 0 == code
    assert took < 2
    db = sqlite3.connect(tmp_path / "tasks.db")
    nodes = db.execute("SELECT count(*), sum(retired_at IS NULL) FROM t_cron_node").fetchall()
    db.close()
    assert [(1, 0)] == nodes


@pytest.mark.requirement("A4.2")
def test_standard_output_carries_mcp_and_nothing_else(tmp_path: Path) -> None:
    raw = Raw(tmp_path, URL, "-o", "log.level=debug", "-o", "log.format=human")
    raw.tool("create_cron_task", **CRON)
    raw.tool("run_cron_task_now", task_id=1)
    assert raw.tool("create_cron_task", nonsense=1)["ok"] is False
    raw.stdin.close()
    code, _ = raw.end(10)
    assert 0 == code
    assert 4 == len(raw.lines)
    assert {"2.0"} == {json.loads(line)["jsonrpc"] for line in raw.lines}


def test_a_runtime_that_fails_ends_the_process_although_its_input_stays_open(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BROKEN], cwd=tmp_path, env=environment(tmp_path),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert 5 == process.wait(20)
        assert process.stderr is not None and process.stdout is not None
        assert "error: STORE_UNAVAILABLE: the store is gone" in process.stderr.read()
        assert "" == process.stdout.read()
