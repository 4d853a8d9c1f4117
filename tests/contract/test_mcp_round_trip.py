"""Create, fire, report through a real MCP client and server, on every store.

The agent is scripted and the clock virtual; ``tests/integration/test_served_stores.py`` makes the
same round with processes and real HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client

from crontask_core.testing import respond
from crontask_server.identity import Caller
from crontask_server.mcp_server import McpFace
from tests.faces import CRON, call, refused
from tests.world import NewWorld, World

NAMED = {"task_name": "CPA check", "conversation_id": "conv_abc123"}
CONTENT = '  每天检查 {"game": "DNFM", "push_target": "群 🍣"}\n'


@pytest.fixture
async def it(new_world: NewWorld) -> World:
    return await new_world()


@pytest.fixture
async def client(it: World) -> AsyncIterator[Client]:
    face = McpFace(tasks=it.tasks, caller=lambda: Caller(user="ann"), version="1.2.3")
    async with Client(face.server(), mode="auto") as connected:
        yield connected


async def _executions(client: Client, task_id: int) -> list[dict[str, Any]]:
    """Newest first."""
    shown = await call(client, "get_task_executions", task_id=task_id)
    return list(shown["executions"])


@pytest.mark.requirement("A4.2", "A6.1a", "A6.2r", "A2.3a")
async def test_a_task_is_created_fired_once_and_reported(it: World, client: Client) -> None:
    await it.node()
    made = await call(
        client, "create_cron_task", **NAMED, task_key="check", task_content=CONTENT,
        schedule_type=1, delay_seconds=60,
    )  # fmt: skip
    assert (made["will_fire"], made["next_fire_time"]["in"]) == (True, "in 60 s")
    await it.after(60)

    (sent,) = it.agent.calls
    assert (sent.task_content, sent.task_id, sent.fire_count) == (CONTENT, made["task_id"], 1)
    (running,) = await _executions(client, made["task_id"])
    assert running["exec_status_text"] == "running"
    assert running["task_run_id"] == f"run-{sent.task_id}-{sent.execution_id}-1"

    said = {"task_id": sent.task_id, "task_run_id": running["task_run_id"]}
    beat = await call(client, "report_task_result", **said, status="running", result="halfway")
    assert (beat["recorded"], beat["duplicate"]) == (True, False)
    done = await call(client, "report_task_result", **said, status="success", result='{"cpa": 85}')
    assert (done["exec_status_text"], done["duplicate"]) == ("success", False)
    again = await call(client, "report_task_result", **said, status="failed", error="no")
    assert (again["exec_status_text"], again["duplicate"]) == ("success", True)

    (over,) = await _executions(client, made["task_id"])
    assert (over["result"]["state"], over["result"]["text"]) == ("success", '{"cpa": 85}')
    assert (await call(client, "get_cron_task", task_key="check"))["status_text"] == "completed"
    await it.after(3600, step=300)
    assert len(it.agent.calls) == 1


@pytest.mark.requirement("A6.3", "A6.2r")
async def test_a_retried_fire_is_reported_by_its_fire_id(it: World, client: Client) -> None:
    await it.node()
    made = await call(
        client, "create_cron_task", **NAMED, task_content="do it", schedule_type=1, delay_seconds=0
    )
    it.agent.script(made["task_id"], respond(503), respond(200, "{}"))
    await it.run()
    await it.after(8)

    first, second = it.agent.calls
    assert first.fire_id == second.fire_id
    report = {"task_id": made["task_id"], "task_run_id": "unknown", "fire_id": second.fire_id}
    told = await call(client, "report_task_result", **report, status="failed", error="no data")
    assert told["exec_status_text"] == "failed"
    (over,) = await _executions(client, made["task_id"])
    assert (over["result"]["state"], over["retry_count"]) == ("failed", 1)


@pytest.mark.requirement("A6.2r")
async def test_a_report_that_comes_before_the_answer_is_applied(it: World, client: Client) -> None:
    node = await it.node()
    made = await call(
        client, "create_cron_task", **NAMED, task_content="do it", schedule_type=1, delay_seconds=0
    )
    await node.engine.claim()
    (calling,) = await _executions(client, made["task_id"])
    run = f"run-{made['task_id']}-{calling['execution_id']}-1"
    early = await call(
        client, "report_task_result", task_id=made["task_id"], task_run_id=run, status="success",
        result="done already",
    )  # fmt: skip
    assert early["recorded"] is True
    await it.run()

    (over,) = await _executions(client, made["task_id"])
    assert (over["result"]["state"], over["result"]["text"]) == ("success", "done already")


@pytest.mark.requirement("A2.2", "A3.1a", "A3.1b", "X-T1", "X-T2")
async def test_a_repeating_task_is_edited_paused_resumed_run_and_deleted(
    it: World, client: Client
) -> None:
    await it.node()
    made = await call(client, "create_cron_task", **CRON, task_key="daily")
    same = await call(client, "create_cron_task", **CRON, task_key="daily")
    assert (same["task_id"], same["created"]) == (made["task_id"], False)
    other = await refused(client, "create_cron_task", **CRON | {"task_name": "x"}, task_key="daily")
    assert (other["code"], other["candidates"]) == ("TASK_KEY_CONFLICT", ["task_name"])

    edit = {"task_key": "daily", "cron_expr": "*/10 * * * *", "task_desc": "often"}
    edited = await call(client, "update_cron_task", **edit)
    assert (edited["revision"], edited["next_fire_time"]["in"]) == (2, "in 10 min")
    await it.after(21 * 60, step=60)
    assert [c.fire_count for c in it.agent.calls] == [1, 2]

    once = {"task_key": "daily", "idempotency_key": "today"}
    first = await call(client, "run_cron_task_now", **once)
    await it.run()
    again = await call(client, "run_cron_task_now", **once)
    assert (first["execution_id"], again["created"]) == (again["execution_id"], False)
    assert [c.manual for c in it.agent.calls] == [False, False, True]

    paused = await call(client, "pause_cron_task", task_key="daily", reason="holiday")
    assert paused["status_text"] == "disabled"
    await it.after(30 * 60, step=300)
    assert len(it.agent.calls) == 3
    resumed = await call(client, "resume_cron_task", task_key="daily")
    assert resumed["next_fire_time"]["in"] == "in 9 min"
    await it.after(10 * 60, step=60)
    assert len(it.agent.calls) == 4

    gone = await call(client, "delete_cron_task", task_key="daily")
    assert gone["status"] == 3
    assert (await call(client, "list_cron_tasks"))["total"] == 0
    assert (await call(client, "get_task_executions", task_id=made["task_id"]))["total"] == 4
    new = await call(client, "create_cron_task", **CRON, task_key="daily")
    assert new["created"] is True and new["task_id"] != made["task_id"]
