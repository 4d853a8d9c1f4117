"""Every tool, its answers and its refusals, through a real MCP client in both protocol eras."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client, MCPError

from crontask_core.errors import Unavailable
from crontask_core.events import TaskChanged
from crontask_core.model import Rules
from crontask_server.identity import EXECUTION_META, USER_META, Caller
from crontask_server.mcp_server import Feed
from tests.faces import AGENT_URL, CRON, World, call, refused, world

ERAS = ("legacy", "auto")
NINE = {"local": "2026-03-03T09:00:00+08:00", "utc": "2026-03-03T01:00:00Z", "in": "in 24 h"}


@pytest.fixture
def it() -> World:
    return world()


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(it: World, era: str) -> AsyncIterator[Client]:
    async with Client(it.face().server(), mode=era) as connected:
        yield connected


# -- what each tool does -------------------------------------------------------------------------


@pytest.mark.requirement("A4.2")
async def test_the_client_sees_thirteen_tools_and_the_instructions(client: Client) -> None:
    assert 13 == len((await client.list_tools()).tools)
    assert "task_content must stand alone" in (client.instructions or "")


@pytest.mark.requirement("A4.2", "A4.2b", "X-S2")
async def test_a_created_task_says_when_it_fires_and_that_no_node_is_there(client: Client) -> None:
    made = await call(client, "create_cron_task", **CRON, task_key="daily")
    assert (1, "daily", True, 1) == (
        made["task_id"],
        made["task_key"],
        made["created"],
        made["status"],
    )
    assert NINE == made["next_fire_time"]
    assert 3 == len(made["next_fire_times"])
    assert "at 09:00 on Monday to Friday (Asia/Shanghai)" == made["schedule"]["text"]
    assert made["will_fire"] is False
    assert "No live node is there to fire this task" in made["warnings"][0]


@pytest.mark.requirement("A4.2b")
async def test_a_live_node_is_seen(it: World, client: Client) -> None:
    await it.live_node()
    made = await call(client, "create_cron_task", **CRON)
    assert made["will_fire"] is True
    assert "warnings" not in made
    assert (await call(client, "get_scheduler_info"))["scheduler_alive"] is True


@pytest.mark.requirement("A3.1a")
async def test_the_same_key_and_arguments_again_give_the_same_task(client: Client) -> None:
    first = await call(client, "create_cron_task", **CRON, task_key="daily")
    again = await call(
        client, "create_cron_task", **CRON | {"schedule_type": "2"}, task_key="daily"
    )
    assert (first["task_id"], False) == (again["task_id"], again["created"])
    other = CRON | {"cron_expr": "0 10 * * *"}
    error = await refused(client, "create_cron_task", **other, task_key="daily")
    assert ("TASK_KEY_CONFLICT", "task_key") == (error["code"], error["field"])
    assert ["cron_expr"] == error["candidates"]


@pytest.mark.requirement("A2.1a")
async def test_a_one_off_by_delay_and_one_without_schedule_type(client: Client) -> None:
    once = CRON | {"schedule_type": 1, "delay_seconds": "600"}
    del once["cron_expr"]
    made = await call(client, "create_cron_task", **once)
    assert "in 10 min" == made["next_fire_time"]["in"]
    without = {name: value for name, value in CRON.items() if name != "schedule_type"}
    assert 2 == (await call(client, "create_cron_task", **without))["schedule"]["schedule_type"]


async def test_a_dry_run_and_a_paused_create(client: Client) -> None:
    dry = await call(client, "create_cron_task", **CRON, dry_run=True)
    assert dry["dry_run"] is True and "task_id" not in dry
    assert 0 == (await call(client, "list_cron_tasks"))["total"]
    paused = await call(client, "create_cron_task", **CRON, paused=True)
    assert (0, "disabled") == (paused["status"], paused["status_text"])
    assert "next_fire_time" not in paused


@pytest.mark.requirement("A2.3a", "A4.2")
async def test_a_task_is_shown_in_full_by_id_and_by_key(client: Client) -> None:
    content = '  每天 {"game": "DNFM"} 🍣\n'
    await call(client, "create_cron_task", **CRON | {"task_content": content}, task_key="daily")
    await call(client, "run_cron_task_now", task_key="daily")
    for named in ({"task_id": "1"}, {"task_key": "daily"}):
        shown = await call(client, "get_cron_task", **named)
        assert content == shown["task_content"]
        assert [1] == [e["execution_id"] for e in shown["executions"]]
    brief = await call(client, "get_cron_task", task_id=1, include_executions=0)
    assert "executions" not in brief


@pytest.mark.requirement("X-T1")
async def test_an_update_changes_only_what_is_given(client: Client) -> None:
    await call(client, "create_cron_task", **CRON, task_desc="d", max_fires=3)
    changed = await call(client, "update_cron_task", task_id=1, cron_expr="30 9 * * *")
    assert ["cron_expr"] == changed["changed"]
    assert "in 30 min" == changed["next_fire_time"]["in"]
    assert (2, "d", 3) == (
        changed["revision"],
        changed["task_desc"],
        changed["schedule"]["max_fires"],
    )
    same = await call(client, "update_cron_task", task_id=1, cron_expr="30 9 * * *")
    assert same["already"] is True
    cleared = await call(client, "update_cron_task", task_id=1, unset=["max_fires"], dry_run=True)
    assert cleared["dry_run"] is True and "max_fires" not in cleared["schedule"]
    error = await refused(client, "update_cron_task", task_id=1, task_name="x", revision=1)
    assert ("REVISION_CONFLICT", "2") == (error["code"], error["example"])


@pytest.mark.requirement("X-T2", "X-T4")
async def test_a_listing_pages_filters_and_shows_the_last_execution(client: Client) -> None:
    for n in range(3):
        await call(client, "create_cron_task", **CRON, task_key=f"k{n}")
    await call(client, "run_cron_task_now", task_key="k2")
    page = await call(client, "list_cron_tasks", page_size=2)
    assert ["k2", "k1"] == [row["task_key"] for row in page["tasks"]]
    assert (3, True) == (page["total"], page["has_more"])
    assert "pending" == page["tasks"][0]["last_execution"]["exec_status_text"]
    rest = await call(client, "list_cron_tasks", page_size=2, cursor=page["next_cursor"])
    assert ["k0"] == [row["task_key"] for row in rest["tasks"]]
    await call(client, "pause_cron_task", task_key="k0")
    paused = await call(client, "list_cron_tasks", status=0)
    assert ["k0"] == [row["task_key"] for row in paused["tasks"]]
    assert 1 == (await call(client, "list_cron_tasks", keyword="k1"))["total"]
    soon = await call(client, "list_cron_tasks", next_fire_to="2026-03-02T12:00:00")
    assert 0 == soon["total"]


@pytest.mark.requirement("A2.2", "A3.1b")
async def test_pause_resume_and_delete_are_idempotent(client: Client) -> None:
    await call(client, "create_cron_task", **CRON, task_key="daily")
    await call(client, "run_cron_task_now", task_id=1)
    paused = await call(client, "pause_cron_task", task_id=1, reason="holiday")
    assert ("disabled", "holiday") == (paused["status_text"], paused["status_reason"])
    assert (await call(client, "pause_cron_task", task_id=1))["already"] is True
    resumed = await call(client, "resume_cron_task", task_id=1)
    assert NINE == resumed["next_fire_time"]
    assert (await call(client, "resume_cron_task", task_id=1))["already"] is True
    gone = await call(client, "delete_cron_task", task_key="daily")
    assert (3, 1) == (gone["status"], gone["cancelled_executions"])
    assert (await call(client, "delete_cron_task", task_id=1))["already"] is True
    assert "INVALID_STATE" == (await refused(client, "resume_cron_task", task_id=1))["code"]
    assert 2 == (await call(client, "create_cron_task", **CRON, task_key="daily"))["task_id"]
    assert 1 == (await call(client, "get_task_executions", task_id=1))["total"]
    deleted = await call(client, "list_cron_tasks", status=3)
    assert [1] == [row["task_id"] for row in deleted["tasks"]]


async def test_run_now_is_idempotent_with_a_key_and_a_waiting_fire_can_be_cancelled(
    client: Client,
) -> None:
    await call(client, "create_cron_task", **CRON)
    first = await call(client, "run_cron_task_now", task_id=1, idempotency_key="today")
    again = await call(client, "run_cron_task_now", task_id=1, idempotency_key="today")
    assert (True, False) == (first["created"], again["created"])
    assert first["execution_id"] == again["execution_id"]
    cancelled = await call(client, "cancel_task_execution", execution_id=1, reason="not needed")
    assert ("cancelled", "not needed") == (cancelled["exec_status_text"], cancelled["reason"])


@pytest.mark.requirement("X-T4", "A6.2r")
async def test_executions_are_listed_shown_and_reported(it: World, client: Client) -> None:
    await call(client, "create_cron_task", **CRON)
    await call(client, "run_cron_task_now", task_id=1)
    waiting = (await call(client, "get_task_executions", exec_status="pending"))["executions"]
    assert [("waiting", "pending")] == [
        (e["delivery"]["state"], e["result"]["state"]) for e in waiting
    ]
    await it.repo.begin("n1", 1)
    args = {"task_id": 1, "task_run_id": "run_1", "execution_id": 1}
    beat = await call(client, "report_task_result", **args, status="running", result="half")
    assert (True, False) == (beat["recorded"], beat["duplicate"])
    done = await call(client, "report_task_result", **args, status="success", result='{"cpa": 85}')
    assert ("success", False) == (done["exec_status_text"], done["duplicate"])
    again = await call(client, "report_task_result", **args, status="success", result="x")
    assert again["duplicate"] is True
    [one] = (await call(client, "get_task_executions", execution_id=1))["executions"]
    assert ("success", '{"cpa": 85}', "run_1") == (
        one["result"]["state"],
        one["result"]["text"],
        one["task_run_id"],
    )


@pytest.mark.requirement("X-S7")
async def test_a_schedule_is_previewed_without_creating_anything(client: Client) -> None:
    shown = await call(client, "preview_schedule", cron_expr="*/30 * * * *", count=2)
    assert ["in 30 min", "in 60 min"] == [fire["in"] for fire in shown["next_fire_times"]]
    assert 1_800 == shown["min_gap_seconds"]
    after = await call(
        client, "preview_schedule", interval_seconds=5, after="2026-03-03T00:00:00", count=1
    )
    assert "2026-03-03T00:00:05+08:00" == after["next_fire_times"][0]["local"]
    assert "refused below 60 s" in after["warnings"][0]
    assert 0 == (await call(client, "list_cron_tasks"))["total"]


async def test_the_clock_and_the_limits_are_shown(client: Client) -> None:
    shown = await call(client, "get_scheduler_info")
    assert "2026-03-02T09:00:00+08:00" == shown["server_time"]["local"]
    assert ("Asia/Shanghai", "1.2.3") == (shown["default_timezone"], shown["version"])


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.requirement("A4.2", "A2.1a", "A2.1b", "X-S1", "X-T0", "A2.3a")
@pytest.mark.parametrize(
    ("tool", "args", "code", "field"),
    [
        ("create_cron_task", CRON | {"tz": "UTC"}, "UNKNOWN_ARGUMENT", "tz"),
        ("create_cron_task", {"task_name": "n"}, "MISSING_ARGUMENT", "conversation_id"),
        ("create_cron_task", CRON | {"max_retry": 99}, "INVALID_ARGUMENT", "max_retry"),
        ("create_cron_task", CRON | {"cron_expr": "0 9 * *"}, "INVALID_CRON", "cron_expr"),
        ("create_cron_task", CRON | {"cron_expr": "0 0 30 2 *"}, "NEVER_FIRES", "cron_expr"),
        ("create_cron_task", CRON | {"cron_expr": None}, "MISSING_ARGUMENT", "cron_expr"),
        ("create_cron_task", CRON | {"delay_seconds": 5}, "INVALID_ARGUMENT", "delay_seconds"),
        ("create_cron_task", CRON | {"timezone": "Bejing"}, "UNKNOWN_TIMEZONE", "timezone"),
        ("create_cron_task", CRON | {"task_key": " k"}, "INVALID_ARGUMENT", "task_key"),
        ("create_cron_task", CRON | {"task_content": "x" * 61_441}, "INVALID_ARGUMENT",
         "task_content"),
        ("create_cron_task", CRON | {"task_content": "nul \0"}, "INVALID_ARGUMENT", "task_content"),
        ("create_cron_task", CRON | {"callback_url": "http://10.0.0.1/x"}, "CALLBACK_REFUSED",
         "callback_url"),
        ("preview_schedule", {"trigger_time": "tomorrow 9am"}, "INVALID_TIME", "trigger_time"),
        ("preview_schedule", {"trigger_time": 1776906000000}, "INVALID_TIME", "trigger_time"),
        ("preview_schedule", {"trigger_time": "2026-03-01T09:00:00"}, "TIME_IN_PAST",
         "trigger_time"),
        ("preview_schedule", {"trigger_time": "2026-03-08T02:30:00",
                              "timezone": "America/New_York"}, "NONEXISTENT_LOCAL_TIME",
         "trigger_time"),
        ("preview_schedule", {}, "MISSING_ARGUMENT", "cron_expr"),
        ("get_cron_task", {"task_id": 99}, "TASK_NOT_FOUND", "task_id"),
        ("get_cron_task", {"task_key": "nope"}, "TASK_NOT_FOUND", "task_key"),
        ("get_cron_task", {}, "MISSING_ARGUMENT", "task_id"),
        ("get_cron_task", {"task_id": "daily"}, "INVALID_ARGUMENT", "task_id"),
        ("update_cron_task", {"task_id": 99, "task_name": "x"}, "TASK_NOT_FOUND", "task_id"),
        ("update_cron_task", {"task_id": 99}, "MISSING_ARGUMENT", "task_content"),
        ("delete_cron_task", {"task_key": "nope"}, "TASK_NOT_FOUND", "task_key"),
        ("pause_cron_task", {"task_id": 99}, "TASK_NOT_FOUND", "task_id"),
        ("resume_cron_task", {"task_id": 99}, "TASK_NOT_FOUND", "task_id"),
        ("run_cron_task_now", {"task_id": 99}, "TASK_NOT_FOUND", "task_id"),
        ("list_cron_tasks", {"page_size": 2**63}, "INVALID_ARGUMENT", "page_size"),
        ("list_cron_tasks", {"next_fire_from": "today"}, "INVALID_TIME", "next_fire_from"),
        ("get_task_executions", {"task_id": 99}, "TASK_NOT_FOUND", "task_id"),
        ("get_task_executions", {"execution_id": 99}, "EXECUTION_NOT_FOUND", "execution_id"),
        ("cancel_task_execution", {"execution_id": 99}, "EXECUTION_NOT_FOUND", "execution_id"),
        ("cancel_task_execution", {}, "MISSING_ARGUMENT", "execution_id"),
        ("report_task_result", {"task_id": 99, "task_run_id": "r", "status": "success"},
         "RUN_NOT_FOUND", "task_run_id"),
        ("report_task_result", {"task_id": 1, "task_run_id": "r", "status": "done"},
         "INVALID_ARGUMENT", "status"),
        ("report_task_result", {"task_id": 1, "status": "success"}, "MISSING_ARGUMENT",
         "task_run_id"),
        ("get_scheduler_info", {"verbose": True}, "UNKNOWN_ARGUMENT", "verbose"),
    ],
)  # fmt: skip
async def test_bad_use_is_answered_with_code_field_and_hint(
    client: Client, tool: str, args: dict[str, Any], code: str, field: str
) -> None:
    error = await refused(client, tool, **args)
    assert (code, field) == (error["code"], error["field"])
    assert error["hint"]
    assert error["retryable"] is False


@pytest.mark.requirement("A2.3a")
async def test_content_that_refers_to_a_conversation_or_says_when_gets_a_warning(
    it: World, client: Client
) -> None:
    await it.live_node()
    content = "Every day at nine do as discussed above."
    made = await call(client, "create_cron_task", **CRON | {"task_content": content})
    assert ["refers to a conversation", "says when to run"] == [
        phrase
        for warning in made["warnings"]
        for phrase in ("refers to a conversation", "says when to run")
        if phrase in warning
    ]


async def test_a_quota_is_told_with_its_limit(era: str) -> None:
    few = world(Rules(default_callback_url=AGENT_URL, tasks_per_user=1))
    async with Client(few.face().server(), mode=era) as client:
        await call(client, "create_cron_task", **CRON)
        error = await refused(client, "create_cron_task", **CRON)
        assert "QUOTA_EXCEEDED" == error["code"]
        assert "which is the limit" in error["message"]
        often = {**CRON, "schedule_type": 3, "interval_seconds": 5}
        del often["cron_expr"]
        assert "TOO_FREQUENT" == (await refused(client, "create_cron_task", **often))["code"]


async def test_an_unknown_tool_is_a_protocol_error_with_near_names(client: Client) -> None:
    with pytest.raises(MCPError) as caught:
        await client.call_tool("create_cron_job", {})
    assert -32602 == caught.value.code
    assert "create_cron_task" in caught.value.data["candidates"]


async def test_a_store_that_cannot_be_reached_is_told_as_retryable_with_an_error_id(
    it: World, client: Client
) -> None:
    it.repo.fail_before("list_tasks", error=Unavailable("the store is locked", retryable=True))
    error = await refused(client, "list_cron_tasks")
    assert ("STORE_UNAVAILABLE", True) == (error["code"], error["retryable"])
    assert error["error_id"].startswith("e-")


async def test_a_fault_inside_is_told_by_its_error_id_and_nothing_else(
    it: World, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    it.repo.fail_before("list_tasks", error=ZeroDivisionError("secret text"))
    error = await refused(client, "list_cron_tasks")
    assert "INTERNAL" == error["code"]
    assert "secret text" not in str(error)
    assert error["error_id"] in error["message"]
    assert error["error_id"] in caplog.text and "secret text" in caplog.text


# -- identity ------------------------------------------------------------------------------------


@pytest.mark.requirement("X-I1")
async def test_another_users_things_are_as_if_they_were_not_there(it: World, era: str) -> None:
    async with Client(it.face().server(), mode=era) as client:
        await call(client, "create_cron_task", **CRON, task_key="daily")
        await call(client, "run_cron_task_now", task_id=1)
        await it.repo.begin("n1", 1)
        it.caller = Caller(user="eve")
        for tool in (
            "get_cron_task", "delete_cron_task", "pause_cron_task", "resume_cron_task",
            "run_cron_task_now", "get_task_executions",
        ):  # fmt: skip
            theirs = await refused(client, tool, task_id=1)
            absent = await refused(client, tool, task_id=77)
            assert "TASK_NOT_FOUND" == theirs["code"] == absent["code"]
            assert absent["message"].replace("77", "1") == theirs["message"]
        assert 0 == (await call(client, "list_cron_tasks"))["total"]
        assert 0 == (await call(client, "get_task_executions"))["total"]
        for tool in ("get_task_executions", "cancel_task_execution"):
            error = await refused(client, tool, execution_id=1)
            assert "EXECUTION_NOT_FOUND" == error["code"]
        report = {"task_id": 1, "task_run_id": "r", "execution_id": 1, "status": "success"}
        error = await refused(client, "report_task_result", **report)
        assert "EXECUTION_NOT_FOUND" == error["code"]
        mine = await call(client, "create_cron_task", **CRON, task_key="daily")
        assert (2, True) == (mine["task_id"], mine["created"])


@pytest.mark.requirement("X-I1")
async def test_an_agent_acts_for_the_user_its_harness_names(it: World, client: Client) -> None:
    it.caller = Caller(may_act=True)
    await call(client, "create_cron_task", {USER_META: "bob"}, **CRON)
    assert 1 == (await call(client, "list_cron_tasks", user_id="bob"))["total"]
    assert 0 == (await call(client, "list_cron_tasks", {USER_META: "eve"}))["total"]
    nobody = await refused(client, "list_cron_tasks")
    assert ("MISSING_ARGUMENT", "user_id") == (nobody["code"], nobody["field"])
    other = await refused(client, "list_cron_tasks", {USER_META: "bob"}, user_id="eve")
    assert "FORBIDDEN" == other["code"]
    await call(client, "run_cron_task_now", user_id="bob", task_id=1)
    await it.repo.begin("n1", 1)
    report = {"task_id": 1, "task_run_id": "r", "execution_id": 1, "status": "success"}
    assert (await call(client, "report_task_result", **report))["recorded"] is True


@pytest.mark.requirement("X-I1")
async def test_each_tool_needs_its_scope(it: World, client: Client) -> None:
    it.caller = Caller(user="ann", scopes=frozenset({"read"}))
    await call(client, "list_cron_tasks")
    error = await refused(client, "create_cron_task", **CRON)
    assert "FORBIDDEN" == error["code"]
    assert "this needs the scope write, and the token has read" == error["message"]
    it.caller = Caller(scopes=frozenset({"report"}))
    assert "FORBIDDEN" == (await refused(client, "get_scheduler_info"))["code"]
    report = {"task_id": 9, "task_run_id": "r", "status": "success"}
    assert "RUN_NOT_FOUND" == (await refused(client, "report_task_result", **report))["code"]


@pytest.mark.requirement("X-F6")
async def test_a_create_from_inside_a_run_is_warned_about_or_refused(era: str) -> None:
    inside = {EXECUTION_META: 5001}
    lenient = world()
    async with Client(lenient.face().server(), mode=era) as client:
        made = await call(client, "create_cron_task", inside, **CRON)
        assert any("from inside a run" in warning for warning in made["warnings"])
    strict = world(Rules(default_callback_url=AGENT_URL, nested_creates="refuse"))
    async with Client(strict.face().server(), mode=era) as client:
        assert (
            "RECURSION_BLOCKED"
            == (await refused(client, "create_cron_task", inside, **CRON))["code"]
        )
        await call(client, "create_cron_task", **CRON)


# -- resources -----------------------------------------------------------------------------------


async def test_a_task_an_execution_and_the_guide_can_be_read(client: Client) -> None:
    await call(client, "create_cron_task", **CRON)
    await call(client, "run_cron_task_now", task_id=1)
    listed = (await client.list_resources()).resources
    assert ["crontask://guide/schedules"] == [str(r.uri) for r in listed]
    templates = (await client.list_resource_templates()).resource_templates
    assert ["crontask://tasks/{task_id}", "crontask://executions/{execution_id}"] == [
        t.uri_template for t in templates
    ]
    texts = {
        uri: (await client.read_resource(uri)).contents[0].text
        for uri in (
            "crontask://guide/schedules",
            "crontask://tasks/1",
            "crontask://executions/1",
        )
    }
    assert "Asia/Shanghai" in texts["crontask://guide/schedules"]
    assert '"task_content":"Check the CPA of DNFM."' in texts["crontask://tasks/1"]
    assert '"execution_id":1' in texts["crontask://executions/1"]


@pytest.mark.parametrize(
    "uri",
    ["crontask://tasks/99", "crontask://executions/99", "crontask://tasks/x", "crontask://other",
     "crontask://tasks/99999999999999999999999999"],
)  # fmt: skip
async def test_a_resource_that_is_not_there_is_an_invalid_parameter(
    client: Client, uri: str
) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(uri)
    assert -32602 == caught.value.code
    assert uri == caught.value.data["uri"]


async def test_a_fault_while_reading_a_resource_does_not_leak(it: World, client: Client) -> None:
    await call(client, "create_cron_task", **CRON)
    it.repo.fail_before("get_tasks", error=ZeroDivisionError("secret text"))
    with pytest.raises(MCPError) as caught:
        await client.read_resource("crontask://tasks/1")
    assert -32603 == caught.value.code
    assert "secret text" not in str(caught.value) + str(caught.value.data)


async def test_a_listening_client_hears_that_its_task_changed(it: World) -> None:
    feed = Feed()
    made = await it.tasks.create("ann", _new())
    async with Client(it.face(feed=feed).server(), mode="auto") as client:
        uri = f"crontask://tasks/{made.task.id}"
        async with client.listen(resource_subscriptions=[uri]) as stream:
            feed.on(TaskChanged(task=made.task, what="paused"))
            event = await anext(aiter(stream))
            assert uri == str(event.uri)
            feed.close()


def _new() -> Any:
    from crontask_core.model import NewTask

    return NewTask(**CRON)  # type: ignore[arg-type]
