"""For Python services that fire tasks in their own process, with a function as the agent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from crontask_adapters.ga_function import FunctionClient
from crontask_adapters.settings import Settings
from crontask_adapters.settings_checks import problems_of
from crontask_adapters.settings_load import SettingsError
from crontask_adapters.wiring import App, open_app
from crontask_core.model import Callback, Report
from crontask_core.ports import GaClient, Observer
from crontask_server.runtime import Runtime

__all__ = ["Work", "open_scheduler"]

Work = Callable[[Callback], Awaitable[str | None] | str | None]
"""Does the work of one fire and returns its result. Raising means: not done, call again later."""


@asynccontextmanager
async def open_scheduler(
    settings: Settings,
    work: Work | None = None,
    *,
    client: GaClient | None = None,
    observers: Iterable[Observer] = (),
) -> AsyncIterator[App]:
    """A node in this process: fires due tasks until the block ends, then stops gracefully (A5.2).

    With ``work`` a fire is one call of that function, async or plain (in a thread), within
    ``executor.callback_timeout``. What it returns is reported as the result; what it raises counts
    as a failed call and is retried. Runs that take longer need a ``client`` that accepts at once
    and reports later with ``app.tasks.report``, such as a ``FunctionClient``. With neither, agents
    are called over HTTP. Raises SettingsError, and what ``open_app`` raises.
    """
    problems = problems_of(settings)
    if problems:
        raise SettingsError(problems)
    worker = _Worker(work, settings.executor.concurrency) if work is not None else None
    if worker is not None:
        timeout = settings.executor.callback_timeout
        client = FunctionClient(worker.do, timeout=timeout)
    roles = ("api", "scheduler")
    app = await open_app(settings, roles=roles, client=client, observers=observers)
    if worker is not None:
        worker.app = app
    try:
        async with _running(Runtime(app)):
            yield app
    finally:
        await app.close()
        if worker is not None:
            worker.close()


@asynccontextmanager
async def _running(runtime: Runtime) -> AsyncIterator[None]:
    running = asyncio.create_task(runtime.run())
    started = asyncio.create_task(runtime.started())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # it ends before the first pass only by an error
        yield
    finally:
        started.cancel()
        runtime.stop()
        await running


class _Worker:
    """Runs the work of a fire and reports it before the call is answered: when either is lost,
    the fire is delivered again."""

    app: App

    def __init__(self, work: Work, threads: int) -> None:
        self._work = work
        self._is_async = inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(
            getattr(work, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="crontask-work")

    async def do(self, callback: Callback) -> str:
        run_id = f"{callback.fire_id}/{callback.attempt}"
        result = await self._result(callback)
        report = Report(
            task_id=callback.task_id,
            task_run_id=run_id,
            status="success",
            result=result or "",
            fire_id=callback.fire_id,
        )
        await self.app.tasks.report(report)
        return run_id

    async def _result(self, callback: Callback) -> str | None:
        if self._is_async:
            done = self._work(callback)
        else:
            loop = asyncio.get_running_loop()
            done = await loop.run_in_executor(self._threads, self._work, callback)
        return await done if inspect.isawaitable(done) else done

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
