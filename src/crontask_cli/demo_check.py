"""Whether the demo's fires kept the guarantee: pure functions of what both sides saw.

The server's word is the list of executions it answers over MCP; the agent's word is what it
received. The guarantee is checked on the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

__all__ = ["Delivery", "Planned", "faults"]

View = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Planned:
    """A task of the demo: the fires it must have, and how each must end after how many calls."""

    task_id: int
    title: str
    due: tuple[datetime, ...]
    ends: str
    calls: int = 1


@attrs.frozen(kw_only=True)
class Delivery:
    """One callback as the agent received it, and the status it answered."""

    fire_id: str
    status: int
    lateness_ms: float


def faults(
    plan: Sequence[Planned], executions: Sequence[View], deliveries: Sequence[Delivery]
) -> list[str]:
    """What is off, in words; empty when every due fire is accounted for."""
    out: list[str] = []
    for task in plan:
        out += _task_faults(task, [e for e in executions if e["task_id"] == task.task_id])
    ids = Counter(str(e["fire_id"]) for e in executions)
    out += [f"fire_id {one} belongs to {n} executions" for one, n in ids.items() if n > 1]
    received: dict[str, list[Delivery]] = {}
    for delivery in deliveries:
        received.setdefault(delivery.fire_id, []).append(delivery)
    out += [f"the agent was sent unknown fire {one}" for one in received if one not in ids]
    for execution in executions:
        out += _delivery_faults(execution, received.get(str(execution["fire_id"]), []))
    return out


def _task_faults(task: Planned, executions: Sequence[View]) -> list[str]:
    out = []
    seen = [datetime.fromisoformat(e["fire_time"]["local"]) for e in executions]
    if sorted(seen) != sorted(task.due):
        out.append(f"{task.title}: due at {_times(task.due)}, but fired at {_times(seen)}")
    for execution in executions:
        state = execution["exec_status_text"]
        if state != task.ends:
            out.append(f"{task.title}: ended {state}, expected {task.ends}")
        calls = execution["delivery"]["calls"]
        if calls != task.calls:
            out.append(f"{task.title}: {calls} calls, expected {task.calls}")
    return out


def _times(instants: Sequence[datetime]) -> str:
    return ", ".join(at.isoformat() for at in sorted(instants)) or "no time"


def _delivery_faults(execution: View, received: Sequence[Delivery]) -> list[str]:
    """A fire is sent again only when the agent did not accept it (README, sentence 2)."""
    name = f"execution {execution['execution_id']}"
    if not received:
        return [f"{name}: the agent never got it"]
    out = [
        f"{name}: sent again although the agent had answered {before.status}"
        for before in received[:-1]
        if before.status < 300
    ]
    if received[-1].status >= 300:
        out.append(f"{name}: the agent never accepted it")
    if len(received) != execution["delivery"]["calls"]:
        calls = execution["delivery"]["calls"]
        out.append(f"{name}: {calls} calls recorded, the agent got {len(received)}")
    return out
