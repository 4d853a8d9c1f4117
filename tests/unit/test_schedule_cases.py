"""Every line of the shared cron cases: expressions from real reports, with the right fires."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crontask_core.errors import InvalidInput
from crontask_core.schedule import fires_after, latest_at_or_before, next_after, parse_cron

_FILE = Path(__file__).resolve().parents[1] / "data" / "cron.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in _FILE.read_text().splitlines()]
FIRING = [case for case in CASES if "expect" in case]
REFUSED = [case for case in CASES if case.get("error")]
TICK = timedelta(microseconds=1)


def name(case: dict[str, Any]) -> str:
    return f"{case['id']} {case['expr']} {case['tz']}"


def parse(case: dict[str, Any]) -> Any:
    """The case's zone is the task's own, unless the expression brings one: then the default."""
    own = None if "TZ=" in case["expr"] else case["tz"]
    return parse_cron(case["expr"], own, case["tz"], datetime.fromisoformat(case["after"]))


def test_the_cases_are_all_there() -> None:
    assert 189 == len(CASES) == len(FIRING) + len(REFUSED)


@pytest.mark.requirement("X-S1", "X-S2", "X-S3")
@pytest.mark.parametrize("case", FIRING, ids=name)
def test_a_case_fires_exactly_when_it_should(case: dict[str, Any]) -> None:
    after = datetime.fromisoformat(case["after"]).astimezone(UTC)
    expected = [datetime.fromisoformat(text).astimezone(UTC) for text in case["expect"]]
    assert expected == fires_after(parse(case), after, len(expected))


@pytest.mark.requirement("X-S3", "X-S4")
@pytest.mark.parametrize("case", FIRING, ids=name)
def test_a_case_gives_the_same_fires_from_any_point_and_backwards(case: dict[str, Any]) -> None:
    schedule = parse(case)
    fires = [datetime.fromisoformat(text).astimezone(UTC) for text in case["expect"]]
    for earlier, later in pairwise(fires):
        middle = earlier + (later - earlier) / 2
        assert [later] * 3 == [next_after(schedule, t) for t in (earlier, middle, later - TICK)]
        if "@every" not in case["expr"]:
            assert later == latest_at_or_before(schedule, later)
            assert [earlier] * 3 == [
                latest_at_or_before(schedule, t) for t in (earlier, middle, later - TICK)
            ]


@pytest.mark.requirement("X-S1", "X-S2")
@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_a_wrong_case_is_refused_with_an_example_that_is_accepted(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(case)
    error = caught.value
    assert error.code in {"INVALID_CRON", "NEVER_FIRES", "UNKNOWN_TIMEZONE"}
    assert error.hint
    now = datetime(2026, 11, 30, tzinfo=UTC)
    if error.field == "cron_expr":
        assert next_after(parse_cron(error.example, None, "UTC", now), now)
    else:
        assert error.field == "timezone"
        assert next_after(parse_cron("0 9 * * *", error.example, "UTC", now), now)
