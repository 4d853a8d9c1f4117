"""The sample owner as a process of its own, and what it tells."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs


@attrs.define
class OwnerProcess:
    """``port`` speaks gRPC, ``http_port`` HTTP; ``events`` is what it has told so far."""

    process: subprocess.Popen[str]
    port: int
    http_port: int
    events: list[dict[str, Any]] = attrs.Factory(list)

    def of(self, kind: str, app: str | None = None) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == kind and app in (None, e["app_code"])]

    def wait_for(self, kind: str, count: int = 1, seconds: float = 20) -> list[dict[str, Any]]:
        """Block until so many events of a kind were told."""
        until = time.monotonic() + seconds
        while len(found := self.of(kind)) < count:
            assert time.monotonic() < until, f"{len(found)} of {count} {kind}: {self.events[-3:]}"
            time.sleep(0.02)
        return found


@contextlib.contextmanager
def sample_owner(*options: str) -> Iterator[OwnerProcess]:
    """A running sample owner on free ports; gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "crontask_server.sample_owner", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    owner = OwnerProcess(process, first["port"], first["http_port"])

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            owner.events.append(json.loads(line))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield owner
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        listener.join(5)
        process.stdout.close()
