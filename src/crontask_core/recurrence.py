"""When a schedule fires: pure arithmetic on aware UTC instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from crontask_core.cron import Rule
from crontask_core.expressions import parse_fields
from crontask_core.kinds import Cron, Every, Once, Schedule
from crontask_core.wall import first_fire_after, last_fire_until, next_day

__all__ = ["count_between", "fires_after", "latest_at_or_before", "next_after", "shortest_gap"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FAR = timedelta(days=730)


def next_after(schedule: Schedule, t: datetime) -> datetime | None:
    """The least fire later than ``t``, None when there is none (`X-S3`, `X-S4`, `X-S5`).

    Nothing fires after 9999-12-29. Raises InvalidInput for a ``Cron`` that was not made by
    ``parse_cron`` and cannot be read.
    """
    if isinstance(schedule, Cron):
        found = first_fire_after(parse_fields(schedule.expr), schedule.zone, _floor(t))
        return None if found is None else _instant(found)
    if isinstance(schedule, Once):
        return schedule.at if schedule.at > t else None
    return _multiple(schedule, max((t - schedule.anchor) // schedule.interval, 0) + 1)


def latest_at_or_before(schedule: Schedule, t: datetime) -> datetime | None:
    """The greatest fire not later than ``t``, None when there is none: ``next_after`` mirrored."""
    if isinstance(schedule, Cron):
        found = last_fire_until(parse_fields(schedule.expr), schedule.zone, _floor(t))
        return None if found is None else _instant(found)
    if isinstance(schedule, Once):
        return schedule.at if schedule.at <= t else None
    times = (t - schedule.anchor) // schedule.interval
    return _multiple(schedule, times) if times >= 1 else None


def count_between(schedule: Schedule, after: datetime, until: datetime, limit: int) -> int:
    """How many fires lie in (after, until]: exact up to ``limit``, else ``limit + 1``.

    The cost grows with ``limit``, never with the span.
    """
    if isinstance(schedule, Every):
        low = max((after - schedule.anchor) // schedule.interval, 0)
        high = max((until - schedule.anchor) // schedule.interval, 0)
        return min(max(high - low, 0), limit + 1)
    count = 0
    fire = next_after(schedule, after)
    while fire is not None and fire <= until and count <= limit:
        count += 1
        fire = next_after(schedule, fire)
    return count


def fires_after(schedule: Schedule, t: datetime, count: int) -> list[datetime]:
    """The next fires later than ``t``, ascending: ``count`` of them, or as many as there are."""
    fires: list[datetime] = []
    fire = next_after(schedule, t)
    while fire is not None and len(fires) < count:
        fires.append(fire)
        fire = next_after(schedule, fire)
    return fires


def shortest_gap(schedule: Schedule, t: datetime, sample: int = 100) -> timedelta | None:
    """The shortest time between two consecutive fires after ``t``; None with fewer than two.

    Looks at ``sample`` real fires, or fewer where they span years, and for cron also at the closest
    two times of one day, so a cluster does not escape by being far off (`X-T3`).
    """
    if isinstance(schedule, Every):
        return schedule.interval
    fires = _sample(schedule, t, sample)
    gaps = [later - earlier for earlier, later in pairwise(fires)]
    if gaps and isinstance(schedule, Cron):
        gaps += _gaps_by_the_clock(parse_fields(schedule.expr), fires[0])
    return min(gaps, default=None)


def _sample(schedule: Schedule, t: datetime, count: int) -> list[datetime]:
    """The next fires, ``count`` of them; no more than three once they are over two years away."""
    fires: list[datetime] = []
    fire = next_after(schedule, t)
    while fire is not None and len(fires) < count:
        fires.append(fire)
        if len(fires) >= 3 and fire - fires[0] > _FAR:
            break
        fire = next_after(schedule, fire)
    return fires


def _gaps_by_the_clock(rule: Rule, start: datetime) -> list[timedelta]:
    """Gaps within a matching day, and over midnight when two such days ever adjoin."""
    times = [hour * 60 + minute for hour in rule.hours for minute in rule.minutes]
    within = min((b - a for a, b in pairwise(times)), default=1440)
    over_midnight = times[0] + 1440 - times[-1]
    gaps = [within] if len(times) > 1 else []
    if over_midnight < within and _days_adjoin(rule, _floor(start) // 86_400):
        gaps.append(over_midnight)
    return [timedelta(minutes=gap) for gap in gaps]


def _days_adjoin(rule: Rule, day: int, tries: int = 1500) -> bool:
    found = next_day(rule, day)
    for _ in range(tries):
        if found is None:
            return False
        following = next_day(rule, found + 1)
        if following == found + 1:
            return True
        found = following
    return False


def _multiple(schedule: Every, times: int) -> datetime | None:
    try:
        return schedule.anchor + times * schedule.interval
    except OverflowError:
        return None


def _floor(t: datetime) -> int:
    return (t - _EPOCH) // _SECOND


def _instant(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)
