"""``python -m tests.simulation``: run histories, show one, say which seeds fail."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.plan import KINDS
from tests.simulation.show import story
from tests.simulation.world import Outcome, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one history")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--only", help=f"faults, comma separated, of: {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (1)")
    parser.add_argument("--verbose", action="store_true", help="show everything that happened")
    given = parser.parse_args()
    only = tuple(given.only.split(",")) if given.only is not None else None
    if given.seed is not None:
        return _one(simulate(given.seed, only), verbose=given.verbose)
    seeds = range(given.first, given.first + given.seeds)
    return _many(seeds, only, given.jobs)


def _one(outcome: Outcome, *, verbose: bool) -> int:
    _print(story(outcome, whole=verbose))
    return 1 if outcome.wrong else 0


def _many(seeds: range, only: tuple[str, ...] | None, jobs: int) -> int:
    total: Counter[str] = Counter()
    failed: list[int] = []
    for seed, wrong, counts in _results(seeds, only, jobs):
        total.update(counts)
        if wrong:
            failed.append(seed)
            _print(f"seed {seed}: {wrong[0]}" + (f" (+{len(wrong) - 1})" if wrong[1:] else ""))
    _print(", ".join(f"{name} {count:,}" for name, count in sorted(total.items())))
    _print(f"{len(seeds)} histories, {len(failed)} with a broken promise")
    if failed:
        _print(f"replay: python -m tests.simulation --seed {failed[0]} --verbose")
    return 1 if failed else 0


Result = tuple[int, tuple[str, ...], dict[str, int]]


def _play(work: tuple[int, tuple[str, ...] | None]) -> Result:
    outcome = simulate(*work)
    return outcome.seed, outcome.wrong, outcome.counts


def _results(seeds: range, only: tuple[str, ...] | None, jobs: int):  # type: ignore[no-untyped-def]
    work = [(seed, only) for seed in seeds]
    if jobs == 1:
        yield from map(_play, work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_play, work, chunksize=5)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
