"""The HTTP server as a real process: MCP in both eras, tokens, hosts, health, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from crontask_adapters.settings import ServerSettings, Settings, StoreSettings
from crontask_adapters.wiring import open_app
from crontask_core.errors import Unavailable
from crontask_server.http_serve import serve_http
from tests.faces import CRON, call, refused
from tests.integration.served import Served, agent, environment, served, token_config, until

URL = "http://127.0.0.1:9/v1/task/execute"
READ, ANN, EVE, GA, REPORT = "t-read", "t-ann", "t-eve", "t-ga", "t-report"
TOKENS = token_config(
    {
        READ: {"name": "reader", "scopes": ["read"], "user": "ann"},
        ANN: {"name": "ann", "scopes": ["read", "write", "report"], "user": "ann"},
        EVE: {"name": "eve", "scopes": ["read", "write", "report"], "user": "eve"},
        GA: {"name": "ga", "scopes": ["read", "write", "report", "act_as"]},
        REPORT: {"name": "reporter", "scopes": ["report"]},
    }
)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without tokens that fires nothing: its agent is not there."""
    folder = tmp_path_factory.mktemp("open")
    with served(folder, "--no-scheduler", executor__default_callback_url=URL) as server:
        yield server


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tokens")
    with served(
        folder, "--no-scheduler", config=TOKENS, executor__default_callback_url=URL
    ) as server:
        yield server


def get(server: Served, path: str, **headers: str) -> httpx2.Response:
    return httpx2.get(
        server.url + path, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def post(server: Served, body: object, path: str = "/mcp", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(server.url + path, content=content, headers=sent | named)


def ask(method: str = "tools/list", **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


# -- MCP -----------------------------------------------------------------------------------------


@pytest.mark.requirement("A4.2", "A4.2b")
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_client_of_either_era_works_over_http(open_server: Served, era: str) -> None:
    async with open_server.client(era) as client:
        assert 13 == len((await client.list_tools()).tools)
        key = f"http-{era}"
        made = await call(client, "create_cron_task", **CRON, task_key=key)
        assert made["created"] is True
        assert "in " in made["next_fire_time"]["in"]
        shown = await call(client, "get_cron_task", task_key=key)
        assert CRON["task_content"] == shown["task_content"]
        rows = (await call(client, "list_cron_tasks"))["tasks"]
        assert key in [row["task_key"] for row in rows]
        error = await refused(client, "create_cron_task", **CRON, cron="0 9 * * *")
        assert ("UNKNOWN_ARGUMENT", "cron_expr") == (error["code"], error["candidates"][0])
        assert 3 == (await call(client, "delete_cron_task", task_key=key))["status"]


@pytest.mark.requirement("A4.2")
def test_a_caller_needs_no_mcp_library_and_no_session(open_server: Served) -> None:
    body = ask("tools/call", name="get_scheduler_info", arguments={})
    legacy = post(open_server, body)
    assert 200 == legacy.status_code
    assert legacy.json()["result"]["structuredContent"]["ok"] is True
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    modern = post(
        open_server,
        ask("tools/call", name="get_scheduler_info", arguments={}, _meta=meta),
        mcp_protocol_version="2026-07-28",
        mcp_method="tools/call",
        mcp_name="get_scheduler_info",
    )
    assert 200 == modern.status_code
    assert modern.json()["result"]["structuredContent"]["ok"] is True


def test_a_body_that_is_too_large_and_one_that_is_no_json_are_refused(open_server: Served) -> None:
    assert 413 == post(open_server, b"x" * (5 * 1024 * 1024)).status_code
    assert 400 == post(open_server, b"{not json").status_code
    assert 307 == post(open_server, ask(), "/mcp/").status_code


def test_a_lone_surrogate_does_no_harm(open_server: Served) -> None:
    text = json.dumps(CRON | {"task_content": "X"}).replace('"X"', '"\\ud83d"')
    body = json.dumps(ask("tools/call", name="create_cron_task", arguments={})).replace(
        '"arguments": {}', f'"arguments": {text}'
    )
    answer = post(open_server, body.encode())
    assert "isError" in answer.text or answer.json()["error"]["code"] in (-32700, -32600, -32602)
    assert 200 == get(open_server, "/healthz").status_code


# -- hosts, health, metrics ----------------------------------------------------------------------


@pytest.mark.requirement("X-I2")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example.com"}, 421),
        ({"origin": "http://evil.example.com"}, 403),
        ({"host": "localhost:1234"}, 200),
    ],
)
def test_a_strange_host_or_origin_is_refused(
    open_server: Served, headers: dict[str, str], status: int
) -> None:
    body = ask("tools/call", name="get_scheduler_info", arguments={})
    assert status == post(open_server, body, **headers).status_code


@pytest.mark.requirement("X-I2")
def test_a_host_of_the_settings_is_taken_and_the_list_is_printed(tmp_path: Path) -> None:
    with served(
        tmp_path,
        "--no-scheduler",
        server__allowed_hosts="crontask.example.com",
        server__allowed_origins="https://console.example.com",
    ) as server:
        body = ask("tools/call", name="get_scheduler_info", arguments={})
        for host in ("crontask.example.com", "crontask.example.com:8443"):
            assert 200 == post(server, body, host=host).status_code
        assert 200 == post(server, body, origin="https://console.example.com").status_code
        assert "crontask.example.com:*" in server.told()
        assert "No token is needed; callers act as user local." in server.told()


@pytest.mark.requirement("X-I2")
def test_health_and_readiness_are_open_even_under_a_strange_name(token_server: Served) -> None:
    for path in ("/healthz", "/readyz"):
        answer = get(token_server, path, host="10.1.2.3:8350")
        assert 200 == answer.status_code
    ready = get(token_server, "/readyz").json()
    assert {"ready": True, "store": True, "loops": True, "stopping": False} == ready


@pytest.mark.requirement("X-I2")
def test_metrics_need_a_token_or_an_own_host(open_server: Served, token_server: Served) -> None:
    assert 200 == get(open_server, "/metrics").status_code
    assert 421 == get(open_server, "/metrics", host="evil.example.com").status_code
    assert 401 == get(token_server, "/metrics").status_code
    assert 401 == get(token_server, "/metrics", authorization="Bearer nope").status_code
    assert 403 == get(token_server, "/metrics", authorization=f"Bearer {REPORT}").status_code
    page = get(token_server, "/metrics", authorization=f"Bearer {READ}")
    assert "crontask_" in page.text


@pytest.mark.requirement("X-I2")
def test_metrics_are_open_when_told(tmp_path: Path) -> None:
    with served(tmp_path, "--no-scheduler", config=TOKENS, server__open_metrics="true") as server:
        assert 200 == get(server, "/metrics", host="10.1.2.3").status_code


def test_a_worker_serves_health_but_no_mcp(tmp_path: Path) -> None:
    with served(tmp_path, command="worker", executor__default_callback_url=URL) as server:
        ready = get(server, "/readyz").json()
        assert {"store": True, "loops": True, "stopping": False, "ready": True} == ready
        assert 404 == post(server, ask()).status_code
        server.signal()
        assert 0 == server.wait(10)


# -- tokens --------------------------------------------------------------------------------------


@pytest.mark.requirement("X-I1")
def test_without_a_valid_token_nothing_is_reached(token_server: Served) -> None:
    assert "A bearer token is needed (5 configured)." in token_server.told()
    for headers in ({}, {"authorization": "Bearer nope"}, {"authorization": f"Basic {ANN}"}):
        answer = post(token_server, ask(), **headers)
        assert 401 == answer.status_code
        assert "Bearer" in answer.headers["www-authenticate"]
    assert ANN not in token_server.told()


@pytest.mark.requirement("X-I1")
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_tokens_say_who_may_do_what(token_server: Served, era: str) -> None:
    key = f"tok-{era}"
    async with token_server.client(era, ANN) as ann:
        made = await call(ann, "create_cron_task", **CRON, task_key=key)
        task_id = made["task_id"]
        assert "ann" == made["user_id"]
        error = await refused(ann, "list_cron_tasks", user_id="eve")
        assert "FORBIDDEN" == error["code"]
    async with token_server.client(era, READ) as reader:
        await call(reader, "get_cron_task", task_id=task_id)
        error = await refused(reader, "delete_cron_task", task_id=task_id)
        assert "FORBIDDEN" == error["code"]
    async with token_server.client(era, EVE) as eve:
        error = await refused(eve, "get_cron_task", task_id=task_id)
        assert "TASK_NOT_FOUND" == error["code"]
        assert (await call(eve, "create_cron_task", **CRON, task_key=key))["created"] is True
    async with token_server.client(era, GA) as ga:
        meta = {"io.crontask/user_id": "ann"}
        assert key == (await call(ga, "get_cron_task", meta, task_id=task_id))["task_key"]
        assert "MISSING_ARGUMENT" == (await refused(ga, "get_cron_task", task_id=task_id))["code"]
    async with token_server.client(era, REPORT) as reporter:
        assert "FORBIDDEN" == (await refused(reporter, "get_cron_task", task_id=task_id))["code"]
        report = {"task_id": task_id, "task_run_id": "r", "status": "success"}
        assert "RUN_NOT_FOUND" == (await refused(reporter, "report_task_result", **report))["code"]


@pytest.mark.requirement("X-I1")
async def test_a_jwt_works_beside_the_configured_tokens(tmp_path: Path) -> None:
    secret = "a shared secret of more than 32 characters"
    (tmp_path / "jwt").write_text(secret)
    keys = f'[server.jwt]\nsecret_file = "{tmp_path / "jwt"}"\naudience = "crontask"\n'
    claims = {"aud": "crontask", "exp": 4_102_444_800, "sub": "bob", "scope": "read write"}
    with served(
        tmp_path, "--no-scheduler", config=TOKENS + keys, executor__default_callback_url=URL
    ) as server:
        assert "A bearer token is needed (5 configured, JWT accepted)." in server.told()
        async with server.client("auto", jwt.encode(claims, secret)) as bob:
            assert "bob" == (await call(bob, "create_cron_task", **CRON))["user_id"]
        async with server.client("auto", ANN) as ann:
            assert 0 == (await call(ann, "list_cron_tasks"))["total"]
        foreign = jwt.encode(claims | {"aud": "another"}, secret)
        answer = post(server, ask(), authorization=f"Bearer {foreign}")
        assert 401 == answer.status_code


@pytest.mark.requirement("X-I1")
def test_without_tokens_only_loopback_is_listened_on_and_it_is_said(tmp_path: Path) -> None:
    with served(tmp_path, "--no-scheduler", server__host="0.0.0.0") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert "listening on 127.0.0.1 only, not on 0.0.0.0" in server.told()


# -- its end -------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "crontask_cli", "serve", "--json", "-o", f"server.port={port}"],
            env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=30,
        )  # fmt: skip
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (5, "PORT_IN_USE", "server.port") == (done.returncode, error["code"], error["field"])
    assert f"port {port} on 127.0.0.1 is in use" in error["message"]


@pytest.mark.requirement("A5.2")
async def test_an_idle_server_ends_with_0_and_leaves_no_node(tmp_path: Path) -> None:
    with served(tmp_path, executor__default_callback_url=URL) as server:
        async with server.client() as client:
            await call(client, "create_cron_task", **CRON)
        server.signal()
        assert 0 == await server.ended(10)
    with sqlite3.connect(tmp_path / "tasks.db") as db:
        assert [(1, 0)] == db.execute(
            "SELECT count(*), sum(retired_at IS NULL) FROM t_cron_node"
        ).fetchall()
    db.close()


@pytest.mark.requirement("A5.2")
async def test_an_open_listening_stream_does_not_keep_the_server_up(tmp_path: Path) -> None:
    with served(tmp_path, executor__default_callback_url=URL) as server:
        async with server.client() as client:
            made = await call(client, "create_cron_task", **CRON)
            uri = f"crontask://tasks/{made['task_id']}"
            async with client.listen(resource_subscriptions=[uri]) as stream:
                await call(client, "pause_cron_task", task_id=made["task_id"])
                assert uri == str((await anext(aiter(stream))).uri)
                server.signal()
                left = [event async for event in stream]
                assert [] == [e for e in left if str(e.uri) != uri]
            assert 0 == await server.ended(10)


@pytest.mark.requirement("A5.2")
async def test_a_stopping_server_lets_a_running_call_finish_and_takes_its_report(
    tmp_path: Path,
) -> None:
    async with agent(answers=False) as ga:
        with served(tmp_path, executor__default_callback_url=ga.url) as server:
            async with server.client() as client:
                await call(client, "create_cron_task", **CRON)
                await call(client, "run_cron_task_now", task_id=1)
                await asyncio.wait_for(ga.called.wait(), 10)
                server.signal()
                await until(lambda: _stopping(server))
                report = {"task_id": 1, "task_run_id": "run_1", "status": "success"}
                fire = {"execution_id": ga.calls[0]["execution_id"]}
                told = await call(client, "report_task_result", **report, **fire)
                assert told["recorded"] is True
                ga.go.set()
            assert 0 == await server.ended(15)
    assert [(2, "run_1")] == _rows(tmp_path)


@pytest.mark.requirement("A5.2")
async def test_a_second_signal_ends_it_at_once_with_nothing_lost(tmp_path: Path) -> None:
    async with agent(answers=False) as ga:
        with served(tmp_path, executor__default_callback_url=ga.url) as server:
            async with server.client() as client:
                await call(client, "create_cron_task", **CRON)
                await call(client, "run_cron_task_now", task_id=1)
                await asyncio.wait_for(ga.called.wait(), 10)
            server.signal()
            await until(lambda: _stopping(server))
            began = time.monotonic()
            server.signal(signal.SIGINT)
            assert 0 == await server.ended(5)
            assert time.monotonic() - began < 3
            assert "Traceback" not in server.told()
    assert [(1, "")] == _rows(tmp_path)


async def _stopping(server: Served) -> bool:
    ready = await asyncio.to_thread(get, server, "/readyz")
    return ready.status_code == 503 and ready.json()["stopping"] is True


def _rows(folder: Path) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(folder / "tasks.db")
    try:
        return db.execute("SELECT exec_status, task_run_id FROM t_task_execution").fetchall()
    finally:
        db.close()


@pytest.mark.requirement("A5.2")
async def test_after_a_restart_a_client_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    with served(tmp_path, "--no-scheduler", executor__default_callback_url=URL) as first:
        async with first.client("legacy") as client:
            await call(client, "create_cron_task", **CRON, task_key="k")
        first.signal()
        assert 0 == await first.ended(10)
    with served(tmp_path, "--no-scheduler", executor__default_callback_url=URL) as second:
        body = ask("tools/call", name="get_cron_task", arguments={"task_key": "k"})
        answer = post(second, body, mcp_session_id="dead")
        assert 200 == answer.status_code
        assert "k" == answer.json()["result"]["structuredContent"]["task_key"]


async def test_a_runtime_that_fails_ends_the_server_with_its_error(tmp_path: Path) -> None:
    class Broken:
        async def run(self) -> None:
            raise Unavailable("the store is gone")

        async def started(self) -> None:
            await asyncio.Event().wait()

        def stop(self) -> None:
            """Nothing runs."""

    store = StoreSettings(url=f"sqlite:///{tmp_path / 'tasks.db'}")
    app = await open_app(Settings(store=store, server=ServerSettings(port=0)))
    try:
        with pytest.raises(Unavailable, match="the store is gone"):
            await serve_http(app, Broken())  # type: ignore[arg-type]
    finally:
        await app.close()
