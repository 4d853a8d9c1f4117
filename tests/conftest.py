"""What every test gets: the asyncio backend, the ``requirement`` marker, real servers on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.services import MariaDb, MySql, Redis

# Shared machines are slow at times: a deadline per example would fail by luck, not by fault.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", settings.get_profile("default"), max_examples=2000)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requirement(*ids): the rules of tests/requirements.py this test proves"
    )
    config.addinivalue_line(
        "markers", "mysql: needs a real MySQL; left out unless asked for with `-m mysql`"
    )


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDb]:
    """A private MariaDB for the whole run, started by the first test that asks for it."""
    with MariaDb() as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDb) -> Iterator[str]:
    """The URL of an empty utf8mb4 database of its own; dropped after the test."""
    with mariadb_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySql]:
    """A private MySQL for the whole run. Tests that ask for it carry the mark ``mysql``."""
    with MySql() as server:
        yield server


@pytest.fixture
def mysql_url(mysql_server: MySql) -> Iterator[str]:
    """As ``mariadb_url``, on MySQL."""
    with mysql_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A private Redis for the whole run, started by the first test that asks for it."""
    with Redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """The URL of a running, empty Redis."""
    redis_server.flush()
    return redis_server.url
