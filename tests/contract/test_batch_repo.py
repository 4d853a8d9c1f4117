"""Leases and runs: one holder, one run an interval, and nothing left open behind a dead node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import attrs
import pytest

from crontask_adapters.sql.batch_sql import SqlBatchRepo
from crontask_adapters.sql.repo import SqlRepo
from crontask_core.batch_model import BatchJob, BatchRun, Lease, RunStatus
from crontask_core.batch_ports import BatchRepo, Finished, Renewal, RunFilter, Want
from crontask_core.policy.batches import Acquired, Denied, Finish
from crontask_core.ports import Repo
from crontask_core.testing import BatchTables, MemoryBatchRepo, VirtualClock
from tests.batches import job, ms
from tests.contract.stores import View


@attrs.define
class Batches:
    """Two nodes' views of one store of leases."""

    clock: VirtualClock
    repo: BatchRepo
    other: BatchRepo

    def tick(self, seconds: float) -> None:
        self.clock.tick(seconds)

    async def take(self, work: BatchJob, node: str = "n1", app: str = "lalu") -> Acquired:
        [got] = await self.repo.acquire(node, [Want(job=work, app_code=app)])
        assert isinstance(got, Acquired), got
        return got

    async def refused(self, work: BatchJob, node: str = "n2") -> Denied:
        [got] = await self.other.acquire(node, [Want(job=work, app_code="lalu")])
        assert isinstance(got, Denied), got
        return got

    async def end(
        self,
        work: BatchJob,
        got: Acquired,
        status: RunStatus = RunStatus.SUCCEEDED,
        node: str = "n1",
        **counts: int,
    ) -> Finished:
        run = attrs.evolve(got.run, status=status, **counts)
        finish = Finish(job=work, epoch=got.lease.epoch, tick_ms=got.tick_ms, run=run)
        [done] = await self.repo.finish(node, [finish])
        return done

    async def lease(self, app: str = "lalu") -> Lease:
        survey = await self.other.survey()
        return next(lease for lease in survey.leases if lease.app_code == app)

    async def runs(self) -> list[BatchRun]:
        return list(reversed(await self.other.runs(RunFilter(limit=1000))))


@pytest.fixture
async def batches(view: View, clock: VirtualClock) -> AsyncIterator[Batches]:
    one, two = await view(), await view()
    tables = BatchTables()

    def leases_of(repo: Repo) -> BatchRepo:
        if isinstance(repo, SqlRepo):
            return SqlBatchRepo(repo)
        return MemoryBatchRepo(tables, now=clock.database_now)

    yield Batches(clock, leases_of(one), leases_of(two))
    await one.close()
    await two.close()


RISK = job()


async def test_a_configured_job_gets_a_lease_for_each_app_that_is_due_at_once(
    batches: Batches,
) -> None:
    work = job(apps=("lalu", "mimi"))
    assert await batches.repo.sync([work]) == 2
    assert await batches.other.sync([work]) == 0
    survey = await batches.repo.survey()
    assert survey.now == batches.clock.database_now()
    assert survey.leases == tuple(
        Lease(task_name="risk", app_code=app, updated_at_ms=ms(0), next_run_at_ms=ms(0))
        for app in ("lalu", "mimi")
    )


@pytest.mark.requirement("B2", "B3")
async def test_who_acquires_holds_the_lease_for_its_ttl_and_has_a_run(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    batches.tick(1)
    got = await batches.take(RISK)
    lease = await batches.lease()
    assert lease == got.lease
    assert (lease.owner_node_id, lease.epoch, lease.lease_until_ms) == ("n1", 1, ms(31))
    assert (lease.next_run_at_ms, got.tick_ms, got.abandoned) == (ms(0), ms(0), ())
    assert await batches.runs() == [got.run]
    assert (got.run.status, got.run.started_at_ms) == (RunStatus.RUNNING, ms(1))
    assert (got.run.owner_node_id, got.run.finished_at_ms) == ("n1", None)


@pytest.mark.requirement("B2")
async def test_a_held_lease_is_refused_to_others(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    await batches.take(RISK)
    batches.tick(29)
    assert (await batches.refused(RISK)).lease == await batches.lease()


@pytest.mark.requirement("B2")
async def test_of_many_nodes_that_want_a_lease_at_once_one_gets_it(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    wants = [Want(job=RISK, app_code="lalu")]
    answers = await asyncio.gather(
        *((batches.repo if n % 2 else batches.other).acquire(f"n{n}", wants) for n in range(8))
    )
    got = [answer for [answer] in answers if isinstance(answer, Acquired)]
    assert len(got) == 1
    assert await batches.runs() == [got[0].run]


@pytest.mark.requirement("B2")
async def test_a_release_writes_the_next_tick_so_that_an_interval_has_one_run(
    batches: Batches,
) -> None:
    await batches.repo.sync([RISK])
    batches.tick(1)
    got = await batches.take(RISK)
    batches.tick(0.05)
    done = await batches.end(RISK, got, claimed_count=3, processed_count=3, batch_count=1)
    assert (done.lost, done.run.finished_at_ms) == (False, ms(1.05))
    assert await batches.runs() == [done.run]
    lease = await batches.lease()
    assert lease == done.lease
    assert (lease.owner_node_id, lease.lease_until_ms, lease.epoch) == ("", 0, 1)
    assert (lease.next_run_at_ms, lease.failures) == (ms(5), 0)
    batches.tick(3.94)
    await batches.refused(RISK)
    batches.tick(0.01)
    again = await batches.take(RISK, "n2")
    assert (again.tick_ms, again.lease.epoch) == (ms(5), 2)
    assert again.run.run_id != got.run.run_id


async def test_a_run_longer_than_its_interval_is_followed_at_once(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    batches.tick(12)
    assert (await batches.end(RISK, got)).lease == await batches.lease()
    assert (await batches.lease()).next_run_at_ms == ms(12)


async def test_ticks_missed_while_nobody_was_there_are_not_made_up(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    batches.tick(3600)
    got = await batches.take(RISK)
    assert got.tick_ms == ms(3600)
    await batches.end(RISK, got)
    assert (await batches.lease()).next_run_at_ms == ms(3605)


@pytest.mark.requirement("B2", "B3")
async def test_an_expired_lease_is_taken_over_and_its_run_abandoned(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    lost = await batches.take(RISK)
    batches.tick(29.999)
    await batches.refused(RISK)
    batches.tick(0.001)
    got = await batches.take(RISK, "n2")
    [closed] = got.abandoned
    assert (closed.run_id, closed.status) == (lost.run.run_id, RunStatus.ABANDONED)
    assert (closed.finished_at_ms, closed.duration_ms) == (ms(30), 30_000)
    assert closed.error_message == "taken over by n2"
    assert await batches.runs() == [closed, got.run]
    assert (got.lease.epoch, got.lease.owner_node_id) == (2, "n2")


@pytest.mark.requirement("B2")
async def test_a_holder_that_was_taken_over_can_neither_renew_nor_finish(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    lost = await batches.take(RISK)
    batches.tick(30)
    got = await batches.take(RISK, "n2")
    held = await batches.lease()
    assert await batches.repo.renew("n1", [Renewal(key=RISK.keys[0], epoch=1, ttl_ms=30_000)]) == [
        False
    ]
    done = await batches.end(RISK, lost, processed_count=100)
    assert (done.lost, done.lease, done.run.status) == (True, None, RunStatus.ABANDONED)
    assert await batches.lease() == held
    assert (await batches.runs())[1] == got.run


@pytest.mark.requirement("B2")
async def test_a_renewal_moves_the_end_of_the_lease(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    await batches.take(RISK)
    batches.tick(20)
    renewal = Renewal(key=RISK.keys[0], epoch=1, ttl_ms=30_000)
    assert await batches.repo.renew("n1", [renewal, attrs.evolve(renewal, epoch=2)]) == [
        True,
        False,
    ]
    assert (await batches.lease()).lease_until_ms == ms(50)
    batches.tick(15)
    await batches.refused(RISK)


async def test_a_counter_names_the_generation_however_fast_it_changes(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    first = await batches.take(RISK)
    unsent = Finish(job=RISK, epoch=1, tick_ms=ms(0), run=first.run, unsent=True)
    await batches.repo.finish("n1", [unsent])
    second = await batches.take(RISK)
    assert (second.lease.epoch, second.run.started_at_ms) == (2, first.run.started_at_ms)
    stale = await batches.end(RISK, first)
    assert stale.lost is True
    assert await batches.lease() == second.lease


async def test_a_holder_that_nobody_followed_may_finish_after_its_lease_is_over(
    batches: Batches,
) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    batches.tick(40)
    done = await batches.end(RISK, got)
    assert (done.lost, done.run.status) == (False, RunStatus.SUCCEEDED)


async def test_writing_the_same_end_twice_changes_nothing(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    done = await batches.end(RISK, got, RunStatus.FAILED)
    batches.tick(1)
    again = await batches.end(RISK, got, RunStatus.FAILED)
    assert (again.lost, again.run) == (False, done.run)
    assert await batches.lease() == done.lease


async def test_a_round_that_called_nobody_leaves_no_run_and_its_tick(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    batches.tick(1)
    unsent = Finish(job=RISK, epoch=1, tick_ms=got.tick_ms, run=got.run, unsent=True)
    [done] = await batches.repo.finish("n1", [unsent])
    assert done.lost is False
    assert await batches.runs() == []
    assert (await batches.lease()).next_run_at_ms == ms(0)
    assert (await batches.take(RISK, "n2")).lease.epoch == 2


@pytest.mark.requirement("B5")
async def test_failures_back_off_for_one_app_alone_and_a_success_resets(batches: Batches) -> None:
    work = job(apps=("lalu", "mimi"))
    await batches.repo.sync([work])
    at = 0.0
    for failures, wait in ((1, 5), (2, 10), (3, 20), (4, 40)):
        got = await batches.take(work)
        await batches.end(work, got, RunStatus.TIMED_OUT if failures == 2 else RunStatus.FAILED)
        lease = await batches.lease()
        assert (lease.failures, lease.next_run_at_ms) == (failures, ms(at + wait))
        batches.tick(wait)
        at += wait
    other = await batches.lease("mimi")
    assert (other.failures, other.next_run_at_ms) == (0, ms(0))
    await batches.end(work, await batches.take(work))
    lease = await batches.lease()
    assert (lease.failures, lease.next_run_at_ms) == (0, ms(at + 5))


async def test_a_paused_job_is_not_acquired_and_its_running_run_goes_on(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    [paused, missing] = await batches.other.set_paused([RISK.keys[0], ("no", "no")], True)
    assert paused is not None and paused.paused is True
    assert missing is None
    done = await batches.end(RISK, got)
    assert done.lost is False
    batches.tick(100)
    await batches.refused(RISK)
    assert (await batches.lease()).paused is True
    [resumed] = await batches.other.set_paused([RISK.keys[0]], False)
    assert resumed is not None and resumed.paused is False
    await batches.take(RISK, "n2")


async def test_a_forced_run_ignores_tick_and_pause_but_not_the_lease(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    await batches.end(RISK, await batches.take(RISK))
    await batches.repo.set_paused(RISK.keys, True)
    batches.tick(1)
    forced = [Want(job=RISK, app_code="lalu", forced=True)]
    [got] = await batches.repo.acquire("cli", forced)
    assert isinstance(got, Acquired)
    [denied] = await batches.other.acquire("cli2", forced)
    assert isinstance(denied, Denied)
    await batches.end(RISK, got, node="cli")
    assert (await batches.lease()).next_run_at_ms == ms(5)


async def test_a_lease_nobody_follows_is_closed_after_a_while(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    batches.tick(59)
    assert await batches.other.reap() == []
    batches.tick(1)
    [closed] = await batches.other.reap()
    assert (closed.run_id, closed.status) == (got.run.run_id, RunStatus.ABANDONED)
    assert closed.error_message == "n1 is gone"
    assert (await batches.lease()).owner_node_id == ""
    assert await batches.other.reap() == []
    assert (await batches.end(RISK, got)).lost is True


async def test_a_node_that_forgot_its_lease_gets_it_again_at_once(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    lost = await batches.take(RISK)
    got = await batches.take(RISK)
    assert [run.run_id for run in got.abandoned] == [lost.run.run_id]
    assert got.lease.epoch == 2


async def test_times_no_honest_clock_has_written_are_not_waited_for(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    batches.clock.jump(86_400)
    await batches.take(RISK)
    batches.clock.jump(-86_400)
    got = await batches.take(RISK, "n2")
    assert got.lease.lease_until_ms == ms(30)
    await batches.end(RISK, got, node="n2")
    assert (await batches.lease()).next_run_at_ms <= ms(5)


async def test_a_shorter_interval_takes_effect_at_once(batches: Batches) -> None:
    daily = job(interval=86_400)
    await batches.repo.sync([daily])
    await batches.end(daily, await batches.take(daily))
    assert (await batches.lease()).next_run_at_ms == ms(86_400)
    batches.tick(10)
    assert await batches.repo.sync([RISK]) == 1
    assert (await batches.lease()).next_run_at_ms == ms(15)
    assert await batches.repo.sync([RISK]) == 0


@pytest.mark.requirement("B3")
async def test_runs_are_listed_newest_first_and_filtered(batches: Batches) -> None:
    work = job(apps=("lalu", "mimi"))
    await batches.repo.sync([work])
    first = await batches.end(work, await batches.take(work), RunStatus.FAILED)
    batches.tick(5)
    second = await batches.end(work, await batches.take(work))
    batches.tick(1)
    third = await batches.take(work, app="mimi")
    runs = batches.other.runs
    assert [run.run_id for run in await runs(RunFilter())] == [
        third.run.run_id,
        second.run.run_id,
        first.run.run_id,
    ]
    assert await runs(RunFilter(app_code="mimi")) == [third.run]
    assert await runs(RunFilter(status=RunStatus.FAILED)) == [first.run]
    assert await runs(RunFilter(task_name="no")) == []
    assert await runs(RunFilter(task_name="risk", limit=1)) == [third.run]
    assert await runs(RunFilter(before_ms=ms(6))) == [second.run, first.run]
    last = await batches.other.last_runs([*work.keys, ("no", "no")])
    assert last == {("risk", "lalu"): second.run, ("risk", "mimi"): third.run}


async def test_ended_runs_are_pruned_by_age_and_running_ones_stay(batches: Batches) -> None:
    work = job(apps=("lalu", "mimi"))
    await batches.repo.sync([work])
    running = await batches.take(work, app="mimi")
    for _ in range(3):
        await batches.end(work, await batches.take(work))
        batches.tick(5)
    assert await batches.repo.prune_runs(ms(6), 1) == 1
    assert await batches.repo.prune_runs(ms(6), 10) == 1
    assert await batches.repo.prune_runs(ms(6), 10) == 0
    left = await batches.runs()
    assert [run.started_at_ms for run in left] == [ms(0), ms(10)]
    assert left[0] == running.run


async def test_many_leases_are_acquired_and_finished_together(batches: Batches) -> None:
    apps = tuple(f"app{n:03}" for n in range(120))
    work = job(apps=apps)
    assert await batches.repo.sync([work]) == 120
    wants = [Want(job=work, app_code=app) for app in reversed(apps)]
    got = await batches.repo.acquire("n1", wants)
    assert all(isinstance(answer, Acquired) for answer in got)
    finishes = [
        Finish(
            job=work,
            epoch=1,
            tick_ms=answer.tick_ms,
            run=attrs.evolve(answer.run, status=RunStatus.SUCCEEDED),
        )
        for answer in got
        if isinstance(answer, Acquired)
    ]
    done = await batches.repo.finish("n1", finishes)
    assert [d.run.app_code for d in done] == list(reversed(apps))
    assert not any(d.lost for d in done)


async def test_an_error_text_longer_than_its_column_is_cut(batches: Batches) -> None:
    await batches.repo.sync([RISK])
    got = await batches.take(RISK)
    text = "出错 🚨 " * 200
    run = attrs.evolve(got.run, status=RunStatus.FAILED, error_message=text[:512])
    finish = Finish(job=RISK, epoch=1, tick_ms=got.tick_ms, run=run)
    await batches.repo.finish("n1", [finish])
    assert (await batches.runs())[0].error_message == text[:512]
