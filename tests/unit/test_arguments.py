"""What the calls take, what they forgive, and how they refuse."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from crontask_adapters import arguments
from crontask_adapters.arguments import TOOLS, read
from crontask_core.errors import InvalidInput
from crontask_core.model import Report
from crontask_core.ports import TaskRef

NOW = datetime(2026, 3, 2, 1, tzinfo=UTC)
ZONE = "Asia/Shanghai"
WORDS = "once, one-off, cron, every, interval"
BASE = {"task_name": "n", "conversation_id": "c", "task_content": "do it"}


def create(**more: object) -> dict[str, Any]:
    return read("create_cron_task", {**BASE, **more})


def refusal(tool: str, raw: dict[str, object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(tool, raw)
    return caught.value


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize(
    ("name", "sent", "taken"),
    [
        ("schedule_type", "2", 2),
        ("schedule_type", "２", 2),
        ("schedule_type", 2.0, 2),
        ("schedule_type", "cron", 2),
        ("schedule_type", " Once ", 1),
        ("max_retry", "3", 3),
        ("max_retry", 3.0, 3),
        ("max_retry", "3.0", 3),
        ("delay_seconds", "600", 600),
        ("delay_seconds", 600.0, 600),
        ("delay_seconds", "1.5", 1.5),
        ("interval_seconds", 90.5, 90.5),
        ("paused", "true", True),
        ("paused", "False", False),
        ("paused", 1, True),
        ("cron_expr", "  0 9 * * *\n", "0 9 * * *"),
        ("timezone", " Asia/Shanghai ", "Asia/Shanghai"),
        ("trigger_time", " ２０３０-01-31T09:00:00+08:00 ", "2030-01-31T09:00:00+08:00"),
        ("trigger_time", 1776906000000, "1776906000000"),
        ("misfire_policy", "RUN_ONCE", "run_once"),
        ("conversation_id", 12345, "12345"),
        ("task_content", '{"game": "DNFM"}', '{"game": "DNFM"}'),
        ("task_content", "  outer blanks stay \n", "  outer blanks stay \n"),
        ("task_content", "null", "null"),
        ("task_desc", '["a"]', '["a"]'),
    ],
)
def test_harmless_variants_are_understood(name: str, sent: object, taken: object) -> None:
    value = create(**{name: sent})[name]
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("trigger_time", ""),
        ("trigger_time", "null"),
        ("cron_expr", "null"),
        ("cron_expr", "None"),
        ("max_retry", None),
        ("max_retry", ""),
        ("paused", "undefined"),
        ("timezone", "  "),
        ("task_key", ""),
        ("task_desc", ""),
        ("task_desc", None),
    ],
)
def test_what_means_nothing_counts_as_not_given(name: str, sent: object) -> None:
    assert name not in create(**{name: sent})


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize(
    ("name", "sent", "message"),
    [
        ("max_retry", True, "max_retry must be a whole number"),
        ("max_retry", 3.5, "max_retry must be a whole number"),
        ("max_retry", "abc", "max_retry must be a whole number"),
        ("max_retry", 2147483648, "max_retry must be between 0 and 20"),
        ("max_retry", "99999999999999999999", "max_retry must be between 0 and 20"),
        ("retry_interval_ms", -1, "retry_interval_ms must be between 100 and 3600000"),
        ("schedule_type", True, "schedule_type must be a whole number"),
        ("schedule_type", "daily", f"schedule_type must be one of {WORDS}"),
        ("delay_seconds", "soon", "delay_seconds must be a number"),
        ("delay_seconds", float("nan"), "delay_seconds must be a number"),
        ("delay_seconds", float("inf"), "delay_seconds must be a number"),
        ("delay_seconds", 10**40, "delay_seconds is too large"),
        ("paused", "maybe", "paused must be true or false"),
        ("cron_expr", ["0 9 * * *"], "cron_expr must be a text, not a list"),
        ("task_content", {"game": "DNFM"}, "task_content must be a text, not an object"),
        ("task_name", 5, "task_name must be a text, not 5"),
        ("conversation_id", True, "conversation_id must be a text, not true"),
        ("task_key", "null", "task_key is no key"),
    ],
)  # fmt: skip
def test_what_could_mean_two_things_is_refused_with_an_example_that_works(
    name: str, sent: object, message: str
) -> None:
    error = refusal("create_cron_task", {**BASE, name: sent})
    assert ("INVALID_ARGUMENT", name, message) == (error.code, error.field, error.message)
    assert error.hint
    assert name in create(**{name: error.example})


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize(
    ("tool", "name", "right"),
    [
        ("create_cron_task", "cron", "cron_expr"),
        ("create_cron_task", "cron_expression", "cron_expr"),
        ("create_cron_task", "schedule", "cron_expr"),
        ("create_cron_task", "tz", "timezone"),
        ("create_cron_task", "timezon", "timezone"),
        ("create_cron_task", "time_zone", "timezone"),
        ("create_cron_task", "maxRetries", "max_retry"),
        ("create_cron_task", "maxRetry", "max_retry"),
        ("create_cron_task", "taskName", "task_name"),
        ("create_cron_task", "prompt", "task_content"),
        ("create_cron_task", "run_at", "trigger_time"),
        ("create_cron_task", "end_time", "end_at"),
        ("update_cron_task", "expected_version", "revision"),
        ("get_cron_task", "id", "task_id"),
        ("list_cron_tasks", "page", "cursor"),
        ("list_cron_tasks", "limit", "page_size"),
        ("report_task_result", "run_id", "task_run_id"),
        ("get_task_executions", "status", "exec_status"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_right_name(
    tool: str, name: str, right: str
) -> None:
    error = refusal(tool, {name: "x"})
    assert ("UNKNOWN_ARGUMENT", name) == (error.code, error.field)
    assert right == error.candidates[0]
    assert f"Use {right}." == error.hint


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize("name", ["if_exists", "catch_up", "queue", "start_at", "xyzzy"])
def test_an_argument_like_no_other_is_refused_too(name: str) -> None:
    error = refusal("create_cron_task", {**BASE, name: "x"})
    assert ("UNKNOWN_ARGUMENT", name) == (error.code, error.field)


def test_a_nested_object_is_refused_with_the_fields_to_send_directly() -> None:
    nested = {"cron_expr": "0 9 * * *", "timezone": "UTC"}
    error = refusal("create_cron_task", {**BASE, "schedule": nested})
    assert "Send cron_expr, timezone directly, not inside schedule." == error.hint


def test_a_tool_without_arguments_says_so() -> None:
    error = refusal("get_scheduler_info", {"verbose": True})
    assert "get_scheduler_info takes: none." == error.hint


@pytest.mark.requirement("A4.2")
def test_arguments_a_host_injects_are_dropped_only_when_listed() -> None:
    raw = {**BASE, "session_id": "s1"}
    assert "UNKNOWN_ARGUMENT" == refusal("create_cron_task", raw).code
    assert BASE == read("create_cron_task", raw, ignore=("session_id",))


@pytest.mark.requirement("A4.2")
def test_missing_arguments_are_all_named() -> None:
    error = refusal("create_cron_task", {"task_name": "n", "task_content": ""})
    assert "MISSING_ARGUMENT" == error.code
    assert "conversation_id" == error.field
    assert "conversation_id and task_content are missing" == error.message
    assert "conv_abc123" == error.example


@pytest.mark.requirement("A4.2")
def test_the_example_of_every_argument_is_accepted_by_it() -> None:
    for tool, taken in TOOLS.items():
        for argument in taken:
            if argument.name == "cursor":  # only a page before can tell one
                continue
            value = argument.read(argument.example)
            assert value is not None, (tool, argument.name)
            assert value == argument.read(value), (tool, argument.name)


@pytest.mark.requirement("A6.2r")
@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ('{"cpa": 85}', '{"cpa": 85}'),
        ("[1,2]", "[1,2]"),
        ("null", "null"),
        ("85", "85"),
        ({"cpa": 85}, '{"cpa": 85}'),
        ([1, 2], "[1, 2]"),
        (85, "85"),
        (True, "true"),
        ("均值=85", "均值=85"),
    ],
)
def test_a_report_text_stays_text_and_is_never_refused_for_its_type(
    sent: object, taken: str
) -> None:
    raw = {"task_id": 1, "task_run_id": "r", "status": "success", "result": sent}
    assert taken == read("report_task_result", raw)["result"]


@pytest.mark.requirement("A6.2r")
def test_a_report_is_read_whatever_the_case_of_its_status_and_blanks_around_its_run() -> None:
    raw = {"task_id": "1001", "task_run_id": " run_1 ", "status": "SUCCESS", "execution_id": "7"}
    made = arguments.report(read("report_task_result", raw), "ann")
    assert made == Report(
        task_id=1001, task_run_id="run_1", status="success", execution_id=7, user_id="ann"
    )


@pytest.mark.requirement("A4.2")
def test_a_task_is_named_by_id_or_by_key() -> None:
    assert TaskRef(id=7) == arguments.task_ref(read("get_cron_task", {"task_id": "7"}))
    assert TaskRef(key="k") == arguments.task_ref(read("get_cron_task", {"task_key": "k"}))


@pytest.mark.requirement("A4.2")
@pytest.mark.parametrize(
    ("given", "code"),
    [({}, "MISSING_ARGUMENT"), ({"task_id": 1, "task_key": "k"}, "INVALID_ARGUMENT")],
)
def test_a_task_named_not_at_all_or_twice_is_refused(given: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        arguments.task_ref(given)
    assert (code, "task_id") == (caught.value.code, caught.value.field)


@pytest.mark.requirement("X-T1")
def test_a_change_carries_only_what_was_given() -> None:
    raw = {
        "task_id": 1,
        "max_retry": 5,
        "task_desc": "",
        "unset": "end_at, max_fires",
        "revision": 3,
    }
    asked = arguments.change(read("update_cron_task", raw))
    assert {"max_retry": 5} == asked.given
    assert ("end_at", "max_fires") == asked.unset
    assert (3, False) == (asked.revision, asked.dry_run)


@pytest.mark.requirement("X-T1")
def test_a_change_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        arguments.change(read("update_cron_task", {"task_id": 1, "task_desc": "", "dry_run": True}))
    assert "MISSING_ARGUMENT" == caught.value.code
    assert "there is nothing to change" == caught.value.message


@pytest.mark.requirement("X-T1")
def test_setting_and_unsetting_one_field_is_refused() -> None:
    raw = {"task_id": 1, "end_at": "2030-01-01T00:00:00Z", "unset": ["end_at"]}
    with pytest.raises(InvalidInput) as caught:
        arguments.change(read("update_cron_task", raw))
    assert "unset" == caught.value.field


@pytest.mark.requirement("X-T2")
def test_a_listing_leaves_out_deleted_tasks_unless_asked_for() -> None:
    args = read("list_cron_tasks", {})
    assert (0, 1, 2) == arguments.task_filter(args, "ann", ZONE, NOW).statuses
    for sent in (3, "3", "deleted"):
        args = read("list_cron_tasks", {"status": sent})
        assert (3,) == arguments.task_filter(args, "ann", ZONE, NOW).statuses


@pytest.mark.requirement("X-T2")
def test_the_bounds_of_a_listing_are_read_in_the_installations_zone() -> None:
    raw = {"next_fire_from": "2026-03-03T09:00:00", "next_fire_to": "2026-03-03T09:00:00Z"}
    where = arguments.task_filter(read("list_cron_tasks", raw), "ann", ZONE, NOW)
    assert datetime(2026, 3, 3, 1, tzinfo=UTC) == where.next_from
    assert datetime(2026, 3, 3, 9, tzinfo=UTC) == where.next_to


@pytest.mark.requirement("X-T2")
@pytest.mark.parametrize("size", [0, 101, 100_000, 2**63, -1])
def test_a_page_has_1_to_100_rows(size: int) -> None:
    error = refusal("list_cron_tasks", {"page_size": size})
    assert "page_size must be between 1 and 100" == error.message


@pytest.mark.requirement("X-T2")
def test_executions_are_filtered_by_number_or_word_of_their_state() -> None:
    for sent in (4, "4", "timed_out"):
        args = read("get_task_executions", {"exec_status": sent, "since": "2026-03-01T00:00:00Z"})
        where = arguments.execution_filter(args, "ann", 7, ZONE, NOW)
        assert ((4,), 7) == (where.statuses, where.task_id)
        assert datetime(2026, 3, 1, tzinfo=UTC) == where.since
    error = refusal("get_task_executions", {"exec_status": 8})
    assert "exec_status must be between 0 and 7" == error.message
