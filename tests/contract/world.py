"""A store, a clock and two nodes' views of it, with the steps that most tests share."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.model import Attempt, Execution, NodeRow, Report, Task, TaskStatus
from crontask_core.policy import Edit, EditResult, ReportResult, Settled, Verdict
from crontask_core.ports import (
    Begin,
    Claimed,
    EditRequest,
    ExecutionFilter,
    ManualFire,
    ManualRequest,
    Repo,
    Swept,
    TaskRef,
)
from crontask_core.testing import VirtualClock
from tests.builders import accepted, node, outcome

T = TypeVar("T")


def good(answer: T | CrontaskError) -> T:
    """The answer, which must not be an error."""
    assert not isinstance(answer, CrontaskError), answer.line()
    return answer


def bad(answer: object) -> CrontaskError:
    """The error, which the answer must be."""
    assert isinstance(answer, CrontaskError), answer
    return answer


def edit_request(user: str | None, ref: TaskRef, edit: Edit) -> EditRequest:
    return EditRequest(user_id=user, ref=ref, edit=edit)


def run_request(user: str | None, ref: TaskRef, key: str | None = None) -> ManualRequest:
    return ManualRequest(user_id=user, ref=ref, key=key)


@attrs.define
class World:
    """``repo`` and ``other`` are two views of one empty store, nodes ``n1`` and ``n2``."""

    clock: VirtualClock
    repo: Repo
    other: Repo

    # -- tasks ---------------------------------------------------------------------------------
    async def add(self, *tasks: Task) -> list[Task]:
        return [added.task for added in await self.repo.add_tasks(tasks)]

    async def add_one(self, task: Task) -> Task:
        return (await self.add(task))[0]

    async def task(self, task: Task | int) -> Task:
        """The task as stored now."""
        number = task if isinstance(task, int) else task.id
        [row] = await self.repo.get_tasks(None, [TaskRef(id=number)])
        assert row is not None
        return row.task

    async def status(self, task: Task) -> TaskStatus:
        return (await self.task(task)).status

    async def try_edit(
        self, task: Task, edit: Edit, user: str | None = None
    ) -> EditResult | CrontaskError:
        [answer] = await self.repo.edit_tasks([edit_request(user, TaskRef(id=task.id), edit)])
        return answer

    async def edit(self, task: Task, edit: Edit) -> EditResult:
        return good(await self.try_edit(task, edit))

    async def run_now(self, task: Task, key: str | None = None) -> ManualFire:
        [answer] = await self.repo.fire_now([run_request(None, TaskRef(id=task.id), key)])
        return good(answer)

    # -- executions ----------------------------------------------------------------------------
    async def executions(self, task: Task | None = None) -> list[Execution]:
        """Of a task, or all; the oldest fire first."""
        number = task.id if task is not None else None
        page = await self.repo.list_executions(
            ExecutionFilter(user_id=None, task_id=number, limit=5_000)
        )
        return list(reversed(page.rows))

    async def execution(self, execution: Execution | int) -> Execution:
        """The execution as stored now."""
        number = execution if isinstance(execution, int) else execution.id
        where = ExecutionFilter(user_id=None, execution_id=number)
        [row] = (await self.repo.list_executions(where)).rows
        return row

    async def attempts(self, execution: Execution) -> tuple[Attempt, ...]:
        return (await self.repo.attempts([execution.id]))[execution.id]

    # -- firing --------------------------------------------------------------------------------
    async def claim(self, node: str = "n1", *, limit: int = 200, slots: int = 50) -> Claimed:
        return await self.repo.claim(node, limit, slots)

    async def begin(self, node: str = "n1", slots: int = 50) -> Begin:
        return await self.repo.begin(node, slots)

    async def sweep(self, limit: int = 200) -> Swept:
        return await self.repo.sweep(limit)

    async def call(self, task: Task) -> Execution:
        """Add the task, let its first fire come and be claimed by ``n1``: it is 1 calling."""
        stored = await self.add_one(task)
        assert stored.next_fire_time is not None
        self.tick_to(stored.next_fire_time)
        claimed = await self.repo.claim("n1", 1, 50, only=[stored.id])
        [(execution, _)] = claimed.started
        return execution

    async def queue(self, task: Task) -> Execution:
        """Add the task, let its first fire come and be claimed without a slot: it waits."""
        stored = await self.add_one(task)
        assert stored.next_fire_time is not None
        self.tick_to(stored.next_fire_time)
        claimed = await self.repo.claim("n1", 1, 0, only=[stored.id])
        assert claimed.queued == 1
        return (await self.executions(stored))[-1]

    async def settle(
        self, execution: Execution, verdict: Verdict | None, node: str = "n1"
    ) -> Settled:
        done = outcome(execution, verdict, self.clock.database_now())
        [settled] = await self.repo.settle(node, [done])
        return settled

    async def run(self, task: Task, run_id: str = "run-1") -> Execution:
        """Add the task, fire it, have the agent accept it: it is 7 running."""
        return (await self.settle(await self.call(task), accepted(run_id))).after

    async def try_report(self, report: Report) -> ReportResult | CrontaskError:
        [answer] = await self.repo.report([report])
        return answer

    async def report(self, report: Report) -> ReportResult:
        return good(await self.try_report(report))

    # -- time and nodes ------------------------------------------------------------------------
    def tick(self, *, minutes: float = 0, seconds: float = 0) -> None:
        self.clock.tick(minutes * 60 + seconds)

    def tick_to(self, when: Any) -> None:
        gap = (when - self.clock.database_now()).total_seconds()
        if gap > 0:
            self.clock.tick(gap)

    async def register(self, *names: str) -> list[NodeRow]:
        rows = [node(name, started_at=self.clock.database_now()) for name in names]
        for row in rows:
            await self.repo.register(row)
        return rows
