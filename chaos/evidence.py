"""What a run leaves behind: everything the checker may look at, as plain values.

Instants of this host are seconds since the epoch (float); instants of the database are whole
microseconds since the epoch (names end in ``_us``). The two clocks are the same machine's.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "Action",
    "Attempt",
    "Delivery",
    "Evidence",
    "Execution",
    "Exit",
    "Fault",
    "Sent",
    "Task",
    "Terms",
    "us",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def us(moment: datetime) -> int:
    """Whole microseconds since the epoch."""
    return (moment - _EPOCH) // _TICK


@attrs.frozen(kw_only=True)
class Terms:
    """The times the nodes were told to keep, in seconds."""

    callback_timeout: float = 2.0
    lease: float = 8.0
    node_timeout: float = 3.0
    report_timeout: float = 6.0
    grace: float = 1800.0
    settle: float = 1.5
    """Longest a node may take, when nothing is broken, to write what an agent answered."""
    recovery: float = 3.0
    """Longest the nodes may take to be themselves again after the database is back."""


@attrs.define(kw_only=True)
class Delivery:
    """One POST an agent received. ``until`` is when it had answered, or the caller had gone."""

    at: float
    until: float | None = None
    node: str
    fire_id: str
    execution_id: int
    task_id: int
    task_key: str
    fire_us: int
    manual: bool = False
    attempt: int = 1
    answer: str = "accepted"
    run_id: str = ""


@attrs.define(kw_only=True)
class Sent:
    """One report of an agent, sent again until it was answered.

    ``named`` is how it named its run: "fire" or "run". ``outcome``: recorded, duplicate,
    contradicts, pending, refused:CODE, or "" while there is no answer.
    """

    task_id: int
    fire_id: str
    run_id: str
    named: str
    status: str
    token: str
    asked: float
    answered: float | None = None
    tries: int = 0
    outcome: str = ""


@attrs.frozen(kw_only=True)
class Action:
    """One thing a caller asked for, with the answer it got.

    ``what``: create, pause, resume, update, delete, run_now. ``at_us`` is the instant the answer
    gives for the change; ``unsure``: an earlier try had done it without its answer arriving, so
    that it happened at some time between ``asked`` and ``answered``. ``anchor_us`` and ``step_us``
    say when an interval fires, ``once_us`` when a one-off does. ``refused`` changed nothing.
    """

    what: str
    task_id: int
    task_key: str
    asked: float
    answered: float
    at_us: int = 0
    unsure: bool = False
    refused: str = ""
    anchor_us: int = 0
    step_us: int = 0
    once_us: int = 0
    max_fires: int = 0
    delivery: str = "at_least_once"
    grace: float = 0.0
    fire_id: str = ""


@attrs.frozen(kw_only=True)
class Fault:
    """Something broken on purpose from ``start`` to ``end``. ``node``: one process, or "" for what
    all share."""

    kind: str
    node: str = ""
    start: float
    end: float


@attrs.frozen(kw_only=True)
class Exit:
    """A node that ended, ``age`` seconds old. ``wanted``: it was told to, or killed; ``stuck``: it
    was told to and did not."""

    node: str
    at: float
    age: float
    code: int
    wanted: bool
    stuck: bool = False


@attrs.frozen(kw_only=True)
class Task:
    """What the checker reads of a row of t_cron_task."""

    id: int
    task_key: str
    schedule_type: int
    status: int
    next_fire_us: int | None
    fire_count: int


@attrs.frozen(kw_only=True)
class Execution:
    """What the checker reads of a row of t_task_execution. ``token``: the agent's own words."""

    id: int
    fire_id: str
    task_id: int
    fire_us: int
    manual: bool
    status: int
    fence: int = 0
    takeovers: int = 0
    retry_count: int = 0
    next_action_us: int | None = None
    created_us: int = 0
    accepted_us: int | None = None
    reported_us: int | None = None
    end_us: int | None = None
    start_us: int | None = None
    run_id: str = ""
    token: str = ""
    reason: str = ""
    missed_count: int = 0
    missed_from_us: int | None = None
    missed_to_us: int | None = None


@attrs.frozen(kw_only=True)
class Attempt:
    """What the checker reads of a row of t_execution_attempt."""

    execution_id: int
    fence: int
    node: str
    outcome: str
    started_us: int
    ended_us: int | None
    run_id: str = ""


@attrs.define(kw_only=True)
class Evidence:
    """A whole run. ``queued`` and ``inbox`` count what is left in t_ready_fire and t_report_inbox
    at the end; ``logged`` holds what nodes logged that they never should."""

    terms: Terms = attrs.Factory(Terms)
    started: float = 0.0
    ended: float = 0.0
    drained: bool = True
    deliveries: list[Delivery] = attrs.Factory(list)
    reports: list[Sent] = attrs.Factory(list)
    actions: list[Action] = attrs.Factory(list)
    faults: list[Fault] = attrs.Factory(list)
    exits: list[Exit] = attrs.Factory(list)
    tasks: list[Task] = attrs.Factory(list)
    executions: list[Execution] = attrs.Factory(list)
    attempts: list[Attempt] = attrs.Factory(list)
    queued: int = 0
    inbox: list[tuple[int, str]] = attrs.Factory(list)
    logged: list[str] = attrs.Factory(list)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(attrs.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read what ``save`` wrote."""
        raw: dict[str, Any] = json.loads(path.read_text())
        raw["terms"] = Terms(**raw["terms"])
        for name, kind in _ROWS.items():
            raw[name] = [kind(**row) for row in raw[name]]
        raw["inbox"] = [(task_id, run_id) for task_id, run_id in raw["inbox"]]
        return cls(**raw)


_ROWS: dict[str, Any] = {
    "deliveries": Delivery,
    "reports": Sent,
    "actions": Action,
    "faults": Fault,
    "exits": Exit,
    "tasks": Task,
    "executions": Execution,
    "attempts": Attempt,
}
