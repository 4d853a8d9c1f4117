"""The use cases as callers meet them: create, update, list, pause, resume, delete, preview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from crontask_core.errors import Conflict, CrontaskError, InvalidInput, NotFound, QuotaExceeded
from crontask_core.model import ExecStatus, NewTask, Rules, ScheduleType, TaskStatus
from crontask_core.ports import TaskFilter, TaskRef
from tests.world import AGENT, World

WEEKDAYS = {"cron_expr": "0 9 * * 1-5"}


def new(**fields: object) -> NewTask:
    given = {"task_name": "n", "task_content": "do it", "conversation_id": "c", **fields}
    return NewTask(**given)  # type: ignore[arg-type]


@pytest.mark.requirement("A4.2b")
async def test_a_create_says_when_it_fires_next_in_words_and_that_nobody_is_there_to_fire() -> None:
    world = World()

    answer = await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))

    assert answer.created
    assert answer.words == "at 09:00 on Monday to Friday (Asia/Shanghai)"
    assert answer.next_fires == (
        datetime(2026, 3, 3, 1, 0, tzinfo=UTC),
        datetime(2026, 3, 4, 1, 0, tzinfo=UTC),
        datetime(2026, 3, 5, 1, 0, tzinfo=UTC),
    )
    assert not answer.alive
    assert "No live node" in answer.warnings[0]


async def test_with_a_live_node_a_create_says_that_it_will_be_fired() -> None:
    world = World()
    await world.node()

    answer = await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))

    assert answer.alive
    assert answer.warnings == ()


@pytest.mark.requirement("A3.1a")
async def test_creating_again_with_equal_arguments_returns_the_stored_task() -> None:
    world = World()
    first = await world.tasks.create("ann", new(task_key="k", delay_seconds=600))
    world.clock.tick(3600)

    again = await world.tasks.create("ann", new(task_key="k", delay_seconds=600))

    assert not again.created
    assert again.task.id == first.task.id


@pytest.mark.requirement("A3.1a")
async def test_creating_again_with_other_arguments_is_a_conflict_that_names_them() -> None:
    world = World()
    await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))

    with pytest.raises(Conflict) as caught:
        await world.tasks.create("ann", new(task_key="k", task_content="else", **WEEKDAYS))

    assert caught.value.code == "TASK_KEY_CONFLICT"
    assert caught.value.candidates == ("task_content",)


@pytest.mark.requirement("A3.1a")
async def test_two_users_may_use_one_key() -> None:
    world = World()

    ann = await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))
    bob = await world.tasks.create("bob", new(task_key="k", **WEEKDAYS))

    assert bob.created
    assert ann.task.id != bob.task.id


@pytest.mark.requirement("A3.1b")
async def test_a_deleted_task_frees_its_key_and_deleting_again_says_already() -> None:
    world = World()
    first = await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))
    await world.tasks.delete("ann", TaskRef(key="k"))

    again = await world.tasks.delete("ann", TaskRef(id=first.task.id))
    second = await world.tasks.create("ann", new(task_key="k", **WEEKDAYS))

    assert again.already
    assert again.task.status is TaskStatus.DELETED
    assert second.task.id != first.task.id


@pytest.mark.requirement("A3.1a")
async def test_a_task_without_key_that_looks_like_another_gets_a_warning() -> None:
    world = World()
    await world.tasks.create("ann", new(**WEEKDAYS))

    twin = await world.tasks.create("ann", new(**WEEKDAYS))

    assert twin.created
    assert twin.warnings[0] == (
        "You have an enabled task with this name and schedule: id 1, key auto-1."
    )


@pytest.mark.requirement("A2.1b")
async def test_a_time_at_most_a_minute_past_fires_at_once_and_an_older_one_is_refused() -> None:
    world = World()
    await world.node()

    await world.create("late", trigger_time="2026-03-02T08:59:30")
    with pytest.raises(InvalidInput) as caught:
        await world.create("past", trigger_time="2026-03-02T08:58:30")
    await world.run()

    assert [call.task_key for call in world.agent.calls] == ["late"]
    assert caught.value.code == "TIME_IN_PAST"
    assert "2026-03-02T08:58:30+08:00" in caught.value.message
    assert "2026-03-02T09:00:00+08:00" in caught.value.message
    await world.create("past", trigger_time=caught.value.example)


@pytest.mark.requirement("A2.1a")
@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({}, "MISSING_ARGUMENT", "cron_expr"),
        ({"schedule_type": 1}, "MISSING_ARGUMENT", "delay_seconds"),
        ({"schedule_type": 2}, "MISSING_ARGUMENT", "cron_expr"),
        ({"schedule_type": 3}, "MISSING_ARGUMENT", "interval_seconds"),
        ({"schedule_type": 4}, "INVALID_ARGUMENT", "schedule_type"),
        (
            {"schedule_type": 1, "delay_seconds": 5, "trigger_time": "2027-01-01T00:00:00Z"},
            "INVALID_ARGUMENT",
            "trigger_time",
        ),
        ({"schedule_type": 1, "cron_expr": "* * * * *"}, "INVALID_ARGUMENT", "schedule_type"),
        ({"schedule_type": 2, "delay_seconds": 5}, "INVALID_ARGUMENT", "schedule_type"),
        ({"delay_seconds": 5, "cron_expr": "* * * * *"}, "INVALID_ARGUMENT", "schedule_type"),
        ({"delay_seconds": 5, "max_fires": 2}, "INVALID_ARGUMENT", "max_fires"),
        ({"delay_seconds": -5}, "INVALID_ARGUMENT", "delay_seconds"),
        ({"interval_seconds": 0}, "INVALID_ARGUMENT", "interval_seconds"),
        ({**WEEKDAYS, "timezone": "Asia/Shangai"}, "UNKNOWN_TIMEZONE", "timezone"),
        ({**WEEKDAYS, "max_retry": 21}, "INVALID_ARGUMENT", "max_retry"),
        ({**WEEKDAYS, "retry_interval_ms": 50}, "INVALID_ARGUMENT", "retry_interval_ms"),
        ({**WEEKDAYS, "misfire_policy": "fire_once"}, "INVALID_ARGUMENT", "misfire_policy"),
        ({**WEEKDAYS, "overlap_policy": "queue"}, "INVALID_ARGUMENT", "overlap_policy"),
        ({**WEEKDAYS, "max_fires": 0}, "INVALID_ARGUMENT", "max_fires"),
        ({**WEEKDAYS, "end_at": "2026-03-02T09:30:00"}, "NEVER_FIRES", "end_at"),
        ({**WEEKDAYS, "task_key": " k"}, "INVALID_ARGUMENT", "task_key"),
        ({**WEEKDAYS, "task_key": "k" * 129}, "INVALID_ARGUMENT", "task_key"),
        ({**WEEKDAYS, "task_name": "  "}, "MISSING_ARGUMENT", "task_name"),
        ({**WEEKDAYS, "task_name": "n" * 257}, "INVALID_ARGUMENT", "task_name"),
        ({**WEEKDAYS, "task_content": "界" * 20_481}, "INVALID_ARGUMENT", "task_content"),
        ({**WEEKDAYS, "task_content": "a\x00b"}, "INVALID_ARGUMENT", "task_content"),
        ({**WEEKDAYS, "conversation_id": "c" * 129}, "INVALID_ARGUMENT", "conversation_id"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_field_and_stores_nothing(
    fields: dict[str, object], code: str, field: str
) -> None:
    world = World()

    with pytest.raises(CrontaskError) as caught:
        await world.tasks.create("ann", new(**fields))

    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.hint
    assert (await world.tasks.list(TaskFilter(user_id=None))).total == 0


@pytest.mark.requirement("A2.3a", "X-T0")
async def test_60_kb_of_chinese_is_stored_byte_for_byte() -> None:
    world = World()
    text = "界" * 20_480

    answer = await world.tasks.create("ann", new(task_content=text, **WEEKDAYS))

    assert answer.task.task_content == text


@pytest.mark.requirement("A2.3a")
async def test_content_that_leans_on_a_conversation_or_says_when_to_run_gets_a_warning() -> None:
    world = World()
    await world.node()

    leaning = await world.tasks.create("ann", new(task_content="Do as discussed", **WEEKDAYS))
    timed = await world.tasks.create("ann", new(task_content="每天 9 点查 CPA", **WEEKDAYS))

    assert "refers to a conversation" in leaning.warnings[0]
    assert "says when to run" in timed.warnings[0]


@pytest.mark.requirement("X-T3")
async def test_quotas_are_refused_with_the_limit_in_the_message() -> None:
    rules = Rules(default_callback_url=AGENT, tasks_per_user=2)
    world = World(rules)
    await world.create("a", **WEEKDAYS)
    await world.create("b", **WEEKDAYS)

    with pytest.raises(QuotaExceeded) as many:
        await world.create("c", **WEEKDAYS)
    with pytest.raises(QuotaExceeded) as often:
        await world.create("d", user="bob", interval_seconds=30)

    assert "2 enabled or disabled tasks" in many.value.message
    assert often.value.code == "TOO_FREQUENT"
    assert often.value.example == "60"
    await world.create("e", user="bob", **WEEKDAYS)


@pytest.mark.requirement("X-F6")
async def test_a_create_from_inside_a_run_is_warned_about_or_refused() -> None:
    warned = World()
    answer = await warned.tasks.create("ann", new(**WEEKDAYS), nested=True)
    refusing = World(Rules(default_callback_url=AGENT, nested_creates="refuse"))
    with pytest.raises(Conflict) as caught:
        await refusing.tasks.create("ann", new(**WEEKDAYS), nested=True)

    assert "This task is created from inside a run of another task." in answer.warnings
    assert caught.value.code == "RECURSION_BLOCKED"


async def test_without_any_callback_address_a_create_says_which_setting_is_missing() -> None:
    world = World(Rules(default_callback_url=""))

    with pytest.raises(InvalidInput) as caught:
        await world.tasks.create("ann", new(**WEEKDAYS))

    # Over MCP an address of one's own is refused: only the setting helps.
    assert caught.value.field == "executor.default_callback_url"
    assert "executor.default_callback_url" in caught.value.message


async def test_a_dry_run_stores_nothing() -> None:
    world = World()

    answer = await world.tasks.create("ann", new(**WEEKDAYS), dry_run=True)

    assert answer.dry_run
    assert len(answer.next_fires) == 3
    assert (await world.tasks.list(TaskFilter(user_id="ann"))).total == 0


@pytest.mark.requirement("X-T1")
async def test_an_update_changes_only_what_is_given_and_computes_forward() -> None:
    world = World()
    before = await world.create("k", max_retry=7, **WEEKDAYS)
    world.clock.tick(86_400)

    answer = await world.tasks.update("ann", TaskRef(key="k"), {"cron_expr": "30 10 * * *"})

    assert answer.changed == ("cron_expr", "next_fire_time")
    assert answer.task.max_retry == 7
    assert answer.task.revision == before.revision + 1
    assert answer.next_fires[0] == datetime(2026, 3, 3, 2, 30, tzinfo=UTC)


@pytest.mark.requirement("X-T1")
async def test_setting_an_equal_schedule_changes_nothing_not_even_the_phase() -> None:
    world = World()
    before = await world.create("k", interval_seconds=3600)
    world.clock.tick(600)

    answer = await world.tasks.update("ann", TaskRef(key="k"), {"interval_seconds": 3600})

    assert answer.already
    assert answer.task.next_fire_time == before.next_fire_time


@pytest.mark.requirement("X-S5")
async def test_an_interval_keeps_its_phase_when_a_pass_is_late() -> None:
    world = World()
    await world.node()
    await world.create("k", interval_seconds=60)
    world.clock.tick(67)
    await world.run()

    assert [c.fire_time for c in world.agent.calls] == [datetime(2026, 3, 2, 1, 1, tzinfo=UTC)]
    assert (await world.task("k")).next_fire_time == datetime(2026, 3, 2, 1, 2, tzinfo=UTC)


@pytest.mark.requirement("X-T1")
async def test_an_update_with_a_stale_revision_is_refused_with_the_current_one() -> None:
    world = World()
    await world.create("k", **WEEKDAYS)
    await world.tasks.update("ann", TaskRef(key="k"), {"task_name": "x"}, revision=1)

    with pytest.raises(Conflict) as caught:
        await world.tasks.update("ann", TaskRef(key="k"), {"task_name": "y"}, revision=1)

    assert (caught.value.code, caught.value.example) == ("REVISION_CONFLICT", "2")


async def test_a_one_off_can_become_a_cron_task_and_back() -> None:
    world = World()
    await world.create("k", delay_seconds=600)

    cron = await world.tasks.update("ann", TaskRef(key="k"), {"cron_expr": "0 12 * * *"})
    once = await world.tasks.update("ann", TaskRef(key="k"), {"delay_seconds": 60})

    assert cron.task.schedule_type is ScheduleType.CRON
    assert cron.task.trigger_time is None
    assert once.task.schedule_type is ScheduleType.ONCE
    assert once.task.cron_expr == ""
    assert once.next_fires == (datetime(2026, 3, 2, 1, 1, tzinfo=UTC),)


async def test_only_the_zone_changes_and_the_wall_time_stays() -> None:
    world = World()
    await world.create("k", **WEEKDAYS)

    answer = await world.tasks.update("ann", TaskRef(key="k"), {"timezone": "Europe/Berlin"})

    assert answer.words == "at 09:00 on Monday to Friday (Europe/Berlin)"
    assert answer.next_fires[0] == datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


async def test_optional_fields_are_cleared_by_name() -> None:
    world = World()
    await world.create("k", max_fires=5, end_at="2027-01-01T00:00:00", **WEEKDAYS)

    answer = await world.tasks.update("ann", TaskRef(key="k"), {}, unset=["max_fires", "end_at"])

    assert (answer.task.max_fires, answer.task.end_at) == (None, None)


@pytest.mark.requirement("A2.2")
async def test_pause_and_resume_are_idempotent_and_resume_looks_forward_only() -> None:
    world = World()
    await world.create("k", cron_expr="*/5 * * * *")
    await world.tasks.pause("ann", TaskRef(key="k"), "holiday")
    again = await world.tasks.pause("ann", TaskRef(key="k"))
    world.clock.tick(3600)

    resumed = await world.tasks.resume("ann", TaskRef(key="k"))
    once_more = await world.tasks.resume("ann", TaskRef(key="k"))

    assert again.already
    assert resumed.next_fires[0] == datetime(2026, 3, 2, 2, 5, tzinfo=UTC)
    assert once_more.already
    assert await world.executions("k") == []


@pytest.mark.requirement("A2.2")
async def test_a_one_off_whose_time_passed_while_paused_cannot_be_resumed_until_updated() -> None:
    world = World()
    await world.create("k", delay_seconds=60)
    await world.tasks.pause("ann", TaskRef(key="k"))
    world.clock.tick(3600)

    with pytest.raises(Conflict) as caught:
        await world.tasks.resume("ann", TaskRef(key="k"))
    await world.tasks.update("ann", TaskRef(key="k"), {"delay_seconds": 60})
    resumed = await world.tasks.resume("ann", TaskRef(key="k"))

    assert caught.value.field == "trigger_time"
    assert resumed.next_fires == (datetime(2026, 3, 2, 2, 1, tzinfo=UTC),)


@pytest.mark.requirement("A2.2")
async def test_a_completed_task_cannot_be_resumed_paused_or_run() -> None:
    world = World()
    await world.node()
    await world.create("k", delay_seconds=0)
    await world.run()
    await world.say((await world.executions("k"))[0], "success")

    for call in (world.tasks.resume, world.tasks.pause, world.tasks.run_now):
        with pytest.raises(Conflict) as caught:
            await call("ann", TaskRef(key="k"))
        assert caught.value.code == "INVALID_STATE"


async def test_running_now_fires_once_per_key_and_leaves_the_schedule_alone() -> None:
    world = World()
    await world.node()
    task = await world.create("k", **WEEKDAYS)

    first = await world.tasks.run_now("ann", TaskRef(key="k"), "again-1")
    second = await world.tasks.run_now("ann", TaskRef(key="k"), "again-1")
    await world.run()

    assert (first.created, second.created) == (True, False)
    assert first.execution.id == second.execution.id
    (call,) = world.agent.calls
    assert call.manual
    after = await world.task("k")
    assert after.next_fire_time == task.next_fire_time
    assert (after.fire_count, after.scheduled_fires) == (1, 0)


async def test_a_paused_task_can_be_run_now() -> None:
    world = World()
    await world.node()
    await world.create("k", paused=True, **WEEKDAYS)

    await world.tasks.run_now("ann", TaskRef(key="k"))
    await world.run()

    assert len(world.agent.calls) == 1
    assert (await world.executions("k"))[0].exec_status is ExecStatus.RUNNING


async def test_another_users_task_looks_as_if_it_were_not_there() -> None:
    world = World()
    task = await world.create("k", **WEEKDAYS)

    answers = []
    for ref in (TaskRef(id=task.id), TaskRef(key="k"), TaskRef(id=999)):
        with pytest.raises(NotFound) as caught:
            await world.tasks.get("bob", ref)
        answers.append(caught.value.code)

    assert answers == ["TASK_NOT_FOUND"] * 3


async def test_a_misspelt_key_is_answered_with_near_ones() -> None:
    world = World()
    await world.create("daily-report", **WEEKDAYS)

    with pytest.raises(NotFound) as caught:
        await world.tasks.get("ann", TaskRef(key="daily"))

    assert caught.value.candidates == ("daily-report",)


@pytest.mark.requirement("X-S7")
async def test_a_preview_creates_nothing_and_warns_of_what_create_would_refuse() -> None:
    world = World()

    shown = world.tasks.preview(new(interval_seconds=10), count=2)

    anchor = "counted from 2026-03-02 09:00:00+08:00 (Asia/Shanghai)"
    assert shown.words == f"every 10 seconds, {anchor}"
    assert shown.gap == timedelta(seconds=10)
    assert "refused" in shown.warnings[-1]
    assert (await world.tasks.list(TaskFilter(user_id=None))).total == 0


async def test_many_tasks_are_added_in_one_go_and_a_bad_one_does_not_stop_the_others() -> None:
    world = World()
    await world.create("b", **WEEKDAYS)
    news = [
        new(task_key="a", **WEEKDAYS),
        new(task_key="b", task_content="other", **WEEKDAYS),
        new(task_key="c", cron_expr="61 * * * *"),
        new(task_key="d", **WEEKDAYS),
    ]

    made = await world.tasks.add_many("ann", news)
    again = await world.tasks.add_many("ann", news)

    codes = [m.code if isinstance(m, CrontaskError) else m.task_key for m in made]
    assert codes == ["a", "TASK_KEY_CONFLICT", "INVALID_CRON", "d"]
    assert [getattr(m, "task_key", None) for m in again] == ["a", None, None, "d"]


async def test_a_caller_inside_the_installation_may_see_everybodys_tasks() -> None:
    world = World()
    await world.create("a", user="ann", **WEEKDAYS)
    await world.create("b", user="bob", **WEEKDAYS)

    page = await world.tasks.list(TaskFilter(user_id=None))

    assert page.total == 2
    assert attrs.asdict(page.rows[0].task)["user_id"] == "bob"
