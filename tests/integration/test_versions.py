"""A real process on a store that has seen newer, or older, zone data than it has (X-S8)."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from crontask_cli.main import cli
from crontask_core.schedule import tzdata_version
from tests.integration.served import served

URL = "http://127.0.0.1:9/v1/task/execute"

pytestmark = pytest.mark.requirement("X-S8")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a store of this test, which command lines find too."""
    path = tmp_path / "tasks.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CRONTASK_STORE_URL", f"sqlite:///{path}")
    return path


def call(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def create(*words: str) -> dict[str, Any]:
    option = f"executor.default_callback_url={URL}"
    return call("create", "Tea", "--content", "Make tea.", *words, "-o", option)


def change(store: Path, *statements: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def facts(store: Path) -> dict[str, str]:
    with closing(sqlite3.connect(store)) as connection:
        return dict(connection.execute("SELECT name, value FROM t_cron_meta"))


def has_seen(store: Path, zones: str) -> None:
    change(
        store,
        f"INSERT OR REPLACE INTO t_cron_meta VALUES ('zone_data', '{zones}')",
        "INSERT OR REPLACE INTO t_cron_meta VALUES ('cron_rules', '1')",
        "INSERT OR REPLACE INTO t_cron_meta VALUES ('recomputed_to', 'done')",
    )


def zone_check() -> dict[str, str]:
    checks = call("doctor")["checks"]
    return dict(next(check for check in checks if check["name"] == "zone data"))


def until(check: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := check():
            return answer
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def asked(url: str) -> tuple[int, dict[str, Any]]:
    with httpx2.Client() as http:
        answer = http.get(url)
    return answer.status_code, answer.json()


def test_a_process_with_older_zone_data_than_the_store_fires_nothing_and_says_why(
    store: Path, tmp_path: Path
) -> None:
    create("--in", "0")
    has_seen(store, "2099a")
    with served(tmp_path, command="worker", executor__default_callback_url=URL) as worker:
        status, told = asked(f"{worker.url}/readyz")
        assert tzdata_version() == asked(f"{worker.url}/healthz")[1]["zone_data"]
        until(lambda: asked(f"{worker.url}/readyz")[1]["loops"])
        worker.signal()
        assert 0 == worker.wait(10)
    assert (503, False, True) == (status, told["ready"], told["store"])
    assert told["outdated"] == (
        f"zone data {tzdata_version()}, cron rules 1 here, but the store has seen zone data 2099a, "
        "cron rules 1. Upgrade the package tzdata here, then start this process again."
    )
    assert [] == call("executions")["executions"]
    assert "node_outdated" in worker.told()
    check = zone_check()
    assert "bad" == check["state"]
    assert "nothing is claimed here, since the store has seen 2099a" in check["found"]
    assert "Upgrade the package tzdata here" in check["remedy"]


def test_a_process_with_newer_zone_data_moves_the_stored_fires_of_changed_zones(
    store: Path, tmp_path: Path
) -> None:
    rule = "0 9 2 11 *"
    moved = create("--cron", rule, "--timezone", "America/Vancouver")
    same = create("--cron", rule, "--timezone", "Europe/Berlin")
    right = moved["next_fire_time"]["utc"]
    assert right.endswith("-11-02T16:00:00Z")
    change(
        store,
        "UPDATE t_cron_task SET next_fire_time = replace(next_fire_time, '16:00', '17:00')"
        f" WHERE id = {moved['task_id']}",
    )
    has_seen(store, "2025b")
    stored = call("get", str(moved["task_id"]))["next_fire_time"]["utc"]
    assert stored.endswith("-11-02T17:00:00Z")
    with served(tmp_path, command="worker", executor__default_callback_url=URL):
        until(lambda: facts(store)["zone_data"] == tzdata_version())
        until(lambda: facts(store)["recomputed_to"] == "done")
    assert right == call("get", str(moved["task_id"]))["next_fire_time"]["utc"]
    assert (
        same["next_fire_time"]["utc"]
        == (call("get", str(same["task_id"]))["next_fire_time"]["utc"])
    )
    assert {"state": "ok", "found": f"{tzdata_version()} with cron rules 1"}.items() <= (
        zone_check().items()
    )
