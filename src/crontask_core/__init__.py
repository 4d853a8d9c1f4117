"""crontask: an alarm clock that AI agents can trust. The pure core, for embedding.

Importing this package loads attrs and croniter and nothing else. ``open_app`` in
``crontask_adapters.wiring`` assembles it with a store; ``docs/howto/embed.md`` shows how.
"""

from __future__ import annotations

from crontask_core.answers import ExecutionView, Info, Preview, RunAnswer, TaskAnswer
from crontask_core.engine import Engine
from crontask_core.errors import (
    ConfigError,
    Conflict,
    CrontaskError,
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from crontask_core.events import Event
from crontask_core.model import (
    Attempt,
    Callback,
    Delivery,
    ExecStatus,
    Execution,
    MisfirePolicy,
    NewTask,
    OverlapPolicy,
    Report,
    Rules,
    ScheduleType,
    Task,
    TaskStatus,
    TriggerKind,
)
from crontask_core.policy import Answer, AnswerKind
from crontask_core.ports import (
    Clock,
    ExecutionFilter,
    GaClient,
    Observer,
    Page,
    Repo,
    TaskFilter,
    TaskRef,
)
from crontask_core.tasks import Tasks

__all__ = [
    "Answer",
    "AnswerKind",
    "Attempt",
    "Callback",
    "Clock",
    "ConfigError",
    "Conflict",
    "CrontaskError",
    "Delivery",
    "Engine",
    "Event",
    "ExecStatus",
    "Execution",
    "ExecutionFilter",
    "ExecutionView",
    "Forbidden",
    "GaClient",
    "Info",
    "InvalidInput",
    "MisfirePolicy",
    "NewTask",
    "NotFound",
    "Observer",
    "OverlapPolicy",
    "Page",
    "Preview",
    "QuotaExceeded",
    "Repo",
    "Report",
    "Rules",
    "RunAnswer",
    "ScheduleType",
    "Task",
    "TaskAnswer",
    "TaskFilter",
    "TaskRef",
    "TaskStatus",
    "Tasks",
    "TriggerKind",
    "Unavailable",
]
