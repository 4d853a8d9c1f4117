"""Nodes wake each other: a task made where nothing fires is fired on time elsewhere (DESIGN 3.3).

MariaDB, Redis and every node are real; the poll is slow, so that only a hint can be in time.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import attrs
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from crontask_adapters.sql.upgrade import upgrade
from tests.integration.nodes import Node, Sink, crontask, node, sink
from tests.services import MariaDb, Redis

POLL = 4.0
DUE = 0.3
ON_TIME = 1.5
"""Seconds after the fire time that are a hint's doing and not the poll's, on a busy machine."""


@attrs.define
class Cluster:
    """An API-only node and a worker on one store."""

    api: Node
    worker: Node
    agent: Sink
    options: dict[str, str]
    made: int = 0

    async def create(self, client: Client, delay: float = DUE) -> float:
        """Make a task through the API-only node; returns its delivery's lateness in seconds."""
        self.made += 1
        arguments = {
            "task_name": "soon",
            "task_content": "say hello",
            "task_key": f"soon-{self.made}",
            "conversation_id": "conv-1",
            "schedule_type": 1,
            "delay_seconds": delay,
        }
        due = time.time() + delay
        answer = await client.call_tool("create_cron_task", arguments)
        assert not answer.is_error, answer
        await self.agent.got(self.made, seconds=4 * POLL)
        key, arrived, _ = self.agent.calls[-1]
        assert key == f"soon-{self.made}"
        return arrived - due

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        found = re.search(r"MCP at (http://\S+/mcp)", self.api.told())
        assert found is not None
        async with create_mcp_http_client() as http:
            transport = streamable_http_client(found[1], http_client=http)
            async with Client(transport, mode="auto") as client:
                yield client


@asynccontextmanager
async def cluster(folder: Path, server: MariaDb, **more: str) -> AsyncIterator[Cluster]:
    async with sink() as agent:
        with server.database() as url:
            await upgrade(url)
            options = {
                "store__url": url,
                "scheduler__poll_interval": f"{POLL:g}s",
                "executor__default_callback_url": agent.url,
                **more,
            }
            async with (
                node(folder, "worker", **options) as worker,
                node(folder, "serve", "--no-scheduler", name="api", **options) as api,
            ):
                yield Cluster(api, worker, agent, options)


@pytest.mark.requirement("A5.5")
async def test_a_task_made_on_an_api_only_node_fires_on_time_on_a_worker(
    mariadb_server: MariaDb, redis_server: Redis, tmp_path: Path
) -> None:
    redis_server.flush()
    async with cluster(tmp_path, mariadb_server, redis__url=redis_server.url) as nodes:
        async with nodes.client() as client:
            late = [await nodes.create(client) for _ in range(3)]
        assert max(late) < ON_TIME, late
        made = await crontask(
            tmp_path,
            *("create", "soon", "--content", "say hello", "--in", "300ms", "--key", "shell"),
            **nodes.options,
        )
        assert 0 == made.code, made.err
        told = time.time()
        await nodes.agent.got(4, seconds=4 * POLL)
        assert nodes.agent.calls[-1][1] - told < ON_TIME
        assert "serve" in nodes.api.told()
        assert not nodes.api.events("fire_started")


@pytest.mark.requirement("A5.5")
async def test_without_redis_the_poll_finds_the_task(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    async with cluster(tmp_path, mariadb_server) as nodes, nodes.client() as client:
        assert await nodes.create(client) < POLL + ON_TIME


@pytest.mark.requirement("A5.5")
async def test_redis_killed_meanwhile_costs_a_poll_at_most_and_is_found_again(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    with Redis() as redis:
        async with (
            cluster(tmp_path, mariadb_server, redis__url=redis.url) as nodes,
            nodes.client() as client,
        ):
            assert await nodes.create(client) < ON_TIME
            redis.kill()
            late = [await nodes.create(client), await nodes.create(client)]
            assert max(late) < POLL + ON_TIME, late
            await anyio.to_thread.run_sync(redis.start)
            # Listeners come back after a back-off, and each sender after its pause.
            with anyio.fail_after(60):
                while await nodes.create(client) > ON_TIME:
                    pass
        for process in (nodes.api, nodes.worker):
            assert not process.events("pass_failed"), process.told()


@pytest.mark.requirement("A5.5")
async def test_nodes_start_without_redis_and_say_so(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    with Redis() as redis:
        url = redis.url
    async with cluster(tmp_path, mariadb_server, redis__url=url) as nodes:
        for process in (nodes.api, nodes.worker):
            assert "Redis (redis.url) cannot be used now" in process.told()
        async with nodes.client() as client:
            assert await nodes.create(client) < POLL + ON_TIME
