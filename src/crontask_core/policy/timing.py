"""The when of a task: from the caller's fields to a checked schedule (A2.1a, A2.1b, X-S5, X-T3)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeGuard

import attrs

from crontask_core.errors import InvalidInput, QuotaExceeded
from crontask_core.model import NewTask, Rules, ScheduleType, Task
from crontask_core.schedule import (
    Cron,
    Every,
    Once,
    Schedule,
    fires_after,
    next_after,
    parse_cron,
    parse_instant,
    parse_zone,
    schedule_warnings,
    shortest_gap,
)
from crontask_core.schedule import (
    zone as zone_info,
)

__all__ = ["LATE_CALLER", "Timing", "draft_timing", "redraft_timing"]

LATE_CALLER = timedelta(seconds=60)
"""A one-off at most this far past fires at once: callers are slow (A2.1b)."""

_TEN_YEARS = 10 * 366 * 86_400
_VALUE = {
    ScheduleType.ONCE: ("trigger_time", "delay_seconds"),
    ScheduleType.CRON: ("cron_expr",),
    ScheduleType.EVERY: ("interval_seconds",),
}
_EXAMPLE = {
    ScheduleType.ONCE: ("delay_seconds", "600"),
    ScheduleType.CRON: ("cron_expr", "0 9 * * 1-5"),
    ScheduleType.EVERY: ("interval_seconds", "3600"),
}
_OWNER = {name: kind for kind, names in _VALUE.items() for name in names}


@attrs.frozen(kw_only=True)
class Timing:
    """A checked schedule in the fields of ``Task``, its first fire, and warnings for the author."""

    schedule_type: ScheduleType
    timezone: str
    next_fire_time: datetime
    trigger_time: datetime | None = None
    cron_expr: str = ""
    interval_ms: int | None = None
    anchor_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    warnings: tuple[str, ...] = ()


def draft_timing(new: NewTask, now: datetime, rules: Rules) -> Timing:
    """The schedule a caller asks for. Raises InvalidInput with the field, a hint and an example."""
    kind = _kind(new)
    _no_strangers(new, kind)
    zone = parse_zone(new.timezone) if new.timezone else rules.zone
    warnings: list[str] = []
    schedule: Schedule
    if kind is ScheduleType.ONCE:
        schedule = Once(at=_moment(new, zone, now, warnings))
    elif kind is ScheduleType.CRON:
        schedule = parse_cron(new.cron_expr or "", new.timezone or None, rules.zone, now)
        zone = schedule.zone if isinstance(schedule, Cron) else zone
    else:
        schedule = Every(interval=_interval(new), anchor=now)
    end_at = None
    if new.end_at is not None:
        end_at, notes = parse_instant(new.end_at, zone, now, "end_at")
        warnings += notes
    timing = _finish(schedule, zone, end_at, new.max_fires, now, warnings)
    _not_too_often(schedule, kind, now, rules)
    return timing


def redraft_timing(task: Task, given: Mapping[str, object], now: datetime, rules: Rules) -> Timing:
    """The schedule of ``task`` with the fields ``given`` in place of its own (X-T1)."""
    if not given.keys() & (_OWNER.keys() | {"schedule_type"}):
        given = {**given, **_stored_value(task)}
    fields = {
        "timezone": task.timezone if "CRON_TZ=" not in str(given.get("cron_expr", "")) else None,
        "end_at": task.end_at,
        "max_fires": task.max_fires,
        **{k: v for k, v in given.items() if k in _FIELDS},
    }
    one_off = _kind(NewTask(task_name="", task_content="", **fields))  # type: ignore[arg-type]
    if one_off is ScheduleType.ONCE:
        for name in ("end_at", "max_fires"):
            if name not in given:
                fields[name] = None
    return draft_timing(
        NewTask(task_name="", task_content="", **fields),  # type: ignore[arg-type]
        now,
        rules,
    )


_FIELDS = frozenset(_OWNER) | {"schedule_type", "timezone", "end_at", "max_fires"}


def _stored_value(task: Task) -> dict[str, object]:
    if task.schedule_type is ScheduleType.ONCE:
        return {"trigger_time": task.trigger_time}
    if task.schedule_type is ScheduleType.CRON:
        return {"cron_expr": task.cron_expr}
    return {"interval_seconds": (task.interval_ms or 0) / 1000}


def _kind(new: NewTask) -> ScheduleType:
    if new.schedule_type is not None:
        if new.schedule_type not in set(ScheduleType):
            raise InvalidInput(
                "schedule_type must be 1 (one-off), 2 (cron) or 3 (every)",
                field="schedule_type",
                received=new.schedule_type,
                hint="1 with trigger_time or delay_seconds, 2 with cron_expr, 3 with "
                "interval_seconds.",
                example=str(min(_kinds(new), default=ScheduleType.CRON).value),
            )
        return ScheduleType(new.schedule_type)
    kinds = _kinds(new)
    if len(kinds) != 1:
        raise InvalidInput(
            "fields of several schedules are given" if kinds else "no schedule is given",
            code="INVALID_ARGUMENT" if kinds else "MISSING_ARGUMENT",
            field="schedule_type" if kinds else "cron_expr",
            hint="Give exactly one of trigger_time, delay_seconds, cron_expr, interval_seconds.",
            example="" if kinds else _EXAMPLE[ScheduleType.CRON][1],
        )
    return kinds.pop()


def _kinds(new: NewTask) -> set[ScheduleType]:
    """The kinds of schedule that the given fields belong to."""
    return {kind for name, kind in _OWNER.items() if getattr(new, name) is not None}


def _no_strangers(new: NewTask, kind: ScheduleType) -> None:
    """Fields of another kind are refused, not ignored (A2.1a)."""
    for name, owner in _OWNER.items():
        if owner is not kind and getattr(new, name) is not None:
            alone = _kinds(new) == {owner}
            raise InvalidInput(
                f"{name} does not belong to schedule_type {kind.value}",
                field="schedule_type" if alone else name,
                received=kind.value if alone else getattr(new, name),
                hint=f"Leave out {name}, or set schedule_type to {owner.value}."
                if alone
                else f"Leave out {name}.",
                example=str(owner.value) if alone else "",
            )
    if kind is ScheduleType.ONCE:
        for name in ("end_at", "max_fires"):
            if getattr(new, name) is not None:
                raise InvalidInput(
                    f"{name} does not belong to a one-off task",
                    field=name,
                    received=getattr(new, name),
                    hint=f"Leave out {name}: a one-off fires once.",
                )
    given = [name for name in _VALUE[kind] if getattr(new, name) is not None]
    if len(given) != 1:
        field, example = _EXAMPLE[kind]
        raise InvalidInput(
            f"schedule_type {kind.value} needs {' or '.join(_VALUE[kind])}"
            + (", not both" if given else ""),
            code="INVALID_ARGUMENT" if given else "MISSING_ARGUMENT",
            field=given[0] if given else field,
            hint=f"Give exactly one of {' and '.join(_VALUE[kind])}."
            if len(_VALUE[kind]) > 1
            else f"Add {field}.",
            example="" if given else example,
        )


def _moment(new: NewTask, zone: str, now: datetime, warnings: list[str]) -> datetime:
    if new.delay_seconds is not None:
        if not _is_number(new.delay_seconds) or not 0 <= new.delay_seconds <= _TEN_YEARS:
            raise InvalidInput(
                "delay_seconds must be between 0 and ten years",
                field="delay_seconds",
                received=new.delay_seconds,
                hint="Give the seconds from now.",
                example="600",
            )
        return now + timedelta(seconds=float(new.delay_seconds))
    at, notes = parse_instant(new.trigger_time or "", zone, now, "trigger_time")
    warnings += notes
    if now - at > LATE_CALLER:
        soon = (now + timedelta(hours=1)).astimezone(zone_info(zone)).isoformat(timespec="seconds")
        local = at.astimezone(zone_info(zone)).isoformat(timespec="seconds")
        raise InvalidInput(
            f"trigger_time {local} has passed; the server's now is "
            f"{now.astimezone(zone_info(zone)).isoformat(timespec='seconds')} ({zone})",
            code="TIME_IN_PAST",
            field="trigger_time",
            received=str(new.trigger_time),
            hint="Give a later time, or delay_seconds, which needs no clock arithmetic.",
            example=soon,
        )
    return at


def _is_number(value: object) -> TypeGuard[float]:
    """Python callers are not type-checked when they run."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _interval(new: NewTask) -> timedelta:
    seconds = new.interval_seconds
    if not _is_number(seconds) or not 0.001 <= seconds <= _TEN_YEARS:
        raise InvalidInput(
            "interval_seconds must be above 0 and at most ten years",
            field="interval_seconds",
            received=new.interval_seconds,
            hint="Give the seconds between two fires.",
            example="3600",
        )
    return timedelta(milliseconds=round(seconds * 1000))


def _finish(
    schedule: Schedule,
    zone: str,
    end_at: datetime | None,
    max_fires: int | None,
    now: datetime,
    warnings: list[str],
) -> Timing:
    first = schedule.at if isinstance(schedule, Once) else next_after(schedule, now)
    if first is None or (end_at is not None and first > end_at):
        raise InvalidInput(
            "the schedule has no fire left" + (" before end_at" if end_at else ""),
            code="NEVER_FIRES",
            field="end_at" if end_at else "cron_expr",
            hint="Give an end_at after the first fire."
            if end_at
            else "Give a schedule that fires.",
            example=(first or now + timedelta(days=30)).isoformat(timespec="seconds")
            if end_at
            else "0 9 * * 1-5",
        )
    _positive(max_fires)
    every = schedule if isinstance(schedule, Every) else None
    return Timing(
        schedule_type=ScheduleType.ONCE
        if isinstance(schedule, Once)
        else ScheduleType.CRON
        if isinstance(schedule, Cron)
        else ScheduleType.EVERY,
        timezone=zone,
        next_fire_time=first,
        trigger_time=schedule.at if isinstance(schedule, Once) else None,
        cron_expr=schedule.expr if isinstance(schedule, Cron) else "",
        interval_ms=every.interval // timedelta(milliseconds=1) if every else None,
        anchor_at=every.anchor if every else None,
        end_at=end_at,
        max_fires=max_fires,
        warnings=(*warnings, *schedule_warnings(schedule, now)),
    )


@lru_cache(maxsize=4096)
def _gap(schedule: Schedule, day: datetime) -> timedelta | None:
    return shortest_gap(schedule, day)


def _positive(max_fires: int | None) -> None:
    if max_fires is not None and max_fires < 1:
        raise InvalidInput(
            "max_fires must be at least 1",
            field="max_fires",
            received=max_fires,
            hint="Leave it out for no limit.",
            example="10",
        )


def _not_too_often(schedule: Schedule, kind: ScheduleType, now: datetime, rules: Rules) -> None:
    # By day: imports bring the same expression thousands of times.
    gap = _gap(schedule, now.replace(hour=0, minute=0, second=0, microsecond=0))
    if gap is None or gap >= rules.min_interval:
        return
    least = _plain(rules.min_interval.total_seconds())
    shown = ", ".join(at.isoformat() for at in fires_after(schedule, now, 2))
    field, example = _EXAMPLE[kind][0], _slower(rules)
    if isinstance(schedule, Every):
        example = f"@every {least}s" if kind is ScheduleType.CRON else least
    raise QuotaExceeded(
        f"two fires would be {gap.total_seconds():g} s apart, the shortest allowed gap is "
        f"{least} s (next: {shown})",
        code="TOO_FREQUENT",
        field=field,
        received=getattr(schedule, "expr", gap.total_seconds()),
        hint=f"Leave at least {least} s between fires (quota.min_interval).",
        example=example,
    )


def _plain(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds.is_integer() else f"{seconds:.3f}"


def _slower(rules: Rules) -> str:
    """The most frequent of a few plain expressions that is allowed."""
    gaps = {"0 * * * *": 3600, "0 9 * * *": 82_800, "0 9 * * 1": 601_200, "0 9 1 * *": 2_415_600}
    least = rules.min_interval.total_seconds()
    return next((expr for expr, gap in gaps.items() if gap >= least), "0 9 1 1 *")
