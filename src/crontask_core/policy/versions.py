"""Which zone data and cron rules the store has seen, and what newer ones change (`X-S8`).

A store remembers the newest it was ever worked on with. A node with older ones does not claim; with
newer ones the stored fires of cron tasks are computed again, page by page, by whichever node comes
to the next page first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import attrs

from crontask_core.model import ScheduleType, Task, TaskStatus, evolve, schedule_of
from crontask_core.policy.fires import next_fire
from crontask_core.policy.writes import Writes
from crontask_core.schedule import CRON_RULES_VERSION, latest_at_or_before, tzdata_version

__all__ = [
    "DATA_KEYS",
    "DataState",
    "ScheduleData",
    "current_data",
    "data_state",
    "meet",
    "plan_recompute",
    "recomputable",
]

_ZONES, _RULES, _AT = "zone_data", "cron_rules", "recomputed_to"
DATA_KEYS = (_ZONES, _RULES, _AT)
"""The names under which a store keeps a ``DataState`` among its small facts."""
_DONE = "done"
_VERSION = re.compile(r"(\d{4})([a-z]*)", re.ASCII)


@attrs.frozen(kw_only=True)
class ScheduleData:
    """What fire times are computed from: zone data such as ``2026f``, and our own cron rules."""

    zones: str
    rules: int

    def older_than(self, other: ScheduleData) -> bool:
        """Whether either part is older. Zone data whose version nobody knows is oldest of all."""
        return _order(self.zones) < _order(other.zones) or self.rules < other.rules

    def remedy(self, seen: ScheduleData) -> str:
        """What to do where these are older than ``seen``."""
        what = "crontask" if self.rules < seen.rules else "the package tzdata"
        return f"Upgrade {what} here, then start this process again."

    def __str__(self) -> str:
        return f"zone data {self.zones}, cron rules {self.rules}"


def current_data() -> ScheduleData:
    """What this process computes with."""
    return ScheduleData(zones=tzdata_version(), rules=CRON_RULES_VERSION)


def _order(version: str) -> tuple[str, str]:
    match = _VERSION.fullmatch(version)
    return (match[1], match[2]) if match else ("", "")


@attrs.frozen(kw_only=True)
class DataState:
    """``seen``: the newest data the store was worked on with. ``after``: every task up to this id
    has its fire computed with it; None when all have. A store that never noted any has none."""

    seen: ScheduleData
    after: int | None = None

    def as_rows(self) -> Mapping[str, str]:
        """The state under ``DATA_KEYS``."""
        at = _DONE if self.after is None else str(self.after)
        return {_ZONES: self.seen.zones, _RULES: str(self.seen.rules), _AT: at}


def data_state(rows: Mapping[str, str] = MappingProxyType({})) -> DataState:
    """The state of a store, out of its small facts; whatever is missing is as old as can be."""
    rules, at = rows.get(_RULES, ""), rows.get(_AT, "")
    seen = ScheduleData(zones=rows.get(_ZONES, ""), rules=int(rules) if rules.isdigit() else 0)
    return DataState(seen=seen, after=None if at == _DONE else int(at) if at.isdigit() else 0)


def meet(state: DataState, mine: ScheduleData) -> DataState:
    """The state once a node with ``mine`` has come: newer data start the pages afresh, older and
    equal ones change nothing."""
    if mine.older_than(state.seen) or not state.seen.older_than(mine):
        return state
    return DataState(seen=mine, after=0)


def recomputable(task: Task, now: datetime) -> bool:
    """Whether the stored fire is one to compute again: of cron, and not due yet. What is due stays
    as it is: it was promised."""
    at = task.next_fire_time
    cron = task.schedule_type is ScheduleType.CRON and task.status is TaskStatus.ENABLED
    return cron and at is not None and at > now


def plan_recompute(tasks: Sequence[Task], now: datetime) -> Writes:
    """The tasks whose next fire is another one by the data of this process, moved to it.

    Forward only: never to ``now`` or before, and never to a fire that was planned already. The
    stored instant stays where the move would lose a fire: for a task that has none left, and where
    newer data put the fire it stands for into the past. A task that cannot be computed is left to
    its claim, which disables it with the reason.
    """
    writes = Writes()
    for task in tasks:
        if not recomputable(task, now):
            continue
        try:
            wanted = _recomputed(task, now)
        except Exception:  # noqa: BLE001 - one bad row never stops the others
            continue
        if wanted != task.next_fire_time:
            writes.set_task(task, evolve(task, next_fire_time=wanted, updated_at=now))
    return writes


def _recomputed(task: Task, now: datetime) -> datetime | None:
    promised, known = task.next_fire_time, task.last_fire_time or task.created_at
    wanted = next_fire(task, max(now, task.last_fire_time) if task.last_fire_time else now)
    if promised is None or wanted is None:
        return promised
    latest = latest_at_or_before(schedule_of(task), now)
    missed = latest is not None and latest > known and promised - latest < wanted - promised
    return promised if missed else wanted
