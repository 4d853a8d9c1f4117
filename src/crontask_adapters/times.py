"""How instants and spans are shown: local with offset, UTC, and in words (X-S2, A4.2b)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from crontask_core.errors import CrontaskError
from crontask_core.schedule import zone as load_zone

__all__ = ["both", "local", "moment", "relative", "span", "utc"]


def local(at: datetime, zone: str) -> str:
    """ISO 8601 in ``zone`` with its offset; milliseconds only where there are any."""
    return at.astimezone(_zone(zone)).isoformat(timespec=_precision(at))


def utc(at: datetime) -> str:
    """ISO 8601 in UTC, ending in ``Z``."""
    text = at.astimezone(UTC).isoformat(timespec=_precision(at))
    return text.removesuffix("+00:00") + "Z"


def moment(at: datetime, zone: str, now: datetime) -> dict[str, str]:
    """``{"local", "utc", "in"}``: a coming instant in every way a reader may need it."""
    return {**both(at, zone), "in": relative(at, now)}


def both(at: datetime, zone: str) -> dict[str, str]:
    """``{"local", "utc"}``."""
    return {"local": local(at, zone), "utc": utc(at)}


def relative(at: datetime, now: datetime) -> str:
    """``in 3 min``, ``now``, ``5 s ago``."""
    away = at - now
    if abs(away) < timedelta(milliseconds=500):
        return "now"
    return f"in {span(away)}" if away > timedelta(0) else f"{span(-away)} ago"


def span(length: timedelta) -> str:
    """A span in its largest useful units: ``45 s``, ``3 min``, ``2 h 5 min``, ``12 days``."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 99.5:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        hours, rest = divmod(minutes, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{round(seconds / 86_400)} days"


def _precision(at: datetime) -> str:
    return "milliseconds" if at.microsecond else "seconds"


def _zone(name: str) -> tzinfo:
    # A stored zone may have left the zone data since; its task must still be shown.
    try:
        return load_zone(name)
    except CrontaskError:
        return UTC
