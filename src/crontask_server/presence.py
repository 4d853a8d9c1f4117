"""A process that does not fire, but is there: its row among the nodes (DESIGN 3.6)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from crontask_core.errors import CrontaskError
from crontask_core.events import NodeChanged, PassFailed
from crontask_core.model import NodeRow

if TYPE_CHECKING:
    from crontask_adapters.wiring import App

__all__ = ["Presence"]


@attrs.define
class Presence:
    """Keeps an API-only process among the nodes and its clock by the database's.

    It has the life of a ``Runtime`` and nothing to drain: ``run()`` returns soon after ``stop()``.
    """

    app: App
    node: NodeRow = attrs.field(init=False)
    _stop: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _started: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _beat: float = attrs.field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        self.node = self.app.new_node()

    def stop(self) -> None:
        """Leave the nodes and end."""
        self._stop.set()

    def stop_now(self) -> None:
        """As ``stop``: there is nothing to wait for."""
        self._stop.set()

    async def started(self) -> None:
        """Return once this process is among the nodes."""
        await self._started.wait()

    def healthy(self) -> bool:
        """Whether a heartbeat was written lately."""
        return self.app.clock.elapsed() - self._beat < max(15.0, 3 * self._every)

    @property
    def _every(self) -> float:
        return self.app.settings.scheduler.heartbeat.total_seconds()

    async def run(self) -> None:
        """Register, then beat until stopped. Raises only before the first beat (a store that cannot
        be written is found at start)."""
        await self._register()
        self._started.set()
        while not self._stop.is_set():
            await self._wait()
            if not self._stop.is_set():
                await self._attempt()
        try:
            await self._leave()
        except CrontaskError as error:
            self._failed(error)

    async def beat(self) -> None:
        """One pass: move the counter, or come back under a new incarnation when retired."""
        sent = self.app.clock.elapsed()
        now, alive = await self.app.repo.heartbeat(self.node.incarnation)
        self.app.clock.observe(now, sent)
        if alive:
            self._beat = sent
            return
        self.app.observer.on(NodeChanged(node=self.node, what="lost"))
        self.node = self.app.new_node()
        await self._register()

    async def _register(self) -> None:
        sent = self.app.clock.elapsed()
        self.app.clock.observe(await self.app.repo.register(self.node), sent)
        self._beat = sent
        self.app.observer.on(NodeChanged(node=self.node, what="registered"))

    async def _leave(self) -> None:
        rows = await self.app.repo.nodes()
        mine = [(n.incarnation, n.counter) for n in rows if n.incarnation == self.node.incarnation]
        await self.app.repo.retire(mine, "its node left")
        self.app.observer.on(NodeChanged(node=self.node, what="retired"))

    async def _attempt(self) -> None:
        try:
            await self.beat()
        except Exception as error:  # noqa: BLE001 - one bad pass must not end the loop
            self._failed(error)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._every):
                await self._stop.wait()
        except TimeoutError:
            return

    def _failed(self, error: Exception) -> None:
        text = error.line() if isinstance(error, CrontaskError) else repr(error)
        retryable = isinstance(error, CrontaskError) and error.retryable
        self.app.observer.on(PassFailed(loop="heartbeat", error=text, retryable=retryable))
