"""What crontask knows: tasks, executions, attempts, reports, and the legal moves between states.

Every class is frozen; a change is ``evolve`` or ``attrs.evolve``. Instants are aware UTC with
microseconds, numbers that end in ``_ms`` are milliseconds. Field names are the column names of the
tables, so one word stands for one thing everywhere (DESIGN 5, seed A 3.1 and 3.2).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs

from crontask_core.schedule import Cron, Every, Once, Schedule

__all__ = [
    "EXEC_MOVES",
    "FINAL",
    "NAMESPACE",
    "TASK_MOVES",
    "Attempt",
    "AttemptClass",
    "Callback",
    "Delivery",
    "ExecStatus",
    "Execution",
    "InboxReport",
    "MisfirePolicy",
    "NewTask",
    "NodeRow",
    "OverlapPolicy",
    "ReadyFire",
    "Report",
    "Rules",
    "ScheduleType",
    "Task",
    "TaskStatus",
    "TriggerKind",
    "evolve",
    "fire_id_of",
    "host_of",
    "schedule_of",
    "task_uid",
]

NAMESPACE = uuid.UUID("6d0f3c0e-4b0a-5d5e-9a52-0c1f6f6e7a01")
MORE_THAN = 1_000
"""Missed runs are counted exactly to this; ``MORE_THAN + 1`` in ``missed_count`` means "more"."""


class ScheduleType(IntEnum):
    """How a task's fires are made (A2.1a)."""

    ONCE = 1
    CRON = 2
    EVERY = 3


class TaskStatus(IntEnum):
    """Seed A 2.2."""

    DISABLED = 0
    ENABLED = 1
    COMPLETED = 2
    DELETED = 3


class ExecStatus(IntEnum):
    """Seed A 3.2."""

    PENDING = 0
    CALLING = 1
    SUCCESS = 2
    FAILED = 3
    TIMED_OUT = 4
    CANCELLED = 5
    SKIPPED = 6
    RUNNING = 7


class TriggerKind(IntEnum):
    SCHEDULE = 0
    MANUAL = 1


class MisfirePolicy(StrEnum):
    """What a recurring task does with several runs missed inside its window (DESIGN 3.8)."""

    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"
    SKIP = "skip"


class OverlapPolicy(StrEnum):
    """Whether a fire may start while an earlier one is 0, 1 or 7 (DESIGN 4)."""

    ALLOW = "allow"
    SKIP = "skip"


class Delivery(StrEnum):
    """Whether a fire that may have arrived is sent again (DESIGN 4)."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class AttemptClass(StrEnum):
    """What one call of the agent came to; decided once, in ``policy.judge``."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    FINAL = "final"
    UNKNOWN = "unknown"


FINAL = frozenset(
    {
        ExecStatus.SUCCESS,
        ExecStatus.FAILED,
        ExecStatus.TIMED_OUT,
        ExecStatus.CANCELLED,
        ExecStatus.SKIPPED,
    }
)
"""States in which nothing more will happen by itself: ``next_action_at`` is None."""

_S = ExecStatus
EXEC_MOVES: Mapping[tuple[ExecStatus, ExecStatus], str] = MappingProxyType(
    {
        (_S.PENDING, _S.CALLING): "a node begins the call",
        (_S.PENDING, _S.CANCELLED): "cancelled, or its task was paused or deleted",
        (_S.PENDING, _S.SKIPPED): "waited longer than the window: too late",
        (_S.PENDING, _S.FAILED): "a retry found no slot within the window, or an early report",
        (_S.PENDING, _S.SUCCESS): "reported after an attempt whose outcome is unknown",
        (_S.PENDING, _S.RUNNING): "an attempt whose outcome was unknown turns out accepted",
        (_S.CALLING, _S.PENDING): "no acceptance: retry, take-over, or handed back unsent",
        (_S.CALLING, _S.RUNNING): "the agent accepted",
        (_S.CALLING, _S.SUCCESS): "reported before the acceptance was recorded",
        (_S.CALLING, _S.FAILED): "refused, retries spent, or reported as failed",
        (_S.RUNNING, _S.SUCCESS): "reported",
        (_S.RUNNING, _S.FAILED): "reported as failed",
        (_S.RUNNING, _S.TIMED_OUT): "no report in time",
        (_S.TIMED_OUT, _S.RUNNING): "a late sign of life, once",
        (_S.TIMED_OUT, _S.SUCCESS): "a late report",
        (_S.TIMED_OUT, _S.FAILED): "a late report, failed",
        (_S.FAILED, _S.SUCCESS): "a late report after an attempt that was not accepted in time",
        (_S.FAILED, _S.RUNNING): "a late sign of life, once",
        (_S.CANCELLED, _S.SUCCESS): "a late report of a call made before the cancellation",
        (_S.CANCELLED, _S.FAILED): "a late report of a call made before the cancellation",
    }
)
"""The only legal moves of an execution; the diagram in the docs is generated from this."""

_T = TaskStatus
TASK_MOVES: Mapping[tuple[TaskStatus, TaskStatus], str] = MappingProxyType(
    {
        (_T.ENABLED, _T.DISABLED): "paused",
        (_T.DISABLED, _T.ENABLED): "resumed",
        (_T.ENABLED, _T.COMPLETED): "its last fire is over",
        (_T.ENABLED, _T.DELETED): "deleted",
        (_T.DISABLED, _T.DELETED): "deleted",
        (_T.COMPLETED, _T.DELETED): "deleted, which frees its key",
    }
)
"""The only legal moves of a task (A2.2)."""


@attrs.frozen(kw_only=True)
class Rules:
    """The numbers and switches that decisions depend on; from settings, with their defaults."""

    zone: str = "Asia/Shanghai"
    compensate_window: timedelta = timedelta(minutes=30)
    misfire_cap: int = 10
    lease: timedelta = timedelta(seconds=60)
    callback_timeout: timedelta = timedelta(seconds=30)
    ga_callback_timeout: timedelta = timedelta(minutes=30)
    max_retry: int = 3
    retry_interval_ms: int = 5_000
    max_backoff: timedelta = timedelta(seconds=60)
    max_retry_after: timedelta = timedelta(minutes=10)
    takeover_cap: int = 5
    overlap: OverlapPolicy = OverlapPolicy.ALLOW
    tasks_per_user: int = 1_000
    min_interval: timedelta = timedelta(seconds=60)
    nested_creates: str = "warn"
    default_callback_url: str = ""
    allow_hosts: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class NewTask:
    """What a caller asks for. Unset fields are None and take the installation's defaults.

    ``trigger_time`` and ``end_at`` are ISO 8601 text or aware datetimes, ``delay_seconds`` and
    ``interval_seconds`` seconds, ``retry_interval_ms`` milliseconds, ``misfire_grace_seconds`` and
    ``report_timeout_seconds`` seconds.
    """

    task_name: str
    task_content: str
    conversation_id: str = ""
    schedule_type: int | None = None
    task_key: str | None = None
    task_desc: str | None = None
    trigger_time: str | datetime | None = None
    delay_seconds: float | None = None
    cron_expr: str | None = None
    interval_seconds: float | None = None
    timezone: str | None = None
    end_at: str | datetime | None = None
    max_fires: int | None = None
    max_retry: int | None = None
    retry_interval_ms: int | None = None
    misfire_policy: str | None = None
    misfire_grace_seconds: float | None = None
    overlap_policy: str | None = None
    delivery: str | None = None
    report_timeout_seconds: float | None = None
    pause_after_failures: int | None = None
    callback_url: str | None = None
    paused: bool = False


@attrs.frozen(kw_only=True, slots=False)
class Task:
    """A stored intention: what, for whom, when. One row of ``t_cron_task``.

    ``next_fire_time`` is None exactly when the task may not fire. ``revision`` counts edits, not
    fires. ``scheduled_fires`` counts the scheduled fires that were not skipped at claim, which is
    what ``max_fires`` limits (X-S6); ``fire_count`` counts manual ones too. ``tombstone`` is 0, or
    the id once the task is deleted, so that its key is free again (A3.1b).
    """

    id: int = 0
    uid: str
    task_key: str
    user_id: str
    conversation_id: str
    task_name: str
    task_desc: str = ""
    task_content: str = ""
    schedule_type: ScheduleType
    trigger_time: datetime | None = None
    cron_expr: str = ""
    timezone: str
    interval_ms: int | None = None
    anchor_at: datetime | None = None
    next_fire_time: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    callback_url: str = ""
    max_retry: int = 3
    retry_interval: int = 5_000
    misfire_policy: MisfirePolicy = MisfirePolicy.RUN_ONCE
    misfire_grace_ms: int | None = None
    overlap_policy: OverlapPolicy = OverlapPolicy.ALLOW
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    report_timeout_ms: int | None = None
    pause_after_failures: int = 0
    failure_streak: int = 0
    status: TaskStatus = TaskStatus.ENABLED
    status_reason: str = ""
    last_fire_time: datetime | None = None
    fire_count: int = 0
    scheduled_fires: int = 0
    create_digest: str = ""
    revision: int = 1
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    is_deleted: bool = False
    tombstone: int = 0


@attrs.frozen(kw_only=True, slots=False)
class Execution:
    """What became of one fire. One row of ``t_task_execution``.

    ``fence`` counts the calls begun; ``executor_node`` is the incarnation that holds or last held
    it. ``next_action_at`` is when something will move it, None exactly when it is final
    (DESIGN 3.6). A skipped row with ``missed_count`` > 1 stands for the fires from
    ``missed_from`` to ``missed_to``, both included.
    """

    id: int = 0
    fire_id: str
    task_id: int
    task_key: str
    user_id: str
    fire_time: datetime
    trigger_kind: TriggerKind = TriggerKind.SCHEDULE
    fire_number: int = 0
    last_fire: bool = False
    exec_status: ExecStatus = ExecStatus.PENDING
    fence: int = 0
    takeovers: int = 0
    retry_count: int = 0
    next_action_at: datetime | None = None
    reason: str = ""
    start_time: datetime | None = None
    accepted_at: datetime | None = None
    reported_at: datetime | None = None
    end_time: datetime | None = None
    late: bool = False
    task_run_id: str = ""
    ga_result: str | None = None
    http_status: int = 0
    response_body: str | None = None
    error_msg: str | None = None
    executor_node: str = ""
    missed_count: int = 0
    missed_from: datetime | None = None
    missed_to: datetime | None = None
    created_at: datetime
    updated_at: datetime

    @property
    def is_final(self) -> bool:
        return self.exec_status in FINAL


@attrs.frozen(kw_only=True)
class Attempt:
    """One call of the agent within an execution; key (execution_id, fence)."""

    execution_id: int
    fence: int
    node: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: AttemptClass
    http_status: int = 0
    task_run_id: str = ""
    error: str = ""
    answer: str = ""
    revision: int = 0


@attrs.frozen(kw_only=True)
class ReadyFire:
    """A claimed fire that waits for a slot. ``queue_key`` is in microseconds and only orders."""

    execution_id: int
    user_id: str
    callback_host: str
    queue_key: int


@attrs.frozen(kw_only=True)
class Report:
    """What an agent says of a run (A6.2r). Names the fire by ``fire_id`` or ``execution_id`` if it
    can, else by (``task_id``, ``task_run_id``). ``status`` is success, failed or running.
    ``user_id`` None means the caller may report for anybody."""

    task_id: int
    task_run_id: str
    status: str
    result: str = ""
    error: str = ""
    fire_id: str = ""
    execution_id: int = 0
    user_id: str | None = None


@attrs.frozen(kw_only=True)
class InboxReport:
    """A report that came before its run id was known here; key (task_id, task_run_id)."""

    task_id: int
    task_run_id: str
    status: str
    result: str
    error: str
    received_at: datetime
    expires_at: datetime


@attrs.frozen(kw_only=True)
class NodeRow:
    """One incarnation of a process. ``counter`` moves every heartbeat; ``retired_at`` ends it."""

    incarnation: str
    node_id: str
    roles: str
    version: str
    counter: int = 0
    started_at: datetime
    seen_at: datetime
    retired_at: datetime | None = None


@attrs.frozen(kw_only=True)
class Callback:
    """What one call sends to the agent: seed A 6.1 and what DESIGN 3.4 adds.

    ``fire_time`` is aware UTC; the wire shows it with the task's offset. ``attempt`` counts from 1.
    ``url`` is where it goes; a client that knows better may choose by ``user_id``.
    """

    url: str
    task_id: int
    task_key: str
    task_name: str
    user_id: str
    conversation_id: str
    task_content: str
    fire_time: datetime
    timezone: str
    schedule_type: int
    fire_count: int
    fire_id: str
    execution_id: int
    attempt: int
    revision: int
    manual: bool = False


R = TypeVar("R", Task, Execution)


def evolve(row: R, **changes: Any) -> R:
    """``attrs.evolve`` for the two rows that every fire changes several times, at a tenth of its
    cost. ``changes`` are names of fields; an unknown one raises TypeError."""
    made = object.__new__(type(row))
    made.__dict__.update(row.__dict__)
    made.__dict__.update(changes)
    if len(made.__dict__) != len(row.__dict__):
        raise TypeError(f"not fields of {type(row).__name__}: {changes.keys() - row.__dict__}")
    return made


def schedule_of(task: Task) -> Schedule:
    """The task's schedule as a value; the stored fields are known to be complete."""
    if task.schedule_type is ScheduleType.ONCE:
        if task.trigger_time is None:
            raise ValueError("a one-off task without trigger_time")
        return Once(at=task.trigger_time)
    if task.schedule_type is ScheduleType.CRON:
        return Cron(expr=task.cron_expr, zone=task.timezone)
    if task.interval_ms is None or task.anchor_at is None:
        raise ValueError("an interval task without interval_ms or anchor_at")
    return Every(interval=timedelta(milliseconds=task.interval_ms), anchor=task.anchor_at)


def task_uid(installation: str, user_id: str, task_key: str, created_at: datetime) -> str:
    """UUIDv5 of (installation id, user, key, creation instant): one installation's alone."""
    name = "\x1f".join((installation, user_id, task_key, created_at.isoformat()))
    return str(uuid.uuid5(NAMESPACE, name))


def fire_id_of(uid: str, kind: TriggerKind, mark: datetime | str) -> str:
    """UUIDv5 of (task uid, fire time, trigger): the same over retries and fail-over (DESIGN 3.4).

    ``mark`` is the fire time, or the idempotency key of a manual run.
    """
    text = mark.isoformat() if isinstance(mark, datetime) else f"key:{mark}"
    # uuid.uuid5 by hand, at a third of its cost: every fire needs one (RFC 9562, 5.5).
    name = f"{int(kind)}\x1f{text}".encode()
    digest = bytearray(hashlib.sha1(bytes.fromhex(uid.replace("-", "")) + name).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    plain = digest.hex()
    return f"{plain[:8]}-{plain[8:12]}-{plain[12:16]}-{plain[16:20]}-{plain[20:]}"


def host_of(url: str) -> str:
    """The host and port a callback goes to, lower case; "" for none. What fairness counts by."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()[:255] if url else ""
