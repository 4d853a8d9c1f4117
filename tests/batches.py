"""Batch jobs for tests: everything has a default, name what matters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from crontask_core.batch_model import BatchJob, to_ms
from tests.builders import T0

T0_MS = to_ms(T0)


def job(
    name: str = "risk",
    *,
    interval: float = 5,
    timeout: float = 3,
    lock_ttl: float = 30,
    apps: tuple[str, ...] = ("lalu",),
    **changes: Any,
) -> BatchJob:
    """A job; times in seconds."""
    if "max_round" in changes:
        changes["max_round"] = timedelta(seconds=changes["max_round"])
    return BatchJob(
        name=name,
        owner="user",
        method=f"/hyapp.user.v1.UserCronService/{name}",
        interval=timedelta(seconds=interval),
        timeout=timedelta(seconds=timeout),
        lock_ttl=timedelta(seconds=lock_ttl),
        batch_size=100,
        app_codes=apps,
        **changes,
    )


def ms(seconds: float) -> int:
    """T0 plus so many seconds, in milliseconds."""
    return T0_MS + round(seconds * 1000)
