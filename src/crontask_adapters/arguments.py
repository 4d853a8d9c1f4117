"""From the raw arguments of a call to what the use cases take (A4.2).

``read`` checks names, required ones and types; the builders make requests of the result. All that
is wrong is raised as InvalidInput with the field, what was received, a hint and an example that
itself works. Whether a schedule or a text is right is the core's affair.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import attrs

from crontask_adapters.argument_kinds import ABSENT, Argument, Kind
from crontask_core.errors import InvalidInput
from crontask_core.model import ExecStatus, NewTask, Report, ScheduleType, TaskStatus
from crontask_core.ports import ExecutionFilter, TaskFilter, TaskRef
from crontask_core.schedule import parse_instant

__all__ = [
    "TOOLS",
    "Change",
    "change",
    "execution_filter",
    "new_task",
    "read",
    "report",
    "schedule_only",
    "task_filter",
    "task_ref",
]

_STATUS = {status.name.lower(): int(status) for status in TaskStatus} | {
    "active": 1,
    "paused": 0,
    "done": 2,
}
_EXEC_STATUS = {status.name.lower(): int(status) for status in ExecStatus}
_KINDS = {"once": 1, "one-off": 1, "cron": 2, "every": 3, "interval": 3}
_INT = 2**31 - 1


def _one(name: str, kind: Kind, example: str, **more: Any) -> Argument:
    return Argument(name=name, kind=kind, example=example, **more)


_CONTENT_EXAMPLE = 'Check the CPA of DNFM. Parameters: {"game": "DNFM", "rts_name": "josetian"}'
_TASK_ID = _one("task_id", Kind.WHOLE, "1001", low=1)
_TASK_KEY = _one("task_key", Kind.ID, "dnfm-cpa-daily")
_USER = _one("user_id", Kind.ID, "josetian")
_REF = (_TASK_ID, _TASK_KEY, _USER)
_SCHEDULE = (
    _one("schedule_type", Kind.WORD, "2", words=_KINDS),
    _one("trigger_time", Kind.TIME, "2030-01-31T09:00:00+08:00"),
    _one("delay_seconds", Kind.NUMBER, "600"),
    _one("cron_expr", Kind.PLAIN, "0 9 * * 1-5"),
    _one("interval_seconds", Kind.NUMBER, "3600"),
    _one("timezone", Kind.PLAIN, "Asia/Shanghai"),
    _one("end_at", Kind.TIME, "2035-01-31T09:00:00+08:00"),
    _one("max_fires", Kind.WHOLE, "10", low=1, high=_INT),
)
_OPTIONS = (
    _one("max_retry", Kind.WHOLE, "3", low=0, high=20),
    _one("retry_interval_ms", Kind.WHOLE, "5000", low=100, high=3_600_000),
    _one("misfire_policy", Kind.WORD, "run_once"),
    _one("misfire_grace_seconds", Kind.NUMBER, "1800"),
    _one("overlap_policy", Kind.WORD, "allow"),
    _one("delivery", Kind.WORD, "at_least_once"),
    _one("report_timeout_seconds", Kind.NUMBER, "1800"),
    _one("pause_after_failures", Kind.WHOLE, "5", low=0, high=1_000),
    _one("callback_url", Kind.PLAIN, "https://agent.example.com/v1/task/execute"),
)
_DRY = _one("dry_run", Kind.FLAG, "true")
_PAGE = (
    _one("cursor", Kind.ID, ""),
    _one("page_size", Kind.WHOLE, "20", low=1, high=100),
)
_REASON = _one("reason", Kind.CONTENT, "no longer needed")


def _texts(required: bool) -> tuple[Argument, ...]:
    return (
        _one("task_name", Kind.CONTENT, "DNFM CPA check", required=required),
        _one("conversation_id", Kind.ID, "conv_abc123", required=required),
        _one("task_content", Kind.CONTENT, _CONTENT_EXAMPLE, required=required),
        _one("task_desc", Kind.CONTENT, "Watches the CPA of one game"),
    )


_TABLE: dict[str, tuple[Argument, ...]] = {
    "create_cron_task": (
        *_texts(required=True),
        _TASK_KEY,
        *_SCHEDULE,
        *_OPTIONS,
        _one("paused", Kind.FLAG, "false"),
        _DRY,
        _USER,
    ),
    "update_cron_task": (
        *_REF,
        *_texts(required=False),
        *_SCHEDULE,
        *_OPTIONS,
        _one("unset", Kind.NAMES, '["end_at"]'),
        _one("revision", Kind.WHOLE, "1", low=1, high=_INT),
        _DRY,
    ),
    "get_cron_task": (*_REF, _one("include_executions", Kind.WHOLE, "3", low=0, high=10)),
    "list_cron_tasks": (
        _USER,
        _one("status", Kind.WORD, "1", words=_STATUS, low=0, high=3),
        _one("keyword", Kind.CONTENT, "cpa"),
        _one("conversation_id", Kind.ID, "conv_abc123"),
        _one("schedule_type", Kind.WORD, "2", words=_KINDS, low=1, high=3),
        _one("next_fire_from", Kind.TIME, "2030-01-01T00:00:00+08:00"),
        _one("next_fire_to", Kind.TIME, "2030-01-02T00:00:00+08:00"),
        *_PAGE,
    ),
    "delete_cron_task": _REF,
    "pause_cron_task": (*_REF, _REASON),
    "resume_cron_task": _REF,
    "get_task_executions": (
        *_REF,
        _one("execution_id", Kind.WHOLE, "5001", low=1),
        _one("exec_status", Kind.WORD, "3", words=_EXEC_STATUS, low=0, high=7),
        _one("since", Kind.TIME, "2026-01-01T00:00:00+08:00"),
        _one("until", Kind.TIME, "2030-01-02T00:00:00+08:00"),
        *_PAGE,
    ),
    "report_task_result": (
        _one("task_id", Kind.WHOLE, "1001", low=1, required=True),
        _one("task_run_id", Kind.RUN, "run_20260423_0900_abc123"),
        _one("status", Kind.WORD, "success", required=True),
        _one("result", Kind.LOOSE, "CPA average 85, below the threshold"),
        _one("error", Kind.LOOSE, "the data service did not answer"),
        _one("execution_id", Kind.WHOLE, "5001", low=1),
        _one("fire_id", Kind.RUN, "9f1c2f6e-0f8e-5a5c-8f5e-0c3a5b7d9e11"),
        _USER,
    ),
    "preview_schedule": (
        *_SCHEDULE,
        _one("count", Kind.WHOLE, "5", low=1, high=50),
        _one("after", Kind.TIME, "2030-01-01T00:00:00+08:00"),
    ),
    "run_cron_task_now": (*_REF, _one("idempotency_key", Kind.ID, "manual-2026-04-23")),
    "cancel_task_execution": (
        _one("execution_id", Kind.WHOLE, "5001", low=1, required=True),
        _REASON,
        _USER,
    ),
    "get_scheduler_info": (),
}
TOOLS: Mapping[str, tuple[Argument, ...]] = MappingProxyType(_TABLE)
"""Every call and its arguments; ``required`` as this module enforces it."""

# What models and other schedulers call our arguments. They are refused, but with the right name.
_ALSO_CALLED = {
    "task_name": ("name", "title", "label"),
    "task_content": ("content", "prompt", "instruction", "instructions", "message", "payload"),
    "task_desc": ("description", "desc", "note"),
    "task_id": ("id", "job_id", "taskid"),
    "task_key": ("key", "idempotency_key"),
    "cron_expr": ("cron", "cron_expression", "expression", "expr", "schedule", "crontab", "rrule"),
    "trigger_time": ("at", "time", "run_at", "fire_at", "when", "datetime", "run_time", "start_at"),
    "delay_seconds": ("delay", "in", "after_seconds", "delay_ms", "delay_minutes"),
    "interval_seconds": ("every", "interval", "interval_minutes", "every_seconds", "interval_ms"),
    "timezone": ("tz", "time_zone", "zone", "timezone_id"),
    "max_retry": ("retries", "max_retries", "retry", "retry_count"),
    "retry_interval_ms": ("retry_interval", "retry_delay"),
    "end_at": ("until", "end", "end_time", "expires_at", "ends_at"),
    "max_fires": ("max_runs", "count", "repeat", "times", "limit"),
    "misfire_policy": ("misfire", "catch_up"),
    "overlap_policy": ("overlap", "concurrency"),
    "conversation_id": ("conversation", "session_id", "thread_id", "chat_id"),
    "callback_url": ("url", "webhook", "webhook_url", "callback"),
    "paused": ("disabled", "enabled"),
    "user_id": ("user", "owner"),
    "revision": ("version", "expected_version"),
    "page_size": ("limit", "size", "per_page", "count"),
    "cursor": ("page", "offset", "page_token", "next_cursor"),
    "keyword": ("query", "text", "search", "q"),
    "task_run_id": ("run_id", "runid"),
    "result": ("output", "summary", "ga_result"),
    "error": ("error_msg", "error_message", "reason"),
    "exec_status": ("status", "execution_status"),
}


def read(tool: str, raw: Mapping[str, object], *, ignore: Collection[str] = ()) -> dict[str, Any]:
    """The arguments given, each in its type; what means "nothing" is left out.

    ``ignore`` names arguments that hosts inject and that are dropped (``server.ignore_arguments``).
    Raises InvalidInput: UNKNOWN_ARGUMENT, MISSING_ARGUMENT or INVALID_ARGUMENT.
    """
    known = {argument.name: argument for argument in TOOLS[tool]}
    strangers = [name for name in raw if name not in known and name not in ignore]
    if strangers:
        raise _unknown(tool, strangers, raw, known)
    out = {}
    for name, argument in known.items():
        value = argument.read(raw.get(name))
        if value is not ABSENT:
            out[name] = value
    missing = [a for a in known.values() if a.required and a.name not in out]
    if missing:
        raise _missing(tool, missing)
    if str(out.get("task_key", "")).strip().lower() in ("null", "none", "undefined"):
        raise known["task_key"].refuse(
            raw["task_key"], "is no key", "Leave task_key out, or give the task a telling key."
        )
    return out


def _unknown(
    tool: str,
    strangers: list[str],
    raw: Mapping[str, object],
    known: Mapping[str, Argument],
) -> InvalidInput:
    name = strangers[0]
    near = _near(name, known)
    valid = ", ".join(known) or "none"
    hint = f"Use {near[0]}." if near else f"{tool} takes: {valid}."
    inner = raw[name]
    if isinstance(inner, dict) and inner.keys() & known.keys():
        near = [key for key in inner if key in known]
        hint = f"Send {', '.join(near[:3])} directly, not inside {name}."
    others = f" (nor {', '.join(strangers[1:4])})" if len(strangers) > 1 else ""
    return InvalidInput(
        f"{tool} has no argument {name:.60}{others}",
        code="UNKNOWN_ARGUMENT",
        field=name,
        received=str(inner),
        hint=hint,
        example=known[near[0]].example if near else "",
        candidates=near,
    )


def _near(name: str, known: Mapping[str, Argument]) -> list[str]:
    plain = name.lower().replace("-", "_")
    found = [right for right, names in _ALSO_CALLED.items() if plain in names and right in known]
    flat = {other.replace("_", ""): other for other in known}
    close = difflib.get_close_matches(plain.replace("_", ""), flat, 3, 0.6)
    return list(dict.fromkeys([*found, *(flat[match] for match in close)]))[:3]


def _missing(tool: str, missing: list[Argument]) -> InvalidInput:
    names = [argument.name for argument in missing]
    verb = "is" if len(names) == 1 else "are"
    needed = [argument.name for argument in TOOLS[tool] if argument.required]
    when = ", and schedule_type with its field" if tool == "create_cron_task" else ""
    return InvalidInput(
        f"{' and '.join(names)} {verb} missing",
        code="MISSING_ARGUMENT",
        field=names[0],
        hint=f"{tool} needs {', '.join(needed)}{when}.",
        example=missing[0].example,
    )


# -- builders ------------------------------------------------------------------------------------

_NEW = frozenset(attrs.fields_dict(NewTask))


def new_task(args: Mapping[str, Any]) -> NewTask:
    """The task a create asks for; ``args`` from ``read("create_cron_task", ...)``."""
    return NewTask(**{name: value for name, value in args.items() if name in _NEW})


def schedule_only(args: Mapping[str, Any]) -> NewTask:
    """A request that carries a schedule and nothing else, for a preview."""
    return NewTask(task_name="preview", task_content="preview", **_picked(args, _WHEN))


_WHEN = frozenset(argument.name for argument in _SCHEDULE)
_REF_NAMES = frozenset({"task_id", "task_key", "user_id", "unset", "revision", "dry_run"})


def _picked(args: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name in names}


def task_ref(args: Mapping[str, Any]) -> TaskRef:
    """The task meant: ``task_id`` or ``task_key``, exactly one. Raises InvalidInput."""
    given = [name for name in ("task_id", "task_key") if name in args]
    if len(given) == 1:
        return TaskRef(id=args.get("task_id"), key=args.get("task_key"))
    raise InvalidInput(
        "task_id and task_key are both given" if given else "no task is named",
        code="INVALID_ARGUMENT" if given else "MISSING_ARGUMENT",
        field="task_id",
        hint="Give task_id or task_key, one of them.",
        example=str(args.get("task_id", "1001")),
    )


@attrs.frozen(kw_only=True)
class Change:
    """What an update asks for: ``given`` fields as named in ``NewTask``, ``unset`` ones."""

    ref: TaskRef
    given: Mapping[str, Any]
    unset: tuple[str, ...] = ()
    revision: int | None = None
    dry_run: bool = False


def change(args: Mapping[str, Any]) -> Change:
    """The change asked for. Raises InvalidInput when nothing would be changed."""
    ref = task_ref(args)
    given = {name: value for name, value in args.items() if name not in _REF_NAMES}
    unset = tuple(args.get("unset", ()))
    if not given and not unset:
        raise InvalidInput(
            "there is nothing to change",
            code="MISSING_ARGUMENT",
            field="task_content",
            hint="Give the fields to change; to clear an optional one name it in unset.",
            example=_CONTENT_EXAMPLE,
        )
    both = sorted(given.keys() & set(unset))
    if both:
        raise InvalidInput(
            f"{both[0]} is both given and unset",
            field="unset",
            received=", ".join(unset),
            hint=f"Leave {both[0]} out of unset to set it.",
        )
    return Change(
        ref=ref,
        given=given,
        unset=unset,
        revision=args.get("revision"),
        dry_run=args.get("dry_run", False),
    )


def task_filter(
    args: Mapping[str, Any], user: str | None, zone: str, now: datetime, *, limit: int = 20
) -> TaskFilter:
    """What a listing asks for. Deleted tasks are listed only when asked for by status."""
    status = args.get("status")
    kind = args.get("schedule_type")
    return TaskFilter(
        user_id=user,
        statuses=_LIVE if status is None else (status,),
        conversation_id=args.get("conversation_id", ""),
        schedule_type=ScheduleType(kind) if kind is not None else None,
        text=args.get("keyword", ""),
        next_from=_instant(args, "next_fire_from", zone, now),
        next_to=_instant(args, "next_fire_to", zone, now),
        cursor=args.get("cursor", ""),
        limit=args.get("page_size", limit),
    )


_LIVE = tuple(int(s) for s in TaskStatus if s is not TaskStatus.DELETED)


def execution_filter(
    args: Mapping[str, Any],
    user: str | None,
    task_id: int | None,
    zone: str,
    now: datetime,
    *,
    limit: int = 20,
) -> ExecutionFilter:
    """What a listing of executions asks for, of one task when ``task_id`` is given."""
    status = args.get("exec_status")
    return ExecutionFilter(
        user_id=user,
        task_id=task_id,
        execution_id=args.get("execution_id"),
        statuses=() if status is None else (status,),
        since=_instant(args, "since", zone, now),
        until=_instant(args, "until", zone, now),
        cursor=args.get("cursor", ""),
        limit=args.get("page_size", limit),
    )


def _instant(args: Mapping[str, Any], name: str, zone: str, now: datetime) -> datetime | None:
    return parse_instant(args[name], zone, now, name)[0] if name in args else None


def report(args: Mapping[str, Any], user: str | None) -> Report:
    """An agent's report; ``user`` None when the caller may report for anybody."""
    return Report(
        task_id=args["task_id"],
        task_run_id=args.get("task_run_id", ""),
        status=args["status"],
        result=args.get("result", ""),
        error=args.get("error", ""),
        fire_id=args.get("fire_id", ""),
        execution_id=args.get("execution_id", 0),
        user_id=user,
    )
