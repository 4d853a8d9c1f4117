"""Random histories of several nodes, with everything going wrong, checked against the promises.

Coroutines are driven by hand, turn by turn, so that a crash can fall between any two steps and two
passes can interleave in any way; hypothesis chooses the history and shrinks a failing one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from crontask_core.errors import CrontaskError
from crontask_core.model import (
    Callback,
    Delivery,
    ExecStatus,
    Execution,
    NewTask,
    Report,
    Task,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import Answer
from crontask_core.ports import TaskRef
from crontask_core.testing import accept, broken, no_connection, respond, timeout
from tests.history import Ledger, Span, unaccounted
from tests.world import Node, World

PASSES = ("claim", "begin", "settle", "sweep", "heartbeat", "watch", "deliver", "turn")
ANSWERS = ("accept", "accept", "accept", "lost", "busy", "refused", "timeout", "reset", "down")
MOMENTS = (0.5, 1, 2, 5, 11, 30, 61, 300, 1900, 7200)
SHAPES: tuple[dict[str, object], ...] = (
    {"delay_seconds": 5},
    {"delay_seconds": 0, "delivery": "at_most_once"},
    {"delay_seconds": 90, "max_retry": 0},
    {"interval_seconds": 60},
    {"interval_seconds": 90, "overlap_policy": "skip"},
    {"cron_expr": "* * * * *", "misfire_policy": "run_all"},
    {"cron_expr": "*/7 * * * *", "misfire_policy": "skip"},
    {"cron_expr": "*/5 * * * *", "delivery": "at_most_once", "retry_interval_ms": 1000},
)


class History:
    """A world, the faults in it, and a record of what was promised."""

    def __init__(self) -> None:
        self.world = World()
        self.world.agent.default = self.answer
        self.next_answers: list[str] = []
        self.ledger = Ledger()
        self.keys = 0
        self.runs: list[tuple[Callback, str]] = []
        self.arrived: dict[str, int] = {}
        self.verdicts: dict[str, str] = {}
        self.jumped = False

    # -- driving -------------------------------------------------------------------------------
    def drive(self, work: Coroutine[Any, Any, Any], turns: int | None = None) -> Any:
        """Run to the end, or crash after ``turns``; an error of the store is only a bad pass."""
        left = turns
        try:
            while left is None or left > 0:
                work.send(None)
                left = None if left is None else left - 1
        except StopIteration as done:
            return done.value
        except CrontaskError as error:
            return error
        work.close()
        return None

    def race(
        self, one: Coroutine[Any, Any, Any], two: Coroutine[Any, Any, Any], order: int
    ) -> None:
        running = [one, two]
        while running:
            work = running[order % len(running)]
            order = order // 2 or 0b1011
            try:
                work.send(None)
            except (StopIteration, CrontaskError):
                running.remove(work)

    def step(self, node: Node, name: str) -> Coroutine[Any, Any, Any]:
        if name in ("deliver", "turn"):
            return getattr(node, name)()  # type: ignore[no-any-return]
        return getattr(node.engine, name)()  # type: ignore[no-any-return]

    def add_node(self) -> None:
        self.drive(self.world.node(concurrency=3))

    # -- the agent -----------------------------------------------------------------------------
    def answer(self, callback: Callback) -> Answer:
        row = self.world.store.executions[callback.execution_id]
        assert row.accepted_at is None, "sent again although an acceptance was recorded"
        assert row.reported_at is None, "sent again although a report was recorded"
        if not self.jumped:
            assert row.exec_status is ExecStatus.CALLING, "sent although another took it over"
        how = self.next_answers.pop(0) if self.next_answers else "accept"
        run_id = f"{callback.fire_id}/{callback.attempt}"
        if how in ("accept", "lost", "timeout", "reset", "busy"):
            self.arrived[callback.fire_id] = self.arrived.get(callback.fire_id, 0) + 1
        if how in ("accept", "timeout", "reset"):
            self.runs.append((callback, run_id))
        answers = {
            "accept": accept(run_id),
            "lost": respond(200, "<html>ok</html>"),
            "busy": respond(503),
            "refused": respond(400),
            "timeout": timeout(),
            "reset": broken(),
            "down": no_connection(),
        }
        return answers[how]

    def report(self, index: int, status: str, *, by_fire: bool) -> None:
        if not self.runs:
            return
        callback, run_id = self.runs[index % len(self.runs)]
        report = Report(
            task_id=callback.task_id,
            task_run_id=run_id,
            status=status,
            fire_id=callback.fire_id if by_fire else "",
        )
        result = self.drive(self.world.tasks.report(report))
        if isinstance(result, CrontaskError) or result is None or result.duplicate:
            return
        if not result.pending and status != "running":
            assert callback.fire_id not in self.verdicts, "a second final report was taken"
            self.verdicts[callback.fire_id] = status

    # -- callers -------------------------------------------------------------------------------
    def create(self, shape: int, user: str) -> None:
        self.keys += 1
        new = NewTask(
            task_name="t",
            task_content="c",
            conversation_id="c",
            task_key=f"k{self.keys}",
            **SHAPES[shape % len(SHAPES)],  # type: ignore[arg-type]
        )
        answer = self.drive(self.world.tasks.create(user, new))
        if not isinstance(answer, CrontaskError):
            self.ledger.arm(answer.task)

    def edit(self, index: int, how: str) -> None:
        ids = sorted(self.world.store.tasks)
        if not ids:
            return
        ref = TaskRef(id=ids[index % len(ids)])
        before = self.world.store.tasks[ref.id or 0]
        if how == "update":
            given = {"interval_seconds": 120}
            answer = self.drive(self.world.tasks.update(None, ref, given))
        else:
            answer = self.drive(getattr(self.world.tasks, how)(None, ref))
        after = self.world.store.tasks[before.id]
        if isinstance(answer, CrontaskError) or how == "run_now" or after == before:
            return
        if before.next_fire_time is not None and how != "resume":
            self.ledger.disarm(before.id, after.updated_at)
        if how in ("resume", "update"):
            self.ledger.arm(after)

    # -- the end -------------------------------------------------------------------------------
    def finish(self) -> None:
        """All faults end, every node dies, one new node cleans up until everything is final."""
        for node in self.world.nodes:
            node.repo.down = True
        self.world.nodes.clear()
        self.next_answers.clear()
        self.add_node()
        for _ in range(8):
            # By the watch on node counters, whatever the database's clock was set to.
            self.quiet(2)
        for task_id in list(self.ledger.spans):
            task = self.world.store.tasks[task_id]
            if task.status is not TaskStatus.DELETED:
                self.edit(sorted(self.world.store.tasks).index(task_id), "delete")
                self.ledger.disarm(task_id, self.world.store.tasks[task_id].updated_at)
        for _ in range(300):
            if not self.world.store.busy():
                return
            # A clock that went back takes its deadlines with it: wait them out.
            self.quiet(300)
        raise AssertionError(f"never ends: {self.world.store.busy()}")

    def quiet(self, seconds: float) -> None:
        self.world.clock.tick(seconds)
        for _ in range(200):
            (node,) = self.world.nodes
            self.drive(node.engine.watch())
            if not self.drive(node.turn()):
                return
        raise AssertionError("the node never comes to rest")

    def check(self) -> None:
        rows = list(self.world.store.executions.values())
        keys = [(e.task_id, e.fire_time, e.trigger_kind) for e in rows]
        assert len(keys) == len(set(keys)), "two executions for one fire"
        assert all(e.is_final and e.next_action_at is None for e in rows)
        for task_id, spans in self.ledger.spans.items():
            self.check_task(self.world.store.tasks[task_id], spans, rows)
        by_fire = {e.fire_id: e for e in rows}
        for fire_id, status in self.verdicts.items():
            wanted = ExecStatus.SUCCESS if status == "success" else ExecStatus.FAILED
            assert by_fire[fire_id].exec_status is wanted, "a report was lost"

    def check_task(self, task: Task, spans: list[Span], rows: list[Execution]) -> None:
        mine = [e for e in rows if e.task_id == task.id and e.trigger_kind is TriggerKind.SCHEDULE]
        assert unaccounted(spans, mine) == [], f"fires of {task.task_key} vanished"
        if task.delivery is Delivery.AT_MOST_ONCE:
            for execution in mine:
                assert self.arrived.get(execution.fire_id, 0) <= 1, "at most once was broken"


STEP = st.one_of(
    st.tuples(st.just("create"), st.integers(0, 7), st.sampled_from(["ann", "bob"])),
    st.tuples(st.just("time"), st.sampled_from(MOMENTS), st.just(0)),
    st.tuples(st.just("pass"), st.integers(0, 3), st.sampled_from(PASSES)),
    st.tuples(st.just("turn"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("round"), st.sampled_from(MOMENTS), st.integers(0, 3)),
    st.tuples(st.just("round"), st.sampled_from(MOMENTS[:5]), st.integers(0, 3)),
    st.tuples(
        st.just("race"),
        st.tuples(st.sampled_from(PASSES), st.sampled_from(PASSES)),
        st.integers(1, 63),
    ),
    st.tuples(
        st.just("crash"),
        st.integers(0, 3),
        st.tuples(st.sampled_from(PASSES), st.integers(0, 8)),
    ),
    st.tuples(
        st.just("fault"),
        st.integers(0, 3),
        st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(["*", "settle", "claim"])),
    ),
    st.tuples(st.just("answer"), st.sampled_from(ANSWERS), st.just(0)),
    st.tuples(
        st.just("report"),
        st.integers(0, 9),
        st.tuples(st.sampled_from(["success", "failed", "running"]), st.booleans()),
    ),
    st.tuples(
        st.just("edit"),
        st.integers(0, 9),
        st.sampled_from(["pause", "resume", "delete", "update", "run_now"]),
    ),
    st.tuples(st.just("jump"), st.sampled_from([-4000.0, -30.0, 30.0, 4000.0]), st.just(0)),
)


def play(history: History, step: tuple[Any, Any, Any]) -> None:
    what, one, two = step
    nodes = history.world.nodes
    if what == "create":
        history.create(one, two)
    elif what == "time":
        history.world.clock.tick(one)
    elif what == "pass":
        history.drive(history.step(nodes[one % len(nodes)], two))
    elif what == "round":
        history.world.clock.tick(one)
        for node in nodes:
            history.drive(node.engine.heartbeat())
        history.drive(nodes[two % len(nodes)].turn())
    elif what == "turn":
        history.drive(nodes[one % len(nodes)].engine.watch())
        history.drive(nodes[one % len(nodes)].turn())
    elif what == "race":
        left, right = nodes[0], nodes[-1]
        history.race(history.step(left, one[0]), history.step(right, one[1]), two)
    elif what == "crash":
        victim = nodes.pop(one % len(nodes))
        history.drive(history.step(victim, two[0]), two[1])
        history.add_node()
    elif what == "fault":
        repo = nodes[one % len(nodes)].repo
        (repo.fail_before if two[0] == "before" else repo.fail_after_commit)(two[1])
    elif what == "answer":
        history.next_answers.append(one)
    elif what == "report":
        history.report(one, two[0], by_fire=two[1])
    elif what == "edit":
        history.edit(one, two)
    elif what == "jump":
        history.jumped = True
        history.world.clock.jump(one)


@pytest.mark.requirement("A5.5")
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(STEP, min_size=30, max_size=100))
def test_in_every_history_each_due_fire_is_accounted_for_and_none_is_doubled(
    steps: list[tuple[Any, Any, Any]],
) -> None:
    history = History()
    for _ in range(3):
        history.add_node()
    for shape in range(len(SHAPES)):
        history.create(shape, "ann")
    for step in steps:
        play(history, step)
    history.finish()
    history.check()
