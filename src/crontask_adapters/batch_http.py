"""Owners over HTTP, for those without gRPC: a POST of JSON through the agents' client (DESIGN 7).

Redirects are not followed, the answer is read up to 64 KB, one deadline covers everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from crontask_adapters.address_guard import parse_target
from crontask_adapters.batch_settings import OwnerTarget
from crontask_adapters.ga_http import Flight, HttpGaClient, Route, failure
from crontask_core.batch_model import BatchAnswer, BatchCall, ReplyKind
from crontask_core.batch_ports import Owner, OwnerHealth
from crontask_core.policy import Answer, AnswerKind

__all__ = ["HttpOwner", "request_body"]

_COUNTS = ("claimed_count", "processed_count", "success_count", "failure_count")
_OPTIONAL = ("backlog", "oldest_pending_age_ms")


def request_body(call: BatchCall) -> bytes:
    """The request as JSON: the fields of the gRPC message, under the same names (B7)."""
    return orjson.dumps(
        {
            **call.extra,
            "meta": {
                "request_id": call.request_id,
                "app_code": call.app_code,
                "caller": call.caller,
            },
            "run_id": call.run_id,
            "worker_id": call.worker_id,
            "batch_size": call.batch_size,
            "lock_ttl_ms": call.lock_ttl_ms,
        }
    )


class HttpOwner:
    """``batch_ports.Owner`` over HTTP. ``client`` is closed with it. The owner is the operator's
    own: its addresses are not checked, as those of ``executor.default_callback_url`` are not."""

    def __init__(self, target: OwnerTarget, client: HttpGaClient) -> None:
        self._base = target.address.rstrip("/")
        self._headers = dict(target.metadata)
        self._client = client

    async def call(self, call: BatchCall) -> BatchAnswer:
        headers = self._headers | {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "crontask",
            "X-Request-Id": call.request_id,
        }
        route = Route(parse_target(self._base + call.method), trusted=True)
        flight = Flight(route, request_body(call), headers)
        deadline = asyncio.timeout(call.timeout)
        try:
            async with deadline:
                answer = await self._client._exchange(flight)
        except Exception as error:  # noqa: BLE001 - whatever happened, this call is over
            if deadline.expired() and flight.connected:
                text = f"no answer within {call.timeout:g} s; the owner may have done the work"
                return BatchAnswer(kind=ReplyKind.TIMEOUT, code="DEADLINE_EXCEEDED", error=text)
            if deadline.expired():
                text = f"no connection to {route.place} within {call.timeout:g} s"
                return BatchAnswer(kind=ReplyKind.UNAVAILABLE, code="UNAVAILABLE", error=text)
            answer = failure(error, flight)
        return _understood(answer)

    async def health(self, timeout: float) -> OwnerHealth:
        parts = urlsplit(self._base)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(timeout):
                _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {timeout:g} s"
            return OwnerHealth(state="bad", found=f"cannot be reached: {why}")
        return OwnerHealth(state="unknown", found="takes connections")

    async def close(self) -> None:
        await self._client.close()


def _understood(answer: Answer) -> BatchAnswer:
    if answer.kind is AnswerKind.BROKEN:
        # It may have arrived, as after a time-out: the counts are not known.
        return BatchAnswer(kind=ReplyKind.TIMEOUT, code="BROKEN", error=answer.error)
    if answer.kind is not AnswerKind.RESPONSE:
        reached = answer.kind is AnswerKind.CONNECT
        kind = ReplyKind.UNAVAILABLE if reached else ReplyKind.REFUSED
        return BatchAnswer(kind=kind, code=answer.kind.name, error=answer.error)
    if not 200 <= answer.status < 300:
        kind = ReplyKind.UNAVAILABLE if answer.status == 503 else ReplyKind.REFUSED
        text = answer.error or answer.body[:200].decode("utf-8", "replace")
        return BatchAnswer(kind=kind, code=f"HTTP_{answer.status}", error=text)
    return _reply(answer.body)


def _reply(body: bytes) -> BatchAnswer:
    try:
        said = orjson.loads(body)
    except ValueError:
        said = None
    fault = _fault(said) if isinstance(said, Mapping) else "the answer is not a JSON object"
    if fault:
        return BatchAnswer(kind=ReplyKind.REFUSED, code="BAD_REPLY", error=fault)
    return BatchAnswer(
        kind=ReplyKind.OK,
        code="OK",
        has_more=said["has_more"],
        **{name: said[name] for name in _COUNTS},
        **{name: said.get(name) for name in _OPTIONAL},
    )


def _fault(said: Mapping[str, Any]) -> str:
    """What is wrong with a reply; "" for nothing."""
    for name in _COUNTS:
        if not _is_count(said.get(name)):
            return f"{name} is not a number of 0 or more"
    for name in _OPTIONAL:
        if said.get(name) is not None and not _is_count(said[name]):
            return f"{name} is not a number of 0 or more"
    return "" if isinstance(said.get("has_more"), bool) else "has_more is neither true nor false"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_an_owner(owner: HttpOwner) -> Owner:
    return owner  # mypy checks the contract here
