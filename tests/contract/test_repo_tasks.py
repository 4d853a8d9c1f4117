"""Storing tasks: get-or-create, look-ups, counting, and runs on demand."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import attrs
import pytest

from crontask_core.model import (
    Delivery,
    ExecStatus,
    MisfirePolicy,
    OverlapPolicy,
    TaskStatus,
    TriggerKind,
    fire_id_of,
)
from crontask_core.policy import Delete, Pause, Update
from crontask_core.ports import TaskRef
from tests.builders import T0, at, cron, every, once, utc
from tests.contract.world import World, bad, good, run_request

CHINESE = '查询 DNFM 过去7天 CPA 数据，CPA>100 则截图 📸\n\t参数：{"game": "DNFM"} \'\\ %_ "'


async def test_a_task_comes_back_exactly_as_it_was_given(world: World) -> None:
    task = every(
        "every-field",
        user_id="josetian",
        conversation_id="conv_abc123",
        task_name="DNFM CPA异常监控 🔔",
        task_desc="desc — 描述",
        task_content=CHINESE,
        trigger_time=None,
        timezone="America/New_York",
        anchor_at=utc("2026-03-02 01:00:00.123456"),
        next_fire_time=utc("2026-03-02 01:10:00.123456"),
        end_at=utc("2027-01-01 00:00:00.000001"),
        max_fires=7,
        callback_url="https://agent.example:8443/v1/task/execute?x=1",
        max_retry=0,
        retry_interval=100,
        misfire_policy=MisfirePolicy.RUN_ALL,
        misfire_grace_ms=0,
        overlap_policy=OverlapPolicy.SKIP,
        delivery=Delivery.AT_MOST_ONCE,
        report_timeout_ms=90_000,
        pause_after_failures=3,
        create_digest="d" * 64,
        created_at=utc("2026-03-02 00:59:59.999999"),
        updated_at=utc("2026-03-02 00:59:59.999999"),
    )
    stored = await world.add_one(task)
    assert stored.id > 0
    assert stored == attrs.evolve(task, id=stored.id)
    assert await world.task(stored) == stored


async def test_a_one_off_and_a_cron_task_come_back_exactly_as_given(world: World) -> None:
    one_off, by_cron = once("o", utc("2026-03-02 09:00:00.5")), cron("c", "0 9 * * 1-5", at(days=1))
    stored = await world.add(one_off, by_cron)
    assert [attrs.evolve(t, id=0) for t in stored] == [one_off, by_cron]
    assert [await world.task(t) for t in stored] == stored


@pytest.mark.requirement("A2.3a")
async def test_sixty_kilobytes_of_content_are_kept_byte_for_byte(world: World) -> None:
    content = "数据📈" * 6_000 + "\r\n end \n"
    assert 60_000 < len(content.encode()) < 61_440
    stored = await world.add_one(every(task_content=content))
    assert (await world.task(stored)).task_content == content


# -- the key is the idempotency key ----------------------------------------------------------------


@pytest.mark.requirement("A3.1a")
async def test_a_taken_key_returns_the_stored_task_and_overwrites_nothing(world: World) -> None:
    first = await world.add_one(every("k", task_name="first"))
    [again] = await world.repo.add_tasks([every("k", seconds=60, task_name="second")])
    assert again.created is False
    assert again.task == first
    assert (await world.task(first)).task_name == "first"


@pytest.mark.requirement("A3.1a")
async def test_tasks_are_added_in_the_order_given_and_a_key_twice_in_a_list_is_one_task(
    world: World,
) -> None:
    added = await world.repo.add_tasks([every("a"), every("b"), every("a"), every("c")])
    assert [(a.task.task_key, a.created) for a in added] == [
        ("a", True),
        ("b", True),
        ("a", False),
        ("c", True),
    ]
    ids = [a.task.id for a in added]
    assert ids[0] == ids[2]
    assert ids[0] < ids[1] < ids[3]


@pytest.mark.requirement("A3.1a")
async def test_many_concurrent_creates_of_one_key_make_one_task(world: World) -> None:
    answers = await asyncio.gather(
        *(
            (world.repo if n % 2 else world.other).add_tasks([every("k", task_name=f"try {n}")])
            for n in range(20)
        )
    )
    added = [a for [a] in answers]
    assert sum(a.created for a in added) == 1
    assert len({a.task.id for a in added}) == 1
    assert len({a.task.task_name for a in added}) == 1


@pytest.mark.requirement("A3.1a")
async def test_concurrent_lists_with_the_same_keys_in_other_orders_do_not_hinder_each_other(
    world: World,
) -> None:
    keys = [f"k{n}" for n in range(10)]
    answers = await asyncio.gather(
        world.repo.add_tasks([every(k) for k in keys]),
        world.other.add_tasks([every(k) for k in reversed(keys)]),
    )
    assert sum(a.created for added in answers for a in added) == 10
    ids = [{a.task.task_key: a.task.id for a in added} for added in answers]
    assert ids[0] == ids[1]


async def test_a_key_belongs_to_one_user(world: World) -> None:
    mine, hers = await world.add(every("k", user_id="ann"), every("k", user_id="bea"))
    assert mine.id != hers.id
    rows = [await world.repo.get_tasks(user, [TaskRef(key="k")]) for user in ("ann", "bea", "cy")]
    assert [row.task.id if row else None for [row] in rows] == [mine.id, hers.id, None]


@pytest.mark.requirement("X-T0")
@pytest.mark.parametrize("other", ["Report", "report\u0301", "repórt", "reporｔ", "report-"])
async def test_keys_are_compared_by_bytes(world: World, other: str) -> None:
    plain, unlike = await world.add(every("report"), every(other))
    assert plain.id != unlike.id
    [row] = await world.repo.get_tasks("ann", [TaskRef(key=other)])
    assert row is not None
    assert (row.task.id, row.task.task_key) == (unlike.id, other)


@pytest.mark.requirement("X-T0")
async def test_users_are_compared_by_bytes(world: World) -> None:
    await world.add(every("k", user_id="Ann"))
    assert await world.repo.get_tasks("ann", [TaskRef(key="k")]) == [None]
    assert await world.repo.count_tasks("ann") == 0


@pytest.mark.requirement("A3.1a")
async def test_a_key_stays_taken_when_its_task_is_completed(world: World) -> None:
    done = await world.add_one(once("k", at(minutes=1)))
    world.tick(minutes=60)
    await world.claim()
    assert await world.status(done) is TaskStatus.COMPLETED
    [again] = await world.repo.add_tasks([once("k", at(days=1))])
    assert (again.created, again.task.id) == (False, done.id)


@pytest.mark.requirement("A3.1b")
async def test_a_deleted_task_frees_its_key_and_is_found_by_id_only(world: World) -> None:
    old = await world.add_one(every("k"))
    await world.edit(old, Delete())
    assert await world.repo.get_tasks("ann", [TaskRef(key="k")]) == [None]
    new = await world.add_one(every("k"))
    assert new.id != old.id
    await world.edit(new, Delete())
    newer = await world.add_one(every("k"))
    rows = await world.repo.get_tasks("ann", [TaskRef(key="k"), TaskRef(id=old.id)])
    assert [row.task.id if row else None for row in rows] == [newer.id, old.id]
    assert [(await world.task(t)).tombstone for t in (old, new, newer)] == [old.id, new.id, 0]


# -- look-ups --------------------------------------------------------------------------------------


async def test_another_users_task_and_no_task_look_alike(world: World) -> None:
    task = await world.add_one(every("k", user_id="bea"))
    refs = [TaskRef(id=task.id), TaskRef(key="k"), TaskRef(id=task.id + 999)]
    assert await world.repo.get_tasks("ann", refs) == [None, None, None]
    [row] = await world.repo.get_tasks(None, [TaskRef(id=task.id)])
    assert row is not None
    assert row.task == task


async def test_many_look_ups_answer_in_the_order_asked(world: World) -> None:
    a, b = await world.add(every("a"), every("b"))
    refs = [TaskRef(key="b"), TaskRef(id=a.id), TaskRef(key="nope"), TaskRef(id=a.id)]
    rows = await world.repo.get_tasks("ann", refs)
    assert [row.task.id if row else None for row in rows] == [b.id, a.id, None, a.id]
    assert await world.repo.get_tasks("ann", []) == []


@pytest.mark.requirement("X-T4")
async def test_a_task_comes_with_its_newest_execution(world: World) -> None:
    task = await world.add_one(every())
    [before] = await world.repo.get_tasks("ann", [TaskRef(id=task.id)])
    assert before is not None
    assert before.last is None
    for _ in range(2):
        world.tick(minutes=10)
        await world.claim()
    [row] = await world.repo.get_tasks("ann", [TaskRef(id=task.id)])
    assert row is not None
    assert row.last is not None
    assert row.last.fire_time == at(minutes=20)
    assert row.last.exec_status is ExecStatus.CALLING


@pytest.mark.requirement("X-T3")
async def test_enabled_and_disabled_tasks_are_counted(world: World) -> None:
    tasks = await world.add(every("a"), every("b"), every("c"), once("d", at(minutes=1)))
    await world.add(every("e", user_id="bea"))
    await world.edit(tasks[0], Pause())
    await world.edit(tasks[1], Delete())
    assert await world.repo.count_tasks("ann") == 3
    world.tick(minutes=60)
    await world.claim()  # the one-off is too late and completed
    assert await world.repo.count_tasks("ann") == 2
    assert await world.repo.count_tasks("nobody") == 0


@pytest.mark.requirement("A3.1a")
async def test_similar_tasks_have_the_same_user_name_and_schedule(world: World) -> None:
    like = [every(f"k{n}", task_name="Daily report") for n in range(5)]
    unlike = [
        every("o", task_name="Daily Report"),
        every("p", task_name="Daily report", seconds=601),
        every("q", task_name="Daily report", timezone="UTC"),
        every("r", task_name="Daily report", user_id="bea"),
    ]
    stored = await world.add(*unlike, *like)
    await world.edit(stored[4], Pause())
    found = await world.repo.similar_tasks(every("new", task_name="Daily report", anchor_at=at()))
    assert len(found) == 3
    assert {t.task_key for t in found} <= {"k1", "k2", "k3", "k4"}
    assert await world.repo.similar_tasks(every("new", task_name="other")) == []
    one_off = await world.add_one(once("w", at(hours=1), task_name="Daily report"))
    same = once("new", at(hours=1), task_name="Daily report")
    assert await world.repo.similar_tasks(same) == [one_off]


async def test_a_task_is_not_similar_to_itself(world: World) -> None:
    task = await world.add_one(every("k"))
    assert await world.repo.similar_tasks(task) == []


async def test_a_task_that_cannot_be_worked_on_is_set_aside_with_the_reason(world: World) -> None:
    broken, fine, over = await world.add(every("a"), every("b"), every("c"))
    await world.edit(over, Delete())
    await world.repo.set_aside([broken.id, over.id, 999_999], "the row cannot be read")
    after = await world.task(broken)
    assert (after.status, after.next_fire_time) == (TaskStatus.DISABLED, None)
    assert after.status_reason == "the row cannot be read"
    assert await world.task(fine) == fine
    assert await world.status(over) is TaskStatus.DELETED


# -- run now ---------------------------------------------------------------------------------------


async def test_a_run_on_demand_is_a_waiting_fire_beside_the_schedule(world: World) -> None:
    task = await world.add_one(every())
    world.tick(minutes=3)
    fired = await world.run_now(task)
    assert fired.created is True
    execution = fired.execution
    assert (execution.trigger_kind, execution.exec_status) == (
        TriggerKind.MANUAL,
        ExecStatus.PENDING,
    )
    assert (execution.fire_time, execution.fire_number) == (at(minutes=3), 1)
    assert execution.fire_id == fire_id_of(task.uid, TriggerKind.MANUAL, at(minutes=3))
    assert await world.execution(execution) == execution
    after = await world.task(task)
    assert (after.fire_count, after.scheduled_fires) == (1, 0)
    assert (after.next_fire_time, after.revision) == (at(minutes=10), 1)
    [(begun, _)] = (await world.begin()).started
    assert (begun.id, begun.exec_status) == (execution.id, ExecStatus.CALLING)


async def test_two_runs_at_one_instant_are_two_fires_a_microsecond_apart(world: World) -> None:
    task = await world.add_one(every())
    ref = TaskRef(id=task.id)
    answers = await world.repo.fire_now([run_request(None, ref)] * 3)
    fires = [good(answer).execution for answer in answers]
    assert [f.fire_time - T0 for f in fires] == [timedelta(microseconds=n) for n in range(3)]
    assert len({f.fire_id for f in fires}) == 3
    assert [f.fire_number for f in fires] == [1, 2, 3]
    assert (await world.task(task)).fire_count == 3


async def test_a_run_with_a_key_happens_once(world: World) -> None:
    task = await world.add_one(every())
    first = await world.run_now(task, "button-1")
    world.tick(seconds=5)
    again = await world.run_now(task, "button-1")
    other = await world.run_now(task, "button-2")
    assert (first.created, again.created, other.created) == (True, False, True)
    assert again.execution == first.execution
    assert other.execution.id != first.execution.id
    assert (await world.task(task)).fire_count == 2


async def test_concurrent_runs_with_one_key_are_one_fire(world: World) -> None:
    task = await world.add_one(every())
    request = run_request("ann", TaskRef(key="tick"), "same")
    answers = await asyncio.gather(
        *((world.repo if n % 2 else world.other).fire_now([request]) for n in range(10))
    )
    fires = [good(answer) for [answer] in answers]
    assert sum(f.created for f in fires) == 1
    assert len({f.execution.id for f in fires}) == 1
    assert len(await world.executions(task)) == 1


async def test_concurrent_runs_without_a_key_are_all_different(world: World) -> None:
    task = await world.add_one(every())
    request = run_request("ann", TaskRef(key="tick"))
    await asyncio.gather(
        *((world.repo if n % 2 else world.other).fire_now([request]) for n in range(10))
    )
    rows = await world.executions(task)
    assert len({e.fire_time for e in rows}) == 10
    assert sorted(e.fire_number for e in rows) == list(range(1, 11))


async def test_a_paused_task_can_be_run_on_demand(world: World) -> None:
    task = await world.add_one(every())
    await world.edit(task, Pause())
    await world.run_now(task)
    [(begun, _)] = (await world.begin()).started
    assert begun.trigger_kind is TriggerKind.MANUAL
    assert await world.status(task) is TaskStatus.DISABLED


async def test_a_completed_or_deleted_task_cannot_be_run_but_a_known_key_still_answers(
    world: World,
) -> None:
    task = await world.add_one(once("k", at(minutes=1)))
    kept = await world.run_now(task, "before")
    world.tick(minutes=60)
    await world.claim()
    for edit in (None, Delete()):
        if edit is not None:
            await world.edit(task, edit)
        ref = TaskRef(id=task.id)
        new, known = await world.repo.fire_now(
            [run_request("ann", ref), run_request("ann", ref, "before")]
        )
        assert bad(new).code == "INVALID_STATE"
        assert (good(known).created, good(known).execution.id) == (False, kept.execution.id)


async def test_an_unknown_or_foreign_task_is_not_run_and_the_others_are(world: World) -> None:
    mine, hers = await world.add(every("a"), every("b", user_id="bea"))
    answers = await world.repo.fire_now(
        [
            run_request("ann", TaskRef(id=hers.id)),
            run_request("ann", TaskRef(key="nope")),
            run_request("ann", TaskRef(id=mine.id)),
        ]
    )
    assert [bad(a).code for a in answers[:2]] == ["TASK_NOT_FOUND", "TASK_NOT_FOUND"]
    assert good(answers[2]).created is True
    assert await world.executions(hers) == []


@pytest.mark.requirement("X-S6")
async def test_runs_on_demand_do_not_use_up_max_fires(world: World) -> None:
    task = await world.add_one(every(max_fires=1))
    await world.run_now(task)
    await world.run_now(task)
    world.tick(minutes=10)
    await world.claim()
    scheduled = [e for e in await world.executions(task) if e.trigger_kind is TriggerKind.SCHEDULE]
    assert [(e.fire_time, e.fire_number) for e in scheduled] == [(at(minutes=10), 3)]
    after = await world.task(task)
    assert (after.fire_count, after.scheduled_fires, after.next_fire_time) == (3, 1, None)


async def test_an_edit_between_does_not_make_a_run_lose_its_count(world: World) -> None:
    task = await world.add_one(every())
    await asyncio.gather(
        *(world.repo.fire_now([run_request("ann", TaskRef(id=task.id))]) for _ in range(5)),
        world.try_edit(task, Update((("task_name", "renamed"),))),
    )
    after = await world.task(task)
    assert (after.fire_count, after.task_name, after.revision) == (5, "renamed", 2)
