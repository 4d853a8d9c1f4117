"""The callers: they create tasks through the use cases, and edit, pause, delete and run them while
everything breaks. Each asks again until it has an answer, and writes down what it was told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import attrs

from chaos.evidence import Action, us
from chaos.plan import Plan
from crontask_core.answers import RunAnswer, TaskAnswer
from crontask_core.errors import CrontaskError
from crontask_core.model import NewTask, ScheduleType, Task
from crontask_core.ports import TaskRef
from crontask_core.tasks import Tasks

__all__ = ["Callers"]

T = TypeVar("T")
_AGAIN = 0.25
_USERS = 10
_MS = 1_000
_MINUTE = 60_000_000
_SHAPES: tuple[dict[str, Any], ...] = (
    *({},) * 8,
    {"delivery": "at_most_once"},
    {"overlap_policy": "skip"},
    {"misfire_policy": "run_all"},
    {"misfire_policy": "skip"},
    {"misfire_grace_seconds": 2},
    {"max_retry": 0},
)
_STEPS = (1.0, 1.0, 1.5, 2.0, 3.0)


@attrs.define
class _Known:
    """A task as its caller knows it; ``delivery`` and ``grace`` are as it was created."""

    task: Task
    new: NewTask
    paused: bool = False
    gone: bool = False
    busy: bool = False


@attrs.define
class Callers:
    """All callers in one; how many tasks they make is the plan's."""

    plan: Plan
    tasks: Tasks
    log: list[Action]
    _draw: random.Random = attrs.field(init=False)
    _known: list[_Known] = attrs.Factory(list)
    _count: int = 0
    _editing: set[asyncio.Task[None]] = attrs.Factory(set)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(self.plan.seed + 2)

    # -- what they do --------------------------------------------------------------------------
    async def populate(self) -> None:
        """Create the repeating tasks."""
        left = 0.6 * self.plan.rate
        news: list[NewTask] = []
        while left > 0:
            shape = dict(self._draw.choice(_SHAPES))
            step = self._draw.choice(_STEPS)
            if self._draw.random() < 0.06:
                shape["max_fires"] = self._draw.randrange(3, 15)
            left -= 1 / step
            news.append(self._new("e", interval_seconds=step, **shape))
        news += [self._new("c", cron_expr="* * * * *") for _ in range(5)]
        for user in range(_USERS):
            await self._create_many(user, news[user::_USERS], keep=True)

    async def one_offs(self, until: float) -> None:
        """Create one-offs in batches; most of them are due on a whole second."""
        every = 0.5
        while time.time() < until:
            began = time.time()
            news = [self._one_off() for _ in range(round(0.2 * self.plan.rate * every))]
            user = self._draw.randrange(_USERS)
            await self._create_many(user, news, keep=False)
            await asyncio.sleep(max(0.05, every - (time.time() - began)))

    async def bursts(self, until: float) -> None:
        """Create one-offs that are all due on the same whole second."""
        every = self.plan.burst_every
        many = self.plan.burst or round(0.2 * self.plan.rate * every)
        while time.time() < until:
            began = time.time()
            at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
            for user in range(_USERS):
                news = [self._new("b", trigger_time=at) for _ in range(user, many, _USERS)]
                await self._create_many(user, news, keep=False)
            await asyncio.sleep(max(0.05, every - (time.time() - began)))

    async def edits(self, until: float) -> None:
        """Change a repeating task now and then; several changes may be under way."""
        while time.time() < until:
            await asyncio.sleep(self._draw.uniform(0.1, 0.5))
            free = [k for k in self._known if not k.busy and not k.gone]
            if not free:
                continue
            known = self._draw.choice(free)
            known.busy = True
            task = asyncio.create_task(self._change(known))
            self._editing.add(task)
            task.add_done_callback(self._editing.discard)

    async def close(self) -> None:
        """Pause every repeating task, so that no more comes."""
        while self._editing:
            for done in (await asyncio.wait(set(self._editing)))[0]:
                done.result()
        room = asyncio.Semaphore(10)
        await asyncio.gather(*(self._last(known, room) for known in self._known if not known.gone))

    async def _last(self, known: _Known, room: asyncio.Semaphore) -> None:
        async with room:
            if not known.paused:
                await self._edit(known, "pause")

    # -- creating ------------------------------------------------------------------------------
    def _new(self, kind: str, **fields: Any) -> NewTask:
        self._count += 1
        return NewTask(
            task_name=f"chaos {kind}",
            task_content=f"do the work of {kind}{self._count}",
            conversation_id="chaos",
            task_key=f"{kind}{self._count}",
            **fields,
        )

    def _one_off(self) -> NewTask:
        at = datetime.now(UTC) + timedelta(seconds=self._draw.uniform(0.5, 4.0))
        if self._draw.random() < 0.6:
            at = at.replace(microsecond=0) + timedelta(seconds=1)
        shape = dict(self._draw.choice(_SHAPES))
        shape.pop("overlap_policy", None)
        shape.pop("misfire_policy", None)
        return self._new("o", trigger_time=at, **shape)

    async def _create_many(self, user: int, news: list[NewTask], *, keep: bool) -> None:
        asked = time.time()

        async def ask() -> list[Task | CrontaskError]:
            return await self.tasks.add_many(f"user{user}", news)

        made, _ = await self._until_answered(ask)
        for new, task in zip(news, made, strict=True):
            if isinstance(task, CrontaskError):
                raise task
            self._made(new, task, asked)
            if keep:
                self._known.append(_Known(task, new))

    def _made(self, new: NewTask, task: Task, asked: float) -> None:
        self.log.append(
            Action(
                what="create",
                task_id=task.id,
                task_key=task.task_key,
                asked=asked,
                answered=time.time(),
                at_us=us(task.created_at),
                max_fires=new.max_fires or 0,
                delivery=new.delivery or "at_least_once",
                grace=new.misfire_grace_seconds or 0.0,
                **_times(task),
            )
        )

    # -- changing ------------------------------------------------------------------------------
    async def _change(self, known: _Known) -> None:
        try:
            what = self._draw.choices(
                ["pause", "faster", "texts", "delete", "run_now"], [30, 25, 10, 10, 25]
            )[0]
            if what == "run_now":
                await self._run_now(known)
            elif what == "pause":
                await self._edit(known, "pause")
                await asyncio.sleep(self._draw.uniform(0.2, 3.0))
                await self._edit(known, "resume")
            elif what == "faster" and known.task.schedule_type is ScheduleType.EVERY:
                await self._edit(known, "update", {"interval_seconds": self._draw.choice(_STEPS)})
            elif what == "texts":
                self._count += 1
                await self._edit(known, "update", {"task_content": f"other work {self._count}"})
            elif what == "delete":
                await self._edit(known, "delete")
                known.gone = True
                user = int(known.task.user_id.removeprefix("user"))
                # The key is free again: the next task under it is another one.
                await self._create_many(user, [known.new], keep=True)
        finally:
            known.busy = False

    async def _edit(self, known: _Known, what: str, given: dict[str, object] | None = None) -> None:
        ref = TaskRef(id=known.task.id)
        user = known.task.user_id
        asked = time.time()

        async def ask() -> TaskAnswer:
            if given is not None:
                return await self.tasks.update(user, ref, given)
            answer: TaskAnswer = await getattr(self.tasks, what)(user, ref)
            return answer

        refused = ""
        unsure = False
        task = known.task
        try:
            answer, tries = await self._until_answered(ask)
            task, unsure = answer.task, answer.already
            if unsure and tries == 1:
                refused = "already"
        except CrontaskError as error:
            refused = error.code
        timed = given is None or "interval_seconds" in given
        self.log.append(
            Action(
                what=what,
                task_id=task.id,
                task_key=task.task_key,
                asked=asked,
                answered=time.time(),
                at_us=us(task.updated_at),
                unsure=unsure,
                refused=refused,
                **(_times(task) if timed else {}),
            )
        )
        known.paused = (known.paused or what == "pause") and what != "resume"
        if not refused:
            known.task = task

    async def _run_now(self, known: _Known) -> None:
        self._count += 1
        key = f"run{self._count}"
        asked = time.time()

        async def ask() -> RunAnswer:
            ref = TaskRef(id=known.task.id)
            return await self.tasks.run_now(known.task.user_id, ref, key)

        fire_id = refused = ""
        try:
            answer, _ = await self._until_answered(ask)
            fire_id = answer.execution.fire_id
        except CrontaskError as error:
            refused = error.code
        self.log.append(
            Action(
                what="run_now",
                task_id=known.task.id,
                task_key=known.task.task_key,
                asked=asked,
                answered=time.time(),
                refused=refused,
                fire_id=fire_id,
            )
        )

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Ask until there is an answer, good or bad; returns it with the number of tries."""
        tries = 0
        while True:
            tries += 1
            try:
                return await ask(), tries
            except CrontaskError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(_AGAIN)


def _times(task: Task) -> dict[str, Any]:
    if task.schedule_type is ScheduleType.CRON:
        return {"step_us": _MINUTE}
    if task.schedule_type is ScheduleType.EVERY:
        anchor = us(task.anchor_at) if task.anchor_at else 0
        return {"anchor_us": anchor, "step_us": (task.interval_ms or 0) * _MS}
    return {"once_us": us(task.trigger_time) if task.trigger_time else 0}
