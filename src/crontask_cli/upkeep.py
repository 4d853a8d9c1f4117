"""What an operator looks after: db, nodes, config."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from crontask_cli.render import View, emit, table, tell
from crontask_cli.shell import Command, Group, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_adapters.sql.upgrade import SchemaState
    from crontask_adapters.wiring import App
    from crontask_core.model import NodeRow

__all__ = ["config_command", "db_command", "nodes_command"]

_FRESH = timedelta(seconds=15)


@click.command("nodes", cls=Command, examples=["crontask nodes", "crontask nodes --all --json"])
@click.option("--all", "retired", is_flag=True, help="Also those that have ended.")
@pass_shell
def nodes_command(shell: Shell, retired: bool) -> None:
    """List the nodes that share the store.

    A node is one process; "seen" is its last heartbeat. State: alive; silent (no heartbeat for
    long: others will retire it, if there are any); ended.
    """

    async def use(app: App) -> tuple[list[NodeRow], datetime]:
        return await app.repo.nodes(retired=retired), (await app.repo.horizon()).now

    rows, now = shell.with_app(use)
    settings = shell.settings
    fresh = now - max(settings.scheduler.node_timeout, _FRESH)
    nodes = [_node(row, now, fresh, settings.scheduler.timezone) for row in rows]
    alive = [node for node in nodes if node["state"] == "alive"]
    fire = sum("scheduler" in node["roles"] for node in alive)
    count = f"{len(alive)} node{'' if len(alive) == 1 else 's'} alive, {fire} of them fire."
    view = {"message": count, "alive": len(alive), "firing": fire, "nodes": nodes}
    # A node that was killed and started again under its old name is seen twice for a moment.
    beating = now - 3 * settings.scheduler.heartbeat
    names = [row.node_id for row in rows if not row.retired_at and row.seen_at > beating]
    emit(shell, {**view, "warnings": _node_warnings(names)}, _show_nodes)


def _node_warnings(names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    return [
        f"{names.count(name)} live processes have the node id {name}: harmless, but nobody can "
        "tell them apart (scheduler.node_id)"
        for name in twice
    ]


def _node(row: NodeRow, now: datetime, fresh: datetime, zone: str) -> dict[str, Any]:
    from crontask_adapters.times import local, relative

    state = "ended" if row.retired_at else "alive" if row.seen_at > fresh else "silent"
    return {
        "node_id": row.node_id,
        "incarnation": row.incarnation,
        "state": state,
        "roles": row.roles.split(","),
        "version": row.version,
        "started_at": local(row.started_at, zone),
        "seen_at": local(row.seen_at, zone),
        "seen": relative(row.seen_at, now),
        "retired_at": local(row.retired_at, zone) if row.retired_at else None,
    }


def _show_nodes(view: View) -> None:
    heads = ("NODE", "STATE", "ROLES", "VERSION", "STARTED", "SEEN", "ENDED")
    table(
        heads,
        [
            [
                row["node_id"],
                row["state"],
                ", ".join(row["roles"]),
                row["version"],
                row["started_at"],
                row["seen"],
                row["retired_at"],
            ]
            for row in view["nodes"]
        ],
    )
    tell(view)


@click.command(
    "config",
    cls=Command,
    examples=["crontask config", "crontask config --changed -o scheduler.timezone=Europe/Berlin"],
)
@click.option("--changed", is_flag=True, help="Only those that differ from the default.")
@click.option("--explain", is_flag=True, help="With default and meaning of each.")
@pass_shell
def config_command(shell: Shell, changed: bool, explain: bool) -> None:
    """Show each setting, its value and where it came from.

    Secrets are masked. Later sources win: default, file, CRONTASK_* environment, option.
    """
    from crontask_adapters.settings_load import describe

    loaded = shell.loaded()
    rows = [
        row._asdict()
        for row in describe(loaded.settings, loaded.origins)
        if not changed or row.origin != "default"
    ]
    view = {"file": str(loaded.file) if loaded.file else None, "settings": rows}

    def show(view: View) -> None:
        names = ["key", "value", "origin", *(["default", "help"] if explain else [])]
        table([name.upper() for name in names], [[row[n] for n in names] for row in rows])
        click.echo(f"file: {view['file'] or 'none'}")

    emit(shell, view, show)


@click.group("db", cls=Group, examples=["crontask db check", "crontask db upgrade"])
def db_command() -> None:
    """Look after the database.

    SQLite upgrades itself when a server starts; MySQL and MariaDB only by "db upgrade".
    """


@db_command.command(
    "upgrade", examples=["crontask db upgrade", "crontask db upgrade --sql > schema.sql"]
)
@click.option("--sql", is_flag=True, help="Print the statements for an empty database; run none.")
@pass_shell
def upgrade_command(shell: Shell, sql: bool) -> None:
    """Bring the tables to this version.

    Safe to repeat, and from many places at once.
    """
    from crontask_adapters.sql import upgrade

    url = shell.for_store().store.url
    if sql:
        click.echo(upgrade.offline_sql(url))
        return
    emit(shell, _schema(asyncio.run(upgrade.upgrade(url))), tell)


@db_command.command("check", examples=["crontask db check"])
@pass_shell
def check_command(shell: Shell) -> None:
    """Say whether the tables fit this version.

    Changes nothing. Exits 5 with the remedy when they do not fit.
    """
    from crontask_adapters.sql import drift, upgrade

    url = shell.for_store().store.url
    state = asyncio.run(upgrade.check(url))
    if state.problem is not None:
        raise state.problem
    view = _schema(state)
    # A newer schema differs, and has said so.
    if state.current:
        found = asyncio.run(drift.drift(url))
        if found.problem is not None:
            raise found.problem
        view["warnings"] += [f"not made by crontask: {what}" for what in found.extra]
    emit(shell, view, tell)


def _schema(state: SchemaState) -> dict[str, Any]:
    return {
        "message": f"The tables fit this version (schema {state.revision}).",
        "revision": state.revision,
        "head": state.head,
        "warnings": [state.warning] if state.warning else [],
    }


@db_command.command("prune", examples=["crontask db prune"])
@pass_shell
def prune_command(shell: Shell) -> None:
    """Delete what retention no longer keeps.

    Ended executions and completed or deleted tasks, by retention.*; a node does it nightly too.
    """

    async def use(app: App) -> int:
        return await app.prune()

    count = shell.with_app(use)
    emit(shell, {"message": f"{count} rows deleted.", "deleted": count}, tell)
