"""Schedules: once, by cron, or every so often. Pure arithmetic on instants.

A schedule is a plain frozen value; everything else is a function of it. All datetimes in and out
are aware UTC. What an expression means is stated in ``docs/reference/cron.md``; the rules are
`X-S1` to `X-S8`.

    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 3, 7, 17, tzinfo=UTC)
    >>> daily = parse_cron("30 2 * * *", "America/New_York", "UTC", anchor=now)
    >>> next_after(daily, now).isoformat()  # 02:30 falls into a clock change: 03:00 local
    '2026-03-08T07:00:00+00:00'
"""

from __future__ import annotations

from crontask_core.cron import CRON_RULES_VERSION
from crontask_core.expressions import parse_cron
from crontask_core.instants import parse_duration, parse_instant
from crontask_core.kinds import Cron, Every, Once, Schedule
from crontask_core.recurrence import (
    count_between,
    fires_after,
    latest_at_or_before,
    next_after,
    shortest_gap,
)
from crontask_core.wording import explain, schedule_warnings
from crontask_core.zones import parse_zone, tzdata_version, zone

__all__ = [
    "CRON_RULES_VERSION",
    "Cron",
    "Every",
    "Once",
    "Schedule",
    "count_between",
    "explain",
    "fires_after",
    "latest_at_or_before",
    "next_after",
    "parse_cron",
    "parse_duration",
    "parse_instant",
    "parse_zone",
    "schedule_warnings",
    "shortest_gap",
    "tzdata_version",
    "zone",
]
