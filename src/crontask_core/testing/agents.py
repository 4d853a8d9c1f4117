"""An agent that answers as told, an observer that remembers, a lock without a server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from crontask_core.events import Event
from crontask_core.model import Callback
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import MaySend, always

__all__ = [
    "MemoryLock",
    "RecordingObserver",
    "ScriptedAgent",
    "Step",
    "accept",
    "broken",
    "no_connection",
    "respond",
    "timeout",
]

E = TypeVar("E")
Step = Answer | Callable[[Callback], Answer | Awaitable[Answer]]
"""One answer of a script, or a function of the callback that makes it (it may wait)."""


def respond(status: int, body: bytes | str = b"", *, retry_after: str = "") -> Answer:
    """An HTTP answer."""
    raw = body.encode() if isinstance(body, str) else body
    return Answer(kind=AnswerKind.RESPONSE, status=status, body=raw, retry_after=retry_after)


def accept(task_run_id: str, status: int = 200) -> Answer:
    """An acceptance with a run id, as seed A 6.1 wants it."""
    return respond(status, json.dumps({"task_run_id": task_run_id}))


def timeout(error: str = "no answer within 30 s") -> Answer:
    """Nothing came back in time; the request may have arrived."""
    return Answer(kind=AnswerKind.TIMEOUT, error=error)


def broken(error: str = "the connection was reset") -> Answer:
    """Half an answer; the request may have arrived."""
    return Answer(kind=AnswerKind.BROKEN, error=error)


def no_connection(error: str = "connection refused") -> Answer:
    """The request did not arrive."""
    return Answer(kind=AnswerKind.CONNECT, error=error)


def _accept_any(callback: Callback) -> Answer:
    return accept(f"run-{callback.task_id}-{callback.execution_id}-{callback.attempt}")


class ScriptedAgent:
    """A ``GaClient`` that never leaves the process.

    ``calls`` holds every callback in the order received. Each call takes the next step of the
    script of its fire id, else of its task (id or key), else ``default``, which accepts under a
    run id of its own: ``run-<task>-<execution>-<attempt>``.
    """

    def __init__(self, default: Step = _accept_any) -> None:
        self.default = default
        self.calls: list[Callback] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = False
        self._scripts: dict[int | str, list[Step]] = {}

    def script(self, which: int | str, *steps: Step) -> None:
        """Add answers for a task (id or key) or a single fire (its fire id), in this order."""
        self._scripts.setdefault(which, []).extend(steps)

    async def call(self, callback: Callback, may_send: MaySend = always) -> Answer:
        if not may_send():
            return Answer(kind=AnswerKind.UNSENT, error="handed back")
        self.calls.append(callback)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            step = self._next(callback)
            answer = step(callback) if callable(step) else step
            return answer if isinstance(answer, Answer) else await answer
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed = True

    def calls_of(self, task: int | str) -> list[Callback]:
        """The callbacks received for one task, by id or key."""
        return [call for call in self.calls if task in (call.task_id, call.task_key)]

    def _next(self, callback: Callback) -> Step:
        for name in (callback.fire_id, callback.task_id, callback.task_key):
            if steps := self._scripts.get(name):
                return steps.pop(0)
        return self.default


class RecordingObserver:
    """An ``Observer`` that keeps every event, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one class, in order."""
        return [event for event in self.events if isinstance(event, kind)]


class MemoryLock:
    """A ``Lock`` over a dict that owners share. ``elapsed`` gives seconds; ``ttl`` as in
    DESIGN 3.3. ``down``: the service is lost, and every answer is True."""

    def __init__(
        self,
        held: dict[str, tuple[str, float]],
        owner: str,
        elapsed: Callable[[], float],
        ttl: float = 5.0,
    ) -> None:
        self.held = held
        self.owner = owner
        self.ttl = ttl
        self.down = False
        self._elapsed = elapsed

    async def try_acquire_many(self, keys: Sequence[str]) -> list[bool]:
        return [self.down or self._try(key) for key in keys]

    async def release_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            if not self.down and self.held.get(key, ("", 0.0))[0] == self.owner:
                del self.held[key]

    def _try(self, key: str) -> bool:
        now = self._elapsed()
        owner, until = self.held.get(key, (self.owner, now))
        if owner != self.owner and until > now:
            return False
        self.held[key] = (self.owner, now + self.ttl)
        return True
