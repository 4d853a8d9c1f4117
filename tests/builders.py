"""Tasks, nodes, reports and outcomes for tests: everything has a default, name what matters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from crontask_core.model import (
    AttemptClass,
    Execution,
    NodeRow,
    Report,
    Rules,
    ScheduleType,
    Task,
    task_uid,
)
from crontask_core.policy import Outcome, Verdict
from crontask_core.testing import START

T0 = START
"""Monday 2026-03-02 01:00:00 UTC, 09:00 in Shanghai: where every virtual clock starts."""

RULES = Rules(default_callback_url="http://agent.test/v1/task/execute")


def at(*, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> datetime:
    """T0 plus this much."""
    return T0 + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def utc(text: str) -> datetime:
    """An ISO time as aware UTC: ``utc("2026-03-02 01:10")``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _task(key: str, changes: dict[str, Any]) -> Task:
    task = Task(
        uid="",
        task_key=key,
        user_id="ann",
        conversation_id="conv-1",
        task_name=f"name of {key}",
        task_content=f"do what {key} says",
        timezone="Asia/Shanghai",
        schedule_type=ScheduleType.EVERY,
        created_at=T0,
        updated_at=T0,
    )
    task = attrs.evolve(task, **changes)
    uid = task_uid("installation", task.user_id, task.task_key, task.created_at)
    return attrs.evolve(task, uid=task.uid or uid)


def every(key: str = "tick", seconds: float = 600, **changes: Any) -> Task:
    """A task that fires every so often (10 min), for the first time one interval after T0."""
    interval = timedelta(seconds=seconds)
    defaults: dict[str, Any] = {
        "interval_ms": interval // timedelta(milliseconds=1),
        "anchor_at": T0,
        "next_fire_time": T0 + interval,
    }
    return _task(key, defaults | changes)


def once(key: str = "once", when: datetime = T0 + timedelta(minutes=10), **changes: Any) -> Task:
    """A one-off task, 10 min after T0."""
    defaults: dict[str, Any] = {
        "schedule_type": ScheduleType.ONCE,
        "trigger_time": when,
        "next_fire_time": when,
    }
    return _task(key, defaults | changes)


def cron(key: str, expr: str, next_fire_time: datetime, **changes: Any) -> Task:
    """A task by cron expression; its first fire is given, nothing is computed here."""
    defaults: dict[str, Any] = {
        "schedule_type": ScheduleType.CRON,
        "cron_expr": expr,
        "next_fire_time": next_fire_time,
    }
    return _task(key, defaults | changes)


def node(name: str = "n1", **changes: Any) -> NodeRow:
    """A node's row; the incarnation is the name."""
    defaults: dict[str, Any] = {
        "incarnation": name,
        "node_id": f"host:{name}",
        "roles": "scheduler",
        "version": "0.1.0",
        "started_at": T0,
        "seen_at": T0,
    }
    return NodeRow(**(defaults | changes))


def accepted(run_id: str = "run-1", **changes: Any) -> Verdict:
    """The agent said 200 and this run id."""
    return Verdict(
        outcome=AttemptClass.ACCEPTED, http_status=200, task_run_id=run_id, answer="{}", **changes
    )


def retry(reason: str = "the agent answered HTTP 503", **changes: Any) -> Verdict:
    """Not accepted, to be tried again; it may have arrived."""
    defaults: dict[str, Any] = {"http_status": 503}
    return Verdict(outcome=AttemptClass.RETRY, reason=reason, **(defaults | changes))


def unreachable() -> Verdict:
    """Not accepted, to be tried again; it did not arrive."""
    return Verdict(outcome=AttemptClass.RETRY, reason="connection refused", arrived=False)


def refused(reason: str = "the agent answered HTTP 400") -> Verdict:
    """Not accepted for good."""
    return Verdict(
        outcome=AttemptClass.FINAL, http_status=400, reason=reason, answer="no", arrived=False
    )


def outcome(execution: Execution, verdict: Verdict | None, now: datetime) -> Outcome:
    """The end of the call of an execution as begun; None: handed back unsent."""
    return Outcome(
        execution_id=execution.id,
        fire_id=execution.fire_id,
        task_id=execution.task_id,
        fence=execution.fence,
        started_at=execution.updated_at,
        ended_at=now,
        revision=1,
        verdict=verdict,
    )


def report(task_id: int, run_id: str = "", status: str = "success", **changes: Any) -> Report:
    """What an agent says of a run."""
    return Report(task_id=task_id, task_run_id=run_id, status=status, **changes)
