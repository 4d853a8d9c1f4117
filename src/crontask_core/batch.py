"""The batch side of a node: acquire leases, call owners, release (seed B, DESIGN 7).

One pass per method, as in ``engine``: a pass does what is to be done now; loops around it only
wait. What a pass holds in memory is also a lease with an end, so nothing is lost with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import attrs

from crontask_core.batch_model import (
    BatchAnswer,
    BatchCall,
    BatchJob,
    BatchKey,
    ReplyKind,
    RunStatus,
    from_ms,
    span_ms,
    to_ms,
)
from crontask_core.batch_ports import BatchRepo, Finished, Owner, Renewal, Survey, Want
from crontask_core.errors import Conflict, CrontaskError, NotFound
from crontask_core.events import (
    BatchCallEnded,
    BatchRunEnded,
    BatchRunStarted,
    DatabaseClockJumped,
    Event,
    RowSetAside,
)
from crontask_core.policy.batches import (
    Acquired,
    Cover,
    Finish,
    Round,
    after_answer,
    before_call,
    choose,
    cover,
    ended,
)
from crontask_core.ports import Clock, Observer

__all__ = ["Backlog", "Drainer"]

_JUMP = timedelta(seconds=5)
_PATIENCE_MS = 1_000
"""What has waited so long for a slot here is acquired although none is free: then it takes turns
with the calls of long rounds."""
_AGAIN = 0.5
_SOON = 0.01
_TRIES = 4
_TAKEN = "the lease was taken over by another node"
_NOT_RENEWED = "the lease could not be renewed in time"
_STALE = 60.0


@attrs.frozen
class Backlog:
    """What an owner last said of the work left; ``at`` in ``elapsed`` seconds."""

    at: float
    pieces: int | None
    oldest_ms: int | None


@attrs.define(kw_only=True)
class Drainer:
    """One node's batch side.

    ``node`` is this process's own name and no other's, also not after a restart. ``owners`` maps
    the names that jobs use. ``slots`` is how many calls run at once. ``on_ready`` is called when a
    round waits for a call, ``on_over`` when one is to be written, ``on_later`` with the instant of
    a next tick.
    """

    repo: BatchRepo
    owners: Mapping[str, Owner]
    clock: Clock
    observer: Observer
    jobs: Sequence[BatchJob]
    node: str
    caller: str = "crontask"
    slots: int = 10
    on_ready: Callable[[], None] = lambda: None
    on_over: Callable[[], None] = lambda: None
    on_later: Callable[[datetime], None] = lambda at: None
    stopping: bool = attrs.field(default=False, init=False)
    failures: dict[BatchKey, int] = attrs.field(factory=dict, init=False)
    """Failed runs in a row of every configured key, as last seen."""
    backlogs: dict[BatchKey, Backlog] = attrs.field(factory=dict, init=False)
    _by_key: dict[BatchKey, BatchJob] = attrs.field(init=False)
    _hand: dict[BatchKey, Round] = attrs.field(factory=dict, init=False)
    _ready: deque[BatchKey] = attrs.field(factory=deque, init=False)
    _over: list[BatchKey] = attrs.field(factory=list, init=False)
    _seen: tuple[datetime, float] | None = attrs.field(default=None, init=False)
    _crowded: bool = attrs.field(default=False, init=False)
    _acquiring: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._by_key = {key: job for job in self.jobs for key in job.keys}

    # -- what this node holds ------------------------------------------------------------------
    @property
    def in_hand(self) -> int:
        """Rounds that hold a lease here, until their end is written."""
        return len(self._hand)

    @property
    def busy(self) -> bool:
        """Whether anything is held, or just being acquired: until then a node may not end."""
        return bool(self._hand) or self._acquiring > 0

    @property
    def unwritten(self) -> int:
        """Rounds that are over and wait to be written."""
        return len(self._over)

    def next_round(self) -> BatchKey | None:
        """A round that waits for its next call, first come, first served; or None."""
        return self._ready.popleft() if self._ready else None

    def held(self) -> list[Round]:
        """The rounds in hand, as they are now."""
        return list(self._hand.values())

    # -- passes --------------------------------------------------------------------------------
    async def prepare(self) -> int:
        """Make the leases of the configured jobs, and close what dead nodes left behind. Returns
        how many rows changed."""
        count = await self.repo.sync(self.jobs)
        gone = await self.repo.reap()
        for run in gone:
            self._on(BatchRunEnded(run=run))
        return count + len(gone)

    async def acquire(self, most_rest: float = 1.0) -> float:
        """Acquire due leases for the free slots (B2). Returns in how many seconds there may be
        more to acquire, at most ``most_rest``."""
        if self.stopping:
            return most_rest
        sent = self.clock.elapsed()
        survey = await self.repo.survey()
        self._learn(survey)
        if self._jumped(survey.now, sent):
            return min(most_rest, _AGAIN)
        now = to_ms(survey.now)
        choice = choose(survey.leases, self._by_key, self.node, self._hand, now, self._room())
        waiting = choice.oldest_at
        self._crowded = waiting is not None and now - waiting >= _PATIENCE_MS
        if choice.take:
            wants = [Want(job=self._by_key[key], app_code=key[1]) for key in choice.take]
            if await self._acquire(wants) < len(wants):
                # Others were faster: there may be more that is due, and room for it.
                return min(most_rest, _SOON)
        if choice.next_at is None:
            return most_rest
        return min(most_rest, max(0.0, (choice.next_at - now) / 1000))

    async def step(self, key: BatchKey) -> None:
        """One call of one round, which afterwards waits for the next one, or is over (B4)."""
        state = await self._covered(self._hand[key])
        if not state.over:
            started = self.clock.elapsed()
            answer = await self._call(state)
            at = self.clock.elapsed()
            state = after_answer(state, answer, at)
            self._note_backlog(key, answer, at)
            self._on(BatchCallEnded(run=state.run, answer=answer, seconds=at - started))
        self._hand[key] = state
        if state.over:
            self._over.append(key)
            self.on_over()
        else:
            self._ready.append(key)
            self.on_ready()

    async def settle(self) -> int:
        """Write the rounds that are over, all in one transaction, releasing their leases. Returns
        how many."""
        keys, self._over = self._over, []
        if not keys:
            return 0
        try:
            await self._settle(keys)
        except BaseException:
            self._over = [key for key in keys if key in self._hand] + self._over
            raise
        return len(keys)

    # -- one run now ---------------------------------------------------------------------------
    async def run_now(self, name: str, app_code: str) -> Finished:
        """Run a job for an app now, whatever its tick and pause, from this process. Honours the
        lease: raises Conflict while another holds it, NotFound when it is not configured."""
        job = self._by_key.get((name, app_code))
        if job is None:
            raise NotFound(
                f"no batch job {name} for app {app_code} is configured",
                code="BATCH_JOB_NOT_FOUND",
                field="name",
                received=f"{name} {app_code}",
                hint="`crontask batch list` shows those there are.",
                candidates=[" ".join(key) for key in self._by_key][:5],
            )
        await self.repo.sync([job])
        await self._acquire([Want(job=job, app_code=app_code, forced=True)])
        key = (name, app_code)
        if key not in self._hand:
            raise _held(key, (await self.repo.survey()))
        while not self._hand[key].over:
            await self.step(key)
        self._ready.clear()
        self._over.clear()
        return (await self._settle([key]))[0]

    # -- inside --------------------------------------------------------------------------------
    def _room(self) -> int:
        """How many more rounds this node may take on."""
        free = self.slots - len(self._hand)
        if free > 0 or not self._crowded:
            return max(free, 0)
        fresh = sum(1 for state in self._hand.values() if not state.run.batch_count)
        return max(0, self.slots - fresh)

    async def _acquire(self, wants: Sequence[Want]) -> int:
        sent = self.clock.elapsed()
        self._acquiring += 1
        try:
            answers = await self.repo.acquire(self.node, wants)
        finally:
            self._acquiring -= 1
        taken = [answer for answer in answers if isinstance(answer, Acquired)]
        forced = {(want.job.name, want.app_code) for want in wants if want.forced}
        for got in taken:
            key = got.run.key
            job = self._by_key[key]
            self._hand[key] = Round(
                job=job,
                epoch=got.lease.epoch,
                tick_ms=got.tick_ms,
                run=got.run,
                began=sent,
                covered_until=sent + job.lock_ttl.total_seconds(),
                forced=key in forced,
            )
            self._ready.append(key)
            for run in got.abandoned:
                self._on(BatchRunEnded(run=run))
            late = (got.run.started_at_ms - got.tick_ms) / 1000
            self._on(BatchRunStarted(run=got.run, lateness=max(0.0, late)))
        if taken:
            self.on_ready()
        return len(taken)

    async def _covered(self, state: Round) -> Round:
        """The round with a lease that covers its next call; over when there must be no call."""
        tries = 0
        while True:
            # Nothing may be awaited between this look at the clock and the call.
            elapsed = self.clock.elapsed()
            state = before_call(state, elapsed, stopping=self.stopping)
            have = cover(state, elapsed)
            if state.over or have is Cover.ENOUGH or (have is Cover.EARLY and tries):
                return state
            if tries == _TRIES:
                good = RunStatus.SUCCEEDED if state.run.batch_count else RunStatus.FAILED
                return ended(state, good, elapsed, error=_NOT_RENEWED, warning=_NOT_RENEWED)
            if tries:
                await self.clock.sleep(_AGAIN)
            tries += 1
            kept = await self._renew(state)
            if kept is False:
                at = self.clock.elapsed()
                return ended(state, RunStatus.ABANDONED, at, error=_TAKEN, warning=_TAKEN)
            if kept:
                until = elapsed + state.job.lock_ttl.total_seconds()
                state = attrs.evolve(state, covered_until=until)

    async def _renew(self, state: Round) -> bool | None:
        """Whether the lease still is ours; None when that could not be learned just now."""
        ttl = span_ms(state.job.lock_ttl)
        renewal = Renewal(key=state.run.key, epoch=state.epoch, ttl_ms=ttl)
        try:
            [kept] = await self.repo.renew(self.node, [renewal])
        except CrontaskError:
            return None
        return kept

    async def _call(self, state: Round) -> BatchAnswer:
        job, run = state.job, state.run
        call = BatchCall(
            method=job.method,
            timeout=job.timeout.total_seconds(),
            request_id=f"{run.run_id}-{run.batch_count + 1}",
            app_code=run.app_code,
            caller=self.caller,
            run_id=run.run_id,
            worker_id=self.node,
            batch_size=job.batch_size,
            lock_ttl_ms=span_ms(job.lock_ttl),
            extra=job.extra,
        )
        try:
            return await self.owners[job.owner].call(call)
        except Exception as error:  # noqa: BLE001 - a fault of a driver is this run's, nobody else's
            return BatchAnswer(kind=ReplyKind.REFUSED, code="INTERNAL", error=repr(error))

    async def _settle(self, keys: Sequence[BatchKey]) -> list[Finished]:
        finishes = [Finish.of(self._hand[key]) for key in keys]
        try:
            done = await self.repo.finish(self.node, finishes)
        except CrontaskError as error:
            if error.retryable:
                raise
            if len(keys) == 1:
                self._hand.pop(keys[0], None)
                self._on(RowSetAside(kind="batch run", id=0, reason=error.message))
                return []
            # One bad row never stops the others: halve until it stands alone.
            middle = len(keys) // 2
            return [*await self._settle(keys[:middle]), *await self._settle(keys[middle:])]
        for key, finished in zip(keys, done, strict=True):
            self._written(self._hand.pop(key), finished)
        return done

    def _written(self, state: Round, finished: Finished) -> None:
        lease = finished.lease
        if lease is not None:
            self.failures[lease.key] = lease.failures
            self.on_later(from_ms(lease.next_run_at_ms))
        if not state.unsent:
            self._on(
                BatchRunEnded(
                    run=finished.run,
                    failures=None if lease is None else lease.failures,
                    warning=state.warning,
                    lost=finished.lost,
                )
            )

    def _learn(self, survey: Survey) -> None:
        """Keep what metrics show, of configured keys alone."""
        self.failures = {
            lease.key: lease.failures for lease in survey.leases if lease.key in self._by_key
        }

    def _note_backlog(self, key: BatchKey, answer: BatchAnswer, at: float) -> None:
        if answer.kind is ReplyKind.OK:
            self.backlogs[key] = Backlog(at, answer.backlog, answer.oldest_pending_age_ms)

    def fresh_backlogs(self) -> dict[BatchKey, Backlog]:
        """What owners said to this node lately: other nodes may have heard later news."""
        at = self.clock.elapsed()
        return {
            key: said
            for key, said in self.backlogs.items()
            if at - said.at <= max(_STALE, 3 * self._by_key[key].interval.total_seconds())
        }

    def _jumped(self, now: datetime, sent: float) -> bool:
        """Whether the database's clock moved against elapsed time; then nothing is acquired until
        two samples agree (DESIGN 3.9)."""
        last, self._seen = self._seen, (now, sent)
        if last is None:
            return False
        # The database read its clock between the question and now: a slow answer is no jump.
        slow = timedelta(seconds=self.clock.elapsed() - sent)
        off = (now - last[0]) - timedelta(seconds=sent - last[1])
        if abs(off) <= _JUMP + slow:
            return False
        self._on(DatabaseClockJumped(at=now, seconds=off.total_seconds()))
        return True

    def _on(self, event: Event) -> None:
        self.observer.on(event)


def _held(key: BatchKey, survey: Survey) -> Conflict:
    name, app_code = key
    lease = next((lease for lease in survey.leases if lease.key == key), None)
    holder = lease.owner_node_id if lease is not None else ""
    return Conflict(
        f"{name} runs for {app_code} right now"
        + (f", on {holder}" if holder else "; its lease is being taken"),
        hint="Wait until that run has ended: `crontask batch runs` shows it.",
        retryable=True,
    )
