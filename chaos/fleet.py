"""The nodes: processes of the real command, started, killed, frozen and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from chaos.agents import NODE_HEADER
from chaos.evidence import Exit, Fault
from chaos.plan import Plan

__all__ = ["Fleet", "Node", "skew_library"]

_STOP_LIMIT = 30.0
_AGAIN = 0.3
_UP = b"crontask serves health"
_STEADY = ("lib/*/faketime/libfaketimeMT.so.1", "lib/faketime/libfaketimeMT.so.1")


def skew_library() -> str:
    """libfaketime, which gives a process another wall clock; "" where it is not installed."""
    for pattern in _STEADY:
        for path in sorted(Path("/usr").glob(pattern)):
            return str(path)
    return ""


@attrs.define
class Node:
    """One process. ``slot`` stays over restarts, ``name`` is the process alone."""

    slot: int
    name: str
    process: asyncio.subprocess.Process
    log: Path
    skew: float
    born: float = attrs.Factory(time.time)
    wanted: bool = False
    stuck: bool = False
    frozen: bool = False
    _ready: bool = False

    @property
    def ready(self) -> bool:
        """Whether it has begun to fire: a new process needs a second, on a busy machine several."""
        if not self._ready:
            self._ready = _UP in self.log.read_bytes()
        return self._ready and self.up and not self.frozen and not self.wanted

    @property
    def up(self) -> bool:
        return self.process.returncode is None


@attrs.define
class Fleet:
    """Keeps ``plan.nodes`` slots filled. ``skew`` draws the clock error of a new process."""

    plan: Plan
    options: Mapping[str, str]
    folder: Path
    faults: list[Fault]
    exits: list[Exit]
    skew: Callable[[], float]
    library: str = ""
    nodes: dict[int, Node] = attrs.Factory(dict)
    launched: int = 0
    _watchers: set[asyncio.Task[None]] = attrs.Factory(set)
    _closing: bool = False

    async def start(self) -> None:
        for slot in range(1, self.plan.nodes + 1):
            await self.launch(slot)

    async def launch(self, slot: int) -> Node:
        """Start a fresh process in a slot."""
        self.launched += 1
        name = f"n{slot}.{self.launched}"
        skew = self.skew() if self.library else 0.0
        given = {
            **self.options,
            "scheduler.node_id": name,
            "callback.headers": f"{NODE_HEADER}: {name}",
        }
        if "redis.url" in given:
            given["redis.lock"] = "on" if slot % 2 else "auto"
        words = [part for key, value in given.items() for part in ("-o", f"{key}={value}")]
        module = ["chaos.planted", self.plan.planted] if self.plan.planted else ["crontask_cli"]
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module, *words, "worker"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(skew),
                cwd=self.folder,
                start_new_session=True,
            )
        node = self.nodes[slot] = Node(slot, name, process, path, skew)
        watcher = asyncio.create_task(self._watch(node))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return node

    def _environment(self, skew: float) -> dict[str, str]:
        root = str(Path(__file__).resolve().parent.parent)
        known = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
        path = os.pathsep.join(p for p in (root, known.get("PYTHONPATH", "")) if p)
        env = {**known, "HOME": str(self.folder), "PYTHONPATH": path}
        if skew:
            # The wall clock alone: elapsed time cannot be set on any machine.
            env |= {
                "LD_PRELOAD": self.library,
                "FAKETIME": f"{skew:+.3f}",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return env

    async def _watch(self, node: Node) -> None:
        code = await node.process.wait()
        _forget_skew(node.process.pid)
        at = time.time()
        self.exits.append(
            Exit(
                node=node.name,
                at=at,
                age=at - node.born,
                code=code,
                wanted=node.wanted,
                stuck=node.stuck,
            )
        )
        if not node.wanted and not self._closing:
            await asyncio.sleep(_AGAIN)
            if not self._closing and self.nodes.get(node.slot) is node:
                await self.launch(node.slot)

    # -- what is done to a node ----------------------------------------------------------------
    async def kill(self, node: Node) -> None:
        """kill -9."""
        start = time.time()
        node.wanted = True
        _signal(node, signal.SIGKILL)
        await node.process.wait()
        self.faults.append(Fault(kind="kill", node=node.name, start=start, end=time.time()))

    async def freeze(self, node: Node, seconds: float, kind: str) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        start = time.time()
        node.frozen = True
        _signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            _signal(node, signal.SIGCONT)
            node.frozen = False
            self.faults.append(Fault(kind=kind, node=node.name, start=start, end=time.time()))

    async def terminate(self, node: Node) -> None:
        """SIGTERM, as a rolling deploy does; one that does not end is killed, and that shows."""
        node.wanted = True
        start = time.time()
        _signal(node, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_LIMIT):
                await node.process.wait()
        except TimeoutError:
            node.stuck = True
            _signal(node, signal.SIGKILL)
        self.faults.append(Fault(kind="term", node=node.name, start=start, end=time.time()))

    async def close(self) -> None:
        """Stop all in order."""
        self._closing = True
        await asyncio.gather(*(self.terminate(n) for n in self.nodes.values() if n.up))
        await asyncio.gather(*self._watchers)

    async def abort(self) -> None:
        """Kill what still runs, whatever happened."""
        self._closing = True
        for node in self.nodes.values():
            if node.up:
                node.wanted = True
                _signal(node, signal.SIGKILL)
        await asyncio.gather(*self._watchers, return_exceptions=True)


def _signal(node: Node, number: signal.Signals) -> None:
    if node.up:
        node.process.send_signal(number)


def _forget_skew(pid: int) -> None:
    # A killed process leaves what libfaketime shares with its children.
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)
