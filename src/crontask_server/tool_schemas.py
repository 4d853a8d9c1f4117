"""The thirteen tools as a client sees them: hand-written, flat, portable (A4.2).

Every property has one ``type``; there is no null, anyOf, oneOf, $ref, const or condition, because
hosts strip or refuse those. What depends on other fields is checked by the server and answered with
a hint. The whole list stays under 12 KB: each word here is read by a model in every conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

__all__ = ["SPECS", "ToolSpec"]

Schema = dict[str, Any]


@attrs.frozen(kw_only=True)
class ToolSpec:
    """One tool: its texts, its schemas, its four hints, and the scope a token needs for it."""

    name: str
    description: str
    input_schema: Schema
    output_schema: Schema
    scope: str
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False


def _prop(kind: str, text: str = "", **more: Any) -> Schema:
    return {"type": kind, **more, **({"description": text} if text else {})}


def _text(text: str = "", **more: Any) -> Schema:
    return _prop("string", text, **more)


def _int(text: str = "", **more: Any) -> Schema:
    return _prop("integer", text, **more)


def _num(text: str = "") -> Schema:
    return _prop("number", text)


def _flag(text: str = "") -> Schema:
    return _prop("boolean", text)


def _in(properties: Schema, *required: str) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def _out(**properties: Schema) -> Schema:
    """A superset that a success and an error both fit: clients check either against it."""
    shared = {"ok": _flag(), "error": _prop("object")}
    return {"type": "object", "properties": {**shared, **properties}, "required": ["ok"]}


_LIST = {"type": "array"}
_LIST_OF_TEXT = {"type": "array", "items": {"type": "string"}}
_OBJECT = _prop("object")

_REF = {
    "task_id": _int("or task_key"),
    "task_key": _text(),
}
_USER = {"user_id": _text("Only for agents that serve many users")}
_SCHEDULE = {
    "schedule_type": _int(
        "1=once (trigger_time or delay_seconds), 2=cron_expr, 3=interval_seconds",
        enum=[1, 2, 3],
    ),
    "trigger_time": _text("ISO 8601; without offset: in timezone"),
    "delay_seconds": _num("From now; best for relative times"),
    "cron_expr": _text("Five fields: 0 9 * * 1-5"),
    "interval_seconds": _num(),
    "timezone": _text("IANA name; default: see get_scheduler_info"),
    "end_at": _text("No fire after it (types 2, 3)"),
    "max_fires": _int("End after so many (types 2, 3)"),
}
_OPTIONS = {
    "max_retry": _int("When the agent does not accept; default 3"),
    "retry_interval_ms": _int("First wait, then doubled; default 5000"),
    "misfire_policy": _text("Runs missed while down", enum=["run_once", "run_all", "skip"]),
    "misfire_grace_seconds": _num("How late a fire may still run"),
    "overlap_policy": _text("While an earlier fire runs", enum=["allow", "skip"]),
    "delivery": _text("If arrival is unknown", enum=["at_least_once", "at_most_once"]),
    "report_timeout_seconds": _num("Default 1800"),
    "pause_after_failures": _int("Pause after so many in a row"),
    "callback_url": _text("Its host must be allowed"),
}
_DRY = {"dry_run": _flag("Check only")}
_PAGE = {"cursor": _text("next_cursor"), "page_size": _int("1-100, default 20")}
_TASK_OUT = {"task_id": _int(), "next_fire_time": _OBJECT}


def _bare(properties: Schema) -> Schema:
    """The same properties by type alone: create_cron_task says the rest."""
    return {name: {"type": schema["type"]} for name, schema in properties.items()}


_CREATE = ToolSpec(
    name="create_cron_task",
    description=(
        "Schedule work for an agent: once, by cron, or every so often. Each fire sends "
        "task_content in a NEW conversation, so it must stand alone: plain words plus a parameter "
        "JSON, with whose identity (rts_name) and where results go (push_target). Say what to do, "
        "not when. Example: 'Query DNFM CPA of 7 days; if above 100 push a screenshot. "
        'Parameters: {"game":"DNFM","rts_name":"josetian","push_target":"wecom_grp_x"}\''
    ),
    input_schema=_in(
        {
            "task_name": _text("Short purpose"),
            "task_key": _text("Idempotency key; made if left out"),
            "conversation_id": _text("A label only"),
            "task_content": _text("The complete instruction; up to 60 KB"),
            **_SCHEDULE,
            **_OPTIONS,
            "task_desc": _text(),
            "paused": _flag(),
            **_DRY,
            **_USER,
        },
        "task_name",
        "schedule_type",
        "conversation_id",
        "task_content",
    ),
    output_schema=_out(task_key=_text(), created=_flag(), warnings=_LIST, **_TASK_OUT),
    scope="write",
)

_UPDATE = ToolSpec(
    name="update_cron_task",
    description=(
        "Change only the fields given (as in create_cron_task); a new schedule counts from now."
    ),
    input_schema=_in(
        {
            **_REF,
            "task_name": _text(),
            "conversation_id": _text(),
            "task_content": _text(),
            **_bare(_SCHEDULE),
            **_bare(_OPTIONS),
            "task_desc": _text(),
            "unset": {**_LIST_OF_TEXT, "description": "Optional fields to clear: end_at ..."},
            "revision": _int("Refuse if changed since"),
            **_DRY,
            **_bare(_USER),
        }
    ),
    output_schema=_out(changed=_LIST, **_TASK_OUT),
    scope="write",
)

_GET = ToolSpec(
    name="get_cron_task",
    description="One task in full, with next fires and newest executions.",
    input_schema=_in({**_REF, "include_executions": _int("0-10, default 3"), **_bare(_USER)}),
    output_schema=_out(executions=_LIST, **_TASK_OUT),
    scope="read",
    read_only=True,
)

_FIND = ToolSpec(
    name="list_cron_tasks",
    description="Tasks, newest first, with next fire and last execution's state.",
    input_schema=_in(
        {
            **_bare(_USER),
            "status": _int("0=paused 1=enabled 2=completed 3=deleted; default 0-2"),
            "keyword": _text("In name, key, description"),
            "conversation_id": _text(),
            "schedule_type": _int(),
            "next_fire_from": _text("ISO 8601"),
            "next_fire_to": _text(),
            **_PAGE,
        }
    ),
    output_schema=_out(tasks=_LIST, total=_int(), next_cursor=_text()),
    scope="read",
    read_only=True,
)

_DELETE = ToolSpec(
    name="delete_cron_task",
    description=(
        "End a task and free its key. Waiting fires are cancelled; executions stay readable."
    ),
    input_schema=_in({**_REF, **_bare(_USER)}),
    output_schema=_out(task_id=_int(), already=_flag()),
    scope="write",
    destructive=True,
)

_PAUSE = ToolSpec(
    name="pause_cron_task",
    description="No fires until resumed. Waiting ones are cancelled, running ones go on.",
    input_schema=_in({**_REF, "reason": _text(), **_bare(_USER)}),
    output_schema=_out(already=_flag()),
    scope="write",
)

_RESUME = ToolSpec(
    name="resume_cron_task",
    description="Fire again from now on; nothing missed is run.",
    input_schema=_in({**_REF, **_bare(_USER)}),
    output_schema=_out(already=_flag(), **_TASK_OUT),
    scope="write",
)

_EXECUTIONS = ToolSpec(
    name="get_task_executions",
    description=(
        "Executions, newest first: was the fire delivered, what was reported. With execution_id: "
        "one, with attempts and whole texts."
    ),
    input_schema=_in(
        {
            **_REF,
            "execution_id": _int(),
            "exec_status": _int(
                "0=pending 1=calling 2=success 3=failed 4=timeout 5=cancelled 6=skipped 7=running"
            ),
            "since": _text("ISO 8601 fire time"),
            "until": _text(),
            **_PAGE,
            **_bare(_USER),
        }
    ),
    output_schema=_out(executions=_LIST, total=_int(), next_cursor=_text()),
    scope="read",
    read_only=True,
)

_REPORT = ToolSpec(
    name="report_task_result",
    description=(
        "For the agent that was called: report success or failed when the work is over, or the "
        "run times out. running (note in result) asks for more time. Repeats are safe."
    ),
    input_schema=_in(
        {
            "task_id": _int("From the callback"),
            "task_run_id": _text("As you answered it"),
            "status": _text(enum=["success", "failed", "running"]),
            "result": _text(),
            "error": _text(),
            "execution_id": _int("From the callback, like fire_id"),
            "fire_id": _text(),
            **_bare(_USER),
        },
        "task_id",
        "task_run_id",
        "status",
    ),
    output_schema=_out(recorded=_flag(), duplicate=_flag(), exec_status=_int()),
    scope="report",
)

_PREVIEW = ToolSpec(
    name="preview_schedule",
    description="When a schedule would fire. Creates nothing.",
    input_schema=_in(
        {
            **_bare(_SCHEDULE),
            "count": _int("1-50, default 5"),
            "after": _text("ISO 8601; default now"),
        }
    ),
    output_schema=_out(text=_text(), next_fire_times=_LIST),
    scope="read",
    read_only=True,
)

_RUN = ToolSpec(
    name="run_cron_task_now",
    description=("One extra fire; the schedule stays. idempotency_key makes repeats safe."),
    input_schema=_in({**_REF, "idempotency_key": _text(), **_bare(_USER)}),
    output_schema=_out(execution_id=_int(), created=_flag()),
    scope="write",
    idempotent=False,
    open_world=True,
)

_CANCEL = ToolSpec(
    name="cancel_task_execution",
    description="Cancel an execution whose call has not begun.",
    input_schema=_in({"execution_id": _int(), "reason": _text(), **_bare(_USER)}, "execution_id"),
    output_schema=_out(execution_id=_int(), exec_status=_int()),
    scope="write",
    destructive=True,
)

_INFO = ToolSpec(
    name="get_scheduler_info",
    description="Server time, default time zone, limits, and whether tasks get fired.",
    input_schema={"type": "object", "properties": {}},
    output_schema=_out(server_time=_OBJECT),
    scope="read",
    read_only=True,
)

SPECS: Mapping[str, ToolSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _CREATE, _UPDATE, _GET, _FIND, _DELETE, _PAUSE, _RESUME, _EXECUTIONS, _REPORT,
            _PREVIEW, _RUN, _CANCEL, _INFO,
        )
    }
)  # fmt: skip
"""The tools by name, in the order they are listed."""
