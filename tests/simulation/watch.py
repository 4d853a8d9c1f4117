"""What must hold at every step, checked at every commit and every call."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import attrs

from crontask_core.model import (
    EXEC_MOVES,
    AttemptClass,
    ExecStatus,
    Execution,
    ReadyFire,
    Task,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import AnswerKind
from tests.simulation.agents import Send
from tests.simulation.database import Txn

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

__all__ = ["Begin", "Watch"]

_LEASE_ENDED = "the lease of the call ended"


@attrs.define(eq=False)
class Begin:
    """A fire was begun: by whom, under which fence, in which transaction."""

    txn: Txn
    node: str
    fence: int
    before: ExecStatus | None

    @property
    def who(self) -> str:
        return self.node.partition("#")[0]


@attrs.define
class _Waiting:
    place: ReadyFire
    passed: dict[str, int] = attrs.Factory(dict)


class Watch:
    """Hears of everything that happens and says at once when a promise is broken."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begins: dict[str, list[Begin]] = {}
        self.lost_since: list[tuple[float, float]] = []
        self.touched: set[str] = set()
        """Fires of which a fail-over lost something."""
        self._waiting: dict[int, _Waiting] = {}
        self._armed: dict[int, float] = {}

    # -- every commit --------------------------------------------------------------------------
    def committed(self, txn: Txn) -> None:
        store = self.world.db.store
        for old, new in txn.rows(store.executions):
            if new is not None:
                self._execution(txn, old, new)
        for _, attempt in txn.rows(store.attempts):
            if attempt is not None and attempt.outcome is AttemptClass.UNKNOWN:
                self._taken_over(txn, attempt.execution_id, attempt.fence, attempt.error)
        for old, node in txn.rows(store.nodes):
            if old is not None and node.retired_at is not None and old.retired_at is None:
                self._retired(txn, node.incarnation)
        for _, task in txn.rows(store.tasks):
            if task is not None and txn.what in ("add_tasks", "edit_tasks"):
                self._armed[task.id] = txn.at
        self._queue(txn)

    def _execution(self, txn: Txn, old: Execution | None, new: Execution) -> None:
        name = f"fire {new.fire_id[:8]} of {new.task_key}"
        if old is None:
            if new.exec_status is not ExecStatus.SKIPPED and txn.what == "claim":
                self._on_time(txn, new)
        elif (
            old.fire_id != new.fire_id
            or new.fence < old.fence
            or (
                old.exec_status is not new.exec_status
                and (old.exec_status, new.exec_status) not in EXEC_MOVES
            )
        ):
            self.world.wrong(f"{name}: illegal move {old} -> {new}")
        if new.fence > (old.fence if old is not None else 0):
            self._begun(txn, old, new, name)
        elif old is not None and txn.what == "settle":
            self._settled(txn, old, new, name)

    def _begun(self, txn: Txn, old: Execution | None, new: Execution, name: str) -> None:
        begins = self.begins.setdefault(new.fire_id, [])
        if old is not None:
            if old.accepted_at is not None or old.reported_at is not None:
                self.world.wrong(f"{name}: begun again although it was accepted or reported")
            last = next((b for b in reversed(begins) if not b.txn.void), None)
            if last is not None:
                self._again(txn, last, new, name)
        task = self.world.db.store.tasks[new.task_id]
        scheduled = new.trigger_kind is TriggerKind.SCHEDULE
        if task.status is TaskStatus.DELETED or (scheduled and task.status is TaskStatus.DISABLED):
            self.world.wrong(f"{name}: begun although its task is {task.status.name.lower()}")
        status = old.exec_status if old is not None else None
        begins.append(Begin(txn, new.executor_node, new.fence, status))

    def _again(self, txn: Txn, last: Begin, new: Execution, name: str) -> None:
        """A fire is begun once more: somebody must have a reason."""
        for send in self.world.by_fire.get(new.fire_id, []):
            if (send.fence, send.incarnation) != (last.fence, last.node) or send.at < last.txn.at:
                continue
            known = send.answer is not None and not accepted(send)
            if not known and not self.world.disturbed(last.txn.at, txn.at, last.who):
                self.world.wrong(f"{name}: begun again without a reason, fence {new.fence}")

    def _settled(self, txn: Txn, old: Execution, new: Execution, name: str) -> None:
        fresh = new.accepted_at is not None and old.accepted_at is None
        if fresh and not any(map(accepted, self.world.by_fire.get(new.fire_id, []))):
            self.world.wrong(f"{name}: an acceptance is recorded that nobody gave")
        if old.exec_status is not ExecStatus.CALLING or new.exec_status is ExecStatus.CALLING:
            return
        node, outcomes = txn.args
        mine = [o for o in outcomes if o.execution_id == old.id and o.fence == old.fence]
        # A run that was reported early counts, whoever has the fence now (DESIGN 3.7).
        noted = new.reported_at is not None
        if (old.executor_node != node or not mine) and not noted:
            self.world.wrong(f"{name}: settled by {node}, but {old.executor_node} has it")

    def _taken_over(self, txn: Txn, execution_id: int, fence: int, why: str) -> None:
        execution = self.world.db.store.executions[execution_id]
        begins = self.begins.get(execution.fire_id, [])
        begin = next((b for b in reversed(begins) if b.fence == fence and not b.txn.void), None)
        if begin is None or why != _LEASE_ENDED:
            return
        if not self.world.disturbed(begin.txn.at, txn.at, begin.who):
            name = f"fire {execution.fire_id[:8]} of {execution.task_key}"
            self.world.wrong(f"{name}: its lease ended with a healthy owner, {begin.node}")

    def _retired(self, txn: Txn, incarnation: str) -> None:
        owner = incarnation.partition("#")[0]
        if txn.who == owner:
            return
        if not self.world.disturbed(txn.at - 150, txn.at, owner):
            self.world.wrong(f"{txn.who} retires {incarnation}, which is healthy")

    def _on_time(self, txn: Txn, fire: Execution) -> None:
        """With nothing wrong, a due fire is claimed within the poll interval."""
        since = max(fire.fire_time, fire.created_at - timedelta(hours=1))
        late = (txn.now - since).total_seconds()
        late = min(late, txn.at - self._armed.get(fire.task_id, 0.0))
        limit = self.world.plan.settings.scheduler.poll_interval.total_seconds() + 2.0
        if late > limit and not self.world.disturbed(txn.at - late - 60, txn.at):
            name = f"fire {fire.fire_id[:8]} of {fire.task_key}"
            self.world.wrong(f"{name}: claimed {late:.3f} s late though nothing was wrong")

    # -- fairness ------------------------------------------------------------------------------
    def _queue(self, txn: Txn) -> None:
        store = self.world.db.store
        gone: list[ReadyFire] = []
        for old, new in txn.rows(store.ready):
            if new is not None:
                if sum(row.user_id == new.user_id for row in store.ready.values()) == 1:
                    self._waiting[new.execution_id] = _Waiting(new)
            elif old is not None:
                self._waiting.pop(old.execution_id, None)
                gone.append(old)
        if txn.what == "begin" and gone:
            self._passed(txn, gone)

    def _passed(self, txn: Txn, gone: list[ReadyFire]) -> None:
        """Others were begun; who waited alone of his user is passed by few of any other's."""
        for waiting in self._waiting.values():
            if waiting.place.callback_host in txn.kwargs.get("capped_hosts", ()):
                continue
            for place in gone:
                if place.user_id != waiting.place.user_id:
                    waiting.passed[place.user_id] = waiting.passed.get(place.user_id, 0) + 1
            if any(count > 3 for count in waiting.passed.values()):
                user = waiting.place.user_id
                self.world.wrong(f"a single fire of {user} waits behind {waiting.passed}")
                waiting.passed.clear()

    # -- every call ----------------------------------------------------------------------------
    def sent(self, send: Send, row: Execution | None, task: Task | None) -> None:
        """A call leaves: it must be its sender's own."""
        world = self.world
        name = f"fire {send.callback.fire_id[:8]} of {send.callback.task_key}"
        if world.moved_clock(send.at - 90, send.at):
            return
        node = world.db.store.nodes.get(send.incarnation)
        if node is None or node.retired_at is not None:
            world.wrong(f"{name}: sent by {send.incarnation}, which was retired")
        if row is None or row.fire_id != send.callback.fire_id:
            world.wrong(f"{name}: sent, but there is no such fire")
            return
        ours = row.fence == send.fence and row.executor_node == send.incarnation
        if row.exec_status is ExecStatus.CALLING and ours:
            return
        begin = self.begins[row.fire_id][-1]
        lease = world.rules.lease.total_seconds()
        if row.reported_at is None and send.at - begin.txn.at < lease - 1:
            world.wrong(f"{name}: sent by {send.incarnation}, but it is {row.exec_status.name}")

    # -- ends and losses -----------------------------------------------------------------------
    def lost(self, txns: list[Txn], since: float) -> None:
        """A fail-over lost these transactions."""
        self.lost_since.append((since, self.world.loop.time()))
        store = self.world.db.store
        for txn in txns:
            for old, new in txn.rows(store.executions):
                for row in (old, new):
                    if row is not None:
                        self.touched.add(row.fire_id)
        self._waiting.clear()

    def stopped(self, process: Process) -> None:
        """A process ended as it was told to."""
        world = self.world
        began = [d for d in world.disturbances if d[1] == process.name and d[0] == "roll"]
        since = began[-1][2] if began else world.loop.time() - 60
        now = world.loop.time()
        others = any(
            start <= now and end >= since - 25 and who in ("", process.name)
            for kind, who, start, end in world.disturbances
            if kind not in ("roll", "end")
        )
        if others or process.view.faults.before:
            return
        for problem in process.left_over():
            world.wrong(problem)
        live = [n for n in world.db.store.nodes.values() if n.retired_at is None]
        for node in live:
            if node.incarnation.partition("#")[0] == process.name:
                world.wrong(f"{process.name} has stopped and {node.incarnation} is still in")

    def counts(self) -> dict[str, int]:
        """Figures of the history."""
        world = self.world
        again = sum(len(sends) - 1 for sends in world.by_fire.values())
        return {
            "seconds": int(world.loop.time()),
            "steps": world.loop.steps,
            "commits": len(world.db.journal),
            "tasks": len(world.db.store.tasks),
            "executions": len(world.db.store.executions),
            "calls": len(world.sends),
            "repeated": again,
            "reports": len(world.agents.said),
            **{f"fault {kind}": n for kind, n in sorted(world.trouble.counts.items())},
        }


def accepted(send: Send) -> bool:
    """Whether the answer that came back is an acceptance (A6.1b)."""
    answer = send.answer
    if answer is None or answer.kind is not AnswerKind.RESPONSE:
        return False
    return 200 <= answer.status < 300 or (answer.status == 409 and send.callback.attempt > 1)
