"""Batch jobs in real processes on real stores, with a real owner: rhythm, kill -9, SIGTERM, CLI."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from crontask_adapters.sql.upgrade import upgrade
from tests.integration.nodes import Node, crontask, node
from tests.integration.owners import OwnerProcess, sample_owner
from tests.services import free_port

RISK = "/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch"


def configure(folder: Path, sample: OwnerProcess, url: str, **job: object) -> None:
    """A ``crontask.toml`` in the folder, with the job ``risk`` for two apps."""
    values = {
        "owner": "user",
        "method": RISK,
        "interval": "1s",
        "timeout": "3s",
        "lock_ttl": "6s",
        "batch_size": 100,
        "app_codes": ["lalu", "mimi"],
        **job,
    }
    lines = [f"{key} = {str(value).replace(chr(39), chr(34))}" if isinstance(value, list | int)
             else f'{key} = "{value}"' for key, value in values.items()]  # fmt: skip
    (folder / "crontask.toml").write_text(
        f'[store]\nurl = "{url}"\n'
        f'[batch.owners.user]\naddress = "127.0.0.1:{sample.port}"\n'
        f'[batch.owners.web]\ndriver = "http"\naddress = "http://127.0.0.1:{sample.http_port}"\n'
        "[batch.jobs.risk]\n" + "\n".join(lines) + "\n"
    )


@pytest.fixture(params=["sqlite", "mariadb"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind, ready."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'batch.db'}"
    found = str(request.getfixturevalue("mariadb_url"))
    await upgrade(found)
    return found


async def runs(folder: Path, *words: str) -> list[dict[str, Any]]:
    answer = await crontask(folder, "batch", "runs", "--limit", "1000", "--json", *words)
    assert answer.code == 0, answer.err
    return list(reversed(answer.json["runs"]))


def ended(*nodes: Node) -> list[dict[str, Any]]:
    return [event for it in nodes for event in it.events("batch_run_ended")]


async def health(port: int) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        said = await ask(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(said.status))


@pytest.mark.requirement("B2", "B4")
async def test_two_nodes_run_each_app_once_an_interval_and_drain(url: str, tmp_path: Path) -> None:
    with sample_owner("--pieces", "250") as owner:
        configure(tmp_path, owner, url)
        one, two = {"batch__grpc_health_port": "0"}, {"batch__grpc_health_port": "0"}
        async with (
            node(tmp_path, "worker", name="one", **one) as first,
            node(tmp_path, "worker", name="two", **two) as second,
        ):
            await asyncio.sleep(6)
            for it in (first, second):
                it.signal(signal.SIGTERM)
            assert [await first.ended(), await second.ended()] == [0, 0]
        rows = await runs(tmp_path)
    for app in ("lalu", "mimi"):
        mine = [row for row in rows if row["app_code"] == app]
        first_at, last_at = (datetime.fromisoformat(mine[n]["started_at"]) for n in (0, -1))
        seconds = (last_at - first_at).total_seconds()
        assert seconds - 2 <= len(mine) <= seconds + 2
        assert {row["status"] for row in mine} == {"succeeded"}
        assert (mine[0]["processed_count"], mine[0]["batch_count"]) == (250, 3)
        assert sum(row["processed_count"] for row in mine) == 250
    assert len({row["worker_id"] for row in rows}) >= 1
    line = ended(first, second)[0]
    names = "task_name run_id app_code worker_id duration_ms claimed_count processed_count status"
    assert set(names.split()) <= set(line)


@pytest.mark.requirement("B2", "B3")
async def test_a_killed_holder_is_taken_over_and_its_run_abandoned(
    url: str, tmp_path: Path
) -> None:
    with sample_owner("--pieces", "100000", "--seconds", "0.5") as owner:
        configure(tmp_path, owner, url, app_codes=["lalu"], max_round="60s")
        options = {"batch__grpc_health_port": "0"}
        async with node(tmp_path, "worker", name="one", **options) as first:
            await asyncio.to_thread(owner.wait_for, "began")
            async with node(tmp_path, "worker", name="two", **options) as second:
                await asyncio.sleep(1)
                first.signal(signal.SIGKILL)
                await first.ended()
                killed = time.time()
                lost = owner.events[-1]["worker_id"]
                until = killed + 20
                while owner.events[-1]["worker_id"] == lost:
                    assert time.time() < until
                    await asyncio.sleep(0.1)
                assert time.time() - killed < 9
                await second.says("batch_run_ended")
                second.signal(signal.SIGTERM)
                assert await second.ended() == 0
        rows = await runs(tmp_path)
    assert [row["status"] for row in rows][:2] == ["abandoned", "succeeded"]
    assert rows[0]["finished_at"] is not None
    assert rows[0]["error_message"].startswith("taken over by ")
    assert ended(second)[0]["status"] == "abandoned"


@pytest.mark.requirement("B9")
async def test_sigterm_amid_a_drain_ends_after_the_call_under_way(url: str, tmp_path: Path) -> None:
    port = free_port()
    with sample_owner("--pieces", "100000", "--seconds", "1.5") as owner:
        configure(tmp_path, owner, url, app_codes=["lalu"], max_round="60s")
        async with node(tmp_path, "worker", batch__grpc_health_port=str(port)) as it:
            await asyncio.to_thread(owner.wait_for, "began", 2)
            assert await health(port) == "SERVING"
            it.signal(signal.SIGTERM)
            assert await it.ended() == 0
            began, finished = len(owner.of("began")), len(owner.of("done"))
        assert (began, finished) == (2, 2)
        [row] = await runs(tmp_path)
    assert (row["status"], row["batch_count"], row["processed_count"]) == ("succeeded", 2, 200)
    assert row["error_message"] == "this node stops"


async def test_a_port_of_health_that_is_taken_is_told_at_start(tmp_path: Path) -> None:
    with sample_owner() as owner:
        configure(tmp_path, owner, f"sqlite:///{tmp_path / 'batch.db'}")
        taken = {"batch__grpc_health_port": str(owner.port), "server__port": "0"}
        answer = await crontask(tmp_path, "worker", **taken)
    assert answer.code == 5
    assert "PORT_IN_USE" in answer.err and "batch.grpc_health_port" in answer.err


@pytest.mark.requirement("B6")
async def test_an_unknown_method_field_or_owner_fails_at_start(tmp_path: Path) -> None:
    with sample_owner() as owner:
        store = f"sqlite:///{tmp_path / 'batch.db'}"
        configure(tmp_path, owner, store, owner="wallet")
        answer = await crontask(tmp_path, "worker", server__port="0")
        assert answer.code == 2
        assert "there is no owner wallet" in answer.err and "batch.jobs.risk.owner" in answer.err
        configure(tmp_path, owner, store)
        with (tmp_path / "crontask.toml").open("a") as file:
            file.write("extra = {days = 3}\n")
        answer = await crontask(tmp_path, "worker", server__port="0")
    assert answer.code == 2
    assert "has no field days" in answer.err


# -- the command line ------------------------------------------------------------------------------
async def test_an_operator_sees_and_steers_jobs(tmp_path: Path) -> None:
    with sample_owner("--pieces", "30", "--fail", "mimi") as owner:
        configure(tmp_path, owner, f"sqlite:///{tmp_path / 'batch.db'}")
        before = await crontask(tmp_path, "batch", "list", "--json")
        assert [row["state"] for row in before.json["jobs"]] == ["new", "new"]
        ran = await crontask(tmp_path, "batch", "run", "risk", "--app-code", "lalu", "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["run"]["status"], ran.json["run"]["processed_count"]) == ("succeeded", 30)
        failed = await crontask(tmp_path, "batch", "run", "risk", "--app-code", "mimi")
        assert failed.code == 1
        assert "UNAVAILABLE" in failed.err and "down on purpose" in failed.err
        paused = await crontask(tmp_path, "batch", "pause", "risk", "--app-code", "mimi")
        assert (paused.code, paused.out.strip()) == (0, "risk is paused for mimi.")
        lalu, mimi = (await crontask(tmp_path, "batch", "list", "--json")).json["jobs"]
        assert (lalu["state"], lalu["failures"], lalu["last_run"]["status"]) == (
            "waiting",
            0,
            "succeeded",
        )
        assert (mimi["state"], mimi["failures"], mimi["backoff"]) == ("paused", 1, "1s")
        shown = await crontask(tmp_path, "batch", "list")
        assert "2 in all apps" in shown.out and "HOLDER" in shown.out
        resumed = await crontask(tmp_path, "batch", "resume", "risk")
        assert resumed.out.strip() == "risk is resumed for lalu, mimi."
        only = await runs(tmp_path, "risk", "--status", "failed")
        assert [row["app_code"] for row in only] == ["mimi"]


async def test_a_run_that_a_node_is_making_is_not_made_again(tmp_path: Path) -> None:
    with sample_owner("--pieces", "100000", "--seconds", "1") as owner:
        configure(tmp_path, owner, f"sqlite:///{tmp_path / 'b.db'}", app_codes=["lalu"])
        async with node(tmp_path, "worker", batch__grpc_health_port="0"):
            await asyncio.to_thread(owner.wait_for, "began")
            answer = await crontask(tmp_path, "batch", "run", "risk")
            assert answer.code == 4
            assert "risk runs for lalu right now" in answer.err
        unknown = await crontask(tmp_path, "batch", "run", "nothing", "--json")
    assert unknown.code == 3
    assert "BATCH_JOB_NOT_FOUND" in unknown.err + unknown.out


async def test_an_owner_over_http_is_drained_as_well(tmp_path: Path) -> None:
    with sample_owner("--pieces", "250") as owner:
        store = f"sqlite:///{tmp_path / 'batch.db'}"
        configure(tmp_path, owner, store, owner="web", app_codes=["lalu"])
        ran = await crontask(tmp_path, "batch", "run", "risk", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["run"]["batch_count"], ran.json["run"]["processed_count"]) == (3, 250)


async def test_doctor_tells_of_owners_and_of_jobs_that_nobody_runs(tmp_path: Path) -> None:
    def batch_checks(answer: Any) -> dict[str, tuple[str, str]]:
        found = {check["name"]: (check["state"], check["found"]) for check in answer.json["checks"]}
        return {name: told for name, told in found.items() if name.startswith(("batch", "owner"))}

    with sample_owner("--fail", "mimi") as owner:
        configure(tmp_path, owner, f"sqlite:///{tmp_path / 'batch.db'}", interval="10ms")
        unseen = batch_checks(await crontask(tmp_path, "doctor", "--json"))
        assert unseen == {
            "batch ticks": ("bad", "not run when due: risk/lalu, risk/mimi"),
            "owner user": ("ok", "SERVING"),
        }
        async with node(tmp_path, "worker", batch__grpc_health_port="0") as it:
            await it.says('"consecutive_failures":4')
            seen = batch_checks(await crontask(tmp_path, "doctor", "--json"))
            nodes = await crontask(tmp_path, "nodes", "--json")
        assert seen["batch failures"][0] == "warn"
        assert seen["batch failures"][1].startswith("risk/mimi (")
        assert [row["roles"] for row in nodes.json["nodes"]] == [["batch", "scheduler"]]
    gone = batch_checks(await crontask(tmp_path, "doctor", "--json"))
    assert gone["owner user"][0] == "bad"


async def test_old_runs_are_pruned_with_the_rest(tmp_path: Path) -> None:
    with sample_owner() as owner:
        configure(tmp_path, owner, f"sqlite:///{tmp_path / 'batch.db'}", app_codes=["lalu"])
        await crontask(tmp_path, "batch", "run", "risk")
    with closing(sqlite3.connect(tmp_path / "batch.db")) as raw:
        raw.execute("UPDATE cron_task_runs SET started_at_ms = started_at_ms - 8 * 86400000")
        raw.commit()
    pruned = await crontask(tmp_path, "db", "prune", "--json")
    assert pruned.json["deleted"] == 1
    assert await runs(tmp_path) == []
