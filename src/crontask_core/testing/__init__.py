"""Fakes for tests of anything built on ``crontask_core``: shipped, public, and held to the same
contract suites as the real adapters (DESIGN 2).

    clock = VirtualClock()
    store = MemoryStore()
    repo = MemoryRepo(store, now=clock.database_now)   # one view per simulated node
    agent = ScriptedAgent()
    agent.script("my-task", timeout(), accept("run-1"))
"""

from __future__ import annotations

from crontask_core.testing.agents import (
    MemoryLock,
    RecordingObserver,
    ScriptedAgent,
    Step,
    accept,
    broken,
    no_connection,
    respond,
    timeout,
)
from crontask_core.testing.batch_repo import (
    BatchTables,
    MemoryBatchRepo,
    ScriptedOwner,
)
from crontask_core.testing.clock import START, VirtualClock
from crontask_core.testing.repo import MemoryRepo
from crontask_core.testing.store import MemoryStore

__all__ = [
    "START",
    "BatchTables",
    "MemoryBatchRepo",
    "MemoryLock",
    "MemoryRepo",
    "MemoryStore",
    "RecordingObserver",
    "ScriptedAgent",
    "ScriptedOwner",
    "Step",
    "VirtualClock",
    "accept",
    "broken",
    "no_connection",
    "respond",
    "timeout",
]
