"""The command line on a real SQLite file: answers, exit codes, import and export."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from crontask_cli.main import cli

URL = "executor.default_callback_url=http://127.0.0.1:9/v1/task/execute"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line on a store of this test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CRONTASK_STORE_URL", f"sqlite:///{tmp_path / 'tasks.db'}")

    def call(*words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(cli, [*words, "-o", URL], input=stdin)

    return call


def answer(done: Result) -> dict[str, Any]:
    assert 0 == done.exit_code, done.stderr
    view = json.loads(done.stdout)
    assert view["ok"] is True
    return dict(view)


def refusal(done: Result) -> tuple[int, str, str]:
    """Exit code, error code, field; the output stays empty."""
    assert "" == done.stdout
    told = json.loads(done.stderr)["error"]
    return done.exit_code, told["code"], told.get("field", "")


def create(run: Run, *words: str, name: str = "Tea") -> dict[str, Any]:
    return answer(run("create", name, "--content", "Make tea.", "--json", *words))


def process(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The installed command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "crontask_cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )


# -- tasks ---------------------------------------------------------------------------------------


@pytest.mark.requirement("A4.2b", "X-CLI")
def test_create_says_when_it_fires_in_words_and_that_nobody_is_there_to_fire_it(run: Run) -> None:
    made = create(run, "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--key", "tea")
    assert (True, "tea", "enabled") == (made["created"], made["task_key"], made["status_text"])
    assert "Europe/Berlin" == made["schedule"]["timezone"]
    assert {"local", "utc", "in"} == set(made["next_fire_times"][0])
    assert made["will_fire"] is False
    assert any("crontask serve" in warning for warning in made["warnings"])


@pytest.mark.requirement("X-CLI")
def test_for_a_person_create_answers_one_sentence_and_warns_on_stderr(run: Run) -> None:
    done = run("create", "Tea", "--content", "Make tea.", "--in", "10m", "--key", "tea")
    assert 0 == done.exit_code
    assert done.stdout.startswith("Task 1 (tea) created. Fires once")
    assert 1 == len(done.stdout.splitlines())
    assert done.stderr.startswith("warning: No live node")


@pytest.mark.requirement("A2.1a")
@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        ((), "MISSING_ARGUMENT", "cron_expr"),
        (("--cron", "0 9 * * *", "--in", "10m"), "INVALID_ARGUMENT", "schedule_type"),
        (("--at", "2030-01-01T00:00:00Z", "--in", "10m"), "INVALID_ARGUMENT", "trigger_time"),
        (("--schedule-type", "1"), "MISSING_ARGUMENT", "delay_seconds"),
        (("--schedule-type", "2"), "MISSING_ARGUMENT", "cron_expr"),
        (("--schedule-type", "3"), "MISSING_ARGUMENT", "interval_seconds"),
        (("--schedule-type", "2", "--cron", "0 9 * * *", "--every", "90m"),
         "INVALID_ARGUMENT", "interval_seconds"),
        (("--in", "10m", "--max-fires", "3"), "INVALID_ARGUMENT", "max_fires"),
        (("--every", "10s"), "TOO_FREQUENT", "interval_seconds"),
        (("--at", "2020-01-01T00:00:00Z"), "TIME_IN_PAST", "trigger_time"),
    ],
)  # fmt: skip
def test_a_schedule_that_is_not_one_is_refused(
    run: Run, words: tuple[str, ...], code: str, field: str
) -> None:
    done = run("create", "Tea", "--content", "Make tea.", "--json", *words)
    exit_code = 4 if code == "TOO_FREQUENT" else 2
    assert (exit_code, code, field) == refusal(done)
    assert 0 == len(answer(run("list", "--json"))["tasks"])


@pytest.mark.requirement("A3.1a")
def test_create_with_a_key_may_be_repeated_and_conflicts_with_other_arguments(run: Run) -> None:
    words = ("--key", "tea", "--every", "90m")
    first, again = create(run, *words), create(run, *words)
    assert (True, False) == (first["created"], again["created"])
    assert first["task_id"] == again["task_id"]
    other = run("create", "Coffee", "--content", "Make tea.", "--json", *words)
    assert (4, "TASK_KEY_CONFLICT", "task_key") == refusal(other)


def test_content_may_come_from_standard_input_byte_for_byte(run: Run) -> None:
    content = '查询 CPA 🕘\n  {"game": "DNFM"}\n'
    done = run(
        "create", "CPA", "--content-file", "-", "--in", "1h", "--key", "k", "--json", stdin=content
    )
    answer(done)
    assert content == answer(run("get", "k", "--json"))["task_content"]


@pytest.mark.requirement("A2.2", "X-CLI")
def test_a_task_is_paused_resumed_run_and_deleted_each_twice_without_harm(run: Run) -> None:
    create(run, "--every", "90m", "--key", "tea")
    paused = answer(run("pause", "tea", "--reason", "holidays", "--json"))
    assert ("disabled", "holidays") == (paused["status_text"], paused["status_reason"])
    assert answer(run("pause", "tea", "--json"))["already"] is True
    assert "enabled" == answer(run("resume", "tea", "--json"))["status_text"]
    assert answer(run("resume", "tea", "--json"))["already"] is True
    assert "deleted" == answer(run("delete", "1", "--json"))["status_text"]
    assert answer(run("delete", "1", "--json"))["already"] is True
    assert (4, "INVALID_STATE") == refusal(run("resume", "1", "--json"))[:2]


@pytest.mark.requirement("X-T1", "X-CLI")
def test_update_changes_what_is_given_and_refuses_a_stale_revision(run: Run) -> None:
    create(run, "--every", "90m", "--key", "tea")
    changed = answer(run("update", "tea", "--cron", "0 9 * * *", "--revision", "1", "--json"))
    assert 2 == changed["schedule"]["schedule_type"] and 2 == changed["revision"]
    stale = run("update", "tea", "--max-retry", "1", "--revision", "1", "--json")
    assert (4, "REVISION_CONFLICT") == refusal(stale)[:2]
    dry = answer(run("update", "tea", "--max-retry", "1", "--dry-run", "--json"))
    assert (True, ["max_retry"]) == (dry["dry_run"], dry["changed"])
    assert 3 == answer(run("get", "tea", "--json"))["max_retry"]
    assert (2, "MISSING_ARGUMENT", "") == refusal(run("update", "tea", "--json"))


@pytest.mark.requirement("X-CLI")
def test_what_is_not_there_exits_3_and_offers_what_is_near(run: Run) -> None:
    create(run, "--every", "90m", "--key", "tea-daily")
    assert (3, "TASK_NOT_FOUND", "task_id") == refusal(run("get", "77", "--json"))
    assert (3, "TASK_NOT_FOUND", "task_key") == refusal(run("pause", "coffee", "--json"))
    done = run("get", "tea")
    assert 3 == done.exit_code
    assert "near:    tea-daily" in done.stderr and "crontask list" in done.stderr
    assert (3, "EXECUTION_NOT_FOUND") == refusal(run("cancel", "9", "--json"))[:2]
    unknown = run("report", "1", "run-x", "success", "--json")
    assert (3, "RUN_NOT_FOUND") == refusal(unknown)[:2]


def test_a_key_of_digits_is_found_with_by_key(run: Run) -> None:
    made = create(run, "--every", "90m", "--key", "2026")
    assert 3 == run("get", "2026").exit_code
    assert made["task_id"] == answer(run("get", "2026", "--by-key", "--json"))["task_id"]


@pytest.mark.requirement("X-T2", "X-T4")
def test_list_pages_filters_and_shows_each_task_once(run: Run) -> None:
    for number in range(3):
        create(run, "--every", "90m", "--key", f"k{number}", name=f"任务 {number}")
    answer(run("pause", "k1", "--json"))
    first = answer(run("list", "--limit", "2", "--json"))
    rest = answer(run("list", "--limit", "2", "--cursor", first["next_cursor"], "--json"))
    shown = [t["task_key"] for page in (first, rest) for t in page["tasks"]]
    assert (["k2", "k1", "k0"], 3) == (shown, first["total"])
    paused = answer(run("list", "--status", "paused", "--json"))
    assert ["k1"] == [t["task_key"] for t in paused["tasks"]]
    table = run("list").stdout.splitlines()
    assert table[0].split() == ["ID", "KEY", "NAME", "STATE", "SCHEDULE", "NEXT", "LAST", "FAILS"]
    assert "任务 2" in table[1]
    assert "3 of 3 tasks." == table[-1]


@pytest.mark.requirement("X-I1")
def test_users_see_their_own_tasks_and_all_users_shows_everybodys(run: Run) -> None:
    create(run, "--every", "90m", "--key", "tea", "--user", "ann")
    create(run, "--every", "90m", "--key", "tea", "--user", "ben")
    assert 1 == answer(run("list", "--user", "ann", "--json"))["total"]
    assert 0 == answer(run("list", "--json"))["total"]
    everybody = answer(run("list", "--all-users", "--json"))["tasks"]
    assert ["ben", "ann"] == [t["user_id"] for t in everybody]
    assert (3, "TASK_NOT_FOUND") == refusal(run("get", "1", "--user", "ben", "--json"))[:2]
    nobody = run("create", "x", "--content", "x", "--in", "1h", "--all-users", "--json")
    assert (2, "INVALID_ARGUMENT", "--all-users") == refusal(nobody)


@pytest.mark.requirement("X-S7")
def test_preview_shows_fires_in_words_and_creates_nothing(run: Run) -> None:
    view = answer(
        run("preview", "--cron", "0 9 * * *", "--tz", "UTC", "--after", "2030-01-01T00:00:00Z",
            "--count", "2", "--json")
    )  # fmt: skip
    assert ["2030-01-01T09:00:00Z", "2030-01-02T09:00:00Z"] == [
        at["utc"] for at in view["next_fire_times"]
    ]
    assert 0 == answer(run("list", "--json"))["total"]


# -- executions ----------------------------------------------------------------------------------


@pytest.mark.requirement("X-CLI")
def test_a_run_that_waits_is_listed_shown_in_full_and_cancelled(run: Run) -> None:
    create(run, "--every", "90m", "--key", "tea")
    ran = answer(run("run", "tea", "--key", "once", "--json"))
    again = answer(run("run", "tea", "--key", "once", "--json"))
    assert (True, False, again["execution_id"]) == (
        ran["created"], again["created"], ran["execution_id"],
    )  # fmt: skip
    number = str(ran["execution_id"])
    page = answer(run("executions", "tea", "--json"))
    assert [("pending", "manual")] == [
        (e["exec_status_text"], e["trigger"]) for e in page["executions"]
    ]
    assert "pending" == answer(run("executions", "--id", number, "--json"))["exec_status_text"]
    cancelled = answer(run("cancel", number, "--reason", "not needed", "--json"))
    assert "cancelled" == cancelled["exec_status_text"]
    only = answer(run("executions", "--status", "failed", "--json"))
    assert 0 == only["total"]
    shown = run("executions").stdout.splitlines()
    assert shown[0].split()[:3] == ["ID", "TASK", "FIRE"]
    assert "cancelled" in shown[1]


# -- import and export ---------------------------------------------------------------------------


def lines(count: int) -> str:
    return "".join(
        json.dumps(
            {
                "task_key": f"k{n}",
                "task_name": f"任务 {n}",
                "task_content": "do",
                "cron_expr": "0 9 * * *",
            }
        )
        + "\n"
        for n in range(count)
    )


@pytest.mark.requirement("X-CLI", "A3.1a")
def test_an_import_may_be_repeated_and_what_is_exported_may_be_imported(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(lines(1201), encoding="utf-8")
    for _ in range(2):
        assert 1201 == answer(run("import", str(file), "--json"))["tasks"]
    assert 1201 == answer(run("list", "--limit", "1", "--json"))["total"]
    exported = run("export").stdout
    assert 1201 == len(exported.splitlines())
    assert ("k0", "任务 0") == tuple(
        json.loads(exported.splitlines()[0])[n] for n in ("task_key", "task_name")
    )
    # Into this very store, and into another user's part of it, twice.
    assert 1201 == answer(run("import", "-", "--json", stdin=exported))["tasks"]
    for _ in range(2):
        other = run("import", "-", "--user", "ann", "--json", stdin=exported)
        assert 1201 == answer(other)["tasks"]
    assert exported == run("export", "--user", "ann").stdout


@pytest.mark.requirement("X-CLI")
def test_every_kind_of_task_survives_export_and_import(run: Run) -> None:
    create(run, "--in", "1h", "--key", "once", "--desc", "a", "--max-retry", "0")
    create(run, "--every", "1.5h", "--key", "every", "--max-fires", "9", "--overlap-policy", "skip")
    create(run, "--cron", "0 9 * * *", "--tz", "UTC", "--key", "cron", "--end-at",
           "2040-01-01T00:00:00Z", "--misfire-policy", "skip", "--misfire-grace", "5m")  # fmt: skip
    create(run, "--at", "2040-01-01T00:00:00+08:00", "--key", "paused", "--paused",
           "--delivery", "at_most_once", "--pause-after-failures", "3")  # fmt: skip
    exported = run("export").stdout
    answer(run("import", "-", "--user", "ann", "--json", stdin=exported))
    assert exported == run("export", "--user", "ann").stdout
    assert 4 == answer(run("import", "-", "--json", stdin=exported))["tasks"]


@pytest.mark.requirement("X-CLI")
def test_a_wrong_line_is_told_by_number_and_does_not_stop_the_others(run: Run) -> None:
    text = (
        lines(1)
        + '{"task_key": "x", "task_nam": "x"}\n'
        + "not json\n\n"
        + '{"task_name": "no key", "task_content": "x", "cron_expr": "0 9 * * *"}\n'
        + '{"task_key": "y", "task_name": "y", "task_content": "y", "cron_expr": "99 * * * *"}\n'
    )
    done = run("import", "-", "--json", stdin=text)
    view = json.loads(done.stdout)
    assert (1, 1, 4) == (done.exit_code, view["tasks"], view["failed"])
    assert [
        (2, "UNKNOWN_ARGUMENT"), (3, "INVALID_ARGUMENT"), (5, "MISSING_ARGUMENT"),
        (6, "INVALID_CRON"),
    ] == [(e["line"], e["code"]) for e in view["errors"]]  # fmt: skip
    assert "line 6: INVALID_CRON cron_expr" in run("import", "-", stdin=text).stderr


@pytest.mark.requirement("X-CLI")
def test_a_line_that_is_not_utf_8_is_a_wrong_line_and_a_mark_in_front_is_none(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.jsonl"
    good = lines(3).encode().splitlines(keepends=True)
    file.write_bytes(b"\xef\xbb\xbf" + good[0] + b'{"task_key": "\xff"}\n' + good[2])
    done = run("import", str(file), "--json")
    view = json.loads(done.stdout)
    assert (1, 2, 1) == (done.exit_code, view["tasks"], view["failed"])
    assert (2, "not UTF-8") == (view["errors"][0]["line"], view["errors"][0]["message"])


@pytest.mark.requirement("X-CLI")
def test_the_example_of_a_wrong_line_is_a_line_that_can_be_imported(run: Run) -> None:
    told = json.loads(run("import", "-", "--json", stdin="[]\n").stdout)["errors"][0]
    assert 1 == answer(run("import", "-", "--json", stdin=told["example"]))["tasks"]


@pytest.mark.requirement("X-CLI")
def test_an_instruction_file_that_is_not_text_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "content"
    file.write_bytes(b"Post the agenda \xff")
    done = run("create", "x", "--content-file", str(file), "--in", "5h")
    assert 2 == done.exit_code
    assert "what --content-file names is not UTF-8 text" in done.stderr


def test_an_import_of_another_users_tasks_needs_all_users(run: Run) -> None:
    record = {**json.loads(lines(1)), "user_id": "ann"}
    text = json.dumps(record)
    assert 1 == run("import", "-", stdin=text).exit_code
    assert 1 == answer(run("import", "-", "--all-users", "--json", stdin=text))["tasks"]
    exported = json.loads(run("export", "--all-users").stdout)
    assert "ann" == exported["user_id"]


# -- operate -------------------------------------------------------------------------------------


@pytest.mark.requirement("X-CLI")
def test_db_upgrade_and_check_and_prune_on_a_fresh_file(run: Run) -> None:
    assert 0 == run("db", "upgrade").exit_code
    assert 0 == run("db", "check").exit_code
    assert 0 == answer(run("db", "prune", "--json"))["deleted"]
    assert "CREATE TABLE t_cron_task" in run("db", "upgrade", "--sql").stdout


@pytest.mark.requirement("X-CLI")
def test_nodes_lists_none_where_none_has_started(run: Run) -> None:
    assert [] == answer(run("nodes", "--json"))["nodes"]


@pytest.mark.requirement("X-CLI", "X-S8")
def test_doctor_finds_what_is_wrong_and_gives_the_remedy(run: Run) -> None:
    done = run("doctor", "--json")
    view = json.loads(done.stdout)
    checks = {check["name"]: check for check in view["checks"]}
    assert (1, False) == (done.exit_code, view["ok"])
    assert ("ok", "ok") == (checks["store"]["state"], checks["tables"]["state"])
    assert "bad" == checks["live node"]["state"]
    assert "crontask serve" in checks["live node"]["remedy"]
    assert "bad" == checks["callback url"]["state"]
    assert "ok" == checks["zone data"]["state"] and checks["zone data"]["found"].startswith("20")


@pytest.mark.requirement("X-CLI")
def test_doctor_tells_a_broken_configuration_instead_of_failing(run: Run) -> None:
    done = run("doctor", "--json", "-o", "store.pool_size=many")
    checks = json.loads(done.stdout)["checks"]
    assert (1, "settings", "bad") == (done.exit_code, checks[0]["name"], checks[0]["state"])


@pytest.mark.requirement("X-CLI")
def test_a_store_that_cannot_be_used_exits_5_with_its_reason(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "not-a-database.db"
    text.write_text("hello " * 400)
    done = run("list", "--json", "-o", f"store.url=sqlite:///{text}")
    assert (5, "STORE_UNAVAILABLE") == refusal(done)[:2]
    missing = tmp_path / "file" / "in" / "the" / "way.db"
    (tmp_path / "file").write_text("")
    done = run("list", "--json", "-o", f"store.url=sqlite:///{missing}")
    assert (5, "STORE_UNAVAILABLE") == refusal(done)[:2]


# -- as a process --------------------------------------------------------------------------------


@pytest.mark.requirement("X-CLI", "X-CONF")
def test_the_installed_command_helps_beside_a_broken_file_and_fails_without_a_trace(
    tmp_path: Path,
) -> None:
    (tmp_path / "crontask.toml").write_text("store = [broken")
    helped = process(tmp_path, "list", "--help")
    assert (0, "") == (helped.returncode, helped.stderr)
    failed = process(tmp_path, "list")
    assert (2, "") == (failed.returncode, failed.stdout)
    assert failed.stderr.startswith("error: ") and "CONFIG_INVALID" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.requirement("X-CLI")
def test_a_port_in_use_is_named_and_exits_5(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for words in (
            ("serve", "-o", f"server.port={port}"),
            ("worker", "-o", f"server.port={port}"),
            ("agent", "--port", str(port)),
        ):
            done = process(tmp_path, *words, "--json")
            told = json.loads(done.stderr.splitlines()[-1])["error"]
            assert (5, "PORT_IN_USE") == (done.returncode, told["code"])
            assert str(port) in told["message"] and told["hint"]


def test_a_reader_that_stops_early_is_no_failure(tmp_path: Path) -> None:
    script = (
        f"{sys.executable} -m crontask_cli next '* * * * *' --tz UTC --count 9999 | head -n 1; "
        'exit "${PIPESTATUS[0]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (0, "", 1) == (done.returncode, done.stderr, len(done.stdout.splitlines()))


@pytest.mark.requirement("X-CLI")
def test_serve_without_an_agent_starts_prints_the_next_commands_and_stops_in_order(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "crontask_cli", "serve", "-o", "server.port=0"]
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ
    ) as serve:
        assert serve.stderr is not None
        seen = ""
        while "crontask serves MCP at http://127.0.0.1:" not in seen:
            line = serve.stderr.readline()
            assert line, seen
            seen += line
        serve.terminate()
        serve.communicate(timeout=30)
    assert 0 == serve.returncode
    assert "  crontask agent --port 8351" in seen
    assert "  crontask serve -o executor.default_callback_url=http://127.0.0.1:8351/" in seen
