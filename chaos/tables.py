"""The tables as they lie in the database, read through plain SQL and the bare driver."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import make_url

from chaos.evidence import Attempt, Evidence, Execution, Task, us

__all__ = ["drop_unique_keys", "left_to_do", "read_tables"]

_TASKS = "SELECT id, task_key, schedule_type, status, next_fire_time, fire_count FROM t_cron_task"
_EXECUTIONS = (
    "SELECT id, fire_id, task_id, fire_time, trigger_kind, exec_status, fence, takeovers,"
    " retry_count, next_action_at, created_at, accepted_at, reported_at, end_time, start_time,"
    " task_run_id, ga_result, error_msg, reason, missed_count, missed_from, missed_to"
    " FROM t_task_execution"
)
_ATTEMPTS = (
    "SELECT execution_id, fence, node, outcome, started_at, ended_at, task_run_id"
    " FROM t_execution_attempt"
)
_LEFT = (
    "SELECT (SELECT COUNT(*) FROM t_task_execution WHERE next_action_at IS NOT NULL)"
    " + (SELECT COUNT(*) FROM t_cron_task WHERE next_fire_time IS NOT NULL)"
    " + (SELECT COUNT(*) FROM t_ready_fire)"
)
Rows = list[tuple[Any, ...]]


async def query(url: str, *statements: str) -> list[Rows]:
    """The rows of each statement."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        connection = sqlite3.connect(str(parsed.database), timeout=30)
        try:
            found = [connection.execute(statement).fetchall() for statement in statements]
            connection.commit()
        finally:
            connection.close()
        return found
    import asyncmy

    remote = await asyncmy.connect(
        host=parsed.host,
        port=parsed.port,
        user=parsed.username,
        password=parsed.password,
        database=parsed.database,
        autocommit=True,
    )
    try:
        async with remote.cursor() as cursor:
            answers: list[Rows] = []
            for statement in statements:
                await cursor.execute(statement)
                answers.append(list(await cursor.fetchall()) if cursor.description else [])
            return answers
    finally:
        remote.close()


async def left_to_do(url: str) -> int:
    """How many rows still wait for something."""
    return int((await query(url, _LEFT))[0][0][0])


async def drop_unique_keys(url: str) -> None:
    """Take the keys off the table of executions that make a second row for a fire impossible."""
    await query(
        url,
        "ALTER TABLE t_task_execution DROP KEY uk_execution_fire",
        "ALTER TABLE t_task_execution DROP KEY uk_execution_fire_id",
    )


async def read_tables(url: str, evidence: Evidence) -> None:
    """Fill in what the tables say."""
    tasks, executions, attempts, queued, inbox = await query(
        url,
        _TASKS,
        _EXECUTIONS,
        _ATTEMPTS,
        "SELECT COUNT(*) FROM t_ready_fire",
        "SELECT task_id, task_run_id FROM t_report_inbox",
    )
    evidence.tasks = [
        Task(
            id=row[0],
            task_key=row[1],
            schedule_type=row[2],
            status=row[3],
            next_fire_us=_us(row[4]),
            fire_count=row[5],
        )
        for row in tasks
    ]
    evidence.executions = [_execution(row) for row in executions]
    evidence.attempts = [
        Attempt(
            execution_id=row[0],
            fence=row[1],
            node=str(row[2]).partition("#")[0],
            outcome=row[3],
            started_us=_us(row[4]) or 0,
            ended_us=_us(row[5]),
            run_id=row[6],
        )
        for row in attempts
    ]
    evidence.queued = queued[0][0]
    evidence.inbox = [(row[0], row[1]) for row in inbox]


def _execution(row: tuple[Any, ...]) -> Execution:
    words = row[16] if row[5] == 2 else row[17]
    return Execution(
        id=row[0],
        fire_id=row[1],
        task_id=row[2],
        fire_us=_us(row[3]) or 0,
        manual=row[4] == 1,
        status=row[5],
        fence=row[6],
        takeovers=row[7],
        retry_count=row[8],
        next_action_us=_us(row[9]),
        created_us=_us(row[10]) or 0,
        accepted_us=_us(row[11]),
        reported_us=_us(row[12]),
        end_us=_us(row[13]),
        start_us=_us(row[14]),
        run_id=row[15],
        token=words or "",
        reason=row[18] or "",
        missed_count=row[19],
        missed_from_us=_us(row[20]),
        missed_to_us=_us(row[21]),
    )


def _us(value: datetime | str | None) -> int | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return us(moment.replace(tzinfo=UTC))
