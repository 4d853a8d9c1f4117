"""Names that must be unique. The only module that draws random numbers (DESIGN 2)."""

from __future__ import annotations

import os
import secrets
import socket
import uuid

__all__ = ["default_node_id", "error_id", "incarnation", "installation_id", "random_key"]


def incarnation() -> str:
    """The name of one process start: 16 hex digits, never used twice (DESIGN 3.6)."""
    return secrets.token_hex(8)


def default_node_id() -> str:
    """``host:pid:random``: unlike any other node's, even with equal host names and pids."""
    host = "".join(c for c in socket.gethostname() if c.isprintable() and not c.isspace())
    return f"{host[:80] or 'host'}:{os.getpid()}:{secrets.token_hex(4)}"


def error_id() -> str:
    """What finds an unexpected error in the log: ``e-`` and 12 hex digits."""
    return f"e-{secrets.token_hex(6)}"


def installation_id() -> str:
    """A new UUID4 as text; made once per store and part of every task's ``uid`` (DESIGN 3.4)."""
    return str(uuid.uuid4())


def random_key() -> str:
    """A ``task_key`` for a task that was created without one (A3.1a)."""
    return f"auto-{secrets.token_hex(12)}"
