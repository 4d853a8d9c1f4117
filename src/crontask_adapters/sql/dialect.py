"""What the databases do differently, and nothing else (DESIGN 5).

Statements that write many rows are built here as text from column names of our own schema, because
their speed is the speed of the whole: one statement for the batch, values bound, types converted by
the columns. No RETURNING (MySQL has none) and no INSERT IGNORE (it cuts values without a word).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, TypeVar

import attrs
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    bindparam,
    delete,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeDecorator

from crontask_adapters.sql.types import UTCDateTime, on_mysql

__all__ = [
    "ATOMIC",
    "Change",
    "among",
    "chunks",
    "database_now",
    "delete_rows",
    "indexed",
    "insert_rows",
    "locked",
    "skips_locked",
    "update_rows",
]

T = TypeVar("T")
S = TypeVar("S", bound=Select[Any])
_CHUNK = 500
ATOMIC = 200
"""Most rows one writing statement takes; packets and row-by-row CASE both grow with it."""
OnTaken = Literal["fail", "nothing", "replace"]


def chunks(items: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    """The items in lists of at most ``size``: statements stay below every limit on variables."""
    part: list[T] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def among(column: Column[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    """``column IN (values)``; a plain ``in_`` looks at each value, which shows at hundreds."""
    return column.in_(bindparam("among", values, expanding=True, unique=True))


def database_now(conn: Connection) -> datetime:
    """The server's clock, aware UTC with microseconds. Not for SQLite, which has none."""
    moment = text("SELECT UTC_TIMESTAMP(6) AS now").columns(now=UTCDateTime())
    return conn.execute(moment).scalar_one()  # type: ignore[no-any-return]


def locked(statement: S, *, skip: bool) -> S:
    """The statement with its rows locked. With ``skip``, rows locked by others are left out, and
    nothing is waited for. SQLite writes under BEGIN IMMEDIATE and compiles neither."""
    return statement.with_for_update(skip_locked=skip)


def indexed(statement: S, table: FromClause, index: str = "PRIMARY") -> S:
    """Hold MySQL to an index. Its planner would sometimes rather read the whole table, and a read
    that locks then locks, or waits for, rows that are nobody's business."""
    for name in ("mysql", "mariadb"):
        statement = statement.with_hint(table, f"FORCE INDEX ({index})", name)
    return statement


def skips_locked(dialect: Dialect) -> bool:
    """Whether this server knows SKIP LOCKED: MySQL 8.0.1, MariaDB 10.6."""
    if not on_mysql(dialect):
        return False
    maria = bool(getattr(dialect, "is_mariadb", False))
    version = tuple(n for n in (dialect.server_version_info or ()) if isinstance(n, int))
    return version >= ((10, 6) if maria else (8, 0, 1))


@lru_cache(maxsize=2048)
def _binder(dialect: Dialect, column: Column[Any]) -> Callable[[Any], Any] | None:
    kind = column.type.dialect_impl(dialect)
    if isinstance(column.type, TypeDecorator):
        return column.type.bind_processor(dialect)
    return kind.bind_processor(dialect)


def _bound(conn: Connection, column: Column[Any], values: Iterable[Any]) -> list[Any]:
    convert = _binder(conn.dialect, column)
    if convert is None:
        return list(values)
    return [None if value is None else convert(value) for value in values]


# -- delete ------------------------------------------------------------------------------------
def delete_rows(conn: Connection, column: Column[int], ids: Iterable[int]) -> None:
    """Delete the rows whose ``column``, the first of the primary key, is one of ``ids``."""
    table = column.table
    for part in chunks(sorted(ids)):
        if on_mysql(conn.dialect):
            # A plain IN makes MariaDB read, and wait for, every row of a small table, and FORCE
            # INDEX does not hold a DELETE: a join in this order looks up each id.
            ids_table = " UNION ALL ".join(["SELECT %s AS id"] * len(part))
            joined = f"({ids_table}) AS k STRAIGHT_JOIN {table} AS t ON t.{column.name} = k.id"
            conn.exec_driver_sql(f"DELETE t FROM {joined}", tuple(part))
        else:
            conn.execute(delete(table).where(among(column, part)))


# -- insert ------------------------------------------------------------------------------------
def insert_rows(
    conn: Connection,
    columns: Sequence[Column[Any]],
    rows: Sequence[Sequence[Any]],
    on_taken: OnTaken = "fail",
) -> None:
    """Insert rows of values in the order of ``columns``.

    A taken unique key: "fail" raises IntegrityError, "nothing" leaves the stored row, "replace"
    overwrites it. Up to ``ATOMIC`` rows are written all or none.
    """
    for part in chunks(rows, ATOMIC):
        lanes = [
            _bound(conn, column, lane)
            for column, lane in zip(columns, zip(*part, strict=True), strict=True)
        ]
        head, marks, tail = _insert_text(conn.dialect, tuple(columns), on_taken)
        if on_mysql(conn.dialect):
            # One statement, so that it fails as a whole and costs one round trip.
            sql = f"{head}{', '.join([marks] * len(part))}{tail}"
            conn.exec_driver_sql(sql, tuple(chain.from_iterable(zip(*lanes, strict=True))))
            continue
        _run_all(conn, f"{head}{marks}{tail}", list(zip(*lanes, strict=True)), on_taken)


def _run_all(conn: Connection, sql: str, rows: list[tuple[Any, ...]], on_taken: OnTaken) -> None:
    """Run an INSERT row by row, which on SQLite would leave the rows before the one that fails.

    By hand and not by ``begin_nested``: after a full disk the savepoint is gone with the whole
    transaction, and going back to it would hide the error that matters.
    """
    if on_taken != "fail" or len(rows) == 1:
        conn.exec_driver_sql(sql, rows)
        return
    conn.exec_driver_sql("SAVEPOINT crontask_rows")
    try:
        conn.exec_driver_sql(sql, rows)
    except IntegrityError:
        conn.exec_driver_sql("ROLLBACK TO crontask_rows")
        conn.exec_driver_sql("RELEASE crontask_rows")
        raise
    conn.exec_driver_sql("RELEASE crontask_rows")


@lru_cache(maxsize=64)
def _insert_text(
    dialect: Dialect, columns: tuple[Column[Any], ...], on_taken: OnTaken
) -> tuple[str, str, str]:
    """The statement: up to VALUES, the place-holders of one row, and what follows the rows."""
    table = columns[0].table
    names = [column.name for column in columns]
    mark = "%s" if on_mysql(dialect) else "?"
    head = f"INSERT INTO {table} ({', '.join(names)}) VALUES "
    return head, f"({', '.join([mark] * len(names))})", _when_taken(dialect, table, names, on_taken)


def _when_taken(dialect: Dialect, table: Any, names: Sequence[str], on_taken: OnTaken) -> str:
    key = [column.name for column in table.primary_key]
    rest = [name for name in names if name not in key]
    if on_taken == "fail":
        return ""
    if not on_mysql(dialect):
        sets = ", ".join(f"{name} = excluded.{name}" for name in rest)
        to_key = f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}"
        return " ON CONFLICT DO NOTHING" if on_taken == "nothing" else to_key
    if on_taken == "nothing":
        return f" ON DUPLICATE KEY UPDATE {key[0]} = {table}.{key[0]}"
    if getattr(dialect, "is_mariadb", False):
        sets = ", ".join(f"{name} = VALUES({name})" for name in rest)
        return f" ON DUPLICATE KEY UPDATE {sets}"
    sets = ", ".join(f"{name} = new.{name}" for name in rest)
    return f" AS new ON DUPLICATE KEY UPDATE {sets}"


# -- update ------------------------------------------------------------------------------------
@attrs.frozen
class Change:
    """New values of one row, by column name, and what must still be so for them to be written."""

    id: int
    values: Mapping[str, Any]
    guards: Mapping[str, Any]


def update_rows(conn: Connection, table: Table, changes: Sequence[Change]) -> int:
    """Write each row's own values under its own guards. Returns how many rows were matched.

    Rows that change the same columns share a statement: on MySQL one UPDATE with CASE for up to
    200 rows, on SQLite one prepared statement run for each.
    """
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        if change.values:
            groups.setdefault(tuple(change.values), []).append(change)
    one = _update_by_case if on_mysql(conn.dialect) else _update_each
    matched = sum(1 for change in changes if not change.values)
    for names, group in groups.items():
        for part in chunks(group, ATOMIC):
            matched += one(conn, table, names, part)
    return matched


def _update_each(
    conn: Connection, table: Table, names: tuple[str, ...], changes: Sequence[Change]
) -> int:
    guards = tuple(changes[0].guards)
    columns = [table.c[name] for name in (*names, "id", *guards)]
    lanes = [
        *([change.values[name] for change in changes] for name in names),
        [change.id for change in changes],
        *([change.guards[name] for change in changes] for name in guards),
    ]
    bound = [_bound(conn, column, lane) for column, lane in zip(columns, lanes, strict=True)]
    sets = ", ".join(f"{name} = ?" for name in names)
    held = "".join(f" AND {name} IS ?" for name in guards)
    sql = f"UPDATE {table} SET {sets} WHERE id = ?{held}"
    return conn.exec_driver_sql(sql, list(zip(*bound, strict=True))).rowcount


def _update_by_case(
    conn: Connection, table: Table, names: tuple[str, ...], changes: Sequence[Change]
) -> int:
    ids = [change.id for change in changes]
    params: list[Any] = []
    sets = []
    for name in names:
        column = table.c[name]
        values = _bound(conn, column, (change.values[name] for change in changes))
        sets.append(f"{name} = {_by_id(column, ids, values, params)}")
    params.extend(ids)
    held = ""
    for name in changes[0].guards:
        column = table.c[name]
        values = _bound(conn, column, (change.guards[name] for change in changes))
        held += f" AND {name} <=> {_by_id(column, ids, values, params)}"
    marks = ", ".join(["%s"] * len(ids))
    sql = f"UPDATE {table} FORCE INDEX (PRIMARY) SET {', '.join(sets)} WHERE id IN ({marks}){held}"
    return conn.exec_driver_sql(sql, tuple(params)).rowcount


def _by_id(column: Column[Any], ids: Sequence[int], values: list[Any], params: list[Any]) -> str:
    """A value for each row, or simply the value when all rows have the same."""
    if all(value == values[0] for value in values):
        params.append(values[0])
        return "%s"
    # Without the cast the CASE is text, and equal instants of other lengths would differ.
    one = "CAST(%s AS DATETIME(6))" if isinstance(column.type, UTCDateTime) else "%s"
    for row_id, value in zip(ids, values, strict=True):
        params.extend((row_id, value))
    return f"CASE id{f' WHEN %s THEN {one}' * len(ids)} END"
