"""The order of waiting fires: fair by user (DESIGN 3.2, X-F2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from crontask_core.model import ReadyFire

__all__ = ["QueueView", "queue_ready"]

_STEP = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class QueueView:
    """``head`` is the smallest waiting key (None: none waits), ``tails`` the greatest per user."""

    head: int | None = None
    tails: Mapping[str, int] = attrs.Factory(dict)


def queue_ready(
    queue: QueueView, fires: Sequence[tuple[str, str]], now: datetime
) -> list[ReadyFire]:
    """A queue row for each (user, callback host), in the order given.

    ``queue_key = max(V, greatest waiting key of this user + 1 s)``, in microseconds, where V is
    the smallest waiting key, or now when nothing waits. Keys only order: one user's thousand
    fires line up behind each other, another's single fire passes between them.
    """
    base = queue.head if queue.head is not None else (now - _EPOCH) // timedelta(microseconds=1)
    tails = dict(queue.tails)
    rows = []
    for user, host in fires:
        key = max(base, tails[user] + _STEP) if user in tails else base
        tails[user] = key
        rows.append(ReadyFire(execution_id=0, user_id=user, callback_host=host, queue_key=key))
    return rows
