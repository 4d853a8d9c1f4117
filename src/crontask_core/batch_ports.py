"""What batch jobs need of the outside: a store of leases and runs, and owners to call (DESIGN 7).

A ``BatchRepo`` method is one transaction; it reads the database's clock in it, loads rows under
lock, asks ``policy.batches`` and writes exactly that. Every method raises ``Unavailable``
(retryable) when the store cannot be reached; the outcome of a commit may then be unknown, and the
next pass finds out what is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import attrs

from crontask_core.batch_model import (
    BatchAnswer,
    BatchCall,
    BatchJob,
    BatchKey,
    BatchRun,
    Lease,
    RunStatus,
)
from crontask_core.policy.batches import Acquired, Denied, Finish

__all__ = [
    "BatchRepo",
    "Finished",
    "Owner",
    "OwnerHealth",
    "Renewal",
    "RunFilter",
    "Survey",
    "Want",
]


@attrs.frozen(kw_only=True)
class Survey:
    """All leases, by name and app, and the database's time when they were read."""

    now: datetime
    leases: tuple[Lease, ...]


@attrs.frozen(kw_only=True)
class Want:
    """A lease to acquire. ``forced``: although its tick has not come, or it is paused."""

    job: BatchJob
    app_code: str
    forced: bool = False


@attrs.frozen(kw_only=True)
class Renewal:
    key: BatchKey
    epoch: int
    ttl_ms: int


@attrs.frozen(kw_only=True)
class Finished:
    """What was written of a ``Finish``: the run as stored, and the lease (None when it is not
    ours). ``lost``: another had taken over, so the run stays as that one closed it."""

    run: BatchRun
    lease: Lease | None = None
    lost: bool = False


@attrs.frozen(kw_only=True)
class RunFilter:
    """Runs of a task, an app, a status, begun before ``before_ms``; None for any. Newest first."""

    task_name: str | None = None
    app_code: str | None = None
    status: RunStatus | None = None
    before_ms: int | None = None
    limit: int = 50


class BatchRepo(Protocol):
    """Leases and runs."""

    async def sync(self, jobs: Sequence[BatchJob]) -> int:
        """Add the missing leases and pull in ticks that lie too far off (``plan_sync``). Returns
        how many rows were written."""
        ...

    async def survey(self) -> Survey:
        """Every lease, unlocked."""
        ...

    async def acquire(self, node: str, wants: Sequence[Want]) -> list[Acquired | Denied]:
        """``plan_acquire`` for each, in the order given. What is acquired has its run row, and all
        other running runs of its key are abandoned (B2, B3)."""
        ...

    async def renew(self, node: str, renewals: Sequence[Renewal]) -> list[bool]:
        """``plan_renew`` for each: whether it still is ours."""
        ...

    async def finish(self, node: str, finishes: Sequence[Finish]) -> list[Finished]:
        """``plan_finish`` for each, in the order given. Repeating it changes nothing."""
        ...

    async def reap(self) -> list[BatchRun]:
        """Free leases whose holders are long gone (``plan_reap``), and close their runs: those."""
        ...

    async def set_paused(self, keys: Sequence[BatchKey], paused: bool) -> list[Lease | None]:
        """Pause or resume; the lease as it is then, None where there is none."""
        ...

    async def runs(self, where: RunFilter) -> list[BatchRun]:
        """Runs, newest first."""
        ...

    async def last_runs(self, keys: Sequence[BatchKey]) -> dict[BatchKey, BatchRun]:
        """The newest run of each key that has one."""
        ...

    async def prune_runs(self, before_ms: int, limit: int) -> int:
        """Delete at most ``limit`` ended runs that began before; returns how many."""
        ...


@attrs.frozen(kw_only=True)
class OwnerHealth:
    """``state``: ok, unknown (reached, but it does not say), or bad; ``found`` in words."""

    state: str
    found: str


class Owner(Protocol):
    """A service that owns the work, reached one way."""

    async def call(self, call: BatchCall) -> BatchAnswer:
        """One call of one explicit method, within ``call.timeout`` in all. Raises nothing but
        CancelledError: what goes wrong is an answer."""
        ...

    async def health(self, timeout: float) -> OwnerHealth:
        """Ask it how it is."""
        ...

    async def close(self) -> None: ...
