"""Roles, the list of nodes, and several processes on one machine by one option; all real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crontask_adapters.sql.upgrade import upgrade
from tests.integration.nodes import Node, Sink, crontask, node, sink
from tests.services import MariaDb

FAST = {"scheduler__heartbeat": "500ms", "scheduler__node_timeout": "3s"}


@pytest.fixture(params=["sqlite", "mariadb"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an empty store with tables, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tasks.db'}"
        return
    server: MariaDb = request.getfixturevalue("mariadb_server")
    with server.database() as url:
        await upgrade(url)
        yield url


@asynccontextmanager
async def family(folder: Path, command: str, count: int, **options: str) -> AsyncIterator[Node]:
    """``crontask COMMAND --processes N``, all of them up. No child outlives the block."""
    async with node(folder, command, "--processes", str(count), **options) as parent:
        try:
            await parent.says("crontask serves", count)
            yield parent
        finally:
            for pid in pids(parent):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def pids(parent: Node) -> list[int]:
    """The children in the order in which they were started."""
    return [int(pid) for pid in re.findall(r"process \d+ has pid (\d+)", parent.told())]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(children: list[int], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while any(is_alive(pid) for pid in children):
            await asyncio.sleep(0.05)


async def listed(folder: Path, store: str, *words: str) -> Any:
    done = await crontask(folder, "nodes", *words, "--json", store__url=store)
    assert 0 == done.code, done.err
    return done.json


async def make(folder: Path, agent: Sink, store: str, count: int) -> None:
    """``count`` tasks that are due at once."""
    lines = "\n".join(
        f'{{"task_name": "t", "task_content": "c", "task_key": "k{n}", "conversation_id": "c", '
        f'"schedule_type": 1, "delay_seconds": 1}}'
        for n in range(count)
    )
    (folder / "tasks.jsonl").write_text(lines)
    done = await crontask(
        *(folder, "import", "tasks.jsonl"),
        store__url=store,
        executor__default_callback_url=agent.url,
    )
    assert 0 == done.code, done.err


# -- roles ---------------------------------------------------------------------------------------


async def test_an_api_only_process_fires_nothing_and_a_worker_serves_no_mcp(
    store: str, tmp_path: Path
) -> None:
    async with sink() as agent:
        options = {"store__url": store, "executor__default_callback_url": agent.url, **FAST}
        async with node(tmp_path, "serve", "--no-scheduler", name="api", **options) as api:
            nodes = await listed(tmp_path, store)
            assert [["api"]] == [row["roles"] for row in nodes["nodes"]]
            assert (1, 0) == (nodes["alive"], nodes["firing"])
            await make(tmp_path, agent, store, 3)
            shown = await crontask(tmp_path, "list", "--json", store__url=store)
            assert 3 == shown.json["total"], shown.out
            await asyncio.sleep(2.5)
            assert [] == agent.calls
            async with node(tmp_path, "worker", **options) as worker:
                await agent.got(3)
                assert "/mcp" not in worker.told()
                assert "/mcp" in api.told()
                nodes = await listed(tmp_path, store)
                assert [["api"], ["scheduler"]] == [row["roles"] for row in nodes["nodes"]]
                assert (2, 1) == (nodes["alive"], nodes["firing"])
            for process in (api, worker):
                assert [] == process.events("pass_failed")


async def test_nodes_says_who_lives_since_when_in_which_role_and_who_has_ended(
    store: str, tmp_path: Path
) -> None:
    options = {"store__url": store, **FAST}
    async with node(tmp_path, "worker", scheduler__node_id="left", **options) as left:
        left.signal(signal.SIGTERM)
        assert 0 == await left.ended()
    async with (
        node(tmp_path, "serve", "--no-scheduler", scheduler__node_id="api", **options) as api,
        node(tmp_path, "worker", scheduler__node_id="killed", name="k", **options) as killed,
        node(tmp_path, "worker", scheduler__node_id="there", **options) as there,
    ):
        killed.signal(signal.SIGKILL)
        await killed.ended()
        await there.says('"what":"retired"')
        found = await listed(tmp_path, store, "--all")
        rows = {row["node_id"]: row for row in found["nodes"]}
        states = {"left": "ended", "api": "alive", "killed": "ended", "there": "alive"}
        assert states == {name: row["state"] for name, row in rows.items()}
        assert "2 nodes alive, 1 of them fire." == found["message"]
        assert rows["killed"]["retired_at"] > rows["left"]["retired_at"]
        assert rows["there"]["retired_at"] is None
        assert rows["there"]["started_at"] <= rows["there"]["seen_at"]
        assert {"0.1.0"} == {row["version"] for row in rows.values()}
        shown = await crontask(tmp_path, "nodes", store__url=store)
        assert ["api", "there"] == sorted(line.split()[0] for line in shown.out.splitlines()[1:-1])
        api.signal(signal.SIGTERM)
        assert 0 == await api.ended()
        assert 1 == (await listed(tmp_path, store))["alive"]


# -- several processes ---------------------------------------------------------------------------


@pytest.mark.requirement("A5.2")
async def test_one_option_starts_several_nodes_that_share_the_work_and_end_together(
    store: str, tmp_path: Path
) -> None:
    async with sink() as agent:
        options = {"store__url": store, "executor__default_callback_url": agent.url, **FAST}
        async with family(tmp_path, "serve", 3, scheduler__node_id="box", **options) as parent:
            nodes = (await listed(tmp_path, store))["nodes"]
            roles = {row["node_id"]: row["roles"] for row in nodes}
            assert {
                "box/1": ["api", "scheduler"],
                "box/2": ["scheduler"],
                "box/3": ["scheduler"],
            } == roles
            assert 1 == parent.told().count("serves MCP at")
            await make(tmp_path, agent, store, 60)
            await agent.got(60)
            children = pids(parent)
            parent.signal(signal.SIGTERM)
            assert 0 == await parent.ended()
            assert [] == [pid for pid in children if is_alive(pid)]
            assert 60 == len({body["fire_id"] for _, _, body in agent.calls}) == len(agent.calls)
        ended = await listed(tmp_path, store, "--all")
        assert (0, 3) == (ended["alive"], len(ended["nodes"]))


@pytest.mark.requirement("A5.2")
async def test_a_crashed_process_is_started_again_and_the_others_go_on(
    store: str, tmp_path: Path
) -> None:
    async with family(tmp_path, "worker", 2, store__url=store, **FAST) as parent:
        first, second = pids(parent)
        os.kill(second, signal.SIGKILL)
        await parent.says("crontask serves", 3)
        assert "process 2 crashed (signal 9), again in 0.5 s" in parent.told()
        _, _, third = pids(parent)
        assert is_alive(first)
        assert is_alive(third)
        parent.signal(signal.SIGINT)
        assert 0 == await parent.ended()
        await gone([first, third], 1)


@pytest.mark.requirement("A5.2")
async def test_the_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    async with hanging_agent() as (url, called):
        options = {"executor__default_callback_url": url}
        options["store__url"] = store = f"sqlite:///{tmp_path / 'tasks.db'}"
        async with family(tmp_path, "worker", 2, **options) as parent:
            await make(tmp_path, Sink(url), store, 4)
            async with asyncio.timeout(20):
                await called.wait()
            children = pids(parent)
            parent.signal(signal.SIGTERM)
            await asyncio.sleep(1)
            assert any(is_alive(pid) for pid in children), "calls under way were not waited for"
            parent.signal(signal.SIGTERM)
            await parent.ended(10)
            assert [] == [pid for pid in children if is_alive(pid)]


@asynccontextmanager
async def hanging_agent() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An agent that takes a call and does not answer, and whether it has been called."""
    called, end = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        await end.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/task/execute", called
    finally:
        end.set()
        server.close()


@pytest.mark.requirement("A5.2")
async def test_children_end_in_order_when_their_parent_is_killed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with family(tmp_path, "worker", 2, store__url=store) as parent:
        children = pids(parent)
        parent.signal(signal.SIGKILL)
        await parent.ended()
        await gone(children, 15)
        nodes = await listed(tmp_path, store, "--all")
        assert ["ended", "ended"] == [row["state"] for row in nodes["nodes"]]


async def test_a_store_that_cannot_be_used_ends_all_with_its_exit_code(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    with mariadb_server.database() as url:
        done = await crontask(tmp_path, "worker", "--processes", "3", store__url=url)
    assert 5 == done.code, done.err
    assert "crontask db upgrade" in done.err
    assert "again in" not in done.err


async def test_a_wrong_configuration_is_told_once_by_the_parent(tmp_path: Path) -> None:
    done = await crontask(tmp_path, "serve", "--processes", "3", scheduler__claim_batch="many")
    assert 2 == done.code
    assert 1 == done.err.count("scheduler.claim_batch")
