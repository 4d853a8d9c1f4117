"""``make demo-batch``: batch jobs of an owner service, live: three nodes, two apps, and trouble."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import click

from crontask_adapters.clock import SystemClock
from crontask_cli.demo_stage import free_ports

__all__ = ["main"]

_NODES = ("node-a", "node-b", "node-c")
_PIECES = 450
_REFUSALS = 3
_CONFIG = """\
[store]
url = "sqlite:///{folder}/batch.db"
[log]
format = "json"
[server]
port = 0
[batch]
grpc_health_port = 0
caller = "demo"
[batch.owners.user]
address = "127.0.0.1:{owner}"
[batch.jobs.login_ip_risk]
owner = "user"
method = "/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch"
interval = "1s"
timeout = "2s"
lock_ttl = "6s"
batch_size = 100
app_codes = ["lalu", "mimi"]
[batch.jobs.user_region_rebuild]
owner = "user"
method = "/hyapp.user.v1.UserCronService/ProcessRegionRebuildBatch"
interval = "1s"
timeout = "2s"
lock_ttl = "6s"
max_round = "30s"
batch_size = 10
app_codes = ["lalu"]
"""


class Off(Exception):
    """The demo did not show what it should."""


@attrs.define
class Show:
    """The processes, and what they have told so far: their log lines as they are written."""

    folder: Path
    clock: SystemClock = attrs.Factory(SystemClock)
    processes: dict[str, asyncio.subprocess.Process] = attrs.Factory(dict)
    owner: list[dict[str, Any]] = attrs.Factory(list)
    ended: list[dict[str, Any]] = attrs.Factory(list)
    _listeners: list[asyncio.Task[None]] = attrs.Factory(list)

    async def start(self) -> int:
        """Start the owner and the nodes; the port on which the first node tells its health."""
        (health,) = free_ports(1)
        options = ["--pieces", str(_PIECES), "--seconds", "0.15", "--fail", f"mimi:{_REFUSALS}"]
        await self._spawn("owner", "crontask_server.sample_owner", "--port", "0", *options)
        port = (await self._until(lambda: self.owner, "the owner to listen"))[0]["port"]
        config = _CONFIG.format(folder=self.folder, owner=port)
        (self.folder / "crontask.toml").write_text(config, encoding="utf-8")
        for name in _NODES:
            more = ["-o", f"batch.grpc_health_port={health}"] if name == _NODES[0] else []
            line = ["worker", "-o", f"scheduler.node_id={name}", *more]
            await self._spawn(name, "crontask_cli", *line)
        return health

    async def _spawn(self, name: str, module: str, *words: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
        out = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out if name == "owner" else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL if name == "owner" else out,
            env=environ,
            cwd=self.folder,
            start_new_session=True,
        )
        self.processes[name] = process
        stream = process.stdout if name == "owner" else process.stderr
        assert stream is not None
        self._listeners.append(asyncio.create_task(self._listen(name, stream)))

    async def _listen(self, name: str, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if name == "owner":
                    self.owner.append(event)
                elif event["event"] == "batch_run_ended":
                    self.ended.append(event)
                    _say(_told(event), event["timestamp"])

    async def _until(self, found: Callable[[], Any], what: str, seconds: float = 25.0) -> Any:
        """What ``found`` finds, as soon as it does."""
        until = self.clock.elapsed() + seconds
        while not (answer := found()):
            if self.clock.elapsed() > until:
                raise Off(f"waited {seconds:g} s for {what}")
            await self.clock.sleep(0.03)
        return answer

    def runs(self, job: str, app: str, status: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self.ended
            if (event["task_name"], event["app_code"], event["status"]) == (job, app, status)
        ]

    async def kill_the_holder(self) -> tuple[str, str]:
        """kill -9 the node that drains the long job; its name, and its run."""

        def third_batch() -> dict[str, Any] | None:
            begun = [e for e in self.owner if e.get("method") == "ProcessRegionRebuildBatch"]
            return begun[-1] if len([e for e in begun if e["event"] == "began"]) >= 3 else None

        event = await self._until(third_batch, "the long drain")
        name = str(event["worker_id"]).split("#", maxsplit=1)[0]
        self.processes[name].kill()
        await self.processes[name].wait()
        return name, str(event["run_id"])

    async def stop_nodes(self) -> dict[str, int | None]:
        """SIGTERM to every node that lives; their exit codes."""
        nodes = {name: self.processes[name] for name in _NODES}
        alive = {name: p for name, p in nodes.items() if p.returncode is None}
        for process in alive.values():
            process.terminate()
        async with asyncio.timeout(15):
            for process in alive.values():
                await process.wait()
        return {name: process.returncode for name, process in alive.items()}

    async def close(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    async def stored_runs(self) -> list[dict[str, Any]]:
        """What ``crontask batch runs`` shows, the oldest first."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crontask_cli", "batch", "runs", "--limit", "1000", "--json"),
            stdout=asyncio.subprocess.PIPE,
            cwd=self.folder,
        )
        out, _ = await process.communicate()
        return list(reversed(json.loads(out)["runs"]))


def _told(event: dict[str, Any]) -> str:
    node = str(event["worker_id"]).split("#", maxsplit=1)[0]
    head = f"{node}  {event['task_name']}/{event['app_code']}: {event['status']}"
    if event["status"] == "succeeded":
        head += f", {event['processed_count']} pieces in {event['batch_count']} batches"
    if event.get("consecutive_failures"):
        head += f", {event['consecutive_failures']} in a row"
    return head + (f" ({event['reason']})" if event["reason"] else "")


def _head(text: str) -> None:
    click.echo("\n" + click.style(text, bold=True))


def _say(text: str, at: str = "") -> None:
    moment = datetime.fromisoformat(at).astimezone() if at else None
    stamp = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}  " if moment else ""
    click.echo(f"  {stamp}{text}")


async def _serving(port: int) -> str:
    import grpc
    from grpc_health.v1 import health_pb2 as pb

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=pb.HealthCheckRequest.SerializeToString,
            response_deserializer=pb.HealthCheckResponse.FromString,
        )
        said = await ask(pb.HealthCheckRequest(), timeout=20, wait_for_ready=True)
    return str(pb.HealthCheckResponse.ServingStatus.Name(said.status))


async def _perform(show: Show) -> list[str]:
    began = show.clock.elapsed()
    _head("Three nodes, one owner service, two apps")
    health = await show.start()
    _say("each job runs once an interval for each app, whichever node is the first")
    await show._until(lambda: show.ended, "a first run")
    while (status := await _serving(health)) != "SERVING":
        await show.clock.sleep(0.1)
    _say(f"gRPC health of {_NODES[0]}: {status}")
    _head("A node is killed while it drains")
    killed, run_id = await show.kill_the_holder()
    _say(f"kill -9 {killed}: its run {run_id[:8]} is open, its lease holds for at most 6 s")
    job, long = "login_ip_risk", "user_region_rebuild"
    await show._until(lambda: show.runs(long, "lalu", "abandoned"), "the take-over")
    _say("taken over: the old run is closed as abandoned, the work goes on")
    await show._until(lambda: show.runs(long, "lalu", "succeeded"), "the end of the long drain")
    await show._until(lambda: show.runs(job, "mimi", "succeeded"), "mimi to recover")
    _head("Clean stop")
    codes = await show.stop_nodes()
    _say(", ".join(f"{name} ended with {code}" for name, code in codes.items()))
    runs = await show.stored_runs()
    problems = [*_faults(show, runs, run_id), *(["a node did not end well"] * any(codes.values()))]
    _tell_end(show, runs, problems, show.clock.elapsed() - began)
    return problems


def _faults(show: Show, runs: list[dict[str, Any]], killed_run: str) -> Iterator[str]:
    """What is off, judged by the stored runs and by what the owner saw."""
    if any(run["status"] == "running" for run in runs):
        yield "a run is still open"
    abandoned = {run["run_id"]: run["worker_id"] for run in runs if run["status"] == "abandoned"}
    if killed_run not in abandoned or len(set(abandoned.values())) != 1:
        yield f"abandoned are {abandoned}, the killed run is {killed_run}"
    mimi = [r for r in runs if (r["task_name"], r["app_code"]) == ("login_ip_risk", "mimi")]
    starts = [datetime.fromisoformat(run["started_at"]) for run in mimi]
    gaps = [(b - a).total_seconds() for a, b in pairwise(starts)]
    if [run["status"] for run in mimi[: _REFUSALS + 1]] != ["failed"] * _REFUSALS + ["succeeded"]:
        yield "mimi was to fail three times and then succeed"
    elif not all(low - 0.6 <= gap <= low + 1.6 for gap, low in zip(gaps, (1, 2, 4), strict=False)):
        yield f"the back-off of mimi was {gaps[:3]}"
    done: dict[tuple[str, str], int] = {}
    for event in show.owner:
        if event["event"] == "done":
            key = (event["method"], event["app_code"])
            done[key] = done.get(key, 0) + event["processed"]
    if set(done.values()) != {_PIECES} or len(done) != 3:
        yield f"each of three piles of {_PIECES} was to be done once: {done}"
    keys = {(run["task_name"], run["app_code"]) for run in runs}
    for key in keys:
        mine = [r for r in runs if (r["task_name"], r["app_code"]) == key]
        first, last = (datetime.fromisoformat(mine[n]["started_at"]) for n in (0, -1))
        whole = sum(run["status"] != "abandoned" for run in mine)
        if whole > (last - first).total_seconds() + 2:
            yield f"{key} ran {whole} times in {(last - first).total_seconds():.1f} s"


def _tell_end(show: Show, runs: list[dict[str, Any]], problems: list[str], seconds: float) -> None:
    _head("What is on record")
    for status in ("succeeded", "failed", "abandoned"):
        _say(f"{sum(run['status'] == status for run in runs):>3} {status}")
    if not problems:
        _say("No interval had two runs, no lease two holders; every piece was done exactly once.")
        _say(f"All good, in {seconds:.1f} s. Every process has ended.")
    for problem in problems:
        _say(f"OFF: {problem}")


async def _play() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="crontask-batch-") as name:
        show = Show(Path(name))
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        try:
            return await _perform(show)
        finally:
            await show.close()


def main() -> None:
    """Play it; exit 1 with the reason when something is off."""
    try:
        problems = asyncio.run(_play())
    except (Off, TimeoutError) as error:
        click.echo(f"the demo is off: {error or 'a process did not end'}", err=True)
        sys.exit(1)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
