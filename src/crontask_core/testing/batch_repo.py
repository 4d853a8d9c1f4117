"""``MemoryBatchRepo``: leases and runs over dicts, thin: load, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from crontask_core.batch_model import (
    BatchAnswer,
    BatchCall,
    BatchJob,
    BatchKey,
    BatchRun,
    Lease,
    ReplyKind,
    RunStatus,
    to_ms,
)
from crontask_core.batch_ports import (
    BatchRepo,
    Finished,
    Owner,
    OwnerHealth,
    Renewal,
    RunFilter,
    Survey,
    Want,
)
from crontask_core.model import Rules
from crontask_core.policy.batches import (
    Acquired,
    Denied,
    Finish,
    abandoned,
    plan_acquire,
    plan_finish,
    plan_reap,
    plan_renew,
    plan_sync,
)
from crontask_core.testing.base import MemoryBase, transaction
from crontask_core.testing.store import MemoryStore

__all__ = ["BatchTables", "MemoryBatchRepo", "ScriptedOwner", "done", "fails"]


@attrs.define
class BatchTables(MemoryStore):
    """One database of leases and runs, shared by the views of its nodes."""

    leases: dict[BatchKey, Lease] = attrs.Factory(dict)
    runs: dict[str, BatchRun] = attrs.Factory(dict)


class MemoryBatchRepo(MemoryBase):
    """A ``BatchRepo`` in memory, with the faults of ``MemoryRepo``."""

    def __init__(self, tables: BatchTables, *, now: Callable[[], datetime]) -> None:
        super().__init__(tables, now, Rules())
        self.tables = tables

    @transaction
    def sync(self, jobs: Sequence[BatchJob]) -> int:
        now = to_ms(self._now())
        new, changed = plan_sync(list(self.tables.leases.values()), jobs, now)
        for lease in [*new, *(wanted for _, wanted in changed)]:
            self._put(lease)
        return len(new) + len(changed)

    @transaction
    def survey(self) -> Survey:
        rows = sorted(self.tables.leases.values(), key=lambda lease: lease.key)
        return Survey(now=self._now(), leases=tuple(rows))

    @transaction
    def acquire(self, node: str, wants: Sequence[Want]) -> list[Acquired | Denied]:
        now = to_ms(self._now())
        return [self._acquire(node, want, now) for want in wants]

    def _acquire(self, node: str, want: Want, now: int) -> Acquired | Denied:
        lease = self.tables.leases.get((want.job.name, want.app_code))
        if lease is None:
            return Denied()
        got = plan_acquire(lease, want.job, node, now, forced=want.forced)
        if isinstance(got, Denied):
            return got
        closed = self._close(lease.key, now, f"taken over by {node}")
        self._put(got.lease)
        self._put_run(got.run)
        return attrs.evolve(got, abandoned=tuple(closed))

    @transaction
    def renew(self, node: str, renewals: Sequence[Renewal]) -> list[bool]:
        now = to_ms(self._now())
        kept = []
        for renewal in renewals:
            lease = self.tables.leases.get(renewal.key)
            wanted = lease and plan_renew(lease, node, renewal.epoch, renewal.ttl_ms, now)
            if wanted is not None:
                self._put(wanted)
            kept.append(wanted is not None)
        return kept

    @transaction
    def finish(self, node: str, finishes: Sequence[Finish]) -> list[Finished]:
        now = to_ms(self._now())
        return [self._finish(node, finish, now) for finish in finishes]

    def _finish(self, node: str, finish: Finish, now: int) -> Finished:
        stored = self.tables.runs.get(finish.run.run_id)
        lease = self.tables.leases.get(finish.run.key)
        plan = plan_finish(lease, stored, finish, node, now)
        if plan.lease is not None:
            self._put(plan.lease)
        if plan.run is not None:
            self._put_run(plan.run)
        if plan.remove:
            self.store.put(self.tables.runs, finish.run.run_id, None)
        run = plan.run or stored or finish.run
        return Finished(run=run, lease=plan.lease, lost=plan.lost)

    @transaction
    def reap(self) -> list[BatchRun]:
        now = to_ms(self._now())
        closed: list[BatchRun] = []
        for lease in list(self.tables.leases.values()):
            if (freed := plan_reap(lease, now)) is not None:
                self._put(freed)
                closed += self._close(lease.key, now, f"{lease.owner_node_id} is gone")
        return closed

    @transaction
    def set_paused(self, keys: Sequence[BatchKey], paused: bool) -> list[Lease | None]:
        now = to_ms(self._now())
        for key in keys:
            if (lease := self.tables.leases.get(key)) is not None and lease.paused is not paused:
                self._put(attrs.evolve(lease, paused=paused, updated_at_ms=now))
        return [self.tables.leases.get(key) for key in keys]

    @transaction
    def runs(self, where: RunFilter) -> list[BatchRun]:
        rows = [
            run
            for run in self.tables.runs.values()
            if where.task_name in (None, run.task_name)
            and where.app_code in (None, run.app_code)
            and where.status in (None, run.status)
            and (where.before_ms is None or run.started_at_ms < where.before_ms)
        ]
        return sorted(rows, key=_newest)[: where.limit]

    @transaction
    def last_runs(self, keys: Sequence[BatchKey]) -> dict[BatchKey, BatchRun]:
        rows = sorted(self.tables.runs.values(), key=_newest, reverse=True)
        return {run.key: run for run in rows if run.key in set(keys)}

    @transaction
    def prune_runs(self, before_ms: int, limit: int) -> int:
        old = [
            run.run_id
            for run in self.tables.runs.values()
            if run.status is not RunStatus.RUNNING and run.started_at_ms < before_ms
        ][:limit]
        for run_id in old:
            self.store.put(self.tables.runs, run_id, None)
        return len(old)

    # -- inside --------------------------------------------------------------------------------
    def _put(self, lease: Lease) -> None:
        self.store.put(self.tables.leases, lease.key, lease)

    def _put_run(self, run: BatchRun) -> None:
        self.store.put(self.tables.runs, run.run_id, run)

    def _close(self, key: BatchKey, now: int, why: str) -> list[BatchRun]:
        closed = [
            abandoned(run, now, why)
            for run in self.tables.runs.values()
            if run.key == key and run.status is RunStatus.RUNNING
        ]
        for run in closed:
            self._put_run(run)
        return closed


def _newest(run: BatchRun) -> tuple[int, str]:
    return (-run.started_at_ms, run.run_id)


def done(claimed: int = 0, *, has_more: bool = False, failed: int = 0) -> BatchAnswer:
    """A good answer: so much was claimed and processed, ``failed`` of it without success."""
    return BatchAnswer(
        kind=ReplyKind.OK,
        code="OK",
        claimed_count=claimed,
        processed_count=claimed,
        success_count=claimed - failed,
        failure_count=failed,
        has_more=has_more,
    )


def fails(kind: ReplyKind = ReplyKind.UNAVAILABLE, code: str = "UNAVAILABLE") -> BatchAnswer:
    """A call that went wrong."""
    return BatchAnswer(kind=kind, code=code, error="scripted")


class ScriptedOwner:
    """An ``Owner`` that never leaves the process.

    ``calls`` holds every call. ``answer`` makes the answer of a call, and may wait; by default
    nothing is left to do.
    """

    def __init__(self) -> None:
        self.calls: list[BatchCall] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = False

    async def answer(self, call: BatchCall) -> BatchAnswer:
        return done()

    async def call(self, call: BatchCall) -> BatchAnswer:
        self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(call)
        finally:
            self.in_flight -= 1

    async def health(self, timeout: float) -> OwnerHealth:
        return OwnerHealth(state="ok", found="it is a script")

    async def close(self) -> None:
        self.closed = True


def _is_a_repo(repo: MemoryBatchRepo) -> BatchRepo:
    return repo  # mypy checks the contract here


def _is_an_owner(owner: ScriptedOwner) -> Owner:
    return owner
