"""The tables, once for all databases (DESIGN 5). Column names are the model's field names.

Seed A's ``t_cron_task`` and ``t_task_execution`` keep every column. No column has a default in the
database: what is stored is what the model says.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from crontask_adapters.sql.types import (
    Code,
    Note,
    UTCDateTime,
    Word,
    big_text,
    counter,
    key_text,
    long_text,
    text,
    uint,
)
from crontask_core.model import (
    AttemptClass,
    Delivery,
    ExecStatus,
    MisfirePolicy,
    OverlapPolicy,
    ScheduleType,
    TaskStatus,
    TriggerKind,
)

__all__ = [
    "HEAD",
    "MIN_CODE",
    "SCHEMA_CODE",
    "TABLES",
    "VERSION_TABLE",
    "attempts",
    "batch_runs",
    "executions",
    "inbox",
    "leases",
    "meta",
    "metadata",
    "nodes",
    "ready",
    "tasks",
]

HEAD = "0002"
"""The newest revision this code knows; equal to alembic's head (a test holds them together)."""
SCHEMA_CODE = 1
"""The level of this code. A schema whose ``min_code`` is above it is refused (DESIGN 5)."""
MIN_CODE = 1
"""What the head revision writes as ``min_code``: older code may not work on it."""
VERSION_TABLE = "crontask_alembic_version"

metadata = MetaData()


def _table(name: str, *parts: Any, numbered: bool = False) -> Table:
    return Table(
        name,
        metadata,
        *parts,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
        # A number is never given out twice, even after the newest rows were pruned.
        sqlite_autoincrement=numbered,
    )


def _col(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _maybe(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=True)


tasks = _table(
    "t_cron_task",
    _col("id", uint(), primary_key=True, autoincrement=True),
    _col("uid", key_text(36)),
    _col("task_key", key_text(128)),
    _col("user_id", key_text(64)),
    _col("conversation_id", key_text(128)),
    _col("task_name", text(256)),
    _col("task_desc", text(1024)),
    _col("task_content", big_text()),
    _col("schedule_type", Code(ScheduleType)),
    _maybe("trigger_time", UTCDateTime()),
    _col("cron_expr", key_text(128)),
    _col("timezone", key_text(64)),
    _maybe("interval_ms", counter()),
    _maybe("anchor_at", UTCDateTime()),
    _maybe("next_fire_time", UTCDateTime()),
    _maybe("end_at", UTCDateTime()),
    _maybe("max_fires", Integer()),
    _col("callback_url", text(512)),
    _col("max_retry", Integer()),
    _col("retry_interval", Integer()),
    _col("misfire_policy", Word(MisfirePolicy)),
    _maybe("misfire_grace_ms", counter()),
    _col("overlap_policy", Word(OverlapPolicy)),
    _col("delivery", Word(Delivery)),
    _maybe("report_timeout_ms", counter()),
    _col("pause_after_failures", Integer()),
    _col("failure_streak", Integer()),
    _col("status", Code(TaskStatus)),
    _col("status_reason", Note(255)),
    _maybe("last_fire_time", UTCDateTime()),
    _col("fire_count", Integer()),
    _col("scheduled_fires", Integer()),
    _col("create_digest", key_text(1024)),
    _col("revision", Integer()),
    _col("created_at", UTCDateTime()),
    _col("updated_at", UTCDateTime()),
    _maybe("deleted_at", UTCDateTime()),
    _col("is_deleted", Boolean()),
    _col("tombstone", uint()),
    CheckConstraint("status = 1 OR next_fire_time IS NULL", name="ck_cron_task_next_fire"),
    UniqueConstraint("user_id", "task_key", "tombstone", name="uk_cron_task_key"),
    Index("ix_cron_task_next_fire", "next_fire_time"),
    Index("ix_cron_task_user_status", "user_id", "status"),
    Index("ix_cron_task_conversation", "conversation_id"),
    numbered=True,
)

executions = _table(
    "t_task_execution",
    _col("id", uint(), primary_key=True, autoincrement=True),
    _col("fire_id", key_text(36)),
    _col("task_id", uint()),
    _col("task_key", key_text(128)),
    _col("user_id", key_text(64)),
    _col("fire_time", UTCDateTime()),
    _col("trigger_kind", Code(TriggerKind)),
    _col("fire_number", Integer()),
    _col("last_fire", Boolean()),
    _col("exec_status", Code(ExecStatus)),
    _col("fence", Integer()),
    _col("takeovers", Integer()),
    _col("retry_count", Integer()),
    _maybe("next_action_at", UTCDateTime()),
    _col("reason", Note(512)),
    _maybe("start_time", UTCDateTime()),
    _maybe("accepted_at", UTCDateTime()),
    _maybe("reported_at", UTCDateTime()),
    _maybe("end_time", UTCDateTime()),
    _col("late", Boolean()),
    _col("task_run_id", key_text(128)),
    _maybe("ga_result", big_text()),
    _col("http_status", Integer()),
    _maybe("response_body", big_text()),
    _maybe("error_msg", long_text()),
    _col("executor_node", key_text(128)),
    _col("missed_count", Integer()),
    _maybe("missed_from", UTCDateTime()),
    _maybe("missed_to", UTCDateTime()),
    _col("created_at", UTCDateTime()),
    _col("updated_at", UTCDateTime()),
    UniqueConstraint("fire_id", name="uk_execution_fire_id"),
    UniqueConstraint("task_id", "fire_time", "trigger_kind", name="uk_execution_fire"),
    Index("ix_execution_next_action", "next_action_at"),
    Index("ix_execution_task_action", "task_id", "next_action_at"),
    Index("ix_execution_task_run", "task_id", "task_run_id"),
    Index("ix_execution_user_fire", "user_id", "fire_time"),
    Index("ix_execution_node_action", "executor_node", "next_action_at"),
    numbered=True,
)

ready = _table(
    "t_ready_fire",
    _col("execution_id", uint(), autoincrement=False),
    _col("user_id", key_text(64)),
    _col("callback_host", key_text(255)),
    _col("queue_key", counter()),
    PrimaryKeyConstraint("execution_id"),
    Index("ix_ready_queue", "queue_key", "callback_host"),
    Index("ix_ready_user", "user_id", "queue_key"),
)

attempts = _table(
    "t_execution_attempt",
    _col("execution_id", uint(), autoincrement=False),
    _col("fence", Integer(), autoincrement=False),
    _col("node", key_text(128)),
    _col("started_at", UTCDateTime()),
    _maybe("ended_at", UTCDateTime()),
    _col("outcome", Word(AttemptClass)),
    _col("http_status", Integer()),
    _col("task_run_id", key_text(128)),
    _col("error", Note(1024)),
    _col("answer", big_text()),
    _col("revision", Integer()),
    PrimaryKeyConstraint("execution_id", "fence"),
    # Reports name a run by its id alone when the fence was lost (DESIGN 3.7).
    Index("ix_attempt_run", "task_run_id"),
)

inbox = _table(
    "t_report_inbox",
    _col("task_id", uint(), autoincrement=False),
    _col("task_run_id", key_text(128)),
    _col("status", key_text(16)),
    _col("result", big_text()),
    _col("error", big_text()),
    _col("received_at", UTCDateTime()),
    _col("expires_at", UTCDateTime()),
    PrimaryKeyConstraint("task_id", "task_run_id"),
    Index("ix_inbox_expires", "expires_at"),
)

nodes = _table(
    "t_cron_node",
    _col("incarnation", key_text(128)),
    _col("node_id", key_text(128)),
    _col("roles", key_text(128)),
    _col("version", key_text(64)),
    _col("counter", counter()),
    _col("started_at", UTCDateTime()),
    _col("seen_at", UTCDateTime()),
    _maybe("retired_at", UTCDateTime()),
    PrimaryKeyConstraint("incarnation"),
)

meta = _table(
    "t_cron_meta",
    _col("name", key_text(64)),
    _col("value", big_text()),
    PrimaryKeyConstraint("name"),
)

# Seed B's two tables keep its names, of columns and of indexes.
leases = _table(
    "cron_task_leases",
    _col("task_name", key_text(96)),
    _col("app_code", key_text(32)),
    _col("owner_node_id", key_text(128)),
    _col("lease_until_ms", counter()),
    _col("updated_at_ms", counter()),
    _col("epoch", counter()),
    _col("next_run_at_ms", counter()),
    _col("failures", Integer()),
    _col("paused", Boolean()),
    PrimaryKeyConstraint("task_name", "app_code"),
    Index("idx_cron_task_leases_expire", "lease_until_ms"),
)

batch_runs = _table(
    "cron_task_runs",
    _col("run_id", key_text(96)),
    _col("task_name", key_text(96)),
    _col("app_code", key_text(32)),
    _col("owner_node_id", key_text(128)),
    _col("status", key_text(32)),
    _col("claimed_count", Integer()),
    _col("processed_count", Integer()),
    _col("success_count", Integer()),
    _col("failure_count", Integer()),
    _col("batch_count", Integer()),
    _col("started_at_ms", counter()),
    _maybe("finished_at_ms", counter()),
    _col("duration_ms", counter()),
    _col("error_message", Note(512)),
    PrimaryKeyConstraint("run_id"),
    Index("idx_cron_task_runs_task_time", "task_name", "app_code", "started_at_ms"),
    Index("idx_cron_task_runs_status", "status", "started_at_ms"),
)

TABLES = tuple(table.name for table in metadata.sorted_tables)
