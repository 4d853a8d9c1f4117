"""The whole round with real processes and real HTTP, on each kind of database."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from crontask_adapters.sql.upgrade import upgrade
from tests.faces import call
from tests.integration.served import agent, environment, served, until

SERVERS = ["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)]
TASK = {
    "task_name": "CPA check",
    "conversation_id": "conv_abc123",
    "task_content": '检查 {"game": "DNFM"} 🍣',
    "schedule_type": 1,
    "delay_seconds": 0,
}


@pytest.fixture(params=["sqlite", *SERVERS])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the tables in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    made = str(request.getfixturevalue(f"{request.param}_url"))
    await upgrade(made)
    return made


async def _state(client: Client, task_id: int) -> dict[str, Any]:
    [execution] = (await call(client, "get_task_executions", task_id=task_id))["executions"]
    return dict(execution)


@pytest.mark.requirement("A4.2", "A6.1a", "A6.2r", "A5.2")
async def test_a_task_is_created_fired_and_reported_and_outlives_its_server(
    url: str, tmp_path: Path
) -> None:
    async with agent() as ga:
        settings = {"executor__default_callback_url": ga.url, "store__url": url}
        with served(tmp_path, **settings) as server:
            async with server.client() as client:
                made = await call(client, "create_cron_task", **TASK)
                assert made["will_fire"] is True
                await until(ga.called.wait)

                async def running() -> bool:
                    state = (await _state(client, made["task_id"]))["exec_status_text"]
                    return bool(state == "running")

                await until(running)
            server.signal()
            assert await server.ended(10) == 0
        [sent] = ga.calls
        assert sent["task_content"] == TASK["task_content"]

        with served(tmp_path, **settings) as second:
            async with second.client() as client:
                report = {"task_id": made["task_id"], "task_run_id": "run_1", "status": "success"}
                told = await call(client, "report_task_result", **report, result="CPA 85 🍣")
                assert (told["recorded"], told["duplicate"]) == (True, False)
                over = await _state(client, made["task_id"])
                assert (over["result"]["state"], over["result"]["text"]) == ("success", "CPA 85 🍣")
                task = await call(client, "get_cron_task", task_id=made["task_id"])
                assert task["status_text"] == "completed"
        assert len(ga.calls) == 1


def _start(folder: Path, url: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "crontask_cli", *words],
        env=environment(folder) | {"CRONTASK_STORE_URL": url},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_three_upgrades_at_once_by_the_command_all_succeed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    if kind != "sqlite":
        url = request.getfixturevalue(f"{kind}_url")
    running = [_start(tmp_path, url, "db", "upgrade", "--json") for _ in range(3)]
    told = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], told
    answers = [json.loads(text) for text in told]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["revision"] == answers[0]["head"]
    check = _start(tmp_path, url, "db", "check", "--json")
    assert (check.communicate(timeout=60)[0], check.returncode) == (told[0], 0)
