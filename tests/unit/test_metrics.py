"""What happened is counted, what is is read, and no label grows without bound."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import attrs
import pytest

from crontask_adapters.metrics import (
    COUNTED,
    OBSERVED,
    READ,
    REASONS,
    MetricsObserver,
    available,
    reason_class,
)
from crontask_core.batch_model import BatchAnswer, ReplyKind, RunStatus
from crontask_core.events import (
    BatchCallEnded,
    BatchRunEnded,
    CallEnded,
    ClaimEnded,
    Event,
    ExecutionMoved,
    FireStarted,
    LockUnavailable,
    NodeChanged,
    PassFailed,
    ReportReceived,
    RowSetAside,
    TaskChanged,
)
from crontask_core.model import AttemptClass, ExecStatus, Execution
from crontask_core.policy import Verdict
from crontask_core.policy.batches import NO_PROGRESS
from tests.event_samples import BATCH_RUN, CALLING, EVENTS, PENDING, RUNNING, VERDICT, ended


def samples(metrics: MetricsObserver) -> dict[str, float]:
    """Every sample of the page by its name with labels."""
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    rows = [r.rsplit(" ", 1) for r in page.decode().splitlines() if not r.startswith("#")]
    return {name: float(value) for name, value in rows}


def counted(*events: Event) -> dict[str, float]:
    metrics = MetricsObserver()
    for event in events:
        metrics.on(event)
    found = samples(metrics)
    return {
        name.removeprefix("crontask_"): value
        for name, value in found.items()
        if value and "_created" not in name and "_bucket" not in name
    }


@pytest.mark.requirement("A6.5", "X-MET")
def test_every_agreed_metric_has_its_name_and_labels() -> None:
    agreed = {
        "fires_total": ("outcome", "reason"),
        "fire_lateness_seconds": (),
        "callback_total": ("class",),
        "callback_duration_seconds": (),
        "retries_total": (),
        "retry_exhausted_total": (),
        "reports_total": ("status", "late"),
        "ga_timeouts_total": (),
        "executions": ("state",),
        "armed_tasks": (),
        "oldest_overdue_seconds": (),
        "claim_batch_size": (),
        "claim_seconds": (),
        "settle_seconds": (),
        "takeovers_total": (),
        "fence_lost_total": (),
        "lock_denied_total": (),
        "lock_unavailable_total": (),
        "pool_in_use": (),
        "slots_in_use": (),
        "db_clock_offset_seconds": (),
        "db_retries_total": (),
        "loop_age_seconds": ("loop",),
        "batch_runs_total": ("task", "app", "status"),
        "batch_calls_total": ("task", "app", "code"),
        "batch_items_total": ("task", "app", "outcome"),
        "batch_no_progress_total": ("task", "app"),
        "batch_consecutive_failures": ("task", "app"),
        "batch_backlog": ("task", "app"),
        "batch_oldest_pending_seconds": ("task", "app"),
        "batch_duration_seconds": ("task", "app"),
    }
    ours = {name: labels for name, (_, labels) in COUNTED.items()}
    ours |= {name: labels for name, (_, labels, _) in OBSERVED.items()}
    ours |= {name: labels for name, (_, _, labels) in READ.items()}
    assert ours == agreed


@pytest.mark.requirement("A6.5")
def test_calls_and_claims_are_counted_and_measured() -> None:
    accepted = Verdict(outcome=AttemptClass.ACCEPTED, http_status=200)
    assert counted(
        ClaimEnded(tasks=3, started=1, queued=2, skipped=0, seconds=0.5),
        ClaimEnded(tasks=0, started=0, queued=0, skipped=0, seconds=9),
        FireStarted(execution=CALLING, lateness=0.25),
        FireStarted(execution=CALLING, lateness=-0.1),
        CallEnded(execution=CALLING, verdict=VERDICT, seconds=1.5),
        CallEnded(execution=CALLING, verdict=accepted, seconds=0.5),
    ) == {
        "claim_batch_size_count": 1.0,
        "claim_batch_size_sum": 3.0,
        "claim_seconds_count": 1.0,
        "claim_seconds_sum": 0.5,
        "fire_lateness_seconds_count": 2.0,
        "fire_lateness_seconds_sum": 0.25,
        'callback_total{class="retry"}': 1.0,
        'callback_total{class="accepted"}': 1.0,
        "callback_duration_seconds_count": 2.0,
        "callback_duration_seconds_sum": 2.0,
    }


@pytest.mark.requirement("A6.5")
def test_a_fire_is_counted_when_it_ends_and_not_while_it_moves() -> None:
    retry = attrs.evolve(PENDING, retry_count=1)
    spent = ended(ExecStatus.FAILED, "retries spent (3): HTTP 503")
    silent = ended(ExecStatus.TIMED_OUT, "GA callback timeout, auto-marked")
    assert counted(
        ExecutionMoved(before=PENDING, after=CALLING, why="begin"),
        ExecutionMoved(before=CALLING, after=RUNNING, why="settle"),
        ExecutionMoved(before=RUNNING, after=ended(ExecStatus.SUCCESS), why="report"),
        ExecutionMoved(before=CALLING, after=retry, why="settle"),
        ExecutionMoved(before=CALLING, after=spent, why="settle"),
        ExecutionMoved(before=RUNNING, after=silent, why="sweep"),
        ExecutionMoved(before=silent, after=silent, why="report"),
    ) == {
        'fires_total{outcome="success",reason="reported"}': 1.0,
        'fires_total{outcome="failed",reason="retries_spent"}': 1.0,
        'fires_total{outcome="timed_out",reason="no_report"}': 1.0,
        "retries_total": 1.0,
        "retry_exhausted_total": 1.0,
        "ga_timeouts_total": 1.0,
    }


@pytest.mark.requirement("A6.5")
def test_one_skipped_row_counts_for_all_the_fires_it_stands_for() -> None:
    many = ended(ExecStatus.SKIPPED, "missed: only the latest", missed_count=12)
    paused = ended(ExecStatus.CANCELLED, "paused before the call")
    assert counted(
        ExecutionMoved(before=many, after=many, why="claim"),
        ExecutionMoved(before=paused, after=paused, why="begin"),
    ) == {
        'fires_total{outcome="skipped",reason="missed"}': 12.0,
        'fires_total{outcome="cancelled",reason="paused"}': 1.0,
    }


@pytest.mark.requirement("A6.5")
def test_takeovers_and_lost_fences_are_counted_and_a_lost_outcome_ends_nothing() -> None:
    back = attrs.evolve(PENDING, takeovers=1)
    done = ended(ExecStatus.SUCCESS)
    assert counted(
        ExecutionMoved(before=CALLING, after=back, why="takeover"),
        ExecutionMoved(before=done, after=done, why="settle", lost=True),
    ) == {"takeovers_total": 1.0, "fence_lost_total": 1.0}


@pytest.mark.requirement("A6.5")
def test_reports_locks_and_repeated_passes_are_counted() -> None:
    report = ReportReceived(task_id=7, status="failed", duplicate=False, late=True, pending=False)
    assert counted(
        report,
        attrs.evolve(report, duplicate=True, late=False),
        LockUnavailable(error="x"),
        PassFailed(loop="claim", error="locked", retryable=True),
        PassFailed(loop="claim", error="bug", retryable=False),
        *[event for event in EVENTS if isinstance(event, (TaskChanged, NodeChanged, RowSetAside))],
    ) == {
        'reports_total{late="true",status="failed"}': 1.0,
        'reports_total{late="false",status="duplicate"}': 1.0,
        "lock_unavailable_total": 1.0,
        "db_retries_total": 1.0,
    }


@pytest.mark.requirement("X-MET")
@pytest.mark.parametrize(
    ("row", "word"),
    [
        (ended(ExecStatus.SKIPPED, "too late: no slot within the window"), "no_slot"),
        (ended(ExecStatus.SKIPPED, "too late: found 2:00:00 late"), "too_late"),
        (ended(ExecStatus.SKIPPED, "overlap: an earlier run"), "overlap"),
        (ended(ExecStatus.CANCELLED, "task deleted"), "deleted"),
        (ended(ExecStatus.CANCELLED, "rescheduled before claim"), "rescheduled"),
        (ended(ExecStatus.CANCELLED, "because josetian@example.com said so"), "cancelled"),
        (ended(ExecStatus.FAILED, "taken over 5 times, gave up: x"), "takeovers_spent"),
        (ended(ExecStatus.FAILED, "outcome unknown: x"), "outcome_unknown"),
        (ended(ExecStatus.FAILED, "the agent answered HTTP 400"), "refused"),
        (ended(ExecStatus.FAILED, "certificate of http://agent.example.com"), "other"),
        (ended(ExecStatus.SUCCESS, late=True), "late_report"),
    ],
)
def test_a_reason_becomes_one_of_a_few_words(row: Execution, word: str) -> None:
    assert reason_class(row) == word


@pytest.mark.requirement("X-MET")
def test_no_label_carries_a_user_a_key_or_a_url() -> None:
    names = {name for _, labels in COUNTED.values() for name in labels}
    names |= {name for _, labels, _ in OBSERVED.values() for name in labels}
    names |= {name for _, _, labels in READ.values() for name in labels}
    assert names == {
        "outcome", "reason", "class", "status", "late", "state", "loop", "task", "app", "code",
    }  # fmt: skip
    metrics = MetricsObserver()
    moves = [ended(s, "x http://agent.example.com josetian daily") for s in ExecStatus]
    for event in [*EVENTS, *(ExecutionMoved(before=RUNNING, after=m, why="settle") for m in moves)]:
        metrics.on(event)
    page = metrics.render()[0].decode()
    assert "josetian" not in page
    assert "daily" not in page
    assert "http" not in page


@pytest.mark.requirement("A6.5")
def test_what_is_now_is_read_when_somebody_looks() -> None:
    slots = [3]

    def broken() -> float:
        raise RuntimeError("no database")

    metrics = MetricsObserver(
        {
            "slots_in_use": lambda: slots[0],
            "executions": lambda: {"pending": 2, "running": 5},
            "batch_backlog": lambda: {("login_ip_risk", "lalu"): 40},
            "lock_denied_total": lambda: 9,
            "armed_tasks": broken,
        }
    )
    metrics.watch("db_clock_offset_seconds", lambda: timedelta(seconds=-2).total_seconds())
    slots[0] = 4
    found = samples(metrics)
    assert found["crontask_slots_in_use"] == 4.0
    assert found['crontask_executions{state="running"}'] == 5.0
    assert found['crontask_batch_backlog{app="lalu",task="login_ip_risk"}'] == 40.0
    assert found["crontask_lock_denied_total"] == 9.0
    assert found["crontask_db_clock_offset_seconds"] == -2.0
    assert "crontask_armed_tasks" not in found
    with pytest.raises(ValueError, match="no metric"):
        metrics.watch("users", lambda: 1.0)


def test_settle_times_are_told_directly() -> None:
    metrics = MetricsObserver()
    metrics.settle_took(0.25)
    assert samples(metrics)["crontask_settle_seconds_sum"] == 0.25


@pytest.mark.requirement("B8")
def test_batch_calls_and_runs_are_counted_by_job_and_app() -> None:
    metrics = MetricsObserver()
    answer = BatchAnswer(
        kind=ReplyKind.OK, code="OK", claimed_count=5, processed_count=4, success_count=3,
        failure_count=1,
    )  # fmt: skip
    metrics.on(BatchCallEnded(run=BATCH_RUN, answer=answer, seconds=0.1))
    metrics.on(BatchRunEnded(run=BATCH_RUN, failures=0, warning=NO_PROGRESS))
    taken_over = attrs.evolve(BATCH_RUN, status=RunStatus.ABANDONED)
    metrics.on(BatchRunEnded(run=taken_over))
    metrics.on(BatchRunEnded(run=taken_over, lost=True))
    found = samples(metrics)
    job = 'app="lalu"', 'task="login_ip_risk"'
    assert found[f'crontask_batch_calls_total{{{job[0]},code="OK",{job[1]}}}'] == 1.0
    items = {
        outcome: found[f'crontask_batch_items_total{{{job[0]},outcome="{outcome}",{job[1]}}}']
        for outcome in ("claimed", "processed", "success", "failure")
    }
    assert items == {"claimed": 5.0, "processed": 4.0, "success": 3.0, "failure": 1.0}
    for status in ("succeeded", "abandoned"):
        assert found[f'crontask_batch_runs_total{{{job[0]},status="{status}",{job[1]}}}'] == 1.0
    assert found[f"crontask_batch_duration_seconds_sum{{{job[0]},{job[1]}}}"] == 0.24
    assert found[f"crontask_batch_no_progress_total{{{job[0]},{job[1]}}}"] == 1.0
    assert found["crontask_fence_lost_total"] == 1.0


def test_two_observers_count_apart() -> None:
    one, two = MetricsObserver(), MetricsObserver()
    one.on(LockUnavailable(error="x"))
    assert samples(one)["crontask_lock_unavailable_total"] == 1.0
    assert samples(two)["crontask_lock_unavailable_total"] == 0.0
    assert available()


def test_the_reference_page_names_every_metric_and_reason() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/metrics.md").read_text()
    words = {word for _, word in REASONS} | {"reported", "late_report", "cancelled", "other"}
    names = {*COUNTED, *OBSERVED, *READ, *words}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
