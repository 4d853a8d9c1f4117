"""What a callback looks like on the wire (A6.1a)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson

from crontask_core.model import Callback
from crontask_core.zones import zone

__all__ = ["callback_body"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def callback_body(callback: Callback) -> bytes:
    """The JSON body of one attempt, UTF-8, texts unescaped and byte for byte (A6.1a, A2.3a).

    The fields of seed A 6.1 come first and in its order, then ours. ``fire_time`` is ISO 8601 with
    the offset of the task's zone at that instant, ``fire_timestamp`` whole Unix seconds. There is
    no callback URL in it. Raises InvalidInput ``UNKNOWN_TIMEZONE``, and TypeError for text that is
    not Unicode.
    """
    return orjson.dumps(
        {
            "task_id": callback.task_id,
            "task_key": callback.task_key,
            "task_name": callback.task_name,
            "user_id": callback.user_id,
            "conversation_id": callback.conversation_id,
            "task_content": callback.task_content,
            "fire_time": callback.fire_time.astimezone(zone(callback.timezone)).isoformat(),
            "fire_timestamp": (callback.fire_time - _EPOCH) // _SECOND,
            "schedule_type": callback.schedule_type,
            "fire_count": callback.fire_count,
            "fire_id": callback.fire_id,
            "execution_id": callback.execution_id,
            "attempt": callback.attempt,
            "timezone": callback.timezone,
            "revision": callback.revision,
            "trigger": "manual" if callback.manual else "schedule",
            "run_of_existing_task": True,
        }
    )
