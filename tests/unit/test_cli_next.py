"""``crontask next``: the schedule on the command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from crontask_cli.main import cli

CASES = [
    json.loads(line)
    for line in (Path(__file__).resolve().parents[1] / "data" / "cron.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["next", *words])


@pytest.mark.requirement("X-CLI", "X-S3")
def test_next_prints_one_instant_a_line_in_the_zone_with_its_offset() -> None:
    done = run(
        "30 2 * * *", "--timezone", "America/New_York", "--after", "2026-03-07T12:00:00Z",
        "--count", "2",
    )  # fmt: skip
    assert 0 == done.exit_code
    assert ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"] == done.stdout.splitlines()


@pytest.mark.requirement("X-CLI")
def test_next_as_json_is_one_list_of_utc_instants() -> None:
    done = run(
        "0 9 * * 1-5", "--timezone", "Asia/Shanghai", "--after", "2026-11-30T12:00:00+00:00",
        "--count", "2", "--json",
    )  # fmt: skip
    assert 0 == done.exit_code
    expected = ["2026-12-01T01:00:00+00:00", "2026-12-02T01:00:00+00:00"]
    assert expected == json.loads(done.stdout)


def test_an_after_without_offset_is_read_in_the_zone() -> None:
    done = run("0 9 * * *", "--tz", "Asia/Tokyo", "--after", "2026-01-01 08:59", "--count", "1")
    assert "2026-01-01T09:00:00+09:00\n" == done.stdout


def test_the_zone_of_the_expression_is_the_one_shown() -> None:
    done = run("CRON_TZ=Asia/Tokyo 0 9 * * *", "--after", "2026-01-01T00:00:00Z", "--count", "1")
    assert "2026-01-02T09:00:00+09:00\n" == done.stdout


def test_the_zone_of_the_expression_comes_before_the_option_and_that_is_said() -> None:
    done = run(
        "CRON_TZ=Asia/Tokyo 0 9 * * *", "--timezone", "UTC", "--after", "2026-01-01T00:00:00Z",
        "--count", "1",
    )  # fmt: skip
    assert "2026-01-02T09:00:00+09:00\n" == done.stdout
    assert done.stderr.startswith("warning: the expression is in Asia/Tokyo, not UTC\n")


@pytest.mark.requirement("X-CLI", "X-S7")
def test_warnings_are_told_beside_the_instants() -> None:
    words = ("* 9 * * *", "--tz", "UTC", "--after", "2026-01-01T00:00:00Z", "--count", "1")
    warning = (
        "warning: This fires every minute of the hours given, 60 times a day. For the full hour "
        "only, write 0 9 * * *.\n"
    )
    plain = run(*words)
    assert "2026-01-01T09:00:00+00:00\n" == plain.stdout
    assert warning == plain.stderr
    as_json = run(*words, "--json")
    assert ["2026-01-01T09:00:00+00:00"] == json.loads(as_json.stdout)
    assert warning == as_json.stderr


@pytest.mark.requirement("X-CLI", "X-S7")
def test_on_a_terminal_the_words_are_told_too() -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "crontask_cli", "next", "0 9 * * 1-5", "--tz", "UTC"]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=60)
    os.close(theirs)
    told = os.read(ours, 4096).decode()
    os.close(ours)
    assert "fires at 09:00 on Monday to Friday (UTC)\r\n" == told
    assert 5 == len(done.stdout.splitlines())


@pytest.mark.requirement("X-CLI", "A2.1b")
def test_an_after_that_comes_twice_is_warned_about() -> None:
    done = run("0 9 * * *", "--tz", "America/New_York", "--after", "2026-11-01T01:30")
    assert "warning: 2026-11-01 01:30:00 comes twice in America/New_York" in done.stderr


def test_every_counts_from_after() -> None:
    done = run("@every 90m", "--tz", "UTC", "--after", "2026-01-01T00:00:00Z", "--count", "2")
    assert ["2026-01-01T01:30:00+00:00", "2026-01-01T03:00:00+00:00"] == done.stdout.splitlines()


@pytest.mark.requirement("X-CLI", "X-S1")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("0 9 * * 9", "--tz", "UTC"), "INVALID_CRON"),
        (("30 * * * * *", "--tz", "UTC"), "INVALID_CRON"),
        (("0 0 30 2 *", "--tz", "UTC"), "NEVER_FIRES"),
        (("0 9 * * *", "--tz", "Asia/Beijing"), "UNKNOWN_TIMEZONE"),
        (("0 9 * * *", "--tz", "UTC", "--after", "tomorrow"), "INVALID_TIME"),
        (("0 9 * * *", "--tz", "UTC", "--count", "0"), "INVALID_ARGUMENT"),
        ((), "MISSING_ARGUMENT"),
    ],
)
def test_what_cannot_be_read_exits_2_with_the_reason(words: tuple[str, ...], code: str) -> None:
    plain = run(*words)
    assert (2, "") == (plain.exit_code, plain.stdout)
    assert code in plain.stderr and "hint:" in plain.stderr
    as_json = run(*words, "--json")
    assert (2, "") == (as_json.exit_code, as_json.stdout)
    told = json.loads(as_json.stderr)
    assert (False, code) == (told["ok"], told["error"]["code"])


@pytest.mark.requirement("X-S1", "X-S3", "X-CLI")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_next_answers_every_collected_case(case: dict[str, object]) -> None:
    expected = case.get("expect")
    count = len(expected) if isinstance(expected, list) and expected else 1
    done = run(
        str(case["expr"]), "--timezone", str(case["tz"]), "--after", str(case["after"]),
        "--count", str(count), "--json",
    )  # fmt: skip
    if expected is None:
        assert 2 == done.exit_code
        return
    assert 0 == done.exit_code, done.stderr
    assert isinstance(expected, list)
    shown = [datetime.fromisoformat(text) for text in json.loads(done.stdout)]
    assert [datetime.fromisoformat(text) for text in expected] == shown
