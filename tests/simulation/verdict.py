"""The end of a history: every promise of the README, checked against what is left."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from crontask_core.model import (
    ExecStatus,
    Execution,
    Task,
    TaskStatus,
    TriggerKind,
    schedule_of,
)
from crontask_core.schedule import next_after
from tests.history import Ledger, Span, unaccounted
from tests.simulation.agents import Said
from tests.simulation.database import Txn

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["judge"]

_TICK = timedelta(microseconds=1)


def judge(world: World) -> None:
    """Tell ``world.wrong`` of every broken promise."""
    _final(world)
    _accounted(world)
    _one_id(world)
    _at_most_once(world)
    _reports(world)
    _creates(world)
    _nothing_held(world)


def _final(world: World) -> None:
    for row in world.db.store.executions.values():
        if not row.is_final or row.next_action_at is not None:
            world.wrong(f"execution {row.id} is not final: {row.exec_status.name}")


def _nothing_held(world: World) -> None:
    store = world.db.store
    if store.ready:
        world.wrong(f"fires are left in the queue: {sorted(store.ready)}")
    for node in store.nodes.values():
        if node.retired_at is None:
            world.wrong(f"node {node.incarnation} is still in")
    for task in store.tasks.values():
        if task.status is TaskStatus.ENABLED:
            world.wrong(f"task {task.id} is still enabled, next {task.next_fire_time}")


# -- every due fire --------------------------------------------------------------------------------
def _accounted(world: World) -> None:
    store = world.db.store
    spans = _spans(world).spans
    rows: dict[int, list[Execution]] = {}
    for row in store.executions.values():
        rows.setdefault(row.task_id, []).append(row)
    for task in store.tasks.values():
        mine = rows.get(task.id, [])
        for fire in unaccounted(spans.get(task.id, []), mine):
            world.wrong(f"the fire of {task.task_key} at {fire.isoformat()} vanished")
        _nothing_invented(world, task, spans.get(task.id, []), mine)


def _spans(world: World) -> Ledger:
    """When each task was armed, from the transactions that survived."""
    ledger = Ledger()
    for txn in world.db.journal:
        if txn.void:
            continue
        for old, new in txn.rows(world.db.store.tasks):
            _replay(ledger, txn, old, new)
    return ledger


def _replay(ledger: Ledger, txn: Txn, old: Task | None, new: Task) -> None:
    if old is None:
        ledger.arm(new)
    elif txn.what == "edit_tasks":
        same = old.next_fire_time == new.next_fire_time and schedule_of(old) == schedule_of(new)
        if same and (old.end_at, old.max_fires) == (new.end_at, new.max_fires):
            return
        if old.next_fire_time is not None:
            ledger.disarm(new.id, txn.now)
        ledger.arm(new)
    elif old.next_fire_time is not None and new.next_fire_time is None:
        # Its last fire was claimed, or it was paused after failures.
        ledger.disarm(new.id, txn.now)


def _nothing_invented(world: World, task: Task, spans: list[Span], rows: list[Execution]) -> None:
    mine = [e for e in rows if e.trigger_kind is TriggerKind.SCHEDULE]
    for row in mine:
        if not row.missed_count and not any(_on(span, row.fire_time) for span in spans):
            world.wrong(f"{task.task_key} fired at {row.fire_time.isoformat()}, off its schedule")
    if "jump" in world.plan.kinds or "fail over" in world.plan.kinds:
        return
    due = {fire for span in spans for fire in span.fires()}
    single = {row.fire_time for row in mine if not row.missed_count}
    for row in mine:
        if not row.missed_count or row.missed_from is None or row.missed_to is None:
            continue
        within = [fire for fire in due if row.missed_from <= fire <= row.missed_to]
        if len(within) != row.missed_count or single & set(within):
            world.wrong(f"{task.task_key} counts {row.missed_count} missed, they are {within}")
    ran = sum(not row.missed_count and row.fire_number > 0 for row in mine)
    if task.max_fires is not None and ran > task.max_fires:
        world.wrong(f"{task.task_key} ran {ran} times, max_fires is {task.max_fires}")


def _on(span: Span, fire: datetime) -> bool:
    return fire == span.first or next_after(span.schedule, fire - _TICK) == fire


# -- deliveries ------------------------------------------------------------------------------------
def _one_id(world: World) -> None:
    ids: dict[tuple[str, object, bool], str] = {}
    for send in world.sends:
        callback = send.callback
        key = (send.uid, callback.fire_time, callback.manual)
        if ids.setdefault(key, callback.fire_id) != callback.fire_id:
            world.wrong(f"{callback.task_key} at {callback.fire_time} went out under two fire ids")
    known: dict[str, int] = {}
    for row in world.db.store.executions.values():
        if known.setdefault(row.fire_id, row.id) != row.id:
            world.wrong(f"two executions have the fire id {row.fire_id}")


def _at_most_once(world: World) -> None:
    for fire_id, sends in world.by_fire.items():
        heard = [send for send in sends if send.heard and send.once]
        if len(heard) > 1 and fire_id not in world.watch.touched:
            world.wrong(f"fire {fire_id[:8]} of {heard[0].callback.task_key} arrived twice")


# -- reports ---------------------------------------------------------------------------------------
def _reports(world: World) -> None:
    store = world.db.store
    by_fire = {row.fire_id: row for row in store.executions.values()}
    first: dict[str, Said] = {}
    for said in world.agents.said:
        if any(txn.void for txn in said.txns) or said.fire_id in world.watch.touched:
            continue
        row = by_fire.get(said.fire_id)
        if row is None:
            world.wrong(f"fire {said.fire_id[:8]} was reported and is gone")
        elif said.error:
            if said.report.fire_id:
                world.wrong(f"a report of fire {said.fire_id[:8]} was refused: {said.error}")
        elif said.report.status == "running" or said.duplicate:
            continue
        elif said.pending:
            _kept(world, said, row)
        elif (other := first.setdefault(said.fire_id, said)) is not said:
            world.wrong(f"fire {said.fire_id[:8]} took two reports: {other} {said}")
    for fire_id, said in first.items():
        wanted = ExecStatus.SUCCESS if said.report.status == "success" else ExecStatus.FAILED
        if by_fire[fire_id].exec_status is not wanted:
            world.wrong(f"the report of fire {fire_id[:8]} ({said.report.status}) was lost")


def _kept(world: World, said: Said, row: Execution) -> None:
    """A report that came before its run id was known counts once the id is."""
    store = world.db.store
    runs = {a.task_run_id for (number, _), a in store.attempts.items() if number == row.id}
    if said.run_id in runs | {row.task_run_id} and row.reported_at is None:
        world.wrong(f"the early report {said.run_id} of fire {said.fire_id[:8]} was lost")


# -- callers ---------------------------------------------------------------------------------------
def _creates(world: World) -> None:
    keys = [(task.user_id, task.task_key) for task in world.db.store.tasks.values()]
    for key, user, txns in world.callers.made:
        count = keys.count((user, key))
        if count != 1 and not any(txn.void for txn in txns):
            world.wrong(f"{key} of {user} was acknowledged and is there {count} times")
