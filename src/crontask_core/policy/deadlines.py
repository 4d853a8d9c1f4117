"""What time itself moves: the sweep over ``next_action_at`` (DESIGN 3.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from crontask_core.model import ExecStatus, Execution, InboxReport, Rules, Task, evolve
from crontask_core.policy.calls import enqueue as enqueue_again
from crontask_core.policy.calls import give_up, plan_take_over
from crontask_core.policy.edits import finish
from crontask_core.policy.fires import grace_of
from crontask_core.policy.queue import QueueView
from crontask_core.policy.reports import apply_inbox
from crontask_core.policy.writes import Writes, end

__all__ = ["GA_TIMEOUT", "plan_sweep"]

GA_TIMEOUT = "GA callback timeout, auto-marked"


def plan_sweep(
    rows: Sequence[tuple[Execution, Task, bool]],
    inbox: Mapping[tuple[int, str], InboxReport],
    queue: QueueView,
    now: datetime,
    rules: Rules,
) -> Writes:
    """Move every execution whose ``next_action_at`` has come. The flag says it is in the queue.

    0 waiting for a retry enters the queue; 0 in the queue gives up; 1 whose lease ended is taken
    over; 7 takes an early report if there is one, else it is 4 (A6.6).
    """
    writes = Writes()
    retries: list[tuple[Execution, Task]] = []
    leases: list[tuple[Execution, Task]] = []
    for execution, task, queued in rows:
        if execution.exec_status is ExecStatus.CALLING:
            leases.append((execution, task))
        elif execution.exec_status is ExecStatus.PENDING and not queued:
            after = evolve(execution, next_action_at=now + grace_of(task, rules), updated_at=now)
            writes.set_execution(execution, after)
            retries.append((after, task))
        else:
            after = (
                give_up(execution, now)
                if execution.exec_status is ExecStatus.PENDING
                else _silent(writes, execution, task, inbox, now)
            )
            writes.set_execution(execution, after)
            finish(writes, task, execution, after, now, rules)
    enqueue_again(writes, [*retries], queue, now, rules)
    plan_take_over(leases, queue, "the lease of the call ended", now, rules, writes)
    return writes


def _silent(
    writes: Writes,
    execution: Execution,
    task: Task,
    inbox: Mapping[tuple[int, str], InboxReport],
    now: datetime,
) -> Execution:
    note = inbox.get((task.id, execution.task_run_id))
    if note is not None:
        after = apply_inbox(execution, note, now)
        writes.inbox_done.add((note.task_id, note.task_run_id))
        if after.is_final:
            return after
    return end(execution, ExecStatus.TIMED_OUT, now, error_msg=GA_TIMEOUT, reason=GA_TIMEOUT)
