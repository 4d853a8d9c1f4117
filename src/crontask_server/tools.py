"""What each tool does: read the arguments, call one use case, show the answer (A4.2, A4.2b)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from crontask_adapters import arguments, views
from crontask_core.errors import NotFound
from crontask_core.ports import Page
from crontask_core.tasks import ExecutionView, TaskAnswer, Tasks
from crontask_server.identity import EXECUTION_META, Caller
from crontask_server.tool_schemas import SPECS

__all__ = ["HANDLERS", "Call", "answer"]

View = dict[str, Any]


@attrs.frozen(kw_only=True)
class Call:
    """One call of a tool: checked arguments, the principal, and what its harness sent along."""

    tasks: Tasks
    caller: Caller
    args: Mapping[str, Any]
    meta: Mapping[str, Any]
    version: str

    def user(self) -> str:
        """The user the call is about. Raises Forbidden, or InvalidInput when none is named."""
        return self.caller.acting_for(self.meta, self.args.get("user_id"))


async def answer(
    tasks: Tasks,
    caller: Caller,
    tool: str,
    raw: Mapping[str, object],
    *,
    meta: Mapping[str, Any] | None = None,
    ignore: Collection[str] = (),
    version: str = "",
) -> View:
    """The structured answer of a tool, ``ok`` true. Raises CrontaskError."""
    caller.need(SPECS[tool].scope)
    args = arguments.read(tool, raw, ignore=ignore)
    call = Call(tasks=tasks, caller=caller, args=args, meta=meta or {}, version=version)
    return {"ok": True, **await HANDLERS[tool](call)}


async def _create(call: Call) -> View:
    made = await call.tasks.create(
        call.user(),
        arguments.new_task(call.args),
        dry_run=call.args.get("dry_run", False),
        nested=bool(call.meta.get(EXECUTION_META)),
    )
    return _brief(made, "created")


async def _update(call: Call) -> View:
    asked = arguments.change(call.args)
    changed = await call.tasks.update(
        call.user(),
        asked.ref,
        asked.given,
        unset=asked.unset,
        revision=asked.revision,
        dry_run=asked.dry_run,
    )
    return _brief(changed, "updated")


async def _get(call: Call) -> View:
    found = await call.tasks.get(
        call.user(),
        arguments.task_ref(call.args),
        executions=call.args.get("include_executions", 3),
    )
    return views.task(found)


async def _find(call: Call) -> View:
    rules, now = call.tasks.rules, call.tasks.clock.now()
    where = arguments.task_filter(call.args, call.user(), rules.zone, now)
    return views.task_rows(await call.tasks.list(where), now)


async def _delete(call: Call) -> View:
    gone = await call.tasks.delete(call.user(), arguments.task_ref(call.args))
    return views.deleted(gone)


async def _pause(call: Call) -> View:
    ref, reason = arguments.task_ref(call.args), call.args.get("reason", "")
    return _brief(await call.tasks.pause(call.user(), ref, reason), "paused")


async def _resume(call: Call) -> View:
    return _brief(await call.tasks.resume(call.user(), arguments.task_ref(call.args)), "resumed")


async def _executions(call: Call) -> View:
    user, args = call.user(), call.args
    task_id = None
    if "task_id" in args or "task_key" in args:
        found = await call.tasks.get(user, arguments.task_ref(args), executions=0)
        task_id = found.task.id
    if "execution_id" in args:
        one = await _one_execution(call.tasks, user, args["execution_id"], task_id)
        return views.executions(Page((one,), 1), full=True)
    now = call.tasks.clock.now()
    where = arguments.execution_filter(args, user, task_id, call.tasks.rules.zone, now)
    return views.executions(await call.tasks.executions(where))


async def _one_execution(
    tasks: Tasks, user: str, execution_id: int, task_id: int | None
) -> ExecutionView:
    one = await tasks.execution(user, execution_id)
    if task_id not in (None, one.execution.task_id):
        raise NotFound(
            f"task {task_id} has no execution {execution_id}",
            code="EXECUTION_NOT_FOUND",
            field="execution_id",
            received=str(execution_id),
            hint=f"It belongs to task {one.execution.task_id}.",
            example=str(execution_id),
        )
    return one


async def _report(call: Call) -> View:
    user = call.caller.reporting_for(call.meta, call.args.get("user_id"))
    return views.report(await call.tasks.report(arguments.report(call.args, user)))


async def _preview(call: Call) -> View:
    shown = call.tasks.preview(
        arguments.schedule_only(call.args),
        count=call.args.get("count", 5),
        after=call.args.get("after"),
    )
    return views.preview(shown)


async def _run(call: Call) -> View:
    key = call.args.get("idempotency_key")
    return views.run(await call.tasks.run_now(call.user(), arguments.task_ref(call.args), key))


async def _cancel(call: Call) -> View:
    user, execution_id = call.user(), call.args["execution_id"]
    row = await call.tasks.cancel(user, execution_id, call.args.get("reason", ""))
    shown = await call.tasks.execution(user, row.id)
    return views.cancelled(row, shown.zone)


async def _info(call: Call) -> View:
    return views.info(await call.tasks.info(), call.version)


def _brief(told: TaskAnswer, what: str) -> View:
    """The answer to a change: all but the content, which the caller has just sent."""
    return views.task(told, what, content=False)


HANDLERS: Mapping[str, Callable[[Call], Awaitable[View]]] = MappingProxyType(
    {
        "create_cron_task": _create,
        "update_cron_task": _update,
        "get_cron_task": _get,
        "list_cron_tasks": _find,
        "delete_cron_task": _delete,
        "pause_cron_task": _pause,
        "resume_cron_task": _resume,
        "get_task_executions": _executions,
        "report_task_result": _report,
        "preview_schedule": _preview,
        "run_cron_task_now": _run,
        "cancel_task_execution": _cancel,
        "get_scheduler_info": _info,
    }
)
"""What each tool does, by name."""
