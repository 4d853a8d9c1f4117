"""Batch jobs: who may run when, how far a round goes, what its end means (DESIGN 7, B2 to B5).

Pure functions of rows, answers and the time. ``now`` is the database's clock in milliseconds;
``elapsed`` is the node's own clock in seconds, which counts sleep and never steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from zlib import crc32

import attrs

from crontask_core.batch_model import (
    BatchAnswer,
    BatchJob,
    BatchKey,
    BatchRun,
    Lease,
    ReplyKind,
    RunStatus,
    run_id_of,
    span_ms,
)

__all__ = [
    "Acquired",
    "Choice",
    "Cover",
    "Denied",
    "Finish",
    "FinishPlan",
    "Round",
    "abandoned",
    "after_answer",
    "backoff",
    "before_call",
    "choose",
    "cover",
    "plan_acquire",
    "plan_finish",
    "plan_reap",
    "plan_renew",
    "plan_sync",
    "ready_at",
]

MAX_BACKOFF = timedelta(minutes=15)
REAP_AFTER_MS = 30_000
"""A lease that ended so long ago and was not taken over is closed by whoever sees it: its job may
be configured nowhere any more."""
_SLACK_MS = 60_000
_ERROR_LIMIT = 512
NO_PROGRESS = "no progress: the owner claimed nothing and said there is more"
OUT_OF_TIME = "max_round is up; the owner has more"


def backoff(interval: timedelta, failures: int) -> timedelta:
    """The wait from tick to tick after so many failures in a row (B5). Never shorter than the
    interval; never so long that a rare job misses its next regular tick."""
    doubled = span_ms(interval) << min(max(failures - 1, 0), 40)
    return max(interval, timedelta(milliseconds=min(doubled, span_ms(MAX_BACKOFF))))


# -- who may run -------------------------------------------------------------------------------
def ready_at(lease: Lease, job: BatchJob, node: str, now: int) -> int | None:
    """From when ``node``, which does not hold it, may acquire the lease; None while it is paused.

    Times that no honest clock has written, such as those of a database clock that was an hour
    ahead, are not waited for: the worst that follows is a second idempotent call.
    """
    if lease.paused:
        return None
    at = lease.next_run_at_ms
    if at > now + 2 * span_ms(backoff(job.interval, lease.failures)) + _SLACK_MS:
        at = now
    return max(at, _held_until(lease, job, node, now))


def _held_until(lease: Lease, job: BatchJob, node: str, now: int) -> int:
    """Until when another holds it; 0 when nobody does."""
    # Our own and not in our hands: the answer to its acquisition was lost.
    if lease.owner_node_id in ("", node):
        return 0
    believable = lease.lease_until_ms <= now + 2 * span_ms(job.lock_ttl) + _SLACK_MS
    return lease.lease_until_ms if believable else 0


@attrs.frozen
class Choice:
    """``take``: what to acquire now, the longest due first, so that none starves. ``next_at``: when
    there may be more, None when nobody knows. ``oldest_at``: since when the first of those that
    found no room has been due."""

    take: tuple[BatchKey, ...]
    next_at: int | None
    oldest_at: int | None


def choose(
    leases: Iterable[Lease],
    jobs: Mapping[BatchKey, BatchJob],
    node: str,
    held: Collection[BatchKey],
    now: int,
    room: int,
) -> Choice:
    """Which leases a node with room for so many rounds should acquire.

    Among those due within the same second each node has an order of its own, so that nodes do not
    all reach for the same ones.
    """
    ready: list[tuple[int, int, int, BatchKey]] = []
    later: list[int] = []
    for lease in leases:
        job = jobs.get(lease.key)
        at = None if job is None or lease.key in held else ready_at(lease, job, node, now)
        if at is None:
            continue
        if at <= now:
            own = crc32("\x1f".join((node, *lease.key)).encode())
            ready.append((at // 1000, own, at, lease.key))
        else:
            later.append(at)
    ready.sort()
    left = ready[room:]
    return Choice(
        take=tuple(row[3] for row in ready[:room]),
        next_at=min(later, default=None),
        oldest_at=min((row[2] for row in left), default=None),
    )


def plan_sync(
    leases: Sequence[Lease], jobs: Iterable[BatchJob], now: int
) -> tuple[list[Lease], list[tuple[Lease, Lease]]]:
    """The rows that are missing, and the free ones (as read, as wanted) that would wait longer
    than the job as configured now lets them."""
    stored = {lease.key: lease for lease in leases}
    new: list[Lease] = []
    changed: list[tuple[Lease, Lease]] = []
    for job in jobs:
        for name, code in job.keys:
            lease = stored.get((name, code))
            if lease is None:
                new.append(
                    Lease(task_name=name, app_code=code, updated_at_ms=now, next_run_at_ms=now)
                )
                continue
            latest = now + span_ms(backoff(job.interval, lease.failures))
            if not lease.owner_node_id and lease.next_run_at_ms > latest:
                wanted = attrs.evolve(lease, next_run_at_ms=latest, updated_at_ms=now)
                changed.append((lease, wanted))
    return new, changed


@attrs.frozen(kw_only=True)
class Acquired:
    """The lease as it is now, the run it makes, the tick the run serves, and the runs of earlier
    holders that have ended by this."""

    lease: Lease
    run: BatchRun
    tick_ms: int
    abandoned: tuple[BatchRun, ...] = ()


@attrs.frozen(kw_only=True)
class Denied:
    """``lease`` None: the row is not there, or another process is writing it right now."""

    lease: Lease | None = None


def plan_acquire(
    lease: Lease, job: BatchJob, node: str, now: int, *, forced: bool = False
) -> Acquired | Denied:
    """Compare and set: take the lease if it is free and its tick has come (B2).

    ``forced``: a person wants the run now, whatever the tick and the pause say; the lease counts
    all the same.
    """
    at = _held_until(lease, job, node, now) if forced else ready_at(lease, job, node, now)
    if at is None or at > now:
        return Denied(lease=lease)
    late = now - lease.next_run_at_ms
    # Late by less than an interval it keeps its rhythm; ticks missed beyond that are not made up.
    on_time = 0 <= late < span_ms(job.interval)
    taken = attrs.evolve(
        lease,
        owner_node_id=node,
        lease_until_ms=now + span_ms(job.lock_ttl),
        updated_at_ms=now,
        epoch=lease.epoch + 1,
    )
    run = BatchRun(
        run_id=run_id_of(lease.key, taken.epoch, now),
        task_name=lease.task_name,
        app_code=lease.app_code,
        owner_node_id=node,
        started_at_ms=now,
    )
    return Acquired(lease=taken, run=run, tick_ms=lease.next_run_at_ms if on_time else now)


def plan_renew(lease: Lease, node: str, epoch: int, ttl_ms: int, now: int) -> Lease | None:
    """The lease for another ``ttl_ms``; None when it is another's by now, or of another epoch."""
    if (lease.owner_node_id, lease.epoch) != (node, epoch):
        return None
    return attrs.evolve(lease, lease_until_ms=now + ttl_ms, updated_at_ms=now)


def abandoned(run: BatchRun, now: int, why: str) -> BatchRun:
    """A run that nobody works on any more, closed (B3)."""
    return attrs.evolve(
        run,
        status=RunStatus.ABANDONED,
        finished_at_ms=now,
        duration_ms=max(0, now - run.started_at_ms),
        error_message=why,
    )


def plan_reap(lease: Lease, now: int) -> Lease | None:
    """The lease freed, when its holder let it end long ago and nobody took it over; else None."""
    if not lease.owner_node_id or lease.lease_until_ms + REAP_AFTER_MS > now:
        return None
    return attrs.evolve(lease, owner_node_id="", lease_until_ms=0, updated_at_ms=now)


# -- a round -----------------------------------------------------------------------------------
@attrs.frozen(kw_only=True)
class Round:
    """A run under way on the node that holds its lease.

    ``began`` and ``covered_until`` are ``elapsed`` seconds; the second counts from before the
    acquisition or renewal was sent, so it is never later than the stored end. ``run.status`` other
    than running: the round is over. ``warning`` says why it ended before the work did.
    """

    job: BatchJob
    epoch: int
    tick_ms: int
    run: BatchRun
    began: float
    covered_until: float
    forced: bool = False
    warning: str = ""
    unsent: bool = False

    @property
    def over(self) -> bool:
        return self.unsent or self.run.status is not RunStatus.RUNNING


class Cover(StrEnum):
    """How much of the lease is left: ENOUGH for a call, EARLY (renew, but a failure does no harm
    yet), SHORT (renew or stop)."""

    ENOUGH = "enough"
    EARLY = "early"
    SHORT = "short"


def cover(state: Round, elapsed: float) -> Cover:
    """Whether what is left of the lease covers one more call."""
    left = state.covered_until - elapsed
    timeout = state.job.timeout.total_seconds()
    if left < timeout:
        return Cover.SHORT
    spare = (state.job.lock_ttl.total_seconds() - timeout) / 2
    return Cover.EARLY if left < timeout + spare else Cover.ENOUGH


def before_call(state: Round, elapsed: float, *, stopping: bool) -> Round:
    """The round as it is before its next call; over when there must be none (B4, B9)."""
    if stopping and not state.run.batch_count:
        return attrs.evolve(state, unsent=True)
    if stopping:
        return ended(state, RunStatus.SUCCEEDED, elapsed, warning="this node stops")
    if state.run.batch_count and elapsed - state.began >= state.job.max_round.total_seconds():
        return ended(state, RunStatus.SUCCEEDED, elapsed, warning=OUT_OF_TIME)
    return state


def after_answer(state: Round, answer: BatchAnswer, elapsed: float) -> Round:
    """Take in one answer; the round is over unless there is more to do (B4).

    A time-out is not a failure of the work: the counts are those of the answers that came.
    ``failure_count`` of a good answer does not make the run a failed one.
    """
    if answer.kind is not ReplyKind.OK:
        status = RunStatus.TIMED_OUT if answer.kind is ReplyKind.TIMEOUT else RunStatus.FAILED
        return ended(state, status, elapsed, error=f"{answer.code}: {answer.error}")
    run = attrs.evolve(
        state.run,
        claimed_count=state.run.claimed_count + answer.claimed_count,
        processed_count=state.run.processed_count + answer.processed_count,
        success_count=state.run.success_count + answer.success_count,
        failure_count=state.run.failure_count + answer.failure_count,
        batch_count=state.run.batch_count + 1,
    )
    state = attrs.evolve(state, run=run)
    if not answer.has_more:
        return ended(state, RunStatus.SUCCEEDED, elapsed)
    if not answer.claimed_count:
        return ended(state, RunStatus.SUCCEEDED, elapsed, warning=NO_PROGRESS)
    return state


def ended(
    state: Round, status: RunStatus, elapsed: float, *, error: str = "", warning: str = ""
) -> Round:
    """The round over: with its length by the node's own clock, and why."""
    run = attrs.evolve(
        state.run,
        status=status,
        duration_ms=max(0, round((elapsed - state.began) * 1000)),
        error_message=(error or warning)[:_ERROR_LIMIT],
    )
    return attrs.evolve(state, run=run, warning=warning)


# -- the end of a round ------------------------------------------------------------------------
@attrs.frozen(kw_only=True)
class Finish:
    """A round that is over, to be written. ``run.finished_at_ms`` comes from the database."""

    job: BatchJob
    epoch: int
    tick_ms: int
    run: BatchRun
    unsent: bool = False

    @classmethod
    def of(cls, state: Round) -> Finish:
        return cls(
            job=state.job,
            epoch=state.epoch,
            tick_ms=state.tick_ms,
            run=state.run,
            unsent=state.unsent,
        )


@attrs.frozen(kw_only=True)
class FinishPlan:
    """``lease`` None: not ours any more, leave it. ``run`` None: leave the stored one; with
    ``remove`` delete it. ``lost``: another took over, which has closed the run."""

    lease: Lease | None = None
    run: BatchRun | None = None
    remove: bool = False
    lost: bool = False


def plan_finish(
    lease: Lease | None, stored: BatchRun | None, finish: Finish, node: str, now: int
) -> FinishPlan:
    """Release the lease with its next tick, and close the run; each only if it still is ours.

    ``lease`` and ``stored`` are as read under lock. What was written before, and only its
    acknowledgement lost, is left alone.
    """
    mine = lease is not None and (lease.owner_node_id, lease.epoch) == (node, finish.epoch)
    wanted = attrs.evolve(finish.run, finished_at_ms=now)
    running = stored is not None and stored.status is RunStatus.RUNNING
    if lease is None or not mine:
        if stored is None:
            return FinishPlan(lost=not finish.unsent)
        taken = stored.status in (RunStatus.RUNNING, RunStatus.ABANDONED)
        return FinishPlan(lost=taken or stored.status is not wanted.status)
    free = attrs.evolve(lease, owner_node_id="", lease_until_ms=0, updated_at_ms=now)
    if finish.unsent:
        return FinishPlan(lease=free, remove=True)
    good = finish.run.status is RunStatus.SUCCEEDED
    failures = 0 if good else lease.failures + 1
    wait = span_ms(backoff(finish.job.interval, failures))
    early = lease.next_run_at_ms > finish.tick_ms
    # A run that a person asked for before its tick leaves the tick where it was.
    tick = min(lease.next_run_at_ms, now + wait) if early else finish.tick_ms + wait
    free = attrs.evolve(free, failures=failures, next_run_at_ms=max(tick, now))
    return FinishPlan(lease=free, run=wanted if running else None, lost=not running)
