"""A burst: N one-off tasks due at one instant, one process, against what aiohttp alone reaches.

    python benchmarks/burst.py --fires 10000 --repeats 3 [--store sqlite:///FILE | mysql+asyncmy://...]

Raw and crontask alternate in one run against the same sink (a process of its own); the ratio of the
medians is what counts, absolute numbers drift with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BODY = {
    "task_id": 1001, "task_key": "bench-1", "task_name": "bench", "user_id": "bench",
    "conversation_id": "conv", "task_content": "x" * 300, "fire_time": "2026-04-23T09:00:00+08:00",
    "fire_timestamp": 1776906000, "schedule_type": 1, "fire_count": 1,
    "fire_id": "00000000-0000-5000-8000-000000000000", "execution_id": 1, "attempt": 1,
    "timezone": "Asia/Shanghai", "revision": 1,
}  # fmt: skip


class Sink:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sink.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/v1/task/execute"

    def ask(self, method: str = "GET") -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", method=method)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def raw(url: str, fires: int) -> dict[str, float]:
    """What aiohttp alone does: ``fires`` posts, 50 at once."""
    import aiohttp

    left = iter(range(fires))
    began, used = time.perf_counter(), cpu()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:

        async def worker() -> None:
            for _ in left:
                async with session.post(url, data=json.dumps(BODY).encode()) as answer:
                    await answer.read()

        await asyncio.gather(*(worker() for _ in range(50)))
    seconds = time.perf_counter() - began
    return {"per_second": fires / seconds, "cpu_ms": (cpu() - used) * 1000 / fires}


async def burst(url: str, fires: int, store: str, sink: Sink) -> dict[str, float]:
    """crontask: tasks made beforehand, due together; from the due instant to the last settle."""
    from crontask_adapters.settings import (
        ExecutorSettings,
        QuotaSettings,
        Settings,
        StoreSettings,
    )
    from crontask_adapters.wiring import open_app
    from crontask_core.model import ExecStatus, NewTask
    from crontask_core.ports import ExecutionFilter
    from crontask_server.runtime import Runtime

    settings = Settings(
        store=StoreSettings(url=store),
        executor=ExecutorSettings(default_callback_url=url),
        quota=QuotaSettings(tasks_per_user=10 * fires),
    )
    app = await open_app(settings, roles=("scheduler",))
    tag = f"{time.time():.0f}"
    lead = 1.0 + fires / 4000
    due = time.time() + lead
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(due, UTC)
    made = time.perf_counter()
    for start in range(0, fires, 500):
        await app.tasks.add_many(
            "bench",
            [
                NewTask(
                    task_name="b", task_content="x" * 300, task_key=f"{tag}-{n}", trigger_time=at
                )
                for n in range(start, min(start + 500, fires))
            ],
        )
    made = time.perf_counter() - made
    runtime = Runtime(app)
    running = asyncio.create_task(runtime.run())
    await asyncio.sleep(max(0.0, due - time.time()))
    used, began = cpu(), time.perf_counter()
    while sink.ask()["count"] < fires or app.engine.in_hand:  # type: ignore[union-attr]
        if running.done():
            running.result()
            raise SystemExit("the runtime ended")
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - began
    spent = cpu() - used
    seen = sink.ask()
    where = ExecutionFilter(user_id="bench", statuses=(ExecStatus.RUNNING,), limit=1)
    settled = (await app.repo.list_executions(where)).total
    runtime.stop()
    await running
    await app.close()
    return {
        "per_second": fires / max(0.001, seen["last"] - due),
        "settled_per_second": fires / seconds,
        "cpu_ms": spent * 1000 / fires,
        "creates_per_second": fires / made,
        "count": seen["count"],
        "distinct": seen["distinct"],
        "settled": settled,
    }


async def run(arguments: argparse.Namespace) -> None:
    rows: dict[str, list[dict[str, float]]] = {"raw": [], "crontask": []}
    for _ in range(arguments.repeats):
        sink = Sink()
        rows["raw"].append(await raw(sink.url, arguments.fires))
        sink.ask("DELETE")
        with tempfile.TemporaryDirectory() as folder:
            store = arguments.store or f"sqlite:///{folder}/bench.db"
            rows["crontask"].append(await burst(sink.url, arguments.fires, store, sink))
        sink.close()
        print(json.dumps({name: found[-1] for name, found in rows.items()}), flush=True)
    middle = {
        name: statistics.median(row["per_second"] for row in found) for name, found in rows.items()
    }
    print(f"raw aiohttp {middle['raw']:.0f}/s, crontask {middle['crontask']:.0f}/s, ", end="")
    print(f"ratio {middle['crontask'] / middle['raw']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fires", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", default="")
    asyncio.run(run(parser.parse_args()))
