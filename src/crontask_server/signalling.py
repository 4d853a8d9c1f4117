"""Signals that ask a process to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["end_with_parent", "signals"]


@contextlib.contextmanager
def signals(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call ``on_signal`` for SIGTERM and SIGINT. Outside the main thread it does nothing."""
    loop = asyncio.get_running_loop()
    held = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal)
            held.append(number)
    try:
        yield
    finally:
        for number in held:
            loop.remove_signal_handler(number)


def end_with_parent() -> None:
    """Ask this process to end, in order, once its standard input closes: the parent holds the other
    end, and however the parent dies, that closes."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
