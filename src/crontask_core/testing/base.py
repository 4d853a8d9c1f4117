"""One memory transaction: a turn for others, the work, a turn for others; and faults on demand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from crontask_core.errors import Unavailable
from crontask_core.model import Execution, Rules, Task
from crontask_core.policy import QueueView
from crontask_core.ports import TaskRef
from crontask_core.testing.store import MemoryStore

__all__ = ["MemoryBase", "transaction"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="MemoryBase")


class _Turn:
    def __await__(self) -> Generator[None, None, None]:
        yield


def transaction(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Make an async port method of a synchronous one: all or nothing, nothing in between."""

    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        await _Turn()
        self.trip(method.__name__, "before")
        self.store.begin()
        try:
            result = method(self, *args, **kwargs)
        except BaseException:
            self.store.rollback()
            raise
        await _Turn()
        self.trip(method.__name__, "after")
        return result

    functools.update_wrapper(run, method)
    return run


class MemoryBase:
    """What the parts of ``MemoryRepo`` share."""

    def __init__(self, store: MemoryStore, now: Callable[[], datetime], rules: Rules) -> None:
        self.store = store
        self.rules = rules
        self._now = now
        self._faults: dict[tuple[str, str], list[Exception | None]] = {}
        self.down = False

    # -- faults --------------------------------------------------------------------------------
    def fail_before(self, method: str, *, times: int = 1, error: Exception | None = None) -> None:
        """The next ``times`` calls of a method write nothing and raise (Unavailable, or ``error``).
        ``*`` means whatever method is called next."""
        self._faults.setdefault((method, "before"), []).extend([error] * times)

    def fail_after_commit(
        self, method: str, *, times: int = 1, error: Exception | None = None
    ) -> None:
        """The next ``times`` calls write everything, and raise all the same: the acknowledgement
        of the commit was lost."""
        self._faults.setdefault((method, "after"), []).extend([error] * times)

    def trip(self, method: str, when: str) -> None:
        """Raise the fault that is set for this moment, if any; ``down`` fails every call."""
        if self.down and when == "before":
            raise Unavailable("the store is down", retryable=True)
        for name in (method, "*"):
            if waiting := self._faults.get((name, when)):
                error = waiting.pop(0)
                what = "failed" if when == "before" else "lost the answer to its commit"
                raise error or Unavailable(f"{method} {what}", retryable=True)

    # -- shared look-ups -----------------------------------------------------------------------
    def find(self, user_id: str | None, ref: TaskRef) -> Task | None:
        """The task meant: by id also a deleted one, by key the live one; None if not this user's.
        Without a user a key means the oldest live task that has it."""
        if ref.id is not None:
            task = self.store.tasks.get(ref.id)
        elif user_id is not None:
            task = self.store.live_task(user_id, ref.key or "")
        else:
            rows = self.store.tasks.values()
            task = next((t for t in rows if t.task_key == ref.key and not t.tombstone), None)
        return task if task is not None and user_id in (None, task.user_id) else None

    def queue_of(self, rows: Sequence[Execution]) -> QueueView:
        return self.store.queue(row.user_id for row in rows)

    def with_tasks(self, rows: Sequence[Execution]) -> list[tuple[Execution, Task]]:
        return [(row, self.store.tasks[row.task_id]) for row in rows]


def newest(rows: Sequence[Execution]) -> list[Execution]:
    """Newest first: by fire time, then id."""
    return sorted(rows, key=lambda e: (e.fire_time, e.id), reverse=True)
