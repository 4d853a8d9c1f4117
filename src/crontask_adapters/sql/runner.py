"""How a piece of store work runs: as one transaction, off the event loop's way (DESIGN 2).

Work is a plain function of a SQLAlchemy ``Connection``. A runner begins, calls it, commits, and
turns what a driver raises into errors of ours. The whole work is repeated a few times when the
database rolled it back for a passing reason; never after a commit whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, StaticPool, create_engine, event, make_url

from crontask_adapters.sql.errors import repeats, translate
from crontask_core.errors import ConfigError, Unavailable

if TYPE_CHECKING:  # costs start-up time and is needed for MySQL alone
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = [
    "AsyncConnectionRunner",
    "ConnectionRunner",
    "MySqlRunner",
    "Runner",
    "SqliteRunner",
    "Work",
    "make_runner",
    "mysql_engine",
]

T = TypeVar("T")
Work = Callable[[Connection], T]
BUSY_MS = 5_000
TRIES = 3
CALL_SECONDS = 20.0
"""Longest one call may take on MySQL: a frozen server answers neither yes nor no."""

_SESSION = ", ".join(
    [
        "SET time_zone = '+00:00'",
        "innodb_lock_wait_timeout = 5",
        "lock_wait_timeout = 10",
        # A frozen node must not hold row locks for hours. Its transactions take milliseconds, so
        # MariaDB, which can tell, ends an idle one long before the node counts as dead: else
        # everyone who needs those rows, a take-over too, waits for it. MySQL reads a comment.
        "wait_timeout = 20 /*M!100300 , idle_transaction_timeout = 3 */",
        "sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
        "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
    ]
)


class Runner(Protocol):
    """Runs work. ``write`` may change things; ``read`` sees one state and changes nothing."""

    async def write(self, work: Work[T]) -> T: ...

    async def read(self, work: Work[T]) -> T: ...

    async def close(self) -> None: ...


def make_runner(url: str, pool_size: int = 20) -> SqliteRunner | MySqlRunner:
    """The runner for a ``store.url``. Raises ConfigError for a URL of another kind."""
    try:
        parsed = make_url(url)
    except Exception as error:
        raise ConfigError("store.url cannot be read", field="store.url") from error
    if parsed.get_backend_name() == "sqlite":
        return SqliteRunner(parsed)
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        _refuse_charset(parsed)
        return MySqlRunner(parsed, pool_size)
    raise ConfigError(
        f"store.url names {parsed.get_backend_name()}, which is not supported",
        field="store.url",
        hint="Use sqlite:///FILE or mysql+asyncmy://USER:PASSWORD@HOST/DATABASE.",
        example="sqlite:///crontask.db",
    )


def _refuse_charset(url: URL) -> None:
    charset = url.query.get("charset", "utf8mb4")
    if charset != "utf8mb4":
        raise ConfigError(
            f"store.url asks for the character set {charset}, which cannot hold every text",
            field="store.url",
            hint="Leave charset= out of it: utf8mb4 is used.",
        )


# -- SQLite ------------------------------------------------------------------------------------
class _Lane:
    """One thread with one connection. Whoever stops waiting leaves the work to end by itself: no
    cancelled call can leave the file locked."""

    def __init__(self, url: URL, name: str, begin: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"crontask-{name}")
        # The thread's only connection stays open as long as the thread.
        self._engine = _sqlite_engine(url, begin)
        self._path = "" if url.database in (None, ":memory:") else str(url.database)
        self._file: tuple[int, int] | None = None
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._unit, work)

    def _unit(self, work: Work[T]) -> T:
        for left in range(TRIES - 1, -1, -1):
            try:
                with self._engine.begin() as conn:
                    self._same_file()
                    return work(conn)
            except Exception as error:
                # Waiting for the lock has taken the busy time-out already.
                if not (left and repeats(error)):
                    raise translate(error) from error
        raise AssertionError("not reached")

    def _same_file(self) -> None:
        """A file that was deleted while open still takes writes, which nobody would ever read."""
        if not self._path or self._path.startswith("file:"):
            return
        try:
            status = os.stat(self._path)
            found = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            found = None
        if self._file is None:
            self._file = found
        if found is None or found != self._file:
            raise Unavailable(
                "the database file was deleted or replaced while crontask had it open",
                field="store.url",
                hint="Put the file back from a backup if it is needed, then restart crontask.",
                retryable=True,
            )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._pool, self._engine.dispose)
        self._pool.shutdown(wait=False)


def _sqlite_engine(url: URL, begin: str) -> Engine:
    engine = create_engine(
        url,
        poolclass=StaticPool,
        hide_parameters=True,
        connect_args={"isolation_level": None, "check_same_thread": False},
    )
    event.listen(engine, "connect", lambda dbapi, _: _prepare(dbapi))
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql(begin))
    return engine


def _prepare(dbapi: Any) -> None:
    dbapi.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    _write_ahead(dbapi)
    # The file must survive a power cut with every commit that was acknowledged.
    dbapi.execute("PRAGMA synchronous = FULL")
    dbapi.execute("PRAGMA cache_size = -16384")
    dbapi.execute("PRAGMA temp_store = MEMORY")


def _write_ahead(dbapi: Any) -> None:
    """Switch the file to WAL. Of several processes that do so at once only one succeeds, and the
    others are told "locked" without the usual wait: they wait by taking the write lock once."""
    for left in range(9, -1, -1):
        try:
            if dbapi.execute("PRAGMA journal_mode").fetchone()[0] in ("wal", "memory"):
                return
            dbapi.execute("PRAGMA journal_mode = WAL")
            return
        except dbapi.OperationalError as error:
            if not (left and repeats(error)):
                raise
            dbapi.execute("BEGIN IMMEDIATE")
            dbapi.execute("COMMIT")


class SqliteRunner:
    """A SQLite file: one writer thread under BEGIN IMMEDIATE, one reader thread beside it (WAL).

    Cancelling the await abandons only the wait. A database in memory has one thread for both.
    """

    def __init__(self, url: URL) -> None:
        self.url = url.set(drivername="sqlite")
        memory = url.database in (None, "", ":memory:")
        self._writer = _Lane(self.url, "write", "BEGIN IMMEDIATE")
        self._reader = self._writer if memory else _Lane(self.url, "read", "BEGIN")

    async def write(self, work: Work[T]) -> T:
        return await self._writer.run(work)

    async def read(self, work: Work[T]) -> T:
        return await self._reader.run(work)

    async def close(self) -> None:
        if self._reader is not self._writer:
            await self._reader.close()
        await self._writer.close()


# -- MySQL and MariaDB -------------------------------------------------------------------------
def mysql_engine(url: URL, *, pool_size: int = 20, session: str = _SESSION) -> AsyncEngine:
    """An engine on asyncmy with the session settings of DESIGN 5. ``pool_size`` 0: no pool.

    Prepared statements stay off: on MySQL they returned wrong data when types changed.
    """
    from sqlalchemy.ext.asyncio import create_async_engine

    # The driver hands every server warning to logging; ours would flood any log.
    logging.getLogger("asyncmy").setLevel(logging.ERROR)
    query = {"charset": "utf8mb4", **url.query}
    pool: dict[str, Any] = {"poolclass": NullPool}
    if pool_size:
        pool = {
            "pool_size": pool_size,
            "max_overflow": 0,
            "pool_timeout": 10,
            "pool_pre_ping": True,
            "pool_recycle": 1800,
            # Every unit commits or rolls back; a second ROLLBACK would be a round trip for nothing.
            "pool_reset_on_return": None,
        }
    return create_async_engine(
        url.set(drivername="mysql+asyncmy", query=query),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        connect_args={"init_command": session, "connect_timeout": 5},
        **pool,
    )


class MySqlRunner:
    """MySQL or MariaDB through asyncmy: READ COMMITTED, a pool, and a deadline on every call."""

    def __init__(
        self, url: URL, pool_size: int = 20, *, call_seconds: float = CALL_SECONDS
    ) -> None:
        self.url = url
        self.engine = mysql_engine(url, pool_size=pool_size)
        self._call_seconds = call_seconds

    async def write(self, work: Work[T]) -> T:
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._once(work)
            except Exception as error:
                if not (left and repeats(error)):
                    raise translate(error) from error
        raise AssertionError("not reached")

    async def read(self, work: Work[T]) -> T:
        return await self.write(work)

    async def _once(self, work: Work[T]) -> T:
        try:
            async with asyncio.timeout(self._call_seconds), self.engine.begin() as conn:
                return await conn.run_sync(work)
        except TimeoutError as error:
            raise Unavailable(
                f"the database did not answer within {self._call_seconds:g} s",
                hint="Check that the database of store.url is up and not overloaded.",
                retryable=True,
            ) from error

    async def close(self) -> None:
        await self.engine.dispose()


# -- a caller's own connection -----------------------------------------------------------------
class ConnectionRunner:
    """Works on a caller's own connection inside the caller's transaction: nothing is committed,
    nothing repeated. After an error the caller rolls back."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def write(self, work: Work[T]) -> T:
        try:
            return work(self._conn)
        except Exception as error:
            raise translate(error) from error

    async def read(self, work: Work[T]) -> T:
        return await self.write(work)

    async def close(self) -> None:
        """The connection is the caller's."""


class AsyncConnectionRunner:
    """``ConnectionRunner`` for an async connection."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def write(self, work: Work[T]) -> T:
        try:
            return await self._conn.run_sync(work)
        except Exception as error:
            raise translate(error) from error

    async def read(self, work: Work[T]) -> T:
        return await self.write(work)

    async def close(self) -> None:
        """The connection is the caller's."""
