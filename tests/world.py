"""A whole crontask for stories: a store, a clock, an agent, and nodes to step by hand.

The store is in memory unless another is given: the same stories are told on every database.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import attrs

from crontask_core.engine import Engine
from crontask_core.errors import Unavailable
from crontask_core.model import Execution, NewTask, NodeRow, Report, Rules, Task
from crontask_core.ports import ExecutionFilter, Lock, Repo, TaskRef
from crontask_core.tasks import Tasks
from crontask_core.testing import (
    MemoryRepo,
    MemoryStore,
    RecordingObserver,
    ScriptedAgent,
    VirtualClock,
)

AGENT = "http://agent.example/v1/task/execute"


class Faulty:
    """Any repository, with the faults on demand that ``MemoryRepo`` has."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._faults: dict[tuple[str, str], list[Exception | None]] = {}

    def fail_before(self, method: str, *, times: int = 1, error: Exception | None = None) -> None:
        self._faults.setdefault((method, "before"), []).extend([error] * times)

    def fail_after_commit(
        self, method: str, *, times: int = 1, error: Exception | None = None
    ) -> None:
        self._faults.setdefault((method, "after"), []).extend([error] * times)

    def _trip(self, method: str, when: str) -> None:
        if waiting := self._faults.get((method, when)):
            raise waiting.pop(0) or Unavailable(f"{method} failed {when}", retryable=True)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._repo, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._trip(name, "before")
            answer = await real(*args, **kwargs)
            self._trip(name, "after")
            return answer

        return call


@attrs.frozen
class Store:
    """Where a world keeps its things: each node has a view of its own, ``repo`` is the world's."""

    clock: VirtualClock
    view: Callable[[], Awaitable[Any]]
    repo: Any
    installation: str


@attrs.define
class Node:
    """One process: its engine and its own view of the store, for faults."""

    engine: Engine
    repo: Any

    async def deliver(self) -> int:
        """Deliver everything begun here, one after the other."""
        count = 0
        while (send := self.engine.next_send()) is not None:
            await self.engine.deliver(send)
            count += 1
        return count

    async def turn(self) -> int:
        """Every pass once; returns how much was done."""
        await self.engine.heartbeat()
        horizon = await self.engine.horizon()
        did = await self.engine.sweep()
        if horizon.next_due is not None and horizon.next_due <= horizon.now:
            did += await self.engine.claim()
        did += await self.engine.begin()
        did += await self.deliver()
        return did + await self.engine.settle()


class World:
    """``node()`` adds a node; ``run()`` steps all nodes until nothing more happens at this instant;
    ``after(seconds)`` moves time in heartbeat steps, running in between."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        default_url: str = AGENT,
        store: Store | None = None,
    ) -> None:
        self.rules = rules or Rules(default_callback_url=default_url)
        self.store = MemoryStore()
        self._place = store or self._in_memory()
        self.clock = self._place.clock
        self.agent = ScriptedAgent()
        self.observer = RecordingObserver()
        self.nodes: list[Node] = []
        self._names = itertools.count(1)
        self._keys = itertools.count(1)
        self.repo = self._place.repo
        self.refused_urls: set[str] = set()
        self.tasks = Tasks(
            repo=self.repo,
            clock=self.clock,
            observer=self.observer,
            rules=self.rules,
            installation=self._place.installation,
            new_key=lambda: f"auto-{next(self._keys)}",
            check_url=self._check_url,
        )

    def _in_memory(self) -> Store:
        clock = VirtualClock()

        def repo() -> MemoryRepo:
            return MemoryRepo(self.store, now=clock.database_now, rules=self.rules)

        async def view() -> MemoryRepo:
            return repo()

        return Store(clock, view, repo(), self.store.installation)

    def _check_url(self, url: str) -> None:
        return None

    async def node(self, *, concurrency: int = 50, lock: Lock | None = None) -> Node:
        repo = await self._place.view()
        name = f"node-{next(self._names)}"
        starts = itertools.count(1)

        def new_node() -> NodeRow:
            now = self.clock.now()
            return NodeRow(
                incarnation=f"{name}#{next(starts)}",
                node_id=name,
                roles="scheduler",
                version="0",
                started_at=now,
                seen_at=now,
            )

        engine = Engine(
            repo=repo,
            client=self.agent,
            clock=self.clock,
            observer=self.observer,
            rules=self.rules,
            new_node=new_node,
            concurrency=concurrency,
            lock=lock,
        )
        made = Node(engine, repo)
        self.nodes.append(made)
        await engine.heartbeat()
        return made

    async def run(self) -> None:
        for _ in range(1_000):
            if not sum([await node.turn() for node in self.nodes]):
                return
        raise AssertionError("the nodes never come to rest")

    async def after(self, seconds: float, *, step: float = 2.0) -> None:
        left = seconds
        while left > 0:
            self.clock.tick(min(step, left))
            left -= step
            for node in self.nodes:
                await node.engine.heartbeat()
                await node.engine.watch()
            await self.run()

    # -- short words for stories ---------------------------------------------------------------
    async def create(self, key: str, user: str = "ann", **fields: object) -> Task:
        given = {"task_name": key, "task_content": "do it", "conversation_id": "c1", **fields}
        new = NewTask(task_key=key, **given)  # type: ignore[arg-type]
        return (await self.tasks.create(user, new)).task

    async def executions(self, key: str, user: str = "ann") -> list[Execution]:
        """Oldest first."""
        task = (await self.tasks.get(user, TaskRef(key=key), executions=0)).task
        where = ExecutionFilter(user_id=user, task_id=task.id, limit=1_000)
        return list(reversed((await self.repo.list_executions(where)).rows))

    async def task(self, key: str, user: str = "ann") -> Task:
        return (await self.tasks.get(user, TaskRef(key=key), executions=0)).task

    async def say(self, execution: Execution, status: str, **fields: object) -> object:
        report = Report(
            task_id=execution.task_id,
            task_run_id=execution.task_run_id or "unknown",
            status=status,
            fire_id=execution.fire_id,
            **fields,  # type: ignore[arg-type]
        )
        return await self.tasks.report(report)


NewWorld = Callable[..., Awaitable[World]]
"""Makes the world of a story: ``await new_world()``, with ``Rules`` when they matter."""

MINUTE = timedelta(minutes=1)
