"""Several processes on one machine: a parent that starts, restarts and stops them (A5.2).

The parent opens no store and fires nothing; each child is a node of its own and knows nothing of
the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence

import attrs

from crontask_core.ports import Clock
from crontask_server.signalling import signals

__all__ = ["Family"]

_log = logging.getLogger("crontask.processes")

_STEADY = 30.0
"""Seconds after which a process has proved that it works."""
_LONGEST = 30.0
_AT_ONCE = 5.0
"""Seconds a process gets after the second signal."""
_CONFIG, _UNAVAILABLE = 2, 5


@attrs.define(kw_only=True)
class Family:
    """Runs one child for each of ``lines`` (argv). ``run()`` returns the exit code.

    A child that crashes is started again, after 0.5 s, 1 s, 2 s and so on up to 30 s; one that ends
    with 0 was asked to by somebody, and stays ended. The first SIGTERM or SIGINT is handed on and
    lets every child finish in order, within ``stop_seconds``; the second ends all at once. A wrong
    configuration, or a store that cannot be used at the first start, ends the whole with that code:
    trying again would not help.
    """

    lines: Sequence[Sequence[str]]
    clock: Clock
    stop_seconds: float
    _live: dict[int, asyncio.subprocess.Process] = attrs.field(factory=dict, init=False)
    _asked: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _again: asyncio.Event = attrs.field(factory=asyncio.Event, init=False)
    _code: int = attrs.field(default=0, init=False)

    async def run(self) -> int:
        """Start all, and return once all have ended: 0 when each ended in order."""
        with signals(self._on_signal):
            ending = asyncio.create_task(self._end_in_time())
            try:
                await asyncio.gather(*(self._keep(n, line) for n, line in enumerate(self.lines, 1)))
            finally:
                ending.cancel()
                self._send(signal.SIGKILL)
                await asyncio.gather(ending, return_exceptions=True)
        return self._code

    async def _keep(self, number: int, line: Sequence[str]) -> None:
        failures = starts = 0
        while not self._asked.is_set():
            began = self.clock.elapsed()
            code = await self._one(number, line)
            starts += 1
            lived = self.clock.elapsed() - began
            if self._asked.is_set() or code == 0:
                self._ended(code)
                return
            if code == _CONFIG or (code == _UNAVAILABLE and starts == 1 and lived < _STEADY):
                _log.error("process %d cannot start (exit code %d); all are stopped", number, code)
                self._code = code
                self._stop()
                return
            failures = 0 if lived > _STEADY else failures + 1
            wait = min(_LONGEST, 0.25 * 2 ** min(max(failures, 1), 10))
            _log.error("process %d crashed (%s), again in %g s", number, _how(code), wait)
            await self._wait(self._asked, wait)

    async def _one(self, number: int, line: Sequence[str]) -> int:
        # A session of its own: Ctrl-C in a terminal reaches the parent alone, which hands it on.
        process = await asyncio.create_subprocess_exec(
            *line, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._live[number] = process
        _log.info("process %d has pid %d", number, process.pid)
        if self._asked.is_set():
            self._send(signal.SIGTERM)
        code = await process.wait()
        del self._live[number]
        return code

    def _ended(self, code: int) -> None:
        # A process that was asked to end before it could listen to signals dies of the signal.
        if code not in (0, -signal.SIGTERM) and self._code == 0:
            self._code = 1

    # -- ending --------------------------------------------------------------------------------
    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._again.set()
        self._stop()

    def _stop(self) -> None:
        self._asked.set()
        self._send(signal.SIGTERM)

    async def _end_in_time(self) -> None:
        await self._asked.wait()
        await self._wait(self._again, self.stop_seconds)
        if self._again.is_set():
            await self.clock.sleep(_AT_ONCE)
        for number in self._live:
            _log.error("process %d did not end in time and is killed", number)
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in list(self._live.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
