"""What the core needs of the outside: Protocols, each with its contract in words (DESIGN 2).

A ``Repo`` method is one transaction. It loads rows under lock, asks ``policy`` what should happen,
and writes exactly that; it decides nothing itself. ``now`` in a repository is the database's clock
(DESIGN 3.9). Every method raises ``Unavailable`` (retryable) when the store cannot be reached or is
locked: then nothing was written, or, when the connection broke during the commit, the outcome is
unknown and the pass reads back what is true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.events import Event
from crontask_core.model import (
    Attempt,
    Callback,
    Execution,
    NodeRow,
    Report,
    Task,
)
from crontask_core.policy import (
    Answer,
    Edit,
    EditResult,
    Outcome,
    ReportResult,
    Settled,
)
from crontask_core.policy.versions import DataState, ScheduleData

__all__ = [
    "Added",
    "Begin",
    "Claimed",
    "Clock",
    "EditRequest",
    "ExecutionFilter",
    "GaClient",
    "Horizon",
    "Lock",
    "ManualFire",
    "ManualRequest",
    "MaySend",
    "Moved",
    "Observer",
    "Page",
    "Pruned",
    "Recomputed",
    "Repo",
    "Swept",
    "TaskFilter",
    "TaskRef",
    "TaskRow",
    "always",
]

T = TypeVar("T")


class Clock(Protocol):
    """Time, and nothing else reads it."""

    def now(self) -> datetime:
        """Aware UTC: the last database time seen plus elapsed time; never backwards."""
        ...

    def elapsed(self) -> float:
        """Seconds since some fixed point, by a clock that counts sleep and never steps."""
        ...

    def observe(self, database_now: datetime, sent: float) -> timedelta:
        """Take a database time that was asked for at ``elapsed()`` = ``sent``; returns by how much
        it differs from what was expected (a jump when large)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of elapsed time."""
        ...


MaySend = Callable[[], bool]
"""Whether a call may still be made by this process."""


def always() -> bool:
    """A ``MaySend`` of callers who have nobody to share their calls with."""
    return True


class GaClient(Protocol):
    """Calls an agent. Never raises for what an agent or a network does: that is an ``Answer``."""

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        """One POST (A6.1a), 30 s in total, waiting for the pool included (A6.4, X-F4).

        ``may_send`` is asked once, when the connection is there and nothing stands between the
        question and the write to the socket; when it says no, nothing is written and the answer is
        UNSENT: a process that was frozen meanwhile must not send what another node took over
        (DESIGN 3.2)."""
        ...

    async def close(self) -> None: ...


class Lock(Protocol):
    """An economy, never a guarantee (DESIGN 3.3)."""

    async def try_acquire_many(self, keys: Sequence[str]) -> list[bool]:
        """For each key whether this owner holds it now. Its own token counts as acquired. When the
        lock service is slow or lost every answer is True."""
        ...

    async def release_many(self, keys: Sequence[str]) -> None: ...


class Observer(Protocol):
    """Hears what happened. May not raise and may not block."""

    def on(self, event: Event) -> None: ...


@attrs.frozen
class TaskRef:
    """A task by id or by key, exactly one; a key means the caller's live task (A3.1b)."""

    id: int | None = None
    key: str | None = None


@attrs.frozen(kw_only=True)
class TaskRow:
    """A task of a listing with its newest execution (X-T4)."""

    task: Task
    last: Execution | None = None


@attrs.frozen(kw_only=True)
class TaskFilter:
    """``user_id`` None means every user. No ``statuses``: all but deleted. ``text`` is looked for
    in name, key and description, as it stands but for the case of ASCII letters. ``next_from`` and
    ``next_to`` bound ``next_fire_time``, both included. ``cursor`` is opaque, from the page before.
    Newest first (by id)."""

    user_id: str | None
    statuses: tuple[int, ...] = ()
    conversation_id: str = ""
    schedule_type: int | None = None
    text: str = ""
    next_from: datetime | None = None
    next_to: datetime | None = None
    cursor: str = ""
    limit: int = 20


@attrs.frozen(kw_only=True)
class ExecutionFilter:
    """``user_id`` None means every user. ``since``/``until`` bound ``fire_time``, both included.
    Newest first (by fire time, then id)."""

    user_id: str | None
    task_id: int | None = None
    execution_id: int | None = None
    statuses: tuple[int, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    cursor: str = ""
    limit: int = 20


@attrs.frozen
class Page(Generic[T]):
    """Rows of a listing, how many there are in all, and the next cursor ("" at the end)."""

    rows: tuple[T, ...]
    total: int
    cursor: str = ""


@attrs.frozen(kw_only=True)
class Added:
    """``created`` false: a live task of this user has the key already, and here it is."""

    task: Task
    created: bool


@attrs.frozen(kw_only=True)
class EditRequest:
    """One edit of one task. ``user_id`` None: the caller may change anybody's."""

    user_id: str | None
    ref: TaskRef
    edit: Edit


@attrs.frozen(kw_only=True)
class ManualRequest:
    """Run now. ``key`` makes it idempotent: the same key gives the same execution."""

    user_id: str | None
    ref: TaskRef
    key: str | None = None


@attrs.frozen(kw_only=True)
class ManualFire:
    """``created`` false: a run with this key was there already."""

    execution: Execution
    task: Task
    created: bool


@attrs.frozen(kw_only=True)
class Claimed:
    """What one claim did. ``started`` are to be delivered by this node now (fast path). ``newer``:
    nothing was claimed, because the store has seen this newer data (X-S8)."""

    now: datetime
    tasks: int = 0
    started: tuple[tuple[Execution, Task], ...] = ()
    queued: int = 0
    skipped: tuple[Execution, ...] = ()
    broken: tuple[tuple[int, str], ...] = ()
    more: bool = False
    newer: ScheduleData | None = None


@attrs.frozen(kw_only=True)
class Begin:
    """What one begin took: ``started`` to deliver, ``ended`` cancelled or too late."""

    now: datetime
    started: tuple[tuple[Execution, Task], ...] = ()
    ended: tuple[Execution, ...] = ()
    more: bool = False


@attrs.frozen(kw_only=True)
class Moved:
    """An execution as it was and as it is now."""

    before: Execution
    after: Execution


@attrs.frozen(kw_only=True)
class Swept:
    """What one sweep moved; ``more`` when it reached its limit."""

    now: datetime
    moved: tuple[Moved, ...] = ()
    more: bool = False


@attrs.frozen(kw_only=True)
class Horizon:
    """When there is something to do: the next due task, the next action, the waiting fires."""

    now: datetime
    next_due: datetime | None = None
    next_action: datetime | None = None
    waiting: bool = False


@attrs.frozen(kw_only=True)
class Pruned:
    executions: int = 0
    tasks: int = 0


@attrs.frozen(kw_only=True)
class Recomputed:
    """What one page of recomputing did. ``state`` is what the store knows now, ``before`` what it
    knew; ``moved`` are tasks as they were and as they are."""

    before: DataState
    state: DataState
    moved: tuple[tuple[Task, Task], ...] = ()


class Repo(Protocol):
    """The store. Each method is one transaction; each write takes a list."""

    # -- tasks ---------------------------------------------------------------------------------
    async def installation_id(self) -> str:
        """Made once per store; part of every ``uid``."""
        ...

    async def add_tasks(self, tasks: Sequence[Task]) -> list[Added]:
        """Insert by (user_id, task_key), atomically get-or-create, in the order given. ``id`` is
        set by the store. A taken key returns the stored task; nothing is overwritten (A3.1a)."""
        ...

    async def get_tasks(self, user_id: str | None, refs: Sequence[TaskRef]) -> list[TaskRow | None]:
        """The tasks, None where there is none for this user. Deleted ones are found by id only."""
        ...

    async def list_tasks(self, where: TaskFilter) -> Page[TaskRow]: ...

    async def count_tasks(self, user_id: str) -> int:
        """Enabled and disabled tasks of a user (X-T3)."""
        ...

    async def similar_tasks(self, task: Task) -> list[Task]:
        """Enabled tasks of the same user with the same name and schedule, at most 3 (A3.1a)."""
        ...

    async def edit_tasks(self, requests: Sequence[EditRequest]) -> list[EditResult | CrontaskError]:
        """Lock each task, ``policy.plan_edit``, write. An answer per request; one that fails
        changes nothing and does not stop the others. NotFound (TASK_NOT_FOUND) for no such task."""
        ...

    async def fire_now(self, requests: Sequence[ManualRequest]) -> list[ManualFire | CrontaskError]:
        """A manual fire under the task's row lock, queued (DESIGN 4). Two at one microsecond are
        set one microsecond apart. A known ``key`` answers first, whatever the task's state."""
        ...

    # -- executions ----------------------------------------------------------------------------
    async def list_executions(self, where: ExecutionFilter) -> Page[Execution]: ...

    async def attempts(self, execution_ids: Sequence[int]) -> dict[int, tuple[Attempt, ...]]:
        """The attempts of each execution, by fence; none is an empty tuple."""
        ...

    async def cancel(
        self, user_id: str | None, execution_ids: Sequence[int], reason: str
    ) -> list[Moved | CrontaskError]:
        """0 -> 5 (``policy.cancel_execution``); an answer per id."""
        ...

    async def report(self, reports: Sequence[Report]) -> list[ReportResult | CrontaskError]:
        """Find each run (fire_id, execution_id, else task_run_id in executions and attempts, newest
        not final first), ``policy.plan_report``, write. It must be of ``task_id`` and of the user,
        else NotFound. Unknown run id: ``policy.plan_early_report``. The reports have passed
        ``policy.check_report``. Durable when it returns."""
        ...

    # -- firing --------------------------------------------------------------------------------
    async def horizon(self) -> Horizon:
        """Index probes only; takes no lock."""
        ...

    async def due(self, limit: int) -> list[tuple[int, datetime]]:
        """(task id, next_fire_time) of due tasks, unlocked: what to ask the lock service for."""
        ...

    async def claim(
        self,
        node: str,
        limit: int,
        slots: int,
        *,
        capped_hosts: Collection[str] = (),
        only: Collection[int] | None = None,
        data: ScheduleData | None = None,
    ) -> Claimed:
        """DESIGN 3.1: up to ``limit`` due tasks (``only`` these ids when given). With ``data``
        older than the store has seen nothing is claimed (X-S8); what it has seen is read once the
        due rows are locked, so no row that was recomputed is planned with older data."""
        ...

    async def begin(self, node: str, slots: int, *, capped_hosts: Collection[str] = ()) -> Begin:
        """DESIGN 3.2: up to ``slots`` waiting fires in queue order, taken and begun."""
        ...

    async def settle(self, node: str, outcomes: Sequence[Outcome]) -> list[Settled]:
        """DESIGN 3.5: write finished calls, one transaction, an answer per outcome. Runs under a
        lost guard leave their attempt row and come back as ``lost``."""
        ...

    async def sweep(self, limit: int) -> Swept:
        """DESIGN 3.6: move executions whose ``next_action_at`` has come."""
        ...

    async def mine(self, node: str) -> list[tuple[Execution, Task]]:
        """Calling rows of this incarnation, for adoption after a lost commit (DESIGN 3.6)."""
        ...

    async def set_aside(self, task_ids: Sequence[int], reason: str) -> None:
        """Disable tasks whose rows cannot be worked on, with the reason (``plan_set_aside``)."""
        ...

    # -- nodes ---------------------------------------------------------------------------------
    async def register(self, node: NodeRow) -> datetime:
        """Insert the incarnation; returns the database's now."""
        ...

    async def heartbeat(self, incarnation: str) -> tuple[datetime, bool]:
        """Move the counter. The database's now, and whether this incarnation is still in."""
        ...

    async def nodes(self, *, retired: bool = False) -> list[NodeRow]:
        """Live incarnations, or all that are kept when ``retired``."""
        ...

    async def retire(self, seen: Sequence[tuple[str, int]], why: str) -> list[Moved]:
        """Retire incarnations whose counter still is as seen and take over their calling rows, one
        transaction, one winner. Returns what was taken over."""
        ...

    # -- upkeep --------------------------------------------------------------------------------
    async def data_state(self) -> DataState:
        """What zone data and cron rules the store has seen; takes no lock (X-S8)."""
        ...

    async def recompute(self, data: ScheduleData, limit: int) -> Recomputed:
        """X-S8: note ``data`` if it is newer than what the store has seen (``meet``). While tasks
        are left to compute again and ``data`` is what was seen, look at the next ``limit`` of them
        by id, waiting for those that are locked, ``plan_recompute``, and move on; one page is one
        transaction, and two nodes share the pages. With older ``data`` nothing changes."""
        ...

    async def prune(
        self, executions_before: datetime, tasks_before: datetime, limit: int
    ) -> Pruned:
        """Delete at most ``limit`` old final executions (with attempts) and completed or deleted
        tasks without executions; old is ``updated_at``. Reports in the inbox whose time is over go
        too, and nodes retired before ``tasks_before``. Short transactions: call until it returns
        zeros."""
        ...

    async def get_meta(self, key: str) -> str | None: ...

    async def set_meta(self, key: str, value: str) -> None: ...

    async def close(self) -> None: ...
