"""Every setting of crontask: name, default, unit, range and help.

Adding a key means adding a line here; the loader, ``crontask config`` and the reference page follow
from it (``tools/gen_settings.py``). ``settings_load`` reads values, ``settings_checks`` holds what
concerns several keys at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from crontask_adapters.settings_fields import Kind, Spec, Token, setting

if TYPE_CHECKING:
    from crontask_adapters.client_options import ClientOptions
    from crontask_core.model import Rules

__all__ = ["Settings", "default_store_url", "specs", "value_of"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_MS = timedelta(milliseconds=1)
_S = timedelta(seconds=1)
_MIN = timedelta(minutes=1)
_H = timedelta(hours=1)
_DAY = timedelta(days=1)
_STORES = ("sqlite", "mysql+asyncmy", "mysql", "mariadb+asyncmy", "mariadb")


def default_store_url(environ: Mapping[str, str] | None = None) -> str:
    """SQLite in the user's data folder: ``$XDG_DATA_HOME/crontask/crontask.db``, else under
    ``~/.local/share``."""
    env = os.environ if environ is None else environ
    home = Path(env.get("HOME") or Path.home())
    folder = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    return f"sqlite:///{folder / 'crontask' / 'crontask.db'}"


@attrs.frozen(kw_only=True)
class StoreSettings:
    url: str = setting(
        attrs.Factory(default_store_url),
        "Where tasks are kept: sqlite:///FILE, or mysql+asyncmy://USER:PASSWORD@HOST/DATABASE for "
        "MySQL 8 and MariaDB 10.6 or later.",
        Kind.URL,
        schemes=_STORES,
        shown_default="sqlite file in the user's data folder",
        example="mysql+asyncmy://crontask:secret@db.example.com:3306/crontask",
    )
    pool_size: int = setting(
        20, "Most database connections of one node.", Kind.INT, unit="connections", low=1, high=1000
    )


@attrs.frozen(kw_only=True)
class RedisSettings:
    url: str = setting(
        "",
        "Redis for wake-up hints between nodes and for the optional lock. crontask is right without"
        " it, and when it is lost.",
        Kind.URL,
        schemes=("redis", "rediss", "unix"),
        example="redis://redis.example.com:6379/0",
    )
    lock: str = setting(
        "auto",
        "Whether to ask Redis before a claim, to save work. auto: only where the database cannot "
        "skip locked rows. The database decides in any case.",
        Kind.CHOICE,
        choices=("auto", "on", "off"),
    )


@attrs.frozen(kw_only=True)
class SchedulerSettings:
    timezone: str = setting(
        "Asia/Shanghai", "Time zone of tasks that name none: an IANA name.", Kind.ZONE
    )
    poll_interval: timedelta = setting(
        _S, "Longest wait between two looks at the store.", Kind.DURATION, low=50 * _MS, high=_MIN
    )
    compensate_window: timedelta = setting(
        30 * _MIN,
        "How late a fire may still run; later ones are recorded as skipped. A task may set its "
        "own.",
        Kind.DURATION,
        low=_S,
        high=30 * _DAY,
    )
    sweep_interval: timedelta = setting(
        5 * _S,
        "Longest wait between two looks for overdue calls and reports.",
        Kind.DURATION,
        low=50 * _MS,
        high=10 * _MIN,
    )
    claim_batch: int = setting(
        200, "Most tasks claimed in one transaction.", Kind.INT, unit="tasks", low=1, high=2000
    )
    lease: timedelta = setting(
        60 * _S,
        "How long a call may hold its fire before another node takes it over. Must exceed "
        "executor.callback_timeout by more than 5 s.",
        Kind.DURATION,
        low=_S,
        high=_H * 2,
    )
    heartbeat: timedelta = setting(
        2 * _S, "How often a node shows that it lives.", Kind.DURATION, low=50 * _MS, high=_MIN
    )
    node_timeout: timedelta = setting(
        10 * _S,
        "How long a node's heartbeat may stand still before its calls are taken over. Must exceed "
        "three times scheduler.heartbeat.",
        Kind.DURATION,
        low=200 * _MS,
        high=_H,
    )
    node_id: str = setting(
        "",
        "Name of this node in logs and listings. A random part is always added inside, so equal "
        "names do no harm.",
        shown_default="host:pid:random",
        example="node-a",
    )


@attrs.frozen(kw_only=True)
class ExecutorSettings:
    concurrency: int = setting(
        50, "Most calls of agents at once per node.", Kind.INT, unit="calls", low=1, high=10_000
    )
    http_client: str = setting(
        "aiohttp",
        "HTTP client for callbacks: aiohttp is faster; httpx needs the extra of that name.",
        Kind.CHOICE,
        choices=("aiohttp", "httpx"),
    )
    callback_timeout: timedelta = setting(
        30 * _S,
        "One total for a call: waiting for a connection, connecting, headers, body.",
        Kind.DURATION,
        low=100 * _MS,
        high=_H,
    )
    default_callback_url: str = setting(
        "",
        "Where tasks without their own callback_url are sent. Needed before such a task can be "
        "created. It is the operator's own and may be a private address.",
        Kind.URL,
        schemes=("http", "https"),
        example="http://agent.example.com/v1/task/execute",
    )
    max_retry: int = setting(
        3, "Retries of a call, unless the task sets its own.", Kind.INT, low=0, high=20
    )
    retry_interval: timedelta = setting(
        5 * _S,
        "Wait before the first retry; it doubles with each. A task may set its own.",
        Kind.DURATION,
        low=100 * _MS,
        high=_H,
    )
    max_backoff: timedelta = setting(
        60 * _S, "Longest wait between two retries.", Kind.DURATION, low=100 * _MS, high=_DAY
    )
    ga_callback_timeout: timedelta = setting(
        30 * _MIN,
        "How long an accepted run may take until its report, unless the task sets its own; then "
        "the fire is timed out.",
        Kind.DURATION,
        low=_S,
        high=30 * _DAY,
    )
    stop_timeout: timedelta = setting(
        35 * _S,
        "How long a stopping node waits for calls that are under way.",
        Kind.DURATION,
        low=timedelta(0),
        high=_H,
    )


@attrs.frozen(kw_only=True)
class HttpSettings:
    max_idle: int = setting(
        200, "Most idle connections to agents.", Kind.INT, unit="connections", low=0, high=100_000
    )
    per_host: int = setting(
        50, "Most connections to one agent.", Kind.INT, unit="connections", low=1, high=10_000
    )


@attrs.frozen(kw_only=True)
class CallbackSettings:
    signing_keys: tuple[str, ...] = setting(
        (),
        "Secrets that sign callbacks (Standard Webhooks): the first signs first, all signatures "
        "are sent, so keys can be changed without a gap.",
        Kind.LIST,
        secret=True,
        example="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )
    allow_hosts: tuple[str, ...] = setting(
        (),
        "Hosts, addresses or CIDR networks a task's own callback_url may name. Empty: none. What "
        "is listed may be private.",
        Kind.LIST,
        example="agent.example.com, 10.0.0.0/8",
    )
    headers: Mapping[str, str] = setting(
        _EMPTY,
        "Extra headers of every callback, for agents behind a gateway.",
        Kind.MAP,
        secret=True,
        example="Authorization: Bearer abc",
    )
    ca_file: str = setting(
        "",
        "PEM file of certificate authorities to trust besides the system's.",
        example="/etc/ssl/private-ca.pem",
    )


@attrs.frozen(kw_only=True)
class IdentitySettings:
    user: str = setting(
        "local",
        "Whom the command line, stdio and a server without tokens act for.",
        example="josetian",
    )
    role: str = setting(
        "user",
        "user: acts for identity.user only. agent: serves many users and names one in each call.",
        Kind.CHOICE,
        choices=("user", "agent"),
    )


@attrs.frozen(kw_only=True)
class LogSettings:
    format: str = setting(
        "auto",
        "json: one object a line. human: for reading. auto: human on a terminal, else json.",
        Kind.CHOICE,
        choices=("auto", "json", "human"),
    )
    level: str = setting(
        "info",
        "Least level that is written, to standard error.",
        Kind.CHOICE,
        choices=("debug", "info", "warning", "error"),
    )


@attrs.frozen(kw_only=True)
class JwtSettings:
    secret_file: str = setting(
        "", "File with the shared secret of JWT bearer tokens (HS256).", example="/run/secrets/jwt"
    )
    public_key_file: str = setting(
        "",
        "PEM file with the public key of JWT bearer tokens (RS256, ES256, EdDSA).",
        example="/etc/crontask/issuer.pem",
    )
    issuer: str = setting(
        "", "What a token's iss must be; empty: not looked at.", example="https://id.example.com"
    )
    audience: str = setting(
        "",
        "What a token's aud must name. Required with a key: other services' tokens must not work.",
        example="crontask",
    )


@attrs.frozen(kw_only=True)
class ServerSettings:
    host: str = setting(
        "127.0.0.1",
        "Address to listen on. Without any token configured only loopback is used.",
        example="0.0.0.0",
    )
    port: int = setting(
        8350, "Port to listen on; 0 takes a free one.", Kind.INT, low=0, high=65_535
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host headers taken besides loopback and server.host; name:* for any port.",
        Kind.LIST,
        example="crontask.example.com",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Origin headers taken from browsers besides the server's own.",
        Kind.LIST,
        example="https://console.example.com",
    )
    ignore_arguments: tuple[str, ...] = setting(
        (),
        "Tool arguments that are dropped in silence because a host injects them.",
        Kind.LIST,
        example="session_id",
    )
    open_metrics: bool = setting(
        False, "Whether /metrics and the dashboard are open without a token.", Kind.BOOL
    )
    tokens: tuple[Token, ...] = setting(
        (),
        "Static bearer tokens: tables of name, sha256 (hex digest of the token), scopes (read, "
        "write, report, act_as, admin), user or default_user.",
        Kind.TOKENS,
    )
    jwt: JwtSettings = attrs.field(factory=JwtSettings)


@attrs.frozen(kw_only=True)
class MisfireSettings:
    cap: int = setting(
        10, "Most missed runs a run_all task catches up.", Kind.INT, unit="runs", low=1, high=1000
    )


@attrs.frozen(kw_only=True)
class OverlapSettings:
    default: str = setting(
        "allow",
        "Whether a fire may start while an earlier one of its task goes on, unless the task says.",
        Kind.CHOICE,
        choices=("allow", "skip"),
    )


@attrs.frozen(kw_only=True)
class QuotaSettings:
    tasks_per_user: int = setting(
        1000, "Most enabled and paused tasks of a user.", Kind.INT, low=1, high=10_000_000
    )
    min_interval: timedelta = setting(
        60 * _S, "Shortest gap between two fires of a task.", Kind.DURATION, low=_S, high=366 * _DAY
    )
    nested_creates: str = setting(
        "warn",
        "What happens when a run of a task creates tasks: warn in the answer, or refuse.",
        Kind.CHOICE,
        choices=("warn", "refuse"),
    )


@attrs.frozen(kw_only=True)
class RetentionSettings:
    executions_days: int = setting(
        90, "How long ended executions are kept.", Kind.INT, unit="days", low=1, high=36_500
    )
    tasks_days: int = setting(
        90, "How long completed and deleted tasks are kept.", Kind.INT, unit="days", low=1,
        high=36_500,
    )  # fmt: skip
    batch_runs_days: int = setting(
        7, "How long batch runs are kept.", Kind.INT, unit="days", low=1, high=36_500
    )


@attrs.frozen(kw_only=True)
class BatchSettings:
    slots: int = setting(10, "Most batch calls at once.", Kind.INT, unit="calls", low=1, high=1000)
    grpc_health_port: int = setting(
        13_007, "Port of the gRPC health service; 0 for none.", Kind.INT, low=0, high=65_535
    )
    caller: str = setting(
        "crontask", "Who calls, in the request meta of every batch call.", example="cron-service"
    )
    owners: Mapping[str, Mapping[str, Any]] = setting(
        _EMPTY,
        "Services that own batch work, by name: tables as the batch how-to shows.",
        Kind.TABLES,
        secret=True,
    )
    jobs: Mapping[str, Mapping[str, Any]] = setting(
        _EMPTY, "Batch jobs by name: tables as the batch how-to shows.", Kind.TABLES
    )


@attrs.frozen(kw_only=True)
class Settings:
    """All settings, in groups; a key is ``group.name``. ``Settings()`` is the defaults.

    Values made by hand are not checked: ``settings_checks.problems_of`` does that, and
    ``settings_load.load`` calls it.
    """

    store: StoreSettings = attrs.field(factory=StoreSettings)
    redis: RedisSettings = attrs.field(factory=RedisSettings)
    scheduler: SchedulerSettings = attrs.field(factory=SchedulerSettings)
    executor: ExecutorSettings = attrs.field(factory=ExecutorSettings)
    http: HttpSettings = attrs.field(factory=HttpSettings)
    callback: CallbackSettings = attrs.field(factory=CallbackSettings)
    identity: IdentitySettings = attrs.field(factory=IdentitySettings)
    log: LogSettings = attrs.field(factory=LogSettings)
    server: ServerSettings = attrs.field(factory=ServerSettings)
    misfire: MisfireSettings = attrs.field(factory=MisfireSettings)
    overlap: OverlapSettings = attrs.field(factory=OverlapSettings)
    quota: QuotaSettings = attrs.field(factory=QuotaSettings)
    retention: RetentionSettings = attrs.field(factory=RetentionSettings)
    batch: BatchSettings = attrs.field(factory=BatchSettings)

    def rules(self) -> Rules:
        """The numbers and switches that decisions depend on."""
        from crontask_core.model import OverlapPolicy, Rules

        return Rules(
            zone=self.scheduler.timezone,
            compensate_window=self.scheduler.compensate_window,
            misfire_cap=self.misfire.cap,
            lease=self.scheduler.lease,
            callback_timeout=self.executor.callback_timeout,
            ga_callback_timeout=self.executor.ga_callback_timeout,
            max_retry=self.executor.max_retry,
            retry_interval_ms=self.executor.retry_interval // _MS,
            max_backoff=self.executor.max_backoff,
            overlap=OverlapPolicy(self.overlap.default),
            tasks_per_user=self.quota.tasks_per_user,
            min_interval=self.quota.min_interval,
            nested_creates=self.quota.nested_creates,
            default_callback_url=self.executor.default_callback_url,
            allow_hosts=self.callback.allow_hosts,
        )

    def client_options(self) -> ClientOptions:
        """What the client that calls agents needs. Raises ConfigError for a wrong value."""
        from crontask_adapters.client_options import ClientOptions

        return ClientOptions(
            callback_timeout=self.executor.callback_timeout,
            concurrency=self.executor.concurrency,
            max_idle=self.http.max_idle,
            per_host=self.http.per_host,
            headers=self.callback.headers,
            ca_file=self.callback.ca_file or None,
            signing_keys=self.callback.signing_keys,
            allow_hosts=self.callback.allow_hosts,
            default_callback_url=self.executor.default_callback_url,
        )


def specs(group: type = Settings, prefix: str = "") -> Iterator[tuple[str, Spec]]:
    """Every (key, spec), in the order of the classes."""
    for field in attrs.fields(group):
        spec = field.metadata.get("spec")
        if spec is not None:
            yield prefix + field.name, spec
        else:
            yield from specs(type(field.default.factory()), f"{prefix}{field.name}.")


def value_of(settings: Settings, key: str) -> Any:
    """The value under a dotted key, such as ``server.jwt.issuer``."""
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value
