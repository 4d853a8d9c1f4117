"""The only assembler: from settings to use cases and an engine (DESIGN 2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import attrs

from crontask_adapters.address_guard import check_callback_url
from crontask_adapters.clock import SystemClock
from crontask_adapters.ids import default_node_id, incarnation, random_key
from crontask_adapters.observers import Observers
from crontask_adapters.settings import Settings
from crontask_adapters.sql.repo import SqlRepo, open_repo
from crontask_core.batch_model import to_ms
from crontask_core.engine import Engine
from crontask_core.model import NodeRow, Rules
from crontask_core.ports import Clock, GaClient, Lock, Observer, Repo
from crontask_core.tasks import Tasks

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from crontask_adapters.metrics import MetricsObserver
    from crontask_adapters.redis_hints import RedisHints

__all__ = ["VERSION", "App", "open_app"]

VERSION = "0.1.0"
_log = logging.getLogger("crontask.redis")
_CHUNK = 500
_SECOND = timedelta(seconds=1)


@attrs.define(kw_only=True)
class App:
    """An assembled crontask: the store, the use cases and, with the role ``scheduler``, an engine.

    ``wakers`` are called with an instant whenever something may be due then.
    """

    settings: Settings
    rules: Rules
    clock: SystemClock
    repo: SqlRepo
    observer: Observer
    tasks: Tasks
    engine: Engine | None
    client: GaClient | None
    metrics: MetricsObserver | None
    new_node: Callable[[], NodeRow]
    wakers: list[Callable[[datetime], None]] = attrs.Factory(list)
    _redis: _Redis | None = None
    _listening: asyncio.Task[None] | None = None

    def start(self, redis: _Redis | None) -> None:
        """Connect what is made with what waits for it, also in other processes."""
        self.tasks.wake = self._wake
        clock = self.clock
        if self.metrics is not None:
            self.metrics.watch("db_clock_offset_seconds", lambda: clock.offset / _SECOND)
            if self.engine is not None:
                engine = self.engine
                self.metrics.watch("slots_in_use", lambda: engine.in_hand)
        if redis is not None:
            self._redis = redis
            self._listening = asyncio.create_task(redis.hints.run(self._hinted))

    def _wake(self, at: datetime) -> None:
        for waker in self.wakers:
            waker(at)
        soon = 2 * self.settings.scheduler.poll_interval
        if self._redis is not None and at - self.clock.now() < soon:
            self._redis.hints.send()

    def _hinted(self) -> None:
        for waker in self.wakers:
            waker(self.clock.now())

    async def check_redis(self) -> str | None:
        """None without a ``redis.url``; "" when hints get through; else what is wrong for now.

        Raises ConfigError when waiting cannot help.
        """
        return None if self._redis is None else await self._redis.hints.check()

    async def prune(self) -> int:
        """Delete what retention no longer keeps, in short transactions; returns how many rows."""
        from crontask_adapters.sql.batch_sql import SqlBatchRepo

        kept = self.settings.retention
        old_runs = to_ms(self.clock.now() - timedelta(days=kept.batch_runs_days))
        total = 0
        while count := await SqlBatchRepo(self.repo).prune_runs(old_runs, _CHUNK):
            total += count
        while True:
            now = self.clock.now()
            done = await self.repo.prune(
                now - timedelta(days=kept.executions_days),
                now - timedelta(days=kept.tasks_days),
                _CHUNK,
            )
            total += done.executions + done.tasks
            if not done.executions and not done.tasks:
                return total

    async def close(self) -> None:
        """Stop listening for hints, close the agent client, Redis and the store."""
        if self._redis is not None:
            await self._redis.hints.flush()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._redis is not None:
            await self._redis.client.aclose()
        if self.client is not None:
            await self.client.close()
        await self.repo.close()


async def open_app(
    settings: Settings,
    *,
    roles: Iterable[str] = ("api",),
    client: GaClient | None = None,
    observers: Iterable[Observer] = (),
    log: bool = False,
) -> App:
    """Open the store and assemble. ``roles``: ``scheduler`` fires, ``api`` serves callers.

    ``client`` replaces the HTTP client: then a task needs no callback address. ``log``: this
    process is ours, so set up logging to standard error. Raises Unavailable (SCHEMA_MISMATCH,
    STORE_UNAVAILABLE) and ConfigError, each with its remedy.
    """
    rules = settings.rules()
    clock = SystemClock()
    observer, metrics = _observers(settings, observers, log=log)
    repo = await open_repo(settings.store.url, rules=rules, pool_size=settings.store.pool_size)
    try:
        return await _assemble(settings, frozenset(roles), client, clock, repo, observer, metrics)
    except BaseException:
        await repo.close()
        raise


async def _assemble(
    settings: Settings,
    wanted: frozenset[str],
    client: GaClient | None,
    clock: SystemClock,
    repo: SqlRepo,
    observer: Observer,
    metrics: MetricsObserver | None,
) -> App:
    rules = settings.rules()
    sent = clock.elapsed()
    clock.observe((await repo.horizon()).now, sent)
    name = f"crontask:{await repo.installation_id()}"
    redis = await _Redis.of(settings, name, clock, ask=bool(wanted))
    needs_url = client is None
    new_node = _node_maker(settings, clock, wanted)
    engine = None
    if "scheduler" in wanted:
        client = client or _http_client(settings, clock)
        lock = redis.lock(settings, repo, observer) if redis is not None else None
        engine = _engine(settings, rules, clock, repo, observer, client, lock, new_node)
    tasks = await _tasks(settings, rules, clock, repo, observer)
    tasks.needs_url, tasks.fires_here = needs_url, engine is not None
    app = App(
        settings=settings,
        rules=rules,
        clock=clock,
        repo=repo,
        observer=observer,
        tasks=tasks,
        engine=engine,
        client=client,
        metrics=metrics,
        new_node=new_node,
    )
    app.start(redis)
    return app


async def _tasks(
    settings: Settings, rules: Rules, clock: Clock, repo: Repo, observer: Observer
) -> Tasks:
    hosts = settings.callback.allow_hosts
    return Tasks(
        repo=repo,
        clock=clock,
        observer=observer,
        rules=rules,
        installation=await repo.installation_id(),
        new_key=random_key,
        check_url=lambda url: check_callback_url(url, hosts),
    )


@attrs.frozen
class _Redis:
    """What Redis is for: wake-up hints between nodes, and maybe a lock (DESIGN 3.3)."""

    client: Redis
    prefix: str
    clock: Clock
    hints: RedisHints

    @classmethod
    async def of(cls, settings: Settings, prefix: str, clock: Clock, *, ask: bool) -> _Redis | None:
        """``ask`` it first, for a process that stays. One that is away is no reason to stop."""
        if not settings.redis.url:
            return None
        from crontask_adapters.redis_client import connect
        from crontask_adapters.redis_hints import RedisHints

        client = connect(settings.redis.url)
        hints = RedisHints(client, owner=incarnation(), clock=clock, prefix=prefix)
        try:
            lost = await hints.check() if ask else ""
        except BaseException:
            await client.aclose()
            raise
        if lost:
            _log.warning("Redis (redis.url) cannot be used now, going on without it: %s", lost)
        return cls(client, prefix, clock, hints)

    def lock(self, settings: Settings, repo: SqlRepo, observer: Observer) -> Lock | None:
        """``auto`` asks Redis only where claims cannot skip locked rows."""
        mode = settings.redis.lock
        if mode == "off" or (mode == "auto" and repo.skips_locked):
            return None
        from crontask_adapters.redis_lock import RedisLock

        return RedisLock(
            self.client,
            owner=incarnation(),
            clock=self.clock,
            observer=observer,
            prefix=self.prefix,
        )


def _observers(
    settings: Settings, extra: Iterable[Observer], *, log: bool
) -> tuple[Observer, MetricsObserver | None]:
    from crontask_adapters import metrics as counting

    listeners = list(extra)
    if log:
        from crontask_adapters.observers import LogObserver, setup_logging

        listeners.append(LogObserver(setup_logging(settings.log.format, settings.log.level)))
    metrics = None
    if log and counting.available():
        metrics = counting.MetricsObserver()
        listeners.append(metrics)
    return Observers(tuple(listeners)), metrics


def _node_maker(settings: Settings, clock: Clock, roles: frozenset[str]) -> Callable[[], NodeRow]:
    name = settings.scheduler.node_id or default_node_id()

    def new_node() -> NodeRow:
        now = clock.now()
        return NodeRow(
            incarnation=f"{name[:100]}#{incarnation()}",
            node_id=name,
            roles=",".join(sorted(roles)),
            version=VERSION,
            started_at=now,
            seen_at=now,
        )

    return new_node


def _engine(
    settings: Settings,
    rules: Rules,
    clock: Clock,
    repo: Repo,
    observer: Observer,
    client: GaClient,
    lock: Lock | None,
    new_node: Callable[[], NodeRow],
) -> Engine:
    return Engine(
        repo=repo,
        client=client,
        clock=clock,
        observer=observer,
        rules=rules,
        new_node=new_node,
        lock=lock,
        concurrency=settings.executor.concurrency,
        claim_batch=settings.scheduler.claim_batch,
        heartbeat_every=settings.scheduler.heartbeat.total_seconds(),
        node_timeout=settings.scheduler.node_timeout.total_seconds(),
    )


def _http_client(settings: Settings, clock: Clock) -> GaClient:
    if settings.executor.http_client == "httpx":
        from crontask_adapters.ga_httpx import HttpxClient

        return HttpxClient(settings.client_options(), now=clock.now)
    from crontask_adapters.ga_aiohttp import AiohttpClient

    return AiohttpClient(settings.client_options(), now=clock.now)
