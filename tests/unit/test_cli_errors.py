"""Errors on the command line: one readable block, a code, an exit code, never a stack trace."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from crontask_cli.failure import as_error, block, report_failure
from crontask_cli.main import cli
from crontask_core.errors import (
    ConfigError,
    Conflict,
    CrontaskError,
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    Unavailable,
)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


@pytest.mark.requirement("X-CLI")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CrontaskError("x"), 1),
        (Forbidden("x"), 1),
        (InvalidInput("x"), 2),
        (ConfigError("x"), 2),
        (NotFound("x"), 3),
        (Conflict("x"), 4),
        (QuotaExceeded("x"), 4),
        (Unavailable("x"), 5),
        (click.UsageError("x"), 2),
        (ConnectionError("x"), 5),
        (ValueError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert code == report_failure(error, as_json=False)


@pytest.mark.requirement("X-CLI")
def test_an_error_is_one_block_with_code_field_hint_near_matches_and_example() -> None:
    error = NotFound(
        "there is no task with task_key tea",
        field="task_key",
        hint="List your tasks with list_cron_tasks.",
        candidates=["tea-1", "tea-2"],
        example="tea-1",
    )
    assert [
        "error: there is no task with task_key tea",
        "  code:    TASK_NOT_FOUND (task_key)",
        "  hint:    List your tasks with crontask list.",
        "  near:    tea-1, tea-2",
        "  example: tea-1",
    ] == block(error).splitlines()


@pytest.mark.requirement("X-CLI")
def test_a_hint_names_options_where_a_tool_has_arguments() -> None:
    error = InvalidInput("x", hint="Give a later time, or delay_seconds, not cron_expr.")
    assert "hint:    Give a later time, or --in, not --cron." in block(error)


def test_what_was_not_foreseen_has_an_error_id_and_no_stack_trace() -> None:
    told = as_error(ZeroDivisionError("division by zero"))
    assert ("INTERNAL", 1) == (told.code, told.exit_code)
    assert "ZeroDivisionError: division by zero (error id e-" in told.message
    assert "Traceback" not in block(told)


@pytest.mark.requirement("X-CLI")
def test_an_unknown_command_offers_the_nearest_ones() -> None:
    done = run("creat")
    assert 2 == done.exit_code
    assert "there is no command 'creat'" in done.stderr and "create" in done.stderr


@pytest.mark.requirement("X-CLI")
def test_an_unknown_option_offers_the_nearest_ones_and_an_example_that_works() -> None:
    done = run("next", "0 9 * * *", "--cuont", "3", "--json")
    told = json.loads(done.stderr)["error"]
    assert (2, "UNKNOWN_ARGUMENT", "--cuont") == (done.exit_code, told["code"], told["field"])
    assert "--count" == told["candidates"][0]
    assert told["example"].startswith("crontask next ")


@pytest.mark.requirement("X-CLI")
def test_crontask_alone_shows_the_help_and_is_no_failure() -> None:
    done = run()
    assert 0 == done.exit_code
    assert done.stdout.startswith("Usage: crontask")


@pytest.mark.requirement("X-CLI", "X-CONF")
@pytest.mark.parametrize("content", ["not toml at all [", "[scheduler]\ntimezon = 'UTC'\n"])
def test_a_broken_configuration_file_still_allows_help(tmp_path: Path, content: str) -> None:
    broken = tmp_path / "crontask.toml"
    broken.write_text(content)
    for words in (("--help",), ("list", "--help"), ("db", "upgrade", "--help")):
        assert 0 == run("--config", str(broken), *words).exit_code
    failed = run("list", "--config", str(broken))
    assert 2 == failed.exit_code
    assert "CONFIG_INVALID" in failed.stderr and str(broken) in failed.stderr


@pytest.mark.requirement("X-CONF")
def test_every_wrong_setting_is_told_at_once_and_listed_in_json() -> None:
    words = ("config", "-o", "store.pool_size=many", "-o", "scheduler.timezon=UTC", "--json")
    done = run(*words)
    problems = json.loads(done.stderr)["error"]["problems"]
    assert {"store.pool_size", "scheduler.timezon"} == {p["field"] for p in problems}


def test_an_option_that_is_not_key_and_value_says_how_to_write_it() -> None:
    done = run("config", "-o", "timezone")
    assert 2 == done.exit_code
    assert "KEY=VALUE" in done.stderr


@pytest.mark.requirement("X-CONF", "X-CLI")
def test_config_shows_value_and_origin_and_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRONTASK_CALLBACK_HEADERS", "Authorization: Bearer abc")
    done = run("config", "--json", "-o", "scheduler.timezone=Europe/Berlin")
    rows = {row["key"]: row for row in json.loads(done.stdout)["settings"]}
    assert ("Europe/Berlin", "option") == (
        rows["scheduler.timezone"]["value"],
        rows["scheduler.timezone"]["origin"],
    )
    assert "CRONTASK_CALLBACK_HEADERS" == rows["callback.headers"]["origin"]
    assert "abc" not in done.stdout
    assert "8350" == rows["server.port"]["value"]


def test_global_options_may_stand_before_or_after_the_command() -> None:
    before = run("-o", "scheduler.timezone=UTC", "--json", "config", "--changed")
    after = run("config", "--changed", "--json", "-o", "scheduler.timezone=UTC")
    assert before.stdout == after.stdout
    assert "UTC" == json.loads(before.stdout)["settings"][0]["value"]
