"""What batch jobs of owner services are made of: jobs, leases, runs, calls and answers (DESIGN 7).

Field names are the column names of ``cron_task_leases`` and ``cron_task_runs``, as seed B has
them. Numbers that end in ``_ms`` are milliseconds, instants among them since 1970 in UTC.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

import attrs

from crontask_core.errors import ConfigError
from crontask_core.model import NAMESPACE

__all__ = [
    "BatchAnswer",
    "BatchCall",
    "BatchJob",
    "BatchKey",
    "BatchRun",
    "Extra",
    "Lease",
    "ReplyKind",
    "RunStatus",
    "from_ms",
    "job_problems",
    "run_id_of",
    "span_ms",
    "to_ms",
]

BatchKey = tuple[str, str]
"""(task_name, app_code): what a lease is held of."""

Extra = int | float | str | bool
_EMPTY: Mapping[str, Extra] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_INT32 = 2_147_483_647


def to_ms(at: datetime) -> int:
    """An aware instant in milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // _MS


def from_ms(number: int) -> datetime:
    """Milliseconds since 1970 as aware UTC."""
    return _EPOCH + timedelta(milliseconds=number)


def span_ms(span: timedelta) -> int:
    return span // _MS


class RunStatus(StrEnum):
    """B3. ``timed_out``: the owner did not answer in time, and may have done the work.
    ``abandoned``: its node died or lost its lease."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABANDONED = "abandoned"


class ReplyKind(StrEnum):
    """What one call of an owner came to. ``unavailable``: it was not reached."""

    OK = "ok"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"


@attrs.frozen(kw_only=True)
class BatchJob:
    """A batch job as configured (B1). It ticks once for each of its ``app_codes``, each by itself.

    ``timeout`` bounds one call, ``max_round`` how long calls of one run may go on being started
    (default: ``lock_ttl`` - ``timeout``). ``method`` is the owner's explicit method; ``extra`` are
    further fields of its request.
    """

    name: str
    owner: str
    method: str
    interval: timedelta
    timeout: timedelta
    lock_ttl: timedelta
    batch_size: int
    app_codes: tuple[str, ...]
    max_round: timedelta = attrs.Factory(lambda self: self.lock_ttl - self.timeout, takes_self=True)
    extra: Mapping[str, Extra] = _EMPTY

    @property
    def keys(self) -> tuple[BatchKey, ...]:
        return tuple((self.name, code) for code in self.app_codes)


def job_problems(job: BatchJob, field: str = "") -> Iterator[ConfigError]:
    """What is wrong with a job's own values; ``field`` is where they come from (B1)."""
    where = field or job.name

    def wrong(key: str, what: str, example: str) -> ConfigError:
        return ConfigError(f"{key} {what}", field=f"{where}.{key}", example=example)

    if not _NAME.fullmatch(job.name) or len(job.name) > 96:
        yield ConfigError(
            f"{job.name!r:.100} is not a name of a batch job",
            field=where,
            hint="letters, digits and . _ -, at most 96",
            example="login_ip_risk",
        )
    for key in ("interval", "timeout", "lock_ttl"):
        span = getattr(job, key)
        if not timedelta(milliseconds=10) <= span <= timedelta(days=366):
            yield wrong(key, "must be between 10ms and 366d", "5s")
    if job.lock_ttl <= job.timeout:
        yield ConfigError(
            "lock_ttl must be longer than timeout: a call has to fit into its lease",
            field=f"{where}.lock_ttl",
            hint="set it to several times the timeout",
            example=f"{span_ms(job.timeout * 3)}ms",
        )
    elif job.max_round <= timedelta(0):
        yield wrong("max_round", "must be longer than zero", "20s")
    if not 1 <= job.batch_size <= _INT32:
        yield wrong("batch_size", f"must be between 1 and {_INT32}", "100")
    if not job.app_codes:
        yield wrong("app_codes", "must name at least one app", '["lalu"]')
    for code in job.app_codes:
        if not _NAME.fullmatch(code) or len(code) > 32:
            yield wrong("app_codes", f"has {code!r:.40}: letters, digits and . _ -, up to 32", "")
    if len(set(job.app_codes)) != len(job.app_codes):
        yield wrong("app_codes", "names an app twice", '["lalu"]')


@attrs.frozen(kw_only=True)
class Lease:
    """Who may run a job for an app, and when it runs next. One row of ``cron_task_leases``.

    ``owner_node_id`` "" means that nobody holds it. ``epoch`` counts acquisitions: it, and no
    time stamp, names a generation. ``failures`` counts failed runs in a row (B5).
    """

    task_name: str
    app_code: str
    owner_node_id: str = ""
    lease_until_ms: int = 0
    updated_at_ms: int
    epoch: int = 0
    next_run_at_ms: int
    failures: int = 0
    paused: bool = False

    @property
    def key(self) -> BatchKey:
        return (self.task_name, self.app_code)


@attrs.frozen(kw_only=True)
class BatchRun:
    """One run: all calls of one round. One row of ``cron_task_runs``. The counts are the sums of
    what the owner answered, over ``batch_count`` answers; nothing is assumed of the others."""

    run_id: str
    task_name: str
    app_code: str
    owner_node_id: str
    status: RunStatus = RunStatus.RUNNING
    claimed_count: int = 0
    processed_count: int = 0
    success_count: int = 0
    failure_count: int = 0
    batch_count: int = 0
    started_at_ms: int
    finished_at_ms: int | None = None
    duration_ms: int = 0
    error_message: str = ""

    @property
    def key(self) -> BatchKey:
        return (self.task_name, self.app_code)


def run_id_of(key: BatchKey, epoch: int, started_at_ms: int) -> str:
    """The run that this generation of the lease makes: UUIDv5, the same however often asked."""
    name = "\x1f".join(("batch", *key, str(epoch), str(started_at_ms)))
    return str(uuid.uuid5(NAMESPACE, name))


@attrs.frozen(kw_only=True)
class BatchCall:
    """One call of an owner: seed B's request (B7), and how to make it. ``timeout`` in seconds."""

    method: str
    timeout: float
    request_id: str
    app_code: str
    caller: str
    run_id: str
    worker_id: str
    batch_size: int
    lock_ttl_ms: int
    extra: Mapping[str, Extra] = _EMPTY


@attrs.frozen(kw_only=True)
class BatchAnswer:
    """What came of a call. ``code`` is one of few words: OK, DEADLINE_EXCEEDED, HTTP_503 ...

    ``backlog`` (pieces of work left) and ``oldest_pending_age_ms`` are None when the owner does
    not say.
    """

    kind: ReplyKind
    code: str
    error: str = ""
    claimed_count: int = 0
    processed_count: int = 0
    success_count: int = 0
    failure_count: int = 0
    has_more: bool = False
    backlog: int | None = None
    oldest_pending_age_ms: int | None = None
