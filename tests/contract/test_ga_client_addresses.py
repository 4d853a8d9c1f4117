"""Where a client of agents connects to, and to whom it talks there: one suite, all adapters."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crontask_adapters.client_options import ClientOptions
from crontask_adapters.ga_aiohttp import AiohttpClient
from crontask_adapters.ga_http import HttpGaClient, tls_context
from crontask_adapters.ga_httpx import HttpxClient
from crontask_core.errors import ConfigError
from crontask_core.model import AttemptClass, Rules
from crontask_core.policy import AnswerKind, judge
from tests.support.bad_server import BadServer, Connection, answering, http_answer
from tests.support.callbacks import NOW, call, now
from tests.support.certificates import server_tls

MakeClient = Callable[..., HttpGaClient]
ACCEPT = http_answer(200, b'{"task_run_id": "run_1"}')


@pytest.fixture(params=[AiohttpClient, HttpxClient])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeClient]:
    """Makes clients of one adapter, with the options given and no others."""
    made: list[HttpGaClient] = []

    def build(look: object = None, **options: object) -> HttpGaClient:
        made.append(request.param(ClientOptions(**options), now=now, look=look))
        return made[-1]

    yield build
    for client in made:
        await client.close()


class Look:
    """A name server that gives these answers in turn, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def families() -> list[str]:
    """The loopback addresses this machine has."""
    found = ["127.0.0.1"]
    with socket.socket(socket.AF_INET6) as plug:
        try:
            plug.bind(("::1", 0))
        except OSError:
            return found
    return [*found, "::1"]


# -- the guard -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", families())
async def test_an_address_literal_that_is_listed_is_called(make: MakeClient, host: str) -> None:
    client = make(allow_hosts=(f"{host}/32" if "." in host else host,))
    async with BadServer(answering(ACCEPT), host=host) as server:
        answer = await call(client, server.url)

    assert 200 == answer.status
    assert server.url.split("/")[2] == server.requests[0].headers["host"]


async def test_the_operators_own_agent_may_be_private_and_needs_no_entry(make: MakeClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        client = make(default_callback_url=server.url)
        own = await call(client, server.url)
        other = await call(client, server.url + "/admin")

    assert 200 == own.status
    assert AnswerKind.REFUSED == other.kind
    assert "the host '127.0.0.1' is not in callback.allow_hosts" == other.error
    assert 1 == len(server.requests)


async def test_a_refused_address_is_final_and_did_not_arrive(make: MakeClient) -> None:
    answer = await call(make(), "http://10.0.0.5/x")

    seen = judge(answer, 1, NOW, Rules())
    assert (AttemptClass.FINAL, False) == (seen.outcome, seen.arrived)


async def test_credentials_in_a_url_are_refused_and_not_shown(make: MakeClient) -> None:
    answer = await call(make(allow_hosts=("*",)), "https://user:hunter2@agent.example/x")

    assert AnswerKind.REFUSED == answer.kind
    assert "hunter2" not in repr(answer)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["10.0.0.5"],
        ["169.254.169.254"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fe80::1%2"],
        ["93.184.216.34", "127.0.0.1"],
        ["127.0.0.1", "93.184.216.34"],
    ],
)
async def test_a_name_with_any_address_that_is_not_public_is_refused(
    make: MakeClient, addresses: list[str]
) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        client = make(Look(addresses), allow_hosts=("*",))
        answer = await call(client, f"http://agent.example:{server.port}/x")

    assert AnswerKind.REFUSED == answer.kind
    assert answer.error.startswith("agent.example resolves to ")
    assert answer.error.endswith(" is not public")
    assert 0 == server.accepted


async def test_a_name_that_turns_private_later_is_refused_then(make: MakeClient) -> None:
    look = Look(["127.0.0.2"], ["127.0.0.1"])
    async with BadServer(answering(ACCEPT)) as server:
        url = f"http://agent.example:{server.port}/x"
        first = await call(make(look, allow_hosts=("*", "127.0.0.2")), url)
        second = await call(make(look, allow_hosts=("*", "127.0.0.2")), url)

    # Nobody listens at the listed address; the one that is not listed is not even tried.
    assert AnswerKind.CONNECT == first.kind
    assert AnswerKind.REFUSED == second.kind
    assert (["agent.example"] * 2, 0) == (look.asked, server.accepted)


async def test_only_the_address_that_was_checked_is_connected_to(make: MakeClient) -> None:
    look = Look(["127.0.0.1"], ["192.0.2.1"])
    async with BadServer(answering(ACCEPT)) as server:
        client = make(look, allow_hosts=("agent.example",))
        answer = await call(client, f"http://Agent.Example:{server.port}/x")

    assert 200 == answer.status
    assert ["agent.example"] == look.asked
    assert f"agent.example:{server.port}" == server.requests[0].headers["host"]


async def test_a_dead_address_beside_a_live_one_does_not_lose_the_call(make: MakeClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        client = make(Look(["127.0.0.2", "127.0.0.1"]), allow_hosts=("agent.example",))
        answer = await call(client, f"http://agent.example:{server.port}/x")

    assert 200 == answer.status


async def test_calls_that_are_checked_do_not_reuse_connections_that_are_not(
    make: MakeClient,
) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        own = f"http://agent.example:{server.port}/v1/task/execute"
        client = make(Look(["127.0.0.1"]), allow_hosts=("*",), default_callback_url=own)
        first = await call(client, own)
        second = await call(client, f"http://agent.example:{server.port}/admin")

    assert (200, AnswerKind.REFUSED) == (first.status, second.kind)
    assert 1 == len(server.requests)


async def test_secret_headers_do_not_go_to_a_host_that_only_the_star_admits(
    make: MakeClient,
) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        client = make(
            Look(["127.0.0.1"]),
            allow_hosts=("*", "127.0.0.0/8"),
            headers={"Authorization": "Bearer s3cret"},
        )
        answer = await call(client, f"http://agent.example:{server.port}/x")

    assert 200 == answer.status
    assert "authorization" not in server.requests[0].headers


async def test_a_name_with_no_address_is_no_connection(make: MakeClient) -> None:
    answer = await call(make(Look([]), allow_hosts=("*",)), "http://agent.example/x")

    assert AnswerKind.CONNECT == answer.kind
    assert "agent.example has no address" in answer.error


async def test_a_name_that_is_too_long_for_dns_is_no_connection(make: MakeClient) -> None:
    host = "a" * 64 + ".example"
    answer = await call(make(allow_hosts=("*",)), f"http://{host}/x")

    assert AnswerKind.CONNECT == answer.kind


# -- TLS -------------------------------------------------------------------------------------------


async def test_a_certificate_of_an_unknown_authority_is_refused(
    make: MakeClient, tmp_path: Path
) -> None:
    tls, _ = server_tls(tmp_path)
    async with BadServer(answering(ACCEPT), tls=tls) as server:
        answer = await call(make(allow_hosts=("127.0.0.1",)), server.url)

    assert AnswerKind.TLS == answer.kind
    place = f"127.0.0.1:{server.port}"
    assert f"the certificate of {place} does not verify: self-signed certificate" == answer.error
    assert AttemptClass.FINAL == judge(answer, 1, NOW, Rules()).outcome
    assert [] == server.requests


async def test_a_private_authority_can_be_trusted_by_setting(
    make: MakeClient, tmp_path: Path
) -> None:
    tls, path = server_tls(tmp_path)
    async with BadServer(answering(ACCEPT), tls=tls) as server:
        client = make(allow_hosts=("127.0.0.1",), ca_file=path)
        answers = [await call(client, server.url) for _ in range(3)]

    assert [200] * 3 == [answer.status for answer in answers]
    assert (3, 1) == (len(server.requests), server.accepted)


async def test_the_certificate_is_checked_for_the_name_and_not_the_address(
    make: MakeClient, tmp_path: Path
) -> None:
    tls, path = server_tls(tmp_path, names=("agent.example",))
    async with BadServer(answering(ACCEPT), tls=tls) as server:
        allow = ("agent.example", "other.example")
        client = make(Look(["127.0.0.1"]), allow_hosts=allow, ca_file=path)
        right = await call(client, f"https://agent.example:{server.port}/x")
        wrong = await call(client, f"https://other.example:{server.port}/x")

    assert 200 == right.status
    assert AnswerKind.TLS == wrong.kind
    assert "ostname mismatch" in wrong.error


async def test_an_expired_certificate_is_refused(make: MakeClient, tmp_path: Path) -> None:
    tls, path = server_tls(tmp_path, until=datetime(2021, 1, 1, tzinfo=UTC))
    async with BadServer(answering(ACCEPT), tls=tls) as server:
        answer = await call(make(allow_hosts=("127.0.0.1",), ca_file=path), server.url)

    assert AnswerKind.TLS == answer.kind
    assert answer.error.endswith("certificate has expired")


@pytest.mark.parametrize("reset", [False, True])
async def test_a_handshake_that_fails_otherwise_is_no_connection(
    make: MakeClient, reset: bool
) -> None:
    async def plain(connection: Connection) -> None:
        await connection.reader.read(1)
        if reset:
            connection.reset()
        else:
            await connection.send(http_answer(400))

    async with BadServer(plain) as server, asyncio.timeout(5):
        client = make(allow_hosts=("127.0.0.1",))
        answer = await call(client, server.url.replace("http:", "https:"))

    assert AnswerKind.CONNECT == answer.kind
    assert answer.error.startswith(f"cannot connect to 127.0.0.1:{server.port}: ")


async def test_an_unusable_authority_file_is_told_at_start_and_loses_no_fire(
    make: MakeClient, tmp_path: Path
) -> None:
    path = tmp_path / "none.pem"
    client = make(allow_hosts=("127.0.0.1",), ca_file=str(path))
    answer = await call(client, "https://127.0.0.1/x")

    assert AnswerKind.CONNECT == answer.kind
    assert "callback.ca_file cannot be used: " in answer.error
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"callback\.ca_file cannot be used"):
        tls_context(client.options)
