"""Owners over gRPC, seed B's way (DESIGN 7): one explicit method a job, deadlines, metadata, TLS.

A message carries no name on the wire, so our own are understood by an owner whose fields have the
same numbers; for others the owner's generated classes are given by import path.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import grpc
from google.protobuf.message import DecodeError, EncodeError
from grpc_health.v1 import health_pb2

from crontask_adapters.batch_settings import OwnerTarget
from crontask_core.batch_model import BatchAnswer, BatchCall, BatchJob, ReplyKind
from crontask_core.batch_ports import Owner, OwnerHealth
from crontask_core.errors import ConfigError

__all__ = ["GrpcOwner", "Messages", "check_jobs", "load_messages"]

_OPTIONS = (
    # An owner that was away for an hour must not stay "unavailable" for two minutes more.
    ("grpc.initial_reconnect_backoff_ms", 200),
    # This one is how long a connection may take to be made.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    # One call, one request: what is repeated is decided in the core.
    ("grpc.enable_retries", 0),
)
_HEALTH = "/grpc.health.v1.Health/Check"
_META = ("request_id", "app_code", "caller")
_REQUEST = ("meta", "run_id", "worker_id", "batch_size", "lock_ttl_ms")
_COUNTS = ("claimed_count", "processed_count", "success_count", "failure_count")
_REPLY = (*_COUNTS, "has_more")
_KINDS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: ReplyKind.TIMEOUT,
    grpc.StatusCode.UNAVAILABLE: ReplyKind.UNAVAILABLE,
}


@attrs.frozen
class Messages:
    """The classes of request and reply; ``own`` when they are the owner's."""

    request: Any
    reply: Any
    own: bool


def load_messages(target: OwnerTarget) -> Messages:
    """Our messages, or the owner's classes by import path. Raises ConfigError when they cannot be
    imported or lack a field that every call needs (B7)."""
    if not target.request:
        from crontask_adapters.proto import crontask_batch_pb2 as ours

        return Messages(ours.CronBatchRequest, ours.CronBatchResponse, False)
    request = _load(target, "request", target.request)
    reply = _load(target, "reply", target.reply)
    meta = request.DESCRIPTOR.fields_by_name.get("meta")
    inner = meta.message_type.fields_by_name if meta is not None and meta.message_type else {}
    missing = [f"request: {name}" for name in _lacking(request, _REQUEST)]
    missing += [f"request: meta.{name}" for name in _META if name not in inner]
    missing += [f"reply: {name}" for name in _lacking(reply, _REPLY)]
    if missing:
        raise ConfigError(
            f"the classes of owner {target.name} lack {', '.join(missing)}",
            field=f"{target.field}.request",
            hint="the owner's contract lists the fields that every call needs",
        )
    return Messages(request, reply, True)


def _lacking(kind: Any, names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name not in kind.DESCRIPTOR.fields_by_name)


def _load(target: OwnerTarget, key: str, path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            field=f"{target.field}.{key}",
            hint="put the folder of the generated code on PYTHONPATH",
        ) from error
    if not hasattr(found, "DESCRIPTOR") or not hasattr(found.DESCRIPTOR, "fields_by_name"):
        raise ConfigError(f"{path} is not a protobuf message", field=f"{target.field}.{key}")
    return found


def check_jobs(target: OwnerTarget, messages: Messages, jobs: Iterable[BatchJob]) -> None:
    """Raise ConfigError for a job whose extra fields the request does not take, or whose method
    the owner's own service does not have (B6, B7)."""
    for job in jobs:
        where = f"batch.jobs.{job.name}"
        fields = messages.request.DESCRIPTOR.fields_by_name
        for name, value in job.extra.items():
            if name not in fields:
                raise ConfigError(
                    f"{messages.request.DESCRIPTOR.full_name} has no field {name}",
                    field=where,
                    hint="correct the name, or give owner.request the class that has it",
                    candidates=[known for known in fields if known not in _REQUEST],
                )
            try:
                messages.request(**{name: value})
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{name}: {error}", field=where, received=value) from None
        _check_method(messages, job, where)


def _check_method(messages: Messages, job: BatchJob, where: str) -> None:
    """Where the owner's service came along with its classes, the method must be in it."""
    service_name, _, name = job.method[1:].partition("/")
    try:
        service = messages.request.DESCRIPTOR.file.pool.FindServiceByName(service_name)
    except KeyError:
        return
    known = [method.name for method in service.methods]
    if name not in known:
        raise ConfigError(
            f"{service_name} has no method {name}", field=f"{where}.method", candidates=known[:5]
        )
    method = service.methods_by_name[name]
    wanted = messages.request.DESCRIPTOR.full_name
    if messages.own and method.input_type.full_name != wanted:
        raise ConfigError(
            f"{name} takes {method.input_type.full_name}, not {wanted}", field=f"{where}.method"
        )


class GrpcOwner:
    """``batch_ports.Owner`` over one channel. Made inside a running event loop."""

    def __init__(self, target: OwnerTarget, messages: Messages) -> None:
        self._messages = messages
        self._metadata = tuple((name.lower(), text) for name, text in target.metadata.items())
        self._channel = _channel(target)
        self._methods: dict[str, Callable[..., Any]] = {}

    async def call(self, call: BatchCall) -> BatchAnswer:
        metadata = (*self._metadata, ("x-request-id", call.request_id))
        try:
            request = self._request(call)
            reply = await self._method(call.method)(
                request, timeout=call.timeout, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            return _failed(error, call)
        except (DecodeError, EncodeError, TypeError, ValueError) as error:
            return BatchAnswer(kind=ReplyKind.REFUSED, code="BAD_MESSAGE", error=str(error)[:300])
        return _answer(reply)

    def _request(self, call: BatchCall) -> Any:
        made = self._messages.request(
            run_id=call.run_id,
            worker_id=call.worker_id,
            batch_size=call.batch_size,
            lock_ttl_ms=call.lock_ttl_ms,
            **call.extra,
        )
        for name in _META:
            setattr(made.meta, name, getattr(call, name))
        return made

    def _method(self, name: str) -> Callable[..., Any]:
        found = self._methods.get(name)
        if found is None:
            found = self._methods[name] = self._channel.unary_unary(
                name,
                request_serializer=self._messages.request.SerializeToString,
                response_deserializer=self._messages.reply.FromString,
            )
        return found

    async def health(self, timeout: float) -> OwnerHealth:
        ask = self._channel.unary_unary(
            _HEALTH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            said = await ask(
                health_pb2.HealthCheckRequest(), timeout=timeout, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return OwnerHealth(state="unknown", found="reached; it has no health service")
            return OwnerHealth(state="bad", found=f"{error.code().name}: {error.details()}")
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(said.status)
        return OwnerHealth(state="ok" if name == "SERVING" else "bad", found=name)

    async def close(self) -> None:
        await self._channel.close()


def _channel(target: OwnerTarget) -> Any:
    options = list(_OPTIONS)
    if not target.tls:
        return grpc.aio.insecure_channel(target.address, options=options)
    if target.server_name:
        options.append(("grpc.ssl_target_name_override", target.server_name))  # type: ignore[arg-type]
    credentials = grpc.ssl_channel_credentials(
        _bytes(target, "ca_file"), _bytes(target, "key_file"), _bytes(target, "cert_file")
    )
    return grpc.aio.secure_channel(target.address, credentials, options=options)


def _bytes(target: OwnerTarget, key: str) -> bytes | None:
    path = getattr(target, key)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key} cannot be read: {error.strerror}", field=f"{target.field}.{key}"
        ) from None


def _failed(error: Any, call: BatchCall) -> BatchAnswer:
    """A time-out (it may have done the work) and an owner that was not reached told apart."""
    code = error.code()
    kind = _KINDS.get(code, ReplyKind.REFUSED)
    text = str(error.details() or "")
    if kind is ReplyKind.TIMEOUT:
        text = f"no answer within {call.timeout:g} s; the owner may have done the work"
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        text = f"the owner has no method {call.method}" + (f" ({text})" if text else "")
    return BatchAnswer(kind=kind, code=code.name, error=text[:300])


def _answer(reply: Any) -> BatchAnswer:
    counts = {name: getattr(reply, name) for name in _COUNTS}
    if min(counts.values()) < 0:
        return BatchAnswer(kind=ReplyKind.REFUSED, code="BAD_REPLY", error="a count is negative")
    return BatchAnswer(
        kind=ReplyKind.OK,
        code="OK",
        has_more=bool(reply.has_more),
        backlog=_optional(reply, "backlog"),
        oldest_pending_age_ms=_optional(reply, "oldest_pending_age_ms"),
        **counts,
    )


def _optional(reply: Any, name: str) -> int | None:
    field = reply.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (field.has_presence and not reply.HasField(name)):
        return None
    return int(getattr(reply, name))


def _is_an_owner(owner: GrpcOwner) -> Owner:
    return owner  # mypy checks the contract here
