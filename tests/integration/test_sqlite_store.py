"""What the SQLite store promises beside the contract: the file, its locks, its troubles."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import Connection, create_engine, event

from crontask_adapters.sql import runner, schema
from crontask_adapters.sql.repo import SqlRepo, open_repo
from crontask_adapters.sql.runner import AsyncConnectionRunner, ConnectionRunner
from crontask_adapters.sql.tx import Terms
from crontask_core.errors import ConfigError, CrontaskError, Unavailable
from crontask_core.model import ExecStatus, Execution
from crontask_core.policy import Pause
from crontask_core.ports import EditRequest, ExecutionFilter, TaskFilter, TaskRef
from crontask_core.testing import VirtualClock
from tests.builders import RULES, T0, accepted, at, every, node, once, outcome, report

INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crontask.db"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


async def opened(path: Path, clock: VirtualClock) -> SqlRepo:
    return await open_repo(f"sqlite:///{path}", rules=RULES, now=clock.database_now)


async def everything(repo: SqlRepo) -> list[Execution]:
    page = await repo.list_executions(ExecutionFilter(user_id=None, limit=10_000))
    return list(reversed(page.rows))


# -- opening ---------------------------------------------------------------------------------------


async def test_a_missing_file_is_made_and_what_is_written_outlives_the_process(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    [added] = await repo.add_tasks([every("k")])
    installation = await repo.installation_id()
    await repo.close()
    again = await opened(path, clock)
    [row] = await again.get_tasks("ann", [TaskRef(key="k")])
    assert row is not None
    assert row.task == added.task
    assert await again.installation_id() == installation
    await again.close()


def test_several_processes_that_open_a_new_file_at_once_all_succeed(path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from crontask_adapters.sql.repo import open_repo\n"
        "from crontask_core.model import Rules\n"
        "async def main():\n"
        "    repo = await open_repo(sys.argv[1], rules=Rules())\n"
        "    print(await repo.installation_id())\n"
        "    await repo.close()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, f"sqlite:///{path}"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    done = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 4, done
    assert len({out for out, _ in done}) == 1


async def test_a_file_that_is_up_to_date_is_opened_without_alembic(
    path: Path, clock: VirtualClock
) -> None:
    await (await opened(path, clock)).close()
    script = (
        "import asyncio, sys\n"
        "from crontask_adapters.sql.repo import open_repo\n"
        "from crontask_core.model import Rules\n"
        "asyncio.run((lambda: open_repo(sys.argv[1], rules=Rules()))())\n"
        "assert 'alembic' not in sys.modules\n"
        "assert 'sqlalchemy.ext.asyncio' not in sys.modules\n"
    )
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, f"sqlite:///{path}", stderr=subprocess.PIPE
    )
    _, errors = await done.communicate()
    assert done.returncode == 0, errors.decode()


async def test_a_store_in_memory_lives_as_long_as_its_repository(clock: VirtualClock) -> None:
    repo = await open_repo("sqlite://", rules=RULES, now=clock.database_now)
    await repo.add_tasks([every("k")])
    assert await repo.count_tasks("ann") == 1
    await repo.close()
    await repo.close()


async def test_the_file_survives_a_power_cut_and_readers_do_not_wait(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)

    def settings(conn: Connection) -> list[Any]:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return [conn.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    made = runner.SqliteRunner(runner.make_url(f"sqlite:///{path}"))
    assert await made.write(settings) == ["wal", 2, 5000]
    await made.close()
    await repo.close()


# -- one file, several users -----------------------------------------------------------------------


@pytest.mark.requirement("A5.5")
async def test_two_nodes_on_one_file_fire_each_task_exactly_once(
    path: Path, clock: VirtualClock
) -> None:
    repos = [await opened(path, clock), await opened(path, clock)]
    await repos[0].add_tasks([once(f"k{n}", at(minutes=10)) for n in range(120)])
    clock.tick(600)

    async def drain(repo: SqlRepo, name: str) -> list[int]:
        sent: list[int] = []
        while (claimed := await repo.claim(name, 10, 5)).tasks:
            sent += [execution.id for execution, _ in claimed.started]
        while (begun := await repo.begin(name, 7)).started:
            sent += [execution.id for execution, _ in begun.started]
        return sent

    one, two = await asyncio.gather(*(drain(r, f"n{i}") for i, r in enumerate(repos)))
    assert len(one) + len(two) == 120
    assert len({*one, *two}) == 120
    rows = await everything(repos[0])
    assert [row.fence for row in rows] == [1] * 120
    for repo in repos:
        await repo.close()


async def test_a_cancelled_wait_leaves_no_lock_behind(path: Path, clock: VirtualClock) -> None:
    repo, other = await opened(path, clock), await opened(path, clock)
    for n in range(60):
        waiting = asyncio.ensure_future(repo.add_tasks([every(f"c{n}")]))
        await asyncio.sleep(0.0005 * (n % 7))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    began = time.monotonic()
    await other.add_tasks([every("after")])
    assert time.monotonic() - began < 2
    await repo.add_tasks([every("too")])
    assert await repo.count_tasks("ann") == await other.count_tasks("ann") >= 2
    await repo.close()
    await other.close()


async def test_readers_go_on_while_another_process_holds_the_write_lock(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every("k")])
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert await asyncio.wait_for(repo.count_tasks("ann"), 2) == 1
    await repo.close()


async def test_a_writer_waits_for_a_short_lock_of_another_process(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(repo.add_tasks([every("k")]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        holder.execute("COMMIT")
        [added] = await waiting
    assert added.created is True
    await repo.close()


# -- trouble ---------------------------------------------------------------------------------------


async def test_a_file_that_stays_locked_is_said_to_be_so_and_may_be_tried_again(
    path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BUSY_MS", 20)
    repo = await opened(path, clock)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable) as caught:
            await repo.add_tasks([every("k")])
    error = caught.value
    assert (error.code, error.retryable) == ("STORE_UNAVAILABLE", True)
    assert "locked" in error.message
    assert "store.url" in error.hint
    assert (await repo.add_tasks([every("k")]))[0].created is True
    await repo.close()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        pytest.param(lambda p: p.write_bytes(b"not a database, a letter\n" * 99), "not", id="text"),
        pytest.param(lambda p: p.mkdir(), "opened", id="folder"),
    ],
)
async def test_a_file_that_is_no_database_is_named_with_a_remedy(
    path: Path, clock: VirtualClock, make: Any, word: str
) -> None:
    make(path)
    with pytest.raises(Unavailable) as caught:
        await opened(path, clock)
    assert caught.value.code == "STORE_UNAVAILABLE"
    assert word in caught.value.message
    assert "store.url" in caught.value.hint


async def test_a_missing_folder_is_named_with_a_remedy(tmp_path: Path, clock: VirtualClock) -> None:
    with pytest.raises(Unavailable) as caught:
        await opened(tmp_path / "no" / "such" / "crontask.db", clock)
    assert "folder of store.url" in caught.value.hint


async def test_a_damaged_file_is_said_to_be_damaged(path: Path, clock: VirtualClock) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every(f"k{n}", task_content="x" * 4000) for n in range(50)])
    await repo.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 8)
        file.write(b"\xa5" * (size * 3 // 4))
    with pytest.raises(Unavailable) as caught:
        broken = await opened(path, clock)
        await broken.list_tasks(TaskFilter(user_id=None, limit=100))
    assert "damaged" in caught.value.message
    assert caught.value.retryable is False
    assert "backup" in caught.value.hint


async def test_a_read_only_file_can_be_read_and_a_write_says_that_it_is_read_only(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every("k")])
    await repo.close()
    url = f"sqlite:///file:{path}?mode=ro&uri=true"
    frozen = await open_repo(url, rules=RULES, now=clock.database_now)
    assert await frozen.count_tasks("ann") == 1
    with pytest.raises(Unavailable) as caught:
        await frozen.add_tasks([every("more")])
    assert "read-only" in caught.value.message
    assert "store.url" in caught.value.hint
    await frozen.close()


async def test_a_full_disk_is_said_to_be_full_and_nothing_is_half_written(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every("small")])
    engine = create_engine(f"sqlite:///{path}", connect_args={"isolation_level": None})
    with engine.connect() as conn:
        pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
        full = SqlRepo(ConnectionRunner(conn), Terms(rules=RULES, clock=clock.database_now))
        with pytest.raises(Unavailable) as caught:
            await full.add_tasks([every(f"k{n}", task_content="x" * 9000) for n in range(9)])
        conn.rollback()
    engine.dispose()
    assert "disk is full" in caught.value.message
    assert caught.value.retryable is True
    assert await repo.count_tasks("ann") == 1
    await repo.close()


@pytest.mark.parametrize("url", ["postgresql://host/db", "no url at all"])
async def test_another_kind_of_store_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await open_repo(url, rules=RULES)
    assert caught.value.field == "store.url"


async def test_a_row_that_cannot_be_read_is_no_trouble_of_the_store_and_can_be_set_aside(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    bad, good = (a.task for a in await repo.add_tasks([every("bad"), every("good")]))
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE t_cron_task SET schedule_type = 77 WHERE id = ?", (bad.id,))
        raw.commit()
    clock.tick(600)
    with pytest.raises(CrontaskError) as caught:
        await repo.claim("n1", 10, 10)
    assert (caught.value.code, caught.value.retryable) == ("INTERNAL", False)
    await repo.set_aside([bad.id], "the row cannot be read")
    claimed = await repo.claim("n1", 10, 10)
    assert [task.id for _, task in claimed.started] == [good.id]
    await repo.close()


# -- a caller's own transaction --------------------------------------------------------------------


@pytest.fixture
async def own_connection(path: Path, clock: VirtualClock) -> Any:
    await (await opened(path, clock)).close()
    engine = create_engine(f"sqlite:///{path}", connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as conn:
        yield conn
    engine.dispose()


async def test_inside_a_callers_transaction_the_caller_commits_or_not(
    own_connection: Connection, path: Path, clock: VirtualClock
) -> None:
    mine = SqlRepo(ConnectionRunner(own_connection), Terms(rules=RULES, clock=clock.database_now))
    other = await opened(path, clock)
    await mine.add_tasks([every("gone")])
    assert await mine.count_tasks("ann") == 1
    own_connection.rollback()
    await mine.add_tasks([every("kept")])
    await mine.edit_tasks([EditRequest(user_id="ann", ref=TaskRef(key="kept"), edit=Pause("no"))])
    assert await other.count_tasks("ann") == 0
    own_connection.commit()
    page = await other.list_tasks(TaskFilter(user_id="ann"))
    assert [(r.task.task_key, r.task.status_reason) for r in page.rows] == [("kept", "no")]
    await mine.close()
    assert not own_connection.closed
    await other.close()


async def test_a_callers_async_connection_works_as_well(
    own_connection: Connection, clock: VirtualClock
) -> None:
    class Direct:
        """An async connection whose work runs at once, as SQLAlchemy's does in a greenlet."""

        async def run_sync(self, work: Any) -> Any:
            return work(own_connection)

    repo = SqlRepo(
        AsyncConnectionRunner(Direct()),  # type: ignore[arg-type]
        Terms(rules=RULES, clock=clock.database_now),
    )
    await repo.add_tasks([every("k")])
    assert await repo.count_tasks("ann") == 1
    await repo.close()


# -- how it is stored ------------------------------------------------------------------------------


async def test_every_instant_lies_in_the_file_as_the_same_kind_of_text(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    [task] = (
        a.task
        for a in await repo.add_tasks([every("k", end_at=at(days=1)), once("o", at(minutes=10))])
        if a.task.task_key == "k"
    )
    clock.tick(600)
    claimed = await repo.claim("n1", 10, 10)
    done = [outcome(e, accepted(f"r{e.id}"), clock.database_now()) for e, _ in claimed.started]
    await repo.settle("n1", done)
    clock.tick(0.25)
    await repo.report([report(task.id, f"r{claimed.started[0][0].id}")])
    await repo.register(node())
    await repo.close()
    seen = 0
    with closing(sqlite3.connect(path)) as raw:
        for table in schema.metadata.sorted_tables:
            for column in table.columns:
                if column.type.__class__.__name__ != "UTCDateTime":
                    continue
                for (value,) in raw.execute(f"SELECT {column.name} FROM {table.name}"):
                    assert value is None or INSTANT.fullmatch(value), (table.name, column.name)
                    seen += value is not None
    assert seen >= 25


async def test_a_naive_time_is_refused_and_not_guessed(path: Path, clock: VirtualClock) -> None:
    repo = await opened(path, clock)
    task = attrs.evolve(every("k"), end_at=T0.replace(tzinfo=None))
    with pytest.raises(CrontaskError) as caught:
        await repo.add_tasks([task])
    assert "naive" in caught.value.message
    assert await repo.count_tasks("ann") == 0
    await repo.close()


async def test_our_own_words_are_cut_to_their_column_instead_of_failing_the_write(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    [added] = await repo.add_tasks([every("k")])
    await repo.set_aside([added.task.id], "因" * 300)
    [row] = await repo.get_tasks("ann", [TaskRef(id=added.task.id)])
    assert row is not None
    assert row.task.status_reason == "因" * 255
    await repo.close()


async def test_a_number_is_never_given_out_twice(path: Path, clock: VirtualClock) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([once("k", at(minutes=1))])
    clock.tick(3600)
    await repo.claim("n1", 10, 10)
    [first] = await everything(repo)
    clock.tick(86_400)
    gone = await repo.prune(clock.database_now(), clock.database_now(), 10)
    assert (gone.executions, gone.tasks) == (1, 1)
    [added] = await repo.add_tasks([once("k", at(days=2))])
    assert added.task.id == first.task_id + 1
    await repo.close()


async def test_a_very_large_list_is_one_transaction(path: Path, clock: VirtualClock) -> None:
    repo = await opened(path, clock)
    added = await repo.add_tasks([once(f"k{n}", at(minutes=10)) for n in range(1_500)])
    assert [a.created for a in added] == [True] * 1_500
    assert [a.task.task_key for a in added] == [f"k{n}" for n in range(1_500)]
    clock.tick(600)
    claimed = await repo.claim("n1", 5_000, 0)
    assert (claimed.tasks, claimed.queued, claimed.more) == (1_500, 1_500, False)
    begun = await repo.begin("n1", 5_000)
    assert (len(begun.started), begun.more) == (1_500, False)
    done = [outcome(e, accepted(f"r{e.id}"), clock.database_now()) for e, _ in begun.started]
    assert len(await repo.settle("n1", done)) == 1_500
    told = await repo.report([report(e.task_id, f"r{e.id}") for e, _ in begun.started])
    assert not [answer for answer in told if isinstance(answer, CrontaskError)]
    assert {e.exec_status for e in await everything(repo)} == {ExecStatus.SUCCESS}
    await repo.close()


# -- statements: batches, not rows -----------------------------------------------------------------


@pytest.fixture
def counted(own_connection: Connection) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, params: Any, context: Any, many: bool) -> None:
        seen.append(statement.split("\n", 1)[0][:80])

    event.listen(own_connection, "before_cursor_execute", note)
    yield seen
    event.remove(own_connection, "before_cursor_execute", note)


async def test_a_batch_costs_a_handful_of_statements_however_many_rows_it_has(
    own_connection: Connection, counted: list[str], clock: VirtualClock
) -> None:
    repo = SqlRepo(ConnectionRunner(own_connection), Terms(rules=RULES, clock=clock.database_now))
    await repo.add_tasks([every(f"k{n}", user_id=f"u{n % 9}") for n in range(200)])
    clock.tick(600)
    counted.clear()
    claimed = await repo.claim("n1", 200, 200)
    assert (claimed.tasks, len(claimed.started)) == (200, 200)
    assert len(counted) <= 8, counted
    counted.clear()
    done = [outcome(e, accepted(f"r{e.id}"), clock.database_now()) for e, _ in claimed.started]
    await repo.settle("n1", done)
    assert len(counted) <= 6, counted
    counted.clear()
    await repo.report([report(e.task_id, f"r{e.id}") for e, _ in claimed.started])
    assert len(counted) <= 8, counted
    clock.tick(600)
    assert (await repo.claim("n1", 200, 0)).queued == 200
    counted.clear()
    assert len((await repo.begin("n1", 200)).started) == 200
    assert len(counted) <= 5, counted
    counted.clear()
    await repo.list_tasks(TaskFilter(user_id=None, limit=100))
    assert len(counted) == 4, counted


async def test_a_copy_of_the_file_is_a_working_backup(path: Path, clock: VirtualClock) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every("k")])
    await repo.close()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    again = await opened(copy, clock)
    assert await again.count_tasks("ann") == 1
    await again.close()


async def test_a_file_deleted_while_open_takes_no_more_writes(
    path: Path, clock: VirtualClock
) -> None:
    repo = await opened(path, clock)
    await repo.add_tasks([every("k")])
    path.unlink()
    with pytest.raises(Unavailable, match="deleted or replaced"):
        await repo.add_tasks([every("lost")])
    await repo.close()


async def test_a_file_that_another_process_writes_can_be_opened_and_read(
    path: Path, clock: VirtualClock
) -> None:
    first = await opened(path, clock)
    await first.add_tasks([every("k")])
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    second = await opened(path, clock)
    assert await second.count_tasks("ann") == 1
    held.execute("ROLLBACK")
    held.close()
    await second.close()
    await first.close()
