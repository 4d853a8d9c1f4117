"""The statements as each server would get them, without a server."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect

from crontask_adapters.sql import schema
from crontask_adapters.sql.dialect import (
    Change,
    OnTaken,
    delete_rows,
    indexed,
    insert_rows,
    locked,
    update_rows,
)
from tests.statements import SERVERS, check, check_offline

DIALECTS: dict[str, Dialect] = {"sqlite": sqlite.dialect(), **SERVERS}
META = schema.meta
READY = schema.ready
EXEC = schema.executions


@attrs.define
class Recorder:
    """A connection that runs nothing and keeps what it was asked to run."""

    dialect: Dialect
    told: list[tuple[str, Any]] = attrs.field(factory=list)
    rowcount = 1

    def exec_driver_sql(self, sql: str, params: Any = None) -> Recorder:
        check(sql)
        self.told.append((sql, params))
        return self

    def execute(self, statement: Any) -> Recorder:
        text = str(statement.compile(dialect=self.dialect))
        return self.exec_driver_sql(" ".join(text.split()))


def record(dialect: Dialect) -> tuple[Recorder, Connection]:
    recorder = Recorder(dialect)
    return recorder, recorder  # type: ignore[return-value]


INSERT = "INSERT INTO t_cron_meta (name, value) VALUES "


@pytest.mark.parametrize(
    ("name", "on_taken", "sql"),
    [
        ("sqlite", "fail", f"{INSERT}(?, ?)"),
        ("sqlite", "nothing", f"{INSERT}(?, ?) ON CONFLICT DO NOTHING"),
        (
            "sqlite",
            "replace",
            f"{INSERT}(?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        ),
        ("mysql", "fail", f"{INSERT}(%s, %s)"),
        (
            "mysql",
            "nothing",
            f"{INSERT}(%s, %s) ON DUPLICATE KEY UPDATE name = t_cron_meta.name",
        ),
        (
            "mysql",
            "replace",
            f"{INSERT}(%s, %s) AS new ON DUPLICATE KEY UPDATE value = new.value",
        ),
        ("mariadb", "fail", f"{INSERT}(%s, %s)"),
        (
            "mariadb",
            "nothing",
            f"{INSERT}(%s, %s) ON DUPLICATE KEY UPDATE name = t_cron_meta.name",
        ),
        (
            "mariadb",
            "replace",
            f"{INSERT}(%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)",
        ),
    ],
)
def test_an_insert_says_what_becomes_of_a_taken_key(name: str, on_taken: OnTaken, sql: str) -> None:
    recorder, conn = record(DIALECTS[name])
    insert_rows(conn, [META.c.name, META.c.value], [("k", "v")], on_taken)
    assert [told for told, _ in recorder.told] == [sql]


@pytest.mark.parametrize("name", ["mysql", "mariadb", "mariadb behind a mysql url"])
def test_many_rows_are_one_statement(name: str) -> None:
    recorder, conn = record(DIALECTS[name])
    insert_rows(conn, [META.c.name, META.c.value], [("a", "1"), ("b", "2")])
    delete_rows(conn, READY.c.execution_id, [9, 7])
    changes = [
        Change(n, {"fence": n, "exec_status": 1}, {"fence": n - 1, "exec_status": 0})
        for n in (1, 2)
    ]
    update_rows(conn, EXEC, changes)
    assert recorder.told == [
        (f"{INSERT}(%s, %s), (%s, %s)", ("a", "1", "b", "2")),
        (
            "DELETE t FROM (SELECT %s AS id UNION ALL SELECT %s AS id) AS k "
            "STRAIGHT_JOIN t_ready_fire AS t ON t.execution_id = k.id",
            (7, 9),
        ),
        (
            "UPDATE t_task_execution FORCE INDEX (PRIMARY) "
            "SET fence = CASE id WHEN %s THEN %s WHEN %s THEN %s END, exec_status = %s "
            "WHERE id IN (%s, %s) AND fence <=> CASE id WHEN %s THEN %s WHEN %s THEN %s END "
            "AND exec_status <=> %s",
            (1, 1, 2, 2, 1, 1, 2, 1, 0, 2, 1, 0),
        ),
    ]


@pytest.mark.parametrize(
    ("name", "skip", "sql"),
    [
        ("sqlite", True, "SELECT t_cron_meta.name FROM t_cron_meta"),
        (
            "mysql",
            True,
            "SELECT t_cron_meta.name FROM t_cron_meta FORCE INDEX (PRIMARY) FOR UPDATE SKIP LOCKED",
        ),
        (
            "mysql",
            False,
            "SELECT t_cron_meta.name FROM t_cron_meta FORCE INDEX (PRIMARY) FOR UPDATE",
        ),
        (
            "mariadb",
            True,
            "SELECT t_cron_meta.name FROM t_cron_meta FORCE INDEX (PRIMARY) FOR UPDATE SKIP LOCKED",
        ),
    ],
)
def test_a_lock_is_exclusive_and_waits_or_skips(name: str, skip: bool, sql: str) -> None:
    query = locked(indexed(select(META.c.name), META), skip=skip)
    text = " ".join(str(query.compile(dialect=DIALECTS[name])).split())
    assert text == sql
    check_offline(query)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t_cron_meta (name) VALUES (%s) RETURNING name",
        "insert ignore into t_cron_meta (name) values (%s)",
        "REPLACE INTO t_cron_meta (name) VALUES (%s)",
        "SELECT name FROM t_cron_meta FOR SHARE",
        "SELECT name FROM t_cron_meta LOCK IN SHARE MODE",
        "SELECT name FROM t_cron_meta FOR UPDATE NOWAIT",
    ],
)
def test_the_watch_over_the_statements_finds_what_is_banned(sql: str) -> None:
    with pytest.raises(AssertionError):
        check(sql)


@pytest.mark.parametrize(
    "statement",
    [
        select(META.c.name).with_for_update(nowait=True),
        select(META.c.name).with_for_update(read=True),
        insert(META).prefix_with("IGNORE"),
        insert(META).returning(META.c.name),
    ],
)
def test_the_watch_finds_it_offline_too(statement: Any) -> None:
    with pytest.raises(AssertionError):
        check_offline(statement)
