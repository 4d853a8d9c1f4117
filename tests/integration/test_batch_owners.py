"""Both drivers against a real owner in another process: good answers, and every bad one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import grpc
import orjson
import pytest
from aiohttp import web

from crontask_adapters.batch_grpc import GrpcOwner, check_jobs, load_messages
from crontask_adapters.batch_http import HttpOwner
from crontask_adapters.batch_settings import OwnerTarget
from crontask_adapters.client_options import ClientOptions
from crontask_adapters.clock import SystemClock, utcnow
from crontask_adapters.ga_aiohttp import AiohttpClient
from crontask_adapters.ga_httpx import HttpxClient
from crontask_core.batch_model import BatchCall, ReplyKind
from crontask_core.batch_ports import Owner
from crontask_core.errors import ConfigError
from crontask_server.sample_owner import SampleOwner, _Methods
from tests.batches import job
from tests.integration.owners import OwnerProcess, sample_owner
from tests.services import free_port
from tests.support.certificates import server_tls

RISK = "/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch"
CALL = BatchCall(
    method=RISK,
    timeout=2.0,
    request_id="run-1-1",
    app_code="lalu",
    caller="cron-service",
    run_id="run-1",
    worker_id="node-a#1",
    batch_size=100,
    lock_ttl_ms=30_000,
    extra={"pending_publish_max_age_ms": 120_000, "publishing_session_max_age_ms": 43_200_000},
)


@pytest.fixture(scope="module")
def owner() -> Iterator[OwnerProcess]:
    options = ["--pieces", "250", "--fail", "down", "--slow", "slow:30"]
    with sample_owner(*options) as running:
        yield running


def http_owner(address: str, kind: str = "aiohttp") -> HttpOwner:
    make = HttpxClient if kind == "httpx" else AiohttpClient
    target = OwnerTarget(name="user", driver="http", address=address)
    return HttpOwner(target, make(ClientOptions(), now=utcnow))


def grpc_owner(address: str, **more: Any) -> GrpcOwner:
    target = OwnerTarget(name="user", address=address, **more)
    return GrpcOwner(target, load_messages(target))


@pytest.fixture(params=["grpc", "aiohttp", "httpx"])
async def driver(request: pytest.FixtureRequest, owner: OwnerProcess) -> AsyncIterator[Owner]:
    made: Owner
    if request.param == "grpc":
        made = grpc_owner(f"127.0.0.1:{owner.port}")
    else:
        made = http_owner(f"http://127.0.0.1:{owner.http_port}/", request.param)
    yield made
    await made.close()


@pytest.fixture(params=["grpc", "http"])
async def nobody(request: pytest.FixtureRequest) -> AsyncIterator[Owner]:
    """A driver for an address where nobody listens."""
    port = free_port()
    made: Owner = grpc_owner(f"127.0.0.1:{port}")
    if request.param == "http":
        await made.close()
        made = http_owner(f"http://127.0.0.1:{port}")
    yield made
    await made.close()


@pytest.mark.requirement("B7")
async def test_a_call_carries_everything_and_its_answer_is_understood(
    driver: Owner, owner: OwnerProcess, request: pytest.FixtureRequest
) -> None:
    app = f"app-{request.node.callspec.id}"
    call = attrs.evolve(CALL, app_code=app)
    answers = [await driver.call(attrs.evolve(call, request_id=f"run-1-{n}")) for n in range(1, 5)]
    assert [a.kind for a in answers] == [ReplyKind.OK] * 4
    assert [a.claimed_count for a in answers] == [100, 100, 50, 0]
    assert [a.processed_count for a in answers] == [100, 100, 50, 0]
    assert [a.has_more for a in answers] == [True, True, False, False]
    assert [a.backlog for a in answers] == [150, 50, 0, 0]
    assert (answers[0].oldest_pending_age_ms or 0) > 0
    owner.wait_for("done", 4)
    seen = owner.of("began", app)[0]
    assert {key: seen[key] for key in ("run_id", "request_id", "worker_id", "caller")} == {
        "run_id": "run-1",
        "request_id": "run-1-1",
        "worker_id": "node-a#1",
        "caller": "cron-service",
    }


async def test_an_owner_that_is_down_is_unavailable(driver: Owner) -> None:
    answer = await driver.call(attrs.evolve(CALL, app_code="down"))
    assert answer.kind is ReplyKind.UNAVAILABLE
    assert answer.code in ("UNAVAILABLE", "HTTP_503")
    assert "down on purpose" in answer.error


async def test_a_late_answer_is_a_time_out_and_not_an_unavailable_owner(driver: Owner) -> None:
    answer = await driver.call(attrs.evolve(CALL, app_code="slow", timeout=0.3))
    assert (answer.kind, answer.code) == (ReplyKind.TIMEOUT, "DEADLINE_EXCEEDED")
    assert answer.error == "no answer within 0.3 s; the owner may have done the work"
    assert (answer.claimed_count, answer.processed_count) == (0, 0)


async def test_where_nobody_listens_the_owner_is_unavailable(nobody: Owner) -> None:
    answer = await nobody.call(CALL)
    assert answer.kind is ReplyKind.UNAVAILABLE
    assert (await nobody.health(1.0)).state == "bad"


@pytest.mark.requirement("B6")
async def test_a_method_the_owner_does_not_have_is_refused(driver: Owner) -> None:
    answer = await driver.call(attrs.evolve(CALL, method="/hyapp.user.v1.UserCronService/Execute"))
    assert answer.kind is ReplyKind.REFUSED
    assert answer.code in ("UNIMPLEMENTED", "HTTP_404")


async def test_many_calls_run_at_once_over_one_driver(driver: Owner) -> None:
    calls = [attrs.evolve(CALL, app_code=f"many{n}", timeout=10.0) for n in range(40)]
    answers = await asyncio.gather(*map(driver.call, calls))
    assert {answer.kind for answer in answers} == {ReplyKind.OK}


async def test_health_is_told(driver: Owner) -> None:
    health = await driver.health(2.0)
    assert (health.state, health.found) in (("ok", "SERVING"), ("unknown", "takes connections"))


async def test_a_grpc_owner_that_comes_back_is_reached_again_soon() -> None:
    port = free_port()
    driver = grpc_owner(f"127.0.0.1:{port}")
    for _ in range(5):
        assert (await driver.call(CALL)).kind is ReplyKind.UNAVAILABLE
        await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    with sample_owner("--port", str(port)):
        until = loop.time() + 8
        while (await driver.call(CALL)).kind is not ReplyKind.OK:
            assert loop.time() < until
            await asyncio.sleep(0.1)
    await driver.close()


# -- odd answers over HTTP -------------------------------------------------------------------------
@asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[HttpOwner]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_post(RISK, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    driver = http_owner(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield driver
    finally:
        await driver.close()
        await runner.cleanup()


GOOD = {
    "claimed_count": 3,
    "processed_count": 3,
    "success_count": 2,
    "failure_count": 1,
    "has_more": True,
}


async def test_a_reply_without_the_optional_fields_is_good() -> None:
    async with answering(200, orjson.dumps(GOOD)) as driver:
        answer = await driver.call(CALL)
    assert (answer.kind, answer.success_count, answer.has_more) == (ReplyKind.OK, 2, True)
    assert (answer.backlog, answer.oldest_pending_age_ms) == (None, None)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "the answer is not a JSON object"),
        (b"[]", "the answer is not a JSON object"),
        (b"{}", "claimed_count is not a number of 0 or more"),
        (orjson.dumps({**GOOD, "failure_count": -1}), "failure_count is not a number of 0 or more"),
        (orjson.dumps({**GOOD, "has_more": "yes"}), "has_more is neither true nor false"),
        (orjson.dumps({**GOOD, "backlog": "many"}), "backlog is not a number of 0 or more"),
    ],
)
async def test_a_reply_that_cannot_be_understood_is_refused(body: bytes, error: str) -> None:
    async with answering(200, body) as driver:
        answer = await driver.call(CALL)
    assert (answer.kind, answer.code, answer.error) == (ReplyKind.REFUSED, "BAD_REPLY", error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, ReplyKind.REFUSED), (302, ReplyKind.REFUSED), (404, ReplyKind.REFUSED)],
)
async def test_another_status_than_2xx_fails_with_it(status: int, kind: ReplyKind) -> None:
    async with answering(status, b"broken") as driver:
        answer = await driver.call(CALL)
    assert (answer.kind, answer.code) == (kind, f"HTTP_{status}")


# -- TLS, and classes of the owner -----------------------------------------------------------------
async def test_grpc_over_tls_trusts_the_authority_given_and_no_other(tmp_path: Path) -> None:
    _, certificate = server_tls(tmp_path)
    secret = (tmp_path / "key.pem").read_bytes()
    sample = SampleOwner(clock=SystemClock(), tell=lambda event: None, pieces=3)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Methods(sample),))
    chain = [(secret, Path(certificate).read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(chain))
    await server.start()
    kinds = []
    for more in ({"tls": True, "ca_file": certificate}, {"tls": True}, {}):
        driver = grpc_owner(f"127.0.0.1:{port}", **more)
        kinds.append((await driver.call(CALL)).kind)
        await driver.close()
    await server.stop(None)
    assert kinds == [ReplyKind.OK, ReplyKind.UNAVAILABLE, ReplyKind.UNAVAILABLE]


PROTO = """
syntax = "proto3";
package theirs.v1;
message Meta { string caller = 7; string app_code = 8; string request_id = 9; }
message Request {
  Meta meta = 11; string run_id = 12; string worker_id = 13; int32 batch_size = 14;
  int64 lock_ttl_ms = 15; int32 days = 16;
}
message Reply {
  int32 claimed_count = 1; int32 processed_count = 2; int32 success_count = 3;
  int32 failure_count = 4; bool has_more = 5;
}
message Poor { int32 claimed_count = 1; }
service Cron { rpc ProcessBatch (Request) returns (Reply); }
"""


@pytest.fixture(scope="module")
def their_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Generated code of an owner whose field numbers are others than ours."""
    import sys

    from grpc_tools import protoc

    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_cron.proto").write_text(PROTO)
    words = ["", f"-I{folder}", f"--python_out={folder}", "their_cron.proto"]
    assert protoc.main(words) == 0
    sys.path.insert(0, str(folder))
    yield "their_cron_pb2"
    sys.path.remove(str(folder))


def theirs(module: str, request: str = "Request", reply: str = "Reply") -> OwnerTarget:
    return OwnerTarget(
        name="user",
        address="127.0.0.1:1",
        request=f"{module}:{request}",
        reply=f"{module}:{reply}",
    )


@pytest.mark.requirement("B7")
async def test_the_owners_own_classes_are_filled_field_by_field(their_module: str) -> None:
    target = theirs(their_module)
    messages = load_messages(target)
    driver = GrpcOwner(target, messages)
    made = driver._request(attrs.evolve(CALL, extra={"days": 3}))
    assert (made.meta.caller, made.meta.app_code, made.meta.request_id) == (
        "cron-service",
        "lalu",
        "run-1-1",
    )
    assert (made.run_id, made.batch_size, made.lock_ttl_ms, made.days) == ("run-1", 100, 30_000, 3)
    await driver.close()
    good = job(extra={"days": 3})
    check_jobs(target, messages, [attrs.evolve(good, method="/theirs.v1.Cron/ProcessBatch")])


@pytest.mark.requirement("B6")
def test_what_the_owners_classes_do_not_have_fails_at_start(their_module: str) -> None:
    target = theirs(their_module)
    messages = load_messages(target)
    method = "/theirs.v1.Cron/ProcessBatch"
    cases = [
        (job(extra={"day": 3}), "has no field day"),
        (job(extra={"days": "three"}), "days: "),
        (job(extra={"days": 2**40}), "days: "),
    ]
    for bad, text in cases:
        with pytest.raises(ConfigError, match=text):
            check_jobs(target, messages, [attrs.evolve(bad, method=method)])
    with pytest.raises(ConfigError, match="has no method Process") as caught:
        check_jobs(target, messages, [attrs.evolve(job(), method="/theirs.v1.Cron/Process")])
    assert caught.value.candidates == ("ProcessBatch",)


@pytest.mark.requirement("B6")
def test_classes_that_cannot_be_used_fail_at_start(their_module: str) -> None:
    cases = [
        (theirs("no_such_module"), "cannot be imported: ModuleNotFoundError"),
        (theirs(their_module, request="Gone"), "cannot be imported: AttributeError"),
        (theirs(their_module, request="DESCRIPTOR"), "is not a protobuf message"),
        (theirs(their_module, request="Poor"), "request: meta"),
        (theirs(their_module, reply="Poor"), "reply: has_more"),
    ]
    for target, text in cases:
        with pytest.raises(ConfigError, match=text):
            load_messages(target)


@pytest.mark.requirement("B6")
def test_our_own_message_takes_only_the_fields_it_has() -> None:
    target = OwnerTarget(name="user", address="127.0.0.1:1")
    messages = load_messages(target)
    check_jobs(target, messages, [job(extra={"pending_publish_max_age_ms": 1})])
    with pytest.raises(ConfigError, match="has no field days"):
        check_jobs(target, messages, [job(extra={"days": 1})])


async def test_a_black_hole_costs_no_more_than_the_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        loop = asyncio.get_running_loop()
        for driver in (grpc_owner(f"127.0.0.1:{port}"), http_owner(f"http://127.0.0.1:{port}")):
            began = loop.time()
            answer = await driver.call(attrs.evolve(CALL, timeout=0.5))
            assert answer.kind is ReplyKind.TIMEOUT
            assert loop.time() - began < 2
            await driver.close()
