"""What bad use of a database or Redis gets: at start, before anything fires, a message that names
the setting and the remedy, and exit code 5 (unavailable) or 2 (configuration)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from crontask_adapters.sql.fitness import version_problem
from crontask_adapters.sql.upgrade import upgrade
from tests.integration.nodes import Ended, crontask, node, sink
from tests.services import HOST, MariaDb, Redis

Start = Callable[..., Awaitable[Ended]]


@attrs.frozen
class Store:
    """A good database, with its tables, on a server tests may hurt."""

    server: MariaDb
    url: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def user(self, name: str, rights: str) -> str:
        """The URL for a user of this database with these rights only."""
        self.server.execute(
            f"CREATE OR REPLACE USER {name}@'%' IDENTIFIED BY 'pw'",
            f"GRANT {rights} ON {self.name}.* TO {name}@'%'",
        )
        return f"mysql+asyncmy://{name}:pw@{HOST}:{self.server.port}/{self.name}"


@pytest.fixture
async def store(mariadb_server: MariaDb) -> AsyncIterator[Store]:
    with mariadb_server.database() as url:
        await upgrade(url)
        yield Store(mariadb_server, url)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a worker where it must not come up; what it said and its exit code."""
    return starter(tmp_path, "worker")


@pytest.fixture(params=["worker", "serve", "serve --no-scheduler"])
def start_each(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """As ``start``, for each kind of node."""
    return starter(tmp_path, *str(request.param).split())


def starter(folder: Path, *words: str) -> Start:
    async def run(**options: str) -> Ended:
        ended = await crontask(folder, *words, server__port="0", **options)
        assert "crontask serves" not in ended.err, "it served before it found out"
        assert "Traceback" not in ended.err
        assert ended.out == ""
        return ended

    return run


def said(ended: Ended, code: int, *texts: str) -> None:
    assert code == ended.code, ended.err
    told = " ".join(ended.err.split())
    assert [] == [text for text in texts if text not in told], ended.err


# -- the database ----------------------------------------------------------------------------------
@pytest.mark.requirement("X-CONF")
async def test_a_wrong_password(start_each: Start, store: Store) -> None:
    ended = await start_each(store__url=store.url.replace(":crontask@", ":sesame@"))
    said(ended, 5, "1045", "Correct the user or the password in store.url")
    assert "sesame" not in ended.err


async def test_a_database_that_does_not_exist(start: Start, store: Store) -> None:
    ended = await start(store__url=store.url + "_x")
    said(ended, 5, "1049", "Correct the database's name in store.url, or make it: CREATE DATABASE")


async def test_a_database_of_somebody_else(start: Start, mariadb_server: MariaDb) -> None:
    with mariadb_server.database() as url:
        name = url.rpartition("/")[2]
        mariadb_server.execute(f"CREATE TABLE {name}.t_cron_task (id INT PRIMARY KEY, theirs INT)")
        ended = await start(store__url=url)
        said(ended, 5, "t_cron_task, which crontask did not make", "an empty database in store.url")


async def test_an_empty_database(start_each: Start, mariadb_server: MariaDb) -> None:
    with mariadb_server.database() as url:
        ended = await start_each(store__url=url)
        said(ended, 5, "SCHEMA_MISMATCH", "Run `crontask db upgrade`", "or correct store.url")


async def test_a_schema_of_an_older_version(start: Start, store: Store) -> None:
    store.server.execute(f"UPDATE {store.name}.crontask_alembic_version SET version_num = '0001'")
    ended = await start(store__url=store.url)
    said(ended, 5, "the database has 0001, this version needs schema", "Run `crontask db upgrade`")


async def test_a_schema_that_needs_newer_code(start: Start, store: Store) -> None:
    store.server.execute(
        f"UPDATE {store.name}.crontask_alembic_version SET version_num = '9999'",
        f"UPDATE {store.name}.t_cron_meta SET value = '99' WHERE name = 'min_code'",
    )
    ended = await start(store__url=store.url)
    said(ended, 5, "needs crontask of level 99", "Upgrade crontask on this machine")


async def test_a_newer_schema_that_this_code_may_use_is_used_with_a_warning(
    store: Store, tmp_path: Path
) -> None:
    store.server.execute(f"UPDATE {store.name}.crontask_alembic_version SET version_num = '9999'")
    async with node(tmp_path, "worker", store__url=store.url) as worker:
        assert "newer than this crontask" in worker.told()


async def test_tables_that_were_changed_to_latin1(
    start: Start, store: Store, tmp_path: Path
) -> None:
    store.server.execute(
        f"ALTER TABLE {store.name}.t_task_execution CONVERT TO CHARACTER SET latin1"
    )
    ended = await start(store__url=store.url)
    said(ended, 5, "t_task_execution are not stored as utf8mb4_bin", "tables of store.url")
    said(ended, 5, "ALTER TABLE t_task_execution CONVERT TO CHARACTER SET utf8mb4")
    store.server.execute(
        f"ALTER TABLE {store.name}.t_task_execution "
        "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )
    async with node(tmp_path, "worker", store__url=store.url) as worker:
        assert [] == worker.events("pass_failed")


async def test_a_latin1_database_is_used_with_a_warning_and_keeps_every_text(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    with mariadb_server.database("latin1") as url:
        done = await crontask(tmp_path, "db", "upgrade", "--json", store__url=url)
        assert "makes new tables in latin1" in done.json["warnings"][0]
        async with (
            sink() as agent,
            node(
                tmp_path, "worker", store__url=url, executor__default_callback_url=agent.url
            ) as worker,
        ):
            assert "makes new tables in latin1" in worker.told()
            made = await crontask(
                tmp_path,
                *("create", "提醒", "--content", "提醒我开会 📅", "--in", "0s", "--key", "k"),
                store__url=url,
                executor__default_callback_url=agent.url,
            )
            assert 0 == made.code, made.err
            await agent.got(1)
            assert "提醒我开会 📅" == agent.calls[0][2]["task_content"]


async def test_a_character_set_in_the_url(start: Start, store: Store) -> None:
    ended = await start(store__url=f"{store.url}?charset=latin1")
    said(ended, 2, "(store.url)", "character set latin1", "Leave charset= out of it")


async def test_a_server_that_takes_no_writes(start_each: Start, store: Store) -> None:
    url = store.user("reader", "SELECT, INSERT, UPDATE, DELETE")
    store.server.execute("SET GLOBAL read_only = 1")
    try:
        ended = await start_each(store__url=url)
    finally:
        store.server.execute("SET GLOBAL read_only = 0")
    said(ended, 5, "1290", "point store.url at the server that does")


async def test_a_user_without_rights(start_each: Start, store: Store) -> None:
    ended = await start_each(store__url=store.user("looker", "SELECT"))
    said(ended, 5, "1142", "Give the user of store.url its rights: GRANT SELECT, INSERT, UPDATE")


async def test_nothing_listens_there(start: Start) -> None:
    ended = await start(store__url=f"mysql+asyncmy://u:p@{HOST}:1/x")
    said(ended, 5, "2003", "Check the host and the port in store.url")


async def test_something_else_than_a_database_listens_there(
    redis_server: Redis, tmp_path: Path
) -> None:
    url = f"mysql+asyncmy://u:p@{HOST}:{redis_server.port}/x"
    ended = await crontask(tmp_path, "worker", store__url=url)
    said(ended, 5, "(store.url)", "host and port in store.url are those of a MySQL or MariaDB")


@pytest.mark.parametrize(
    ("maria", "version", "problem"),
    [
        (False, (5, 7, 44), "the database server is MySQL 5.7.44, which is too old"),
        (False, (8, 0, 0), "the database server is MySQL 8.0.0, which is too old"),
        (True, (10, 5, 23), "the database server is MariaDB 10.5.23, which is too old"),
        (True, (5, 5, 68, "MariaDB"), "the database server is MariaDB 5.5.68, which is too old"),
        (False, (8, 0, 1), ""),
        (False, (9, 4, 0), ""),
        (True, (10, 6, 0), ""),
        (True, (11, 4, 2, "MariaDB"), ""),
        (False, (), ""),
    ],
)
def test_a_server_that_is_too_old(maria: bool, version: tuple[object, ...], problem: str) -> None:
    found = version_problem(maria, version)
    assert problem == (found.message if found else "")
    if found:
        assert (5, "store.url") == (found.exit_code, found.field)
        assert "MySQL 8.0.1 or later, or at MariaDB 10.6 or later" in found.hint


# -- nodes -----------------------------------------------------------------------------------------
@pytest.mark.requirement("A5.5")
async def test_two_processes_with_one_node_id_do_no_harm_and_are_told(
    store: Store, tmp_path: Path
) -> None:
    async with sink() as agent:
        options = {
            "store__url": store.url,
            "executor__default_callback_url": agent.url,
            "scheduler__node_id": "same",
            "scheduler__heartbeat": "500ms",
            "scheduler__node_timeout": "3s",
        }
        async with (
            node(tmp_path, "worker", name="one", **options) as one,
            node(tmp_path, "worker", name="two", **options) as two,
        ):
            for process in (one, two):
                await process.says("another live process has the same scheduler.node_id")
            for number in range(5):
                words = ("create", "t", "--content", "c", "--in", "0s", "--key", f"k{number}")
                assert 0 == (await crontask(tmp_path, *words, **options)).code
            await agent.got(5)
            nodes = await crontask(tmp_path, "nodes", "--json", **options)
            assert ["same", "same"] == [row["node_id"] for row in nodes.json["nodes"]]
            assert "(scheduler.node_id)" in nodes.json["warnings"][0]
            told = (await crontask(tmp_path, "doctor", "--json", **options)).json
            checks = {check["name"]: check for check in told["checks"]}
            assert "warn" == checks["node ids"]["state"]
            assert "scheduler.node_id" in checks["node ids"]["remedy"]
            for process in (one, two):
                assert 1 == process.told().count('"what":"namesake"')
                assert [] == process.events("pass_failed")
    assert ["k0", "k1", "k2", "k3", "k4"] == sorted(key for key, _, _ in agent.calls)


# -- Redis -----------------------------------------------------------------------------------------
@asynccontextmanager
async def web_server() -> AsyncIterator[int]:
    """An HTTP server's port; it answers whatever it is sent as HTTP servers do."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_redis_that_is_a_web_server(start_each: Start, store: Store) -> None:
    async with web_server() as port:
        ended = await start_each(store__url=store.url, redis__url=f"redis://{HOST}:{port}/0")
    said(ended, 2, "(redis.url)", "is not Redis: it says 'HTTP/1.1 400", "leave redis.url out")


async def test_a_redis_that_is_a_database(store: Store, tmp_path: Path) -> None:
    url = f"redis://{HOST}:{store.server.port}/0"
    ended = await crontask(tmp_path, "worker", store__url=store.url, redis__url=url)
    said(ended, 2, "(redis.url)", "is not Redis", "Correct host and port")


async def test_a_wrong_password_of_redis(start: Start, store: Store) -> None:
    with Redis() as redis:
        redis.ask("CONFIG SET requirepass sesame")
        for secret in ("", ":open@"):
            url = f"redis://{secret}{HOST}:{redis.port}/0"
            ended = await start(store__url=store.url, redis__url=url)
            said(ended, 2, "(redis.url)", "Correct user, password and database number")
            assert "open" not in ended.err
        doctor = await crontask(Path("/"), "doctor", "--json", store__url=store.url, redis__url=url)
        checks = {check["name"]: check for check in doctor.json["checks"]}
        assert ("bad", 1) == (checks["redis"]["state"], doctor.code)
        assert "redis.url" in checks["redis"]["remedy"]


async def test_a_redis_database_that_does_not_exist(
    store: Store, redis_server: Redis, tmp_path: Path
) -> None:
    url = f"redis://{HOST}:{redis_server.port}/99"
    ended = await crontask(tmp_path, "worker", store__url=store.url, redis__url=url)
    said(ended, 2, "(redis.url)", "database number in redis.url")


async def test_a_redis_url_of_another_kind(start: Start, store: Store) -> None:
    ended = await start(store__url=store.url, redis__url="http://localhost:6379")
    said(ended, 2, "(redis.url)", "redis://redis.example.com:6379/0")
