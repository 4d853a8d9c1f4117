"""A history as lines to read."""

from __future__ import annotations

from typing import Any

from crontask_core.model import Execution, NodeRow, ReadyFire, Task
from tests.simulation.database import Txn
from tests.simulation.world import Outcome

__all__ = ["story"]


def story(outcome: Outcome, *, whole: bool = True) -> str:
    """What was planned, what happened (all of it when ``whole``), and what is wrong."""
    plan = outcome.plan
    lines = [
        f"seed {outcome.seed}: {plan.nodes} nodes of {plan.concurrency} slots, {plan.seconds:.0f} s"
        f" of {', '.join(plan.kinds) or 'no faults'}; poll "
        f"{plan.settings.scheduler.poll_interval.total_seconds():g} s, window "
        f"{plan.rules.compensate_window.total_seconds():g} s, call "
        f"{plan.rules.callback_timeout.total_seconds():g} s, report "
        f"{plan.rules.ga_callback_timeout.total_seconds():g} s"
    ]
    if whole:
        for at, who, entry in outcome.history:
            for what in [entry] if isinstance(entry, str) else _commit(entry):
                lines.append(f"{at:10.3f}  {who:8}  {what}")
    lines.append(", ".join(f"{name} {count}" for name, count in outcome.counts.items()))
    lines.append(f"trace {outcome.trace}")
    lines += [f"WRONG {what}" for what in outcome.wrong] or ["every promise was kept"]
    return "\n".join(lines)


def _commit(txn: Txn) -> list[str]:
    """One line for each row that matters; heartbeats are left out."""
    if txn.what == "heartbeat":
        return []
    mark = " (lost by fail-over)" if txn.void else ""
    found = [_row(old, new) for _, _, old, new in txn.changes]
    return [f"{txn.what}{mark}: {line}" for line in found if line]


def _row(old: Any, new: Any) -> str:
    row = new if new is not None else old
    if isinstance(row, Execution):
        return _execution(old, new)
    if isinstance(row, Task):
        before = f"{old.status.name} next {_time(old.next_fire_time)} -> " if old else ""
        after = f"{new.status.name} next {_time(new.next_fire_time)}"
        return f"task {row.id} {row.task_key}: {before}{after}"
    if isinstance(row, ReadyFire):
        what = "queued" if new is not None else "out of the queue"
        return f"execution {row.execution_id} {what} ({row.user_id}, key {row.queue_key})"
    if isinstance(row, NodeRow):
        return f"node {row.incarnation}" + (" retired" if row.retired_at else "")
    return ""


def _execution(old: Execution | None, new: Execution) -> str:
    fire = f"execution {new.id}, fire {new.fire_id[:8]} of {new.task_key} at {_time(new.fire_time)}"
    before = f"{old.exec_status.name} -> " if old is not None else ""
    owner = f", {new.executor_node} fence {new.fence}" if new.fence else ""
    action = f", next {_time(new.next_action_at)}" if new.next_action_at else ""
    return f"{fire}: {before}{new.exec_status.name}{owner}{action} {new.reason}".rstrip()


def _time(at: Any) -> str:
    return at.strftime("%H:%M:%S.%f")[:-3] if at is not None else "-"
