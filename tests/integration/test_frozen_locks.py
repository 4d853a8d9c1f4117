"""What a frozen process holds in the database, and how long (DESIGN 3.6, 5)."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import Connection, make_url, text

from crontask_adapters.sql.runner import MySqlRunner
from crontask_core.errors import Unavailable

LOCK = text("SELECT id FROM held WHERE id = 1 FOR UPDATE")


def prepare(conn: Connection) -> None:
    conn.execute(text("CREATE TABLE held (id INT PRIMARY KEY) ENGINE = InnoDB"))
    conn.execute(text("INSERT INTO held VALUES (1)"))


@pytest.mark.requirement("A5.2")
async def test_a_process_frozen_inside_a_transaction_gives_its_row_locks_up_after_3_seconds(
    mariadb_url: str,
) -> None:
    frozen, other = MySqlRunner(make_url(mariadb_url)), MySqlRunner(make_url(mariadb_url))
    try:
        await other.write(prepare)
        async with frozen.engine.connect() as stuck:
            await stuck.execute(LOCK)
            began = time.monotonic()
            await other.write(lambda conn: conn.execute(LOCK).all())
            waited = time.monotonic() - began
            await stuck.invalidate()
        assert 1.5 < waited < 5.0, "a lock wait of 5 s would have failed"
    finally:
        await frozen.close()
        await other.close()


async def test_a_process_that_wakes_up_without_its_transaction_may_repeat_it(
    mariadb_url: str,
) -> None:
    runner = MySqlRunner(make_url(mariadb_url))
    try:
        await runner.write(prepare)

        def slow(conn: Connection) -> None:
            conn.execute(LOCK)
            time.sleep(4)  # the whole process stands still
            conn.execute(LOCK)

        with pytest.raises(Unavailable) as caught:
            await runner.write(slow)
        assert caught.value.retryable
        await runner.write(lambda conn: conn.execute(LOCK).all())
    finally:
        await runner.close()
