"""People and agents who make, change and delete tasks while everything goes wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from crontask_core.errors import CrontaskError
from crontask_core.model import NewTask, TaskStatus
from crontask_core.ports import TaskRef
from crontask_core.tasks import Tasks
from tests.simulation.agents import HOSTS
from tests.simulation.database import Txn
from tests.simulation.dice import Dice
from tests.simulation.loop import rest

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Callers"]

SHAPES: tuple[dict[str, Any], ...] = (
    {"delay_seconds": 0},
    {"delay_seconds": 3},
    {"delay_seconds": 11, "delivery": "at_most_once"},
    {"delay_seconds": 1, "max_retry": 0},
    {"interval_seconds": 7},
    {"interval_seconds": 13, "overlap_policy": "skip"},
    {"interval_seconds": 5, "misfire_policy": "run_all", "misfire_grace_seconds": 40},
    {"interval_seconds": 9, "misfire_policy": "skip", "delivery": "at_most_once"},
    {"interval_seconds": 6, "max_fires": 4},
    {"interval_seconds": 8, "pause_after_failures": 2, "max_retry": 0},
    {"interval_seconds": 4, "misfire_grace_seconds": 3},
    {"cron_expr": "* * * * *", "misfire_policy": "run_all"},
    {"cron_expr": "*/2 * * * *", "report_timeout_seconds": 20},
)
USERS = ("ann", "bob", "cho")


class Callers:
    """One caller after another. ``made`` holds what was acknowledged: key, user, transactions."""

    def __init__(self, world: World, dice: Dice) -> None:
        self.world = world
        self.made: list[tuple[str, str, list[Txn]]] = []
        self._dice = dice
        self._keys = 0

    async def run(self) -> None:
        """Until cancelled."""
        dice = self._dice
        for _ in range(4):
            await self._create()
        acts = (
            self._create, self._create, self._create, self._edit, self._edit, self._edit,
            self._update, self._update, self._run_now, self._run_now, self._cancel, self._crowd,
        )  # fmt: skip
        while True:
            await rest(dice.spread(self.world.plan.calls))
            await dice.pick(acts)()

    async def wind_up(self) -> None:
        """Some time in peace, then every task that would fire for ever is deleted."""
        await rest(8.0)
        store = self.world.db.store
        for task_id in sorted(store.tasks):
            task = store.tasks[task_id]
            alive = task.status in (TaskStatus.ENABLED, TaskStatus.DISABLED)
            if alive and (task.interval_ms or task.cron_expr):
                await self._insist(_on(task_id, "delete"), [])

    # -- requests ------------------------------------------------------------------------------
    async def _insist(self, request: Callable[[Tasks], Awaitable[Any]], txns: list[Txn]) -> Any:
        """Ask until there is an answer that stands."""
        for _ in range(60):
            found = await self.world.ask(request, txns)
            if found is not None and not (isinstance(found, CrontaskError) and found.retryable):
                return found
            await rest(self._dice.between(0.2, 2.0))
        return None

    async def _create(self) -> None:
        await self._make(self._dice.pick(USERS), dict(self._dice.pick(SHAPES)))

    async def _make(self, user: str, fields: dict[str, Any]) -> None:
        self._keys += 1
        key = f"k{self._keys}"
        dice = self._dice
        if dice.chance(0.6):
            fields["callback_url"] = f"http://{dice.pick(HOSTS)}/v1/task/execute"
        if "interval_seconds" in fields and dice.chance(0.2):
            fields["end_at"] = self.world.db.now() + timedelta(seconds=dice.between(10, 80))
        if dice.chance(0.07) and "delay_seconds" in fields:
            del fields["delay_seconds"]
            fields["trigger_time"] = self.world.db.now() - timedelta(seconds=dice.between(0, 50))
        if dice.chance(0.15):
            fields["delivery"] = "at_most_once"
        fields["paused"] = dice.chance(0.05)
        new = NewTask(task_name=key, task_content="c", task_key=key, **fields)
        txns: list[Txn] = []
        answer = await self._insist(lambda tasks: tasks.create(user, new), txns)
        self.world.tell("caller", f"creates {key} for {user}: {_said(answer)} {fields}")
        if answer is not None and not isinstance(answer, CrontaskError):
            self.made.append((key, user, txns))

    async def _crowd(self) -> None:
        """One user's many fires at one instant, and another's single one."""
        at = self.world.db.now() + timedelta(seconds=self._dice.between(1, 6))
        news = []
        for _ in range(self._dice.pick((8, 25))):
            self._keys += 1
            key = f"k{self._keys}"
            news.append(NewTask(task_name=key, task_content="c", task_key=key, trigger_time=at))
        found = await self._insist(lambda tasks: tasks.add_many("hog", news), [])
        self.world.tell("caller", f"a crowd of {len(news)} for hog: {found is not None}")
        await self._make("dan", {"trigger_time": at + timedelta(milliseconds=50)})

    def _some(self) -> int | None:
        ids = sorted(self.world.db.store.tasks)
        return self._dice.pick(ids[-40:]) if ids else None

    async def _edit(self) -> None:
        task_id = self._some()
        if task_id is not None:
            how = self._dice.pick(("pause", "pause", "resume", "resume", "resume", "delete"))
            answer = await self.world.ask(_on(task_id, how))
            self.world.tell("caller", f"{how} of task {task_id}: {_said(answer)}")

    async def _update(self) -> None:
        task_id = self._some()
        if task_id is not None:
            given = dict(
                self._dice.pick(
                    (
                        {"interval_seconds": 6},
                        {"interval_seconds": 17},
                        {"cron_expr": "* * * * *"},
                        {"delay_seconds": 4},
                        {"task_content": "other"},
                        {"misfire_policy": "run_all"},
                    )
                )
            )
            ref = TaskRef(id=task_id)
            answer = await self.world.ask(lambda tasks: tasks.update(None, ref, given))
            self.world.tell("caller", f"update of task {task_id} {given}: {_said(answer)}")

    async def _run_now(self) -> None:
        task_id = self._some()
        if task_id is not None:
            key = self._dice.pick((None, "once", f"at-{self._keys}"))
            ref = TaskRef(id=task_id)
            answer = await self.world.ask(lambda tasks: tasks.run_now(None, ref, key))
            self.world.tell("caller", f"run now of task {task_id} ({key}): {_said(answer)}")

    async def _cancel(self) -> None:
        rows = [e.id for e in self.world.db.store.busy()]
        if rows:
            number = self._dice.pick(sorted(rows))
            answer = await self.world.ask(lambda tasks: tasks.cancel(None, number, "changed mind"))
            self.world.tell("caller", f"cancel of execution {number}: {_said(answer)}")


def _on(task_id: int, how: str) -> Callable[[Tasks], Awaitable[Any]]:
    return lambda tasks: getattr(tasks, how)(None, TaskRef(id=task_id))  # type: ignore[no-any-return]


def _said(answer: Any) -> str:
    if answer is None:
        return "no answer"
    return f"{answer.code}" if isinstance(answer, CrontaskError) else "done"
