"""200 histories of whole nodes on a virtual event loop keep the README's three sentences.

A failing one is replayed by ``python -m tests.simulation --seed N --verbose``.
"""

from __future__ import annotations

import pytest

from tests.simulation.show import story
from tests.simulation.world import simulate

BLOCK = 20


@pytest.mark.requirement("A5.5", "A5.2")
@pytest.mark.parametrize("first", range(0, 200, BLOCK))
def test_whatever_breaks_each_fire_is_accounted_for_and_repeated_only_for_a_reason(
    first: int,
) -> None:
    for seed in range(first, first + BLOCK):
        outcome = simulate(seed)
        assert not outcome.wrong, f"seed {seed}\n{story(outcome, whole=False)}"


def test_a_seed_alone_replays_the_same_history() -> None:
    one, two = simulate(7), simulate(7)

    assert one.counts["steps"] > 1_000
    assert one.trace == two.trace
