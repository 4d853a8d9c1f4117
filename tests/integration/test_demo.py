"""The demo as a user runs it: it shows the main job, tells the truth, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-u", "-m", "crontask_cli", "demo"]


def environ(tmp_path: Path) -> dict[str, str]:
    """Temporary files inside the test's folder, and settings that would break the demo if it took
    them from the user."""
    return {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "CRONTASK_STORE_URL": "sqlite:////nowhere/at/all.db",
        "CRONTASK_SERVER_PORT": "1",
    }


def processes(output: str) -> list[int]:
    """The ids of the processes the demo said it had started."""
    return [int(number) for number in re.findall(r"\(process (\d+)\)", output)]


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.requirement("X-CLI", "A6.1a", "A6.2r", "A6.3")
def test_the_demo_accounts_for_every_fire_in_time_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=False, timeout=90, env=environ(tmp_path)
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert time.monotonic() - begun < 45
    assert "6 fires were due, 6 are accounted for." in done.stdout
    assert "2 deliveries were repeated" in done.stdout
    assert 2 == len(processes(done.stdout))
    assert [] == running(processes(done.stdout))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.requirement("X-CLI")
def test_the_demo_as_json_is_one_document(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        env=environ(tmp_path),
    )
    view = json.loads(done.stdout)
    assert (0, True, []) == (done.returncode, view["ok"], view["problems"])
    states = sorted(e["exec_status_text"] for e in view["executions"])
    assert ["failed", *["success"] * 5] == states


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ(tmp_path)
    ) as demo:
        assert demo.stdout is not None
        seen = ""
        while "What happens" not in seen:
            line = demo.stdout.readline()
            assert line, seen
            seen += line
        demo.send_signal(number)
        out, err = demo.communicate(timeout=30)
    assert (130, "interrupted") == (demo.returncode, err.strip()), out
    assert 2 == len(processes(seen))
    assert [] == running(processes(seen))
    assert [] == list(tmp_path.iterdir())
