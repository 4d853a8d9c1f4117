"""kill -9 of a real server in the middle of a burst: nothing lost, and a second delivery only with
the same fire id (README, second and third sentence)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from crontask_adapters.embed import open_tasks
from crontask_adapters.settings import ExecutorSettings, QuotaSettings, Settings, StoreSettings
from crontask_core.model import ExecStatus, NewTask
from crontask_core.ports import ExecutionFilter
from crontask_core.tasks import Tasks

FIRES = 300
CONCURRENCY = 50


class Sink:
    """An agent that accepts everything, 20 ms after it was asked, and remembers every fire id."""

    def __init__(self) -> None:
        self.fire_ids: list[str] = []
        self.keys: dict[str, str] = {}
        self.many = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.fire_ids.append(body["fire_id"])
        self.keys[body["fire_id"]] = body["task_key"]
        if len(self.fire_ids) >= FIRES // 3:
            self.many.set()
        await asyncio.sleep(0.02)
        return web.json_response({"task_run_id": f"run-{body['fire_id']}-{body['attempt']}"})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/task/execute", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"http://127.0.0.1:{port}/v1/task/execute"
        finally:
            await runner.cleanup()


async def start_worker(store: str, url: str, folder: Path) -> asyncio.subprocess.Process:
    options = {
        "store.url": store,
        "executor.default_callback_url": url,
        "scheduler.heartbeat": "500ms",
        "scheduler.node_timeout": "3s",
        "server.port": "0",
        "log.level": "warning",
    }
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    with (folder / "worker.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "crontask_cli",
            *given,
            "worker",
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )


async def states(tasks: Tasks) -> Counter[ExecStatus]:
    where = ExecutionFilter(user_id="ann", limit=10 * FIRES)
    return Counter(v.execution.exec_status for v in (await tasks.executions(where)).rows)


@pytest.mark.requirement("A5.5", "A5.2")
async def test_a_server_killed_in_a_burst_loses_nothing_and_repeats_only_under_the_same_fire_id(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'crontask.db'}"
    sink = Sink()
    async with sink.serving() as url:
        settings = Settings(
            store=StoreSettings(url=store),
            executor=ExecutorSettings(default_callback_url=url),
            quota=QuotaSettings(tasks_per_user=FIRES),
        )
        async with open_tasks(settings) as app:
            news = [
                NewTask(task_name="t", task_content="c", task_key=f"k{n}", delay_seconds=3)
                for n in range(FIRES)
            ]
            await app.tasks.add_many("ann", news)
            victim = await start_worker(store, url, tmp_path)
            async with asyncio.timeout(60):
                await sink.many.wait()
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
            before = list(sink.fire_ids)

            heir = await start_worker(store, url, tmp_path)
            try:
                async with asyncio.timeout(60):
                    while (await states(app.tasks))[ExecStatus.RUNNING] < FIRES:
                        await asyncio.sleep(0.2)
            finally:
                heir.terminate()
                assert await heir.wait() == 0
            assert await states(app.tasks) == {ExecStatus.RUNNING: FIRES}
    assert len(before) < FIRES, "the kill came after the burst and proves nothing"
    assert set(sink.keys.values()) == {f"k{n}" for n in range(FIRES)}
    assert len(sink.keys) == FIRES, "a task was fired under two fire ids"
    again = [fire_id for fire_id, count in Counter(sink.fire_ids).items() if count > 1]
    assert set(again) <= set(before)
    assert len(again) <= 2 * CONCURRENCY
