"""The sample agent against a real server: each way to misbehave, and what crontask makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client

from crontask_adapters.clock import SystemClock
from crontask_cli.demo_stage import Stage
from crontask_server.mcp_client import call_tool, mcp_client
from crontask_server.sample_agent import Behaviour, SampleAgent

# behaviour -> (how the execution ends, calls, what must be true of it)
EXPECTED = {
    "ok": ("success", 1),
    "fail": ("failed", 1),
    "flaky:1": ("success", 2),
    "slow:1": ("success", 1),
    "silent": ("timed_out", 1),
    "twice": ("success", 1),
    "early": ("success", 1),
    "late:2.5": ("success", 1),
    "refuse": ("failed", 1),
}


async def create(client: Client, behaviour: str) -> int:
    kind, _, amount = behaviour.partition(":")
    times = f', "times": {amount}' if amount else ""
    made = await call_tool(
        client,
        "create_cron_task",
        {
            "task_name": behaviour,
            "conversation_id": "c",
            "schedule_type": 1,
            "delay_seconds": 0,
            "retry_interval_ms": 100,
            "report_timeout_seconds": 1,
            "task_content": f'Work. Parameters: {{"agent": "{kind}"{times}}}',
        },
    )
    return int(made["task_id"])


async def ended(client: Client, tasks: dict[int, str]) -> dict[str, dict[str, Any]]:
    """Each execution by behaviour, once all are as they will stay."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(100):
        page = await call_tool(client, "get_task_executions", {"page_size": 100})
        found = {tasks[e["task_id"]]: e for e in page["executions"]}
        states = {name: e["exec_status_text"] for name, e in found.items()}
        if states == {name: state for name, (state, _) in EXPECTED.items()}:
            break
        await asyncio.sleep(0.1)
    return found


@pytest.mark.requirement("A6.2r", "A6.6", "A6.3")
async def test_each_behaviour_of_an_agent_ends_as_the_rules_say(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    async with (
        Stage(folder=tmp_path, hear=events.append, clock=SystemClock()) as stage,
        mcp_client(stage.mcp_url) as client,
    ):
        tasks = {await create(client, behaviour): behaviour for behaviour in EXPECTED}
        found = await ended(client, tasks)
    assert EXPECTED == {
        name: (found[name]["exec_status_text"], found[name]["delivery"]["calls"])
        for name in EXPECTED
        if name in found
    }
    assert found["late:2.5"]["result"]["late"] is True
    assert "GA callback timeout, auto-marked" == found["silent"]["error_msg"]
    reported = [(e["task_name"], e.get("duplicate", False)) for e in events
                if e["event"] == "reported" and e["task_name"] in ("twice", "silent")]  # fmt: skip
    assert [("twice", False), ("twice", True)] == reported
    assert "stopped" == events[-1]["event"]


@pytest.mark.requirement("A6.1b")
async def test_a_repeat_of_a_fire_gets_the_same_run_id_and_is_not_worked_on_again() -> None:
    events: list[dict[str, Any]] = []
    nobody = "http://127.0.0.1:9/mcp"
    agent = SampleAgent(mcp_url=nobody, tell=events.append, default=Behaviour("silent"), work=0.0)
    call = {
        "task_id": 1, "task_name": "t", "task_content": "x", "fire_id": "f" * 20, "attempt": 1,
        "fire_time": "2026-01-01T00:00:00+08:00",
    }  # fmt: skip
    url = await agent.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        answers = []
        for _ in range(2):
            async with session.post(url, json=call) as answer:
                answers.append((answer.status, (await answer.json())["task_run_id"]))
        async with session.post(url, data=b"not json") as answer:
            assert 400 == answer.status
    await agent.stop()
    assert [(200, "run-fffffffffffff")] * 2 == answers
    kinds = [e["event"] for e in events]
    assert (1, 1, 1) == tuple(kinds.count(k) for k in ("called", "repeat", "unreadable"))
