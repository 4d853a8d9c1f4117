"""What happened, as frozen classes, for an Observer to log or count. No event carries a secret or
task content."""

from __future__ import annotations

from datetime import datetime

import attrs

from crontask_core.model import Execution, NodeRow, Task
from crontask_core.policy.calls import Verdict

__all__ = [
    "CallEnded",
    "ClaimEnded",
    "DatabaseClockJumped",
    "Event",
    "ExecutionMoved",
    "FireStarted",
    "LockUnavailable",
    "NodeChanged",
    "PassFailed",
    "ReportReceived",
    "RowSetAside",
    "TaskChanged",
]


@attrs.frozen(kw_only=True)
class TaskChanged:
    """``what``: created, updated, paused, resumed, deleted."""

    task: Task
    what: str
    changed: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ClaimEnded:
    """``started`` on the fast path, ``queued`` behind others, ``skipped`` runs too late."""

    tasks: int
    started: int
    queued: int
    skipped: int
    seconds: float


@attrs.frozen(kw_only=True)
class FireStarted:
    """A call is about to be made; ``lateness`` in seconds after the fire time."""

    execution: Execution
    lateness: float


@attrs.frozen(kw_only=True)
class CallEnded:
    execution: Execution
    verdict: Verdict
    seconds: float


@attrs.frozen(kw_only=True)
class ExecutionMoved:
    """An execution went from ``before`` to ``after``; ``why``: settle, sweep, report, takeover,
    begin, claim, cancel. ``lost`` when the node's fence was gone and only the attempt was kept."""

    before: Execution
    after: Execution
    why: str
    lost: bool = False


@attrs.frozen(kw_only=True)
class ReportReceived:
    task_id: int
    status: str
    duplicate: bool
    late: bool
    pending: bool


@attrs.frozen(kw_only=True)
class NodeChanged:
    """``what``: registered, retired, lost (retired by another), renewed."""

    node: NodeRow
    what: str


@attrs.frozen(kw_only=True)
class PassFailed:
    """A pass of a loop raised and will be repeated; ``error`` in words."""

    loop: str
    error: str
    retryable: bool


@attrs.frozen(kw_only=True)
class RowSetAside:
    """One row could not be worked on and was put aside so that the others go on."""

    kind: str
    id: int
    reason: str


@attrs.frozen(kw_only=True)
class LockUnavailable:
    error: str


@attrs.frozen(kw_only=True)
class DatabaseClockJumped:
    """The database's clock moved ``seconds`` against elapsed time; claiming pauses (DESIGN 3.9)."""

    at: datetime
    seconds: float


Event = (
    TaskChanged
    | ClaimEnded
    | FireStarted
    | CallEnded
    | ExecutionMoved
    | ReportReceived
    | NodeChanged
    | PassFailed
    | RowSetAside
    | LockUnavailable
    | DatabaseClockJumped
)
