"""Who hears what happened: the log. Metrics are in ``metrics``; ``Observers`` tells several.

One event is one line with fixed names, so that a line can be found by any of them: ``task_id``,
``fire_id``, ``execution_id``, ``user``, ``node``, ``state_from``, ``state_to``, ``reason``. Batch
runs carry the eight names of ``B8``. No line carries a secret, task content, a result or a URL.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, BinaryIO

import attrs
import orjson
import structlog

from crontask_adapters.clock import utcnow
from crontask_core.batch_model import BatchRun, RunStatus
from crontask_core.events import (
    BatchCallEnded,
    BatchRunEnded,
    BatchRunStarted,
    CallEnded,
    ClaimEnded,
    Event,
    ExecutionMoved,
    FireStarted,
    NodeChanged,
    PassFailed,
    TaskChanged,
)
from crontask_core.model import AttemptClass, ExecStatus, Execution
from crontask_core.ports import Observer

__all__ = ["LogObserver", "Observers", "setup_logging"]

_TEXT_LIMIT = 300
_LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
    }
)
# What these say at info is for their own authors; uvicorn's access log would repeat every request.
_LOUD = (
    "aiohttp", "aiohttp.access", "alembic", "asyncmy", "asyncio", "httpcore2", "httpx2", "mcp",
    "sqlalchemy", "sse_starlette", "uvicorn", "uvicorn.access", "uvicorn.error",
)  # fmt: skip
_BAD = frozenset({ExecStatus.FAILED, ExecStatus.TIMED_OUT, ExecStatus.SKIPPED})


class Observers:
    """Tells every observer; one that raises does not keep the others, or the work, from going on.

    ``failed`` counts what was raised.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self.failed = 0

    def on(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer.on(event)
            except Exception:  # noqa: BLE001 - looking on may never hurt the work
                self.failed += 1


class LogObserver:
    """Writes one line per event through a structlog logger made by ``setup_logging``.

    An event it has no own words for is written with its plain fields under its name in lower case,
    so a new kind of event is never silent.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def on(self, event: Event) -> None:
        # A closed standard error must not stop a scheduler.
        with contextlib.suppress(Exception):
            level, fields = _describe(event)
            self._logger.log(level, _snake(type(event).__name__), **fields)


def setup_logging(format: str, level: str, stream: BinaryIO | None = None) -> Any:
    """A structlog logger that writes to standard error, with the standard library's loggers led
    there too, the chatty ones from warning on.

    ``format`` json, human, or auto (human on a terminal); ``level`` debug, info, warning, error.
    ``stream`` takes bytes. Calling it again replaces what it had set up.
    """
    out = sys.stderr.buffer if stream is None else stream
    human = format == "human" or (format == "auto" and out.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp,
        structlog.processors.format_exc_info,
        _clean,
    ]
    last = _human(out.isatty()) if human else [_json]
    _lead_stdlib(_LEVELS[level], [*shared, *last], out)
    return structlog.wrap_logger(
        structlog.BytesLogger(file=out),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        context_class=dict,
        cache_logger_on_first_use=True,
    )


class _Lead(logging.Handler):
    """Writes a standard library record the way our own lines are written."""

    def __init__(self, processors: Sequence[Any], out: BinaryIO) -> None:
        super().__init__()
        self._processors = tuple(processors)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line: Any = {
                "event": record.getMessage(),
                "logger": record.name,
                "exc_info": record.exc_info,
            }
            for processor in self._processors:
                line = processor(None, record.levelname.lower(), line)
            self._out.write(line + b"\n")
            self._out.flush()
        except Exception:  # noqa: BLE001 - the library's own handler would print a trace instead
            return


def _lead_stdlib(level: int, processors: Sequence[Any], out: BinaryIO) -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Lead)]:
        root.removeHandler(handler)
    root.addHandler(_Lead(processors, out))
    root.setLevel(max(level, logging.INFO))
    logging.captureWarnings(True)
    for name in _LOUD:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(level, logging.WARNING))


def _stamp(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["timestamp"] = utcnow().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return line


def _clean(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Times as text; texts of one line and a bounded length: nobody forges a line of ours."""
    for name, value in line.items():
        line[name] = _value(value) if name != "exception" else value
    return line


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value, int) else value.value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        text = value if value.isprintable() else re.sub(r"[^\S ]+|[\x00-\x1f\x7f]", " ", value)
        return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
    return value


def _json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> bytes:
    first = {name: line.pop(name) for name in ("timestamp", "level", "event") if name in line}
    return orjson.dumps({**first, **line}, default=str, option=orjson.OPT_NON_STR_KEYS)


def _human(colors: bool) -> list[Any]:
    render = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=18
    )

    def encode(logger: Any, method: str, line: MutableMapping[str, Any]) -> bytes:
        return render(logger, method, line).encode("utf-8", "backslashreplace")

    return [encode]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _describe(event: Event) -> tuple[int, dict[str, Any]]:
    """The level and the fields of an event's line."""
    words = _WORDS.get(type(event))
    if words is not None:
        return words(event)
    level = logging.ERROR if type(event).__name__ in _ALARMS else logging.WARNING
    if type(event).__name__ in _NEWS:
        level = logging.INFO
    fields = {a.name: getattr(event, a.name) for a in attrs.fields(type(event))}
    return level, {k: v for k, v in fields.items() if isinstance(v, _PLAIN)}


_PLAIN = (str, int, float, bool, datetime, Enum)
_ALARMS = frozenset({"RowSetAside", "DatabaseClockJumped", "NodeOutdated"})
_NEWS = frozenset({"ReportReceived", "FiresRecomputed"})


def _execution(execution: Execution) -> dict[str, Any]:
    return {
        "task_id": execution.task_id,
        "fire_id": execution.fire_id,
        "execution_id": execution.id,
        "user": execution.user_id,
        "node": execution.executor_node,
        "fire_time": execution.fire_time,
    }


def _task_changed(event: TaskChanged) -> tuple[int, dict[str, Any]]:
    task = event.task
    return logging.INFO, {
        "what": event.what,
        "task_id": task.id,
        "task_key": task.task_key,
        "user": task.user_id,
        "state_to": task.status,
        "revision": task.revision,
        "next_fire_time": task.next_fire_time,
        "changed": ",".join(event.changed),
    }


def _claim_ended(event: ClaimEnded) -> tuple[int, dict[str, Any]]:
    level = logging.INFO if event.tasks else logging.DEBUG
    return level, attrs.asdict(event)


def _fire_started(event: FireStarted) -> tuple[int, dict[str, Any]]:
    fields = {"attempt": event.execution.fence, "lateness": event.lateness}
    return logging.INFO, _execution(event.execution) | fields


def _call_ended(event: CallEnded) -> tuple[int, dict[str, Any]]:
    verdict = event.verdict
    good = verdict.outcome is AttemptClass.ACCEPTED and not verdict.warning
    return logging.INFO if good else logging.WARNING, _execution(event.execution) | {
        "attempt": event.execution.fence,
        "outcome": verdict.outcome,
        "http_status": verdict.http_status,
        "task_run_id": verdict.task_run_id,
        "reason": verdict.reason or verdict.warning,
        "seconds": event.seconds,
    }


def _execution_moved(event: ExecutionMoved) -> tuple[int, dict[str, Any]]:
    before, after = event.before, event.after
    # A row made at claim was never anything before.
    new = before.exec_status is after.exec_status and event.why in ("claim", "begin")
    fields = _execution(after) | {
        "state_from": None if new else before.exec_status,
        "state_to": after.exec_status,
        "why": event.why,
        "reason": after.reason,
        "task_run_id": after.task_run_id,
        "retry_count": after.retry_count,
        "next_action_at": after.next_action_at,
    }
    if after.missed_count:
        fields["missed_count"] = after.missed_count
    if event.lost:
        fields["lost"] = True
    bad = event.lost or event.why == "takeover" or after.exec_status in _BAD
    return logging.WARNING if bad else logging.INFO, fields


_NAMESAKE = (
    "another live process has the same scheduler.node_id; nothing is fired twice, but nobody can "
    "tell the two apart: leave it unset, or give each its own"
)


def _node_changed(event: NodeChanged) -> tuple[int, dict[str, Any]]:
    level = logging.WARNING if event.what in ("lost", "namesake") else logging.INFO
    reason = {"reason": _NAMESAKE} if event.what == "namesake" else {}
    return level, {
        "what": event.what,
        **reason,
        "node": event.node.incarnation,
        "node_id": event.node.node_id,
        "roles": event.node.roles,
        "version": event.node.version,
    }


def _pass_failed(event: PassFailed) -> tuple[int, dict[str, Any]]:
    level = logging.WARNING if event.retryable else logging.ERROR
    return level, {"loop": event.loop, "reason": event.error, "retryable": event.retryable}


def _batch_run(run: BatchRun) -> dict[str, Any]:
    """The eight names every line about a run has (B8)."""
    return {
        "task_name": run.task_name,
        "run_id": run.run_id,
        "app_code": run.app_code,
        "worker_id": run.owner_node_id,
        "duration_ms": run.duration_ms,
        "claimed_count": run.claimed_count,
        "processed_count": run.processed_count,
        "status": run.status,
    }


def _batch_run_started(event: BatchRunStarted) -> tuple[int, dict[str, Any]]:
    return logging.DEBUG, _batch_run(event.run) | {"lateness": event.lateness}


def _batch_call_ended(event: BatchCallEnded) -> tuple[int, dict[str, Any]]:
    good = event.answer.code == "OK"
    level = logging.DEBUG if good else logging.WARNING
    fields = {"code": event.answer.code, "reason": event.answer.error, "seconds": event.seconds}
    return level, _batch_run(event.run) | fields


def _batch_run_ended(event: BatchRunEnded) -> tuple[int, dict[str, Any]]:
    run = event.run
    fields = _batch_run(run) | {
        "success_count": run.success_count,
        "failure_count": run.failure_count,
        "batch_count": run.batch_count,
        "reason": run.error_message or event.warning,
        "consecutive_failures": event.failures,
    }
    if event.lost:
        fields["lost"] = True
    good = run.status is RunStatus.SUCCEEDED and not event.warning and not event.lost
    return logging.INFO if good else logging.WARNING, fields


_WORDS: Mapping[type, Callable[[Any], tuple[int, dict[str, Any]]]] = MappingProxyType(
    {
        TaskChanged: _task_changed,
        ClaimEnded: _claim_ended,
        FireStarted: _fire_started,
        CallEnded: _call_ended,
        ExecutionMoved: _execution_moved,
        NodeChanged: _node_changed,
        PassFailed: _pass_failed,
        BatchRunStarted: _batch_run_started,
        BatchCallEnded: _batch_call_ended,
        BatchRunEnded: _batch_run_ended,
    }
)
