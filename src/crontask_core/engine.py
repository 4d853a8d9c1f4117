"""The firing side: claim, begin, deliver, settle, sweep, heartbeat. One pass per method.

A pass does what is to be done now and returns how much it did; loops around passes only wait
(DESIGN 2). A pass may raise ``CrontaskError``; the next one repeats the work: nothing is lost,
because what a pass holds in memory is also a row with a ``next_action_at``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.events import (
    CallEnded,
    ClaimEnded,
    DatabaseClockJumped,
    Event,
    ExecutionMoved,
    FiresRecomputed,
    FireStarted,
    NodeChanged,
    NodeOutdated,
    RowSetAside,
)
from crontask_core.model import (
    ExecStatus,
    Execution,
    NodeRow,
    Rules,
    Task,
    host_of,
)
from crontask_core.policy import Answer, AnswerKind, Outcome, callback_of, judge
from crontask_core.policy.hosts import HostBook
from crontask_core.policy.versions import ScheduleData, current_data
from crontask_core.policy.watch import NodeWatch
from crontask_core.ports import Claimed, Clock, GaClient, Horizon, Lock, Moved, Observer, Repo

__all__ = ["Engine", "Send"]

_JUMP = timedelta(seconds=5)
_FRESH = 5.0
_TRIES = 3
_AHEAD = 0.1
"""Seconds of calls begun ahead, so that no slot waits for a transaction."""


@attrs.frozen
class Send:
    """A fire this node has begun: the rows as stored, and when (``Clock.elapsed`` seconds)."""

    execution: Execution
    task: Task
    begun: float


@attrs.define(kw_only=True)
class Engine:
    """One node's firing side.

    ``new_node`` makes the row of a fresh incarnation. ``concurrency`` is how many calls run at
    once; a little more is begun ahead while calls are fast, so that no slot waits for the store.
    ``data`` is what fires are computed from; ``newer`` what the store has seen when that is newer:
    then this node does not claim (X-S8).
    ``on_ready`` and ``on_outcome`` are called when something can be delivered or settled,
    ``on_later`` with the instant of a retry that was put off or of a fire that was moved.
    """

    repo: Repo
    client: GaClient
    clock: Clock
    observer: Observer
    rules: Rules
    new_node: Callable[[], NodeRow]
    lock: Lock | None = None
    data: ScheduleData = attrs.Factory(current_data)
    concurrency: int = 50
    claim_batch: int = 200
    heartbeat_every: float = 2.0
    node_timeout: float = 10.0
    on_ready: Callable[[], None] = lambda: None
    on_outcome: Callable[[], None] = lambda: None
    on_later: Callable[[datetime], None] = lambda at: None
    node: NodeRow = attrs.field(init=False)
    stopping: bool = attrs.field(default=False, init=False)
    paused: bool = attrs.field(default=False, init=False)
    waiting: bool = attrs.field(default=True, init=False)
    newer: ScheduleData | None = attrs.field(default=None, init=False)
    _registered: bool = attrs.field(default=False, init=False)
    _beat: float = attrs.field(default=float("-inf"), init=False)
    _unsent: int = attrs.field(default=0, init=False)
    _doubt: bool = attrs.field(default=False, init=False)
    _hand: dict[int, Send] = attrs.field(factory=dict, init=False)
    _ready: deque[Send] = attrs.field(factory=deque, init=False)
    _outcomes: list[Outcome] = attrs.field(factory=list, init=False)
    _hosts: HostBook = attrs.field(init=False)
    _watch: NodeWatch = attrs.field(init=False)
    _namesakes: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.node = self.new_node()
        self._hosts = HostBook(self.concurrency)
        self._watch = NodeWatch(self.node_timeout, 3 * self.heartbeat_every)

    # -- what this node holds ------------------------------------------------------------------
    @property
    def in_hand(self) -> int:
        """Fires begun here and not yet settled."""
        return len(self._hand)

    @property
    def unsettled(self) -> int:
        """Finished calls that wait to be written."""
        return len(self._outcomes)

    def free_slots(self) -> int:
        """How many more fires this node may begin now; 0 while it stops, is paused or retired, and
        while its heartbeat is too old to send what it would begin."""
        idle = self.stopping or self.paused or not self._registered
        if idle or not self._heard_lately():
            return 0
        typical = self._hosts.typical()
        ahead = int(self.concurrency * _AHEAD / typical) if typical else 0
        ahead = min(4 * self.concurrency, ahead)
        return max(0, self.concurrency + ahead - len(self._hand))

    @property
    def congested(self) -> bool:
        """Whether so many finished calls wait to be written that no more should be made: after a
        crash each of them would be made again."""
        return len(self._outcomes) >= 2 * self.concurrency

    def next_send(self) -> Send | None:
        """A begun fire to deliver now, or None."""
        return self._ready.popleft() if self._ready else None

    # -- passes --------------------------------------------------------------------------------
    async def horizon(self) -> Horizon:
        """When there is something to do here; also learns whether fires wait in the queue."""
        found = await self.repo.horizon()
        self.waiting = found.waiting
        return found if self.newer is None else attrs.evolve(found, next_due=None)

    async def claim(self) -> int:
        """Turn due tasks into executions (DESIGN 3.1). Returns the number of tasks claimed."""
        if self.stopping or self.paused or self.newer is not None or not self._registered:
            return 0
        await self._adopt()
        began = self.clock.elapsed()
        only = await self._locked_ids()
        if only is not None and not only[0]:
            return 0
        capped = self._hosts.capped(others_wait=True)
        try:
            claimed = await self.repo.claim(
                self.node.incarnation,
                self.claim_batch,
                min(self.free_slots(), self._hosts.room(others_wait=True)),
                capped_hosts=capped,
                only=only[0] if only is not None else None,
                data=self.data,
            )
        except CrontaskError as error:
            self._doubt = True
            if error.retryable:
                raise
            claimed = await self._claim_singly(error)
        finally:
            if only is not None and self.lock is not None:
                await self.lock.release_many(only[1])
        if claimed.newer is not None:
            self._learn_data(claimed.newer)
        self._take(claimed.started)
        self._after_claim(claimed, self.clock.elapsed() - began)
        return claimed.tasks

    async def begin(self) -> int:
        """Take waiting fires into free slots, in queue order (DESIGN 3.2). Returns how many."""
        slots = self.free_slots()
        if slots == 0:
            return 0
        await self._adopt()
        # With a whole round of calls ready here, a few more would cost a transaction each.
        if not self.waiting or self._unsent >= self.concurrency:
            return 0
        count = await self._begin(slots, others_wait=True)
        if count == 0 and self._hosts.capped(others_wait=True):
            # Nobody else waits: a slow host may use more than half, but never the last slots.
            count = await self._begin(slots, others_wait=False)
        return count

    async def _begin(self, slots: int, *, others_wait: bool) -> int:
        capped = self._hosts.capped(others_wait=others_wait)
        slots = min(slots, self._hosts.room(others_wait=others_wait))
        try:
            begun = await self.repo.begin(self.node.incarnation, slots, capped_hosts=capped)
        except CrontaskError:
            self._doubt = True
            raise
        self.waiting = begun.more or bool(capped)
        self._take(begun.started)
        for after in begun.ended:
            self._on(ExecutionMoved(before=after, after=after, why="begin"))
        return len(begun.started) + len(begun.ended)

    async def deliver(self, send: Send) -> None:
        """Call the agent once and queue the outcome. Hands back unsent what may no longer be ours:
        begun over 5 s ago, or without a fresh heartbeat (DESIGN 3.2)."""
        self._unsent -= 1
        host = host_of(send.task.callback_url or self.rules.default_callback_url)
        started = self.clock.now()
        at = self.clock.elapsed()
        if at - send.begun > _FRESH or not self._heard_lately() or self.stopping:
            self._hosts.ended(host, None)
            self._finish(send, started, None)
            return
        execution = send.execution
        lateness = (started - execution.fire_time).total_seconds()
        self._on(FireStarted(execution=execution, lateness=lateness))
        callback = callback_of(execution, send.task, self.rules)
        answer = await self.client.call(callback, self._heard_lately)
        seconds = self.clock.elapsed() - at
        slow = answer.kind is not AnswerKind.RESPONSE
        unsent = answer.kind is AnswerKind.UNSENT
        self._hosts.ended(host, None if unsent else max(seconds, 2.0) if slow else seconds)
        self._finish(send, started, answer)

    def _heard_lately(self) -> bool:
        """Whether nobody can have retired this node yet. Asked again once a connection is there:
        a process can be frozen while it connects. No new incarnation begins with calls in hand."""
        return self.clock.elapsed() - self._beat <= self.node_timeout / 2

    def _finish(self, send: Send, started: datetime, answer: Answer | None) -> None:
        execution = send.execution
        now = self.clock.now()
        attempt = execution.retry_count + execution.takeovers + 1
        unsent = answer is None or answer.kind is AnswerKind.UNSENT
        verdict = None if unsent or answer is None else judge(answer, attempt, now, self.rules)
        if verdict is not None:
            seconds = (now - started).total_seconds()
            self._on(CallEnded(execution=execution, verdict=verdict, seconds=seconds))
        self._outcomes.append(
            Outcome(
                execution_id=execution.id,
                fire_id=execution.fire_id,
                task_id=execution.task_id,
                fence=execution.fence,
                started_at=started,
                ended_at=now,
                revision=send.task.revision,
                verdict=verdict,
            )
        )
        self.on_outcome()

    async def settle(self) -> int:
        """Write every finished call in one transaction (DESIGN 3.5). Returns how many."""
        batch, self._outcomes = self._outcomes, []
        if not batch:
            return 0
        try:
            await self._settle(batch)
        except BaseException:
            left = [o for o in batch if self._holds(o)]
            self._outcomes = left + self._outcomes
            raise
        return len(batch)

    def _holds(self, outcome: Outcome) -> bool:
        send = self._hand.get(outcome.execution_id)
        if send is None:
            return False
        held = send.execution
        return (held.fire_id, held.fence) == (outcome.fire_id, outcome.fence)

    async def _settle(self, batch: Sequence[Outcome]) -> None:
        try:
            settled = await self.repo.settle(self.node.incarnation, batch)
        except CrontaskError as error:
            if error.retryable:
                raise
            if len(batch) == 1:
                self._set_aside("execution", batch[0].execution_id, error)
                self._release(batch[0])
                return
            # One bad row never stops the others: halve until it stands alone.
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for outcome in batch:
            self._release(outcome)
        for row in settled:
            if row.after.exec_status is ExecStatus.PENDING and row.after.next_action_at:
                self.on_later(row.after.next_action_at)
            self._on(
                ExecutionMoved(before=row.before, after=row.after, why="settle", lost=row.lost)
            )

    def _release(self, outcome: Outcome) -> None:
        if self._holds(outcome):
            del self._hand[outcome.execution_id]

    async def sweep(self, limit: int = 200) -> int:
        """Move what time moves (DESIGN 3.6). Returns how many executions."""
        if self.paused:
            return 0
        swept = await self.repo.sweep(limit)
        self._moved(swept.moved, "sweep")
        self.waiting = self.waiting or bool(swept.moved)
        return len(swept.moved)

    async def recompute(self, limit: int = 500) -> int:
        """Learn whether the store has seen newer zone data or cron rules than this node's; where
        this node's are the newest, compare one page of stored fires with them (X-S8). Returns how
        many tasks may still wait for it, as 0 or ``limit``."""
        done = await self.repo.recompute(self.data, limit)
        self._learn_data(done.state.seen)
        if done.before != done.state:
            over = done.state.after is None
            self._on(FiresRecomputed(data=str(self.data), moved=len(done.moved), done=over))
        for _, task in done.moved:
            if task.next_fire_time is not None:
                self.on_later(task.next_fire_time)
        return limit if done.before != done.state and done.state.after is not None else 0

    def _learn_data(self, seen: ScheduleData) -> None:
        newer = seen if self.data.older_than(seen) else None
        if newer is not None and newer != self.newer:
            remedy = self.data.remedy(seen)
            self._on(NodeOutdated(here=str(self.data), seen=str(seen), remedy=remedy))
        self.newer = newer

    async def heartbeat(self) -> None:
        """Register, or move this incarnation's counter; learn the database's time; take a new
        incarnation when this one was retired and nothing is in hand (DESIGN 3.6, 3.9)."""
        sent = self.clock.elapsed()
        if not self._registered:
            if self._hand or self.stopping:
                return
            await self._register(sent)
            return
        database_now, alive = await self.repo.heartbeat(self.node.incarnation)
        self._learn(database_now, sent)
        if alive:
            self._beat = sent
            return
        self._registered = False
        self._doubt = False
        self._on(NodeChanged(node=self.node, what="lost"))

    async def _register(self, sent: float) -> None:
        self.node = self.new_node()
        database_now = await self.repo.register(self.node)
        self._learn(database_now, sent)
        self._beat = sent
        self._registered = True
        self._on(NodeChanged(node=self.node, what="registered"))

    def _learn(self, database_now: datetime, sent: float) -> None:
        off = self.clock.observe(database_now, sent)
        jumped = abs(off) > _JUMP and self._registered
        if jumped:
            seconds = off.total_seconds()
            self._on(DatabaseClockJumped(at=database_now, seconds=seconds))
        self.paused = jumped

    async def watch(self) -> int:
        """Read the others' counters; retire those that stand still (DESIGN 3.6). Returns how many
        of their calling fires were taken over."""
        rows = await self.repo.nodes()
        others = [
            (n.incarnation, n.counter) for n in rows if n.incarnation != self.node.incarnation
        ]
        dead = self._watch.read(others, self.clock.elapsed())
        self._tell_namesakes(rows)
        if not dead or not self._registered:
            return 0
        moved = await self.repo.retire(dead, "its node is gone")
        self._moved(moved, "takeover")
        by_id = {n.incarnation: n for n in rows}
        for incarnation, _ in dead:
            self._on(NodeChanged(node=by_id[incarnation], what="retired"))
        return len(moved)

    def _tell_namesakes(self, rows: Sequence[NodeRow]) -> None:
        """Two live processes with one node id do no harm, since incarnations decide; but nobody
        can tell them apart, so it is said, once for each."""
        for row in rows:
            same = row.node_id == self.node.node_id and row.incarnation in self._watch.moved
            if same and row.incarnation not in self._namesakes:
                self._namesakes.add(row.incarnation)
                self._on(NodeChanged(node=row, what="namesake"))

    async def leave(self) -> None:
        """The last pass: retire this incarnation; what was sent and not answered is taken over."""
        if not self._registered:
            return
        self._registered = False
        for _ in range(_TRIES):
            rows = [n for n in await self.repo.nodes() if n.incarnation == self.node.incarnation]
            if not rows:
                break
            # A heartbeat still on its way may move the counter first: then look again.
            seen = [(n.incarnation, n.counter) for n in rows]
            self._moved(await self.repo.retire(seen, "its node left"), "takeover")
        self._on(NodeChanged(node=self.node, what="retired"))

    # -- inside --------------------------------------------------------------------------------
    def _take(self, rows: Sequence[tuple[Execution, Task]]) -> None:
        begun = self.clock.elapsed()
        self._unsent += len(rows)
        for execution, task in rows:
            send = Send(execution, task, begun)
            self._hand[execution.id] = send
            self._ready.append(send)
            self._hosts.started(host_of(task.callback_url or self.rules.default_callback_url))
        if rows:
            self.on_ready()

    async def _adopt(self) -> None:
        """After a commit whose outcome is unknown: rows that are ours and that we do not remember
        were never sent, so they are sent now (DESIGN 3.6)."""
        if not self._doubt:
            return
        # What is in hand when the question is asked may be settled before the answer is here.
        known = set(self._hand)
        rows = await self.repo.mine(self.node.incarnation)
        self._doubt = False
        self._take([(e, t) for e, t in rows if e.id not in known])

    async def _locked_ids(self) -> tuple[frozenset[int], list[str]] | None:
        """With a lock service: the due tasks whose fires it grants, and the keys to free."""
        if self.lock is None:
            return None
        due = await self.repo.due(self.claim_batch)
        keys = [f"{task_id}:{at.isoformat()}" for task_id, at in due]
        granted = await self.lock.try_acquire_many(keys)
        ours = [(t, key) for (t, _), key, yes in zip(due, keys, granted, strict=True) if yes]
        return frozenset(t for t, _ in ours), [key for _, key in ours]

    async def _claim_singly(self, error: CrontaskError) -> Claimed:
        """A batch failed for good: claim each due task alone and set the bad one aside."""
        total = Claimed(now=self.clock.now())
        for task_id, _ in await self.repo.due(self.claim_batch):
            try:
                one = await self.repo.claim(
                    self.node.incarnation, 1, self.free_slots(), only=[task_id], data=self.data
                )
            except CrontaskError as single:
                if single.retryable:
                    raise
                self._set_aside("task", task_id, single)
                await self.repo.set_aside([task_id], f"cannot be claimed: {single.message}")
                continue
            self._take(one.started)
            total = attrs.evolve(
                total,
                tasks=total.tasks + one.tasks,
                queued=total.queued + one.queued,
                skipped=total.skipped + one.skipped,
                broken=total.broken + one.broken,
            )
        return total

    def _after_claim(self, claimed: Claimed, seconds: float) -> None:
        if claimed.tasks == 0:
            return
        self.waiting = self.waiting or claimed.queued > 0
        for row in claimed.skipped:
            self._on(ExecutionMoved(before=row, after=row, why="claim"))
        for task_id, reason in claimed.broken:
            self._on(RowSetAside(kind="task", id=task_id, reason=reason))
        self._on(
            ClaimEnded(
                tasks=claimed.tasks,
                started=len(claimed.started),
                queued=claimed.queued,
                skipped=len(claimed.skipped),
                seconds=seconds,
            )
        )

    def _set_aside(self, kind: str, row_id: int, error: CrontaskError) -> None:
        self._on(RowSetAside(kind=kind, id=row_id, reason=error.message))

    def _moved(self, moved: Sequence[Moved], why: str) -> None:
        for row in moved:
            self._on(ExecutionMoved(before=row.before, after=row.after, why=why))

    def _on(self, event: Event) -> None:
        self.observer.on(event)
