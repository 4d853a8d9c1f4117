"""The three kinds of schedule, as plain frozen values."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from crontask_core.errors import InvalidInput

__all__ = ["Cron", "Every", "Once", "Schedule"]


@attrs.frozen
class Once:
    """One fire at ``at``, an aware UTC instant (`A2.1a`)."""

    at: datetime


@attrs.frozen
class Cron:
    """Fires by the calendar of ``zone``.

    ``expr`` is normalised: trimmed, fields one blank apart, no ``CRON_TZ=`` prefix. ``zone`` is an
    IANA name. Made by ``parse_cron``; a value made by hand is checked when it is first used
    (`X-S1`, `X-S2`).
    """

    expr: str
    zone: str


@attrs.frozen
class Every:
    """Fires at ``anchor + k * interval`` for k = 1, 2, 3 ...: the phase never drifts (`X-S5`).

    ``interval`` is greater than zero (InvalidInput otherwise), ``anchor`` an aware UTC instant.
    """

    interval: timedelta = attrs.field()
    anchor: datetime

    @interval.validator
    def _is_positive(self, _attribute: object, value: timedelta) -> None:
        if value <= timedelta(0):
            raise InvalidInput(
                "an interval must be longer than zero",
                field="interval_seconds",
                received=str(value),
                hint="give the seconds between two fires",
                example="3600",
            )


Schedule = Once | Cron | Every
