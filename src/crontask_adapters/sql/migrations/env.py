"""Alembic's entry: runs the revisions on the connection it was handed, in its transaction."""

from __future__ import annotations

from typing import Any

from alembic import context

from crontask_adapters.sql import schema


def main() -> None:
    attributes: dict[Any, Any] = context.config.attributes
    options: dict[str, Any] = {
        "target_metadata": schema.metadata,
        "version_table": schema.VERSION_TABLE,
        "render_as_batch": True,
    }
    if context.is_offline_mode():
        context.configure(
            dialect_name=attributes["dialect"],
            literal_binds=True,
            output_buffer=context.config.output_buffer,
            **options,
        )
    else:
        context.configure(connection=attributes["connection"], **options)
    with context.begin_transaction():
        context.run_migrations()


main()
