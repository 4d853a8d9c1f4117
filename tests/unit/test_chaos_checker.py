"""The checker of the chaos runs sees every kind of broken promise, and no other.

A small true story is told first; each test falsifies one thing in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from chaos.checker import check
from chaos.due import due_of
from chaos.evidence import Action, Delivery, Evidence, Execution, Exit, Fault, Sent, Task
from chaos.report import figures_of, shown

S = 1_000_000
START = 1_800_000_000
"""The second at which the story begins."""


def at(seconds: float) -> float:
    return START + seconds


def us(seconds: float) -> int:
    return round((START + seconds) * S)


def called(number: int, when: float, **changes: object) -> Delivery:
    """The delivery of fire ``f<number>``, answered 20 ms later."""
    fields: dict[str, object] = {
        "at": at(when),
        "until": at(when + 0.02),
        "node": "n1.1",
        "fire_id": f"f{number}",
        "execution_id": number,
        "task_id": 1,
        "task_key": "every",
        "fire_us": us(10 * number),
        "run_id": f"r{number}-1",
    }
    return Delivery(**(fields | changes))  # type: ignore[arg-type]


def row(number: int, **changes: object) -> Execution:
    """The row of fire ``f<number>`` of the interval task: due every 10 s, reported 1 s later."""
    fields: dict[str, object] = {
        "id": number,
        "fire_id": f"f{number}",
        "task_id": 1,
        "fire_us": us(10 * number),
        "manual": False,
        "status": 2,
        "fence": 1,
        "created_us": us(10 * number + 0.01),
        "accepted_us": us(10 * number + 0.1),
        "reported_us": us(10 * number + 1),
        "end_us": us(10 * number + 1),
        "run_id": f"r{number}-1",
        "token": f"said {number}",
    }
    return Execution(**(fields | changes))  # type: ignore[arg-type]


def said(number: int, **changes: object) -> Sent:
    fields: dict[str, object] = {
        "task_id": 1,
        "fire_id": f"f{number}",
        "run_id": f"r{number}-1",
        "named": "fire",
        "status": "success",
        "token": f"said {number}",
        "asked": at(10 * number + 1),
        "answered": at(10 * number + 1.01),
        "tries": 1,
        "outcome": "recorded",
    }
    return Sent(**(fields | changes))  # type: ignore[arg-type]


def action(what: str, when: float, **changes: object) -> Action:
    """An edit of the interval task: anchored at the start, every 10 s."""
    fields: dict[str, object] = {
        "what": what,
        "task_id": 1,
        "task_key": "every",
        "asked": at(when),
        "answered": at(when + 0.02),
        "at_us": us(when + 0.01),
        "anchor_us": us(0),
        "step_us": 10 * S,
    }
    return Action(**(fields | changes))  # type: ignore[arg-type]


def story() -> Evidence:
    """Three fires of one interval task, then a pause; fire 2 was repeated after a kill."""
    return Evidence(
        started=at(0),
        ended=at(60),
        actions=[action("create", -0.01, at_us=us(0)), action("pause", 35)],
        tasks=[
            Task(
                id=1,
                task_key="every",
                schedule_type=3,
                status=0,
                next_fire_us=None,
                fire_count=3,
            )
        ],
        executions=[row(1), row(2, takeovers=1, fence=2), row(3)],
        deliveries=[
            called(1, 10.05),
            called(2, 20.05, node="n2.2"),
            called(2, 24.0, attempt=2),
            called(3, 30.05),
        ],
        reports=[said(1), said(2), said(3)],
        faults=[Fault(kind="kill", node="n2.2", start=at(20.06), end=at(20.07))],
        exits=[Exit(node="n2.2", at=at(20.07), age=20.0, code=-9, wanted=True)],
    )


def rules_of(evidence: Evidence) -> set[str]:
    return {violation.rule for violation in check(evidence)}


def change(evidence: Evidence, number: int, **changes: object) -> None:
    """Change the row of one fire."""
    evidence.executions = [
        attrs.evolve(e, **changes) if e.id == number else e  # type: ignore[arg-type]
        for e in evidence.executions
    ]


def test_a_true_story_breaks_no_promise() -> None:
    assert check(story()) == []


def test_what_was_kept_on_disk_is_judged_the_same(tmp_path: Path) -> None:
    story().save(tmp_path / "evidence.json")
    assert Evidence.load(tmp_path / "evidence.json") == story()


Lie = Callable[[Evidence], None]


def lost_row(e: Evidence) -> None:
    del e.executions[1]
    e.deliveries = [d for d in e.deliveries if d.fire_id != "f2"]
    del e.reports[1]


def second_row(e: Evidence) -> None:
    e.executions.append(row(3, id=4, fire_id="f4"))
    e.deliveries.append(called(3, 30.06, fire_id="f4"))
    e.reports.append(said(3, fire_id="f4"))


def row_and_span(e: Evidence) -> None:
    e.executions.append(skipped(4, 20, 20, 1))


def row_of_no_fire(e: Evidence) -> None:
    change(e, 3, fire_us=us(31))
    e.deliveries[-1].fire_us = us(31)


def after_the_pause(e: Evidence) -> None:
    e.executions.append(row(4))
    e.deliveries.append(called(4, 40.05))
    e.reports.append(said(4))


def skipped(number: int, first: float, last: float, count: int, **changes: object) -> Execution:
    fields: dict[str, object] = {
        "id": number,
        "fire_id": f"f{number}",
        "task_id": 1,
        "fire_us": us(last),
        "manual": False,
        "status": 6,
        "created_us": us(last + 10.5),
        "end_us": us(last + 10.5),
        "missed_count": count,
        "missed_from_us": us(first),
        "missed_to_us": us(last),
        "reason": "missed",
    }
    return Execution(**(fields | changes))  # type: ignore[arg-type]


def span_instead_of_rows(e: Evidence, count: int = 2, **changes: object) -> None:
    e.executions = [skipped(1, 10, 20, count, **changes), row(3)]
    e.deliveries = [d for d in e.deliveries if d.fire_id == "f3"]
    e.reports = [r for r in e.reports if r.fire_id == "f3"]


def test_two_fires_in_one_counted_span_are_accounted_for() -> None:
    evidence = story()
    span_instead_of_rows(evidence)
    assert check(evidence) == []


def miscounted_span(e: Evidence) -> None:
    span_instead_of_rows(e, count=3)


def hasty_span(e: Evidence) -> None:
    span_instead_of_rows(e, created_us=us(20.5), end_us=us(20.5))


def sent_again_for_nothing(e: Evidence) -> None:
    e.faults.clear()


def sent_again_long_before_the_kill(e: Evidence) -> None:
    e.faults[0] = Fault(kind="kill", node="n2.2", start=at(22.5), end=at(22.5))


def sent_again_when_another_node_died(e: Evidence) -> None:
    e.faults[0] = Fault(kind="kill", node="n1.1", start=at(20.06), end=at(20.07))


def sent_again_after_an_orderly_stop(e: Evidence) -> None:
    e.faults[0] = Fault(kind="term", node="n2.2", start=at(20.06), end=at(20.5))


def another_fire_id(e: Evidence) -> None:
    e.deliveries[2].fire_id = "f9"


def the_same_attempt_twice(e: Evidence) -> None:
    e.deliveries[2].attempt = 1


def two_calls_at_once(e: Evidence) -> None:
    e.deliveries[1].answer = "hang"
    e.deliveries[1].until = at(25)
    e.faults.clear()


def before_it_was_due(e: Evidence) -> None:
    e.deliveries[0].at = at(9.5)


def at_most_once_broken(e: Evidence) -> None:
    e.actions[0] = attrs.evolve(e.actions[0], delivery="at_most_once")


def woken_and_sending(e: Evidence) -> None:
    e.faults[0] = Fault(kind="freeze", node="n2.2", start=at(10), end=at(29))
    for number in (1, 2, 3):
        change(e, number, takeovers=1, retry_count=1)
    e.deliveries = [
        *(called(number, 10 * number + 5, attempt=2) for number in (1, 2, 3)),
        *(called(number, 36, node="n2.2") for number in (1, 2, 3)),
    ]


def overwritten_report(e: Evidence) -> None:
    change(e, 1, status=4, reported_us=None, end_us=us(17), token="")


def other_words(e: Evidence) -> None:
    change(e, 1, token="said by nobody")


def opposite_status(e: Evidence) -> None:
    change(e, 1, status=3)


def two_reports_taken(e: Evidence) -> None:
    e.reports.append(said(1, token="said later"))


def refused_report(e: Evidence) -> None:
    e.reports.append(said(1, token="x", outcome="refused:EXECUTION_NOT_FOUND"))


def unanswered_report(e: Evidence) -> None:
    e.reports.append(said(1, outcome="", answered=None, tries=40))


def lost_early_report(e: Evidence) -> None:
    e.reports[0].outcome = "pending"
    overwritten_report(e)


def forgotten_acceptance(e: Evidence) -> None:
    change(e, 1, status=3, accepted_us=None, reported_us=None, token="")
    del e.reports[0]


def hasty_timeout(e: Evidence) -> None:
    change(e, 1, status=4, reported_us=None, end_us=us(12), token="")
    del e.reports[0]


def never_called(e: Evidence) -> None:
    del e.deliveries[0]


def never_final(e: Evidence) -> None:
    change(e, 3, status=7, next_action_us=us(99))


def left_in_the_queue(e: Evidence) -> None:
    e.queued = 1


def left_armed(e: Evidence) -> None:
    e.tasks[0] = attrs.evolve(e.tasks[0], next_fire_us=us(70))


def cancelled_by_nobody(e: Evidence) -> None:
    change(e, 1, status=5, accepted_us=None, reported_us=None, fence=0, token="")
    del e.deliveries[0]
    del e.reports[0]


def unasked_manual_fire(e: Evidence) -> None:
    e.executions.append(row(7, manual=True, fire_us=us(33)))
    e.deliveries.append(called(7, 33.1, manual=True, fire_us=us(33)))
    e.reports.append(said(7))


def forgotten_manual_fire(e: Evidence) -> None:
    e.actions.append(action("run_now", 33, fire_id="f7"))


def node_that_fell_over(e: Evidence) -> None:
    e.exits.append(Exit(node="n1.1", at=at(40), age=40.0, code=1, wanted=False))


def node_that_would_not_stop(e: Evidence) -> None:
    e.exits.append(Exit(node="n1.1", at=at(60), age=60.0, code=-9, wanted=True, stuck=True))


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        (lost_row, "lost"),
        (second_row, "doubled"),
        (row_and_span, "doubled"),
        (row_of_no_fire, "undue"),
        (row_of_no_fire, "lost"),
        (after_the_pause, "undue"),
        (miscounted_span, "span"),
        (hasty_span, "skip"),
        (sent_again_for_nothing, "redelivered"),
        (sent_again_long_before_the_kill, "redelivered"),
        (sent_again_when_another_node_died, "redelivered"),
        (sent_again_after_an_orderly_stop, "redelivered"),
        (another_fire_id, "fire_id"),
        (the_same_attempt_twice, "fence"),
        (two_calls_at_once, "fence"),
        (before_it_was_due, "early"),
        (at_most_once_broken, "at_most_once"),
        (woken_and_sending, "fence"),
        (overwritten_report, "report"),
        (other_words, "report"),
        (opposite_status, "report"),
        (two_reports_taken, "report"),
        (refused_report, "report"),
        (unanswered_report, "report"),
        (lost_early_report, "report"),
        (forgotten_acceptance, "lost"),
        (hasty_timeout, "early"),
        (never_called, "lost"),
        (never_final, "ends"),
        (left_in_the_queue, "ends"),
        (left_armed, "ends"),
        (cancelled_by_nobody, "cancel"),
        (unasked_manual_fire, "undue"),
        (forgotten_manual_fire, "lost"),
        (node_that_fell_over, "node"),
        (node_that_would_not_stop, "node"),
    ],
)
def test_each_broken_promise_is_seen(lie: Lie, rule: str) -> None:
    evidence = story()
    lie(evidence)
    assert rule in rules_of(evidence)


def test_a_second_delivery_is_allowed_where_the_agent_did_not_answer_in_time() -> None:
    evidence = story()
    evidence.faults.clear()
    evidence.deliveries[1].answer = "busy"
    assert check(evidence) == []


def test_a_single_call_sent_by_a_node_that_was_frozen_while_it_wrote_is_allowed() -> None:
    evidence = story()
    evidence.faults[0] = Fault(kind="freeze", node="n2.2", start=at(20), end=at(26))
    evidence.deliveries[1].at = at(26.01)
    evidence.deliveries[1].until = at(26.02)
    assert check(evidence) == []


def test_an_early_report_may_be_lost_with_the_answer_that_would_have_named_its_run() -> None:
    evidence = story()
    lost_early_report(evidence)
    evidence.deliveries[0].answer = "hang"
    change(evidence, 1, status=3, accepted_us=None)
    assert check(evidence) == []


def test_a_node_without_its_database_may_fail_to_start() -> None:
    evidence = story()
    evidence.faults.append(Fault(kind="db-crash", start=at(40), end=at(42)))
    evidence.exits.append(Exit(node="n1.7", at=at(41), age=1.5, code=5, wanted=False))
    assert check(evidence) == []


def test_fires_in_a_moment_whose_edit_has_no_exact_instant_may_be_there_or_not() -> None:
    create = action("create", -0.01, at_us=us(0))
    pause = action("pause", 18, answered=at(32), unsure=True)
    due = due_of([create, pause], until=at(60))
    assert (due.must, due.may) == ({us(10)}, {us(20), us(30)})


def test_an_edit_ends_one_schedule_and_begins_the_next_at_one_instant() -> None:
    create = action("create", -0.01, at_us=us(0))
    faster = action("update", 25, anchor_us=us(24), step_us=3 * S)
    pause = action("pause", 31)
    due = due_of([create, faster, pause], until=at(60))
    assert due.every == [us(10), us(20), us(27), us(30)]


def test_the_figures_say_what_happened_and_how_to_repeat_it() -> None:
    evidence = story()
    text = shown(figures_of(evidence, []), [], 7)
    assert "fires           3" in text
    assert "delivered again 1  (kill 1)" in text
    lost_row(evidence)
    text = shown(figures_of(evidence, check(evidence)), check(evidence), 7)
    assert "lost            1" in text
    assert "Repeat it with --seed 7" in text
