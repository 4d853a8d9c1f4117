"""An embedder's own function as the agent: no HTTP in between (DESIGN 3.4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import orjson

from crontask_core.model import Callback
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import MaySend, always

__all__ = ["AgentFunction", "FunctionClient"]

AgentFunction = Callable[[Callback], Awaitable[str | None] | str | None]
"""Takes what would be sent and returns the run id, or None when there is none to report by."""


class FunctionClient:
    """``ports.GaClient`` that calls ``function(callback)`` in this process.

    The function accepts a fire by returning, with the ``task_run_id`` or None. What it raises is
    BROKEN with the message and is retried: it may have acted before. Past ``timeout`` the answer is
    TIMEOUT and an async function is cancelled. A plain function runs in one of ``threads`` threads,
    which nothing can stop: it goes on, and its result is dropped; while all threads are taken,
    calls wait, and CONNECT is the answer to one that was never begun. ``call`` raises nothing but
    CancelledError.
    """

    def __init__(
        self,
        function: AgentFunction,
        *,
        timeout: timedelta = timedelta(seconds=30),
        threads: int = 50,
    ) -> None:
        self._function = function
        self._seconds = timeout.total_seconds()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="crontask-agent")
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        """Run the function once, under the time limit (A6.1b, X-F4)."""
        deadline = asyncio.timeout(self._seconds)
        begun: list[bool] = []
        try:
            async with deadline:
                return _accepted(await self._run(callback, may_send, begun))
        except _NotBegun:
            return Answer(kind=AnswerKind.UNSENT, error="handed back: this process was held up")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _broken(error)
        except Exception as error:  # noqa: BLE001 - whatever the function raises is its answer
            if not deadline.expired():
                return _broken(error)
        kind = AnswerKind.TIMEOUT if begun else AnswerKind.CONNECT
        return Answer(kind=kind, error=f"the function did not return within {self._seconds:g} s")

    async def _run(self, callback: Callback, may_send: MaySend, begun: list[bool]) -> object:
        def run() -> Awaitable[str | None] | str | None:
            if not may_send():
                raise _NotBegun
            begun.append(True)
            return self._function(callback)

        if self._is_async:
            result: object = run()
        else:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, run)
        return await result if inspect.isawaitable(result) else result

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _NotBegun(Exception):
    """The call may no longer be made by this process."""


def _accepted(run_id: object) -> Answer:
    answer = {"task_run_id": run_id} if isinstance(run_id, str | int) else {}
    try:
        body = orjson.dumps(answer)
    except TypeError:  # not writable as JSON: accepted all the same, without a usable run id
        body = b"{}"
    return Answer(kind=AnswerKind.RESPONSE, status=200, body=body)


def _broken(error: BaseException) -> Answer:
    text = f"the function raised {type(error).__name__}: {error}".rstrip(": ")
    return Answer(kind=AnswerKind.BROKEN, error=text[:500])
