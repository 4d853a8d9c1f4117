"""Whether the tables still are as crontask made them, column by column and index by index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from sqlalchemy import Column, Connection

from crontask_adapters.sql import schema
from crontask_adapters.sql.runner import make_runner
from crontask_core.errors import Unavailable

__all__ = ["Drift", "drift", "drift_of"]


@attrs.frozen
class Drift:
    """``broken``: what is missing or changed, or hinders writing; ``extra``: what was added."""

    broken: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def problem(self) -> Unavailable | None:
        """What an operator must put right; None for nothing."""
        if not self.broken:
            return None
        return Unavailable(
            f"the tables are no longer as crontask made them: {'; '.join(self.broken)}",
            code="SCHEMA_MISMATCH",
            hint="Put back what was changed in the database of store.url; "
            "`crontask db upgrade --sql` prints the statements that made it.",
            example="crontask db upgrade --sql",
        )


async def drift(url: str) -> Drift:
    """Compare the database of ``store.url`` with the schema of this code; changes nothing.

    Only for a database whose revision is this code's newest. Raises Unavailable when the database
    cannot be reached.
    """
    runner = make_runner(url, pool_size=1)
    try:
        return await runner.read(drift_of)
    finally:
        await runner.close()


def drift_of(conn: Connection) -> Drift:
    """``drift`` on an open connection."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    options = {
        "compare_type": True,
        "version_table": schema.VERSION_TABLE,
        "include_name": _is_ours,
    }
    found = compare_metadata(MigrationContext.configure(conn, opts=options), schema.metadata)
    broken: list[str] = []
    extra: list[str] = []
    changes = [c for entry in found for c in (entry if isinstance(entry, list) else [entry])]
    gone = {change[1].name for change in changes if change[0] == "add_table"}
    for change in changes:
        if change[0] == "add_index" and change[1].table.name in gone:
            continue
        told, harmless = _tell(change)
        (extra if harmless else broken).append(told)
    return Drift(tuple(sorted(broken)), tuple(sorted(extra)))


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Other tables in the database are nobody's business."""
    return kind != "table" or name in schema.TABLES


def _tell(change: Sequence[Any]) -> tuple[str, bool]:
    """One difference in words, and whether crontask can live with it."""
    verb, _, what = str(change[0]).partition("_")
    if what == "table":
        return f"table {change[1].name} is missing", False
    if what == "column":
        column: Column[Any] = change[3]
        name = f"column {change[2]}.{column.name}"
        if verb == "add":
            return f"{name} is missing", False
        must = not column.nullable and column.server_default is None
        return (f"{name} was added" + " and has no default" * must), not must
    if what in ("index", "constraint"):
        part = change[1]
        name = f"index {part.name} ({_columns(part.columns)}) of {part.table.name}"
        harmless = verb == "remove" and not getattr(part, "unique", what == "constraint")
        return f"{name} {'is missing' if verb == 'add' else 'was added'}", harmless
    name = f"column {change[2]}.{change[3]}"
    if what == "nullable":
        return f"{name} {'may' if change[5] else 'may not'} be NULL", False
    return f"{name} is {change[5]}, not {change[6]}", False


def _columns(columns: Iterable[Column[Any]]) -> str:
    return ", ".join(column.name for column in columns)
