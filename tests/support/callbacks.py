"""A callback to send, and clients to send it with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from crontask_adapters.ga_http import HttpGaClient
from crontask_core.model import Callback
from crontask_core.policy import Answer

__all__ = ["FIRE_ID", "NOW", "call", "callback", "now"]

NOW = datetime(2026, 4, 23, 1, 0, 7, tzinfo=UTC)
FIRE_ID = "0f8fad5b-d9cb-569f-a165-70867728950e"


def now() -> datetime:
    return NOW


def callback(url: str = "http://agent.example/v1/task/execute", **changes: Any) -> Callback:
    """The sample of the source document, as this fire's first attempt."""
    fields: dict[str, Any] = {
        "url": url,
        "task_id": 1001,
        "task_key": "task_dnfm_cpa_monitor",
        "task_name": "DNFM CPA异常监控",
        "user_id": "josetian",
        "conversation_id": "conv_abc123",
        "task_content": "查询 DNFM 过去7天 CPA 数据，CPA>100则截图推送企微群。",
        "fire_time": datetime(2026, 4, 23, 1, 0, tzinfo=UTC),
        "timezone": "Asia/Shanghai",
        "schedule_type": 2,
        "fire_count": 15,
        "fire_id": FIRE_ID,
        "execution_id": 7,
        "attempt": 1,
        "revision": 3,
    }
    return Callback(**(fields | changes))


async def call(client: HttpGaClient, url: str, **changes: Any) -> Answer:
    return await client.call(callback(url, **changes))
