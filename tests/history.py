"""What a history of tasks promises: which fires were due while a task was armed, and whether each
of them is accounted for. Shared by the hand-driven machine and the simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import attrs

from crontask_core.model import Execution, Task, TriggerKind, schedule_of
from crontask_core.schedule import Schedule, next_after

__all__ = ["Ledger", "Span", "unaccounted"]


@attrs.define
class Span:
    """While a task was armed with one schedule: from its first fire to the end, both included."""

    schedule: Schedule
    first: datetime
    end_at: datetime | None = None
    last: datetime | None = None

    def fires(self) -> list[datetime]:
        """Every fire that came due; none while the span is open."""
        if self.last is None:
            return []
        last = min(self.last, self.end_at) if self.end_at is not None else self.last
        found: list[datetime] = []
        at: datetime | None = self.first
        while at is not None and at <= last:
            found.append(at)
            at = next_after(self.schedule, at)
        return found


@attrs.define
class Ledger:
    """The spans of every task, by its id."""

    spans: dict[int, list[Span]] = attrs.Factory(dict)

    def arm(self, task: Task) -> None:
        """The task fires from now on, if it has a fire to come."""
        if task.next_fire_time is not None:
            span = Span(schedule_of(task), task.next_fire_time, task.end_at)
            self.spans.setdefault(task.id, []).append(span)

    def disarm(self, task_id: int, at: datetime) -> None:
        """The task does not fire after ``at``."""
        for span in self.spans.get(task_id, []):
            if span.last is None:
                span.last = at


def unaccounted(spans: Iterable[Span], rows: Sequence[Execution]) -> list[datetime]:
    """The fires of the spans that have neither an execution of their own nor a place in the span of
    a skipped row. ``rows`` are the executions of the task."""
    mine = [e for e in rows if e.trigger_kind is TriggerKind.SCHEDULE]
    single = {e.fire_time for e in mine if not e.missed_count}
    missed = [(e.missed_from, e.missed_to) for e in mine if e.missed_count]
    return [
        fire
        for span in spans
        for fire in span.fires()
        if fire not in single and not any(a and b and a <= fire <= b for a, b in missed)
    ]
