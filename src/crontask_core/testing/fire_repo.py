"""The firing half of ``MemoryRepo``: executions, from claim to report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from crontask_core.errors import CrontaskError, NotFound
from crontask_core.model import (
    Attempt,
    ExecStatus,
    Execution,
    InboxReport,
    Report,
    Task,
)
from crontask_core.policy import (
    Outcome,
    ReportResult,
    Settled,
    Writes,
    cancel_execution,
    plan_begin,
    plan_claim,
    plan_early_report,
    plan_report,
    plan_settle,
    plan_sweep,
    run_not_found,
)
from crontask_core.policy.versions import ScheduleData, data_state
from crontask_core.ports import (
    Begin,
    Claimed,
    ExecutionFilter,
    Horizon,
    Moved,
    Page,
    Swept,
)
from crontask_core.testing.base import MemoryBase, newest, transaction

__all__ = ["FireRepo"]


class FireRepo(MemoryBase):
    """Executions: ``crontask_core.ports.Repo`` says what each method does."""

    @transaction
    def list_executions(self, where: ExecutionFilter) -> Page[Execution]:
        rows = newest([e for e in self.store.executions.values() if _matches(e, where)])
        rest = [e for e in rows if not where.cursor or _place(e) < _parse(where.cursor)]
        page = rest[: where.limit]
        more = page and len(rest) > len(page)
        cursor = f"{page[-1].fire_time.isoformat()} {page[-1].id}" if more else ""
        return Page(tuple(page), len(rows), cursor)

    @transaction
    def attempts(self, execution_ids: Sequence[int]) -> dict[int, tuple[Attempt, ...]]:
        return {n: self._attempts(n) for n in execution_ids}

    def _attempts(self, execution_id: int) -> tuple[Attempt, ...]:
        rows = [a for (n, _), a in self.store.attempts.items() if n == execution_id]
        return tuple(sorted(rows, key=lambda attempt: attempt.fence))

    @transaction
    def cancel(
        self, user_id: str | None, execution_ids: Sequence[int], reason: str
    ) -> list[Moved | CrontaskError]:
        return [self._cancel(user_id, number, reason) for number in execution_ids]

    def _cancel(self, user_id: str | None, number: int, reason: str) -> Moved | CrontaskError:
        row = self.store.executions.get(number)
        if row is None or user_id not in (None, row.user_id):
            return NotFound(
                f"There is no execution {number}.",
                code="EXECUTION_NOT_FOUND",
                field="execution_id",
                received=number,
                hint="get_task_executions shows the executions of a task.",
            )
        writes = Writes()
        task = self.store.tasks[row.task_id]
        try:
            after = cancel_execution(writes, task, row, reason, self._now(), self.rules)
        except CrontaskError as error:
            return error
        self.store.apply(writes)
        return Moved(before=row, after=after)

    @transaction
    def report(self, reports: Sequence[Report]) -> list[ReportResult | CrontaskError]:
        return [self._report(report) for report in reports]

    def _report(self, report: Report) -> ReportResult | CrontaskError:
        task = self.store.tasks.get(report.task_id)
        if task is None or report.user_id not in (None, task.user_id):
            return run_not_found(report)
        execution = self._reported(report)
        try:
            if execution is not None:
                writes, result = plan_report(execution, task, report, self._now(), self.rules)
            elif report.fire_id or report.execution_id:
                return run_not_found(report)
            else:
                writes, result = self._early(report, task)
        except CrontaskError as error:
            return error
        self.store.apply(writes)
        return result

    def _reported(self, report: Report) -> Execution | None:
        rows = self.store.of_task(report.task_id)
        if report.fire_id or report.execution_id:
            named = (
                e
                for e in rows
                if report.fire_id in ("", e.fire_id) and report.execution_id in (0, e.id)
            )
            return next(named, None)
        meant = [e for e in rows if self._has_run(e, report.task_run_id)]
        return max(meant, key=lambda e: (not e.is_final, e.id), default=None)

    def _has_run(self, execution: Execution, run_id: str) -> bool:
        runs = (a.task_run_id for a in self._attempts(execution.id))
        return run_id == execution.task_run_id or run_id in runs

    def _early(self, report: Report, task: Task) -> tuple[Writes, ReportResult]:
        rows = [e for e in self.store.of_task(task.id) if not e.is_final]
        known = self.store.inbox.get((task.id, report.task_run_id))
        return plan_early_report(report, task, rows, known, self._now(), self.rules)

    # -- firing --------------------------------------------------------------------------------
    @transaction
    def horizon(self) -> Horizon:
        due = [t.next_fire_time for t in self.store.tasks.values() if t.next_fire_time]
        actions = [e.next_action_at for e in self.store.busy() if e.next_action_at]
        return Horizon(
            now=self._now(),
            next_due=min(due, default=None),
            next_action=min(actions, default=None),
            waiting=bool(self.store.ready),
        )

    @transaction
    def due(self, limit: int) -> list[tuple[int, datetime]]:
        return [(task.id, at) for at, task in self._due(self._now())[:limit]]

    def _due(self, now: datetime) -> list[tuple[datetime, Task]]:
        rows = [(t.next_fire_time, t) for t in self.store.tasks.values() if t.next_fire_time]
        return sorted((row for row in rows if row[0] <= now), key=lambda row: (row[0], row[1].id))

    @transaction
    def claim(
        self,
        node: str,
        limit: int,
        slots: int,
        *,
        capped_hosts: Collection[str] = (),
        only: Collection[int] | None = None,
        data: ScheduleData | None = None,
    ) -> Claimed:
        now = self._now()
        seen = data_state(self.store.meta).seen
        if data is not None and data.older_than(seen):
            return Claimed(now=now, newer=seen)
        due = [task for _, task in self._due(now) if only is None or task.id in only][:limit]
        busy = {e.task_id for e in self.store.busy()}
        queue = self.store.queue(task.user_id for task in due)
        plan = plan_claim(due, busy, queue, slots, node, now, self.rules, capped_hosts)
        new = self.store.apply(plan.writes).new
        started = [(e.fire_id, task) for e, task in plan.started if e.fire_id in new]
        return Claimed(
            now=now,
            tasks=len(due),
            started=tuple((new[fire_id], task) for fire_id, task in started),
            queued=sum(e.exec_status is ExecStatus.PENDING for e in new.values()),
            skipped=tuple(e for e in new.values() if e.exec_status is ExecStatus.SKIPPED),
            broken=plan.broken,
            more=len(due) == limit,
        )

    @transaction
    def begin(self, node: str, slots: int, *, capped_hosts: Collection[str] = ()) -> Begin:
        now = self._now()
        waiting = [r for r in self.store.ready.values() if r.callback_host not in capped_hosts]
        waiting.sort(key=lambda row: (row.queue_key, row.execution_id))
        taken = [self.store.executions[row.execution_id] for row in waiting[:slots]]
        begun = plan_begin(self.with_tasks(taken), node, now, self.rules)
        self.store.apply(begun.writes)
        return Begin(
            now=now,
            started=begun.started,
            ended=tuple(execution for execution, _ in begun.ended),
            more=len(waiting) > len(taken),
        )

    @transaction
    def settle(self, node: str, outcomes: Sequence[Outcome]) -> list[Settled]:
        known = [o for o in outcomes if o.execution_id in self.store.executions]
        rows = [self.store.executions[o.execution_id] for o in known]
        pairs = [(o, e, t) for o, (e, t) in zip(known, self.with_tasks(rows), strict=True)]
        writes, settled = plan_settle(
            pairs, self.store.inbox, self.queue_of(rows), node, self._now(), self.rules
        )
        self.store.apply(writes)
        return settled

    @transaction
    def sweep(self, limit: int) -> Swept:
        now = self._now()
        timed = [(e.next_action_at, e) for e in self.store.busy() if e.next_action_at]
        timed = sorted((row for row in timed if row[0] <= now), key=lambda row: (row[0], row[1].id))
        rows = [execution for _, execution in timed[:limit]]
        flagged = [(e, t, e.id in self.store.ready) for e, t in self.with_tasks(rows)]
        inbox: dict[tuple[int, str], InboxReport] = self.store.inbox
        writes = plan_sweep(flagged, inbox, self.queue_of(rows), now, self.rules)
        self.store.apply(writes)
        moved = tuple(Moved(before=a, after=b) for a, b in writes.executions.values())
        return Swept(now=now, moved=moved, more=len(rows) == limit)

    @transaction
    def mine(self, node: str) -> list[tuple[Execution, Task]]:
        rows = [e for e in self.store.busy() if e.exec_status is ExecStatus.CALLING]
        return self.with_tasks([e for e in rows if e.executor_node == node])


def _matches(execution: Execution, where: ExecutionFilter) -> bool:
    return (
        where.user_id in (None, execution.user_id)
        and where.task_id in (None, execution.task_id)
        and where.execution_id in (None, execution.id)
        and (not where.statuses or execution.exec_status in where.statuses)
        and (where.since is None or execution.fire_time >= where.since)
        and (where.until is None or execution.fire_time <= where.until)
    )


def _place(execution: Execution) -> tuple[datetime, int]:
    return execution.fire_time, execution.id


def _parse(cursor: str) -> tuple[datetime, int]:
    at, _, number = cursor.partition(" ")
    return datetime.fromisoformat(at), int(number)
