"""The commands of the tutorial and of the README, in order, as a reader would give them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.unit.test_docs import DOCS, ROOT, blocks

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@attrs.define
class Reader:
    """Types blocks into terminals in one folder, on ports that are free here."""

    folder: Path
    server_port: int = attrs.Factory(free_port)
    agent_port: int = attrs.Factory(free_port)
    terminals: list[subprocess.Popen[bytes]] = attrs.Factory(list)

    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
        own = {"PATH": f"{BIN}:{clean['PATH']}", "CRONTASK_SERVER_PORT": str(self.server_port)}
        return {**clean, **own, "HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}

    def types(self, block: str) -> str:
        """What a block prints, warnings included. Its last command must succeed, and all others."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(block)],
            cwd=self.folder,
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert 0 == done.returncode, f"{block}\n{done.stdout}"
        return done.stdout

    def opens_terminal(self, block: str) -> subprocess.Popen[bytes]:
        command = self._here(block).strip()
        if command == "crontask agent":
            command += f" --port {self.agent_port}"
        terminal = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.terminals.append(terminal)
        return terminal

    def waits_for(self, command: str, words: str, seconds: float = 30) -> str:
        """The output of a command, once it has these words."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(AssertionError):
                if words in (output := self.types(command)):
                    return output
            time.sleep(0.2)
        raise AssertionError(f"{command}: {words!r} never came: {self.types(command)}")

    def _here(self, block: str) -> str:
        return block.replace("8350", str(self.server_port)).replace("8351", str(self.agent_port))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for terminal in reader.terminals:
        terminal.kill()
        terminal.wait()


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    steps = iter(blocks(DOCS / "tutorial.md", "sh"))
    assert "identity.user" in reader.types(next(steps))
    reader.folder /= "tutorial"
    reader.opens_terminal(next(steps))
    server = reader.opens_terminal(next(steps))
    assert "Nothing is wrong." in reader.waits_for(next(steps), "Nothing is wrong.")

    assert "hello" in reader.types(next(steps))
    shown = reader.waits_for(next(steps), "success")
    assert "completed" in shown
    assert "exists already" in reader.types(next(steps))

    assert "at 09:00 on Monday to Friday" in reader.types(next(steps))
    reader.types(next(steps))
    assert "stand-up" in reader.waits_for("crontask executions stand-up", "success")
    assert "paused" in reader.types(next(steps))

    calls = [line for line in reader.types(next(steps)).splitlines() if "  call " in line]
    assert [True, True, False] == ["503" in line for line in calls]
    assert "failed" in reader.types(next(steps))

    server.send_signal(signal.SIGINT)
    assert 0 == server.wait(timeout=20)
    assert "No live node" in reader.types(next(steps))
    reader.opens_terminal(next(steps))
    assert "success" in reader.waits_for("crontask get late", "success")
    assert [] == list(steps)


def test_the_quick_start_of_the_readme_ends_in_a_success(reader: Reader) -> None:
    (block,) = [b for b in blocks(ROOT / "README.md", "sh") if "crontask serve" in b]
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    venv, export, *rest = [line for line in lines if line]
    assert venv.startswith("make venv")
    serve, agent, create, get = rest
    name, _, value = export.removeprefix("export ").partition("=")
    reader.opens_terminal(f"env {name}={value} {serve}")
    reader.opens_terminal(agent)
    reader.waits_for(f"{export}\ncrontask doctor", "Nothing is wrong.")
    assert "No live node" not in reader.types(f"{export}\n{create}")
    assert "completed" in reader.waits_for(get, "success")
