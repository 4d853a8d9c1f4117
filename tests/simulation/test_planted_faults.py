"""The simulation finds what it is there to find: with a rule taken out, some history breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest

from crontask_core.engine import Engine
from crontask_core.model import ExecStatus, Execution, Rules, Task, evolve
from crontask_core.policy import calls, deadlines, edits, fires, queue, reports
from crontask_core.policy.calls import Outcome
from crontask_core.policy.watch import NodeWatch
from crontask_server.runtime import Runtime

SEEDS = range(60)
Plant = Callable[[pytest.MonkeyPatch], None]


def send_without_a_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A frozen node sends what another took over."""
    patch.setattr(Engine, "_heard_lately", lambda self: True)


def settle_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes last writes, whether the fire is still his or not."""
    patch.setattr(calls, "_owned", lambda row, outcome, node: row.exec_status is ExecStatus.CALLING)


def forget_what_was_due_at_a_pause(patch: pytest.MonkeyPatch) -> None:
    def stop(writes: Any, task: Task, why: str, now: datetime, rules: Rules) -> Task:
        return evolve(task, next_fire_time=None, updated_at=now)

    patch.setattr(edits, "stop_firing", stop)


def forget_adoption(patch: pytest.MonkeyPatch) -> None:
    """Rows of a commit that was not acknowledged wait for the end of their lease."""

    async def adopt(self: Engine) -> None:
        self._doubt = False

    patch.setattr(Engine, "_adopt", adopt)


def adopt_what_is_in_hand(patch: pytest.MonkeyPatch) -> None:
    """What was settled while the question was under way looks forgotten."""

    async def adopt(self: Engine) -> None:
        if self._doubt:
            rows = await self.repo.mine(self.node.incarnation)
            self._doubt = False
            self._take([(e, t) for e, t in rows if e.id not in self._hand])

    patch.setattr(Engine, "_adopt", adopt)


def lose_early_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "_take_note", lambda writes, done, note, now: done)
    patch.setattr(deadlines, "apply_inbox", lambda execution, note, now: execution)


def retire_after_one_look(patch: pytest.MonkeyPatch) -> None:
    """Nodes are called dead before anybody watched them for long enough."""

    def read(self: NodeWatch, nodes: Sequence[tuple[str, int]], at: float) -> list[Any]:
        seen = dict(nodes)
        dead = [(n, c) for n, c in nodes if self._seen.get(n) == c]
        self._seen = seen  # type: ignore[assignment]
        return dead

    patch.setattr(NodeWatch, "read", read)


def take_over_at_most_once(patch: pytest.MonkeyPatch) -> None:
    """What may have arrived is sent again, whatever the task says."""
    real = calls._taken_over

    def taken(row: Execution, task: Task, why: str, now: datetime, rules: Rules) -> Execution:
        return real(row, evolve(task, delivery=Rules and "at_least_once"), why, now, rules)

    patch.setattr(calls, "_taken_over", taken)


def leave_retries_where_they_are(patch: pytest.MonkeyPatch) -> None:
    """A retry whose time has come does not enter the queue."""
    patch.setattr(deadlines, "enqueue_again", lambda *args: None)


def second_reports_win(patch: pytest.MonkeyPatch) -> None:
    real = reports.plan_report

    def plan(execution: Execution, *rest: Any) -> Any:
        return real(evolve(execution, reported_at=None), *rest)

    patch.setattr("crontask_core.testing.fire_repo.plan_report", plan)


def one_queue_for_all(patch: pytest.MonkeyPatch) -> None:
    """First come, first served: a single fire waits behind another user's thousand."""

    def ready(view: queue.QueueView, users: Any, now: datetime) -> Any:
        real = queue.queue_ready(view, [(user, host) for user, host in users], now)
        micros = (now - queue._EPOCH) // timedelta(microseconds=1)
        return [attrs.evolve(row, queue_key=micros) for row in real]

    patch.setattr(fires, "queue_ready", ready)
    patch.setattr(calls, "queue_ready", ready)


def forget_a_poll(patch: pytest.MonkeyPatch) -> None:
    """A loop that once sleeps, sleeps until somebody wakes it."""

    async def rest(self: Runtime, horizon: Any) -> None:
        await self._wait(self._wake, 45.0)

    patch.setattr(Runtime, "_rest", rest)


def settle_by_number_alone(patch: pytest.MonkeyPatch) -> None:
    """An answer to a fire that a fail-over lost counts for the fire that got its number."""
    real = calls.plan_settle

    def plan(rows: Sequence[tuple[Outcome, Execution, Task]], *rest: Any) -> Any:
        return real([(attrs.evolve(o, fire_id=""), e, t) for o, e, t in rows], *rest)

    patch.setattr("crontask_core.testing.fire_repo.plan_settle", plan)


def come_back_while_leaving(patch: pytest.MonkeyPatch) -> None:
    """A node that stops takes a new incarnation."""
    real = Engine.heartbeat

    async def heartbeat(self: Engine) -> None:
        stopping, self.stopping = self.stopping, False
        try:
            await real(self)
        finally:
            self.stopping = stopping

    patch.setattr(Engine, "heartbeat", heartbeat)


PLANTS: tuple[Plant, ...] = (
    send_without_a_heartbeat,
    settle_without_a_fence,
    forget_what_was_due_at_a_pause,
    forget_adoption,
    adopt_what_is_in_hand,
    lose_early_reports,
    retire_after_one_look,
    take_over_at_most_once,
    leave_retries_where_they_are,
    second_reports_win,
    one_queue_for_all,
    forget_a_poll,
    settle_by_number_alone,
    come_back_while_leaving,
)
