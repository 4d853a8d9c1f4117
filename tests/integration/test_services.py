"""The servers the other tests stand on can be used and hurt as those tests need."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncmy
import asyncmy.errors
import pytest

from tests.services import HOST, MariaDb, MySql, Redis, ServiceError, SqlServer, find_program


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDb]:
    with MariaDb() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def answers_within(server: SqlServer | Redis, seconds: float) -> bool:
    with socket.create_connection((HOST, server.port), timeout=seconds) as connection:
        if isinstance(server, Redis):
            connection.sendall(b"PING\r\n")
        connection.settimeout(seconds)
        try:
            return bool(connection.recv(1))
        except TimeoutError:
            return False


def test_what_mariadb_committed_outlives_kill_and_restart(own_mariadb: MariaDb) -> None:
    with own_mariadb.database() as url:
        name = url.rsplit("/", 1)[1]
        own_mariadb.execute(
            f"CREATE TABLE {name}.t (n INT) ENGINE=InnoDB", f"INSERT INTO {name}.t VALUES (7)"
        )
        port = own_mariadb.port
        own_mariadb.kill()
        assert not own_mariadb.running
        own_mariadb.start()
        assert own_mariadb.execute(f"SELECT n FROM {name}.t") == [(7,)]
        own_mariadb.restart()
        assert own_mariadb.execute(f"SELECT n FROM {name}.t") == [(7,)]
        assert own_mariadb.port == port


def test_a_frozen_mariadb_accepts_connections_and_stays_silent(own_mariadb: MariaDb) -> None:
    assert answers_within(own_mariadb, 5)
    own_mariadb.freeze()
    try:
        assert not answers_within(own_mariadb, 0.3)
    finally:
        own_mariadb.thaw()
    assert answers_within(own_mariadb, 5)


def test_mariadb_runs_on_a_private_port_with_durable_commits(own_mariadb: MariaDb) -> None:
    assert own_mariadb.port != 3306
    assert own_mariadb.execute("SELECT @@innodb_flush_log_at_trx_commit, @@port") == [
        (1, own_mariadb.port)
    ]


def test_each_test_has_an_empty_database_of_its_own(
    mariadb_server: MariaDb, mariadb_url: str
) -> None:
    name = mariadb_url.rsplit("/", 1)[1]
    assert mariadb_server.execute(
        "SELECT default_character_set_name FROM information_schema.schemata "
        f"WHERE schema_name = '{name}'"
    ) == [("utf8mb4",)]
    assert (
        mariadb_server.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'"
        )
        == []
    )


@pytest.mark.mysql
def test_mysql_keeps_what_it_committed_over_kill_and_restart(mysql_server: MySql) -> None:
    with mysql_server.database() as url:
        name = url.rsplit("/", 1)[1]
        mysql_server.execute(
            f"CREATE TABLE {name}.t (n INT) ENGINE=InnoDB", f"INSERT INTO {name}.t VALUES (7)"
        )
        mysql_server.kill()
        mysql_server.start()
        assert mysql_server.execute(f"SELECT n FROM {name}.t") == [(7,)]
    assert "MariaDB" not in mysql_server.execute("SELECT version()")[0][0]


@pytest.mark.mysql
def test_each_test_on_mysql_has_an_empty_database_of_its_own(
    mysql_server: MySql, mysql_url: str
) -> None:
    name = mysql_url.rsplit("/", 1)[1]
    assert mysql_server.execute(f"SHOW TABLES IN {name}") == []


def test_redis_forgets_on_restart_and_keeps_its_port(own_redis: Redis) -> None:
    assert own_redis.ask("SET k v") == "+OK"
    port = own_redis.port
    own_redis.kill()
    own_redis.start()
    assert own_redis.port == port
    assert own_redis.ask("GET k") == "$-1"
    own_redis.freeze()
    assert not answers_within(own_redis, 0.3)
    own_redis.thaw()
    assert own_redis.ask("PING") == "+PONG"


def test_the_redis_of_the_run_is_empty_for_each_test(redis_server: Redis, redis_url: str) -> None:
    assert redis_url == f"redis://127.0.0.1:{redis_server.port}/0"
    assert redis_server.ask("DBSIZE") == ":0"


def test_a_server_ends_with_the_test_run_even_if_that_is_killed() -> None:
    script = (
        "import time\nfrom tests.services import Redis\n"
        "with Redis() as server:\n"
        "    print(server.port, server.folder, flush=True)\n    time.sleep(60)\n"
    )
    root = Path(__file__).resolve().parents[2]
    runner = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    with runner, runner.stdout:
        port, folder = runner.stdout.readline().split()
        runner.kill()
    until = time.monotonic() + 5
    with pytest.raises(ConnectionError):
        while time.monotonic() < until:
            socket.create_connection((HOST, int(port)), timeout=1).close()
    while Path(folder.decode()).exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(folder.decode()).exists()


def test_client_connections_can_be_cut(mariadb_server: MariaDb) -> None:
    async def cut_in_the_middle() -> None:
        connection = await asyncmy.connect(
            host=HOST, port=mariadb_server.port, user="crontask", password="crontask"
        )
        assert await asyncio.to_thread(mariadb_server.kill_connections) >= 1
        with pytest.raises(asyncmy.errors.OperationalError):
            await connection.ping(reconnect=False)
        connection.close()

    asyncio.run(cut_in_the_middle())


def test_a_missing_program_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ServiceError, match=r"no-such-server .* `make services`"):
        find_program(["no-such-server"], "Run `make services` as root.")
