"""The use cases on tasks and executions, the same for MCP, the command line and Python callers.

``user`` is who the caller acts for; None means "may act on anybody's" and is for operators only.
Every method raises ``CrontaskError``; nothing is written when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import attrs

from crontask_core.answers import (
    NOBODY,
    ExecutionView,
    Info,
    Preview,
    RunAnswer,
    TaskAnswer,
    key_conflict,
    next_fires,
    schedule_from,
)
from crontask_core.errors import Conflict, CrontaskError, InvalidInput, NotFound, QuotaExceeded
from crontask_core.events import Event, ExecutionMoved, ReportReceived, TaskChanged
from crontask_core.model import (
    Execution,
    NewTask,
    NodeRow,
    Report,
    Rules,
    Task,
    TaskStatus,
    schedule_of,
)
from crontask_core.policy import (
    Delete,
    Edit,
    EditResult,
    Pause,
    ReportResult,
    Resume,
    Update,
    check_report,
)
from crontask_core.policy.drafts import (
    create_digest,
    draft_changes,
    draft_task,
    key_of,
)
from crontask_core.policy.timing import draft_timing
from crontask_core.policy.versions import ScheduleData, current_data
from crontask_core.ports import (
    Clock,
    EditRequest,
    ExecutionFilter,
    ManualRequest,
    Observer,
    Page,
    Repo,
    TaskFilter,
    TaskRef,
    TaskRow,
)
from crontask_core.schedule import (
    explain,
    fires_after,
    parse_instant,
    shortest_gap,
)

__all__ = ["ExecutionView", "Info", "Preview", "RunAnswer", "TaskAnswer", "Tasks"]

T = TypeVar("T")
_ALIVE = timedelta(seconds=15)
_SEEN_KEPT = 10.0


@attrs.define(kw_only=True)
class Tasks:
    """The use cases. ``wake`` is called after anything that may be due soon, with the instant;
    ``data`` is what fire times are computed from; ``new_key`` makes unique keys; ``check_url``
    raises InvalidInput for a callback address that is not allowed. ``needs_url``: a task without
    its own address needs the installation's."""

    repo: Repo
    clock: Clock
    observer: Observer
    rules: Rules
    installation: str
    new_key: Callable[[], str]
    check_url: Callable[[str], None]
    wake: Callable[[datetime], None] = lambda at: None
    needs_url: bool = True
    fires_here: bool = False
    data: ScheduleData = attrs.Factory(current_data)
    _nodes: tuple[float, tuple[NodeRow, ...]] | None = None
    _seen: tuple[float, ScheduleData] | None = None

    async def create(
        self, user: str, new: NewTask, *, dry_run: bool = False, nested: bool = False
    ) -> TaskAnswer:
        """Store a task, or return the stored one when ``task_key`` names it and the arguments are
        equal (A3.1a). ``nested``: the call comes from inside a run (X-F6)."""
        if nested and self.rules.nested_creates == "refuse":
            raise Conflict(
                "a run of a task may not create tasks here",
                code="RECURSION_BLOCKED",
                hint="Do the work now; tasks are created outside of runs (quota.nested_creates).",
            )
        key = key_of(new.task_key) if new.task_key is not None else self.new_key()
        now = self.clock.now()
        if new.task_key is not None:
            stored = (await self.repo.get_tasks(user, [TaskRef(key=key)]))[0]
            if stored is not None:
                return await self._stored(stored.task, new)
        task, warnings = draft_task(new, user, key, self.installation, now, self.rules)
        self._check_url(task.callback_url)
        await self._check_quota(user)
        similar = await self.repo.similar_tasks(task) if new.task_key is None else []
        warnings += tuple(
            f"You have an enabled task with this name and schedule: id {t.id}, key {t.task_key}."
            for t in similar
        )
        if nested:
            warnings += ("This task is created from inside a run of another task.",)
        if dry_run:
            answer = await self._answer(task, now, warnings)
            return attrs.evolve(answer, dry_run=True)
        added = (await self.repo.add_tasks([task]))[0]
        if not added.created:
            return await self._stored(added.task, new)
        self._changed(added.task, "created")
        return attrs.evolve(await self._answer(added.task, now, warnings), created=True)

    async def add_many(self, user: str, news: Sequence[NewTask]) -> list[Task | CrontaskError]:
        """Create many by key in one transaction, for imports: an answer per task, in order. An
        equal task that is there already counts as made; quotas and near-duplicates are not
        looked at."""
        now = self.clock.now()
        out: list[Task | CrontaskError] = []
        drafts: list[Task] = []
        for new in news:
            try:
                key = key_of(new.task_key) if new.task_key is not None else self.new_key()
                task, _ = draft_task(new, user, key, self.installation, now, self.rules)
                self._check_url(task.callback_url)
                drafts.append(task)
                out.append(task)
            except CrontaskError as error:
                out.append(error)
        added = iter(await self.repo.add_tasks(drafts))
        for n, item in enumerate(out):
            if isinstance(item, Task):
                row = next(added)
                same = row.created or row.task.create_digest == item.create_digest
                out[n] = row.task if same else key_conflict(row.task, item.create_digest)
        due = [t.next_fire_time for t in out if isinstance(t, Task) and t.next_fire_time]
        if due:
            self.wake(min(due))
        return out

    async def get(self, user: str | None, ref: TaskRef, *, executions: int = 3) -> TaskAnswer:
        """One task with its newest executions (at most ``executions``)."""
        row = (await self.repo.get_tasks(user, [ref]))[0]
        if row is None:
            raise await self._no_task(user, ref)
        answer = await self._answer(row.task, self.clock.now())
        if executions == 0:
            return answer
        where = ExecutionFilter(user_id=user, task_id=row.task.id, limit=executions)
        page = await self.repo.list_executions(where)
        return attrs.evolve(answer, executions=page.rows)

    async def list(self, where: TaskFilter) -> Page[TaskRow]:
        """Tasks, newest first, a page at a time (X-T2)."""
        return await self.repo.list_tasks(where)

    async def update(
        self,
        user: str | None,
        ref: TaskRef,
        given: Mapping[str, object],
        *,
        unset: Sequence[str] = (),
        revision: int | None = None,
        dry_run: bool = False,
    ) -> TaskAnswer:
        """Change only the fields given (names as in ``NewTask``) (X-T1). Changing the schedule
        computes forward only; an equal schedule changes nothing."""
        now = self.clock.now()
        row = (await self.repo.get_tasks(user, [ref]))[0]
        if row is None:
            raise await self._no_task(user, ref)
        changes, warnings = draft_changes(row.task, given, tuple(unset), now, self.rules)
        if given.get("callback_url"):
            self._check_url(str(given["callback_url"]))
        edit = Update(tuple(sorted(changes.items())), revision)
        if dry_run:
            after = attrs.evolve(row.task, **changes)  # type: ignore[arg-type]
            answer = await self._answer(after, now, warnings)
            changed = tuple(k for k, v in changes.items() if getattr(row.task, k) != v)
            return attrs.evolve(answer, dry_run=True, changed=changed)
        return await self._edit(user, TaskRef(id=row.task.id), edit, "updated", warnings)

    async def pause(self, user: str | None, ref: TaskRef, reason: str = "") -> TaskAnswer:
        """No further fires until resumed; pending ones are cancelled, running ones go on (A2.2)."""
        return await self._edit(user, ref, Pause(reason), "paused")

    async def resume(self, user: str | None, ref: TaskRef) -> TaskAnswer:
        """Fire again, from now forward only (DESIGN 3.8)."""
        return await self._edit(user, ref, Resume(), "resumed")

    async def delete(self, user: str | None, ref: TaskRef) -> TaskAnswer:
        """Soft delete: the key is free again, executions stay readable (A3.1b)."""
        return await self._edit(user, ref, Delete(), "deleted")

    async def run_now(self, user: str | None, ref: TaskRef, key: str | None = None) -> RunAnswer:
        """One extra fire, now, of kind manual; the schedule is not touched."""
        if key is not None:
            key = key_of(key)
        made = (await self.repo.fire_now([ManualRequest(user_id=user, ref=ref, key=key)]))[0]
        if isinstance(made, CrontaskError):
            raise await self._better(made, user, ref)
        if made.created:
            self.wake(made.execution.fire_time)
        alive = await self._alive()
        warnings = () if alive else (NOBODY,)
        return RunAnswer(
            execution=made.execution,
            task=made.task,
            created=made.created,
            alive=alive,
            warnings=warnings,
        )

    def preview(
        self, new: NewTask, *, count: int = 5, after: datetime | str | None = None
    ) -> Preview:
        """The next ``count`` (1 to 50) fires of a schedule, in words, creating nothing (X-S7)."""
        now = self.clock.now()
        rules = attrs.evolve(self.rules, min_interval=timedelta(0))
        timing = draft_timing(new, now, rules)
        schedule = schedule_from(timing)
        start = now
        if after is not None:
            start, _ = parse_instant(after, timing.timezone, now, "after")
        most = min(count, 50, timing.max_fires or 50)
        fires = tuple(fires_after(schedule, start, max(1, most)))
        if after is None and not fires:
            fires = (timing.next_fire_time,)
        warnings = timing.warnings
        gap = shortest_gap(schedule, start)
        if gap is not None and gap < self.rules.min_interval:
            warnings += (
                f"Two fires are {gap.total_seconds():g} s apart; creating this task is refused "
                f"below {self.rules.min_interval.total_seconds():g} s.",
            )
        return Preview(
            schedule_type=int(timing.schedule_type),
            words=explain(schedule, timing.timezone),
            zone=timing.timezone,
            now=now,
            fires=tuple(f for f in fires if timing.end_at is None or f <= timing.end_at),
            gap=gap,
            warnings=warnings,
        )

    async def executions(
        self, where: ExecutionFilter, *, attempts: bool = False
    ) -> Page[ExecutionView]:
        """Executions, newest first, with the zone of their task and, if asked, each attempt."""
        page = await self.repo.list_executions(where)
        ids = sorted({e.task_id for e in page.rows})
        rows = await self.repo.get_tasks(where.user_id, [TaskRef(id=i) for i in ids]) if ids else []
        zones = {r.task.id: r.task.timezone for r in rows if r is not None}
        tried = await self.repo.attempts([e.id for e in page.rows]) if attempts else {}
        views = tuple(
            ExecutionView(
                execution=e,
                zone=zones.get(e.task_id, self.rules.zone),
                attempts=tried.get(e.id, ()),
            )
            for e in page.rows
        )
        return Page(views, page.total, page.cursor)

    async def execution(self, user: str | None, execution_id: int) -> ExecutionView:
        """One execution with its attempts. Raises NotFound (EXECUTION_NOT_FOUND)."""
        where = ExecutionFilter(user_id=user, execution_id=execution_id, limit=1)
        page = await self.executions(where, attempts=True)
        if not page.rows:
            raise NotFound(
                f"there is no execution {execution_id}",
                code="EXECUTION_NOT_FOUND",
                field="execution_id",
                received=str(execution_id),
                hint="List them with get_task_executions.",
            )
        return page.rows[0]

    async def cancel(self, user: str | None, execution_id: int, reason: str = "") -> Execution:
        """Cancel a fire that no node has begun (0 -> 5)."""
        moved = (await self.repo.cancel(user, [execution_id], reason))[0]
        if isinstance(moved, CrontaskError):
            raise moved
        if moved.before != moved.after:
            self._on(ExecutionMoved(before=moved.before, after=moved.after, why="cancel"))
        return moved.after

    async def report(self, report: Report) -> ReportResult:
        """Take an agent's word on a run (A6.2r). Durable when it returns."""
        found = (await self.repo.report([check_report(report)]))[0]
        if isinstance(found, CrontaskError):
            raise found
        self._on(
            ReportReceived(
                task_id=report.task_id,
                status=report.status,
                duplicate=found.duplicate,
                late=found.late,
                pending=found.pending,
            )
        )
        if found.before is not None and found.execution is not None and not found.duplicate:
            self._on(ExecutionMoved(before=found.before, after=found.execution, why="report"))
        return found

    async def info(self) -> Info:
        """Clock, limits and nodes, for get_scheduler_info."""
        horizon = await self.repo.horizon()
        nodes = await self._live_nodes()
        due = horizon.next_due
        return Info(
            now=horizon.now,
            rules=self.rules,
            nodes=nodes,
            alive=await self._alive(),
            oldest_due=due if due is not None and due <= horizon.now else None,
        )

    async def outdated(self) -> str:
        """Why this process is no judge of fire times, and the remedy; "" when it is one: its zone
        data and cron rules are not older than the store has seen (X-S8)."""
        at = self.clock.elapsed()
        if self._seen is None or at - self._seen[0] > _SEEN_KEPT:
            self._seen = (at, (await self.repo.data_state()).seen)
        seen = self._seen[1]
        if not self.data.older_than(seen):
            return ""
        return f"{self.data} here, but the store has seen {seen}. {self.data.remedy(seen)}"

    # -- inside --------------------------------------------------------------------------------
    async def _edit(
        self,
        user: str | None,
        ref: TaskRef,
        edit: Edit,
        what: str,
        warnings: tuple[str, ...] = (),
    ) -> TaskAnswer:
        result = (await self.repo.edit_tasks([EditRequest(user_id=user, ref=ref, edit=edit)]))[0]
        if isinstance(result, CrontaskError):
            raise await self._better(result, user, ref)
        if not result.already:
            self._changed(result.after, what, result)
        answer = await self._answer(result.after, self.clock.now(), warnings)
        return attrs.evolve(
            answer,
            already=result.already,
            changed=result.changed if isinstance(edit, Update) else (),
            running=result.running,
            cancelled=result.cancelled,
        )

    async def _answer(
        self, task: Task, now: datetime, warnings: tuple[str, ...] = ()
    ) -> TaskAnswer:
        schedule = schedule_of(task)
        alive = await self._alive()
        if task.status is TaskStatus.ENABLED and not alive:
            warnings += (NOBODY,)
        outdated = await self.outdated()
        if outdated:
            warnings += (f"Times here may be wrong: {outdated}",)
        return TaskAnswer(
            task=task,
            now=now,
            words=explain(schedule, task.timezone),
            next_fires=next_fires(task, schedule),
            alive=alive,
            warnings=warnings,
        )

    async def _stored(self, task: Task, new: NewTask) -> TaskAnswer:
        asked = create_digest(new)
        if asked != task.create_digest:
            raise key_conflict(task, asked)
        return await self._answer(task, self.clock.now())

    def _check_url(self, url: str) -> None:
        if url:
            self.check_url(url)
        elif self.needs_url and not self.rules.default_callback_url:
            raise InvalidInput(
                "there is no address to call: executor.default_callback_url is not set",
                code="MISSING_ARGUMENT",
                field="executor.default_callback_url",
                hint="Set executor.default_callback_url (CRONTASK_EXECUTOR_DEFAULT_CALLBACK_URL) "
                "to your agent's address, then create the task again.",
                example="http://127.0.0.1:8351/v1/task/execute",
            )

    async def _check_quota(self, user: str) -> None:
        limit = self.rules.tasks_per_user
        if await self.repo.count_tasks(user) >= limit:
            raise QuotaExceeded(
                f"user {user} has {limit} enabled or disabled tasks, which is the limit",
                hint="Delete tasks that are no longer needed (quota.tasks_per_user).",
            )

    async def _live_nodes(self) -> tuple[NodeRow, ...]:
        at = self.clock.elapsed()
        if self._nodes is None or at - self._nodes[0] > 2:
            self._nodes = (at, tuple(await self.repo.nodes()))
        return self._nodes[1]

    async def _alive(self) -> bool:
        if self.fires_here:
            return True
        fresh = self.clock.now() - _ALIVE
        return any("scheduler" in n.roles and n.seen_at > fresh for n in await self._live_nodes())

    async def _better(self, error: CrontaskError, user: str | None, ref: TaskRef) -> CrontaskError:
        if error.code == "TASK_NOT_FOUND":
            return await self._no_task(user, ref)
        return error

    async def _no_task(self, user: str | None, ref: TaskRef) -> NotFound:
        near: tuple[str, ...] = ()
        if ref.key is not None and len(ref.key) >= 3:
            where = TaskFilter(user_id=user, text=ref.key[:64], limit=3)
            near = tuple(r.task.task_key for r in (await self.repo.list_tasks(where)).rows)
        field = "task_key" if ref.key is not None else "task_id"
        named = ref.key if ref.key is not None else str(ref.id)
        return NotFound(
            f"there is no task with {field} {named}",
            field=field,
            received=named,
            hint="List your tasks with list_cron_tasks.",
            candidates=near,
        )

    def _changed(self, task: Task, what: str, result: EditResult | None = None) -> None:
        self._on(TaskChanged(task=task, what=what, changed=result.changed if result else ()))
        if task.next_fire_time is not None:
            self.wake(task.next_fire_time)

    def _on(self, event: Event) -> None:
        self.observer.on(event)
