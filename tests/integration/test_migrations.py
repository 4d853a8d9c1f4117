"""The schema's life: made, upgraded, checked and refused, on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from crontask_adapters.sql import schema
from crontask_adapters.sql.repo import open_repo
from crontask_adapters.sql.runner import MySqlRunner, make_runner
from crontask_adapters.sql.upgrade import check, offline_sql, upgrade
from crontask_core.errors import Unavailable
from tests.builders import RULES, every
from tests.services import MariaDb


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'crontask.db'}"


def file_of(url: str) -> str:
    return str(make_url(url).database)


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
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

    def differences(conn: Connection) -> list[Any]:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        context = MigrationContext.configure(conn, opts=options)
        return list(compare_metadata(context, schema.metadata))

    runner = make_runner(url, 1)
    assert await runner.read(differences) == []
    await runner.close()


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


async def test_mysql_is_upgraded_only_when_told(mariadb_url: str) -> None:
    with pytest.raises(Unavailable) as caught:
        await open_repo(mariadb_url, rules=RULES)
    error = caught.value
    assert (error.code, error.retryable) == ("SCHEMA_MISMATCH", False)
    assert error.example == "crontask db upgrade"
    assert await execute(mariadb_url, "SHOW TABLES") == []


async def test_an_upgrade_of_mysql_that_broke_off_half_way_is_completed(mariadb_url: str) -> None:
    await upgrade(mariadb_url)
    await execute(
        mariadb_url,
        "DROP TABLE t_cron_meta",
        "DROP TABLE t_ready_fire",
        "DROP INDEX ix_execution_user_fire ON t_task_execution",
        f"DELETE FROM {schema.VERSION_TABLE}",
    )
    assert (await upgrade(mariadb_url)).problem is None
    await test_a_migrated_database_is_the_schema_of_the_code(mariadb_url)


async def test_the_offline_statements_make_a_database_that_works(
    mariadb_url: str, sqlite_url: str
) -> None:
    for url in (mariadb_url, sqlite_url):
        script = offline_sql(url)
        lines = [line for line in script.splitlines() if not line.startswith("--")]
        statements = [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
        await execute(url, *(s for s in statements if s not in ("BEGIN", "COMMIT")))
        assert (await check(url)).problem is None
        repo = await open_repo(url, rules=RULES)
        assert (await repo.add_tasks([every("k")]))[0].created is True
        await repo.close()


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


async def test_a_session_of_mysql_is_set_up_as_the_design_says(mariadb_url: str) -> None:
    runner = MySqlRunner(make_url(mariadb_url), 1)

    def settings(conn: Connection) -> tuple[Any, ...]:
        names = "@@tx_isolation, @@time_zone, @@innodb_lock_wait_timeout, @@wait_timeout"
        return tuple(conn.exec_driver_sql(f"SELECT {names}").one())

    assert await runner.read(settings) == ("READ-COMMITTED", "+00:00", 5, 20)
    await runner.close()


async def test_prepared_statements_stay_off(mariadb_url: str) -> None:
    runner = MySqlRunner(make_url(mariadb_url), 1)

    def size(conn: Connection) -> object:
        return conn.connection.driver_connection._stmt_cache_size  # type: ignore[union-attr]

    assert await runner.read(size) == 0
    await runner.close()


async def test_the_databases_clock_is_used_where_there_is_one(mariadb_url: str) -> None:
    await upgrade(mariadb_url)
    repo = await open_repo(mariadb_url, rules=RULES)
    horizon = await repo.horizon()
    [(text,)] = await execute(mariadb_url, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
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
