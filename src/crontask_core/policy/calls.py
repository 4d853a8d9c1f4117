"""What an agent's answer means, and what the fire becomes (A6.1b, A6.3, DESIGN 3.4 to 3.6)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum

import attrs

from crontask_core.model import (
    Attempt,
    AttemptClass,
    Callback,
    Delivery,
    ExecStatus,
    Execution,
    InboxReport,
    ReadyFire,
    Rules,
    Task,
    TaskStatus,
    TriggerKind,
    evolve,
    host_of,
)
from crontask_core.policy.edits import finish
from crontask_core.policy.fires import grace_of, start_call
from crontask_core.policy.queue import QueueView, queue_ready
from crontask_core.policy.writes import Writes, end

__all__ = [
    "Answer",
    "AnswerKind",
    "Begun",
    "Outcome",
    "Settled",
    "Verdict",
    "after_call",
    "backoff",
    "callback_of",
    "enqueue",
    "give_up",
    "judge",
    "plan_begin",
    "plan_settle",
    "plan_take_over",
    "report_deadline",
]

ANSWER_KEPT = 8_192
RUN_ID_LIMIT = 128
_RETRY_CODES = frozenset({404, 408, 425, 429})


class AnswerKind(StrEnum):
    """How a call ended, as a ``GaClient`` saw it."""

    RESPONSE = "response"
    TIMEOUT = "timeout"
    CONNECT = "connect"
    BROKEN = "broken"
    TLS = "tls"
    REFUSED = "refused"
    UNSENT = "unsent"


@attrs.frozen(kw_only=True)
class Answer:
    """What came back from one call, unjudged.

    ``kind``: RESPONSE with ``status`` 100 to 599, ``body`` (at most 64 KB, undecoded),
    ``retry_after`` (the header as sent, "" for none) and maybe a note in ``error``; TIMEOUT, BROKEN
    (reset or half an answer): the request may have arrived; CONNECT (no connection, DNS included),
    TLS (a certificate that does not verify), REFUSED (an address the guard forbids), UNSENT (given
    back before the socket was written): it did not. ``error`` says in words what happened, without
    secrets.
    """

    kind: AnswerKind
    status: int = 0
    body: bytes = b""
    retry_after: str = ""
    error: str = ""


@attrs.frozen(kw_only=True)
class Verdict:
    """What an answer means. ``arrived`` is true when the agent may have acted on the request;
    ``delay`` is the agent's own wish (Retry-After), ``warning`` something worth recording."""

    outcome: AttemptClass
    http_status: int = 0
    task_run_id: str = ""
    reason: str = ""
    warning: str = ""
    answer: str = ""
    delay: timedelta | None = None
    arrived: bool = True


@attrs.frozen(kw_only=True)
class Outcome:
    """A finished call, on its way into the store. ``verdict`` None: handed back unsent.

    ``fire_id``, when given, must be the execution's: a database that failed over may give the
    number of a lost execution to another fire."""

    execution_id: int
    fire_id: str = ""
    task_id: int
    fence: int
    started_at: datetime
    ended_at: datetime
    revision: int
    verdict: Verdict | None


@attrs.frozen(kw_only=True)
class Settled:
    """What became of an outcome. ``lost``: the row was no longer this node's; only the attempt
    was kept. ``before`` and ``after`` are the execution as read and as written."""

    before: Execution
    after: Execution
    lost: bool = False
    reported: bool = False


@attrs.frozen
class Begun:
    """What a begin made of the rows it took: ``started`` to send, ``ended`` cancelled or late."""

    writes: Writes
    started: tuple[tuple[Execution, Task], ...] = ()
    ended: tuple[tuple[Execution, Task], ...] = ()


def judge(answer: Answer, attempt: int, now: datetime, rules: Rules) -> Verdict:
    """Accepted, retry or final: decided here and nowhere else (A6.1b, A6.3)."""
    if answer.kind is AnswerKind.RESPONSE:
        return _judge_response(answer, attempt, now, rules)
    if answer.kind in (AnswerKind.TLS, AnswerKind.REFUSED):
        return Verdict(outcome=AttemptClass.FINAL, reason=answer.error, arrived=False)
    arrived = answer.kind in (AnswerKind.TIMEOUT, AnswerKind.BROKEN)
    return Verdict(outcome=AttemptClass.RETRY, reason=answer.error, arrived=arrived)


def _judge_response(answer: Answer, attempt: int, now: datetime, rules: Rules) -> Verdict:
    text = answer.body[:ANSWER_KEPT].decode("utf-8", "replace").replace("\x00", "�")
    status = answer.status
    if 200 <= status < 300 or (status == 409 and attempt > 1):
        run_id, warning = _run_id(answer.body)
        return Verdict(
            outcome=AttemptClass.ACCEPTED,
            http_status=status,
            task_run_id=run_id,
            warning="; ".join(note for note in (warning, answer.error) if note),
            answer=text,
        )
    reason = f"the agent answered HTTP {status}"
    if status in _RETRY_CODES or status >= 500:
        wish = _retry_after(answer.retry_after, now)
        delay = min(wish, rules.max_retry_after) if wish is not None else None
        return Verdict(
            outcome=AttemptClass.RETRY,
            http_status=status,
            reason=reason,
            answer=text,
            delay=delay,
            arrived=status >= 500 or status == 408,
        )
    if 300 <= status < 400:
        reason += ": redirects are not followed"
    if answer.error:
        reason += f" ({answer.error})"
    return Verdict(
        outcome=AttemptClass.FINAL, http_status=status, reason=reason, answer=text, arrived=False
    )


def _run_id(body: bytes) -> tuple[str, str]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return "", "accepted, but the answer is not JSON: report with fire_id"
    value = data.get("task_run_id") if isinstance(data, dict) else None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        return "", "accepted, but the answer has no usable task_run_id: report with fire_id"
    value = value.strip()
    if len(value) > RUN_ID_LIMIT or not value.isprintable():
        return "", f"accepted, but task_run_id is over {RUN_ID_LIMIT} characters or not printable"
    return value, ""


def _retry_after(header: str, now: datetime) -> timedelta | None:
    text = header.strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:9]), 86_400))
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return max(when - now, timedelta(0)) if when.tzinfo else None


def backoff(retry: int, base_ms: int, fire_id: str, rules: Rules) -> timedelta:
    """How long before retry ``retry`` (from 1): ``min(base * 2^(retry-1), 60 s)``, +-10 % by hash.

    Equal inputs wait equally long (A6.3). Never negative, never over ``max_backoff`` * 1.1.

    >>> backoff(1, 5000, "x", Rules()) == backoff(1, 5000, "x", Rules())
    True
    """
    ms = min(base_ms * 2 ** min(retry - 1, 32), rules.max_backoff / timedelta(milliseconds=1))
    share = zlib.crc32(f"{fire_id}/{retry}".encode()) / 2**32
    return timedelta(milliseconds=ms * (0.9 + 0.2 * share))


def report_deadline(task: Task, now: datetime, rules: Rules) -> datetime:
    """When a running execution times out if nothing is heard (A6.6)."""
    if task.report_timeout_ms is not None:
        return now + timedelta(milliseconds=task.report_timeout_ms)
    return now + rules.ga_callback_timeout


def after_call(
    execution: Execution, task: Task, verdict: Verdict, now: datetime, rules: Rules
) -> Execution:
    """The execution after a call it owns was answered: 7, 0 with a later attempt, or 3."""
    seen = evolve(
        execution,
        http_status=verdict.http_status,
        response_body=verdict.answer or None,
        error_msg=verdict.reason or None,
        updated_at=now,
    )
    if verdict.outcome is AttemptClass.ACCEPTED:
        return evolve(
            seen,
            exec_status=ExecStatus.RUNNING,
            task_run_id=verdict.task_run_id,
            accepted_at=now,
            reason=verdict.warning,
            error_msg=None,
            next_action_at=report_deadline(task, now, rules),
        )
    if verdict.outcome is AttemptClass.FINAL:
        return end(seen, ExecStatus.FAILED, now, reason=verdict.reason)
    if verdict.arrived and task.delivery is Delivery.AT_MOST_ONCE:
        why = f"outcome unknown: {verdict.reason}; at_most_once, so it is not sent again"
        return end(seen, ExecStatus.FAILED, now, reason=why)
    if execution.retry_count >= task.max_retry:
        why = f"retries spent ({execution.retry_count}): {verdict.reason}"
        return end(seen, ExecStatus.FAILED, now, reason=why)
    retry = execution.retry_count + 1
    wait = backoff(retry, task.retry_interval, execution.fire_id, rules)
    if verdict.delay is not None:
        wait = max(wait, verdict.delay)
    return evolve(
        seen,
        exec_status=ExecStatus.PENDING,
        retry_count=retry,
        reason=f"retry {retry} of {task.max_retry}: {verdict.reason}"[:255],
        next_action_at=now + wait,
    )


def callback_of(execution: Execution, task: Task, rules: Rules) -> Callback:
    """What this attempt sends: the task as it is now, the fire's own time and number (A6.1a)."""
    return Callback(
        url=task.callback_url or rules.default_callback_url,
        task_id=task.id,
        task_key=task.task_key,
        task_name=task.task_name,
        user_id=task.user_id,
        conversation_id=task.conversation_id,
        task_content=task.task_content,
        fire_time=execution.fire_time,
        timezone=task.timezone,
        schedule_type=int(task.schedule_type),
        fire_count=execution.fire_number,
        fire_id=execution.fire_id,
        execution_id=execution.id,
        attempt=execution.retry_count + execution.takeovers + 1,
        revision=task.revision,
        manual=execution.trigger_kind is TriggerKind.MANUAL,
    )


def plan_begin(
    rows: Sequence[tuple[Execution, Task]], node: str, now: datetime, rules: Rules
) -> Begun:
    """Take waiting fires out of the queue (DESIGN 3.2): start them, or end those whose task was
    paused or deleted (5) or whose window is over (6, or 3 after an attempt)."""
    writes = Writes()
    started: list[tuple[Execution, Task]] = []
    ended: list[tuple[Execution, Task]] = []
    for execution, task in rows:
        writes.unready.add(execution.id)
        if execution.exec_status is not ExecStatus.PENDING:
            continue
        after = _begin_one(execution, task, node, now, rules)
        writes.set_execution(execution, after)
        if after.is_final:
            finish(writes, task, execution, after, now, rules)
            ended.append((after, task))
        else:
            started.append((after, task))
    return Begun(writes, tuple(started), tuple(ended))


def _begin_one(
    execution: Execution, task: Task, node: str, now: datetime, rules: Rules
) -> Execution:
    scheduled = execution.trigger_kind is TriggerKind.SCHEDULE
    if task.status is TaskStatus.DELETED:
        return end(execution, ExecStatus.CANCELLED, now, reason="deleted before the call")
    if task.status is TaskStatus.DISABLED and scheduled:
        return end(execution, ExecStatus.CANCELLED, now, reason="paused before the call")
    if execution.next_action_at is not None and execution.next_action_at <= now:
        return give_up(execution, now)
    return start_call(execution, node, now, rules)


def give_up(execution: Execution, now: datetime) -> Execution:
    """A fire that waited longer than its window: 6 too late, or 3 when it was attempted before."""
    if execution.fence == 0:
        return end(execution, ExecStatus.SKIPPED, now, reason="too late: no slot within the window")
    return end(execution, ExecStatus.FAILED, now, reason="no slot for the retry within the window")


def plan_settle(
    rows: Sequence[tuple[Outcome, Execution, Task]],
    inbox: Mapping[tuple[int, str], InboxReport],
    queue: QueueView,
    node: str,
    now: datetime,
    rules: Rules,
) -> tuple[Writes, list[Settled]]:
    """Write finished calls. Guard per row: status 1, the call's fence and this node.

    A lost guard keeps only the attempt row. Exception: an acceptance whose execution is back in 0
    at the same fence (taken over, not begun again) is recorded: that saves a second delivery.
    An accepted run that was reported early takes its report from the inbox (DESIGN 3.7).
    """
    writes = Writes()
    settled: list[Settled] = []
    again: list[tuple[Execution, Task]] = []
    for outcome, execution, task in rows:
        if outcome.fire_id not in ("", execution.fire_id):
            settled.append(Settled(before=execution, after=execution, lost=True))
            continue
        done = _settle_one(outcome, execution, task, node, now, rules)
        if outcome.verdict is not None:
            writes.attempts.append(_attempt(outcome, outcome.verdict, node))
            done = _take_note(writes, done, inbox.get((task.id, outcome.verdict.task_run_id)), now)
        elif not done.lost:
            again.append((done.after, task))
        if done.after is not execution:
            writes.set_execution(execution, done.after)
            if done.after.is_final:
                finish(writes, task, execution, done.after, now, rules)
        settled.append(done)
    enqueue(writes, again, queue, now, rules)
    return writes, settled


def _settle_one(
    outcome: Outcome, execution: Execution, task: Task, node: str, now: datetime, rules: Rules
) -> Settled:
    verdict = outcome.verdict
    accepted = verdict is not None and verdict.outcome is AttemptClass.ACCEPTED
    back = execution.exec_status is ExecStatus.PENDING and execution.fence == outcome.fence
    if not _owned(execution, outcome, node) and not (accepted and back):
        return Settled(before=execution, after=execution, lost=True)
    if verdict is None:
        return Settled(before=execution, after=_handed_back(execution, task, now, rules))
    return Settled(before=execution, after=after_call(execution, task, verdict, now, rules))


def _take_note(writes: Writes, done: Settled, note: InboxReport | None, now: datetime) -> Settled:
    # A run whose node lost its fence is a run all the same: its early report counts.
    from crontask_core.policy.reports import apply_inbox

    if note is None or done.after.exec_status is ExecStatus.SKIPPED:
        return done
    writes.inbox_done.add((note.task_id, note.task_run_id))
    return attrs.evolve(done, after=apply_inbox(done.after, note, now), reported=True)


def _owned(execution: Execution, outcome: Outcome, node: str) -> bool:
    return (
        execution.exec_status is ExecStatus.CALLING
        and execution.fence == outcome.fence
        and execution.executor_node == node
    )


def _attempt(outcome: Outcome, verdict: Verdict, node: str) -> Attempt:
    return Attempt(
        execution_id=outcome.execution_id,
        fence=outcome.fence,
        node=node,
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        outcome=verdict.outcome,
        http_status=verdict.http_status,
        task_run_id=verdict.task_run_id,
        error=verdict.reason or verdict.warning,
        answer=verdict.answer,
        revision=outcome.revision,
    )


def _handed_back(execution: Execution, task: Task, now: datetime, rules: Rules) -> Execution:
    return evolve(
        execution,
        exec_status=ExecStatus.PENDING,
        reason="handed back unsent",
        next_action_at=max(execution.fire_time, now) + grace_of(task, rules),
        updated_at=now,
    )


def enqueue(
    writes: Writes,
    rows: Sequence[tuple[Execution, Task]],
    queue: QueueView,
    now: datetime,
    rules: Rules,
) -> None:
    users = [(e.user_id, host_of(t.callback_url or rules.default_callback_url)) for e, t in rows]
    places: list[ReadyFire] = queue_ready(queue, users, now)
    for place, (execution, _) in zip(places, rows, strict=True):
        writes.ready.append(attrs.evolve(place, execution_id=execution.id))


def plan_take_over(
    rows: Sequence[tuple[Execution, Task]],
    queue: QueueView,
    why: str,
    now: datetime,
    rules: Rules,
    writes: Writes | None = None,
) -> Writes:
    """Calling fires whose node is gone or whose lease ended (DESIGN 3.6): back into the queue at
    once, counted; over the cap, or ``at_most_once``, 3 with the reason. Each leaves an attempt row
    "unknown"."""
    writes = writes or Writes()
    again: list[tuple[Execution, Task]] = []
    for execution, task in rows:
        if execution.exec_status is not ExecStatus.CALLING:
            continue
        after = _taken_over(execution, task, why, now, rules)
        writes.attempts.append(_unknown(execution, task, why, now))
        writes.set_execution(execution, after)
        if after.is_final:
            finish(writes, task, execution, after, now, rules)
        else:
            again.append((after, task))
    enqueue(writes, again, queue, now, rules)
    return writes


def _taken_over(
    execution: Execution, task: Task, why: str, now: datetime, rules: Rules
) -> Execution:
    counted = evolve(execution, takeovers=execution.takeovers + 1)
    if task.delivery is Delivery.AT_MOST_ONCE:
        return end(counted, ExecStatus.FAILED, now, reason=f"outcome unknown: {why}")
    if counted.takeovers > rules.takeover_cap:
        text = f"taken over {execution.takeovers} times, gave up: {why}"
        return end(counted, ExecStatus.FAILED, now, reason=text)
    return evolve(
        counted,
        exec_status=ExecStatus.PENDING,
        reason=f"taken over: {why}",
        next_action_at=max(execution.fire_time, now) + grace_of(task, rules),
        updated_at=now,
    )


def _unknown(execution: Execution, task: Task, why: str, now: datetime) -> Attempt:
    return Attempt(
        execution_id=execution.id,
        fence=execution.fence,
        node=execution.executor_node,
        started_at=execution.updated_at,
        ended_at=now,
        outcome=AttemptClass.UNKNOWN,
        error=why,
        revision=task.revision,
    )
