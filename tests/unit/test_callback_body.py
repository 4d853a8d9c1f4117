"""The body of a callback, byte by byte (A6.1a)."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from crontask_adapters.callback_body import callback_body
from crontask_core.errors import InvalidInput
from tests.support.callbacks import callback

GOLDEN = (
    '{"task_id":1001,"task_key":"task_dnfm_cpa_monitor","task_name":"DNFM CPA异常监控",'
    '"user_id":"josetian","conversation_id":"conv_abc123",'
    '"task_content":"查询 DNFM 过去7天 CPA 数据，CPA>100则截图推送企微群。",'
    '"fire_time":"2026-04-23T09:00:00+08:00","fire_timestamp":1776906000,'
    '"schedule_type":2,"fire_count":15,'
    '"fire_id":"0f8fad5b-d9cb-569f-a165-70867728950e","execution_id":7,"attempt":1,'
    '"timezone":"Asia/Shanghai","revision":3,"trigger":"schedule","run_of_existing_task":true}'
)
SEED_FIELDS = [
    "task_id", "task_key", "task_name", "user_id", "conversation_id", "task_content", "fire_time",
    "fire_timestamp", "schedule_type", "fire_count",
]  # fmt: skip


@pytest.mark.requirement("A6.1a")
def test_the_body_is_exactly_this() -> None:
    assert GOLDEN.encode() == callback_body(callback())


@pytest.mark.requirement("A6.1a")
def test_the_fields_of_the_source_document_come_first_and_no_url_is_sent() -> None:
    fields = json.loads(callback_body(callback("http://secret.internal/x")))
    assert SEED_FIELDS == list(fields)[:10]
    assert b"secret.internal" not in callback_body(callback("http://secret.internal/x"))


@pytest.mark.requirement("A6.1a")
@pytest.mark.parametrize(
    ("zone", "instant", "shown", "timestamp"),
    [
        ("UTC", datetime(2026, 4, 23, 1, tzinfo=UTC), "2026-04-23T01:00:00+00:00", 1776906000),
        (
            "America/New_York",
            datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
            "2026-11-01T01:30:00-04:00",
            1793511000,
        ),
        (
            "America/New_York",
            datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
            "2026-11-01T01:30:00-05:00",
            1793514600,
        ),
        (
            "Asia/Kathmandu",
            datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC),
            "2026-01-01T05:45:00.999999+05:45",
            1767225600,
        ),
    ],
)
def test_fire_time_has_the_offset_of_the_task_at_that_instant(
    zone: str, instant: datetime, shown: str, timestamp: int
) -> None:
    fields = json.loads(callback_body(callback(timezone=zone, fire_time=instant)))
    assert (shown, timestamp) == (fields["fire_time"], fields["fire_timestamp"])
    assert isinstance(fields["fire_timestamp"], int)


def test_a_manual_fire_says_so() -> None:
    fields = json.loads(callback_body(callback(manual=True)))
    assert ("manual", True) == (fields["trigger"], fields["run_of_existing_task"])


@pytest.mark.requirement("A2.3a")
def test_texts_come_back_byte_for_byte() -> None:
    text = 'a\r\n\t"\\ \u2028\u2029 \x00\x7f é 中文 🍣👨‍👩‍👧 </script>'
    body = callback_body(callback(task_content=text, task_name=text))
    fields = json.loads(body.decode())
    assert (text, text) == (fields["task_content"], fields["task_name"])
    assert "中文 🍣👨‍👩‍👧 </script>".encode() in body


def test_an_unknown_zone_is_an_error_and_not_a_wrong_time() -> None:
    with pytest.raises(InvalidInput, match="not an IANA time zone"):
        callback_body(callback(timezone="Mars/Base"))
