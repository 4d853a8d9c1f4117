"""For Python services that make tasks and read results in a shared store.

Three ways in: ``open_tasks`` in async code, ``open_sync`` in code that is not async, ``tasks_on``
inside the caller's own transaction. Who fires the tasks is another process: ``crontask serve``,
``crontask worker``, or a service with ``crontask_server.embed.open_scheduler``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from crontask_adapters.address_guard import check_callback_url
from crontask_adapters.clock import SystemClock, utcnow
from crontask_adapters.ids import random_key
from crontask_adapters.observers import Observers
from crontask_adapters.settings import Settings
from crontask_adapters.sql.repo import SqlRepo
from crontask_adapters.sql.runner import AsyncConnectionRunner, ConnectionRunner
from crontask_adapters.sql.tx import Terms
from crontask_adapters.wiring import App, open_app
from crontask_core.tasks import Tasks

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["SyncTasks", "open_sync", "open_tasks", "tasks_on"]

T = TypeVar("T")


@asynccontextmanager
async def open_tasks(settings: Settings, *, needs_url: bool = True) -> AsyncIterator[App]:
    """An app that fires nothing: ``app.tasks`` has the use cases.

    ``needs_url`` false: a task without a callback address may be made although
    ``executor.default_callback_url`` is not set here, because whoever fires it knows where to send
    it. Raises what ``open_app`` raises.
    """
    app = await open_app(settings, roles=("api",))
    app.tasks.needs_url = needs_url
    try:
        yield app
    finally:
        await app.close()


async def tasks_on(
    conn: Connection | AsyncConnection, settings: Settings, *, needs_url: bool = True
) -> Tasks:
    """The use cases on the caller's own connection, inside the caller's transaction.

    What they write is there when the caller commits and gone when the caller rolls back. Nothing is
    committed or repeated here; after an error the caller rolls back. A task that is due at once is
    found by the first poll after the commit. Transactions should be READ COMMITTED on MySQL and
    BEGIN IMMEDIATE on SQLite. Raises Unavailable (SCHEMA_MISMATCH) when the database lacks the
    tables of crontask.
    """
    from sqlalchemy import Connection

    runner = ConnectionRunner(conn) if isinstance(conn, Connection) else AsyncConnectionRunner(conn)
    rules = settings.rules()
    own_clock = utcnow if conn.dialect.name == "sqlite" else None
    repo = SqlRepo(runner, Terms(rules=rules, clock=own_clock))
    hosts = settings.callback.allow_hosts
    return Tasks(
        repo=repo,
        clock=SystemClock(),
        observer=Observers(()),  # before the commit nothing has happened yet
        rules=rules,
        installation=await repo.installation_id(),
        new_key=random_key,
        check_url=lambda url: check_callback_url(url, hosts),
        needs_url=needs_url,
    )


@attrs.frozen
class SyncTasks:
    """The use cases for code that is not async: ``sync.run(sync.tasks.create(...))``.

    May be used from any thread, and from several at once.
    """

    app: App
    _loop: asyncio.AbstractEventLoop

    @property
    def tasks(self) -> Tasks:
        """What to call; each call gives a coroutine for ``run``."""
        return self.app.tasks

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call of ``tasks`` and return its answer, or raise what it raised."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


@contextmanager
def open_sync(settings: Settings, *, needs_url: bool = True) -> Iterator[SyncTasks]:
    """``open_tasks`` for code that is not async, with one thread of its own. Open it once, for
    example when a web application starts: it costs some tens of milliseconds."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="crontask-sync", daemon=True)
    thread.start()

    def run(call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    try:
        opened = open_tasks(settings, needs_url=needs_url)
        app = run(opened.__aenter__())
        try:
            yield SyncTasks(app, loop)
        finally:
            run(opened.__aexit__(None, None, None))
    finally:
        run(loop.shutdown_asyncgens())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
