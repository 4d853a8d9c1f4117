"""A call is given back unsent when its process was held up while it connected (DESIGN 3.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from crontask_adapters.client_options import ClientOptions
from crontask_adapters.ga_aiohttp import AiohttpClient
from crontask_adapters.ga_function import FunctionClient
from crontask_adapters.ga_http import HttpGaClient
from crontask_adapters.ga_httpx import HttpxClient
from crontask_core.model import Callback
from crontask_core.policy import AnswerKind
from tests.support.bad_server import BadServer, answering, http_answer
from tests.support.callbacks import call, callback, now

ACCEPT = http_answer(200, b'{"task_run_id": "r"}')


@pytest.fixture(params=[AiohttpClient, HttpxClient])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[HttpGaClient]:
    made = request.param(ClientOptions(allow_hosts=("127.0.0.1",)), now=now)
    yield made
    await made.close()


@pytest.mark.requirement("A5.5")
async def test_nothing_is_written_when_the_call_may_no_longer_be_made(
    client: HttpGaClient,
) -> None:
    async with BadServer(answering(ACCEPT)) as server:
        answer = await client.call(callback(server.url), lambda: False)
        assert answer.kind is AnswerKind.UNSENT
        assert server.requests == []
        # The connection it had is there for the next one.
        assert (await call(client, server.url)).kind is AnswerKind.RESPONSE
        assert (await client.call(callback(server.url), lambda: False)).kind is AnswerKind.UNSENT
        assert len(server.requests) == 1


async def test_the_question_is_asked_when_the_connection_is_there_and_only_once(
    client: HttpGaClient,
) -> None:
    asked: list[int] = []

    async with BadServer(answering(ACCEPT)) as server:

        def may_send() -> bool:
            asked.append(server.accepted)
            return True

        assert (await client.call(callback(server.url), may_send)).status == 200
    assert len(asked) == 1


async def test_a_function_is_not_begun_when_the_call_may_no_longer_be_made() -> None:
    begun: list[Callback] = []

    def run(given: Callback) -> str:
        begun.append(given)
        return "r"

    client = FunctionClient(run)
    try:
        assert (await client.call(callback(), lambda: False)).kind is AnswerKind.UNSENT
        assert (await client.call(callback(), lambda: True)).kind is AnswerKind.RESPONSE
    finally:
        await client.close()
    assert len(begun) == 1
