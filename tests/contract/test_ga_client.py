"""What a client of agents does when the agent or the network misbehaves: one suite, all adapters.

Nothing waits for a clock here but the client's own short deadlines.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from crontask_adapters.callback_body import callback_body
from crontask_adapters.client_options import ClientOptions
from crontask_adapters.ga_aiohttp import AiohttpClient
from crontask_adapters.ga_http import ANSWER_LIMIT, HttpGaClient
from crontask_adapters.ga_httpx import HttpxClient
from crontask_adapters.signing import verify_callback
from crontask_core.model import AttemptClass, Rules
from crontask_core.policy import Answer, AnswerKind, Verdict, judge
from tests.support.bad_server import BadServer, Connection, answering, http_answer
from tests.support.callbacks import FIRE_ID, NOW, call, callback, now

MakeClient = Callable[..., HttpGaClient]
SHORT = timedelta(milliseconds=300)
RUN = b'{"task_run_id": "run_20260423_0900_abc123"}'
ACCEPT = http_answer(200, RUN, content_type="application/json")
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(params=[AiohttpClient, HttpxClient])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeClient]:
    """Makes clients of one adapter; loopback is allowed unless a test says otherwise."""
    made: list[HttpGaClient] = []

    def build(look: object = None, **options: object) -> HttpGaClient:
        options = {"allow_hosts": ("127.0.0.1", "::1", "localhost")} | options
        made.append(request.param(ClientOptions(**options), now=now, look=look))
        return made[-1]

    yield build
    for client in made:
        await client.close()


@pytest.fixture
async def client(make: MakeClient) -> HttpGaClient:
    return make()


def verdict(answer: Answer, attempt: int = 1) -> Verdict:
    return judge(answer, attempt, NOW, Rules())


# -- what is sent ----------------------------------------------------------------------------------


@pytest.mark.requirement("A6.1a")
async def test_a_fire_is_posted_as_json_with_its_id_in_the_headers(client: HttpGaClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        answer = await call(client, server.url)

    assert Answer(kind=AnswerKind.RESPONSE, status=200, body=RUN) == answer
    assert "run_20260423_0900_abc123" == verdict(answer).task_run_id
    (sent,) = server.requests
    assert "POST /v1/task/execute HTTP/1.1" == sent.line
    assert callback_body(callback()) == sent.body
    assert f"127.0.0.1:{server.port}" == sent.headers["host"]
    assert "application/json" == sent.headers["content-type"]
    assert "identity" == sent.headers["accept-encoding"]
    assert FIRE_ID == sent.headers["idempotency-key"] == sent.headers["webhook-id"]
    assert "webhook-signature" not in sent.headers
    assert "cookie" not in sent.headers


@pytest.mark.requirement("A2.3a")
async def test_any_text_arrives_byte_for_byte_and_stays_out_of_the_headers(
    client: HttpGaClient,
) -> None:
    nasty = 'a\r\nX-Evil: 1 "q" \\ \u2028 \x00 🍣 é'
    content = "推送🍣" * 6_000
    async with BadServer(answering(ACCEPT)) as server:
        await call(client, server.url, task_name=nasty, task_content=content, task_key=nasty)

    (sent,) = server.requests
    assert (nasty, content) == (sent.fields["task_name"], sent.fields["task_content"])
    assert content.encode() in sent.body
    assert "x-evil" not in sent.headers
    assert all(value.isascii() for value in sent.headers.values())


async def test_the_agent_can_verify_the_signature_by_each_of_the_keys(make: MakeClient) -> None:
    old = "whsec_b2xkIGtleSwgb2xkIGtleSwgb2xkIGtleSwgb2xk"
    client = make(signing_keys=(KEY, old))
    async with BadServer(answering(ACCEPT)) as server:
        await call(client, server.url)

    (sent,) = server.requests
    assert str(int(NOW.timestamp())) == sent.headers["webhook-timestamp"]
    assert 2 == len(sent.headers["webhook-signature"].split())
    for key in (KEY, old):
        assert FIRE_ID == verify_callback(sent.body, sent.headers, [key], NOW)["fire_id"]


async def test_secret_headers_go_to_hosts_the_operator_named(make: MakeClient) -> None:
    client = make(headers={"Authorization": "Bearer s3cret"})
    async with BadServer(answering(ACCEPT)) as server:
        await call(client, server.url)

    assert "Bearer s3cret" == server.requests[0].headers["authorization"]
    assert "s3cret" not in repr(client.options)


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize(
    ("status", "body", "run_id"),
    [
        (200, b"<html><title>Login</title></html>", ""),
        (204, b"", ""),
        (200, b"", ""),
        (202, b"null", ""),
        (200, b"[]", ""),
        (200, b"{}", ""),
        (200, b'{"task_run_id": ""}', ""),
        (200, b'{"task_run_id": null}', ""),
        (200, b'{"task_run_id": {"a": 1}}', ""),
        (200, b'{"task_run_id": "' + b"x" * 129 + b'"}', ""),
        (200, b'{"task_run_id": "r\xe9"}', ""),
        (201, b'{"task_run_id": 123}', "123"),
        (200, b'\xef\xbb\xbf{"task_run_id": "run_1"}', "run_1"),
    ],
)
async def test_any_2xx_is_accepted_with_or_without_a_usable_run_id(
    client: HttpGaClient, status: int, body: bytes, run_id: str
) -> None:
    async with BadServer(answering(http_answer(status, body))) as server:
        answer = await call(client, server.url)

    assert (AnswerKind.RESPONSE, status, body) == (answer.kind, answer.status, answer.body)
    seen = verdict(answer)
    assert (AttemptClass.ACCEPTED, run_id) == (seen.outcome, seen.task_run_id)
    assert bool(run_id) is not bool(seen.warning)


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(
    client: HttpGaClient, status: int
) -> None:
    async with BadServer(answering(ACCEPT)) as other:
        location = f"http://user:pw@127.0.0.1:{other.port}/secret"
        async with BadServer(answering(http_answer(status, location=location))) as server:
            answer = await call(client, server.url)

    assert (AnswerKind.RESPONSE, status) == (answer.kind, answer.status)
    assert "redirect to http://127.0.0.1 not followed" == answer.error
    assert AttemptClass.FINAL == verdict(answer).outcome
    assert 0 == other.accepted


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (429, "7", 7),
        (503, "Thu, 23 Apr 2026 01:00:27 GMT", 20),
        (503, "Thu, 23 Apr 2026 00:00:00 GMT", 0),
        (503, "86400", 600),
        (503, "-1", None),
        (429, "abc", None),
    ],
)
async def test_the_wish_to_be_asked_later_is_handed_on(
    client: HttpGaClient, status: int, header: str, seconds: int | None
) -> None:
    async with BadServer(answering(http_answer(status, retry_after=header))) as server:
        answer = await call(client, server.url)

    assert header == answer.retry_after
    seen = verdict(answer)
    assert AttemptClass.RETRY == seen.outcome
    assert (None if seconds is None else timedelta(seconds=seconds)) == seen.delay


async def test_answers_before_the_answer_are_passed_over(client: HttpGaClient) -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    async with BadServer(answering(early + ACCEPT)) as server:
        answer = await call(client, server.url)

    assert (200, RUN) == (answer.status, answer.body)


async def test_cookies_are_not_sent_back(make: MakeClient) -> None:
    async def look(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    client = make(look, allow_hosts=("agent.example",))
    async with BadServer(answering(http_answer(200, RUN, set_cookie="a=1; Path=/"))) as server:
        for _ in range(2):
            await call(client, f"http://agent.example:{server.port}/x")

    assert [False, False] == ["cookie" in sent.headers for sent in server.requests]


@pytest.mark.requirement("A6.4")
@pytest.mark.parametrize("chunked", [False, True])
async def test_at_most_64_kb_of_an_answer_are_read(client: HttpGaClient, chunked: bool) -> None:
    size = 50_000_000
    rest: list[bool] = []

    async def flood(connection: Connection) -> None:
        await connection.request()
        head = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % size
        await connection.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        for _ in range(size // 50_000):
            piece = b"a" * 50_000
            await connection.send(b"c350\r\n" + piece + b"\r\n" if chunked else piece)
            if connection.writer.transport.is_closing():
                rest.append(True)
                return

    async with BadServer(flood) as server:
        answer = await call(client, server.url)
        await server.until(lambda s: s.open == 0)

    assert (AnswerKind.RESPONSE, 200) == (answer.kind, answer.status)
    assert b"a" * ANSWER_LIMIT == answer.body
    assert "the answer is longer than 64 KB: the rest was not read" == answer.error
    assert [True] == rest


@pytest.mark.requirement("X-F4", "A6.4")
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP"])
async def test_a_compressed_answer_is_never_inflated_past_64_kb(
    client: HttpGaClient, encoding: str
) -> None:
    bomb = b"\0" * 20_000_000
    packed = zlib.compress(bomb) if encoding == "deflate" else gzip.compress(bomb)
    bad = http_answer(200, packed, content_encoding=encoding)
    async with BadServer(answering(bad)) as server:
        answer = await call(client, server.url)

    assert ANSWER_LIMIT == len(answer.body)
    assert "the answer is longer than 64 KB when inflated" == answer.error
    assert AttemptClass.ACCEPTED == verdict(answer).outcome


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(RUN)),
        ("deflate", zlib.compress(RUN)),
        ("deflate", zlib.compress(RUN, wbits=-15)),
        ("identity", RUN),
    ],
)
async def test_a_small_compressed_answer_is_understood(
    client: HttpGaClient, encoding: str, packed: bytes
) -> None:
    data = http_answer(200, packed, content_encoding=encoding)
    async with BadServer(answering(data)) as server:
        answer = await call(client, server.url)

    assert RUN == answer.body


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
async def test_an_answer_in_an_unreadable_coding_is_kept_as_it_came(
    client: HttpGaClient, encoding: str
) -> None:
    data = http_answer(200, b"\x01\x02not what it says", content_encoding=encoding)
    async with BadServer(answering(data)) as server:
        answer = await call(client, server.url)

    assert (200, b"\x01\x02not what it says") == (answer.status, answer.body)
    assert AttemptClass.ACCEPTED == verdict(answer).outcome


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    "head", [b"content-length: 100", b"transfer-encoding: chunked", b"content-length: 100\r\nx: y"]
)
async def test_a_2xx_whose_body_breaks_off_is_accepted(
    client: HttpGaClient, head: bytes, reset: bool
) -> None:
    async def break_off(connection: Connection) -> None:
        await connection.request()
        start = b'4\r\n{"ta\r\n' if b"chunked" in head else b'{"ta'
        await connection.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + start)
        if reset:
            connection.reset()

    async with BadServer(break_off) as server:
        answer = await call(client, server.url)

    assert (AnswerKind.RESPONSE, 200) == (answer.kind, answer.status)
    assert answer.error.startswith("the answer broke off: ")
    assert b'{"ta'.startswith(answer.body)
    assert (AttemptClass.ACCEPTED, "") == (verdict(answer).outcome, verdict(answer).task_run_id)
    assert 1 == len(server.requests)


# -- nothing comes back ----------------------------------------------------------------------------


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_a_connection_that_breaks_before_the_answer_may_have_arrived(
    client: HttpGaClient, said: bytes, reset: bool
) -> None:
    async def hang_up(connection: Connection) -> None:
        await connection.request()
        await connection.send(said)
        if reset:
            connection.reset()

    async with BadServer(hang_up) as server:
        answer = await call(client, server.url)

    assert AnswerKind.BROKEN == answer.kind
    assert f"the connection to 127.0.0.1:{server.port} broke before an answer" in answer.error
    assert (AttemptClass.RETRY, True) == (verdict(answer).outcome, verdict(answer).arrived)
    assert 1 == len(server.requests)


async def test_a_reset_before_the_request_is_read_may_have_arrived(client: HttpGaClient) -> None:
    async def slam(connection: Connection) -> None:
        await connection.reader.read(1)
        connection.reset()

    async with BadServer(slam) as server:
        answer = await call(client, server.url, task_content="x" * 60_000)

    assert AnswerKind.BROKEN == answer.kind
    assert 1 == server.accepted


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/9.9 abc\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x16"],
)
async def test_what_is_not_http_is_a_broken_call(client: HttpGaClient, said: bytes) -> None:
    async def babble(connection: Connection) -> None:
        await connection.request()
        await connection.send(said)

    async with BadServer(babble) as server:
        answer = await call(client, server.url)

    assert AnswerKind.BROKEN == answer.kind


@pytest.mark.requirement("A6.3")
async def test_a_closed_port_is_no_connection(client: HttpGaClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        url = server.url
    answer = await call(client, url)

    assert AnswerKind.CONNECT == answer.kind
    assert f"cannot connect to 127.0.0.1:{server.port}: " in answer.error
    assert "refused" in answer.error.lower() or "connect" in answer.error.lower()
    assert (AttemptClass.RETRY, False) == (verdict(answer).outcome, verdict(answer).arrived)


@pytest.mark.requirement("A6.3")
async def test_a_name_that_does_not_exist_is_no_connection(make: MakeClient) -> None:
    async def look(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    client = make(look, allow_hosts=("agent.invalid",))
    answer = await call(client, "http://agent.invalid:81/x")

    assert AnswerKind.CONNECT == answer.kind
    text = "the name of agent.invalid:81 cannot be resolved: Name or service not known"
    assert text == answer.error


@pytest.mark.requirement("A6.3")
async def test_the_systems_own_look_up_is_asked_and_its_failure_told(make: MakeClient) -> None:
    client = make(allow_hosts=("no-such-agent.invalid",))
    answer = await call(client, "http://no-such-agent.invalid/x")

    assert AnswerKind.CONNECT == answer.kind
    assert "the name of no-such-agent.invalid:80 cannot be resolved" in answer.error


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.requirement("A6.4", "X-F4")
@pytest.mark.parametrize(
    ("first", "endless", "status"),
    [
        (b"", b"", 0),
        (b"HTTP/1.1 200 OK\r\nx-a: ", b"a", 0),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n", 0),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n", b"a", 200),
        (b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n", 500),
    ],
)
async def test_a_silent_or_trickling_agent_ends_at_one_deadline(
    make: MakeClient, first: bytes, endless: bytes, status: int
) -> None:
    async def trickle(connection: Connection) -> None:
        await connection.request()
        await connection.send(first)
        if endless:
            await connection.drip(itertools.repeat(endless))
        else:
            await connection.silence()

    client = make(callback_timeout=SHORT)
    async with BadServer(trickle) as server, asyncio.timeout(5):
        answer = await call(client, server.url)
        await server.until(lambda s: s.open == 0)

    assert AnswerKind.TIMEOUT == answer.kind
    begun = f" (HTTP {status} had begun)" if status else ""
    text = f"no complete answer from 127.0.0.1:{server.port} within 0.3 s{begun}"
    assert text == answer.error
    assert (AttemptClass.RETRY, True) == (verdict(answer).outcome, verdict(answer).arrived)


@pytest.mark.requirement("X-F4")
async def test_an_agent_that_does_not_read_the_request_ends_at_the_deadline(
    make: MakeClient,
) -> None:
    async def deaf(connection: Connection) -> None:
        connection.writer.transport.pause_reading()
        await connection.server.stopping.wait()

    client = make(callback_timeout=SHORT)
    async with BadServer(deaf) as server, asyncio.timeout(5):
        answer = await call(client, server.url, task_content="\x01" * 150_000)

    assert AnswerKind.TIMEOUT == answer.kind


@pytest.mark.requirement("X-F4")
async def test_waiting_for_the_pool_counts_and_nothing_was_sent(make: MakeClient) -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.silence()

    client = make(concurrency=1)
    async with BadServer(silent) as server, asyncio.timeout(5):
        holder = asyncio.create_task(call(client, server.url))
        await server.until(lambda s: len(s.requests) == 1)
        client._seconds = 0.1  # the holder's own deadline stays far away
        second = await call(client, server.url)
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)

    assert AnswerKind.CONNECT == second.kind
    assert f"no connection to 127.0.0.1:{server.port} within 0.1 s" == second.error
    assert (1, 1) == (len(server.requests), server.accepted)


@pytest.mark.requirement("X-F4")
async def test_a_name_server_that_does_not_answer_ends_at_the_deadline(make: MakeClient) -> None:
    async def look(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    client = make(look, callback_timeout=SHORT, allow_hosts=("agent.example",))
    async with asyncio.timeout(5):
        answer = await call(client, "http://agent.example/x")

    assert AnswerKind.CONNECT == answer.kind
    assert "no connection to agent.example:80 within 0.3 s" == answer.error


@pytest.mark.requirement("X-F4")
async def test_a_handshake_that_never_ends_is_no_connection(make: MakeClient) -> None:
    async def silent(connection: Connection) -> None:
        await connection.silence()

    client = make(callback_timeout=SHORT)
    async with BadServer(silent) as server, asyncio.timeout(5):
        answer = await call(client, server.url.replace("http:", "https:"))

    assert AnswerKind.CONNECT == answer.kind


async def test_a_cancelled_call_raises_cancelled_and_leaves_the_client_usable(
    make: MakeClient,
) -> None:
    async def silent_once(connection: Connection) -> None:
        await connection.request()
        if connection.server.accepted == 1:
            await connection.silence()
        await connection.send(ACCEPT)

    client = make(concurrency=1)
    async with BadServer(silent_once) as server:
        task = asyncio.create_task(call(client, server.url))
        await server.until(lambda s: len(s.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await call(client, server.url)

    assert 200 == answer.status


# -- connections -----------------------------------------------------------------------------------


@pytest.mark.requirement("A6.4")
async def test_fifty_calls_run_at_once_over_fifty_connections(client: HttpGaClient) -> None:
    async def wait_for_all(connection: Connection) -> None:
        await connection.request()
        await connection.server.until(lambda s: len(s.requests) == 50)
        await connection.send(ACCEPT)

    async with BadServer(wait_for_all) as server:
        answers = await asyncio.gather(*(call(client, server.url) for _ in range(50)))

    assert [200] * 50 == [answer.status for answer in answers]
    assert 50 == server.accepted


@pytest.mark.requirement("A6.4")
async def test_a_connection_is_used_again(client: HttpGaClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        for _ in range(5):
            assert 200 == (await call(client, server.url)).status

    assert (5, 1) == (len(server.requests), server.accepted)


@pytest.mark.requirement("A6.4")
async def test_one_host_gets_no_more_than_its_share_of_connections(make: MakeClient) -> None:
    client = make(per_host=2)
    most = 0

    async def count(connection: Connection) -> None:
        nonlocal most
        while await connection.request() is not None:
            most = max(most, connection.server.open)
            await connection.send(ACCEPT)

    async with BadServer(count) as server:
        await asyncio.gather(*(call(client, server.url) for _ in range(12)))

    assert (12, 2) == (len(server.requests), most)


@pytest.mark.requirement("A6.4")
async def test_no_more_idle_connections_are_kept_than_allowed(make: MakeClient) -> None:
    client = make(max_idle=2)

    async def together(connection: Connection) -> None:
        while await connection.request() is not None:
            await connection.server.until(lambda s: len(s.requests) >= 10)
            await connection.send(ACCEPT)

    async with BadServer(together) as server:
        await asyncio.gather(*(call(client, server.url) for _ in range(10)))
        await server.until(lambda s: s.open <= 2)
        assert 200 == (await call(client, server.url)).status

    assert 10 == server.accepted


async def test_a_connection_closed_while_idle_loses_no_fire(client: HttpGaClient) -> None:
    async def once(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPT)

    async with BadServer(once) as server:
        for _ in range(20):
            answer = await call(client, server.url)
            assert 200 == answer.status, answer

    assert (20, 20) == (len(server.requests), server.accepted)


async def test_a_request_that_met_a_closing_connection_is_not_repeated_unasked(
    client: HttpGaClient,
) -> None:
    async def second_time_deaf(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPT)
        await connection.request()

    async with BadServer(second_time_deaf) as server:
        assert 200 == (await call(client, server.url)).status
        answer = await call(client, server.url)

    assert AnswerKind.BROKEN == answer.kind
    assert (2, 1) == (len(server.requests), server.accepted)


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one(
    client: HttpGaClient,
) -> None:
    async def twice(connection: Connection) -> None:
        await connection.request()
        await connection.send(ACCEPT + http_answer(200, b'{"task_run_id": "stale"}'))
        await connection.silence()

    async with BadServer(twice) as server:
        first = await call(client, server.url)
        second = await call(client, server.url)

    assert RUN == first.body
    assert b'{"task_run_id": "stale"}' != second.body


async def test_an_agent_that_answers_without_reading_is_heard(client: HttpGaClient) -> None:
    async def hasty(connection: Connection) -> None:
        await connection.reader.read(1)
        await connection.send(http_answer(413, b"too large", connection="close"))
        await connection.silence()

    async with BadServer(hasty) as server, asyncio.timeout(5):
        answer = await call(client, server.url, task_content="x" * 60_000)

    assert (AnswerKind.RESPONSE, 413) == (answer.kind, answer.status)
    assert AttemptClass.FINAL == verdict(answer).outcome


async def test_a_slow_agent_does_not_hold_up_a_fast_one(make: MakeClient) -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.silence()

    client = make(callback_timeout=timedelta(seconds=5), per_host=10)
    async with BadServer(silent) as slow, BadServer(answering(ACCEPT)) as fast:
        waiting = [asyncio.create_task(call(client, slow.url)) for _ in range(10)]
        await slow.until(lambda s: len(s.requests) == 10)
        answers = [await call(client, fast.url) for _ in range(10)]
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    assert [200] * 10 == [answer.status for answer in answers]


async def test_a_closed_client_answers_that_it_is_closed(make: MakeClient) -> None:
    client = make()
    async with BadServer(answering(ACCEPT)) as server:
        await call(client, server.url)
        await client.close()
        answer = await call(client, server.url)

    assert (AnswerKind.CONNECT, 1) == (answer.kind, len(server.requests))
    assert "closed" in answer.error


async def test_a_call_under_way_when_the_client_is_closed_is_broken(make: MakeClient) -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.silence()

    client = make()
    async with BadServer(silent) as server, asyncio.timeout(5):
        task = asyncio.create_task(call(client, server.url))
        await server.until(lambda s: len(s.requests) == 1)
        await client.close()
        answer = await task

    assert AnswerKind.BROKEN == answer.kind


@pytest.mark.parametrize("no_proxy", ["", "fd00::/8,10.0.0.0/8"])
async def test_proxies_of_the_environment_are_not_asked(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    async with BadServer(answering(http_answer(502))) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("NO_PROXY", no_proxy)
        async with BadServer(answering(ACCEPT)) as server:
            answer = await call(make(), server.url)

    assert (200, 0) == (answer.status, proxy.accepted)


async def test_what_cannot_be_written_is_an_answer_too(client: HttpGaClient) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        answer = await call(client, server.url, task_name="\ud800")

    assert (AnswerKind.CONNECT, 0) == (answer.kind, server.accepted)
    assert answer.error.startswith("nothing to send: ")
