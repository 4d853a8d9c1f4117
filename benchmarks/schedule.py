"""What a next fire costs, beside croniter's bare ``get_next`` on naive time, and what hostile input
costs at its worst (`X-S4`).

    python benchmarks/schedule.py

Prints one line for each expression: our time for one ``next_after`` of a parsed expression in a
zone with clock changes, croniter's for one ``get_next`` of its parsed object on naive time, and the
ratio; then the dearest of many hostile texts, each read for the first time. Times are of the
processor, so a busy machine does not count. Exits 1 when a bound is broken.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

from croniter import croniter

from crontask_core import cron, expressions, wall
from crontask_core.errors import InvalidInput
from crontask_core.schedule import (
    Cron,
    explain,
    next_after,
    parse_cron,
    parse_duration,
    parse_instant,
    parse_zone,
    schedule_warnings,
    shortest_gap,
)

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
ZONE = "America/New_York"
COMMON = [
    "* * * * *",
    "*/5 * * * *",
    "0 9 * * *",
    "0 9 * * 1-5",
    "0 0 1 * *",
    "15 10,14 * * *",
    "0 0 13 * 5",
    "0 0 29 2 *",
    "0 0 31 7 *",
]
RATIO = 1.0
"""The most one of ours may cost, in calls of croniter."""
HOSTILE_MS = 5.0
"""The most a text may cost that nobody has sent before."""


def seconds(action: Callable[[], object], number: int = 2000, rounds: int = 5) -> float:
    """The processor time of one call: the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(number):
            action()
        best = min(best, (time.process_time() - began) / number)
    return best


def ratios() -> Iterator[tuple[str, float, float]]:
    for expr in COMMON:
        ours = parse_cron(expr, ZONE, ZONE, START)
        assert isinstance(ours, Cron)
        theirs = croniter(expr, START.replace(tzinfo=None))
        # Both walk on: each call starts where the last one ended, so no answer is a cached one.
        here = [START]

        def walk(schedule: Cron = ours, here: list[datetime] = here) -> None:
            here[0] = next_after(schedule, here[0]) or START
            if here[0].year > 2400:
                here[0] = START

        slow = seconds(lambda it=theirs: it.get_next(datetime), 200)  # type: ignore[misc]
        yield expr, seconds(walk), slow


def forget() -> None:
    """As in a process that has just started; zone data stay loaded."""
    for module in (cron, expressions, wall):
        for name in dir(module):
            if name not in ("_pieces", "zone") and hasattr(getattr(module, name), "cache_clear"):
                getattr(module, name).cache_clear()


def read_all(expr: str) -> None:
    """What creating a task does with an expression, up to its first fire."""
    try:
        schedule = parse_cron(expr, None, ZONE, START)
    except InvalidInput:
        return
    next_after(schedule, START)
    shortest_gap(schedule, START)
    schedule_warnings(schedule, START)
    explain(schedule, ZONE)


def read_time(text: str) -> None:
    for read in (
        lambda: parse_instant(text, ZONE, START, "trigger_time"),
        lambda: parse_zone(text),
        lambda: parse_duration(text),
    ):
        try:
            read()
        except InvalidInput:
            continue


MADE_TO_HURT = [
    "* * LW * */6",
    "0 0 " + ",".join(f"{day}W" for day in range(1, 21)) + " * */6",
    "0 0 */29 2 1#1,2#1",
    "0 0 */31 2 1#1,2#1,3#1,4#1,5#1,6#1,0#1",
    "0 0 29 2 1#5,2#5",
    "0 0 31W 2,4,6,9,11 1#5,2#5",
    "* * */31 2,4,6,9,11 *",
    "0 0 * * " + ",".join(f"{day}#{nth}" for day in range(7) for nth in range(1, 5)),
    "1" * 128,
    "*," * 64,
    "9" * 100_000,
    "CRON_TZ=" + "A" * 110,
    "CRON_TZ=America/" + "x" * 60 + " 0 9 * * *",
    "@" + "y" * 120,
    "*/" + "9" * 120 + " * * * *",
    "\uff10" * 128,
    "L " * 60,
]
PARTS = ["*", "*/6", "*/7", "L", "LW", "15W", "31W", "1#5", "5L", "1-7", "29", "31", "2", "*/29"]


def hostile(dice: random.Random) -> Iterator[str]:
    yield from MADE_TO_HURT
    for _ in range(600):
        fields = ["0", "0"]
        for most in (6, 3, 8):
            fields.append(",".join(dice.choice(PARTS) for _ in range(dice.randint(1, most))))
        yield " ".join(fields)
    for _ in range(200):
        yield "".join(dice.choice("0123456789*/,-LW#? @") for _ in range(dice.randint(1, 140)))


def dearest(limit: float) -> tuple[float, str]:
    """The dearest hostile text. One that seems too dear is tried again: the best of five counts."""
    worst, which = 0.0, ""
    dice = random.Random(4)
    read_all("0 9 * * *")
    for number, text in zip(count(), hostile(dice), strict=False):
        for read in (read_all, read_time):
            took = once(read, text)
            for _ in range(4 * (took > limit)):
                took = min(took, once(read, text))
            if took > worst:
                worst, which = took, f"{text[:60]!r} (no. {number}, {read.__name__})"
    return worst, which


def once(read: Callable[[str], None], text: str) -> float:
    forget()
    gc.disable()
    began = time.process_time()
    read(text)
    took = time.process_time() - began
    gc.enable()
    return took


def main() -> int:
    bad = 0
    print(f"{'expression':<16} {'ours us':>8} {'croniter us':>12} {'ratio':>7}")
    for expr, ours, theirs in ratios():
        bad += ours > RATIO * theirs
        print(f"{expr:<16} {ours * 1e6:8.1f} {theirs * 1e6:12.1f} {ours / theirs:7.2f}")
    far = parse_cron("0 0 29 2 *", ZONE, ZONE, START)
    rare = seconds(lambda: next_after(far, START))
    common = seconds(lambda: next_after(parse_cron("0 9 * * *", ZONE, ZONE, START), START))
    print(f"0 0 29 2 * from one instant costs {rare / common:.1f} of 0 9 * * *")
    worst, which = dearest(HOSTILE_MS / 1000)
    print(f"dearest hostile text: {worst * 1000:.2f} ms (at most {HOSTILE_MS:g}): {which}")
    bad += worst * 1000 > HOSTILE_MS
    began = time.process_time()
    next_after(parse_cron("0 0 29 2 *", ZONE, ZONE, START), START + timedelta(days=36_500))
    print(f"a century ahead: {(time.process_time() - began) * 1000:.2f} ms")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
