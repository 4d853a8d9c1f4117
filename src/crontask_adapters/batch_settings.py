"""``batch.owners.*`` and ``batch.jobs.*``: tables of the TOML file as checked values (B1, B6).

Everything that is wrong is found in one go, with the key in ``field``; unknown keys are errors.
What only the owner's own classes can tell is found when the driver is made, also at start.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import attrs

from crontask_adapters.settings import BatchSettings
from crontask_adapters.settings_fields import Bad, Kind, Spec, read, show_duration
from crontask_core.batch_model import BatchJob, Extra, job_problems, span_ms
from crontask_core.errors import ConfigError

__all__ = ["BatchPlan", "OwnerTarget", "describe_job", "read_batch"]

GRPC, HTTP = "grpc", "http"
_S = timedelta(seconds=1)


def _spec(kind: Kind, example: str = "", **more: Any) -> Spec:
    return Spec(kind=kind, help="", example=example, **more)


_OWNER: Mapping[str, tuple[Spec, Any]] = MappingProxyType(
    {
        "driver": (_spec(Kind.CHOICE, choices=(GRPC, HTTP)), GRPC),
        "address": (_spec(Kind.TEXT, "127.0.0.1:13005"), None),
        "tls": (_spec(Kind.BOOL), False),
        "ca_file": (_spec(Kind.TEXT, "/etc/ssl/owners.pem"), ""),
        "cert_file": (_spec(Kind.TEXT, "/etc/crontask/client.pem"), ""),
        "key_file": (_spec(Kind.TEXT, "/etc/crontask/client.key"), ""),
        "server_name": (_spec(Kind.TEXT, "user-service"), ""),
        "request": (_spec(Kind.TEXT, "hyapp.user.v1.cron_pb2:CronBatchRequest"), ""),
        "reply": (_spec(Kind.TEXT, "hyapp.user.v1.cron_pb2:CronBatchResponse"), ""),
        "metadata": (_spec(Kind.MAP, "authorization: Bearer abc"), MappingProxyType({})),
    }
)
"""Keys of an owner: how each is read, and its default (None: it must be given)."""

_JOB: Mapping[str, tuple[Spec, Any]] = MappingProxyType(
    {
        "enabled": (_spec(Kind.BOOL), True),
        "owner": (_spec(Kind.TEXT, "user"), None),
        "method": (_spec(Kind.TEXT, "/hyapp.user.v1.UserCronService/ProcessBatch"), None),
        "interval": (_spec(Kind.DURATION), None),
        "timeout": (_spec(Kind.DURATION), 10 * _S),
        "lock_ttl": (_spec(Kind.DURATION), 30 * _S),
        "batch_size": (_spec(Kind.INT), 100),
        "app_codes": (_spec(Kind.LIST, '["lalu"]'), None),
        "max_round": (_spec(Kind.DURATION), ""),
        "pending_publish_max_age": (_spec(Kind.DURATION), ""),
        "publishing_session_max_age": (_spec(Kind.DURATION), ""),
        "extra": (_spec(Kind.TEXT), MappingProxyType({})),
    }
)
_WINDOWS = ("pending_publish_max_age", "publishing_session_max_age")
_EXAMPLES: Mapping[str, str] = MappingProxyType({"interval": "5s"})
_TLS_KEYS = ("ca_file", "cert_file", "key_file", "server_name")
_GRPC_METHOD = re.compile(r"/[A-Za-z_][\w.]*/[A-Za-z_]\w*", re.ASCII)
_GRPC_ADDRESS = re.compile(r"(?:(?:dns|ipv4|ipv6|unix):\S+|[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d+)")
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_OWN_FIELDS = frozenset({"meta", "run_id", "worker_id", "batch_size", "lock_ttl_ms"})


@attrs.frozen(kw_only=True)
class OwnerTarget:
    """Where an owner is and how it is called. ``metadata`` is secret: headers of every call.
    ``request`` and ``reply`` are import paths ``module:Class``, "" for our own messages."""

    name: str
    driver: str = GRPC
    address: str
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    request: str = ""
    reply: str = ""
    metadata: Mapping[str, str] = attrs.field(
        factory=lambda: MappingProxyType({}), repr=lambda _: "***"
    )

    @property
    def field(self) -> str:
        """The settings key it comes from."""
        return f"batch.owners.{self.name}"


@attrs.frozen(kw_only=True)
class BatchPlan:
    """What is configured: enabled jobs, their owners, and all that is wrong."""

    jobs: tuple[BatchJob, ...]
    owners: Mapping[str, OwnerTarget]
    problems: tuple[ConfigError, ...]


def read_batch(settings: BatchSettings) -> BatchPlan:
    """Read the tables. Raises nothing: what is wrong is in ``problems``."""
    problems: list[ConfigError] = []
    owners: dict[str, OwnerTarget] = {}
    for name, table in settings.owners.items():
        values = _values(f"batch.owners.{name}", table, _OWNER, problems)
        if values is not None:
            owners[name] = OwnerTarget(name=name, **values)
            problems += _owner_problems(owners[name])
    jobs = []
    for name, table in settings.jobs.items():
        values = _values(f"batch.jobs.{name}", table, _JOB, problems)
        if values is not None:
            enabled = values.pop("enabled")
            job = _job(name, values, problems)
            problems += job_problems(job, f"batch.jobs.{name}")
            problems += _target_problems(job, owners, settings.owners)
            jobs += [job] if enabled else []
    return BatchPlan(jobs=tuple(jobs), owners=owners, problems=tuple(problems))


def _values(
    field: str,
    table: Mapping[str, Any],
    known: Mapping[str, tuple[Spec, Any]],
    problems: list[ConfigError],
) -> dict[str, Any] | None:
    """The values of a table, defaults filled in; None when one of them is wrong or missing."""
    before = len(problems)
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            problems.append(
                ConfigError(
                    f"there is no key {key}", field=f"{field}.{key}", hint=hint, candidates=near
                )
            )
    values: dict[str, Any] = {}
    for key, (spec, default) in known.items():
        if key not in table and default is None:
            example = spec.example or _EXAMPLES.get(key, "")
            problems.append(
                ConfigError(f"{key} is missing", field=f"{field}.{key}", example=example)
            )
            continue
        try:
            values[key] = default if key not in table else _read(key, spec, table[key])
        except Bad as bad:
            problems.append(ConfigError(bad.what, field=f"{field}.{key}", example=bad.example))
    return values if len(problems) == before else None


def _read(key: str, spec: Spec, raw: object) -> Any:
    return _extra(raw) if key == "extra" else read(spec, raw)


def _extra(raw: object) -> Mapping[str, Extra]:
    """Further fields of the request: plain values, sent as they are."""
    plain = (int, float, str, bool)
    if not isinstance(raw, Mapping) or not all(isinstance(v, plain) for v in raw.values()):
        raise Bad("it is a table of numbers, texts, true and false", "{days = 7}")
    if taken := sorted(_OWN_FIELDS & set(raw)):
        raise Bad(f"{taken[0]} is set by crontask itself")
    return MappingProxyType(dict(raw))


def _job(name: str, values: dict[str, Any], problems: list[ConfigError]) -> BatchJob:
    extra: dict[str, Extra] = dict(values.pop("extra"))
    for window in _WINDOWS:
        span = values.pop(window)
        if span == "":
            continue
        if f"{window}_ms" in extra:
            problems.append(
                ConfigError(f"{window} is given twice", field=f"batch.jobs.{name}.{window}")
            )
        extra[f"{window}_ms"] = span_ms(span)
    if values["max_round"] == "":
        del values["max_round"]
    return BatchJob(name=name, extra=MappingProxyType(extra), **values)


def _owner_problems(owner: OwnerTarget) -> Iterator[ConfigError]:
    if owner.driver == HTTP:
        yield from _http_problems(owner)
        return
    if not _GRPC_ADDRESS.fullmatch(owner.address):
        yield ConfigError(
            f"{owner.address!r:.80} is not an address for gRPC",
            field=f"{owner.field}.address",
            hint="write host:port, without http://",
            example="127.0.0.1:13005",
        )
    if not owner.tls and (given := [key for key in _TLS_KEYS if getattr(owner, key)]):
        yield ConfigError(
            f"{given[0]} is given, but tls is off",
            field=f"{owner.field}.tls",
            hint="a call would go out in the clear",
            example="true",
        )
    if bool(owner.cert_file) != bool(owner.key_file):
        yield ConfigError("cert_file and key_file go together", field=f"{owner.field}.cert_file")
    if bool(owner.request) != bool(owner.reply):
        yield ConfigError("request and reply go together", field=f"{owner.field}.request")
    for key in ("request", "reply"):
        path = getattr(owner, key)
        if path and not _CLASS.fullmatch(path):
            yield ConfigError(
                f"{path!r:.80} is not MODULE:CLASS",
                field=f"{owner.field}.{key}",
                example="hyapp.user.v1.cron_pb2:CronBatchRequest",
            )


def _http_problems(owner: OwnerTarget) -> Iterator[ConfigError]:
    parts = urlsplit(owner.address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        yield ConfigError(
            f"{owner.address!r:.80} is not the URL of a service",
            field=f"{owner.field}.address",
            hint="the driver is http: write http:// or https:// and the host",
            example="http://127.0.0.1:8080",
        )
    for key in ("tls", "cert_file", "key_file", "server_name", "request", "reply"):
        if getattr(owner, key):
            yield ConfigError(
                f"{key} is for gRPC",
                field=f"{owner.field}.{key}",
                hint="leave it out: the driver is http, and https in the address means TLS",
            )


def _target_problems(
    job: BatchJob, owners: Mapping[str, OwnerTarget], named: Mapping[str, Any]
) -> Iterator[ConfigError]:
    """Whether the job's owner and method can be called at all (B6)."""
    owner = owners.get(job.owner)
    if owner is None:
        if job.owner not in named:
            near = difflib.get_close_matches(job.owner, named, n=3)
            yield ConfigError(
                f"there is no owner {job.owner}",
                field=f"batch.jobs.{job.name}.owner",
                hint=f"add [batch.owners.{job.owner}] with its address",
                candidates=near,
            )
        return
    if owner.driver == GRPC and not _GRPC_METHOD.fullmatch(job.method):
        yield ConfigError(
            f"{job.method!r:.100} is not a full method name of gRPC",
            field=f"batch.jobs.{job.name}.method",
            example="/hyapp.user.v1.UserCronService/ProcessLoginIPRiskBatch",
        )
    if owner.driver == HTTP and not re.fullmatch(r"/[!-~]*", job.method):
        yield ConfigError(
            f"{job.method!r:.100} is not a path",
            field=f"batch.jobs.{job.name}.method",
            example="/internal/cron/login-ip-risk",
        )


def describe_job(job: BatchJob) -> dict[str, Any]:
    """A job as a person writes it."""
    return {
        "name": job.name,
        "owner": job.owner,
        "method": job.method,
        "interval": show_duration(job.interval),
        "timeout": show_duration(job.timeout),
        "lock_ttl": show_duration(job.lock_ttl),
        "max_round": show_duration(job.max_round),
        "batch_size": job.batch_size,
        "app_codes": list(job.app_codes),
        "extra": dict(job.extra),
    }
