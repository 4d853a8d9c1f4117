"""What tests of the MCP side share: use cases over a store in memory, and a face to call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import attrs
import jsonschema
from mcp import Client

from crontask_adapters.address_guard import check_callback_url
from crontask_core.model import NodeRow, Rules
from crontask_core.tasks import Tasks
from crontask_core.testing import START, MemoryRepo, MemoryStore, RecordingObserver, VirtualClock
from crontask_server.identity import Caller
from crontask_server.mcp_server import McpFace
from crontask_server.tool_schemas import SPECS

AGENT_URL = "http://127.0.0.1:8351/v1/task/execute"
CRON = {
    "task_name": "DNFM CPA check",
    "schedule_type": 2,
    "conversation_id": "conv_abc123",
    "task_content": "Check the CPA of DNFM.",
    "cron_expr": "0 9 * * 1-5",
}


@attrs.define(kw_only=True)
class World:
    """One installation in memory at Monday 2026-03-02 09:00 in Shanghai; ``caller`` may be set."""

    clock: VirtualClock
    repo: MemoryRepo
    tasks: Tasks
    caller: Caller

    def face(self, **more: Any) -> McpFace:
        return McpFace(tasks=self.tasks, caller=lambda: self.caller, version="1.2.3", **more)

    async def live_node(self) -> None:
        """Let a node be there that fires tasks."""
        node = NodeRow(
            incarnation="n1", node_id="n", roles="scheduler", version="1", started_at=START,
            seen_at=START,
        )  # fmt: skip
        await self.repo.register(node)


def world(rules: Rules | None = None, caller: Caller | None = None) -> World:
    rules = rules or Rules(default_callback_url=AGENT_URL)
    clock = VirtualClock()
    repo = MemoryRepo(MemoryStore(), now=clock.database_now, rules=rules)
    keys = itertools.count(1)
    tasks = Tasks(
        repo=repo,
        clock=clock,
        observer=RecordingObserver(),
        rules=rules,
        installation="test",
        new_key=lambda: f"auto-{next(keys)}",
        check_url=lambda url: check_callback_url(url, rules.allow_hosts),
    )
    return World(clock=clock, repo=repo, tasks=tasks, caller=caller or Caller(user="ann"))


async def call(client: Client, tool: str, _meta: Any = None, **args: Any) -> dict[str, Any]:
    """The structured answer of a call, success or error, checked against the tool's schema."""
    result = await client.call_tool(tool, args, meta=_meta)
    answer: Mapping[str, Any] = result.structured_content
    jsonschema.validate(answer, SPECS[tool].output_schema)
    assert answer["ok"] is not result.is_error
    text = result.content[0].text
    if result.is_error:
        assert "\n" not in text
        assert text.startswith(answer["error"]["code"])
    else:
        message, _, rest = text.partition("\n")
        assert message == answer["message"]
        assert json.loads(rest).items() <= answer.items()
    return dict(answer)


async def refused(client: Client, tool: str, _meta: Any = None, **args: Any) -> dict[str, Any]:
    """The error of a call that must be refused."""
    answer = await call(client, tool, _meta, **args)
    assert answer["ok"] is False, answer
    return dict(answer["error"])
