"""What a seed decides before anything runs: how many nodes, which faults, how often.

Each history has some kinds of faults and not others: a history with all of them hides what a single
one would show.
"""

from __future__ import annotations

from datetime import timedelta

import attrs

from crontask_adapters.settings import Settings
from crontask_core.model import Rules
from tests.simulation.dice import Dice

__all__ = ["KINDS", "Plan", "draw_plan"]

KINDS = (
    "crash",
    "freeze",
    "flaky",
    "lost answers",
    "cut",
    "restart database",
    "slow database",
    "fail over",
    "jump",
    "skew",
    "roll",
    "kill",
    "lock",
)


@attrs.frozen(kw_only=True)
class Plan:
    """``seconds`` is how long things go wrong; ``pause`` the mean time between two faults."""

    seed: int
    nodes: int
    seconds: float
    pause: float
    kinds: tuple[str, ...]
    concurrency: int
    errors: float
    hints: float
    calls: float
    settings: Settings
    rules: Rules


def draw_plan(seed: int, only: tuple[str, ...] | None = None) -> Plan:
    """The plan of a seed; ``only`` are the kinds of faults instead of those it would draw."""
    dice = Dice(seed, "plan")
    kinds = tuple(kind for kind in KINDS if dice.chance(0.45))
    if only is not None:
        kinds = only
    settings = Settings()
    scheduler = attrs.evolve(
        settings.scheduler,
        poll_interval=timedelta(seconds=dice.pick((1.0, 1.0, 2.0, 5.0))),
        compensate_window=timedelta(seconds=dice.pick((20, 60, 1800))),
    )
    executor = attrs.evolve(
        settings.executor,
        callback_timeout=timedelta(seconds=dice.pick((5, 10, 30))),
        ga_callback_timeout=timedelta(seconds=dice.pick((30, 60, 90))),
        max_retry=dice.pick((1, 3, 3)),
        retry_interval=timedelta(seconds=dice.pick((0.5, 2, 5))),
        default_callback_url="http://good.example/v1/task/execute",
    )
    settings = attrs.evolve(settings, scheduler=scheduler, executor=executor)
    return Plan(
        seed=seed,
        nodes=2 + dice.below(3),
        seconds=dice.between(50, 140),
        pause=dice.between(4, 20),
        kinds=kinds,
        concurrency=dice.pick((1, 2, 4, 8)),
        errors=dice.pick((0.0, 0.005, 0.02)),
        hints=dice.pick((0.0, 0.7, 1.0)),
        calls=dice.between(0.7, 3.0),
        settings=settings,
        rules=attrs.evolve(settings.rules(), min_interval=timedelta(seconds=1)),
    )
