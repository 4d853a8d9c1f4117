"""Whether a database server will do: its version, and how it stores our texts (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.engine import Dialect

from crontask_adapters.sql import schema
from crontask_adapters.sql.types import on_mysql
from crontask_core.errors import Unavailable

__all__ = ["texts_of", "too_old", "version_problem"]

_LEAST = {False: (8, 0, 1), True: (10, 6)}
"""The oldest version that will do, by whether the server is a MariaDB."""

_RECODED = text(
    "SELECT DISTINCT table_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name IN :ours "
    "AND collation_name IS NOT NULL AND collation_name <> 'utf8mb4_bin'"
).bindparams(bindparam("ours", expanding=True))


def too_old(dialect: Dialect) -> Unavailable | None:
    """Why this connected server cannot be used; None when it can."""
    if not on_mysql(dialect):
        return None
    maria = bool(getattr(dialect, "is_mariadb", False))
    return version_problem(maria, dialect.server_version_info or ())


def version_problem(maria: bool, version: Sequence[object]) -> Unavailable | None:
    """The rule on versions: MySQL from 8.0.1, MariaDB from 10.6; one that cannot be read will do.

    >>> version_problem(False, (5, 7, 44)).message
    'the database server is MySQL 5.7.44, which is too old'
    """
    numbers = tuple(n for n in version if isinstance(n, int))
    if not numbers or numbers >= _LEAST[maria]:
        return None
    name = "MariaDB" if maria else "MySQL"
    return Unavailable(
        f"the database server is {name} {'.'.join(map(str, numbers))}, which is too old",
        field="store.url",
        hint="Point store.url at MySQL 8.0.1 or later, or at MariaDB 10.6 or later.",
    )


def texts_of(conn: Connection, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """(character set of new tables, tables of ours whose texts are not compared by bytes)."""
    if not on_mysql(conn.dialect):
        return "", ()
    charset = str(conn.exec_driver_sql("SELECT @@character_set_database").scalar_one())
    ours = sorted(set(names) & set(schema.TABLES))
    if not ours:
        return charset, ()
    return charset, tuple(sorted(conn.execute(_RECODED, {"ours": ours}).scalars()))
