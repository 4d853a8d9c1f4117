"""The embedding page is run as it stands: every block is a program of its own, in one folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from crontask_adapters.embed import open_sync, open_tasks, tasks_on
from crontask_adapters.settings import Settings
from crontask_adapters.settings_load import SettingsError, load
from crontask_adapters.sql.upgrade import upgrade
from crontask_adapters.wiring import App
from crontask_core import (
    Callback,
    Conflict,
    ExecStatus,
    Execution,
    InvalidInput,
    NewTask,
    NotFound,
    TaskRef,
    Unavailable,
)
from crontask_server.embed import open_scheduler
from tests.unit.test_docs import DOCS, blocks

(
    FIRE, FIRE_LONG, MAKE, READ, OWN_TRANSACTION, OWN_ASYNC_TRANSACTION, NOT_ASYNC
) = blocks(DOCS / "howto/embed.md", "python")  # fmt: skip


def run(source: str, folder: Path, **environ: str) -> str:
    """What a block prints. Warnings are errors, as in the other tests."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=folder,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def settings_in(folder: Path, **options: str) -> Settings:
    url = f"sqlite:///{folder}/service.db"
    return load({"store.url": url, **options}, environ={}, folder=folder).settings


def new(**more: object) -> NewTask:
    given = {"task_name": "n", "task_content": "c", "task_key": "k", "delay_seconds": 0, **more}
    return NewTask(**given)  # type: ignore[arg-type]


# -- the page --------------------------------------------------------------------------------------
def test_a_service_fires_tasks_with_its_own_function(tmp_path: Path) -> None:
    assert "SUCCESS done: Say that the tea is ready.\n" == run(FIRE, tmp_path)


def test_a_service_accepts_at_once_and_reports_later(tmp_path: Path) -> None:
    assert "SUCCESS the long work is done\n" == run(FIRE_LONG, tmp_path)


def test_one_service_makes_tasks_another_fires_them_and_the_first_reads_the_result(
    tmp_path: Path,
) -> None:
    made = run(MAKE, tmp_path)
    assert made.startswith("True report-42 ")
    assert "No live node" in made
    assert run(MAKE, tmp_path).startswith("False report-42 ")
    assert "" == run(READ, tmp_path)

    run(FIRE, tmp_path)

    assert " SUCCESS done: Send report 42.\n" in run(READ, tmp_path)


def test_a_task_is_there_when_the_caller_commits_and_gone_when_he_rolls_back(
    tmp_path: Path,
) -> None:
    with open_sync(settings_in(tmp_path)) as sync:  # makes the tables
        run(OWN_TRANSACTION, tmp_path)

        kept = sync.run(sync.tasks.get("ann", TaskRef(key="order-7")))
        assert "Remind the customer of order 7." == kept.task.task_content
        with pytest.raises(NotFound):
            sync.run(sync.tasks.get("ann", TaskRef(key="order-8")))


async def test_an_async_transaction_of_the_caller_takes_tasks_on_mariadb(
    tmp_path: Path, mariadb_url: str
) -> None:
    await upgrade(mariadb_url)
    assert "True tea\n" == run(OWN_ASYNC_TRANSACTION, tmp_path, CRONTASK_STORE_URL=mariadb_url)
    assert "False tea\n" == run(OWN_ASYNC_TRANSACTION, tmp_path, CRONTASK_STORE_URL=mariadb_url)


def test_code_that_is_not_async_makes_and_lists_tasks(tmp_path: Path) -> None:
    words, count = run(NOT_ASYNC, tmp_path).splitlines()
    assert "Monday" in words
    assert "Europe/Berlin" in words
    assert "1 tasks" == count


# -- what the page says about it -------------------------------------------------------------------
async def test_work_that_raises_is_called_again_with_the_same_fire_id(tmp_path: Path) -> None:
    seen: list[Callback] = []

    def work(fire: Callback) -> str:
        seen.append(fire)
        if len(seen) < 3:
            raise RuntimeError("not yet")
        return "third time lucky"

    async with open_scheduler(settings_in(tmp_path), work) as app:
        task = (await app.tasks.create("ann", new(retry_interval_ms=100))).task
        row = await ended(app, task.id)

    assert (ExecStatus.SUCCESS, "third time lucky") == (row.exec_status, row.ga_result)
    assert [1, 2, 3] == [fire.attempt for fire in seen]
    assert 1 == len({fire.fire_id for fire in seen})


async def test_work_that_never_succeeds_fails_when_its_retries_are_spent(tmp_path: Path) -> None:
    async def work(fire: Callback) -> None:
        raise RuntimeError("never")

    async with open_scheduler(settings_in(tmp_path), work) as app:
        task = (await app.tasks.create("ann", new(retry_interval_ms=100, max_retry=1))).task
        row = await ended(app, task.id)

    assert ExecStatus.FAILED is row.exec_status
    assert "the function raised RuntimeError: never" in row.reason


async def test_work_without_a_result_is_a_success(tmp_path: Path) -> None:
    async def work(fire: Callback) -> None:
        return None

    async with open_scheduler(settings_in(tmp_path), work) as app:
        row = await ended(app, (await app.tasks.create("ann", new())).task.id)

    assert ExecStatus.SUCCESS is row.exec_status


async def test_work_that_has_begun_is_waited_for_at_the_end(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def work(fire: Callback) -> str:
        begun.set()
        await asyncio.sleep(0.5)
        return "finished"

    async with open_scheduler(settings_in(tmp_path), work) as app:
        task = (await app.tasks.create("ann", new())).task
        await asyncio.wait_for(begun.wait(), 10)

    async with open_tasks(settings_in(tmp_path)) as app:
        row = (await app.tasks.get("ann", TaskRef(id=task.id))).executions[0]
    assert (ExecStatus.SUCCESS, "finished") == (row.exec_status, row.ga_result)


async def test_a_lease_too_short_for_the_work_is_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    settings = settings_in(tmp_path)
    executor = attrs.evolve(settings.executor, callback_timeout=settings.scheduler.lease)
    with pytest.raises(SettingsError, match=r"scheduler\.lease"):
        async with open_scheduler(attrs.evolve(settings, executor=executor), lambda fire: None):
            pass
    assert [] == list(tmp_path.iterdir())


async def test_a_task_needs_an_address_unless_it_is_said_that_none_is_needed(
    tmp_path: Path,
) -> None:
    async with open_tasks(settings_in(tmp_path)) as app:
        with pytest.raises(InvalidInput, match=r"executor\.default_callback_url"):
            await app.tasks.create("ann", new())
    async with open_tasks(settings_in(tmp_path), needs_url=False) as app:
        assert (await app.tasks.create("ann", new())).created


def test_a_refusal_reaches_the_caller_that_is_not_async(tmp_path: Path) -> None:
    with open_sync(settings_in(tmp_path), needs_url=False) as sync:
        sync.run(sync.tasks.create("ann", new()))
        with pytest.raises(Conflict, match="task_key k is taken"):
            sync.run(sync.tasks.create("ann", new(task_content="other")))


async def test_a_connection_without_our_tables_says_what_to_do(mariadb_url: str) -> None:
    engine = create_async_engine(mariadb_url)
    async with engine.connect() as conn:
        with pytest.raises(Unavailable) as caught:
            await tasks_on(conn, load({"store.url": mariadb_url}, environ={}).settings)
    await engine.dispose()
    assert ("SCHEMA_MISMATCH", "crontask db upgrade") == (caught.value.code, caught.value.example)


async def ended(app: App, task_id: int, seconds: float = 15) -> Execution:
    """The task's only execution, once it is final."""
    async with asyncio.timeout(seconds):
        while True:
            answer = await app.tasks.get("ann", TaskRef(id=task_id))
            if answer.executions and answer.executions[0].is_final:
                return answer.executions[0]
            await asyncio.sleep(0.02)
