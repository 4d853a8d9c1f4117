"""From what a caller asks for to a task that can be stored (A2.1, A2.3a, A3.1a, X-T0, X-T3)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import TypeVar

import attrs

from crontask_core.errors import InvalidInput
from crontask_core.model import (
    Delivery,
    MisfirePolicy,
    NewTask,
    OverlapPolicy,
    Rules,
    Task,
    TaskStatus,
    evolve,
    task_uid,
)
from crontask_core.policy.timing import Timing, draft_timing, redraft_timing

__all__ = ["CONTENT_LIMIT", "create_digest", "differing", "draft_changes", "draft_task", "key_of"]

CONTENT_LIMIT = 60 * 1024
_E = TypeVar("_E", bound=Enum)
_TIMING = frozenset(
    {
        "schedule_type",
        "trigger_time",
        "delay_seconds",
        "cron_expr",
        "interval_seconds",
        "timezone",
        "end_at",
        "max_fires",
    }
)
_CONVERSATION = re.compile(
    r"\b(as (discussed|mentioned|above|before)|above[- ]mentioned|earlier (message|conversation)"
    r"|previous(ly)? (message|conversation|discussed))\b|上面|之前说|刚才|前面提到|如上",
    re.IGNORECASE,
)
_WHEN = re.compile(
    r"\b(every (day|hour|week|month|morning|\d+ (minutes|hours|days))|daily at"
    r"|remind me (at|in|tomorrow)|schedule (a|this) task|cron)\b"
    r"|每天|每周|每小时|定时|明天.{0,6}点",
    re.IGNORECASE,
)


def text(
    value: str, field: str, limit: int, *, required: bool = False, outer_blanks: bool = True
) -> str:
    """``value`` if it fits its column of ``limit`` characters. Raises InvalidInput, never cuts."""
    if required and not value.strip():
        raise InvalidInput(
            f"{field} is empty",
            code="MISSING_ARGUMENT",
            field=field,
            hint=f"Give {field} between 1 and {limit} characters.",
            example="daily-report" if field == "task_key" else "Daily report",
        )
    if len(value) > limit:
        raise InvalidInput(
            f"{field} has {len(value)} characters, at most {limit} are allowed",
            field=field,
            received=value,
            hint="Shorten it; nothing is ever cut silently.",
            example=value[: min(limit, 40)].strip() or "x",
        )
    if not outer_blanks and value != value.strip():
        raise InvalidInput(
            f"{field} starts or ends with white space",
            field=field,
            received=repr(value),
            hint="Remove the outer blanks: keys and ids are compared byte by byte.",
            example=value.strip(),
        )
    _storable(value, field)
    return value


def _storable(value: str, field: str) -> None:
    bad = next((c for c in value if c == "\x00" or "\ud800" <= c <= "\udfff"), None)
    if bad is not None:
        raise InvalidInput(
            f"{field} contains U+{ord(bad):04X}, which is not text",
            field=field,
            hint="Remove the NUL or lone surrogate character.",
        )


def key_of(value: str) -> str:
    """A task key as it may be stored (X-T0)."""
    return text(value, "task_key", 128, required=True, outer_blanks=False)


def content(value: str) -> str:
    """The instruction, byte for byte; over 60 KB of UTF-8 is refused (A2.3a)."""
    _storable(value, "task_content")
    if not value.strip():
        raise InvalidInput(
            "task_content is empty",
            code="MISSING_ARGUMENT",
            field="task_content",
            hint="Write the whole instruction the agent will get, with every parameter in it.",
            example='Query DNFM CPA of the last 7 days. Parameters: {"game": "DNFM"}',
        )
    size = len(value.encode())
    if size > CONTENT_LIMIT:
        raise InvalidInput(
            f"task_content has {size} bytes, at most {CONTENT_LIMIT} are allowed",
            field="task_content",
            hint="Store long material elsewhere and name it in the instruction.",
        )
    return value


def number(value: float, field: str, low: float, high: float, example: str) -> float:
    """``value`` within [low, high]. Raises InvalidInput."""
    if not low <= value <= high:
        raise InvalidInput(
            f"{field} must be between {low:.15g} and {high:.15g}",
            field=field,
            received=value,
            hint=f"Give a number from {low:.15g} to {high:.15g}.",
            example=example,
        )
    return value


def choice(value: str, field: str, kind: type[_E]) -> _E:
    """The member of ``kind`` with this value. Raises InvalidInput with the allowed ones."""
    names = [str(m.value) for m in kind]
    if value not in names:
        raise InvalidInput(
            f"{field} must be one of {', '.join(names)}",
            field=field,
            received=value,
            hint="Use one of the listed words.",
            example=names[0],
            candidates=names,
        )
    return kind(value)


def create_digest(new: NewTask) -> str:
    """What was asked for, as sent, field by field: ``name:8 hex`` joined by ``;`` (A3.1a)."""
    parts = []
    for field in attrs.fields(NewTask):
        value = getattr(new, field.name)
        if value is None or field.name == "task_key" or (field.name == "paused" and not value):
            continue
        shown = value.isoformat() if isinstance(value, datetime) else repr(value)
        parts.append(f"{field.name}:{hashlib.sha256(shown.encode()).hexdigest()[:8]}")
    return ";".join(parts)


def differing(stored: str, asked: str) -> list[str]:
    """The names of the fields in which two digests differ."""
    old = dict(part.split(":", 1) for part in stored.split(";") if ":" in part)
    new = dict(part.split(":", 1) for part in asked.split(";") if ":" in part)
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def draft_task(
    new: NewTask, user_id: str, key: str, installation: str, now: datetime, rules: Rules
) -> tuple[Task, tuple[str, ...]]:
    """The task to store, and warnings for its author. Raises InvalidInput; changes nothing."""
    timing = draft_timing(new, now, rules)
    settings = _settings({k: getattr(new, k) for k in _PLAIN if getattr(new, k) is not None})
    task = Task(
        uid=task_uid(installation, user_id, key, now),
        task_key=key,
        user_id=text(user_id, "user_id", 64, required=True, outer_blanks=False),
        conversation_id=text(new.conversation_id, "conversation_id", 128, outer_blanks=False),
        task_name=text(new.task_name, "task_name", 256, required=True),
        task_content=content(new.task_content),
        create_digest=create_digest(new),
        status=TaskStatus.DISABLED if new.paused else TaskStatus.ENABLED,
        status_reason="created paused" if new.paused else "",
        next_fire_time=None if new.paused else timing.next_fire_time,
        created_at=now,
        updated_at=now,
        **{  # type: ignore[arg-type]
            "max_retry": rules.max_retry,
            "retry_interval": rules.retry_interval_ms,
            "overlap_policy": rules.overlap,
            **settings,
            **_timing_fields(timing),
        },
    )
    return task, (*timing.warnings, *content_warnings(task.task_content))


_PLAIN = (
    "task_desc",
    "max_retry",
    "retry_interval_ms",
    "misfire_policy",
    "misfire_grace_seconds",
    "overlap_policy",
    "delivery",
    "report_timeout_seconds",
    "pause_after_failures",
    "callback_url",
)


def _settings(given: Mapping[str, object]) -> dict[str, object]:
    """Task fields from the caller's names and units, each checked."""
    out: dict[str, object] = {}
    for name, raw in given.items():
        if name == "task_desc":
            out[name] = text(str(raw), name, 1024)
        elif name == "callback_url":
            out[name] = text(str(raw), name, 512, outer_blanks=False)
        elif name == "misfire_policy":
            out[name] = choice(str(raw), name, MisfirePolicy)
        elif name == "overlap_policy":
            out[name] = choice(str(raw), name, OverlapPolicy)
        elif name == "delivery":
            out[name] = choice(str(raw), name, Delivery)
        else:
            out.update(_numeric(name, float(raw)))  # type: ignore[arg-type]
    return out


def _numeric(name: str, value: float) -> dict[str, object]:
    if name == "max_retry":
        return {name: int(number(value, name, 0, 20, "3"))}
    if name == "retry_interval_ms":
        return {"retry_interval": int(number(value, name, 100, 3_600_000, "5000"))}
    if name == "pause_after_failures":
        return {name: int(number(value, name, 0, 1_000, "5"))}
    if name == "misfire_grace_seconds":
        return {"misfire_grace_ms": round(number(value, name, 0, 2_592_000, "1800") * 1000)}
    return {"report_timeout_ms": round(number(value, name, 1, 604_800, "1800") * 1000)}


def _timing_fields(timing: Timing) -> dict[str, object]:
    return {
        "schedule_type": timing.schedule_type,
        "trigger_time": timing.trigger_time,
        "cron_expr": timing.cron_expr,
        "timezone": timing.timezone,
        "interval_ms": timing.interval_ms,
        "anchor_at": timing.anchor_at,
        "end_at": timing.end_at,
        "max_fires": timing.max_fires,
    }


_UNSET: Mapping[str, tuple[str, object]] = {
    "task_desc": ("task_desc", ""),
    "callback_url": ("callback_url", ""),
    "end_at": ("end_at", None),
    "max_fires": ("max_fires", None),
    "misfire_grace_seconds": ("misfire_grace_ms", None),
    "report_timeout_seconds": ("report_timeout_ms", None),
    "pause_after_failures": ("pause_after_failures", 0),
}


def draft_changes(
    task: Task, given: Mapping[str, object], unset: tuple[str, ...], now: datetime, rules: Rules
) -> tuple[dict[str, object], tuple[str, ...]]:
    """New values of ``Task`` fields from the arguments given (names as in ``NewTask``), and
    warnings. Only what is given changes (X-T1); ``unset`` clears optional fields. Raises
    InvalidInput."""
    out: dict[str, object] = {}
    for name in unset:
        if name not in _UNSET:
            raise InvalidInput(
                f"{name} cannot be unset",
                field="unset",
                received=name,
                hint="Only optional fields can be cleared.",
                example="end_at",
                candidates=sorted(_UNSET),
            )
        field, empty = _UNSET[name]
        out[field] = empty
    warnings: tuple[str, ...] = ()
    if given.keys() & _TIMING:
        cleared = evolve(task, **{k: v for k, v in out.items() if k in _TIMING})
        timing = redraft_timing(cleared, given, now, rules)
        warnings = timing.warnings
        out.update(_timing_fields(timing))
    if "task_name" in given:
        out["task_name"] = text(str(given["task_name"]), "task_name", 256, required=True)
    if "conversation_id" in given:
        conversation = str(given["conversation_id"])
        out["conversation_id"] = text(conversation, "conversation_id", 128, outer_blanks=False)
    if "task_content" in given:
        out["task_content"] = content(str(given["task_content"]))
        warnings += content_warnings(str(given["task_content"]))
    out.update(_settings({k: given[k] for k in _PLAIN if given.get(k) is not None}))
    return out, warnings


def content_warnings(value: str) -> tuple[str, ...]:
    """What an author should think about: content must stand alone and not schedule itself."""
    out = []
    if _CONVERSATION.search(value):
        out.append(
            "task_content refers to a conversation. Each fire is a new conversation: write "
            "everything the agent needs into task_content."
        )
    if _WHEN.search(value):
        out.append(
            "task_content says when to run. The schedule already does that: describe only what to "
            "do, or the agent may schedule the task again."
        )
    return tuple(out)
