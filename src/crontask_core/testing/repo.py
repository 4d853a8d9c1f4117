"""``MemoryRepo``: the whole repository over dicts, thin: load, plan, apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from crontask_core.model import ExecStatus, Execution, NodeRow, Rules, Task, TaskStatus
from crontask_core.policy import plan_take_over
from crontask_core.policy.versions import (
    DataState,
    ScheduleData,
    data_state,
    meet,
    plan_recompute,
)
from crontask_core.ports import Moved, Pruned, Recomputed, Repo
from crontask_core.testing.base import transaction
from crontask_core.testing.fire_repo import FireRepo
from crontask_core.testing.store import MemoryStore
from crontask_core.testing.task_repo import TaskRepo

__all__ = ["MemoryRepo"]

_CLOSED = (TaskStatus.COMPLETED, TaskStatus.DELETED)


class MemoryRepo(TaskRepo, FireRepo):
    """A ``Repo`` in memory. Views made with one ``MemoryStore`` are nodes on one database.

    ``now`` is the database's clock, read once per transaction. ``fail_before`` and
    ``fail_after_commit`` make single calls fail, ``down`` all of them, for this view alone.
    """

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        now: Callable[[], datetime],
        rules: Rules | None = None,
    ) -> None:
        super().__init__(store or MemoryStore(), now, rules or Rules())

    @transaction
    def installation_id(self) -> str:
        return self.store.installation

    # -- nodes ---------------------------------------------------------------------------------
    @transaction
    def register(self, node: NodeRow) -> datetime:
        if node.incarnation in self.store.nodes:
            raise ValueError(f"incarnation {node.incarnation} is registered")
        self.store.put(self.store.nodes, node.incarnation, node)
        return self._now()

    @transaction
    def heartbeat(self, incarnation: str) -> tuple[datetime, bool]:
        now = self._now()
        node = self.store.nodes.get(incarnation)
        if node is None or node.retired_at is not None:
            return now, False
        moved = attrs.evolve(node, counter=node.counter + 1, seen_at=now)
        self.store.put(self.store.nodes, incarnation, moved)
        return now, True

    @transaction
    def nodes(self, *, retired: bool = False) -> list[NodeRow]:
        rows = [n for n in self.store.nodes.values() if retired or n.retired_at is None]
        return sorted(rows, key=lambda node: (node.started_at, node.incarnation))

    @transaction
    def retire(self, seen: Sequence[tuple[str, int]], why: str) -> list[Moved]:
        now = self._now()
        gone = set()
        for incarnation, counter in seen:
            node = self.store.nodes.get(incarnation)
            if node is not None and node.retired_at is None and node.counter == counter:
                self.store.put(self.store.nodes, incarnation, attrs.evolve(node, retired_at=now))
                gone.add(incarnation)
        rows = [
            e
            for e in self.store.busy()
            if e.executor_node in gone and e.exec_status is ExecStatus.CALLING
        ]
        writes = plan_take_over(self.with_tasks(rows), self.queue_of(rows), why, now, self.rules)
        self.store.apply(writes)
        return [Moved(before=a, after=b) for a, b in writes.executions.values()]

    # -- upkeep --------------------------------------------------------------------------------
    @transaction
    def data_state(self) -> DataState:
        return data_state(self.store.meta)

    @transaction
    def recompute(self, data: ScheduleData, limit: int) -> Recomputed:
        before = data_state(self.store.meta)
        state = meet(before, data)
        moved: tuple[tuple[Task, Task], ...] = ()
        if state.seen == data and state.after is not None:
            ids = sorted(n for n in self.store.tasks if n > (state.after or 0))[:limit]
            writes = plan_recompute([self.store.tasks[n] for n in ids], self._now())
            self.store.apply(writes)
            moved = tuple(writes.tasks.values())
            state = attrs.evolve(state, after=ids[-1] if len(ids) == limit else None)
        if state != before:
            for key, value in state.as_rows().items():
                self.store.put(self.store.meta, key, value)
        return Recomputed(before=before, state=state, moved=moved)

    @transaction
    def prune(self, executions_before: datetime, tasks_before: datetime, limit: int) -> Pruned:
        rows = self.store.executions.values()
        fires: list[Execution] = [
            e for e in rows if e.is_final and e.updated_at < executions_before
        ][:limit]
        for execution in fires:
            self.store.remove_execution(execution)
        tasks: list[Task] = [
            t
            for t in self.store.tasks.values()
            if t.status in _CLOSED and t.updated_at < tasks_before and not self.store.of_task(t.id)
        ][:limit]
        for task in tasks:
            self.store.remove_task(task)
        now = self._now()
        for key in [k for k, note in self.store.inbox.items() if note.expires_at <= now]:
            self.store.put(self.store.inbox, key, None)
        for node in list(self.store.nodes.values()):
            if node.retired_at is not None and node.retired_at < tasks_before:
                self.store.put(self.store.nodes, node.incarnation, None)
        return Pruned(executions=len(fires), tasks=len(tasks))

    @transaction
    def get_meta(self, key: str) -> str | None:
        return self.store.meta.get(key)

    @transaction
    def set_meta(self, key: str, value: str) -> None:
        self.store.put(self.store.meta, key, value)

    async def close(self) -> None:
        """Nothing to give back; the store lives as long as somebody holds it."""


def _is_a_repo(repo: MemoryRepo) -> Repo:
    return repo  # mypy checks the contract here
