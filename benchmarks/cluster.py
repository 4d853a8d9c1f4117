"""What the store and several nodes do: claims, statements, lateness, take-over, empty polls.

    python benchmarks/cluster.py [--small] [--only claim,poll,late,takeover]

MariaDB and Redis are started privately (tests/services.py), MariaDB with every commit flushed to
disk. Nodes are real ``crontask worker`` processes. Everything shares one machine: read the figures
as ratios and orders of size.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from burst import Sink  # noqa: E402 - beside this file
from sqlalchemy import Connection, event  # noqa: E402

from crontask_adapters.settings import (  # noqa: E402
    ExecutorSettings,
    QuotaSettings,
    SchedulerSettings,
    Settings,
    StoreSettings,
)
from crontask_adapters.sql import schema  # noqa: E402
from crontask_adapters.sql.runner import MySqlRunner  # noqa: E402
from crontask_adapters.sql.types import on_mysql  # noqa: E402
from crontask_adapters.sql.upgrade import upgrade  # noqa: E402
from crontask_adapters.wiring import App, open_app  # noqa: E402
from crontask_core.model import ExecStatus, NewTask, Report  # noqa: E402
from crontask_core.policy import Answer, AnswerKind, Outcome, judge  # noqa: E402
from crontask_core.ports import ExecutionFilter  # noqa: E402
from tests.services import MariaDb, Redis  # noqa: E402

BATCHES = {1: 200, 10: 1_000, 50: 3_000, 200: 8_000}
"""Fires claimed for each batch size."""
NODE = "bench#1"


def show(what: str, **figures: Any) -> None:
    parts = [f"{k}={v:,.3g}" if isinstance(v, float) else f"{k}={v:,}" for k, v in figures.items()]
    print(f"{what:<34} {'  '.join(parts)}", flush=True)


@asynccontextmanager
async def opened(url: str, agent: str = "http://127.0.0.1:9/", **more: Any) -> AsyncIterator[App]:
    settings = Settings(
        store=StoreSettings(url=url),
        executor=ExecutorSettings(default_callback_url=agent),
        quota=QuotaSettings(tasks_per_user=1_000_000),
        scheduler=SchedulerSettings(claim_batch=200),
        **more,
    )
    app = await open_app(settings, roles=())
    try:
        yield app
    finally:
        await app.close()


async def make(app: App, due: list[datetime], tag: str) -> None:
    """One one-off task for each instant, of 50 users, with 300 characters of content."""
    by_user: dict[str, list[NewTask]] = defaultdict(list)
    for number, at in enumerate(due):
        by_user[f"user-{number % 50}"].append(
            NewTask(
                task_name="b", task_content="x" * 300, task_key=f"{tag}-{number}", trigger_time=at
            )
        )
    for user, news in by_user.items():
        for start in range(0, len(news), 500):
            await app.tasks.add_many(user, news[start : start + 500])


# -- statements and claims -------------------------------------------------------------------------
@contextmanager
def counted(app: App) -> Iterator[Counter[str]]:
    """Statements sent while the block runs, BEGIN and COMMIT left out."""
    runner = app.repo._runner  # type: ignore[attr-defined]
    mysql = isinstance(runner, MySqlRunner)
    engine = runner.engine.sync_engine if mysql else runner._writer._engine  # type: ignore[union-attr]
    sent: Counter[str] = Counter()

    def count(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("BEGIN"):
            sent["statements"] += 1

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", count)


async def claims(url: str, name: str, scale: float) -> None:
    """Claim what is due, in batches: due tasks become rows in the queue, one transaction each."""
    async with opened(url) as app:
        await make(app, [datetime.now(UTC) + timedelta(days=1)] * int(10_000 * scale), "later")
        await lives(app, name, int(8_000 * scale))
        for batch, full in BATCHES.items():
            fires = max(batch, int(full * scale))
            await make(app, [datetime.now(UTC)] * fires, f"c{batch}")
            done, seconds = 0, []
            with counted(app) as sent:
                while done < fires:
                    began = time.perf_counter()
                    claimed = await app.repo.claim(NODE, batch, 0)
                    seconds.append(time.perf_counter() - began)
                    done += claimed.tasks
            show(
                f"claim, {name}, batch {batch}",
                fires_per_second=done / sum(seconds),
                ms_per_claim_p50=statistics.median(seconds) * 1000,
                statements_per_fire=sent["statements"] / done,
            )


async def lives(app: App, name: str, fires: int) -> None:
    """The whole store side of a fire: claim straight into a call, settle, report."""
    await make(app, [datetime.now(UTC)] * fires, "life")
    spent: Counter[str] = Counter()
    total: Counter[str] = Counter()
    left = fires
    while left:
        with timed(spent, "claim"), counted(app) as sent:
            claimed = await app.repo.claim(NODE, 200, 200)
        assert claimed.started, "the queue is not empty"
        total["claim"] += sent["statements"]
        now = app.clock.now()
        outcomes, reports = [], []
        for execution, task in claimed.started:
            run = f"run-{execution.id}"
            body = f'{{"task_run_id":"{run}"}}'.encode()
            answer = Answer(kind=AnswerKind.RESPONSE, status=200, body=body)
            outcomes.append(
                Outcome(
                    execution_id=execution.id,
                    task_id=task.id,
                    fence=execution.fence,
                    started_at=now,
                    ended_at=now,
                    revision=task.revision,
                    verdict=judge(answer, 1, now, app.rules),
                )
            )
            reports.append(Report(task_id=task.id, task_run_id=run, status="success"))
        with timed(spent, "settle"), counted(app) as sent:
            await app.repo.settle(NODE, outcomes)
        total["settle"] += sent["statements"]
        with timed(spent, "report"), counted(app) as sent:
            await app.repo.report(reports)
        total["report"] += sent["statements"]
        left -= len(outcomes)
    for step in ("claim", "settle", "report"):
        show(
            f"{step} in 200s, {name}",
            fires_per_second=fires / spent[step],
            statements_per_fire=total[step] / fires,
        )
    show(f"claim+settle+report, {name}", fires_per_second=fires / sum(spent.values()))
    await lone(app, name)


async def lone(app: App, name: str) -> None:
    """A lone fire, as on an idle node."""
    await make(app, [datetime.now(UTC)] * 20, "lone")
    with counted(app) as sent:
        for _ in range(20):
            claimed = await app.repo.claim(NODE, 1, 50)
            assert len(claimed.started) == 1
    show(f"lone claim, {name}", statements=sent["statements"] / 20)


@contextmanager
def timed(spent: Counter[str], step: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[step] += time.perf_counter() - began  # type: ignore[assignment]


# -- empty polls -----------------------------------------------------------------------------------
async def polls(url: str, name: str, sizes: list[int]) -> None:
    """How long a look at the store takes when nothing is due, by how many tasks it holds."""
    async with opened(url) as app:
        await make(app, [datetime.now(UTC) + timedelta(days=1)], "template")
        have = 1
        for size in sizes:
            began = time.perf_counter()
            await bulk(app, have, size)
            loaded, have = time.perf_counter() - began, size
            seconds = []
            for _ in range(500):
                began = time.perf_counter()
                found = await app.repo.horizon()
                seconds.append(time.perf_counter() - began)
                assert found.next_due is not None
                assert found.next_due > found.now
            cuts = statistics.quantiles(seconds, n=100)
            show(
                f"empty poll, {name}, {size:,} tasks",
                ms_p50=cuts[49] * 1000,
                ms_p99=cuts[98] * 1000,
                loaded_in_seconds=loaded,
            )


async def bulk(app: App, have: int, size: int) -> None:
    """Copy the first task until there are ``size``, due one second after the other."""

    def work(conn: Connection) -> None:
        mysql = on_mysql(conn.dialect)
        own = {
            "uid": "LPAD(HEX(s.seq), 36, '0')" if mysql else "printf('%036x', s.seq)",
            "task_key": "CONCAT('bulk-', s.seq)" if mysql else "'bulk-' || s.seq",
            "next_fire_time": "t.next_fire_time + INTERVAL s.seq SECOND"
            if mysql
            else "strftime('%Y-%m-%d %H:%M:%f000', t.next_fire_time, s.seq || ' seconds')",
        }
        names = [column.name for column in schema.tasks.columns if column.name != "id"]
        values = ", ".join(own.get(column, f"t.{column}") for column in names)
        numbers = (
            f"(SELECT seq FROM seq_{have + 1}_to_{size}) AS s"
            if mysql
            else f"(WITH RECURSIVE n(seq) AS (SELECT {have + 1} UNION ALL SELECT seq + 1 FROM n "
            f"WHERE seq < {size}) SELECT seq FROM n) AS s"
        )
        conn.exec_driver_sql(
            f"INSERT INTO t_cron_task ({', '.join(names)}) SELECT {values} "
            f"FROM {numbers} JOIN t_cron_task AS t ON t.id = 1"
        )

    runner = app.repo._runner  # type: ignore[attr-defined]
    if isinstance(runner, MySqlRunner):
        runner = MySqlRunner(runner.url, 1, call_seconds=1_800)
        await runner.write(work)
        await runner.close()
    else:
        await runner.write(work)


# -- several nodes ---------------------------------------------------------------------------------
@contextmanager
def workers(folder: Path, count: int, **options: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Real nodes with the default settings, up and registered."""
    running = []
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
    for number in range(count):
        given = {"server.port": "0", "scheduler.node_id": f"n{number}", "log.level": "warning"}
        given |= {name.replace("__", "."): value for name, value in options.items()}
        line = [sys.executable, "-m", "crontask_cli", "worker"]
        line += [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
        with (folder / f"n{number}.log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    line, cwd=folder, env={**kept, "HOME": str(folder)}, stdout=log, stderr=log
                )
            )
    try:
        for number in range(count):
            until = time.monotonic() + 60
            while "crontask serves" not in (folder / f"n{number}.log").read_text():
                if time.monotonic() > until or running[number].poll() is not None:
                    raise SystemExit((folder / f"n{number}.log").read_text())
                time.sleep(0.05)
        yield running
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


async def lateness(url: str, redis: str, folder: Path, rate: int, seconds: int) -> None:
    """3 nodes, ``rate`` fires a second, evenly spread: from fire time to arrival at the agent."""
    sink = Sink()
    fires = rate * seconds
    async with opened(url, sink.url) as app:
        began = datetime.now(UTC) + timedelta(seconds=12 + fires / 1_000)
        due = [began + timedelta(seconds=n / rate) for n in range(fires)]
        await make(app, due, "late")
        options = {"store__url": url, "redis__url": redis}
        options["executor__default_callback_url"] = sink.url
        with workers(folder, 3, **options):
            if (early := (began - datetime.now(UTC)).total_seconds()) < 0.5:
                print(f"! the nodes came up {0.5 - early:.1f} s too late", flush=True)
            until = due[-1] + timedelta(seconds=60)
            while sink.ask()["count"] < fires and datetime.now(UTC) < until:
                await asyncio.sleep(0.5)
            await asyncio.sleep(1)
            seen = sink.ask()
            told = "".join(path.read_text() for path in folder.glob("n*.log"))
            spread = await nodes_of(app, fires)
        show(
            f"lateness, 3 nodes, {rate}/s for {seconds} s",
            fires=seen["count"],
            distinct=seen["distinct"],
            **{f"ms_{name}": float(value) for name, value in seen["late_ms"].items()},
            warnings=told.count('"level"'),
        )
        show("  calls by node", **spread)
    sink.close()


async def nodes_of(app: App, fires: int) -> dict[str, int]:
    where = ExecutionFilter(user_id=None, limit=fires)
    rows = (await app.repo.list_executions(where)).rows
    return dict(sorted(Counter(row.executor_node.partition("#")[0] for row in rows).items()))


@attrs.define
class Hanging:
    """An agent that never answers: (fire id, attempt instant) of each call."""

    url: str = ""
    calls: list[tuple[str, float]] = attrs.field(factory=list)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            key = next(x for x in head.split(b"\r\n") if x.lower().startswith(b"idempotency-key:"))
            self.calls.append((key.partition(b":")[2].strip().decode(), time.monotonic()))
            await reader.read()
        writer.close()


@asynccontextmanager
async def hanging() -> AsyncIterator[Hanging]:
    it = Hanging()
    server = await asyncio.start_server(it._take, "127.0.0.1", 0)
    it.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/task/execute"
    try:
        yield it
    finally:
        server.close()


async def takeover(server: MariaDb, redis: str, folder: Path, rounds: int) -> None:
    """kill -9 of a node in the middle of calls: until another node makes them again."""
    took: list[float] = []
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        async with database(server) as url:
            # The kill falls at another moment between two heartbeats each time.
            took += await one_kill(url, redis, place, 3 + 2 * number / rounds)
    show(
        f"take-over after kill -9, {rounds} kills",
        fires=len(took),
        seconds_min=min(took),
        seconds_p50=statistics.median(took),
        seconds_max=max(took),
    )


async def one_kill(url: str, redis: str, folder: Path, wait: float) -> list[float]:
    """Seconds from the kill to the second call, for each fire the killed node was calling."""
    async with hanging() as agent, opened(url, agent.url) as app:
        options = {"store__url": url, "redis__url": redis}
        options["executor__default_callback_url"] = agent.url
        with workers(folder, 3, **options) as nodes:
            await asyncio.sleep(wait)  # each has watched the others' heartbeats
            await make(app, [datetime.now(UTC)] * 30, "kill")
            while len(agent.calls) < 30:
                await asyncio.sleep(0.05)
            where = ExecutionFilter(user_id=None, statuses=(ExecStatus.CALLING,), limit=30)
            rows = (await app.repo.list_executions(where)).rows
            holders = Counter(row.executor_node.partition("#")[0] for row in rows)
            victim, held = holders.most_common(1)[0]
            nodes[int(victim[1:])].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            while len(agent.calls) < 30 + held:
                if time.monotonic() > killed + 28:
                    raise SystemExit(f"{len(agent.calls)} calls, {held} were held")
                await asyncio.sleep(0.05)
            return [at - killed for _, at in agent.calls[30:]]


# -- all of it -------------------------------------------------------------------------------------
async def run(only: set[str], small: bool) -> None:
    scale = 0.25 if small else 1.0
    sizes = [10_000, 100_000] if small else [10_000, 1_000_000]
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", flush=True)
    with (
        tempfile.TemporaryDirectory() as name,
        MariaDb(flush=1, options=["--innodb-buffer-pool-size=512M"]) as server,
        Redis() as redis,
    ):
        folder = Path(name)
        if "claim" in only:
            await claims(f"sqlite:///{folder}/claim.db", "SQLite", scale)
            async with database(server) as url:
                await claims(url, "MariaDB", scale)
        if "late" in only:
            async with database(server) as url:
                await lateness(url, redis.url, folder, 200, 5 if small else 20)
        if "takeover" in only:
            await takeover(server, redis.url, folder, 1 if small else 5)
        if "poll" in only:
            await polls(f"sqlite:///{folder}/poll.db", "SQLite", sizes)
            async with database(server) as url:
                await polls(url, "MariaDB", sizes)
    print(f"load average {os.getloadavg()[0]:.2f} at the end", flush=True)


@asynccontextmanager
async def database(server: MariaDb) -> AsyncIterator[str]:
    with server.database() as url:
        await upgrade(url)
        yield url


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a quarter of it, in about a minute")
    parser.add_argument("--only", default="claim,late,takeover,poll")
    given = parser.parse_args()
    asyncio.run(run(set(given.only.split(",")), given.small))
