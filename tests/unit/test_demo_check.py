"""The check at the end of the demo finds every way in which a fire may be lost or doubled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from crontask_cli.demo_check import Delivery, Planned, faults

DUE = datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)
PLAN = (Planned(task_id=1, title="one-off", due=(DUE,), ends="success"),)
GOOD: dict[str, Any] = {
    "execution_id": 5,
    "fire_id": "f",
    "task_id": 1,
    "fire_time": {"local": "2026-01-01T08:00:03+08:00"},
    "exec_status_text": "success",
    "delivery": {"calls": 1},
}
TAKEN = Delivery(fire_id="f", status=200, lateness_ms=3.0)
REFUSED = attrs.evolve(TAKEN, status=503)


def test_a_fire_that_came_once_and_ended_well_is_no_fault() -> None:
    assert [] == faults(PLAN, [GOOD], [TAKEN])


def test_a_repeat_after_a_refusal_is_no_fault() -> None:
    plan = (attrs.evolve(PLAN[0], calls=2),)
    twice = {**GOOD, "delivery": {"calls": 2}}
    assert [] == faults(plan, [twice], [REFUSED, TAKEN])


def test_a_lost_fire_is_a_fault() -> None:
    expected = "one-off: due at 2026-01-01T00:00:03+00:00, but fired at no time"
    assert [expected] == faults(PLAN, [], [])


def test_a_fire_at_another_time_is_a_fault() -> None:
    moved = {**GOOD, "fire_time": {"local": "2026-01-01T00:00:04+00:00"}}
    expected = "one-off: due at 2026-01-01T00:00:03+00:00, but fired at 2026-01-01T00:00:04+00:00"
    assert [expected] == faults(PLAN, [moved], [TAKEN])


def test_a_second_delivery_after_an_acceptance_is_a_fault() -> None:
    plan = (attrs.evolve(PLAN[0], calls=2),)
    twice = {**GOOD, "delivery": {"calls": 2}}
    expected = "execution 5: sent again although the agent had answered 200"
    assert [expected] == faults(plan, [twice], [TAKEN, TAKEN])


def test_a_fire_the_agent_never_got_is_a_fault() -> None:
    assert ["execution 5: the agent never got it"] == faults(PLAN, [GOOD], [])


def test_a_fire_the_server_does_not_know_is_a_fault() -> None:
    stray = attrs.evolve(TAKEN, fire_id="g")
    assert ["the agent was sent unknown fire g"] == faults(PLAN, [GOOD], [TAKEN, stray])


def test_one_fire_id_for_two_executions_is_a_fault() -> None:
    plan = (attrs.evolve(PLAN[0], due=(DUE, DUE + timedelta(seconds=2))),)
    other = {**GOOD, "execution_id": 6, "fire_time": {"local": "2026-01-01T00:00:05+00:00"}}
    assert ["fire_id f belongs to 2 executions"] == faults(plan, [GOOD, other], [TAKEN])


def test_another_end_than_expected_is_a_fault() -> None:
    failed = {**GOOD, "exec_status_text": "failed"}
    assert ["one-off: ended failed, expected success"] == faults(PLAN, [failed], [TAKEN])
