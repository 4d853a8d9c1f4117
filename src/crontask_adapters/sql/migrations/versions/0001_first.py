"""The first schema: tasks, executions, queue, attempts, early reports, nodes, small facts.

A copy of the tables as they were at this revision; it does not follow later changes of the code.
MySQL commits after each statement, so what a broken run left behind is completed, not refused.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MY = ("mysql", "mariadb")
BIN = "utf8mb4_bin"


def uint() -> Any:
    plain = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *MY)
    return plain.with_variant(sa.Integer(), "sqlite")


def tiny() -> Any:
    return sa.SmallInteger().with_variant(mysql.TINYINT(), *MY)


def moment() -> Any:
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *MY)


def text(length: int) -> Any:
    return sa.String(length).with_variant(mysql.VARCHAR(length, collation=BIN), *MY)


def long_text() -> Any:
    return sa.Text().with_variant(mysql.TEXT(collation=BIN), *MY)


def big_text() -> Any:
    return sa.Text().with_variant(mysql.MEDIUMTEXT(collation=BIN), *MY)


def col(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def maybe(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def t_cron_task() -> list[Any]:
    return [
        col("id", uint(), primary_key=True, autoincrement=True),
        col("uid", text(36)),
        col("task_key", text(128)),
        col("user_id", text(64)),
        col("conversation_id", text(128)),
        col("task_name", text(256)),
        col("task_desc", text(1024)),
        col("task_content", big_text()),
        col("schedule_type", tiny()),
        maybe("trigger_time", moment()),
        col("cron_expr", text(128)),
        col("timezone", text(64)),
        maybe("interval_ms", sa.BigInteger()),
        maybe("anchor_at", moment()),
        maybe("next_fire_time", moment()),
        maybe("end_at", moment()),
        maybe("max_fires", sa.Integer()),
        col("callback_url", text(512)),
        col("max_retry", sa.Integer()),
        col("retry_interval", sa.Integer()),
        col("misfire_policy", text(16)),
        maybe("misfire_grace_ms", sa.BigInteger()),
        col("overlap_policy", text(16)),
        col("delivery", text(16)),
        maybe("report_timeout_ms", sa.BigInteger()),
        col("pause_after_failures", sa.Integer()),
        col("failure_streak", sa.Integer()),
        col("status", tiny()),
        col("status_reason", text(255)),
        maybe("last_fire_time", moment()),
        col("fire_count", sa.Integer()),
        col("scheduled_fires", sa.Integer()),
        col("create_digest", text(1024)),
        col("revision", sa.Integer()),
        col("created_at", moment()),
        col("updated_at", moment()),
        maybe("deleted_at", moment()),
        col("is_deleted", sa.Boolean()),
        col("tombstone", uint()),
        sa.CheckConstraint("status = 1 OR next_fire_time IS NULL", name="ck_cron_task_next_fire"),
        sa.UniqueConstraint("user_id", "task_key", "tombstone", name="uk_cron_task_key"),
        sa.Index("ix_cron_task_next_fire", "next_fire_time"),
        sa.Index("ix_cron_task_user_status", "user_id", "status"),
        sa.Index("ix_cron_task_conversation", "conversation_id"),
    ]


def t_task_execution() -> list[Any]:
    return [
        col("id", uint(), primary_key=True, autoincrement=True),
        col("fire_id", text(36)),
        col("task_id", uint()),
        col("task_key", text(128)),
        col("user_id", text(64)),
        col("fire_time", moment()),
        col("trigger_kind", tiny()),
        col("fire_number", sa.Integer()),
        col("last_fire", sa.Boolean()),
        col("exec_status", tiny()),
        col("fence", sa.Integer()),
        col("takeovers", sa.Integer()),
        col("retry_count", sa.Integer()),
        maybe("next_action_at", moment()),
        col("reason", text(512)),
        maybe("start_time", moment()),
        maybe("accepted_at", moment()),
        maybe("reported_at", moment()),
        maybe("end_time", moment()),
        col("late", sa.Boolean()),
        col("task_run_id", text(128)),
        maybe("ga_result", big_text()),
        col("http_status", sa.Integer()),
        maybe("response_body", big_text()),
        maybe("error_msg", long_text()),
        col("executor_node", text(128)),
        col("missed_count", sa.Integer()),
        maybe("missed_from", moment()),
        maybe("missed_to", moment()),
        col("created_at", moment()),
        col("updated_at", moment()),
        sa.UniqueConstraint("fire_id", name="uk_execution_fire_id"),
        sa.UniqueConstraint("task_id", "fire_time", "trigger_kind", name="uk_execution_fire"),
        sa.Index("ix_execution_next_action", "next_action_at"),
        sa.Index("ix_execution_task_action", "task_id", "next_action_at"),
        sa.Index("ix_execution_task_run", "task_id", "task_run_id"),
        sa.Index("ix_execution_user_fire", "user_id", "fire_time"),
        sa.Index("ix_execution_node_action", "executor_node", "next_action_at"),
    ]


def t_ready_fire() -> list[Any]:
    return [
        col("execution_id", uint(), autoincrement=False),
        col("user_id", text(64)),
        col("callback_host", text(255)),
        col("queue_key", sa.BigInteger()),
        sa.PrimaryKeyConstraint("execution_id"),
        sa.Index("ix_ready_queue", "queue_key", "callback_host"),
        sa.Index("ix_ready_user", "user_id", "queue_key"),
    ]


def t_execution_attempt() -> list[Any]:
    return [
        col("execution_id", uint(), autoincrement=False),
        col("fence", sa.Integer(), autoincrement=False),
        col("node", text(128)),
        col("started_at", moment()),
        maybe("ended_at", moment()),
        col("outcome", text(16)),
        col("http_status", sa.Integer()),
        col("task_run_id", text(128)),
        col("error", text(1024)),
        col("answer", big_text()),
        col("revision", sa.Integer()),
        sa.PrimaryKeyConstraint("execution_id", "fence"),
        sa.Index("ix_attempt_run", "task_run_id"),
    ]


def t_report_inbox() -> list[Any]:
    return [
        col("task_id", uint(), autoincrement=False),
        col("task_run_id", text(128)),
        col("status", text(16)),
        col("result", big_text()),
        col("error", big_text()),
        col("received_at", moment()),
        col("expires_at", moment()),
        sa.PrimaryKeyConstraint("task_id", "task_run_id"),
        sa.Index("ix_inbox_expires", "expires_at"),
    ]


def t_cron_node() -> list[Any]:
    return [
        col("incarnation", text(128)),
        col("node_id", text(128)),
        col("roles", text(128)),
        col("version", text(64)),
        col("counter", sa.BigInteger()),
        col("started_at", moment()),
        col("seen_at", moment()),
        maybe("retired_at", moment()),
        sa.PrimaryKeyConstraint("incarnation"),
    ]


def t_cron_meta() -> list[Any]:
    return [
        col("name", text(64)),
        col("value", big_text()),
        sa.PrimaryKeyConstraint("name"),
    ]


NUMBERED = (t_cron_task, t_task_execution)
TABLES = (
    *NUMBERED,
    t_ready_fire,
    t_execution_attempt,
    t_report_inbox,
    t_cron_node,
    t_cron_meta,
)


def upgrade() -> None:
    there = set() if context.is_offline_mode() else set(sa.inspect(op.get_bind()).get_table_names())
    for make in TABLES:
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
            sqlite_autoincrement=make in NUMBERED,
        )
        if table.name not in there:
            op.execute(sa.schema.CreateTable(table))
            made = set()
        else:
            made = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table.name)}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in made:
                op.execute(sa.schema.CreateIndex(index))
    op.execute("DELETE FROM t_cron_meta WHERE name = 'min_code'")
    op.execute("INSERT INTO t_cron_meta (name, value) VALUES ('min_code', '1')")
