"""The clock follows the database, counts elapsed time, and never goes backwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crontask_adapters import ids
from crontask_adapters.clock import SystemClock, boottime, utcnow

T0 = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)


class Host:
    """A host whose wall clock and boot-time clock are set by hand."""

    def __init__(self) -> None:
        self.wall = T0
        self.boot = 1000.0

    def clock(self) -> SystemClock:
        return SystemClock(wall=lambda: self.wall, elapsed=lambda: self.boot)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_before_any_database_time_it_is_the_wall_clock_at_construction_plus_elapsed_time() -> None:
    host = Host()
    clock = host.clock()
    host.boot += 5
    assert clock.now() == at(5)


def test_a_wall_clock_that_is_set_later_changes_nothing() -> None:
    host = Host()
    clock = host.clock()
    host.wall += timedelta(hours=8)
    host.boot += 5
    assert clock.now() == at(5)
    clock.observe(at(100), sent=host.boot)
    host.wall -= timedelta(days=400)
    host.boot += 1
    assert clock.now() == at(101)


@pytest.mark.requirement("A5.4")
def test_time_while_the_machine_slept_counts() -> None:
    host = Host()
    clock = host.clock()
    clock.observe(at(0), sent=host.boot)
    host.boot += 3600
    assert clock.now() == at(3600)
    assert clock.elapsed() == 4600.0


def test_the_first_database_time_replaces_the_wall_clock_and_is_no_jump() -> None:
    host = Host()
    clock = host.clock()
    assert clock.now() == at(0)
    assert clock.observe(at(-3600), sent=host.boot) == timedelta(0)
    assert clock.now() == at(-3600)
    assert clock.offset == timedelta(seconds=-3600)


def test_now_never_goes_backwards_when_the_database_clock_is_set_back() -> None:
    host = Host()
    clock = host.clock()
    clock.observe(at(0), sent=host.boot)
    assert clock.now() == at(0)
    assert clock.observe(at(-60), sent=host.boot) == timedelta(seconds=-60)
    assert clock.now() == at(0)
    host.boot += 59
    assert clock.now() == at(0)
    host.boot += 3
    assert clock.now() == at(2)


def test_a_database_clock_that_jumps_is_told_with_its_distance() -> None:
    host = Host()
    clock = host.clock()
    clock.observe(at(0), sent=host.boot)
    host.boot += 10
    assert clock.observe(at(3610), sent=host.boot) == timedelta(seconds=3600)
    assert clock.observe(at(3610), sent=host.boot) == timedelta(0)
    assert clock.now() == at(3610)


def test_a_slow_answer_is_no_jump() -> None:
    host = Host()
    clock = host.clock()
    clock.observe(at(0), sent=host.boot)
    sent = host.boot + 10
    host.boot += 30  # asked at 10 s, answered 20 s later, read somewhere in between
    assert clock.observe(at(12), sent=sent) == timedelta(0)
    assert clock.now() == at(30)
    assert clock.observe(at(31), sent=host.boot) == timedelta(seconds=1)


def test_a_database_clock_that_runs_fast_is_followed_by_the_smallest_step() -> None:
    host = Host()
    clock = host.clock()
    clock.observe(at(0), sent=host.boot)
    sent = host.boot + 100
    host.boot += 102
    assert clock.observe(at(103), sent=sent) == timedelta(seconds=1)
    assert clock.now() == at(103)


async def test_sleep_returns_after_elapsed_time_even_if_the_timer_missed_some() -> None:
    host = Host()
    asked: list[float] = []

    def elapsed() -> float:
        asked.append(host.boot)
        host.boot += 1000  # the machine slept longer than we wanted to
        return host.boot

    await SystemClock(wall=utcnow, elapsed=elapsed).sleep(0.001)
    assert len(asked) == 3  # construction, start, end: no second timer


async def test_a_real_sleep_lasts_as_long_as_asked() -> None:
    clock = SystemClock()
    before = boottime()
    await clock.sleep(0.02)
    assert boottime() - before >= 0.02


def test_real_time_is_aware_utc() -> None:
    assert utcnow().tzinfo is UTC
    assert abs(SystemClock().now() - utcnow()) < timedelta(seconds=5)


def test_names_that_must_be_unique_are() -> None:
    assert len({ids.incarnation() for _ in range(1000)}) == 1000
    assert len(ids.incarnation()) == 16
    assert int(ids.incarnation(), 16) >= 0
    assert ids.default_node_id() != ids.default_node_id()
    assert len(ids.default_node_id()) <= 128
    assert ids.default_node_id().count(":") == 2
    assert ids.error_id().startswith("e-")
    assert ids.random_key() != ids.random_key()
    assert len(ids.installation_id()) == 36
