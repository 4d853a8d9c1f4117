"""``crontask doctor``: what is wrong with this installation, and the remedy."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import click

from crontask_cli.render import View, clean, emit
from crontask_cli.shell import Command, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_adapters.settings import Settings
    from crontask_adapters.wiring import App
    from crontask_core.answers import Info

__all__ = ["doctor_command"]

_CONNECT_SECONDS = 3.0
_CLOCK_TOLERANCE = timedelta(seconds=2)
_LATE = timedelta(seconds=60)


@attrs.frozen
class Check:
    """``state`` is ok, warn (works, but look at it) or bad (does not work)."""

    name: str
    state: str
    found: str
    remedy: str = ""


@click.command("doctor", cls=Command, examples=["crontask doctor", "crontask doctor --json"])
@pass_shell
def doctor_command(shell: Shell) -> None:
    """Say what is wrong with this installation, and the remedy.

    Looks at settings, store, tables, nodes, the agent's address, zone data and clocks. Exits 1
    when something does not work.
    """
    checks = _settings_checks(shell)
    if not any(check.state == "bad" for check in checks):
        checks += _app_checks(shell)
    bad = sum(check.state == "bad" for check in checks)
    message = f"{bad} of {len(checks)} checks failed." if bad else "Nothing is wrong."
    view = {"message": message, "checks": [attrs.asdict(check) for check in checks]}
    emit(shell, {**view, "ok": not bad}, _show)
    if bad:
        sys.exit(1)


def _show(view: View) -> None:
    for check in view["checks"]:
        click.echo(f"{check['state']:<5} {check['name']:<15} {clean(check['found'])}")
        if check["remedy"]:
            click.echo(f"{'':<21} -> {clean(check['remedy'])}")
    click.echo(view["message"])


def _settings_checks(shell: Shell) -> list[Check]:
    from crontask_core.errors import ConfigError

    try:
        loaded = shell.loaded()
    except ConfigError as error:
        remedy = error.hint or "Correct them; crontask config shows what is read."
        return [Check("settings", "bad", error.message, remedy)]
    found = f"read from {loaded.file}" if loaded.file else "no file; defaults and environment"
    return [Check("settings", "ok", found)]


def _app_checks(shell: Shell) -> list[Check]:
    from crontask_core.errors import CrontaskError

    async def use(app: App) -> list[Check]:
        info = await app.tasks.info()
        return [
            Check("store", "ok", _store_name(app.settings)),
            _tables_check(app),
            _node_check(info),
            *_namesake_checks(info, 3 * app.settings.scheduler.heartbeat),
            *await _redis_checks(app),
            _overdue_check(info),
            *await _callback_checks(app.settings),
            await _zone_check(app),
            _clock_check(info),
            *await _batch_checks(app),
        ]

    try:
        return shell.with_app(use)
    except CrontaskError as error:
        name = "tables" if error.code == "SCHEMA_MISMATCH" else "store"
        return [Check(name, "bad", error.message, error.hint)]


async def _batch_checks(app: App) -> list[Check]:
    from crontask_cli.batch_checks import batch_checks

    return await batch_checks(app)


def _store_name(settings: Settings) -> str:
    from crontask_adapters.settings import specs
    from crontask_adapters.settings_fields import show

    return show(dict(specs())["store.url"], settings.store.url)


def _tables_check(app: App) -> Check:
    state = app.repo.schema
    if state is not None and state.warning:
        return Check("tables", "warn", state.warning)
    return Check("tables", "ok", "fit this version")


def _namesake_checks(info: Info, beating: timedelta) -> list[Check]:
    # A node that was killed and started again under its old name is seen twice for a moment.
    names = [node.node_id for node in info.nodes if info.now - node.seen_at < beating]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not twice:
        return []
    found = f"several processes have one: {', '.join(twice)}; nothing is fired twice"
    remedy = "Leave scheduler.node_id unset, or give each process its own, to tell them apart."
    return [Check("node ids", "warn", found, remedy)]


async def _redis_checks(app: App) -> list[Check]:
    from crontask_core.errors import ConfigError

    try:
        lost = await app.check_redis()
    except ConfigError as error:
        return [Check("redis", "bad", error.message, error.hint)]
    if lost is None:
        return []
    if lost:
        remedy = "Start it, or correct redis.url. Until then nodes wake each other by polling."
        return [Check("redis", "warn", f"cannot be used now: {lost}", remedy)]
    return [Check("redis", "ok", "carries wake-up hints")]


def _node_check(info: Info) -> Check:
    if info.alive:
        count = sum("scheduler" in node.roles for node in info.nodes)
        return Check("live node", "ok", f"{count} node{'' if count == 1 else 's'} alive")
    remedy = "Start one: crontask serve, or crontask worker."
    return Check("live node", "bad", "no live node: no task is fired", remedy)


def _overdue_check(info: Info) -> Check:
    from crontask_adapters.times import span

    late = info.now - info.oldest_due if info.oldest_due else timedelta(0)
    if late <= _LATE:
        return Check("due tasks", "ok", "none waits to be claimed")
    remedy = "See crontask nodes and the log of the nodes: none of them claims."
    return Check("due tasks", "bad", f"the oldest has waited {span(late)}", remedy)


async def _callback_checks(settings: Settings) -> list[Check]:
    url = settings.executor.default_callback_url
    if not url:
        return [
            Check(
                "callback url",
                "warn",
                "executor.default_callback_url is not set: only tasks with their own address "
                "can be created",
                "Set CRONTASK_EXECUTOR_DEFAULT_CALLBACK_URL=http://HOST:PORT/v1/task/execute; "
                "to try it out run: crontask agent",
            )
        ]
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no answer within {_CONNECT_SECONDS:g} s"
        remedy = "Start the agent, or correct executor.default_callback_url."
        return [Check("callback url", "bad", f"{host}:{port} cannot be reached: {why}", remedy)]
    return [Check("callback url", "ok", f"{host}:{port} takes connections")]


async def _zone_check(app: App) -> Check:
    mine, state = app.tasks.data, await app.repo.data_state()
    if mine.older_than(state.seen):
        found = f"{mine.zones} with cron rules {mine.rules}; nothing is claimed here, since the "
        found += f"store has seen {state.seen.zones or 'none'} with cron rules {state.seen.rules}"
        return Check("zone data", "bad", found, mine.remedy(state.seen))
    found = f"{mine.zones} with cron rules {mine.rules}"
    if state.seen.older_than(mine) or state.after is not None:
        return Check("zone data", "ok", f"{found}; stored fires are compared with it by the nodes")
    return Check("zone data", "ok", found)


def _clock_check(info: Info) -> Check:
    from crontask_adapters.clock import utcnow

    apart = (info.now - utcnow()).total_seconds()
    if abs(apart) <= _CLOCK_TOLERANCE.total_seconds():
        return Check("clock", "ok", "this host and the database agree within 2 s")
    found = f"the database's clock is {apart:+.1f} s from this host's"
    return Check("clock", "warn", found, "Run NTP on both. Fires go by the database's clock.")
