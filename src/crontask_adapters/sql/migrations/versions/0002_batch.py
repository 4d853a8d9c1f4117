"""Batch jobs: leases and runs.

A copy of the tables as they were at this revision; it does not follow later changes of the code.
MySQL commits after each statement, so what a broken run left behind is completed, not refused.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MY = ("mysql", "mariadb")
BIN = "utf8mb4_bin"


def text(length: int) -> Any:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation=BIN), *MY)


def col(name: str, kind: Any) -> Any:
    return sa.Column(name, kind, nullable=False)


def cron_task_leases() -> list[Any]:
    return [
        col("task_name", text(96)),
        col("app_code", text(32)),
        col("owner_node_id", text(128)),
        col("lease_until_ms", sa.BigInteger()),
        col("updated_at_ms", sa.BigInteger()),
        col("epoch", sa.BigInteger()),
        col("next_run_at_ms", sa.BigInteger()),
        col("failures", sa.Integer()),
        col("paused", sa.Boolean()),
        sa.PrimaryKeyConstraint("task_name", "app_code"),
        sa.Index("idx_cron_task_leases_expire", "lease_until_ms"),
    ]


def cron_task_runs() -> list[Any]:
    return [
        col("run_id", text(96)),
        col("task_name", text(96)),
        col("app_code", text(32)),
        col("owner_node_id", text(128)),
        col("status", text(32)),
        col("claimed_count", sa.Integer()),
        col("processed_count", sa.Integer()),
        col("success_count", sa.Integer()),
        col("failure_count", sa.Integer()),
        col("batch_count", sa.Integer()),
        col("started_at_ms", sa.BigInteger()),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=True),
        col("duration_ms", sa.BigInteger()),
        col("error_message", text(512)),
        sa.PrimaryKeyConstraint("run_id"),
        sa.Index("idx_cron_task_runs_task_time", "task_name", "app_code", "started_at_ms"),
        sa.Index("idx_cron_task_runs_status", "status", "started_at_ms"),
    ]


def upgrade() -> None:
    there = set() if context.is_offline_mode() else set(sa.inspect(op.get_bind()).get_table_names())
    for make in (cron_task_leases, cron_task_runs):
        table = sa.Table(
            make.__name__,
            sa.MetaData(),
            *make(),
            mysql_engine="InnoDB",
            mysql_charset="utf8mb4",
            mysql_collate=BIN,
            mariadb_engine="InnoDB",
            mariadb_charset="utf8mb4",
            mariadb_collate=BIN,
            sqlite_autoincrement=False,
        )
        made = set()
        if table.name not in there:
            op.execute(sa.schema.CreateTable(table))
        else:
            made = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table.name)}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in made:
                op.execute(sa.schema.CreateIndex(index))
