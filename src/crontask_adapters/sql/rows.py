"""Rows of the tables as frozen values of the model, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import attrs
from sqlalchemy import Column, Select, Table, select

from crontask_adapters.sql import schema
from crontask_core.model import Attempt, Execution, InboxReport, NodeRow, ReadyFire, Task

__all__ = ["ATTEMPT", "EXECUTION", "INBOX", "NODE", "READY", "TASK", "TASK_LIGHT", "Shape"]

M = TypeVar("M")


class Shape(Generic[M]):
    """How a model class lies in its table: its fields are the columns of the same name.

    ``query`` selects ``columns``, in the order ``load`` expects. Columns left ``without`` take the
    model's default when loaded and are never seen as changed.
    """

    def __init__(self, model: type[M], table: Table, without: Iterable[str] = ()) -> None:
        left_out = frozenset(without)
        fields = attrs.fields(model)  # type: ignore[arg-type]
        self.model = model
        self.table = table
        self.names: tuple[str, ...] = tuple(f.name for f in fields if f.name not in left_out)
        self.columns: tuple[Column[Any], ...] = tuple(table.c[name] for name in self.names)
        self.values = attrgetter(*self.names)
        # Made once: to list thirty columns costs more than to run the statement.
        self.query: Select[Any] = select(*self.columns)
        self._rest = {f.name: f.default for f in fields if f.name in left_out}
        self._open = not hasattr(model, "__slots__")

    def load(self, row: Sequence[Any]) -> M:
        """The model value of a row selected as ``columns``."""
        given = zip(self.names, row, strict=False)
        if not self._open:
            return self.model(**dict(given))
        # The two rows of every fire: past the generated __init__, which checks nothing here.
        made = object.__new__(self.model)
        made.__dict__.update(self._rest)
        made.__dict__.update(given)
        return made

    def diff(self, read: M, wanted: M) -> dict[str, Any]:
        """The columns that differ, with the values wanted."""
        before, after = self.values(read), self.values(wanted)
        return {
            name: new
            for name, old, new in zip(self.names, before, after, strict=True)
            if old is not new and old != new
        }


TASK = Shape(Task, schema.tasks)
TASK_LIGHT = Shape(Task, schema.tasks, without=["task_content"])
"""A task without its big text, which only a call needs."""
EXECUTION = Shape(Execution, schema.executions)
ATTEMPT = Shape(Attempt, schema.attempts)
READY = Shape(ReadyFire, schema.ready)
INBOX = Shape(InboxReport, schema.inbox)
NODE = Shape(NodeRow, schema.nodes)
