"""Column types that are the same value in Python on every database.

Each type converts both ways here and nowhere else: a value read is a value of the model, and a
value of the model can be bound as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import BigInteger, DateTime, Integer, SmallInteger, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

__all__ = [
    "Code",
    "Note",
    "UTCDateTime",
    "Word",
    "big_text",
    "counter",
    "key_text",
    "long_text",
    "on_mysql",
    "text",
    "uint",
    "utc_text",
]

_MYSQL = ("mysql", "mariadb")
_BINARY = "utf8mb4_bin"


def on_mysql(dialect: Dialect) -> bool:
    """Whether this is MySQL or MariaDB: the one question the differences hang on."""
    return dialect.name in _MYSQL


def uint() -> TypeEngine[int]:
    """A 64-bit id. SQLite numbers rows by itself only in a column that is called INTEGER."""
    plain = BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
    return plain.with_variant(Integer(), "sqlite")


def counter() -> TypeEngine[int]:
    """A signed 64-bit number: queue keys, milliseconds."""
    return BigInteger()


def key_text(length: int) -> String:
    """Text compared byte for byte: keys, users, nodes, run ids."""
    return String(length).with_variant(mysql.VARCHAR(length, collation=_BINARY), *_MYSQL)


def text(length: int) -> String:
    """Text of at most ``length`` characters; the core refuses what is longer."""
    return String(length).with_variant(mysql.VARCHAR(length, collation=_BINARY), *_MYSQL)


def big_text() -> Text:
    """Text with no limit that matters: instructions, results, answers."""
    return Text().with_variant(mysql.MEDIUMTEXT(collation=_BINARY), *_MYSQL)


def long_text() -> Text:
    """Text of at most 64 KB, as seed A has it."""
    return Text().with_variant(mysql.TEXT(collation=_BINARY), *_MYSQL)


class UTCDateTime(TypeDecorator[datetime]):
    """An instant: aware UTC in Python; DATETIME(6) on MySQL; on SQLite always text of one form,
    ``YYYY-MM-DD HH:MM:SS.ffffff``, which sorts. A naive value is refused with ValueError."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if on_mysql(dialect):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        return utc_text

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return _from_naive if on_mysql(dialect) else _from_text


def utc_text(value: datetime | None) -> str | None:
    """An aware instant as the text both databases take; ValueError when it is naive."""
    if value is None:
        return None
    if value.tzinfo is not UTC:
        if value.tzinfo is None:
            raise ValueError(f"a naive datetime came to the store: {value!r}")
        value = value.astimezone(UTC)
    return value.isoformat(" ", "microseconds")[:26]


def _from_naive(value: datetime | None) -> datetime | None:
    return None if value is None else value.replace(tzinfo=UTC)


def _from_text(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value + "+00:00")


class Code(TypeDecorator[Any]):
    """An ``IntEnum`` as TINYINT. An unknown number raises KeyError when read."""

    impl = SmallInteger
    cache_ok = True

    def __init__(self, kind: type[IntEnum]) -> None:
        super().__init__()
        self.kind = kind
        self._values = {int(member): member for member in kind}

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.TINYINT() if on_mysql(dialect) else SmallInteger())

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        return int

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return self._values.__getitem__


class Word(TypeDecorator[Any]):
    """A ``StrEnum`` as short text. An unknown word raises KeyError when read."""

    impl = String
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__(16)
        self.kind = kind
        self._values = {member.value: member for member in kind}

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        wanted = mysql.VARCHAR(16, collation=_BINARY) if on_mysql(dialect) else String(16)
        return dialect.type_descriptor(wanted)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        return str

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return self._values.__getitem__


class Note(TypeDecorator[str]):
    """Our own words: cut to the column's length, in characters, instead of failing the write."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        size = self.length
        wanted = mysql.VARCHAR(size, collation=_BINARY) if on_mysql(dialect) else String(size)
        return dialect.type_descriptor(wanted)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        size = self.length
        return lambda value: value if value is None or len(value) <= size else value[:size]
