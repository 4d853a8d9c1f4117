"""An embedder's own function as the agent."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from crontask_adapters.ga_function import AgentFunction, FunctionClient
from crontask_core.model import AttemptClass, Callback, Rules
from crontask_core.policy import Answer, AnswerKind, judge
from tests.support.callbacks import NOW, callback

Make = Callable[..., FunctionClient]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[FunctionClient] = []

    def build(function: AgentFunction, **options: Any) -> FunctionClient:
        made.append(FunctionClient(function, **options))
        return made[-1]

    yield build
    for client in made:
        await client.close()


async def as_async(got: Callback) -> str:
    return f"run_{got.task_id}"


def as_plain(got: Callback) -> str:
    return f"run_{got.task_id}"


class AsObject:
    async def __call__(self, got: Callback) -> str:
        return f"run_{got.task_id}"


def returning_an_awaitable(got: Callback) -> Any:
    return as_async(got)


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize(
    "function",
    [as_async, as_plain, AsObject(), returning_an_awaitable, functools.partial(as_async)],
)
async def test_a_function_of_any_kind_accepts_by_returning_the_run_id(
    make: Make, function: AgentFunction
) -> None:
    answer = await make(function).call(callback())

    assert (
        Answer(kind=AnswerKind.RESPONSE, status=200, body=b'{"task_run_id":"run_1001"}') == answer
    )
    assert "run_1001" == judge(answer, 1, NOW, Rules()).task_run_id


@pytest.mark.requirement("A6.1b")
@pytest.mark.parametrize(
    ("returned", "run_id"),
    [
        (None, ""),
        ("", ""),
        (123, "123"),
        ({"a": 1}, ""),
        ("\ud800", ""),
        (2**70, ""),
        ("x" * 129, ""),
    ],
)
async def test_whatever_it_returns_is_an_acceptance(make: Make, returned: Any, run_id: str) -> None:
    answer = await make(lambda _: returned).call(callback())

    seen = judge(answer, 1, NOW, Rules())
    assert (AttemptClass.ACCEPTED, run_id) == (seen.outcome, seen.task_run_id)
    assert bool(run_id) is not bool(seen.warning)


@pytest.mark.requirement("A6.3")
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such game"), "the function raised ValueError: no such game"),
        (TimeoutError(), "the function raised TimeoutError"),
        (asyncio.CancelledError(), "the function raised CancelledError"),
        (RuntimeError("x" * 900), "the function raised RuntimeError: " + "x" * 466),
    ],
)
async def test_what_it_raises_is_retried_and_may_have_arrived(
    make: Make, error: BaseException, text: str, plain: bool
) -> None:
    async def wait(_: Callback) -> str:
        raise error

    def run(_: Callback) -> str:
        raise error

    answer = await make(run if plain else wait).call(callback())

    assert Answer(kind=AnswerKind.BROKEN, error=text) == answer
    seen = judge(answer, 1, NOW, Rules())
    assert (AttemptClass.RETRY, True) == (seen.outcome, seen.arrived)


@pytest.mark.requirement("X-F4")
async def test_a_coroutine_that_hangs_is_cancelled_at_the_time_limit(make: Make) -> None:
    ended: list[str] = []

    async def hang(_: Callback) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    client = make(hang, timeout=timedelta(seconds=0.1))
    async with asyncio.timeout(5):
        answer = await client.call(callback())

    assert AnswerKind.TIMEOUT == answer.kind
    assert "the function did not return within 0.1 s" == answer.error
    assert ["cancelled"] == ended


@pytest.mark.requirement("X-F4")
async def test_a_plain_function_that_hangs_times_out_and_those_behind_it_never_began(
    make: Make,
) -> None:
    go = threading.Event()
    begun: list[int] = []

    def hang(got: Callback) -> str:
        begun.append(got.execution_id)
        go.wait(10)
        return "late"

    client = make(hang, timeout=timedelta(seconds=0.1), threads=1)
    async with asyncio.timeout(5):
        first = await client.call(callback(execution_id=1))
        second = await client.call(callback(execution_id=2))
    go.set()

    assert (AnswerKind.TIMEOUT, AnswerKind.CONNECT) == (first.kind, second.kind)
    assert [1] == begun


async def test_a_cancelled_call_raises_cancelled(make: Make) -> None:
    inside = asyncio.Event()

    async def hang(_: Callback) -> str:
        inside.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(make(hang).call(callback()))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.requirement("A6.4")
@pytest.mark.parametrize("plain", [False, True])
async def test_fifty_calls_run_at_once(make: Make, plain: bool) -> None:
    barrier = threading.Barrier(50, timeout=10)
    together = asyncio.Barrier(50)

    async def wait(_: Callback) -> str:
        await together.wait()
        return "run"

    def block(_: Callback) -> str:
        barrier.wait()
        return "run"

    client = make(block if plain else wait)
    answers = await asyncio.gather(*(client.call(callback()) for _ in range(50)))

    assert [200] * 50 == [answer.status for answer in answers]
