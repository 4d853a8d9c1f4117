"""The batch side of several nodes on virtual time: rhythm, fairness, take-over, stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import attrs
import pytest

from crontask_core.batch import Drainer
from crontask_core.batch_model import BatchAnswer, BatchCall, BatchJob, BatchRun, ReplyKind
from crontask_core.batch_model import RunStatus as S
from crontask_core.events import BatchRunEnded, PassFailed
from crontask_core.testing import (
    BatchTables,
    MemoryBatchRepo,
    RecordingObserver,
    ScriptedOwner,
    VirtualClock,
)
from crontask_core.testing.batch_repo import done, fails
from crontask_server.batch_runtime import BatchRuntime
from tests.batches import job, ms


class Owner(ScriptedOwner):
    """Takes ``seconds`` for a call and answers by ``plan`` (of the call and how many there were
    for its task and app), within the call's time-out."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds: Callable[[BatchCall], float] = lambda call: 0.05
        self.plan: Callable[[BatchCall, int], BatchAnswer] = lambda call, n: done()
        self.starts: list[tuple[float, str, str]] = []
        self.counts: Counter[tuple[str, str]] = Counter()

    async def answer(self, call: BatchCall) -> BatchAnswer:
        key = (call.method.rpartition("/")[2], call.app_code)
        self.counts[key] += 1
        number = self.counts[key]
        self.starts.append((self.clock.elapsed(), *key))
        seconds = self.seconds(call)
        await self.clock.sleep(min(seconds, call.timeout))
        if seconds > call.timeout:
            return fails(ReplyKind.TIMEOUT, "DEADLINE_EXCEEDED")
        return self.plan(call, number)

    def times(self, name: str, app: str = "lalu") -> list[float]:
        return [at for at, *key in self.starts if key == [name, app]]

    def gaps(self, name: str) -> list[float]:
        """From start to start."""
        return [b - a for a, b in pairwise(self.times(name))]


@attrs.define
class Node:
    runtime: BatchRuntime
    drainer: Drainer
    repo: MemoryBatchRepo
    observer: RecordingObserver
    task: asyncio.Task[None]

    def kill(self) -> None:
        """As kill -9: nothing more is called or written."""
        self.repo.down = True
        self.task.cancel()


@attrs.define
class Farm:
    """Nodes on one store, and one owner of everything."""

    clock: VirtualClock
    jobs: list[BatchJob]
    tables: BatchTables
    owner: Owner
    nodes: list[Node] = attrs.Factory(list)

    async def start(self, *, slots: int = 10, poll: float = 1.0) -> Node:
        observer = RecordingObserver()
        repo = MemoryBatchRepo(self.tables, now=self.clock.database_now)
        drainer = Drainer(
            repo=repo,
            owners={"user": self.owner},
            clock=self.clock,
            observer=observer,
            jobs=self.jobs,
            node=f"n{len(self.nodes) + 1}",
            slots=slots,
        )
        runtime = BatchRuntime(drainer, self.clock, observer, poll)
        node = Node(runtime, drainer, repo, observer, asyncio.create_task(runtime.run()))
        self.nodes.append(node)
        await self.clock.advance(0)
        return node

    def runs(self, name: str = "risk", app: str = "lalu") -> list[BatchRun]:
        rows = [run for run in self.tables.runs.values() if run.key == (name, app)]
        return sorted(rows, key=lambda run: run.started_at_ms)

    def ended(self, status: S) -> list[BatchRunEnded]:
        events = [event for node in self.nodes for event in node.observer.of(BatchRunEnded)]
        return [event for event in events if event.run.status is status]


@contextlib.asynccontextmanager
async def farm(*jobs: BatchJob) -> AsyncIterator[Farm]:
    clock = VirtualClock()
    made = Farm(clock, list(jobs), BatchTables(), Owner(clock))
    try:
        yield made
    finally:
        for node in made.nodes:
            node.task.cancel()
        await asyncio.gather(*(node.task for node in made.nodes), return_exceptions=True)


# -- rhythm ----------------------------------------------------------------------------------------
@pytest.mark.requirement("B2")
async def test_two_nodes_together_run_a_job_once_an_interval() -> None:
    async with farm(job()) as it:
        await it.start()
        await it.clock.advance(2.5)
        await it.start()
        await it.clock.advance(57.4)
        assert it.owner.times("risk") == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55]
        assert {run.status for run in it.runs()} == {S.SUCCEEDED}


@pytest.mark.requirement("B4")
async def test_a_round_drains_until_there_is_no_more_and_adds_up_the_counts() -> None:
    async with farm(job()) as it:
        it.owner.plan = lambda call, n: done(100 if n < 4 else 7, has_more=n < 4, failed=1)
        await it.start()
        await it.clock.advance(1)
        [run] = it.runs()
        assert (run.status, run.batch_count, run.claimed_count) == (S.SUCCEEDED, 4, 307)
        assert (run.success_count, run.failure_count, run.duration_ms) == (303, 4, 200)
        assert it.tables.leases[run.key].failures == 0


@pytest.mark.requirement("B7")
async def test_every_call_says_who_calls_for_whom_and_under_which_run() -> None:
    work = job(extra={"pending_publish_max_age_ms": 120_000})
    async with farm(work) as it:
        it.owner.plan = lambda call, n: done(5, has_more=n == 1)
        await it.start()
        await it.clock.advance(1)
        [run] = it.runs()
        first, second = it.owner.calls
        assert first == BatchCall(
            method="/hyapp.user.v1.UserCronService/risk",
            timeout=3.0,
            request_id=f"{run.run_id}-1",
            app_code="lalu",
            caller="crontask",
            run_id=run.run_id,
            worker_id="n1",
            batch_size=100,
            lock_ttl_ms=30_000,
            extra={"pending_publish_max_age_ms": 120_000},
        )
        assert second == attrs.evolve(first, request_id=f"{run.run_id}-2")


@pytest.mark.requirement("B4")
async def test_an_empty_batch_with_more_ends_the_round_with_a_warning() -> None:
    async with farm(job()) as it:
        it.owner.plan = lambda call, n: done(0, has_more=True)
        await it.start()
        await it.clock.advance(14)
        assert it.owner.times("risk") == [0, 5, 10]
        assert [run.status for run in it.runs()] == [S.SUCCEEDED] * 3
        warning = "no progress: the owner claimed nothing and said there is more"
        assert {event.warning for event in it.ended(S.SUCCEEDED)} == {warning}


@pytest.mark.requirement("B4")
async def test_work_without_end_ends_its_round_by_max_round_and_others_keep_their_rhythm() -> None:
    endless = job("endless", interval=1, timeout=10, lock_ttl=30)
    async with farm(endless, job("other", apps=("lalu", "mimi"))) as it:
        it.owner.seconds = lambda call: 2.0 if "endless" in call.method else 0.05
        it.owner.plan = lambda call, n: done(500, has_more="endless" in call.method)
        await it.start()
        await it.clock.advance(41)
        first = it.runs("endless")[0]
        assert (first.status, first.batch_count, first.duration_ms) == (S.SUCCEEDED, 10, 20_000)
        assert first.error_message == "max_round is up; the owner has more"
        assert it.runs("endless")[1].started_at_ms - ms(20) < 100
        for app in ("lalu", "mimi"):
            assert it.owner.times("other", app) == [0, 5, 10, 15, 20, 25, 30, 35, 40]


@pytest.mark.requirement("B2", "B4")
async def test_a_long_drain_keeps_its_lease_and_no_second_node_joins() -> None:
    work = job(interval=1, timeout=10, lock_ttl=30, max_round=100)
    async with farm(work) as it:
        it.owner.seconds = lambda call: 9.0
        it.owner.plan = lambda call, n: done(500, has_more=n % 10 != 0)
        await it.start()
        await it.start()
        await it.clock.advance(89)
        assert it.owner.most_in_flight == 1
        assert len(it.runs()) == 1
        await it.clock.advance(1.5)
        assert (it.runs()[0].status, it.runs()[0].batch_count) == (S.SUCCEEDED, 10)
        assert it.ended(S.ABANDONED) == []


# -- failures --------------------------------------------------------------------------------------
@pytest.mark.requirement("B3", "B4")
async def test_a_time_out_amid_a_drain_keeps_the_counts_that_came_and_waits_for_the_next_round(
) -> None:  # fmt: skip
    async with farm(job()) as it:
        it.owner.seconds = lambda call: 4.0 if call.request_id.endswith("-3") else 1.0
        it.owner.plan = lambda call, n: done(100, has_more=True)
        await it.start()
        await it.clock.advance(5.01)
        run, second = it.runs()
        assert (run.status, run.batch_count, run.processed_count) == (S.TIMED_OUT, 2, 200)
        assert run.error_message == "DEADLINE_EXCEEDED: scripted"
        assert run.duration_ms == 5_000
        assert it.tables.leases[run.key].failures == 1
        assert second.started_at_ms == ms(5)


@pytest.mark.requirement("B5")
async def test_one_app_that_fails_backs_off_alone_with_a_single_slot() -> None:
    work = job(interval=1, timeout=1, lock_ttl=10, apps=("a", "b", "c"))
    async with farm(work) as it:
        it.owner.plan = lambda call, n: fails() if call.app_code == "a" and n <= 5 else done()
        await it.start(slots=1)
        await it.clock.advance(37.6)
        assert [int(at) for at in it.owner.times("risk", "a")[:7]] == [0, 1, 3, 7, 15, 31, 32]
        for app in ("b", "c"):
            assert len(it.owner.times("risk", app)) == 38


@pytest.mark.requirement("B5")
async def test_an_owner_down_for_an_hour_is_asked_at_most_every_15_minutes_and_then_as_before(
) -> None:  # fmt: skip
    async with farm(job()) as it:
        it.owner.plan = lambda call, n: fails() if it.clock.elapsed() < 3600 else done()
        await it.start()
        await it.clock.advance(3600)
        assert len(it.owner.calls) == 11
        gaps = it.owner.gaps("risk")
        assert gaps == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]
        await it.clock.advance(930)
        assert it.tables.leases[("risk", "lalu")].failures == 0
        last = it.owner.times("risk")[-2:]
        assert round(last[1] - last[0], 3) == 5


async def test_a_rare_job_that_fails_still_runs_at_each_regular_tick() -> None:
    async with farm(job(interval=86_400)) as it:
        it.owner.plan = lambda call, n: fails()
        await it.start(poll=600)
        await it.clock.advance(86_400 * 9 + 1)
        assert it.owner.times("risk") == [86_400 * n for n in range(10)]


# -- many ------------------------------------------------------------------------------------------
async def test_200_jobs_of_5_apps_every_second_all_keep_their_rhythm_on_few_slots() -> None:
    apps = ("a", "b", "c", "d", "e")
    jobs = [job(f"job{n:03}", interval=1, timeout=1, lock_ttl=10, apps=apps) for n in range(200)]
    async with farm(*jobs) as it:
        it.owner.seconds = lambda call: 0.04
        await it.start(slots=25)
        await it.start(slots=25)
        await it.clock.advance(5.99)
        assert it.owner.most_in_flight <= 50
        assert len(it.owner.counts) == 1000
        assert set(it.owner.counts.values()) == {6}


async def test_long_drains_on_every_slot_let_a_short_job_have_its_turn() -> None:
    long = [job(f"long{n}", interval=1, timeout=10, lock_ttl=120) for n in range(4)]
    async with farm(*long, job("short", interval=5)) as it:
        it.owner.seconds = lambda call: 2.0 if "long" in call.method else 0.05
        it.owner.plan = lambda call, n: done(500, has_more="long" in call.method)
        await it.start(slots=4)
        await it.clock.advance(60)
        gaps = it.owner.gaps("short")
        assert len(gaps) >= 8
        assert max(gaps) < 9
        assert it.owner.most_in_flight <= 4


# -- nodes -----------------------------------------------------------------------------------------
@pytest.mark.requirement("B2", "B3")
async def test_when_the_holder_is_killed_another_takes_over_once_the_lease_is_over() -> None:
    async with farm(job(timeout=10)) as it:
        it.owner.seconds = lambda call: 9.0
        first = await it.start()
        second = await it.start()
        await it.clock.advance(1)
        [run] = it.runs()
        holder = first if run.owner_node_id == "n1" else second
        holder.kill()
        await it.clock.advance(28.9)
        assert len(it.runs()) == 1
        await it.clock.advance(1.2)
        lost, taken = it.runs()
        assert (lost.status, lost.finished_at_ms) == (S.ABANDONED, taken.started_at_ms)
        assert taken.owner_node_id != lost.owner_node_id
        assert [event.run.run_id for event in it.ended(S.ABANDONED)] == [lost.run_id]


async def test_a_node_that_loses_the_store_stops_before_its_next_call() -> None:
    async with farm(job(timeout=3, lock_ttl=10, max_round=300)) as it:
        it.owner.seconds = lambda call: 1.0
        it.owner.plan = lambda call, n: done(5, has_more=True)
        first = await it.start()
        await it.clock.advance(0.5)
        second = await it.start()
        first.repo.down = True
        await it.clock.advance(20)
        by_first = [call for call in it.owner.calls if call.worker_id == "n1"]
        started = [at for at, *_ in it.owner.starts]
        last_of_first = started[len(by_first) - 1]
        assert last_of_first + 3 <= 10
        lost, taken = it.runs()
        assert (lost.status, taken.owner_node_id) == (S.ABANDONED, "n2")
        assert it.owner.most_in_flight == 1
        first.repo.down = False
        await it.clock.advance(5)
        assert [e.lost for e in first.observer.of(BatchRunEnded)] == [True]
        assert second.observer.of(PassFailed) == []


async def test_single_errors_of_the_store_do_not_end_a_round_while_its_lease_lasts() -> None:
    async with farm(job(timeout=3, lock_ttl=30, max_round=60)) as it:
        it.owner.seconds = lambda call: 2.0
        it.owner.plan = lambda call, n: done(5, has_more=n < 20)
        node = await it.start()
        node.repo.fail_before("renew", times=3)
        await it.clock.advance(41)
        run = it.runs()[0]
        assert (run.status, run.batch_count) == (S.SUCCEEDED, 20)
        assert it.ended(S.ABANDONED) == []


async def test_a_lost_acknowledgement_of_an_acquisition_costs_no_interval() -> None:
    async with farm(job()) as it:
        node = await it.start()
        await it.clock.advance(1)
        node.repo.fail_after_commit("acquire")
        await it.clock.advance(8)
        statuses = [run.status for run in it.runs()]
        assert statuses == [S.SUCCEEDED, S.ABANDONED, S.SUCCEEDED]
        assert len(it.owner.calls) == 2


async def test_a_lost_acknowledgement_of_an_end_is_no_loss() -> None:
    async with farm(job()) as it:
        node = await it.start()
        node.repo.fail_after_commit("finish")
        await it.clock.advance(6)
        assert [run.status for run in it.runs()] == [S.SUCCEEDED, S.SUCCEEDED]
        assert not any(event.lost for event in node.observer.of(BatchRunEnded))


async def test_a_jump_of_the_database_clock_holds_back_acquiring_for_one_look() -> None:
    async with farm(job()) as it:
        await it.start()
        await it.clock.advance(1)
        it.clock.jump(3600)
        await it.clock.advance(60)
        assert it.ended(S.ABANDONED) == []
        gaps = it.owner.gaps("risk")
        assert min(gaps) > 1
        assert len(gaps) >= 10
        it.clock.jump(-7200)
        before = len(it.owner.calls)
        await it.clock.advance(60)
        assert len(it.owner.calls) - before >= 11
        assert it.ended(S.ABANDONED) == []


# -- stop ------------------------------------------------------------------------------------------
@pytest.mark.requirement("B9")
async def test_a_stop_waits_for_the_call_under_way_and_begins_no_other() -> None:
    async with farm(job(timeout=10), job("other", interval=1)) as it:
        it.owner.seconds = lambda call: 6.0 if "risk" in call.method else 0.01
        it.owner.plan = lambda call, n: done(10, has_more="risk" in call.method)
        node = await it.start()
        await it.clock.advance(1.5)
        node.runtime.stop()
        calls = len(it.owner.calls)
        await it.clock.advance(4.4)
        assert not node.task.done()
        await it.clock.advance(0.4)
        assert node.task.done()
        assert len(it.owner.calls) == calls
        [run] = it.runs()
        assert (run.status, run.batch_count) == (S.SUCCEEDED, 1)
        assert run.error_message == "this node stops"
        assert all(not lease.owner_node_id for lease in it.tables.leases.values())
        assert node.runtime.healthy() is False


@pytest.mark.requirement("B9")
async def test_a_stop_waits_no_longer_than_the_time_out_of_a_call_that_hangs() -> None:
    async with farm(job(timeout=3)) as it:
        it.owner.seconds = lambda call: 100.0
        node = await it.start()
        await it.clock.advance(1)
        node.runtime.stop()
        await it.clock.advance(2.1)
        assert node.task.done()
        assert [run.status for run in it.runs()] == [S.TIMED_OUT]


@pytest.mark.requirement("B9")
async def test_a_round_that_has_called_nobody_is_handed_back_with_its_tick() -> None:
    async with farm(job()) as it:
        repo = MemoryBatchRepo(it.tables, now=it.clock.database_now)
        observer = RecordingObserver()
        drainer = Drainer(
            repo=repo, owners={"user": it.owner}, clock=it.clock, observer=observer,
            jobs=it.jobs, node="n1",
        )  # fmt: skip
        await drainer.prepare()
        await drainer.acquire()
        assert drainer.busy
        drainer.stopping = True
        key = drainer.next_round()
        assert key == ("risk", "lalu")
        await drainer.step(key)
        assert await drainer.settle() == 1
        assert not drainer.busy
        assert (it.owner.calls, it.runs(), observer.of(BatchRunEnded)) == ([], [], [])
        lease = it.tables.leases[key]
        assert (lease.owner_node_id, lease.next_run_at_ms, lease.failures) == ("", ms(0), 0)


@pytest.mark.requirement("B9")
async def test_a_stop_amid_an_acquisition_leaves_nothing_open() -> None:
    class Slow(MemoryBatchRepo):
        async def acquire(self, *args: Any) -> Any:
            got = await super().acquire(*args)
            await it.clock.sleep(0.5)
            return got

    async with farm(job()) as it:
        observer = RecordingObserver()
        drainer = Drainer(
            repo=Slow(it.tables, now=it.clock.database_now), owners={"user": it.owner},
            clock=it.clock, observer=observer, jobs=it.jobs, node="n1",
        )  # fmt: skip
        runtime = BatchRuntime(drainer, it.clock, observer)
        task = asyncio.create_task(runtime.run())
        await it.clock.advance(0.2)
        assert [run.status for run in it.runs()] == [S.RUNNING]
        runtime.stop()
        await it.clock.advance(1)
        assert task.done()
        assert it.runs() == []
        assert it.tables.leases[("risk", "lalu")].owner_node_id == ""


async def test_a_holder_that_learns_it_was_taken_over_makes_no_further_call() -> None:
    async with farm(job(timeout=3, lock_ttl=30, max_round=300)) as it:
        it.owner.seconds = lambda call: 1.0
        it.owner.plan = lambda call, n: done(5, has_more=True)
        first = await it.start()
        await it.clock.advance(2)
        it.clock.jump(3600)
        await it.start()
        await it.clock.advance(40)
        by_first = [call for call in it.owner.calls if call.worker_id == "n1"]
        # It renews for the first time when half of what it can spare is gone.
        assert len(by_first) == 14
        [event] = [e for e in first.observer.of(BatchRunEnded) if e.run.owner_node_id == "n1"]
        assert (event.lost, event.run.status) == (True, S.ABANDONED)
        assert event.warning == "the lease was taken over by another node"


async def test_a_second_signal_ends_at_once_and_another_node_takes_over() -> None:
    async with farm(job(timeout=10)) as it:
        it.owner.seconds = lambda call: 9.0
        node = await it.start()
        await it.clock.advance(1)
        node.runtime.stop_now()
        await it.clock.advance(0.1)
        assert node.task.done()
        await it.start()
        await it.clock.advance(31)
        assert it.runs()[0].status is S.ABANDONED
        assert len(it.runs()) == 2


def test_the_longest_back_off_is_fifteen_minutes() -> None:
    from crontask_core.policy.batches import backoff

    assert backoff(timedelta(seconds=5), 50) == timedelta(minutes=15)
    assert backoff(timedelta(days=366), 500) == timedelta(days=366)
    assert backoff(timedelta(seconds=5), 0) == timedelta(seconds=5)
