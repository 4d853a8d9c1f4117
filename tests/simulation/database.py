"""The database of a simulation: a memory store with a journal, outages, fail-over and a clock of
its own, and the views of it that processes have."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import attrs

from crontask_core.errors import CrontaskError, Unavailable
from crontask_core.model import Rules
from crontask_core.testing import START, MemoryRepo, MemoryStore
from tests.simulation.dice import Dice
from tests.simulation.loop import Lane, rest, turn

__all__ = ["DEADLINE", "Database", "Faults", "Store", "Txn", "View", "commits"]

Asked = tuple[tuple[Any, ...], dict[str, Any]]
DEADLINE = 20.0
"""Seconds after which a call that hangs is given up."""

commits: contextvars.ContextVar[list[Txn] | None] = contextvars.ContextVar("commits", default=None)
"""Where a caller that wants to know finds the transactions its request has committed."""


@attrs.define(eq=False)
class Txn:
    """A committed transaction: ``changes`` are (table, key, row before, row after), in order.
    ``void``: a fail-over lost it."""

    at: float
    now: datetime
    who: str
    what: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    counters: tuple[int, int]
    changes: list[tuple[dict[Any, Any], Any, Any, Any]] = attrs.Factory(list)
    void: bool = False

    def rows(self, table: dict[Any, Any]) -> list[tuple[Any, Any]]:
        """(before, after) of every row of a table that was written."""
        return [(old, new) for which, _, old, new in self.changes if which is table]


@attrs.define
class Store(MemoryStore):
    """A ``MemoryStore`` that remembers what each transaction changed."""

    _open: Txn | None = attrs.field(init=False, default=None)

    def record(self, txn: Txn) -> None:
        """From here on changes belong to ``txn``."""
        self.begin()
        self._open = txn

    def put(self, table: dict[Any, Any], key: Any, row: Any) -> None:
        if self._open is not None:
            self._open.changes.append((table, key, table.get(key), row))
        super().put(table, key, row)

    def counters(self) -> tuple[int, int]:
        """The last task id and execution id given out."""
        return self._last_task, self._last_execution

    def take_back(self, txn: Txn) -> None:
        """Undo a committed transaction; ids are given out again, as by a database that fails over
        to a copy."""
        self._open = None
        for table, key, old, _ in reversed(txn.changes):
            if old is None:
                table.pop(key, None)
            else:
                table[key] = old
        self._last_task, self._last_execution = txn.counters


@attrs.define
class Faults:
    """How badly one view behaves: shares of calls."""

    before: float = 0.0
    after: float = 0.0
    hang: float = 0.0
    slow: float = 0.02
    late: float = 0.0
    """Answered in the end, after seconds of waiting for locks and for a busy disk."""
    lost: float = 0.0
    """As ``after``, of the commits that begin and end calls alone."""
    cut: bool = False
    """The process does not reach the database at all."""


@attrs.define
class Database:
    """``epoch`` counts the times all connections broke. ``on_commit`` hears of every commit."""

    loop_time: Callable[[], float]
    store: Store = attrs.Factory(Store)
    offset: timedelta = timedelta(0)
    down: bool = False
    epoch: int = 0
    journal: list[Txn] = attrs.Factory(list)
    on_commit: Callable[[Txn], None] = lambda txn: None

    def now(self) -> datetime:
        """The database's clock."""
        return START + timedelta(seconds=self.loop_time()) + self.offset

    def stop(self) -> None:
        self.down = True
        self.epoch += 1

    def start(self) -> None:
        self.down = False

    def lose(self, since: float) -> list[Txn]:
        """Forget what was committed since then."""
        lost = []
        for txn in reversed(self.journal):
            if txn.at < since:
                break
            if not txn.void:
                self.store.take_back(txn)
                txn.void = True
                lost.append(txn)
        return lost


class View:
    """A ``Repo`` of one process. A call takes time, and may fail before or after its commit, or
    hang; what a dead process asks for is never done."""

    def __init__(self, db: Database, rules: Rules, lane: Lane, dice: Dice) -> None:
        self.db = db
        self.lane = lane
        self.faults = Faults()
        self.asked: Callable[[str], None] = lambda method: None
        self.trouble: Callable[[str, str], None] = lambda method, what: None
        self._dice = dice
        self._repo = MemoryRepo(db.store, now=db.now, rules=rules)

    def __getattr__(self, name: str) -> Any:
        work = getattr(MemoryRepo, name).__wrapped__

        async def call(*args: Any, **kwargs: Any) -> Any:
            asked = (args, kwargs)
            return await self._call(name, lambda: work(self._repo, *args, **kwargs), asked)

        return call

    async def close(self) -> None:
        """Nothing is held."""

    async def _call(self, name: str, work: Callable[[], Any], asked: Asked) -> Any:
        self.asked(name)
        began = self.db.loop_time()
        fault = self._draw(name)
        await self._way()
        if fault.startswith("hang"):
            await self._hang(fault, name, work, asked)
        if fault == "late":
            await rest(self._dice.between(0.5, 18.0))
        if fault == "before":
            raise Unavailable(f"{name} failed", retryable=True)
        epoch = self.db.epoch
        if self.db.down or self.faults.cut:
            await self._unreachable(name, began)
        result = self._commit(name, work, asked)
        await self._way()
        if fault == "after" or epoch != self.db.epoch or self.faults.cut:
            raise Unavailable(f"{name} lost the answer to its commit", retryable=True)
        return result

    def _draw(self, name: str) -> str:
        share, faults = self._dice.share(), self.faults
        for what, limit in (
            ("before", faults.before),
            ("after", faults.after),
            ("hang before", faults.hang / 2),
            ("hang after", faults.hang / 2),
            ("late", faults.late),
            ("after", faults.lost if name in ("claim", "begin", "settle") else 0.0),
        ):
            if share < limit:
                self.trouble(name, what)
                return what
            share -= limit
        return ""

    async def _way(self) -> None:
        """The way to the database or back: often no time at all, sometimes long."""
        share = self._dice.share()
        if share < self.faults.slow:
            if share > 0.05:
                self.trouble("the way", f"takes {20 * share:.1f} s")
            await rest(0.01 + 20 * share)
        elif share < 0.5:
            await rest(0.0005 + 0.002 * share)
        else:
            await turn()

    async def _hang(self, fault: str, name: str, work: Callable[[], Any], asked: Asked) -> None:
        if fault == "hang after" and not (self.db.down or self.faults.cut):
            self._commit(name, work, asked)
        await rest(DEADLINE)
        raise Unavailable(f"no answer to {name} within {DEADLINE:g} s", retryable=True)

    async def _unreachable(self, name: str, began: float) -> None:
        if self._dice.chance(0.3):
            # Packets are dropped, nobody says no: the call waits for its deadline.
            await rest(max(0.0, began + DEADLINE - self.db.loop_time()))
        raise Unavailable(f"the store is down ({name})", retryable=True)

    def _commit(self, name: str, work: Callable[[], Any], asked: Asked) -> Any:
        if self.lane.dead:
            raise asyncio.CancelledError
        db = self.db
        txn = Txn(db.loop_time(), db.now(), self.lane.name, name, *asked, db.store.counters())
        db.store.record(txn)
        try:
            result = work()
        except Exception as error:
            db.store.rollback()
            if isinstance(error, CrontaskError):
                raise
            raise CrontaskError(f"{type(error).__name__}: {error}") from error
        finally:
            db.store._open = None
        if txn.changes:
            db.journal.append(txn)
            if (told := commits.get()) is not None:
                told.append(txn)
            db.on_commit(txn)
        return result
