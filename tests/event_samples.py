"""One event of each kind, made of rows whose texts must never be seen."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs

from crontask_core.batch_model import BatchAnswer, BatchRun, ReplyKind, RunStatus
from crontask_core.events import (
    BatchCallEnded,
    BatchRunEnded,
    BatchRunStarted,
    CallEnded,
    ClaimEnded,
    DatabaseClockJumped,
    Event,
    ExecutionMoved,
    FiresRecomputed,
    FireStarted,
    LockUnavailable,
    NodeChanged,
    NodeOutdated,
    PassFailed,
    ReportReceived,
    RowSetAside,
    TaskChanged,
)
from crontask_core.model import (
    AttemptClass,
    ExecStatus,
    Execution,
    NodeRow,
    ScheduleType,
    Task,
)
from crontask_core.policy import Verdict

NOW = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)

TASK = Task(
    id=7,
    uid="0e0e0e0e-0000-5000-8000-000000000007",
    task_key="daily",
    user_id="josetian",
    conversation_id="c-1",
    task_name="SECRET-name",
    task_desc="SECRET-desc",
    task_content="SECRET-content",
    schedule_type=ScheduleType.CRON,
    cron_expr="0 9 * * *",
    timezone="Asia/Shanghai",
    callback_url="http://u:SECRET@agent.example.com/x",
    next_fire_time=NOW,
    created_at=NOW,
    updated_at=NOW,
)
PENDING = Execution(
    id=11,
    fire_id="f-1",
    task_id=7,
    task_key="daily",
    user_id="josetian",
    fire_time=NOW,
    fence=1,
    executor_node="n1",
    ga_result="SECRET-result",
    response_body="SECRET-body",
    error_msg="SECRET-error",
    next_action_at=NOW,
    created_at=NOW,
    updated_at=NOW,
)
CALLING = attrs.evolve(PENDING, exec_status=ExecStatus.CALLING)
RUNNING = attrs.evolve(CALLING, exec_status=ExecStatus.RUNNING, task_run_id="run-1")
NODE = NodeRow(
    incarnation="abc", node_id="host:1:x", roles="fire", version="0.1", started_at=NOW, seen_at=NOW
)
VERDICT = Verdict(
    outcome=AttemptClass.RETRY,
    http_status=503,
    reason="the agent answered HTTP 503",
    answer="SECRET",
)

BATCH_RUN = BatchRun(
    run_id="r1",
    task_name="login_ip_risk",
    app_code="lalu",
    owner_node_id="w1",
    status=RunStatus.SUCCEEDED,
    claimed_count=100,
    processed_count=99,
    started_at_ms=1_772_413_200_000,
    finished_at_ms=1_772_413_200_120,
    duration_ms=120,
)


def ended(status: ExecStatus, reason: str = "", **changes: Any) -> Execution:
    """The execution in a final state."""
    return attrs.evolve(PENDING, exec_status=status, reason=reason, next_action_at=None, **changes)


EVENTS: list[Event] = [
    TaskChanged(task=TASK, what="updated", changed=("cron_expr", "task_content")),
    ClaimEnded(tasks=3, started=1, queued=2, skipped=0, seconds=0.0123),
    FireStarted(execution=CALLING, lateness=0.25),
    CallEnded(execution=CALLING, verdict=VERDICT, seconds=1.5),
    ExecutionMoved(before=CALLING, after=RUNNING, why="settle"),
    ReportReceived(task_id=7, status="success", duplicate=False, late=False, pending=False),
    NodeChanged(node=NODE, what="registered"),
    PassFailed(loop="claim", error="the database is locked", retryable=True),
    RowSetAside(kind="task", id=7, reason="cannot be claimed"),
    LockUnavailable(error="no answer within 100 ms"),
    DatabaseClockJumped(at=NOW, seconds=3600.0),
    NodeOutdated(here="zone data 2025b", seen="zone data 2026f", remedy="Upgrade tzdata."),
    FiresRecomputed(data="zone data 2026f, cron rules 1", moved=3, done=True),
    BatchRunStarted(run=BATCH_RUN, lateness=0.2),
    BatchCallEnded(
        run=BATCH_RUN,
        answer=BatchAnswer(kind=ReplyKind.UNAVAILABLE, code="UNAVAILABLE", error="refused"),
        seconds=0.2,
    ),
    BatchRunEnded(run=BATCH_RUN, failures=0),
]
