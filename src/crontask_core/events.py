"""What happened, as frozen classes, for an Observer to log or count. No event carries a secret or
task content."""

from __future__ import annotations

from datetime import datetime

import attrs

from crontask_core.batch_model import BatchAnswer, BatchRun
from crontask_core.model import Execution, NodeRow, Task
from crontask_core.policy.calls import Verdict

__all__ = [
    "BatchCallEnded",
    "BatchRunEnded",
    "BatchRunStarted",
    "CallEnded",
    "ClaimEnded",
    "DatabaseClockJumped",
    "Event",
    "ExecutionMoved",
    "FireStarted",
    "FiresRecomputed",
    "LockUnavailable",
    "NodeChanged",
    "NodeOutdated",
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
    """``what``: registered, retired, lost (retired by another), namesake (another live process has
    this node's id)."""

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


@attrs.frozen(kw_only=True)
class NodeOutdated:
    """This node's zone data or cron rules are older than the store has seen: it does not claim
    (X-S8). ``here`` and ``seen`` in words, ``remedy`` what to do."""

    here: str
    seen: str
    remedy: str


@attrs.frozen(kw_only=True)
class FiresRecomputed:
    """The stored fires of one page of tasks were compared with newer ``data``, and ``moved`` of
    them changed; ``done`` when no page is left (X-S8)."""

    data: str
    moved: int
    done: bool


@attrs.frozen(kw_only=True)
class BatchRunStarted:
    """A lease was acquired; ``lateness`` in seconds after the tick was due."""

    run: BatchRun
    lateness: float


@attrs.frozen(kw_only=True)
class BatchCallEnded:
    """One call of an owner; ``answer`` is what it said or what went wrong."""

    run: BatchRun
    answer: BatchAnswer
    seconds: float


@attrs.frozen(kw_only=True)
class BatchRunEnded:
    """A run is over. ``failures`` in a row after it, None when another node has the lease.
    ``lost``: it had been taken over meanwhile, and the stored run says abandoned."""

    run: BatchRun
    failures: int | None = None
    warning: str = ""
    lost: bool = False


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
    | NodeOutdated
    | FiresRecomputed
    | BatchRunStarted
    | BatchCallEnded
    | BatchRunEnded
)
