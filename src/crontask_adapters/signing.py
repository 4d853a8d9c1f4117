"""Signed callbacks after the Standard Webhooks specification, and how an agent checks them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from standardwebhooks import Webhook

from crontask_core.errors import Forbidden

__all__ = ["TOLERANCE", "Signer", "verify_callback"]

TOLERANCE = timedelta(minutes=5)
"""How old or how early a signed callback may be before an agent refuses it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Signer:
    """Makes the headers of a callback; every key signs, so keys can be changed without a gap."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._hooks = tuple(Webhook(key) for key in keys)

    def headers(self, fire_id: str, body: bytes, now: datetime) -> dict[str, str]:
        """``Idempotency-Key`` and ``webhook-id`` (both the fire id); with keys also the timestamp
        in Unix seconds and one ``v1,`` signature per key, blank separated."""
        headers = {"Idempotency-Key": fire_id, "webhook-id": fire_id}
        if self._hooks:
            when = now.astimezone(UTC)
            text = body.decode()
            headers["webhook-timestamp"] = str(int(when.timestamp()))
            signatures = (hook.sign(fire_id, when, text) for hook in self._hooks)
            headers["webhook-signature"] = " ".join(signatures)
        return headers


def verify_callback(
    body: bytes,
    headers: Mapping[str, str],
    keys: Sequence[str],
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> dict[str, Any]:
    """The callback's fields, once one of ``keys`` is seen to have signed exactly this body.

    For agents: ``body`` is the request body as received, ``headers`` in any case, ``now`` aware.
    Raises Forbidden ``UNAUTHENTICATED`` when a header is missing, the timestamp is further than
    ``tolerance`` from ``now``, or no signature fits. An agent that has seen the ``fire_id``
    before has been sent the same fire again.
    """
    given = {name.lower(): value for name, value in headers.items()}
    fire_id, sent = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not (fire_id and sent.isascii() and sent.isdigit() and len(sent) < 12):
        raise _unsigned("webhook-id or webhook-timestamp is missing or malformed")
    when = _EPOCH + timedelta(seconds=int(sent))
    if abs(now - when) > tolerance:
        raise _unsigned("webhook-timestamp is too far from now")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _unsigned("the body is not UTF-8") from None
    right = [Webhook(key).sign(fire_id, when, text).encode() for key in keys]
    offered = given.get("webhook-signature", "").encode().split()
    if not any(hmac.compare_digest(a, b) for a in right for b in offered):
        raise _unsigned("no webhook-signature fits body and keys")
    fields: dict[str, Any] = orjson.loads(body)
    return fields


def _unsigned(message: str) -> Forbidden:
    return Forbidden(
        message,
        code="UNAUTHENTICATED",
        hint="check that the body is used as received and that the key is one of the sender's",
    )
