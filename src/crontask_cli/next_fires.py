"""``crontask next``: fire times of a cron expression, without a store."""

from __future__ import annotations

import json

import click

from crontask_cli.shell import Argument, Command, Shell, pass_shell

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

    One ISO instant a line, in the zone, with its offset; with --json one list of UTC instants. No
    store is opened; settings are read only for the zone when none is given. A CRON_TZ= in the
    expression comes before --timezone. Exits 2 with the reason when the expression is wrong.
    """
    from crontask_adapters.clock import utcnow
    from crontask_core.schedule import Cron, fires_after, parse_cron, parse_instant, parse_zone
    from crontask_core.schedule import zone as load_zone

    now = utcnow()
    shown = parse_zone(timezone) if timezone else shell.settings.scheduler.timezone
    schedule = parse_cron(expr, None, shown, anchor=now)
    if isinstance(schedule, Cron) and schedule.zone != shown:
        if timezone:
            click.echo(f"warning: the expression is in {schedule.zone}, not {shown}", err=True)
        shown = schedule.zone
    start = now
    if after is not None:
        start, _ = parse_instant(after, shown, now, "after")
        schedule = parse_cron(expr, None, shown, anchor=start)
    fires = fires_after(schedule, start, count)
    if shell.as_json:
        click.echo(json.dumps([fire.isoformat() for fire in fires]))
        return
    zone = load_zone(shown)
    for fire in fires:
        click.echo(fire.astimezone(zone).isoformat())
