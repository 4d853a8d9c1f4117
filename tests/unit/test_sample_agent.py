"""How a task tells the sample agent to behave."""

from __future__ import annotations

import pytest

from crontask_core.errors import InvalidInput
from crontask_server.sample_agent import Behaviour, behaviour_in, parse_behaviour

OK = Behaviour("ok")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ok", Behaviour("ok")),
        ("flaky", Behaviour("flaky", 1.0)),
        ("flaky:2", Behaviour("flaky", 2.0)),
        ("slow:0.5", Behaviour("slow", 0.5)),
        ("late:90", Behaviour("late", 90.0)),
        (" silent ", Behaviour("silent")),
    ],
)
def test_a_behaviour_is_a_word_and_sometimes_a_number(text: str, expected: Behaviour) -> None:
    assert expected == parse_behaviour(text)


@pytest.mark.parametrize("text", ["", "well", "ok:1", "flaky:two", "slow:-1", "flaky:nan"])
def test_an_unknown_behaviour_is_refused_with_the_words_there_are(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_behaviour(text)
    assert "silent" in caught.value.candidates
    assert parse_behaviour(caught.value.example)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Say hello.", OK),
        ('Query the CPA. Parameters: {"agent": "flaky", "times": 2}', Behaviour("flaky", 2.0)),
        ('Params {"game": "DNFM"} then {"agent": "fail"}', Behaviour("fail")),
        ('{"agent": "slow", "seconds": 3}', Behaviour("slow", 3.0)),
        ('{"agent": "late"}', Behaviour("late", 60.0)),
        ('Broken {"agent": "fail"', OK),
        ('A brace { and {"agent": "silent"}', Behaviour("silent")),
        ('{"agent": "dance"}', OK),
        ('{"agent": 7}', OK),
        ('查询 {"agent": "twice", "游戏": "DNFM"}', Behaviour("twice")),
    ],
)
def test_parameters_in_the_content_choose_the_behaviour(content: str, expected: Behaviour) -> None:
    assert expected == behaviour_in(content, OK)
