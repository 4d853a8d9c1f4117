"""``python -m chaos``: run the proof and print its figures; 1 on a broken promise."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaos.checker import check
from chaos.evidence import Evidence
from chaos.faults import KINDS
from chaos.plan import Plan
from chaos.report import figures_of, shown
from chaos.run import Servers, run
from tests.services import MariaDb, Redis

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run as the options say. Returns the exit code."""
    given = _parser().parse_args(words)
    if given.check:
        return _judge(Evidence.load(Path(given.check)), 0)
    seed = given.seed if given.seed is not None else random.randrange(1, 1_000_000)
    plan = Plan(
        seconds=given.seconds,
        nodes=given.nodes,
        seed=seed,
        rate=given.rate,
        store=given.store,
        burst=given.burst,
        think=given.think,
        aim=given.aim,
        concurrency=given.concurrency,
        burst_every=given.burst_every,
        planted=given.planted,
        drop_keys=given.drop_keys,
        kinds=tuple(given.faults.split(",")) if given.faults else (),
    )
    folder = Path(given.keep or tempfile.mkdtemp(prefix="crontask-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{plan.seconds:g} s, {plan.nodes} nodes on {plan.store}, seed {seed}", flush=True)
    with _servers(plan, folder) as servers:
        evidence = asyncio.run(run(plan, servers, folder, lambda text: print(text, flush=True)))
    code = _judge(evidence, seed)
    if code or given.keep:
        evidence.save(folder / "evidence.json")
        print(f"Evidence and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _judge(evidence: Evidence, seed: int) -> int:
    violations = check(evidence)
    print(shown(figures_of(evidence, violations), violations, seed))
    return 1 if violations else 0


@contextlib.contextmanager
def _servers(plan: Plan, folder: Path) -> Iterator[Servers]:
    if plan.store == "sqlite":
        yield Servers(f"sqlite:///{folder / 'crontask.db'}")
        return
    with MariaDb() as database, database.database() as url, Redis() as redis:
        yield Servers(url, database, redis)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Break everything around real nodes and check that no promise is broken.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--nodes", type=int, default=3, help="processes that fire (default 3)")
    parser.add_argument("--seed", type=int, help="what decides everything (default: drawn)")
    parser.add_argument("--rate", type=float, default=100.0, help="fires a second (default 100)")
    parser.add_argument("--burst", type=int, default=0, help="fires due at one instant")
    parser.add_argument("--think", type=float, default=0.0, help="seconds an agent takes")
    parser.add_argument("--aim", type=int, default=1, help="open calls of a node that is hit")
    parser.add_argument("--concurrency", type=int, default=50, help="slots of a node")
    parser.add_argument("--burst-every", type=float, default=5.0, help="seconds between bursts")
    parser.add_argument("--store", choices=("mariadb", "sqlite"), default="mariadb")
    parser.add_argument("--faults", default="", help=f"only these, of {','.join(KINDS)}")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="keep evidence and logs there")
    parser.add_argument("--planted", default="", help="run nodes with a fault of chaos.planted")
    parser.add_argument("--drop-keys", action="store_true", help="take the unique keys away first")
    parser.add_argument("--check", default="", metavar="FILE", help="only judge kept evidence")
    return parser


if __name__ == "__main__":
    sys.exit(main())
