"""Whether a run kept the three promises. Looks at evidence only, never at the engine.

1. Every due fire is accounted for exactly once: by a row of its own, or within one counted span of
   skipped ones. 2. It is delivered at least once, always under one ``fire_id``; again only where an
   answer was missing or a node or the database failed. 3. No report that was acknowledged is lost,
   and every execution ends.
"""

from __future__ import annotations

import signal
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import attrs

from chaos.due import Due, due_of
from chaos.evidence import Delivery, Evidence, Execution, Exit, Sent, Task
from chaos.windows import DATABASE, Windows

__all__ = ["Violation", "check"]

SUCCESS, FAILED, TIMED_OUT, CANCELLED, SKIPPED = 2, 3, 4, 5, 6
FINAL = frozenset({SUCCESS, FAILED, TIMED_OUT, CANCELLED, SKIPPED})
COMPLETED = 2
STALE_PER_FREEZE = 2
"""Calls a node may send although it was frozen and taken over: the look at its own heartbeat and
the write to the socket are two instants, and a freeze can fall between them."""
NO_DATABASE = 5
_SECOND = 1_000_000
_SLACK = 0.1
T = TypeVar("T")
K = TypeVar("K")


@attrs.frozen
class Violation:
    """A broken promise: which, and the case."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def check(evidence: Evidence) -> list[Violation]:
    """Every broken promise of a run."""
    case = _Case(evidence)
    return [
        *case.fires(),
        *case.skips(),
        *case.doubles(),
        *case.manual_runs(),
        *case.deliveries(),
        *case.stale_sends(),
        *case.outcomes(),
        *case.reports(),
        *case.ends(),
        *case.nodes(),
    ]


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    found: dict[K, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


class _Case:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.windows = Windows.of(evidence)
        self.tasks: dict[int, Task] = {task.id: task for task in evidence.tasks}
        self.rows: dict[str, Execution] = {row.fire_id: row for row in evidence.executions}
        self.of_task = _by(evidence.executions, lambda row: row.task_id)
        self.actions = _by(evidence.actions, lambda action: action.task_id)
        sent = sorted(evidence.deliveries, key=lambda d: d.at)
        self.sent = _by(sent, lambda call: call.fire_id)
        self.due = {
            task_id: due_of(actions, evidence.ended) for task_id, actions in self.actions.items()
        }

    # -- every due fire is accounted for exactly once ------------------------------------------
    def fires(self) -> Iterator[Violation]:
        for task_id in sorted(self.tasks.keys() | self.actions.keys()):
            actions = self.actions.get(task_id, [])
            task = self.tasks.get(task_id)
            if task is None or not actions:
                yield Violation("lost", f"task {task_id} is only in one of table and callers' log")
                continue
            rows = [r for r in self.of_task.get(task_id, []) if not r.manual]
            due = self.due[task_id]
            if actions[0].max_fires:
                yield from self._limit(task, actions[0].max_fires, rows, due)
            yield from self._accounted(task, rows, due)

    def _accounted(self, task: Task, rows: Sequence[Execution], due: Due) -> Iterator[Violation]:
        every = due.every
        known = set(every)
        seen: Counter[int] = Counter()
        for row in rows:
            if not row.missed_count:
                seen[row.fire_us] += 1
                if row.fire_us not in known:
                    yield Violation("undue", f"{_name(task)} {row.fire_us} was never due")
                continue
            inside = _between(every, row.missed_from_us, row.missed_to_us)
            seen.update(inside)
            sure = sum(fire in due.must for fire in inside)
            if not sure <= row.missed_count <= len(inside):
                text = f"counts {row.missed_count} missed fires, there were {len(inside)}"
                yield Violation("span", f"{_name(task)} execution {row.id} {text}")
        for fire in every:
            if seen[fire] == 0 and fire in due.must:
                yield Violation("lost", f"{_name(task)} was due at {fire}, and nothing says so")
            if seen[fire] > 1:
                yield Violation("doubled", f"{_name(task)} {fire} has {seen[fire]} rows")

    def _limit(
        self, task: Task, limit: int, rows: Sequence[Execution], due: Due
    ) -> Iterator[Violation]:
        """``max_fires``: the task ends with its last run; what comes after was never due. What was
        skipped or cancelled by a claim does not count, whatever comes later does (X-S6)."""
        ran = [r for r in rows if not r.missed_count and "before claim" not in r.reason]
        if len(ran) > limit:
            yield Violation("undue", f"{_name(task)} ran {len(ran)} times, allowed were {limit}")
        if task.status == COMPLETED and len(ran) != limit:
            yield Violation("lost", f"{_name(task)} was completed after {len(ran)} of {limit} runs")
        if len(ran) >= limit:
            last = max(row.fire_us for row in ran)
            due.must = {fire for fire in due.must if fire <= last}
            due.may = {fire for fire in due.may if fire <= last}

    # -- nothing is skipped or cancelled without a reason --------------------------------------
    def skips(self) -> Iterator[Violation]:
        for row in self.evidence.executions:
            if row.status == SKIPPED and not self._skipped_well(row):
                yield Violation("skip", f"execution {row.id} was skipped early: {row.reason}")
            if row.status == CANCELLED and not self._cancelled_well(row):
                yield Violation("cancel", f"execution {row.id}: nobody asked ({row.reason})")
            if row.created_us < row.fire_us:
                yield Violation("early", f"execution {row.id} was made before it was due")

    def _skipped_well(self, row: Execution) -> bool:
        last = row.missed_to_us or row.fire_us
        if (row.end_us or 0) - last > self._grace(row) * _SECOND:
            return True
        every = self.due[row.task_id].every if row.task_id in self.due else []
        if any(last < fire <= row.created_us for fire in every[bisect_right(every, last) :][:1]):
            return True
        return row.reason.startswith("overlap") and any(
            other.id != row.id
            and other.created_us <= row.created_us <= (other.end_us or row.created_us)
            for other in self.of_task[row.task_id]
        )

    def _grace(self, row: Execution) -> float:
        own = [a.grace for a in self.actions.get(row.task_id, []) if a.grace]
        return own[0] if own else self.evidence.terms.grace

    def _cancelled_well(self, row: Execution) -> bool:
        at = (row.end_us or 0) / _SECOND
        return any(
            a.what in ("pause", "delete", "update")
            and a.asked - _SLACK <= at <= a.answered + _SLACK
            for a in self.actions.get(row.task_id, [])
        ) or self._begun_late(row, at)

    def _begun_late(self, row: Execution, at: float) -> bool:
        # A fire that waits when its task is paused is cancelled when its turn comes.
        off = [a for a in self.actions.get(row.task_id, []) if a.what in ("pause", "delete")]
        return "before the call" in row.reason and any(a.asked - _SLACK <= at for a in off)

    # -- one row, one fire id ------------------------------------------------------------------
    def doubles(self) -> Iterator[Violation]:
        rows = self.evidence.executions
        keys = Counter((r.task_id, r.fire_us, r.manual) for r in rows)
        for key, count in keys.items():
            if count > 1:
                yield Violation("doubled", f"{count} rows for (task, fire, manual) {key}")
        for fire_id, count in Counter(r.fire_id for r in rows).items():
            if count > 1:
                yield Violation("doubled", f"{count} rows for fire_id {fire_id}")

    def manual_runs(self) -> Iterator[Violation]:
        asked = {a.fire_id for a in self.evidence.actions if a.what == "run_now" and a.fire_id}
        there = {r.fire_id for r in self.evidence.executions if r.manual}
        for fire_id in sorted(asked - there):
            yield Violation("lost", f"run-now {fire_id} was promised and has no row")
        for fire_id in sorted(there - asked):
            yield Violation("undue", f"manual fire {fire_id} was never asked for")

    # -- deliveries ----------------------------------------------------------------------------
    def deliveries(self) -> Iterator[Violation]:
        ids: dict[tuple[int, int, bool], str] = {}
        for fire_id, calls in self.sent.items():
            first = calls[0]
            key = (first.task_id, first.fire_us, first.manual)
            if ids.setdefault(key, first.fire_id) != first.fire_id:
                yield Violation("fire_id", f"{key} was delivered under two ids")
            row = self.rows.get(first.fire_id)
            if row is None:
                yield Violation("fire_id", f"{fire_id} was delivered and has no row")
                continue
            yield from self._calls(row, calls)

    def _calls(self, row: Execution, calls: Sequence[Delivery]) -> Iterator[Violation]:
        name = f"execution {row.id}"
        for call in calls:
            if (call.task_id, call.fire_us, call.manual) != (row.task_id, row.fire_us, row.manual):
                yield Violation("fire_id", f"{name}: a delivery says it is another fire")
            if call.at < call.fire_us / _SECOND - _SLACK:
                yield Violation("early", f"{name} was delivered before it was due")
            if call.attempt > 1 + row.retry_count + row.takeovers:
                yield Violation("fence", f"{name}: attempt {call.attempt} is not in the books")
        for attempt, count in Counter(call.attempt for call in calls).items():
            if count > 1:
                yield Violation("fence", f"{name}: attempt {attempt} was sent {count} times")
        if self._at_most_once(row) and len(calls) > 1:
            yield Violation("at_most_once", f"{name} was delivered {len(calls)} times")
        in_order = [call for n, call in enumerate(calls) if not _stale(call, calls[:n])]
        for one, two in pairwise(in_order):
            yield from self._again(name, one, two)

    def _again(self, name: str, one: Delivery, two: Delivery) -> Iterator[Violation]:
        cause = self.windows.cause(one) or self.windows.kept_waiting(one)
        if self.windows.accepted(one) and not cause:
            text = f"{two.at - one.at:.2f} s after {one.node} had its answer"
            yield Violation("redelivered", f"{name} was sent again by {two.node} {text}")
        elif not cause and two.at < (one.until or one.at) - _SLACK:
            yield Violation("fence", f"{name} was sent by {two.node} while {one.node} was calling")

    def stale_sends(self) -> Iterator[Violation]:
        """What a node sent after it had been frozen and another had taken the fire over."""
        frozen = [f for f in self.windows.faults if f.kind == "freeze"]
        stale: Counter[str] = Counter()
        for calls in self.sent.values():
            for n, call in enumerate(calls):
                later = _stale(call, calls[:n])
                if later and any(f.node == call.node and f.end <= call.at for f in frozen):
                    stale[call.node] += 1
                elif later and not self.windows.cause(call):
                    yield Violation("fence", f"{call.fire_id}: {call.node} sent an old attempt")
        for node, count in stale.items():
            allowed = STALE_PER_FREEZE * sum(f.node == node for f in frozen)
            if count > allowed:
                yield Violation("fence", f"{node} woke up and sent {count} fires it had lost")

    def _at_most_once(self, row: Execution) -> bool:
        made = self.actions.get(row.task_id, [])
        return bool(made) and made[0].delivery == "at_most_once"

    # -- what became of each -------------------------------------------------------------------
    def outcomes(self) -> Iterator[Violation]:
        for row in self.evidence.executions:
            calls = self.sent.get(row.fire_id, [])
            taken = [c for c in calls if self.windows.accepted(c) and not self.windows.cause(c)]
            if taken and row.accepted_us is None and row.reported_us is None:
                yield Violation("lost", f"execution {row.id} was accepted, and nothing says so")
            if row.status in (SUCCESS, TIMED_OUT) and not calls:
                yield Violation("lost", f"execution {row.id} is {row.status}, never delivered")
            if row.status == SUCCESS and row.reported_us is None:
                yield Violation("report", f"execution {row.id} succeeded without a report")
            over = row.status in (CANCELLED, SKIPPED, FAILED) and row.reported_us is None
            if over and row.accepted_us is not None:
                yield Violation("lost", f"execution {row.id} runs, its row says it is over")
            if row.status == TIMED_OUT and not self._timed_out_well(row):
                yield Violation("early", f"execution {row.id} timed out before its time was up")

    def _timed_out_well(self, row: Execution) -> bool:
        began = row.accepted_us or row.created_us
        limit = (self.evidence.terms.report_timeout - _SLACK) * _SECOND
        return row.end_us is not None and row.end_us - began >= limit

    # -- reports -------------------------------------------------------------------------------
    def reports(self) -> Iterator[Violation]:
        final = [r for r in self.evidence.reports if r.status != "running"]
        by_fire = _by(final, lambda sent: sent.fire_id)
        for fire_id, sent in by_fire.items():
            row = self.rows.get(fire_id)
            if row is not None:
                yield from self._reported(row, sent)
        for row in self.evidence.executions:
            said = {(r.status, r.token) for r in by_fire.get(row.fire_id, [])}
            if row.reported_us is not None and (_word(row), row.token) not in said:
                yield Violation("report", f"execution {row.id} tells what no agent said")
        for item in self.evidence.reports:
            yield from self._answered(item)

    def _reported(self, row: Execution, sent: Sequence[Sent]) -> Iterator[Violation]:
        name = f"execution {row.id} (status {row.status})"
        won = [r for r in sent if r.outcome == "recorded"]
        if len({r.token for r in won}) > 1:
            yield Violation("report", f"{name}: {len(won)} final reports were taken")
        elif won and (row.reported_us is None or (_word(row), row.token) != _said(won[0])):
            yield Violation("report", f"{name} lost the report {_said(won[0])}: it was recorded")
        if row.reported_us is None:
            yield from self._unheard(row, name, sent)

    def _unheard(self, row: Execution, name: str, sent: Sequence[Sent]) -> Iterator[Violation]:
        """Reports of a fire that took none. One kept under a run id alone can only count once an
        answer with that id has arrived, so it may be lost with the answer."""
        early = {item.run_id for item in sent if item.outcome == "pending"}
        for item in sent:
            calls = [c for c in self.sent.get(row.fire_id, []) if c.run_id == item.run_id]
            if item.run_id in early and any(self._unsure(c) for c in calls):
                continue
            if item.outcome in ("duplicate", "contradicts"):
                yield Violation("report", f"{name}: {_said(item)} was the duplicate of none")
            elif item.outcome == "pending":
                yield Violation("report", f"{name} lost the early report {_said(item)}")

    def _answered(self, item: Sent) -> Iterator[Violation]:
        name = f"report {item.run_id} of {item.fire_id}"
        if not item.outcome:
            yield Violation("report", f"{name} was never answered ({item.tries} tries)")
        if not item.outcome.startswith("refused"):
            return
        calls = [c for c in self.sent.get(item.fire_id, []) if c.run_id == item.run_id]
        if item.named == "fire" or not any(self._unsure(c) for c in calls):
            yield Violation("report", f"{name} was {item.outcome}")

    def _unsure(self, call: Delivery) -> bool:
        return not self.windows.accepted(call) or bool(self.windows.cause(call))

    # -- every execution ends ------------------------------------------------------------------
    def ends(self) -> Iterator[Violation]:
        if not self.evidence.drained:
            yield Violation("ends", "not everything had ended when the run was over")
        for row in self.evidence.executions:
            if row.status not in FINAL or row.next_action_us is not None:
                yield Violation("ends", f"execution {row.id} is {row.status}, never final")
        if self.evidence.queued:
            yield Violation("ends", f"{self.evidence.queued} fires still stand in the queue")
        for task in self.tasks.values():
            if task.next_fire_us is not None:
                yield Violation("ends", f"{_name(task)} is still armed")
            elif task.status == 1:
                yield Violation("ends", f"{_name(task)} has no fire left and is not completed")

    def nodes(self) -> Iterator[Violation]:
        for left in self.evidence.exits:
            if left.wanted and not left.stuck and left.code in (0, -9):
                continue
            if not self._could_not_start(left):
                yield Violation("node", f"{left.node} ended by itself with {left.code}")
        for line in self.evidence.logged:
            yield Violation("node", line)

    def _could_not_start(self, left: Exit) -> bool:
        """Without its database a node does not start; whoever starts nodes starts it again. A new
        process may not know yet what SIGTERM means; it holds nothing."""
        if any(call.node == left.node for call in self.evidence.deliveries):
            return False
        away = [f for f in self.windows.faults if f.kind in DATABASE]
        gone = any(f.start <= left.at and f.end >= left.at - left.age - 1.0 for f in away)
        return (left.code == NO_DATABASE and gone) or (
            left.code == -signal.SIGTERM and left.wanted and not left.stuck
        )


def _stale(call: Delivery, before: Sequence[Delivery]) -> bool:
    """Whether a later attempt of the fire had been sent already."""
    return any(other.attempt > call.attempt for other in before)


def _between(every: Sequence[int], first: int | None, last: int | None) -> Sequence[int]:
    if first is None or last is None:
        return []
    return every[bisect_left(every, first) : bisect_right(every, last)]


def _name(task: Task) -> str:
    return f"task {task.id} ({task.task_key})"


def _word(row: Execution) -> str:
    return "success" if row.status == SUCCESS else "failed"


def _said(item: Sent) -> tuple[str, str]:
    return item.status, item.token
