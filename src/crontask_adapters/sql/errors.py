"""What a database says went wrong, by its number, as an error of ours.

Numbers and not classes decide: a violated CHECK and a lost connection are both OperationalError.
Whatever is wrong with the store as a whole is ``Unavailable``; what is left is about the rows of
one statement, and whoever sent several looks for the bad one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import exc

from crontask_core.errors import CrontaskError, Unavailable

__all__ = ["is_duplicate", "repeats", "translate"]

_CHECK_URL = "Check store.url, and that the database answers."
_LOGIN = (
    "Correct the user or the password in store.url; in a URL the signs / ? # @ : are written "
    "%2F %3F %23 %40 %3A."
)
_RIGHTS = (
    "Give the user of store.url its rights: GRANT SELECT, INSERT, UPDATE, DELETE ON DATABASE.* TO "
    "USER (for `crontask db upgrade` also CREATE, ALTER, INDEX, DROP)."
)
_READ_ONLY = "It takes no writes: point store.url at the server that does."
_ROOM = "Raise max_connections on the server, or lower store.pool_size."
_DISK = "Free some space on the database's disk."
_HOST = "Check the host and the port in store.url, and that the server runs."
_HINTS: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((1045, 1251, 1698), _LOGIN),
        **dict.fromkeys((1044, 1142, 1143, 1227), _RIGHTS),
        **dict.fromkeys((1290, 1792, 1836), _READ_ONLY),
        **dict.fromkeys((1040, 1203, 1226), _ROOM),
        **dict.fromkeys((3, 1021, 1114), _DISK),
        **dict.fromkeys((2002, 2003), _HOST),
        1049: "Correct the database's name in store.url, or make it: "
        "CREATE DATABASE NAME CHARACTER SET utf8mb4.",
        1130: "The server lets nobody in from this host: make the user of store.url 'USER'@'%'.",
    }
)
"""What to do about a number, where more can be said than to look at store.url."""

_MYSQL_REPEAT = frozenset({1205, 1213, 1020})
"""Lock wait time-out, deadlock, record changed: rolled back, the same work may be repeated."""
_MYSQL_LOST = frozenset(
    {
        # Connection refused, lost, refused for now, or killed; server going down.
        *(1040, 1053, 1077, 1079, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226),
        *(2002, 2003, 2006, 2013, 2014, 2055, 1317, 1927, 1969, 3024, 3168, 4031),
        # Read-only for now (fail-over), or out of room or memory.
        *(1290, 1792, 1836, 1021, 1028, 1037, 1038, 1041, 1114, 1180, 1615, 1637, 3, 1026),
    }
)
_MYSQL_REFUSED = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1698})
_MYSQL_SCHEMA = frozenset({1051, 1054, 1146})
_MYSQL_DUPLICATE = frozenset({1062, 1586})

_SQLITE = {
    sqlite3.SQLITE_BUSY: ("is locked by another process", "Wait, or end the process that has it."),
    sqlite3.SQLITE_LOCKED: ("is locked", "Wait, or end the process that has it."),
    sqlite3.SQLITE_FULL: ("cannot grow: the disk is full", "Free some space on its disk."),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "Check its disk."),
    sqlite3.SQLITE_READONLY: (
        "is read-only",
        "Make the file of store.url and its folder writable, or point store.url elsewhere.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        "See that the folder of store.url exists and may be written.",
    ),
    sqlite3.SQLITE_PERM: ("may not be opened", "Check the permissions of the file of store.url."),
    sqlite3.SQLITE_PROTOCOL: ("is being set up by another process", "Try again."),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged",
        "Restore the file of store.url from a backup, or move it away to start empty.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "is not a SQLite database",
        "Point store.url at another file, or move this one away.",
    ),
}
_SQLITE_FOR_GOOD = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_SQLITE_REPEAT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def translate(error: Exception) -> CrontaskError:
    """The error to raise for whatever a piece of store work raised; ours come back as they are."""
    if isinstance(error, CrontaskError):
        return error
    if isinstance(error, exc.TimeoutError):
        return Unavailable(
            "all connections to the database are in use",
            hint="Raise store.pool_size, or look for what holds them.",
            retryable=True,
        )
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _from_sqlite(cause)
    code = _mysql_code(cause)
    if code is not None:
        return _from_mysql(code, str(cause.args[1] if len(cause.args or ()) > 1 else cause))  # type: ignore[union-attr]
    if isinstance(cause, OSError | EOFError | TimeoutError):
        return _lost(f"the database cannot be reached: {cause or type(cause).__name__}")
    if getattr(error, "connection_invalidated", False):
        return _lost(f"the connection to the database broke: {cause}")
    if isinstance(cause, RuntimeError) and "cryptography" in str(cause):
        return Unavailable(f"the database's login needs it: {cause}", hint=_CHECK_URL)
    return CrontaskError(f"{type(cause).__name__}: {cause}", code="INTERNAL")


def repeats(error: Exception) -> bool:
    """Whether the transaction was rolled back for a reason that is gone when it is repeated."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _primary(cause) in _SQLITE_REPEAT
    return _mysql_code(cause) in _MYSQL_REPEAT


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Whether a unique key is taken, and not some other constraint hurt."""
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", None)
        return code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
    return _mysql_code(error.orig) in _MYSQL_DUPLICATE


def _primary(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _mysql_code(error: BaseException | None) -> int | None:
    """The server's or driver's number; None when this is no error of a MySQL driver."""
    module = type(error).__module__.partition(".")[0]
    if error is None or module not in ("asyncmy", "pymysql", "aiomysql", "sqlalchemy"):
        return None
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def _from_sqlite(error: sqlite3.Error) -> CrontaskError:
    code = _primary(error)
    if code in _SQLITE:
        what, hint = _SQLITE[code]
        return Unavailable(
            f"the database file {what} ({error})",
            hint=hint if "store.url" in hint else f"{hint} The file is named by store.url.",
            retryable=code not in _SQLITE_FOR_GOOD,
        )
    if str(error).startswith(("no such table", "no such column")):
        return _mismatch(str(error))
    return CrontaskError(f"{type(error).__name__}: {error}", code="INTERNAL")


def _from_mysql(code: int, text: str) -> CrontaskError:
    if code in _MYSQL_REPEAT:
        return Unavailable(f"the database is busy ({code}: {text})", retryable=True)
    hint = _HINTS.get(code, _CHECK_URL)
    if code in _MYSQL_LOST:
        return _lost(f"the database cannot be used now ({code}: {text})", hint)
    if code in _MYSQL_REFUSED:
        return Unavailable(f"the database refuses us ({code}: {text})", hint=hint)
    if code in _MYSQL_SCHEMA:
        return _mismatch(f"{code}: {text}")
    return CrontaskError(f"the database says {code}: {text}", code="INTERNAL")


def _lost(message: str, hint: str = _CHECK_URL) -> Unavailable:
    return Unavailable(message, hint=hint, retryable=True)


def _mismatch(text: str) -> Unavailable:
    return Unavailable(
        f"the database lacks a table or column of ours ({text})",
        code="SCHEMA_MISMATCH",
        hint="Run `crontask db upgrade` on the database of store.url.",
        example="crontask db upgrade",
    )
