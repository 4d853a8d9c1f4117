"""``make demo-batch`` plays to its end and finds nothing off."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def test_the_batch_demo_is_good_and_leaves_nothing_running(tmp_path: Path) -> None:
    began = time.monotonic()
    shown = subprocess.run(
        [sys.executable, "-m", "crontask_cli.batch_demo"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert time.monotonic() - began < 100
    for words in ("kill -9 node-", "abandoned", "3 in a row", "ended with 0", "All good"):
        assert words in shown.stdout
    assert "OFF" not in shown.stdout
