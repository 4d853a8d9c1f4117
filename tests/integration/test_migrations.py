"""The schema's life: made, upgraded, checked and refused, on SQLite, MariaDB and MySQL."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from crontask_adapters.sql import schema
from crontask_adapters.sql.drift import Drift, drift
from crontask_adapters.sql.repo import open_repo
from crontask_adapters.sql.runner import MySqlRunner, make_runner
from crontask_adapters.sql.upgrade import check, offline_sql, upgrade
from crontask_core.errors import Unavailable
from tests.builders import RULES, every
from tests.integration.served import environment
from tests.services import MariaDb


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'crontask.db'}"


def file_of(url: str) -> str:
    return str(make_url(url).database)


SERVERS = ["mariadb", pytest.param("mysql", marks=pytest.mark.mysql)]


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=SERVERS)
def server_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind of server."""
    return str(request.getfixturevalue(f"{request.param}_url"))


async def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements as they are; the rows of the last."""

    def work(conn: Connection) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            result = conn.exec_driver_sql(statement)
            rows = [tuple(row) for row in result] if result.returns_rows else []
        return rows

    runner = make_runner(url, 1)
    try:
        return await runner.write(work)
    finally:
        await runner.close()


# -- the revisions and the code say the same -------------------------------------------------------


def test_the_newest_revision_is_the_one_the_code_knows() -> None:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "crontask_adapters.sql:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]


async def test_a_migrated_database_is_the_schema_of_the_code(url: str) -> None:
    await upgrade(url)
    assert await drift(url) == Drift()


@pytest.mark.parametrize("dialect", [sqlite.dialect(), mysql.dialect()], ids=["sqlite", "mysql"])
def test_the_migrations_write_the_same_statements_as_the_schema(dialect: Any) -> None:
    sql = " ".join(offline_sql(f"{dialect.name}://").split())
    for table in schema.metadata.sorted_tables:
        wanted = [CreateTable(table), *map(CreateIndex, table.indexes)]
        for statement in wanted:
            assert " ".join(str(statement.compile(dialect=dialect)).split()) in sql


def test_no_column_has_a_default_in_the_database() -> None:
    for dialect in ("sqlite", "mysql"):
        assert " DEFAULT " not in offline_sql(f"{dialect}://").replace("DEFAULT NULL", "")


# -- making and upgrading --------------------------------------------------------------------------


async def test_an_upgrade_can_be_repeated_and_says_what_is_there(url: str) -> None:
    assert (await check(url)).problem is not None
    first = await upgrade(url)
    second = await upgrade(url)
    assert first == second == await check(url)
    assert (first.revision, first.min_code, first.current) == (schema.HEAD, 1, True)
    assert first.problem is None
    repo = await open_repo(url, rules=RULES)
    [added] = await repo.add_tasks([every("k")])
    assert added.created is True
    await repo.close()


async def test_several_upgrades_at_once_all_succeed(url: str) -> None:
    states = await asyncio.gather(*(upgrade(url) for _ in range(4)))
    assert {state.revision for state in states} == {schema.HEAD}
    repos = await asyncio.gather(*(open_repo(url, rules=RULES, pool_size=1) for _ in range(4)))
    assert len({await repo.installation_id() for repo in repos}) == 1
    for repo in repos:
        await repo.close()


async def test_mysql_is_upgraded_only_when_told(server_url: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await open_repo(server_url, rules=RULES)
    error = caught.value
    assert (error.code, error.retryable) == ("SCHEMA_MISMATCH", False)
    assert error.example == "crontask db upgrade"
    assert await execute(server_url, "SHOW TABLES") == []


async def test_an_upgrade_of_mysql_that_broke_off_half_way_is_completed(server_url: str) -> None:
    await upgrade(server_url)
    await execute(
        server_url,
        "DROP TABLE t_cron_meta",
        "DROP TABLE t_ready_fire",
        "DROP INDEX ix_execution_user_fire ON t_task_execution",
        f"DELETE FROM {schema.VERSION_TABLE}",
    )
    assert (await upgrade(server_url)).problem is None
    await test_a_migrated_database_is_the_schema_of_the_code(server_url)


async def test_the_offline_statements_make_the_database_that_an_upgrade_makes(
    url: str, tmp_path: Path
) -> None:
    script = offline_sql(url)
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    statements = [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
    await execute(url, *(s for s in statements if s not in ("BEGIN", "COMMIT")))
    assert (await check(url)).problem is None
    assert await drift(url) == Drift()
    repo = await open_repo(url, rules=RULES)
    assert (await repo.add_tasks([every("k")]))[0].created is True
    await repo.close()

    by_hand = await definitions(url)
    await execute(url, *(f"DROP TABLE {name}" for name in by_hand))
    await upgrade(url)
    assert await definitions(url) == by_hand


async def definitions(url: str) -> dict[str, str]:
    """How the database itself writes each table, with its indexes."""
    if url.startswith("sqlite"):
        rows = await execute(url, "SELECT tbl_name, sql FROM sqlite_master ORDER BY tbl_name, name")
        names = {row[0] for row in rows if not row[0].startswith("sqlite")}
        parts = {name: [str(sql).split() for n, sql in rows if n == name] for name in names}
        return {name: " ".join(word for words in parts[name] for word in words) for name in names}
    names = {row[0] for row in await execute(url, "SHOW TABLES")}
    found = {name: str((await execute(url, f"SHOW CREATE TABLE {name}"))[0][1]) for name in names}
    return {name: re.sub(r" AUTO_INCREMENT=\d+", "", sql) for name, sql in found.items()}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DROP TABLE t_report_inbox", "table t_report_inbox is missing"),
        (
            "ALTER TABLE t_cron_task DROP COLUMN task_desc",
            "column t_cron_task.task_desc is missing",
        ),
        (
            "ALTER TABLE t_cron_task ADD COLUMN theirs INT NOT NULL",
            "column t_cron_task.theirs was added and has no default",
        ),
        (
            "ALTER TABLE t_cron_task MODIFY task_name VARCHAR(20) COLLATE utf8mb4_bin NOT NULL",
            "column t_cron_task.task_name is VARCHAR(20), not VARCHAR(256)",
        ),
        (
            "ALTER TABLE t_cron_task MODIFY fire_count INT NULL",
            "column t_cron_task.fire_count may be NULL",
        ),
        (
            "DROP INDEX ix_execution_next_action ON t_task_execution",
            "index ix_execution_next_action (next_action_at) of t_task_execution is missing",
        ),
        (
            "DROP INDEX uk_execution_fire ON t_task_execution",
            "index uk_execution_fire (task_id, fire_time, trigger_kind) of t_task_execution "
            "is missing",
        ),
        (
            "CREATE UNIQUE INDEX theirs ON t_cron_task (task_name)",
            "index theirs (task_name) of t_cron_task was added",
        ),
    ],
)
async def test_tables_that_were_changed_are_told(
    server_url: str, statement: str, told: str
) -> None:
    await upgrade(server_url)
    await execute(server_url, statement)
    found = await drift(server_url)
    assert ([re.sub(" COLLATE [^ ,]+", "", one) for one in found.broken], found.extra) == (
        [told],
        (),
    )
    assert found.problem is not None
    assert found.problem.code == "SCHEMA_MISMATCH"
    assert told.partition(",")[0].partition(" is")[0] in found.problem.message


async def test_what_was_added_beside_the_tables_is_told_and_does_no_harm(url: str) -> None:
    await upgrade(url)
    await execute(
        url,
        "CREATE TABLE theirs (id INT PRIMARY KEY)",
        "CREATE INDEX ix_theirs ON t_cron_task (task_name)",
        "ALTER TABLE t_cron_task ADD COLUMN theirs INT",
    )
    found = await drift(url)
    assert found.problem is None
    assert found.extra == (
        "column t_cron_task.theirs was added",
        "index ix_theirs (task_name) of t_cron_task was added",
    )


def test_db_check_exits_5_when_an_index_is_gone_and_says_which(
    sqlite_url: str, tmp_path: Path
) -> None:
    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "crontask_cli", "db", command],
            env=environment(tmp_path) | {"CRONTASK_STORE_URL": sqlite_url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("upgrade").returncode == 0
    with closing(sqlite3.connect(file_of(sqlite_url))) as raw:
        raw.execute("CREATE INDEX ix_theirs ON t_cron_task (task_name)")
        raw.commit()
    fine = run("check")
    assert fine.returncode == 0
    assert "not made by crontask: index ix_theirs (task_name) of t_cron_task" in (
        fine.stdout + fine.stderr
    )
    with closing(sqlite3.connect(file_of(sqlite_url))) as raw:
        raw.execute("DROP INDEX ix_execution_next_action")
        raw.commit()
    bad = run("check")
    assert bad.returncode == 5
    assert "ix_execution_next_action (next_action_at) of t_task_execution is missing" in bad.stderr
    assert "crontask db upgrade --sql" in bad.stderr


@pytest.mark.requirement("X-T0")
@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
async def test_all_text_is_compared_by_bytes_whatever_the_database_defaults_to(
    mariadb_server: MariaDb, charset: str
) -> None:
    with mariadb_server.database(charset) as url:
        await upgrade(url)
        rows = await execute(
            url,
            "SELECT DISTINCT collation_name FROM information_schema.columns WHERE "
            "table_schema = DATABASE() AND collation_name IS NOT NULL AND table_name <> "
            f"'{schema.VERSION_TABLE}'",
        )
        assert rows == [("utf8mb4_bin",)]


async def test_a_task_that_may_not_fire_cannot_have_a_next_fire_time(url: str) -> None:
    await upgrade(url)
    repo = await open_repo(url, rules=RULES)
    await repo.add_tasks([every("k")])
    await repo.close()
    with pytest.raises(Exception, match="ck_cron_task_next_fire"):
        await execute(url, "UPDATE t_cron_task SET status = 0")


# -- what is refused -------------------------------------------------------------------------------


async def test_a_task_table_of_somebody_else_is_not_taken_over(url: str) -> None:
    await execute(url, "CREATE TABLE t_cron_task (id INT PRIMARY KEY, theirs INT)")
    for attempt in (upgrade(url), open_repo(url, rules=RULES)):
        with pytest.raises(Unavailable) as caught:
            await attempt
        assert caught.value.code == "SCHEMA_MISMATCH"
        assert "t_cron_task, which crontask did not make" in caught.value.message
        assert "store.url" in caught.value.hint
    assert (await check(url)).foreign == ("t_cron_task",)
    assert await execute(url, "SELECT * FROM t_cron_task") == []


async def test_a_schema_that_needs_newer_code_is_refused(url: str) -> None:
    await upgrade(url)
    await execute(
        url,
        f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'",
        "UPDATE t_cron_meta SET value = '99' WHERE name = 'min_code'",
    )
    for attempt in (upgrade(url), open_repo(url, rules=RULES)):
        with pytest.raises(Unavailable) as caught:
            await attempt
        assert caught.value.code == "SCHEMA_MISMATCH"
        assert "needs crontask of level 99, this is level 1" in caught.value.message


async def test_a_newer_schema_that_old_code_may_use_is_used_with_a_warning(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await upgrade(url)
    await execute(url, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    with caplog.at_level(logging.WARNING, logger="crontask.store"):
        repo = await open_repo(url, rules=RULES)
    assert "newer than this crontask" in caplog.text
    assert (await repo.add_tasks([every("k")]))[0].created is True
    await repo.close()
    assert (await upgrade(url)).revision == "9999"


async def test_a_schema_that_cannot_be_reached_is_unavailable() -> None:
    with pytest.raises(Unavailable) as caught:
        await upgrade("mysql+asyncmy://nobody:wrong@127.0.0.1:1/none")
    assert (caught.value.code, caught.value.retryable) == ("STORE_UNAVAILABLE", True)
    assert "wrong" not in caught.value.line()


async def test_a_wrong_password_is_not_worth_repeating(mariadb_server: MariaDb) -> None:
    with mariadb_server.database() as url:
        wrong = url.replace(":crontask@", ":sesame@")
        with pytest.raises(Unavailable) as caught:
            await open_repo(wrong, rules=RULES)
    assert (caught.value.code, caught.value.retryable) == ("STORE_UNAVAILABLE", False)
    assert "sesame" not in caught.value.line()


# -- the sessions of MySQL -------------------------------------------------------------------------


async def test_a_session_of_mysql_is_set_up_as_the_design_says(server_url: str) -> None:
    runner = MySqlRunner(make_url(server_url), 1)

    def settings(conn: Connection) -> tuple[Any, ...]:
        # The name of the isolation differs between the servers and their versions.
        [(_, isolation)] = conn.exec_driver_sql(
            "SHOW SESSION VARIABLES WHERE variable_name IN "
            "('tx_isolation', 'transaction_isolation')"
        ).all()[:1]
        names = "@@time_zone, @@innodb_lock_wait_timeout, @@wait_timeout"
        return (isolation, *conn.exec_driver_sql(f"SELECT {names}").one())

    assert await runner.read(settings) == ("READ-COMMITTED", "+00:00", 5, 20)
    await runner.close()


async def test_prepared_statements_stay_off(server_url: str) -> None:
    runner = MySqlRunner(make_url(server_url), 1)

    def size(conn: Connection) -> object:
        return conn.connection.driver_connection._stmt_cache_size  # type: ignore[union-attr]

    assert await runner.read(size) == 0
    await runner.close()


async def test_the_databases_clock_is_used_where_there_is_one(server_url: str) -> None:
    await upgrade(server_url)
    repo = await open_repo(server_url, rules=RULES)
    horizon = await repo.horizon()
    [(text,)] = await execute(server_url, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
    assert horizon.now.tzinfo is not None
    assert horizon.now.isoformat(" ")[:26] < text
    await repo.close()


async def test_other_tables_in_a_sqlite_file_are_left_alone(
    sqlite_url: str,
) -> None:
    with closing(sqlite3.connect(file_of(sqlite_url))) as raw:
        raw.execute("CREATE TABLE notes (text TEXT)")
        raw.commit()
    repo = await open_repo(sqlite_url, rules=RULES)
    await repo.close()
    with closing(sqlite3.connect(file_of(sqlite_url))) as raw:
        names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    assert {"notes", "t_cron_task", schema.VERSION_TABLE} <= names
