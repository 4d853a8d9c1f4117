"""``crontask demo``: the main job, for real, on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from crontask_cli.render import clean, table
from crontask_cli.shell import Command, Shell, pass_shell

if TYPE_CHECKING:
    from mcp import Client

    from crontask_cli.demo_check import Delivery, Planned

__all__ = ["demo_command"]

_PATIENCE = 30.0
_LOOK_EVERY = 0.15


@attrs.frozen(kw_only=True)
class Scene:
    """A task to create, and what must come of it."""

    title: str
    about: str
    arguments: dict[str, Any]
    ends: str = "success"
    calls: int = 1


SCENES = (
    Scene(
        title="one-off",
        about="once, 3 s from now",
        arguments={"schedule_type": 1, "delay_seconds": 3},
    ),
    Scene(
        title="repeating",
        about="every 2 s, three times",
        arguments={"schedule_type": 3, "interval_seconds": 2, "max_fires": 3},
    ),
    Scene(
        title="flaky agent",
        about="the agent answers 503 twice before it accepts",
        arguments={
            "schedule_type": 1,
            "delay_seconds": 1,
            "retry_interval_ms": 300,
            "task_content": 'Fetch the numbers. Parameters: {"agent": "flaky", "times": 2}',
        },
        calls=3,
    ),
    Scene(
        title="failing run",
        about="the agent accepts, then reports that it failed",
        arguments={
            "schedule_type": 1,
            "delay_seconds": 2,
            "task_content": 'Send the mail. Parameters: {"agent": "fail"}',
        },
        ends="failed",
    ),
)


@click.command("demo", cls=Command, examples=["crontask demo", "crontask demo --keep"])
@click.option("--keep", is_flag=True, help="Keep the folder with database and logs.")
@pass_shell
def demo_command(shell: Shell, keep: bool) -> None:
    """Watch the main job: tasks made, fired, reported and checked.

    Starts a server on a fresh SQLite file and the sample agent, each a process of its own, creates
    tasks over MCP, tells each fire as it happens, and checks that every one is accounted for.
    Takes about 15 s, leaves nothing running; exits 1 with the reason if anything is off.
    """
    with _folder(keep) as folder:
        story = Story(quiet=shell.as_json)
        problems = _play(story, folder)
        if shell.as_json:
            view = {"ok": not problems, "executions": story.executions, "problems": problems}
            click.echo(json.dumps(view, ensure_ascii=False, indent=2))
        if keep:
            click.echo(f"kept: {folder}", err=True)
    if problems:
        from crontask_cli.demo_stage import DemoFailed

        raise DemoFailed("the demo is off: " + "; ".join(problems))


@contextlib.contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if keep:
        yield Path(tempfile.mkdtemp(prefix="crontask-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="crontask-demo-") as name:
        yield Path(name)


def _play(story: Story, folder: Path) -> list[str]:
    """Run it to its end; a signal to stop ends both processes first."""

    async def run() -> list[str]:
        me = asyncio.current_task()
        assert me is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, me.cancel)
        return await _perform(story, folder)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _perform(story: Story, folder: Path) -> list[str]:
    from crontask_adapters.clock import SystemClock
    from crontask_cli.demo_check import faults
    from crontask_cli.demo_stage import Stage
    from crontask_server.mcp_client import mcp_client

    clock = SystemClock()
    begun = clock.elapsed()
    story.head("An agent makes tasks over MCP and is called back on time")
    async with Stage(folder=folder, hear=story.hear, clock=clock) as stage:
        pids = stage.pids()
        story.say(f"server  {stage.mcp_url} (process {pids['server']}), a fresh SQLite file")
        story.say(f"agent   {stage.agent_url} (process {pids['agent']})")
        async with mcp_client(stage.mcp_url) as client:
            story.head("Four tasks, created through an MCP client")
            plan = [await _create(client, story, scene) for scene in SCENES]
            story.head("What happens")
            until = clock.elapsed() + _PATIENCE
            while not await _look(client, story, plan):
                stage.check()
                if clock.elapsed() > until:
                    story.say(f"not all had ended after {_PATIENCE:g} s")
                    break
                await clock.sleep(_LOOK_EVERY)
    problems = faults(plan, story.executions, story.deliveries)
    story.end(plan, problems, clock.elapsed() - begun)
    return problems


async def _create(client: Client, story: Story, scene: Scene) -> Planned:
    from crontask_cli.demo_check import Planned
    from crontask_server.mcp_client import call_tool

    arguments = {
        "task_name": scene.title,
        "task_key": scene.title.replace(" ", "-"),
        "conversation_id": "demo",
        "task_content": f"Say that the {scene.title} task ran.",
        **scene.arguments,
    }
    made = await call_tool(client, "create_cron_task", arguments)
    again = await call_tool(client, "create_cron_task", arguments)
    if not made.get("created") or again.get("created") or again["task_id"] != made["task_id"]:
        from crontask_cli.demo_stage import DemoFailed

        raise DemoFailed(f"creating {scene.title!r} twice with one key did not give one task")
    due = [at["local"] for at in made["next_fire_times"]]
    story.titles[made["task_id"]] = scene.title
    story.say(f"task {made['task_id']}  {scene.title:<12} {scene.about}; next {_clock(due[0])}")
    return Planned(
        task_id=made["task_id"],
        title=scene.title,
        due=tuple(datetime.fromisoformat(text) for text in due),
        ends=scene.ends,
        calls=scene.calls,
    )


async def _look(client: Client, story: Story, plan: list[Planned]) -> bool:
    """Take in the executions as they are now; whether all there must be have ended."""
    from crontask_server.mcp_client import call_tool

    page = await call_tool(client, "get_task_executions", {"page_size": 100})
    story.take(list(reversed(page["executions"])))
    ended = sum(1 for e in story.executions if "end_time" in e)
    return ended >= sum(len(task.due) for task in plan)


def _clock(text: str) -> str:
    """The time of day of an ISO instant, on this host's clock, with milliseconds."""
    at = datetime.fromisoformat(text).astimezone()
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


@attrs.define(kw_only=True)
class Story:
    """What was seen, and its telling."""

    quiet: bool
    titles: dict[int, str] = attrs.field(factory=dict)
    executions: list[dict[str, Any]] = attrs.field(factory=list)
    deliveries: list[Delivery] = attrs.field(factory=list)
    _states: dict[int, str] = attrs.field(factory=dict)

    def head(self, text: str) -> None:
        self._write("\n" + click.style(text, bold=True))

    def say(self, text: str) -> None:
        self._write("  " + clean(text))

    def hear(self, event: dict[str, Any]) -> None:
        """Something the agent did."""
        from crontask_cli.demo_check import Delivery

        kind = event["event"]
        if kind in ("called", "repeat"):
            delivery = Delivery(
                fire_id=event["fire_id"],
                status=event["status"],
                lateness_ms=event["lateness_ms"],
            )
            self.deliveries.append(delivery)
            late = f"{delivery.lateness_ms:.0f} ms after it was due"
            self._tell(event, f"agent called, {late}, call {event['attempt']}: {event['status']}")
        elif kind == "reported":
            self._tell(event, f"agent reported {event['status']} over MCP")
        elif kind in ("refused", "unreadable"):
            self._tell(event, f"agent: {kind} {event.get('error', '')}")

    def take(self, executions: list[dict[str, Any]]) -> None:
        """The executions as the server answers them; tells each that changed."""
        from crontask_adapters.clock import utcnow

        self.executions = executions
        for execution in executions:
            number, state = execution["execution_id"], execution["exec_status_text"]
            if state == "pending" and execution["delivery"]["calls"]:
                state = "waiting for its retry"
            before = self._states.get(number)
            if before != state:
                moved = f"{before} -> {state}" if before else state
                seen = {"at": utcnow().isoformat(), "task_id": execution["task_id"]}
                self._tell(seen, f"execution {number}: {moved}")
                self._states[number] = state

    def end(self, plan: list[Planned], problems: list[str], seconds: float) -> None:
        """The table of executions, and the guarantee."""
        if self.quiet:
            return
        self.head("Every execution")
        first: dict[str, float] = {}
        for delivery in self.deliveries:
            first.setdefault(delivery.fire_id, delivery.lateness_ms)
        table(
            ["ID", "TASK", "FIRE TIME", "LATE ms", "CALLS", "DELIVERY", "STATE", "NOTE"],
            [
                [
                    e["execution_id"],
                    self.titles.get(e["task_id"], e["task_id"]),
                    _clock(e["fire_time"]["local"]),
                    f"{first[e['fire_id']]:.0f}" if e["fire_id"] in first else "",
                    e["delivery"]["calls"],
                    e["delivery"]["state"],
                    e["exec_status_text"],
                    e.get("error_msg") or e["result"].get("text", ""),
                ]
                for e in self.executions
            ],
            right="ID CALLS",
        )
        due = sum(len(task.due) for task in plan)
        self.head("The guarantee")
        if not problems:
            again = len(self.deliveries) - due
            self.say(f"{due} fires were due, {due} are accounted for.")
            self.say(
                f"{again} deliveries were repeated, each with its fire's own fire_id and only "
                "because the agent had not accepted."
            )
            self.say(f"All good, in {seconds:.1f} s. Both processes have ended.")
        for problem in problems:
            self.say(f"OFF: {problem}")

    def _tell(self, event: dict[str, Any], text: str) -> None:
        title = self.titles.get(event.get("task_id", 0), "")
        self.say(f"{_clock(event['at'])}  {title:<12}  {text}")

    def _write(self, text: str) -> None:
        if not self.quiet:
            click.echo(text)
