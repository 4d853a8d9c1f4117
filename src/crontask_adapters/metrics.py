"""Prometheus metrics (`A6.5`). No label carries a user, a key or a URL, so their number is bounded.

What happened is counted from events; what is, is read from callbacks when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from crontask_core.errors import ConfigError
from crontask_core.events import (
    BatchCallEnded,
    BatchRunEnded,
    CallEnded,
    ClaimEnded,
    Event,
    ExecutionMoved,
    FireStarted,
    LockUnavailable,
    PassFailed,
    ReportReceived,
)
from crontask_core.model import ExecStatus, Execution
from crontask_core.policy.batches import NO_PROGRESS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = [
    "COUNTED",
    "OBSERVED",
    "READ",
    "REASONS",
    "MetricsObserver",
    "Reading",
    "available",
    "reason_class",
]

PREFIX = "crontask_"

Reading = float | Mapping[str | tuple[str, ...], float]
"""What a callback answers: a number, or one per label value (several labels: a tuple)."""

COUNTED: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "fires_total": ("Fires that ended, by how and why.", ("outcome", "reason")),
        "callback_total": ("Calls of agents, by what came of them.", ("class",)),
        "retries_total": ("Calls put off for a retry.", ()),
        "retry_exhausted_total": ("Fires that failed because their retries were spent.", ()),
        "reports_total": ("Reports of agents, by what they said.", ("status", "late")),
        "ga_timeouts_total": ("Accepted runs that were never reported.", ()),
        "takeovers_total": ("Calls taken over from a node that was gone.", ()),
        "fence_lost_total": ("Outcomes that came after a take-over.", ()),
        "lock_unavailable_total": ("Times Redis was slow or lost when asked for locks.", ()),
        "db_retries_total": ("Passes repeated after a transient error of the store.", ()),
        "batch_runs_total": ("Batch runs that ended.", ("task", "app", "status")),
        "batch_calls_total": ("Calls of owners, by what they answered.", ("task", "app", "code")),
        "batch_items_total": ("Pieces of batch work, as owners say.", ("task", "app", "outcome")),
        "batch_no_progress_total": ("Rounds ended by an empty batch.", ("task", "app")),
    }
)
"""Counters: name without prefix -> (help, labels)."""

_SHORT = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_CALL = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60)
_LATE = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 1800)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_RUN = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)

OBSERVED: Mapping[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = MappingProxyType(
    {
        "fire_lateness_seconds": ("From the fire time to the start of a call.", (), _LATE),
        "callback_duration_seconds": ("Length of a call of an agent.", (), _CALL),
        "claim_batch_size": ("Tasks claimed in one transaction.", (), _ROWS),
        "claim_seconds": ("Length of a claim.", (), _SHORT),
        "settle_seconds": ("Length of the transaction that writes outcomes.", (), _SHORT),
        "batch_duration_seconds": ("Length of a batch run.", ("task", "app"), _RUN),
    }
)
"""Histograms: name without prefix -> (help, labels, bucket bounds)."""

READ: Mapping[str, tuple[str, str, tuple[str, ...]]] = MappingProxyType(
    {
        "executions": ("gauge", "Executions that are not final, by state.", ("state",)),
        "armed_tasks": ("gauge", "Tasks that have a next fire time.", ()),
        "oldest_overdue_seconds": ("gauge", "How long the oldest due task has waited.", ()),
        "pool_in_use": ("gauge", "Database connections in use.", ()),
        "slots_in_use": ("gauge", "Calls under way.", ()),
        "db_clock_offset_seconds": ("gauge", "Database clock minus this host's clock.", ()),
        "loop_age_seconds": ("gauge", "Time since a loop's last good pass.", ("loop",)),
        "lock_denied_total": ("counter", "Fires another node held the lock of.", ()),
        "batch_consecutive_failures": ("gauge", "Failed runs in a row.", ("task", "app")),
        "batch_backlog": ("gauge", "Work left, as its owner says.", ("task", "app")),
        "batch_oldest_pending_seconds": ("gauge", "Age of the oldest work left.", ("task", "app")),
    }
)
"""Read by callback: name without prefix -> (kind, help, labels)."""


def available() -> bool:
    """Whether the extra ``metrics`` is installed."""
    from importlib.util import find_spec

    return find_spec("prometheus_client") is not None


class MetricsObserver:
    """Counts events and renders them for Prometheus, in a registry of its own.

    ``readings`` maps names of ``READ`` to callbacks, which may not block; more can be added with
    ``watch``. Raises ConfigError when the extra ``metrics`` is not installed.
    """

    def __init__(self, readings: Mapping[str, Callable[[], Reading]] | None = None) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ModuleNotFoundError:
            raise ConfigError(
                "metrics are asked for, but the Prometheus client is not installed",
                hint="install the extra: pip install 'crontask[metrics]'",
            ) from None
        self._registry = CollectorRegistry(auto_describe=False)
        self._counters = {
            name: Counter(PREFIX + name, text, labels, registry=self._registry)
            for name, (text, labels) in COUNTED.items()
        }
        self._histograms = {
            name: Histogram(PREFIX + name, text, labels, registry=self._registry, buckets=bounds)
            for name, (text, labels, bounds) in OBSERVED.items()
        }
        self._readings: dict[str, Callable[[], Reading]] = {}
        for name, reading in (readings or {}).items():
            self.watch(name, reading)
        self._registry.register(_Readings(self._readings))

    def watch(self, name: str, reading: Callable[[], Reading]) -> None:
        """Read ``name`` (a key of ``READ``, else ValueError) by calling ``reading``."""
        if name not in READ:
            raise ValueError(f"no metric {name} is read by callback")
        self._readings[name] = reading

    def render(self) -> tuple[bytes, str]:
        """The page for a scrape and its content type. A callback that raises is left out."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def settle_took(self, seconds: float) -> None:
        self._histograms["settle_seconds"].observe(seconds)

    def on(self, event: Event) -> None:
        if isinstance(event, ExecutionMoved):
            self._moved(event)
        elif isinstance(event, CallEnded):
            self._counters["callback_total"].labels(event.verdict.outcome.value).inc()
            self._histograms["callback_duration_seconds"].observe(event.seconds)
        elif isinstance(event, FireStarted):
            self._histograms["fire_lateness_seconds"].observe(max(event.lateness, 0.0))
        elif isinstance(event, ClaimEnded):
            self._claimed(event)
        elif isinstance(event, ReportReceived):
            status = "duplicate" if event.duplicate else event.status
            self._counters["reports_total"].labels(status, str(event.late).lower()).inc()
        elif isinstance(event, BatchCallEnded):
            self._batch_called(event)
        elif isinstance(event, BatchRunEnded):
            self._batch_ended(event)
        elif isinstance(event, LockUnavailable):
            self._counters["lock_unavailable_total"].inc()
        elif isinstance(event, PassFailed) and event.retryable:
            self._counters["db_retries_total"].inc()

    def _batch_called(self, event: BatchCallEnded) -> None:
        """``task`` and ``app`` come from configuration: they are few (B8)."""
        key, answer = event.run.key, event.answer
        self._counters["batch_calls_total"].labels(*key, answer.code).inc()
        for outcome in ("claimed", "processed", "success", "failure"):
            count = getattr(answer, f"{outcome}_count")
            self._counters["batch_items_total"].labels(*key, outcome).inc(count)

    def _batch_ended(self, event: BatchRunEnded) -> None:
        if event.lost:
            # Who took over has counted it as abandoned.
            self._counters["fence_lost_total"].inc()
            return
        run = event.run
        self._counters["batch_runs_total"].labels(*run.key, run.status.value).inc()
        self._histograms["batch_duration_seconds"].labels(*run.key).observe(run.duration_ms / 1000)
        if event.warning == NO_PROGRESS:
            self._counters["batch_no_progress_total"].labels(*run.key).inc()

    def _claimed(self, event: ClaimEnded) -> None:
        if event.tasks:
            self._histograms["claim_batch_size"].observe(event.tasks)
            self._histograms["claim_seconds"].observe(event.seconds)

    def _moved(self, event: ExecutionMoved) -> None:
        before, after = event.before, event.after
        if event.lost:
            self._counters["fence_lost_total"].inc()
            return
        if after.takeovers > before.takeovers:
            self._counters["takeovers_total"].inc()
        if after.retry_count > before.retry_count:
            self._counters["retries_total"].inc()
        changed = after.exec_status is not before.exec_status
        # What ends at claim or begin is told as it ended; it was nothing else that anybody saw.
        if not after.is_final or not (changed or event.why in ("claim", "begin")):
            return
        reason = reason_class(after)
        if reason == "retries_spent":
            self._counters["retry_exhausted_total"].inc()
        if after.exec_status is ExecStatus.TIMED_OUT:
            self._counters["ga_timeouts_total"].inc()
        outcome = after.exec_status.name.lower()
        self._counters["fires_total"].labels(outcome, reason).inc(max(1, after.missed_count))


REASONS = (
    ("too late: no slot", "no_slot"),
    ("too late", "too_late"),
    ("overlap", "overlap"),
    ("missed", "missed"),
    ("retries spent", "retries_spent"),
    ("outcome unknown", "outcome_unknown"),
    ("taken over", "takeovers_spent"),
    ("no slot for the retry", "no_slot"),
    ("the agent answered", "refused"),
    ("reported as failed", "reported"),
    ("GA callback timeout", "no_report"),
    ("paused", "paused"),
    ("task paused", "paused"),
    ("deleted", "deleted"),
    ("task deleted", "deleted"),
    ("rescheduled", "rescheduled"),
)


def reason_class(execution: Execution) -> str:
    """The reason of an ended execution as one of a few words, never its free text."""
    if execution.late:
        return "late_report"
    if execution.exec_status is ExecStatus.SUCCESS:
        return "reported"
    for start, word in REASONS:
        if execution.reason.startswith(start):
            return word
    return "cancelled" if execution.exec_status is ExecStatus.CANCELLED else "other"


class _Readings:
    """Asks the callbacks at each scrape."""

    def __init__(self, readings: Mapping[str, Callable[[], Reading]]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, reading in self._readings.items():
            kind, text, labels = READ[name]
            family: Any = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            metric = family(PREFIX + name, text, labels=labels)
            try:
                value = reading()
                rows = value if isinstance(value, Mapping) else {(): value}
                for label, number in rows.items():
                    metric.add_metric((label,) if isinstance(label, str) else label, number)
            except Exception:  # noqa: BLE001 - one metric that cannot be read, not a lost scrape
                continue
            yield metric
