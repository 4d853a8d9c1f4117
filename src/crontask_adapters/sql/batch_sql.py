"""Leases and runs of batch jobs on a database: load under lock, plan, write (DESIGN 7).

Lease rows are locked first, by key, then runs. Holders are few and rows are many, so every row is
written by a statement of its own, by its primary key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, update

from crontask_adapters.sql import schema
from crontask_adapters.sql.dialect import among, chunks, indexed, insert_rows
from crontask_adapters.sql.repo import SqlRepo
from crontask_adapters.sql.tx import Tx
from crontask_core.batch_model import BatchJob, BatchKey, BatchRun, Lease, RunStatus, to_ms
from crontask_core.batch_ports import BatchRepo, Finished, Renewal, RunFilter, Survey, Want
from crontask_core.policy.batches import (
    REAP_AFTER_MS,
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

__all__ = ["SqlBatchRepo"]

_L = schema.leases
_R = schema.batch_runs
_KEYS = 50
_INT = 2_147_483_647
_COUNTS = ("claimed_count", "processed_count", "success_count", "failure_count", "batch_count")
_ENDED = [status.value for status in RunStatus if status is not RunStatus.RUNNING]


class SqlBatchRepo:
    """``BatchRepo`` on the database of a ``SqlRepo``, which opens and closes it."""

    def __init__(self, repo: SqlRepo) -> None:
        self._write = repo._write
        self._read = repo._read

    async def sync(self, jobs: Sequence[BatchJob]) -> int:
        return await self._write(_sync, jobs)

    async def survey(self) -> Survey:
        return await self._read(_survey)

    async def acquire(self, node: str, wants: Sequence[Want]) -> list[Acquired | Denied]:
        return await self._write(_acquire, node, wants)

    async def renew(self, node: str, renewals: Sequence[Renewal]) -> list[bool]:
        return await self._write(_renew, node, renewals)

    async def finish(self, node: str, finishes: Sequence[Finish]) -> list[Finished]:
        return await self._write(_finish, node, finishes)

    async def reap(self) -> list[BatchRun]:
        return await self._write(_reap)

    async def set_paused(self, keys: Sequence[BatchKey], paused: bool) -> list[Lease | None]:
        return await self._write(_set_paused, keys, paused)

    async def runs(self, where: RunFilter) -> list[BatchRun]:
        return await self._read(_runs, where)

    async def last_runs(self, keys: Sequence[BatchKey]) -> dict[BatchKey, BatchRun]:
        return await self._read(_last_runs, keys)

    async def prune_runs(self, before_ms: int, limit: int) -> int:
        return await self._write(_prune_runs, before_ms, limit)


# -- rows --------------------------------------------------------------------------------------
def _lease(row: Row[Any]) -> Lease:
    return Lease(**row._mapping)


def _run(row: Row[Any]) -> BatchRun:
    values = dict(row._mapping)
    return BatchRun(**{**values, "status": RunStatus(values["status"])})


def _run_values(run: BatchRun) -> dict[str, Any]:
    values = attrs.asdict(run)
    values["status"] = run.status.value
    # An owner's sums are its own affair; a sum beyond the column is no reason to lose the run.
    return values | {name: min(values[name], _INT) for name in _COUNTS}


def _insert(tx: Tx, run: BatchRun) -> None:
    values = _run_values(run)
    insert_rows(tx.conn, list(_R.columns), [[values[c.name] for c in _R.columns]])


def _put_run(tx: Tx, run: BatchRun) -> None:
    """Close a run, if it still is running."""
    values = _run_values(run)
    del values["run_id"]
    running = RunStatus.RUNNING.value
    where = and_(_R.c.run_id == run.run_id, _R.c.status == running)
    tx.conn.execute(update(_R).where(where).values(values))


def _put_lease(tx: Tx, read: Lease, wanted: Lease) -> None:
    """Write a lease that was read under lock; guarded all the same by what names its generation."""
    values = attrs.asdict(wanted)
    del values["task_name"], values["app_code"]
    where = and_(_is(read.key), _L.c.epoch == read.epoch, _L.c.owner_node_id == read.owner_node_id)
    tx.conn.execute(update(_L).where(where).values(values))


def _is(key: BatchKey) -> ColumnElement[bool]:
    return and_(_L.c.task_name == key[0], _L.c.app_code == key[1])


def _locked(tx: Tx, keys: Iterable[BatchKey], *, skip: bool = False) -> dict[BatchKey, Lease]:
    """These leases, locked in the order of their keys; with ``skip`` without those being written
    just now. A list of pairs would be read by a scan on some servers: so each key is spelled."""
    found: dict[BatchKey, Lease] = {}
    for part in chunks(sorted(set(keys)), _KEYS):
        query = select(_L).where(or_(*map(_is, part))).order_by(_L.c.task_name, _L.c.app_code)
        for row in tx.rows(tx.lock(indexed(query, _L), skip=skip)):
            found[(row.task_name, row.app_code)] = _lease(row)
    return found


def _close(tx: Tx, key: BatchKey, now: int, why: str) -> list[BatchRun]:
    """Abandon the runs of a key that are still running; those. Its lease is locked, as by everybody
    who writes them: to lock what is read here would only make different keys wait for each other.
    """
    query = select(_R).where(
        _R.c.status == RunStatus.RUNNING.value,
        _R.c.task_name == key[0],
        _R.c.app_code == key[1],
    )
    found = tx.rows(indexed(query, _R, "idx_cron_task_runs_status"))
    closed = [abandoned(_run(row), now, why[:512]) for row in found]
    for run in closed:
        _put_run(tx, run)
    return closed


# -- transactions ------------------------------------------------------------------------------
def _sync(tx: Tx, jobs: Sequence[BatchJob]) -> int:
    now = to_ms(tx.now)
    seen = [_lease(row) for row in tx.rows(select(_L))]
    new, changed = plan_sync(seen, jobs, now)
    columns = list(_L.columns)
    rows = [[attrs.asdict(lease)[c.name] for c in columns] for lease in new]
    insert_rows(tx.conn, columns, rows, "nothing")
    if changed:
        # Looked at again under lock: what somebody acquired meanwhile is left alone.
        held = _locked(tx, [read.key for read, _ in changed])
        _, changed = plan_sync(list(held.values()), _only(jobs, held), now)
        for read, wanted in changed:
            _put_lease(tx, read, wanted)
    return len(new) + len(changed)


def _only(jobs: Sequence[BatchJob], held: dict[BatchKey, Lease]) -> list[BatchJob]:
    """The jobs with the apps whose leases are there."""
    left = [(job, tuple(c for c in job.app_codes if (job.name, c) in held)) for job in jobs]
    return [attrs.evolve(job, app_codes=codes, max_round=job.max_round) for job, codes in left]


def _survey(tx: Tx) -> Survey:
    now = tx.now
    query = select(_L).order_by(_L.c.task_name, _L.c.app_code)
    return Survey(now=now, leases=tuple(_lease(row) for row in tx.rows(query)))


def _acquire(tx: Tx, node: str, wants: Sequence[Want]) -> list[Acquired | Denied]:
    held = _locked(tx, [(want.job.name, want.app_code) for want in wants], skip=True)
    now = to_ms(tx.now)
    answers: list[Acquired | Denied] = []
    for want in wants:
        lease = held.get((want.job.name, want.app_code))
        if lease is None:
            answers.append(Denied())
            continue
        got = plan_acquire(lease, want.job, node, now, forced=want.forced)
        if isinstance(got, Acquired):
            closed = _close(tx, lease.key, now, f"taken over by {node}")
            _put_lease(tx, lease, got.lease)
            _insert(tx, got.run)
            held[lease.key] = got.lease
            got = attrs.evolve(got, abandoned=tuple(closed))
        answers.append(got)
    return answers


def _renew(tx: Tx, node: str, renewals: Sequence[Renewal]) -> list[bool]:
    held = _locked(tx, [renewal.key for renewal in renewals])
    now = to_ms(tx.now)
    kept = []
    for renewal in renewals:
        lease = held.get(renewal.key)
        wanted = lease and plan_renew(lease, node, renewal.epoch, renewal.ttl_ms, now)
        if lease is not None and wanted is not None:
            _put_lease(tx, lease, wanted)
        kept.append(wanted is not None)
    return kept


def _finish(tx: Tx, node: str, finishes: Sequence[Finish]) -> list[Finished]:
    held = _locked(tx, [finish.run.key for finish in finishes])
    runs: dict[str, BatchRun] = {}
    for part in chunks(sorted(finish.run.run_id for finish in finishes)):
        query = select(_R).where(among(_R.c.run_id, part)).order_by(_R.c.run_id)
        runs.update((row.run_id, _run(row)) for row in tx.rows(tx.lock(query)))
    now = to_ms(tx.now)
    done = []
    for finish in finishes:
        lease, stored = held.get(finish.run.key), runs.get(finish.run.run_id)
        plan = plan_finish(lease, stored, finish, node, now)
        if lease is not None and plan.lease is not None:
            _put_lease(tx, lease, plan.lease)
        if plan.run is not None:
            _put_run(tx, plan.run)
        if plan.remove:
            tx.conn.execute(delete(_R).where(_R.c.run_id == finish.run.run_id))
        run = plan.run or stored or finish.run
        done.append(Finished(run=run, lease=plan.lease, lost=plan.lost))
    return done


def _reap(tx: Tx) -> list[BatchRun]:
    late = and_(
        _L.c.lease_until_ms > 0,
        _L.c.lease_until_ms <= to_ms(tx.now) - REAP_AFTER_MS,
        _L.c.owner_node_id != "",
    )
    keys = [(row.task_name, row.app_code) for row in tx.rows(select(_L).where(late))]
    closed: list[BatchRun] = []
    now = to_ms(tx.now)
    for lease in _locked(tx, keys, skip=True).values():
        if (freed := plan_reap(lease, now)) is not None:
            closed += _close(tx, lease.key, now, f"{lease.owner_node_id} is gone")
            _put_lease(tx, lease, freed)
    return closed


def _set_paused(tx: Tx, keys: Sequence[BatchKey], paused: bool) -> list[Lease | None]:
    held = _locked(tx, keys)
    now = to_ms(tx.now)
    for key, lease in held.items():
        if lease.paused is not paused:
            held[key] = attrs.evolve(lease, paused=paused, updated_at_ms=now)
            _put_lease(tx, lease, held[key])
    return [held.get(key) for key in keys]


def _runs(tx: Tx, where: RunFilter) -> list[BatchRun]:
    query = select(_R).order_by(_R.c.started_at_ms.desc(), _R.c.run_id).limit(where.limit)
    if where.task_name is not None:
        query = query.where(_R.c.task_name == where.task_name)
    if where.app_code is not None:
        query = query.where(_R.c.app_code == where.app_code)
    if where.status is not None:
        query = query.where(_R.c.status == where.status.value)
    if where.before_ms is not None:
        query = query.where(_R.c.started_at_ms < where.before_ms)
    return [_run(row) for row in tx.rows(query)]


def _last_runs(tx: Tx, keys: Sequence[BatchKey]) -> dict[BatchKey, BatchRun]:
    found: dict[BatchKey, BatchRun] = {}
    for name, code in dict.fromkeys(keys):
        newest = _runs(tx, RunFilter(task_name=name, app_code=code, limit=1))
        found.update((run.key, run) for run in newest)
    return found


def _prune_runs(tx: Tx, before_ms: int, limit: int) -> int:
    """By status: the index leads to the old ones, however many newer ones there are."""
    old: list[str] = []
    for status in _ENDED:
        query = (
            select(_R.c.run_id)
            .where(_R.c.status == status, _R.c.started_at_ms < before_ms)
            .limit(limit - len(old))
        )
        old += [row.run_id for row in tx.rows(tx.lock(query, skip=True))]
    for part in chunks(old):
        tx.conn.execute(delete(_R).where(among(_R.c.run_id, part)))
    return len(old)


def _is_a_repo(repo: SqlBatchRepo) -> BatchRepo:
    return repo  # mypy checks the contract here
