"""Signed callbacks and their verification."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crontask_adapters.signing import Signer, verify_callback
from crontask_core.errors import Forbidden

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_b2xkIGtleSwgb2xkIGtleSwgb2xkIGtleSwgb2xk"
SENT = datetime(2021, 2, 25, 15, 2, 10, tzinfo=UTC)
BODY = b'{"test": 2432232314}'
SIGNED = {
    "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "Webhook-Timestamp": "1614265330",
    "Webhook-Signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_the_published_example_of_the_specification_is_reproduced() -> None:
    headers = Signer([KEY]).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", BODY, SENT)
    expected = {name.lower(): value for name, value in SIGNED.items()}
    assert expected | {"Idempotency-Key": "msg_p5jXN8AQM9LWM0D4loKWxJek"} == headers
    assert {"test": 2432232314} == verify_callback(BODY, SIGNED, [KEY], SENT)


def test_without_keys_only_the_ids_are_sent() -> None:
    assert {"Idempotency-Key": "f1", "webhook-id": "f1"} == Signer([]).headers("f1", BODY, SENT)


def test_each_key_signs_so_that_one_can_be_replaced() -> None:
    headers = Signer([KEY, OTHER]).headers("f1", BODY, SENT)
    assert 2 == headers["webhook-signature"].count("v1,")
    for keys in ([KEY], [OTHER], [OTHER, KEY]):
        assert {"test": 2432232314} == verify_callback(BODY, headers, keys, SENT)


@pytest.mark.parametrize("seconds", [-300, 0, 300])
def test_five_minutes_of_clock_difference_pass(seconds: int) -> None:
    verify_callback(BODY, SIGNED, [KEY], SENT + timedelta(seconds=seconds))


@pytest.mark.parametrize("seconds", [-301, 301])
def test_more_is_refused_as_a_replay(seconds: int) -> None:
    with pytest.raises(Forbidden, match="too far from now"):
        verify_callback(BODY, SIGNED, [KEY], SENT + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("changed", "body", "keys"),
    [
        ({}, BODY + b" ", [KEY]),
        ({}, BODY, [OTHER]),
        ({}, BODY, []),
        ({}, b"\xff", [KEY]),
        ({"Webhook-Id": "other"}, BODY, [KEY]),
        ({"Webhook-Id": ""}, BODY, [KEY]),
        ({"Webhook-Timestamp": "1614265331"}, BODY, [KEY]),
        ({"Webhook-Timestamp": "1614265330.0"}, BODY, [KEY]),
        ({"Webhook-Timestamp": "nan"}, BODY, [KEY]),
        ({"Webhook-Timestamp": "9" * 40}, BODY, [KEY]),
        ({"Webhook-Timestamp": ""}, BODY, [KEY]),
        ({"Webhook-Signature": ""}, BODY, [KEY]),
        ({"Webhook-Signature": "v1"}, BODY, [KEY]),
        ({"Webhook-Signature": "v1,é"}, BODY, [KEY]),
        ({"Webhook-Signature": "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, BODY, [KEY]),
    ],
)
def test_anything_that_does_not_fit_is_unauthenticated(
    changed: dict[str, str], body: bytes, keys: list[str]
) -> None:
    with pytest.raises(Forbidden) as caught:
        verify_callback(body, SIGNED | changed, keys, SENT)

    assert "UNAUTHENTICATED" == caught.value.code
    assert KEY not in repr(caught.value.as_dict())
