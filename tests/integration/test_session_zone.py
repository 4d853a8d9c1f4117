"""Whatever zone a database server lives in, times mean the same on every node (B-10, B-15)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson
import pytest

from crontask_adapters.callback_body import callback_body
from crontask_adapters.sql.repo import open_repo
from crontask_adapters.sql.upgrade import upgrade
from crontask_core.model import Callback, ExecStatus, Rules
from crontask_core.ports import ExecutionFilter
from tests.builders import accepted, once, outcome
from tests.services import MariaDb


@pytest.mark.requirement("X-S2")
async def test_a_server_in_another_zone_changes_no_due_scan_no_window_and_no_time_out(
    mariadb_server: MariaDb, mariadb_url: str
) -> None:
    await upgrade(mariadb_url)
    zones = ("+08:00", "-05:00")
    try:
        for number, zone in enumerate(zones):
            mariadb_server.execute(f"SET GLOBAL time_zone = '{zone}'")
            repo = await open_repo(
                mariadb_url, rules=Rules(ga_callback_timeout=timedelta(microseconds=1))
            )
            now = (await repo.horizon()).now
            due = now - timedelta(seconds=5)
            late = now - timedelta(minutes=31)
            await repo.add_tasks(
                [
                    once(f"due-{number}", due),
                    once(f"late-{number}", late),
                ]
            )

            claimed = await repo.claim("node", 10, 10)
            [(execution, _task)] = claimed.started
            await repo.settle("node", [outcome(execution, accepted("run"), now)])
            await repo.sweep(10)

            page = await repo.list_executions(ExecutionFilter(user_id=None, limit=10))
            mine = {e.task_key: e.exec_status for e in page.rows}
            assert mine[f"due-{number}"] is ExecStatus.TIMED_OUT
            assert mine[f"late-{number}"] is ExecStatus.SKIPPED
            assert {e.fire_time for e in page.rows} >= {due, late}
            await repo.close()
    finally:
        mariadb_server.execute("SET GLOBAL time_zone = 'SYSTEM'")


@pytest.mark.requirement("A6.1a")
@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York", "Asia/Kolkata", "UTC"])
def test_the_two_forms_of_a_fire_time_are_one_instant(zone: str) -> None:
    callback = Callback(
        url="http://agent.example/x",
        task_id=1,
        task_key="k",
        task_name="n",
        user_id="u",
        conversation_id="c",
        task_content="do",
        fire_time=datetime(2026, 4, 23, 1, 0, tzinfo=UTC),
        timezone=zone,
        schedule_type=2,
        fire_count=15,
        fire_id="f",
        execution_id=1,
        attempt=1,
        revision=1,
    )

    body = orjson.loads(callback_body(callback))

    assert body["fire_timestamp"] == 1776906000
    text = datetime.fromisoformat(body["fire_time"])
    assert text.utcoffset() is not None
    assert text.timestamp() == 1776906000
