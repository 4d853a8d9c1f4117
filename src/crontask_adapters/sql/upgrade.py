"""The schema's life: what state it is in, and bringing it up to date (DESIGN 5).

Alembic is imported only where a revision is really run: it takes a second, and a store that is up
to date is opened by comparing one string. MySQL upgrades run under a server-wide named lock, SQLite
under the file's write lock, so any number of processes may try at once.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import attrs
from sqlalchemy import Connection, column, inspect, make_url, select, table

from crontask_adapters.sql import schema
from crontask_adapters.sql.errors import translate
from crontask_adapters.sql.fitness import texts_of, too_old
from crontask_adapters.sql.runner import SqliteRunner, Work, make_runner, mysql_engine
from crontask_core.errors import Unavailable

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "SchemaState",
    "check",
    "offline_sql",
    "ready_state",
    "state_of",
    "upgrade",
    "upgrade_in_place",
]

_KNOWN = ("0001", "0002")
"""Every revision this code knows, oldest first."""
_LOCK = "crontask:schema"
_LOCK_SECONDS = 60
_UPGRADE = "crontask db upgrade"


@attrs.frozen(kw_only=True)
class SchemaState:
    """What the database has. ``revision`` "" : nothing of ours. ``min_code``: the least code level
    that may work on it. ``foreign``: tables of our names that crontask did not make."""

    revision: str = ""
    head: str = schema.HEAD
    min_code: int = 0
    foreign: tuple[str, ...] = ()
    charset: str = ""
    recoded: tuple[str, ...] = ()

    @property
    def current(self) -> bool:
        """The revision is the newest this code knows."""
        return self.revision == self.head

    @property
    def newer(self) -> bool:
        """Made by a later version of crontask."""
        return bool(self.revision) and self.revision not in _KNOWN

    @property
    def warning(self) -> str:
        """What an operator should know although the store can be used; "" for nothing."""
        told = []
        if self.newer:
            told.append(
                f"the database schema ({self.revision}) is newer than this crontask "
                f"({self.head}); it can be used, but upgrade crontask soon"
            )
        if self.charset not in ("", "utf8mb4"):
            told.append(
                f"the database of store.url makes new tables in {self.charset}; crontask's own are "
                "utf8mb4 all the same (to change it: ALTER DATABASE NAME CHARACTER SET utf8mb4)"
            )
        return "; ".join(told)

    @property
    def problem(self) -> Unavailable | None:
        """Why the store cannot be used as it is, with the remedy; None when it can."""
        if self.foreign:
            return _mismatch(
                f"the database has {', '.join(self.foreign)}, which crontask did not make",
                "Use an empty database in store.url, or rename those tables.",
            )
        if self.min_code > schema.SCHEMA_CODE:
            return _mismatch(
                f"the database schema needs crontask of level {self.min_code}, "
                f"this is level {schema.SCHEMA_CODE}",
                "Upgrade crontask on this machine.",
            )
        if not self.current and not self.newer:
            have = self.revision or "no tables of crontask"
            return _mismatch(
                f"the database has {have}, this version needs schema {self.head}",
                f"Run `{_UPGRADE}`; or correct store.url, if that is not the database meant.",
                _UPGRADE,
            )
        if self.recoded:
            first = self.recoded[0]
            return _mismatch(
                f"texts in {', '.join(self.recoded)} are not stored as utf8mb4_bin: some would be "
                "lost, and keys would no longer be compared by bytes",
                "Change each of these tables of store.url back, with the nodes stopped; then "
                "`crontask db check` names columns that were widened on the way.",
                f"ALTER TABLE {first} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            )
        return None


def _mismatch(message: str, hint: str, example: str = "") -> Unavailable:
    return Unavailable(message, code="SCHEMA_MISMATCH", hint=hint, example=example)


# -- for a store that is open ------------------------------------------------------------------
def state_of(conn: Connection) -> SchemaState:
    """Look at the schema, changing nothing. Raises Unavailable for a server that is too old."""
    old = too_old(conn.dialect)
    if old is not None:
        raise old
    names = set(inspect(conn).get_table_names())
    charset, recoded = texts_of(conn, names)
    if schema.VERSION_TABLE not in names:
        foreign = tuple(sorted(names & set(schema.TABLES)))
        return SchemaState(foreign=foreign, charset=charset)
    versions = table(schema.VERSION_TABLE, column("version_num"))
    revision = conn.execute(select(versions.c.version_num)).scalar_one_or_none() or ""
    level = 0
    if schema.meta.name in names:
        query = select(schema.meta.c.value).where(schema.meta.c.name == "min_code")
        level = int(conn.execute(query).scalar_one_or_none() or 0)
    return SchemaState(revision=str(revision), min_code=level, charset=charset, recoded=recoded)


def ready_state(conn: Connection) -> SchemaState:
    """The state of a schema that can be used. Raises Unavailable (SCHEMA_MISMATCH) otherwise."""
    state = state_of(conn)
    if state.problem is not None:
        raise state.problem
    return state


def upgrade_in_place(conn: Connection) -> SchemaState:
    """Bring the schema up to date on this connection, inside its transaction."""
    state = state_of(conn)
    if state.foreign or state.newer or state.min_code > schema.SCHEMA_CODE:
        return ready_state(conn)
    if not state.current:
        _run(_config(conn), sql=False)
    return ready_state(conn)


# -- for the command line ----------------------------------------------------------------------
async def check(url: str) -> SchemaState:
    """What state the schema of ``store.url`` is in; changes nothing but makes a SQLite file."""
    runner = make_runner(url, pool_size=1)
    try:
        return await runner.read(state_of)
    finally:
        await runner.close()


async def upgrade(url: str) -> SchemaState:
    """Make or upgrade the schema of ``store.url``. Safe to repeat, and from many places at once.

    Raises Unavailable: SCHEMA_MISMATCH for tables that are not ours or a schema too new,
    STORE_UNAVAILABLE otherwise.
    """
    runner = make_runner(url, pool_size=1)
    try:
        if isinstance(runner, SqliteRunner):
            return await runner.write(upgrade_in_place)
    finally:
        await runner.close()
    # No deadline and no short session time-outs: a big table takes its time.
    engine = mysql_engine(make_url(url), pool_size=0, session="SET time_zone = '+00:00'")
    try:
        async with engine.connect() as conn:
            return await conn.run_sync(_locked(upgrade_in_place))
    except Exception as error:
        raise translate(error) from error
    finally:
        await engine.dispose()


def _locked(work: Work[SchemaState]) -> Work[SchemaState]:
    """The work under the server-wide lock of schema changes, committed."""

    def run(conn: Connection) -> SchemaState:
        name = f"{_LOCK}:{conn.engine.url.database}"[:64]
        got = conn.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (name, _LOCK_SECONDS)).scalar()
        if got != 1:
            raise Unavailable(
                f"another process has been changing the schema for {_LOCK_SECONDS} s",
                hint="Wait for it, then try again.",
                retryable=True,
            )
        try:
            state = work(conn)
            conn.commit()
            return state
        finally:
            conn.exec_driver_sql("SELECT RELEASE_LOCK(%s)", (name,))

    return run


def offline_sql(url: str) -> str:
    """The statements that make the schema on an empty database of this kind, for a database
    administrator to run. Nothing is connected to."""
    out = io.StringIO()
    config = _config(None, out)
    config.attributes["dialect"] = "mysql" if "sqlite" not in make_url(url).drivername else "sqlite"
    _run(config, sql=True)
    return out.getvalue()


def _config(conn: Connection | None, out: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=out)
    config.set_main_option("script_location", "crontask_adapters.sql:migrations")
    config.attributes["connection"] = conn
    return config


def _run(config: Config, *, sql: bool) -> None:
    from alembic import command

    command.upgrade(config, "head", sql=sql)
