"""Big tables, and a spy that says how a server went about each statement of a pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from sqlalchemy import Column, Connection, Engine, event, make_url

from crontask_adapters.sql import schema
from crontask_adapters.sql.runner import MySqlRunner
from crontask_adapters.sql.types import UTCDateTime

ROWS = 200_000
BUSIEST = 105_500
"""The task that 100,000 executions belong to."""
_NOW = "UTC_TIMESTAMP(6)"
_SOON = f"{_NOW} + INTERVAL 1 HOUR + INTERVAL n SECOND"
_PAST = f"{_NOW} - INTERVAL 5 MINUTE + INTERVAL n MICROSECOND"

TASKS = {
    "id": "n",
    "uid": "LPAD(HEX(n), 32, '0')",
    "task_key": "CONCAT('key-', n)",
    "user_id": "CONCAT('user-', MOD(n, 1000))",
    "conversation_id": "CONCAT('c', MOD(n, 5000))",
    "task_name": "CONCAT('task ', n)",
    "task_content": "REPEAT('what to do ', 30)",
    "schedule_type": "3",
    "timezone": "'Asia/Shanghai'",
    "interval_ms": "600000",
    "anchor_at": f"{_NOW} - INTERVAL 1 DAY",
    "next_fire_time": f"CASE WHEN n <= 100000 THEN {_SOON} WHEN n <= 105000 THEN {_PAST} "
    f"WHEN n <= 150000 THEN {_SOON} END",
    "status": "n <= 150000",
    "misfire_policy": "'run_once'",
    "overlap_policy": "IF(MOD(n, 50), 'allow', 'skip')",
    "delivery": "'at_least_once'",
    "max_retry": "3",
    "retry_interval": "5000",
    "revision": "1",
    "callback_url": "'http://agent.test/x'",
}
"""Enabled ones, of which 100,001 to 105,000 are due, and 50,000 disabled."""

EXECUTIONS = {
    "id": "n",
    "fire_id": "CONCAT('fire-', n)",
    "task_id": f"IF(n <= {ROWS // 2}, n, {BUSIEST})",
    "task_key": "CONCAT('key-', n)",
    "user_id": "CONCAT('user-', MOD(n, 1000))",
    "fire_time": f"{_NOW} - INTERVAL n MINUTE",
    "trigger_kind": "0",
    "fire_number": "1",
    "fence": "n NOT BETWEEN 9001 AND 19000",
    "exec_status": "CASE WHEN n <= 1000 THEN 1 WHEN n <= 9000 THEN 7 WHEN n <= 19000 THEN 0 "
    "ELSE 2 END",
    "next_action_at": f"CASE WHEN n <= 5000 THEN {_SOON} WHEN n <= 9000 THEN {_PAST} "
    f"WHEN n <= 19000 THEN {_SOON} END",
    "executor_node": "CASE WHEN n <= 1000 THEN CONCAT('n', MOD(n, 10)) ELSE '' END",
    "task_run_id": "CASE WHEN n BETWEEN 1001 AND 9000 OR n > 19000 THEN CONCAT('run-', n) "
    "ELSE '' END",
    "start_time": f"{_NOW} - INTERVAL 30 SECOND",
}
"""1,000 calling, 4,000 running, 4,000 running too long, 10,000 waiting, the rest over; half of all
are the history of one task."""

READY = {
    "execution_id": "IF(n <= 10000, n + 9000, n + 1000000)",
    "user_id": "CONCAT('user-', MOD(n, 1000))",
    "callback_host": "IF(MOD(n, 3), 'agent', 'dead')",
    "queue_key": "n",
}
ATTEMPTS = {
    "execution_id": "n + 1000",
    "fence": "IF(n <= 18000, 0, 1)",
    "node": "'n1'",
    "outcome": "'accepted'",
    "task_run_id": "CONCAT('old-run-', n + 1000)",
    "revision": "1",
}
INBOX = {
    "task_id": "n",
    "task_run_id": "CONCAT('early-', n)",
    "status": "'success'",
    "expires_at": _SOON,
}
NODES = {"incarnation": "CONCAT('n', n)", "node_id": "CONCAT('n', n)", "roles": "'scheduler'"}


async def load(url: str) -> None:
    """Fill a database that has empty tables."""
    runner = MySqlRunner(make_url(url), 1, call_seconds=120)
    try:
        await runner.write(_load)
    finally:
        await runner.close()


def _load(conn: Connection) -> None:
    digits = " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10))
    conn.exec_driver_sql("CREATE TABLE numbers (n INT PRIMARY KEY)")
    places = [f"({digits}) AS p{p}" for p in range(6)]
    number = " + ".join(f"p{p}.d * {10**p}" for p in range(6))
    conn.exec_driver_sql(
        f"INSERT INTO numbers SELECT {number} + 1 FROM {' JOIN '.join(places)} WHERE p5.d < 2"
    )
    for table, values, rows in (
        (schema.tasks, TASKS, ROWS),
        (schema.executions, EXECUTIONS, ROWS),
        (schema.ready, READY, ROWS),
        (schema.attempts, ATTEMPTS, ROWS),
        (schema.inbox, INBOX, ROWS),
        (schema.nodes, NODES, 20),
    ):
        names = ", ".join(column.name for column in table.columns)
        exprs = ", ".join(values.get(column.name, _plain(column)) for column in table.columns)
        rows_of = f"SELECT {exprs} FROM numbers WHERE n <= {rows} ORDER BY n"
        conn.exec_driver_sql(f"INSERT INTO {table} ({names}) {rows_of}")
        conn.exec_driver_sql(f"ANALYZE TABLE {table}")


def _plain(column: Column[Any]) -> str:
    if column.nullable:
        return "NULL"
    if isinstance(column.type, UTCDateTime):
        return _NOW
    return "''" if column.type.python_type is str else "0"


@attrs.frozen
class Step:
    """One line of a plan."""

    sql: str
    table: str
    how: str
    index: str
    rows: int
    extra: str

    def __str__(self) -> str:
        return f"{self.table}: {self.how} {self.index} {self.rows} {self.extra} | {self.sql[:300]}"

    @property
    def reads_a_table(self) -> bool:
        """Not the values of an INSERT, a constant, or the list of ids of a join."""
        aside = not self.table or self.table.startswith("<")
        return not aside and not self.sql.startswith("INSERT")


@attrs.define
class Cost:
    """What the transactions of a pass did. ``returned``: the rows its locking reads gave back."""

    returned: int = 0
    locked: int = 0
    read: int = 0


def _is_ours(sql: str) -> bool:
    return any(table in sql for table in schema.TABLES)


@contextlib.contextmanager
def _hooks(**hooks: Any) -> Iterator[None]:
    for name, hook in hooks.items():
        event.listen(Engine, name, hook)
    try:
        yield
    finally:
        for name, hook in hooks.items():
            event.remove(Engine, name, hook)


@contextlib.contextmanager
def explained() -> Iterator[list[Step]]:
    """The plan of each statement run inside, made right before it, with its own values."""
    steps: list[Step] = []

    def before(conn: Any, _cursor: Any, sql: str, params: Any, *_rest: Any) -> None:
        if not _is_ours(sql) or sql.startswith("EXPLAIN"):
            return
        plan = conn.exec_driver_sql("EXPLAIN FORMAT=TRADITIONAL " + sql, params)
        steps.extend(_step(sql, row._mapping) for row in plan)

    with _hooks(before_cursor_execute=before):
        yield steps


def _step(sql: str, row: Mapping[str, Any]) -> Step:
    told = {name.lower(): value for name, value in row.items()}
    return Step(
        sql=" ".join(sql.split()),
        table=told["table"] or "",
        how=told["type"] or "",
        index=told["key"] or "",
        rows=int(told["rows"] or 0),
        extra=told["extra"] or "",
    )


_LOCKED = (
    "SELECT trx_rows_locked FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = CONNECTION_ID()"
)
_READ = "SHOW SESSION STATUS LIKE 'Handler_read%%'"


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """What the transactions inside lock and read, as the server counts."""
    cost = Cost()
    quiet = [False]
    before: dict[int, int] = {}

    def ask(conn: Any, sql: str) -> list[Any]:
        quiet[0] = True
        try:
            return list(conn.exec_driver_sql(sql))
        finally:
            quiet[0] = False

    def reads(conn: Any) -> int:
        return sum(int(row[1]) for row in ask(conn, _READ))

    def start(conn: Any, *_rest: Any) -> None:
        if not quiet[0] and id(conn) not in before:
            before[id(conn)] = reads(conn)

    def after(_conn: Any, cursor: Any, sql: str, *_rest: Any) -> None:
        if not quiet[0] and "FOR UPDATE" in sql:
            cost.returned += cursor.rowcount

    def end(conn: Any) -> None:
        cost.read += reads(conn) - before.pop(id(conn), 0)
        time.sleep(0.15)  # the server renews this table every 0.1 s at most
        cost.locked += sum(int(row[0]) for row in ask(conn, _LOCKED))

    with _hooks(before_cursor_execute=start, after_cursor_execute=after, commit=end):
        yield cost
