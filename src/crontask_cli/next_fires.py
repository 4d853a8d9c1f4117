"""``crontask next``: fire times of a cron expression, without a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from crontask_cli.shell import Argument, Command, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_core.schedule import Schedule

__all__ = ["next_command"]


@click.command(
    "next",
    cls=Command,
    examples=[
        'crontask next "30 2 * * *" --timezone America/New_York --count 3',
        'crontask next "0 9 * * 1-5" --after 2026-03-07T00:00:00Z --json',
    ],
)
@click.argument("expr", cls=Argument, doc='Five-field cron, such as "0 9 * * 1-5".')
@click.option(
    "--timezone", "--tz", metavar="ZONE", help="IANA zone name (default: scheduler.timezone)."
)
@click.option("--after", metavar="ISO", help="Start after this instant (default: now).")
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many."
)
@pass_shell
def next_command(
    shell: Shell, expr: str, timezone: str | None, after: str | None, count: int
) -> None:
    """Print the next fire times of a cron expression.

    One ISO instant a line, in the zone, with its offset; with --json one list of UTC instants. On
    standard error: warnings where it may not be what was meant, on a terminal also the words of it.
    No store is opened; settings are read only for the zone when none is given. A CRON_TZ= in the
    expression comes before --timezone. Exits 2 with the reason when the expression is wrong.
    """
    from crontask_adapters.clock import utcnow
    from crontask_core.schedule import Cron, fires_after, parse_cron, parse_instant, parse_zone

    now = utcnow()
    shown = parse_zone(timezone) if timezone else shell.settings.scheduler.timezone
    schedule = parse_cron(expr, None, shown, anchor=now)
    if isinstance(schedule, Cron) and schedule.zone != shown:
        if timezone:
            click.echo(f"warning: the expression is in {schedule.zone}, not {shown}", err=True)
        shown = schedule.zone
    start = now
    notes: tuple[str, ...] = ()
    if after is not None:
        start, notes = parse_instant(after, shown, now, "after")
        schedule = parse_cron(expr, None, shown, anchor=start)
    _remark(shell, schedule, shown, start, notes)
    _show(shell, fires_after(schedule, start, count), shown)


def _remark(
    shell: Shell, schedule: Schedule, shown: str, start: datetime, notes: Sequence[str]
) -> None:
    from crontask_core.schedule import explain, schedule_warnings

    if not shell.as_json and sys.stderr.isatty():
        click.echo(f"fires {explain(schedule, shown)}", err=True)
    for note in (*notes, *schedule_warnings(schedule, start)):
        click.echo(f"warning: {note}", err=True)


def _show(shell: Shell, fires: Sequence[datetime], shown: str) -> None:
    from crontask_core.schedule import zone

    if shell.as_json:
        click.echo(json.dumps([fire.isoformat() for fire in fires]))
        return
    for fire in fires:
        click.echo(fire.astimezone(zone(shown)).isoformat())
