"""Three nodes, one store and many faults on virtual time: what must hold whatever happens.

Each example is a script of faults; the profile ``nightly`` plays thousands of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from crontask_core.batch import Drainer
from crontask_core.batch_model import BatchAnswer, BatchCall, BatchKey, BatchRun, ReplyKind
from crontask_core.batch_model import RunStatus as S
from crontask_core.errors import Unavailable
from crontask_core.testing import (
    BatchTables,
    MemoryBatchRepo,
    RecordingObserver,
    ScriptedOwner,
    VirtualClock,
)
from crontask_core.testing.batch_repo import done, fails
from crontask_server.batch_runtime import BatchRuntime
from tests.batches import job

JOBS = (
    job("quick", interval=1, timeout=1, lock_ttl=5, apps=("a", "b")),
    job("slow", interval=5, timeout=3, lock_ttl=10, max_round=20),
    job("rare", interval=20, timeout=4, lock_ttl=12),
)
# A script that fails is short enough to read; to shorten it further takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TROUBLE = 60.0
"""Seconds in which faults happen; then all is well for ``CALM`` seconds."""
CALM = 70.0


class Gate:
    """A process that can be frozen: whatever it waits for comes back only once it is thawed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def through(self, waiting: Awaitable[Any]) -> Any:
        try:
            return await waiting
        finally:
            await self.open.wait()


class NodeClock:
    """The simulation's clock as one process sees it."""

    def __init__(self, clock: VirtualClock, gate: Gate) -> None:
        self.clock = clock
        self.gate = gate

    def now(self) -> datetime:
        return self.clock.now()

    def elapsed(self) -> float:
        return self.clock.elapsed()

    def observe(self, database_now: datetime, sent: float) -> timedelta:
        return self.clock.observe(database_now, sent)

    async def sleep(self, seconds: float) -> None:
        await self.gate.through(self.clock.sleep(seconds))


class NodeRepo:
    """A repository behind the gate: a node may freeze before and after any transaction, which
    takes a moment, and whose answer takes another."""

    def __init__(self, repo: MemoryBatchRepo, clock: NodeClock) -> None:
        self.repo = repo
        self.clock = clock
        self.count = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.repo, name)

        async def run(*args: Any) -> Any:
            self.count += 1
            await self.clock.sleep(0.03 * (self.count % 3))
            try:
                return await method(*args)
            finally:
                await self.clock.sleep(0.04 * (self.count % 5))

        return run


@attrs.define
class Owner(ScriptedOwner):
    """Notes who calls it when. What it does depends on how often it was called, nothing else."""

    world: World
    gate: Gate
    closed: bool = False

    async def call(self, call: BatchCall) -> BatchAnswer:
        key = (call.method.rpartition("/")[2], call.app_code)
        self.world.called(key, call)
        number = len(self.world.calls[key])
        slow = key[0] == "slow"
        hangs = number % (61 if slow else 11) == 0
        clock = self.world.clock
        # The work ends with the deadline, whether or not anybody still waits for it.
        try:
            await clock.sleep(call.timeout if hangs else (0.3 if slow else 0.1) * (number % 7))
        finally:
            self.world.flying[key].discard(call.request_id)
        await self.gate.open.wait()
        if hangs:
            return fails(ReplyKind.TIMEOUT, "DEADLINE_EXCEEDED")
        if number % (67 if slow else 13) == 0:
            return fails()
        return done(10, has_more=slow or number % 3 != 0)


@attrs.define
class Process:
    repo: MemoryBatchRepo
    gate: Gate
    runtime: BatchRuntime
    task: asyncio.Task[None]


@attrs.define
class World:
    clock: VirtualClock = attrs.Factory(VirtualClock)
    tables: BatchTables = attrs.Factory(BatchTables)
    processes: dict[int, Process] = attrs.Factory(dict)
    calls: dict[BatchKey, list[tuple[float, str]]] = attrs.Factory(lambda: defaultdict(list))
    flying: dict[BatchKey, set[str]] = attrs.Factory(lambda: defaultdict(set))
    crowded: list[str] = attrs.Factory(list)
    leaving: list[asyncio.Task[None]] = attrs.Factory(list)
    started: int = 0

    def called(self, key: BatchKey, call: BatchCall) -> None:
        self.calls[key].append((self.clock.elapsed(), call.run_id))
        self.flying[key].add(call.request_id)
        if len(self.flying[key]) > 1:
            self.crowded.append(f"{key} at {self.clock.elapsed()}: {self.flying[key]}")

    def start(self, number: int) -> None:
        self.started += 1
        gate = Gate()
        clock = NodeClock(self.clock, gate)
        repo = MemoryBatchRepo(self.tables, now=self.clock.database_now)
        observer = RecordingObserver()
        drainer = Drainer(
            repo=NodeRepo(repo, clock),
            owners={"user": Owner(self, gate)},
            clock=clock,
            observer=observer,
            jobs=JOBS,
            node=f"n{number}#{self.started}",
            slots=2,
        )
        runtime = BatchRuntime(drainer, clock, observer)
        life = asyncio.create_task(self._life(runtime, clock))
        self.processes[number] = Process(repo, gate, runtime, life)

    async def _life(self, runtime: BatchRuntime, clock: NodeClock) -> None:
        """A process manager: a node that finds no store at its start is started again."""
        while True:
            try:
                return await runtime.run()
            except Unavailable:
                await clock.sleep(1)

    def stop(self, number: int) -> None:
        process = self.processes.pop(number)
        process.gate.open.set()
        process.repo.down = False
        process.runtime.stop()
        self.leaving.append(process.task)

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.repo.down = True
        process.task.cancel()

    async def play(self, script: Sequence[Fault]) -> None:
        for number in range(3):
            self.start(number)
        moves = [move for fault in script for move in fault.moves(self)]
        for at, move in sorted(moves, key=lambda pair: pair[0]):
            await self.clock.advance(max(0.0, at - self.clock.elapsed()))
            move()
        await self.clock.advance(TROUBLE + CALM - self.clock.elapsed())
        for number in list(self.processes):
            self.stop(number)
        await self.clock.advance(15)
        assert all(task.done() for task in self.leaving)
        await asyncio.gather(*self.leaving)


@attrs.frozen
class Fault:
    at: float
    node: int
    kind: str
    span: float

    def moves(self, world: World) -> list[tuple[float, Callable[[], None]]]:
        """What happens when; everything is mended by itself after ``span`` seconds."""
        end = min(self.at + self.span, TROUBLE)
        ways: dict[str, list[tuple[float, Callable[[], None]]]] = {
            "kill": [(self.at, lambda: self._kill(world)), (end, lambda: self._revive(world))],
            "stop": [(self.at, lambda: self._stop(world)), (end, lambda: self._revive(world))],
            "freeze": [(self.at, lambda: self._gate(world, False)),
                       (end, lambda: self._gate(world, True))],
            "cut": [(self.at, lambda: self._down(world, True)),
                    (end, lambda: self._down(world, False))],
            "jump": [(self.at, lambda: world.clock.jump((self.span - 15) * 10))],
        }  # fmt: skip
        if self.kind in ways:
            return ways[self.kind]
        return [(self.at, lambda: self._lose(world, self.kind))]

    def _kill(self, world: World) -> None:
        if self.node in world.processes:
            world.kill(self.node)

    def _stop(self, world: World) -> None:
        if self.node in world.processes:
            world.stop(self.node)

    def _revive(self, world: World) -> None:
        if self.node not in world.processes:
            world.start(self.node)

    def _gate(self, world: World, is_open: bool) -> None:
        if self.node in world.processes:
            gate = world.processes[self.node].gate.open
            gate.set() if is_open else gate.clear()

    def _down(self, world: World, down: bool) -> None:
        if self.node in world.processes:
            world.processes[self.node].repo.down = down

    def _lose(self, world: World, what: str) -> None:
        if self.node in world.processes:
            when, _, method = what.partition(" ")
            repo = world.processes[self.node].repo
            (repo.fail_before if when == "fail" else repo.fail_after_commit)(method)


HONEST = [
    "kill", "stop", "freeze", "cut", "fail acquire", "fail finish", "fail renew", "fail survey",
    "lose acquire", "lose finish", "lose renew",
]  # fmt: skip


def scripts(kinds: list[str]) -> st.SearchStrategy[list[Fault]]:
    times = st.integers(0, int(TROUBLE * 10) - 1).map(lambda n: n / 10)
    spans = st.integers(1, 300).map(lambda n: n / 10)
    fault = st.builds(Fault, times, st.integers(0, 2), st.sampled_from(kinds), spans)
    return st.lists(fault, min_size=1, max_size=14)


def played(script: Sequence[Fault]) -> World:
    async def run() -> World:
        world = World()
        await world.play(script)
        return world

    return asyncio.run(run())


def runs_of(world: World, key: BatchKey) -> list[BatchRun]:
    rows = [run for run in world.tables.runs.values() if run.key == key]
    return sorted(rows, key=lambda run: run.started_at_ms)


def keys() -> list[tuple[BatchKey, float]]:
    return [(key, work.interval.total_seconds()) for work in JOBS for key in work.keys]


def everything_is_closed(world: World) -> None:
    """No run is left open, no lease held, and every call belongs to a run that is on record."""
    assert [run for run in world.tables.runs.values() if run.status is S.RUNNING] == []
    assert [lease for lease in world.tables.leases.values() if lease.owner_node_id] == []
    assert all(run.finished_at_ms is not None for run in world.tables.runs.values())
    for calls in world.calls.values():
        assert {run_id for _, run_id in calls} <= set(world.tables.runs)


def nobody_starved(world: World) -> None:
    """Once the trouble is over every key keeps its rhythm; failures put it off, by little."""
    for key, interval in keys():
        late = [at for at, _ in world.calls[key] if at > TROUBLE + 35]
        assert len(late) >= (CALM - 35) / interval / 4 - 1, (key, late)


@settings(max_examples=settings().max_examples // 12, phases=PHASES)
@given(scripts(HONEST))
@pytest.mark.requirement("B2", "B3")
def test_whatever_fails_a_key_has_one_caller_and_no_interval_two_runs(script: list[Fault]) -> None:
    world = played(script)
    assert world.crowded == []
    everything_is_closed(world)
    nobody_starved(world)
    for key, interval in keys():
        rows = runs_of(world, key)
        for one, two in pairwise(rows):
            assert one.finished_at_ms is not None
            assert one.finished_at_ms <= two.started_at_ms
        whole = [row for row in rows if row.status is not S.ABANDONED]
        for first, one in enumerate(whole):
            for last, two in enumerate(whole[first:]):
                span = (two.started_at_ms - one.started_at_ms) / 1000
                assert last <= span / interval + 1, (key, first, last)


@settings(max_examples=settings().max_examples // 25, phases=PHASES)
@given(scripts([*HONEST, "jump"]))
@pytest.mark.requirement("B2")
def test_a_database_clock_that_jumps_costs_no_more_than_a_second_call_on_record(
    script: list[Fault],
) -> None:
    world = played(script)
    everything_is_closed(world)
    nobody_starved(world)


@settings(max_examples=settings().max_examples // 25, phases=PHASES)
@given(scripts(["stop"]))
@pytest.mark.requirement("B9")
def test_nodes_that_come_and_go_in_order_leave_no_run_abandoned(script: list[Fault]) -> None:
    world = played(script)
    everything_is_closed(world)
    nobody_starved(world)
    assert [run for run in world.tables.runs.values() if run.status is S.ABANDONED] == []
