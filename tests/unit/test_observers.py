"""What happened is written once, with fixed names and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from crontask_adapters.observers import LogObserver, Observers, setup_logging
from crontask_core.batch_model import RunStatus
from crontask_core.events import (
    BatchRunEnded,
    ClaimEnded,
    Event,
    ExecutionMoved,
    PassFailed,
    TaskChanged,
)
from crontask_core.model import ExecStatus, Task, TaskStatus
from crontask_core.testing import RecordingObserver
from tests.event_samples import BATCH_RUN, CALLING, EVENTS, RUNNING, TASK, ended


@pytest.fixture
def loggers() -> Iterator[None]:
    """Puts the standard library's logging back as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(level: str, *events: Event) -> list[dict[str, Any]]:
    out = io.BytesIO()
    observer = LogObserver(setup_logging("json", level, out))
    for event in events:
        observer.on(event)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.usefixtures("loggers")
def test_each_event_is_one_line_with_time_level_and_name() -> None:
    found = lines("debug", *EVENTS)
    assert [(line["event"], line["level"]) for line in found] == [
        ("task_changed", "info"),
        ("claim_ended", "info"),
        ("fire_started", "info"),
        ("call_ended", "warning"),
        ("execution_moved", "info"),
        ("report_received", "info"),
        ("node_changed", "info"),
        ("pass_failed", "warning"),
        ("row_set_aside", "error"),
        ("lock_unavailable", "warning"),
        ("database_clock_jumped", "error"),
        ("node_outdated", "error"),
        ("fires_recomputed", "info"),
        ("batch_run_started", "debug"),
        ("batch_call_ended", "warning"),
        ("batch_run_ended", "info"),
    ]
    assert all(line["timestamp"].endswith("Z") for line in found)


@pytest.mark.usefixtures("loggers")
def test_a_move_is_found_by_task_fire_user_and_node_and_says_from_where_to_where() -> None:
    after = attrs.evolve(
        CALLING, exec_status=ExecStatus.PENDING, retry_count=1, reason="retry 1 of 3: HTTP 503"
    )
    (line,) = lines("info", ExecutionMoved(before=CALLING, after=after, why="settle"))
    expected = {
        "task_id": 7,
        "fire_id": "f-1",
        "execution_id": 11,
        "user": "josetian",
        "node": "n1",
        "fire_time": "2026-03-02T01:00:00Z",
        "state_from": "calling",
        "state_to": "pending",
        "why": "settle",
        "reason": "retry 1 of 3: HTTP 503",
        "retry_count": 1,
        "next_action_at": "2026-03-02T01:00:00Z",
    }
    assert expected.items() <= line.items()


@pytest.mark.usefixtures("loggers")
def test_a_fire_skipped_at_claim_comes_from_nowhere_and_says_how_many_it_stands_for() -> None:
    row = ended(ExecStatus.SKIPPED, "too late: found 2:00:00 late", missed_count=5)
    (line,) = lines("info", ExecutionMoved(before=row, after=row, why="claim"))
    assert (line["state_from"], line["state_to"], line["missed_count"]) == (None, "skipped", 5)
    assert line["level"] == "warning"


@pytest.mark.usefixtures("loggers")
def test_no_line_carries_content_results_or_secrets() -> None:
    everything = [*EVENTS, ExecutionMoved(before=RUNNING, after=ended(ExecStatus.FAILED), why="x")]
    assert "SECRET" not in json.dumps(lines("debug", *everything))
    out = io.BytesIO()
    observer = LogObserver(setup_logging("human", "debug", out))
    for event in everything:
        observer.on(event)
    assert b"SECRET" not in out.getvalue()
    assert out.getvalue().count(b"\n") == len(everything)


@pytest.mark.usefixtures("loggers")
def test_a_reason_cannot_forge_a_line_and_is_shortened() -> None:
    bad = PassFailed(loop="x", error="a\nerror forged\x1b[31m\r\u2028" + "y" * 999, retryable=False)
    for style in ("json", "human"):
        out = io.BytesIO()
        LogObserver(setup_logging(style, "info", out)).on(bad)
        text = out.getvalue().decode()
        assert text.count("\n") == 1
        assert text.endswith("\n")
        assert "\x1b" not in text
        assert "\u2028" not in text
        assert len(text) < 600


@pytest.mark.usefixtures("loggers")
def test_lines_under_the_level_are_left_out() -> None:
    idle = ClaimEnded(tasks=0, started=0, queued=0, skipped=0, seconds=0.001)
    assert lines("info", idle) == []
    assert len(lines("debug", idle)) == 1
    assert [line["event"] for line in lines("error", *EVENTS)] == [
        "row_set_aside",
        "database_clock_jumped",
        "node_outdated",
    ]


@pytest.mark.usefixtures("loggers")
def test_an_event_nobody_has_words_for_is_written_with_its_plain_fields() -> None:
    @attrs.frozen(kw_only=True)
    class ReportReceived:
        name: str
        count: int
        task: Task

    (line,) = lines("info", ReportReceived(name="n", count=3, task=TASK))  # type: ignore[arg-type]
    assert line.pop("timestamp")
    assert line == {"level": "info", "event": "report_received", "name": "n", "count": 3}


@pytest.mark.requirement("B8")
@pytest.mark.usefixtures("loggers")
def test_a_line_about_a_batch_run_has_the_eight_agreed_fields() -> None:
    (line,) = lines("info", BatchRunEnded(run=BATCH_RUN, failures=0))
    assert line.pop("timestamp")
    assert line == {
        "level": "info",
        "event": "batch_run_ended",
        "task_name": "login_ip_risk",
        "run_id": "r1",
        "app_code": "lalu",
        "worker_id": "w1",
        "duration_ms": 120,
        "claimed_count": 100,
        "processed_count": 99,
        "status": "succeeded",
        "success_count": 0,
        "failure_count": 0,
        "batch_count": 0,
        "reason": "",
        "consecutive_failures": 0,
    }
    failed = attrs.evolve(BATCH_RUN, status=RunStatus.TIMED_OUT)
    assert lines("warning", BatchRunEnded(run=failed, failures=2))[0]["status"] == "timed_out"


@pytest.mark.usefixtures("loggers")
def test_other_libraries_write_in_the_same_form_and_only_what_matters() -> None:
    out = io.BytesIO()
    setup_logging("json", "debug", out)
    for name in ("uvicorn.access", "alembic.runtime", "asyncmy", "aiohttp.access"):
        logging.getLogger(name).info("chatter")
    logging.getLogger("aiohttp.client").warning("odd %s", "thing")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("it failed")
    odd, failed = (json.loads(line) for line in out.getvalue().splitlines())
    assert (odd["event"], odd["logger"], odd["level"]) == ("odd thing", "aiohttp.client", "warning")
    assert failed["exception"].endswith("ValueError: broken")


@pytest.mark.usefixtures("loggers")
def test_setting_up_twice_writes_each_line_once_and_to_the_newer_stream() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    setup_logging("json", "info", first)
    setup_logging("json", "info", second)
    logging.getLogger("somebody").warning("once")
    assert (first.getvalue(), second.getvalue().count(b"\n")) == (b"", 1)


@pytest.mark.usefixtures("loggers")
def test_a_closed_standard_error_does_not_stop_anybody() -> None:
    out = io.BytesIO()
    observer = LogObserver(setup_logging("json", "info", out))
    out.close()
    observer.on(EVENTS[0])
    logging.getLogger("somebody").warning("lost")


def test_an_observer_that_raises_does_not_keep_the_others_from_hearing() -> None:
    class Broken:
        def on(self, event: Event) -> None:
            raise RuntimeError("no")

    heard = RecordingObserver()
    observers = Observers([Broken(), heard])
    observers.on(EVENTS[0])
    assert (list(heard.events), observers.failed) == ([EVENTS[0]], 1)


@pytest.mark.usefixtures("loggers")
def test_a_paused_task_shows_its_state_by_name() -> None:
    paused = attrs.evolve(TASK, status=TaskStatus.DISABLED, next_fire_time=None)
    (line,) = lines("info", TaskChanged(task=paused, what="paused"))
    assert (line["what"], line["state_to"], line["next_fire_time"]) == ("paused", "disabled", None)
