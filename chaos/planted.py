"""``python -m chaos.planted FAULT ...``: the ``crontask`` command with one guard taken out of it.

The proof of the proof: nodes that run with one of these must make the checker fail. The product has
no switch for any of it; the functions are replaced from outside before the command starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select

from crontask_adapters.sql import apply, fire_sql
from crontask_adapters.sql.dialect import Change
from crontask_adapters.sql.rows import TASK
from crontask_adapters.sql.tx import Tx
from crontask_core import engine
from crontask_core.model import Task
from crontask_core.policy import calls, writes

__all__ = ["FAULTS", "main"]


_HESITATION = 0.5


def unlocked_claims() -> None:
    """Claims take no lock on a task and do not look whether it changed: the unique keys are all
    that is left between two nodes and one fire."""
    apply._task_change = _unguarded
    claim = fire_sql._lock_due

    def without_lock(tx: Tx, limit: int, only: Any) -> list[Task]:
        lock = tx.lock
        tx.lock = _as_it_is  # type: ignore[method-assign]
        try:
            return claim(tx, limit, only)
        finally:
            tx.lock = lock  # type: ignore[method-assign]

    fire_sql._lock_due = without_lock


def _unguarded(read: Task, wanted: Task) -> Change:
    return Change(read.id, TASK.diff(read, wanted), {})


def _as_it_is(statement: Select[Any], *, skip: bool = False) -> Select[Any]:
    return statement


def unguarded_settles() -> None:
    """A node writes what its calls came to, whoever holds the fire now and whatever it is."""
    calls._owned = lambda execution, outcome, node: True
    writes.check_move = lambda old, new: None


def unchecked_sends() -> None:
    """A node sends what it has begun without looking at the time and at its own heartbeat, half a
    second later: a freeze then meets calls that are about to be sent."""
    engine._FRESH = float("inf")
    started = engine.Engine.deliver

    async def deliver(self: engine.Engine, send: engine.Send) -> None:
        await asyncio.sleep(_HESITATION)
        await started(self, send)

    engine.Engine.deliver = deliver  # type: ignore[method-assign]
    engine.Engine._heard_lately = lambda self: True  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "unlocked-claims": unlocked_claims,
    "unguarded-settles": unguarded_settles,
    "unchecked-sends": unchecked_sends,
}


def main(words: Sequence[str]) -> None:
    """Take out the guard, then be the command."""
    FAULTS[words[0]]()
    sys.argv = ["crontask", *words[1:]]
    from crontask_cli.main import main as command

    command()


if __name__ == "__main__":
    main(sys.argv[1:])
