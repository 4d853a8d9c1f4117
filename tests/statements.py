"""What no statement of ours may hold, and a watch over all that are run.

MySQL has no RETURNING. INSERT IGNORE and REPLACE cut or lose values without a word. A shared lock
invites a deadlock when it is made an exclusive one, and NOWAIT fails where waiting would do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ClauseElement, Engine, event
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.engine import Dialect

from crontask_adapters.sql import schema

BANNED = re.compile(
    r"\bRETURNING\b|\b(INSERT|UPDATE|DELETE)\s+IGNORE\b|^\s*REPLACE\b|\bFOR SHARE\b"
    r"|\bSHARE MODE\b|\bNOWAIT\b",
    re.IGNORECASE,
)


def _on_mariadb() -> Dialect:
    """What the MySQL dialect becomes when it meets a MariaDB."""
    dialect = mysql.dialect()
    dialect.is_mariadb = True
    return dialect


SERVERS: dict[str, Dialect] = {
    "mysql": mysql.dialect(),
    "mariadb": MariaDBDialect(),
    "mariadb behind a mysql url": _on_mariadb(),
}


def check(sql: str) -> None:
    """Raise AssertionError for a statement of ours that holds what is banned."""
    # The version table is alembic's: it writes there as the dialect likes it.
    assert schema.VERSION_TABLE in sql or not BANNED.search(sql), sql


def check_offline(statement: ClauseElement) -> None:
    """``check`` it as each server would get it, whatever it was run on."""
    for dialect in SERVERS.values():
        check(str(statement.compile(dialect=dialect)))


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """Check every statement run inside, on any database. Gives the different ones."""
    seen: set[str] = set()

    def look(_conn: Any, _cursor: Any, sql: str, _params: Any, context: Any, _many: bool) -> None:
        check(sql)
        compiled = getattr(context, "compiled", None)
        name = sql if compiled is None else str(compiled)
        if name not in seen:
            seen.add(name)
            if compiled is not None and schema.VERSION_TABLE not in name:
                check_offline(compiled.statement)

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", look)
