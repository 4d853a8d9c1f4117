"""The proof itself: nodes that are killed, frozen and cut off keep every promise; nodes with a
guard taken out do not, and the checker sees it (docs/explanation/guarantees.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from chaos.checker import Violation, check
from chaos.evidence import Evidence
from chaos.plan import Plan
from chaos.report import figures_of, shown
from chaos.run import Servers, run
from tests.services import MariaDb, Redis


async def played(plan: Plan, servers: Servers, folder: Path) -> tuple[Evidence, list[Violation]]:
    """Play a plan; what it says is shown when the test fails."""
    evidence = await run(plan, servers, folder, tell=print)
    evidence.save(folder / "evidence.json")
    violations = check(evidence)
    print(shown(figures_of(evidence, violations), violations, plan.seed))
    return evidence, violations


def rules(violations: Sequence[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


@pytest.fixture
def servers(mariadb_server: MariaDb, mariadb_url: str, redis_server: Redis) -> Servers:
    redis_server.flush()
    return Servers(mariadb_url, mariadb_server, redis_server)


@pytest.mark.requirement("A5.5", "A5.2", "A5.4", "A6.2r")
async def test_nothing_is_lost_or_doubled_while_everything_around_the_nodes_breaks(
    servers: Servers, tmp_path: Path
) -> None:
    evidence, violations = await played(
        Plan(seconds=24, nodes=3, seed=11, rate=80, settle_in=1), servers, tmp_path
    )

    assert violations == []
    figures = figures_of(evidence, violations)
    assert figures.fires > 1_000, "too few fires prove nothing"
    assert figures.faults.keys() >= {"kill", "freeze"}
    assert any(kind.startswith("db-") for kind in figures.faults)
    assert sum(figures.faults.values()) >= 10
    assert figures.takeovers > 0, "no node was hit while it was calling"


@pytest.mark.requirement("A5.5")
async def test_claims_without_lock_guard_and_unique_key_are_found_out(
    servers: Servers, tmp_path: Path
) -> None:
    plan = Plan(
        seconds=5,
        nodes=2,
        seed=1,
        rate=40,
        planted="unlocked-claims",
        drop_keys=True,
        kinds=("redis-flush",),
        drain=2,
    )

    _, violations = await played(plan, servers, tmp_path)

    assert "doubled" in rules(violations)


@pytest.mark.requirement("A6.2r")
async def test_settles_that_do_not_look_whose_the_fire_is_are_found_out(
    servers: Servers, tmp_path: Path
) -> None:
    plan = Plan(
        seconds=6,
        nodes=2,
        seed=1,
        rate=60,
        planted="unguarded-settles",
        kinds=("redis-flush",),
        drain=10,
    )

    _, violations = await played(plan, servers, tmp_path)

    assert any("it was recorded" in violation.what for violation in violations)


@pytest.mark.requirement("A5.2")
async def test_nodes_that_wake_up_and_send_without_looking_are_found_out(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    """A freeze has to meet a node that has begun what it has not sent, and the others have to send
    that before it wakes: on a busy machine not every try gets so far."""
    plan = Plan(
        seconds=10,
        nodes=3,
        rate=80,
        planted="unchecked-sends",
        script=((2.05, "freeze", 0.0, 1.0),),
        drain=2,
    )
    for seed in (1, 2, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with mariadb_server.database() as url:
            servers = Servers(url, mariadb_server)
            _, violations = await played(attrs.evolve(plan, seed=seed), servers, folder)
        if any("woke up" in violation.what for violation in violations):
            return
    raise AssertionError("nothing was found")
