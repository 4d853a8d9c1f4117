"""Every error a person or an agent can see.

    CrontaskError            code, message, field, received, hint, example, candidates, retryable
    |-- InvalidInput         the caller must change the request
    |-- NotFound             no such task, execution or run for this caller
    |-- Conflict             the stored state says no: key taken, stale revision, illegal move
    |-- Forbidden            the caller may not do this
    |-- QuotaExceeded        a limit of the installation is reached
    |-- Unavailable          the store or an agent cannot be reached now
    `-- ConfigError          a setting is wrong; found at start, before anything runs

A code is stable: programs and models branch on it. ``CODES`` is the whole list; the reference
page is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

__all__ = [
    "CODES",
    "ConfigError",
    "Conflict",
    "CrontaskError",
    "Forbidden",
    "InvalidInput",
    "NotFound",
    "QuotaExceeded",
    "Unavailable",
]


class CrontaskError(Exception):
    """Something the caller should know, with what to do about it.

    ``code`` is one of ``CODES``. ``field`` names the argument at fault ("" when none is).
    ``received`` is the offending value as text, shortened. ``hint`` says what to do in one
    sentence; ``example`` is a value for ``field`` that itself works. ``candidates`` are near
    matches, best first. ``retryable`` is true when the very same call may succeed later.
    """

    exit_code = 1
    http_status = 500
    default_code = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        field: str = "",
        received: object = "",
        hint: str = "",
        example: str = "",
        candidates: Sequence[str] = (),
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.field = field
        self.received = _shorten(received)
        self.hint = hint
        self.example = example
        self.candidates = tuple(candidates)
        self.retryable = retryable

    def as_dict(self) -> dict[str, Any]:
        """The error as plain data: empty parts are left out, ``retryable`` is always there."""
        parts: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "received": self.received,
            "hint": self.hint,
            "example": self.example,
            "candidates": list(self.candidates),
        }
        return {k: v for k, v in parts.items() if v} | {"retryable": self.retryable}

    def line(self) -> str:
        """The error on one line: ``CODE field: what is wrong; what to do; example``."""
        head = f"{self.code} {self.field}" if self.field else self.code
        tail = [self.message]
        if self.hint:
            tail.append(self.hint)
        if self.example:
            tail.append(f"example: {self.example}")
        return f"{head}: " + "; ".join(part.rstrip(".; ") for part in tail)


class InvalidInput(CrontaskError):
    """The request itself is wrong and will stay wrong until it is changed."""

    exit_code = 2
    http_status = 400
    default_code = "INVALID_ARGUMENT"


class NotFound(CrontaskError):
    """There is no such thing for this caller; "not yours" and "not there" look alike."""

    exit_code = 3
    http_status = 404
    default_code = "TASK_NOT_FOUND"


class Conflict(CrontaskError):
    """What is stored does not allow this now."""

    exit_code = 4
    http_status = 409
    default_code = "INVALID_STATE"


class Forbidden(CrontaskError):
    """The caller is known but may not do this."""

    exit_code = 1
    http_status = 403
    default_code = "FORBIDDEN"


class QuotaExceeded(CrontaskError):
    """A limit is reached; the message names it."""

    exit_code = 4
    http_status = 429
    default_code = "QUOTA_EXCEEDED"


class Unavailable(CrontaskError):
    """Something this call needs cannot be reached; nothing was changed."""

    exit_code = 5
    http_status = 503
    default_code = "STORE_UNAVAILABLE"


class ConfigError(CrontaskError):
    """A setting is missing or wrong. ``field`` is the setting's key."""

    exit_code = 2
    http_status = 500
    default_code = "CONFIG_INVALID"


CODES: Mapping[str, str] = MappingProxyType(
    {
        "UNKNOWN_ARGUMENT": "An argument this call does not have; the nearest name is offered.",
        "MISSING_ARGUMENT": "A required argument, or one of a group, is missing.",
        "INVALID_ARGUMENT": "An argument has the wrong type, length, range or combination.",
        "INVALID_CRON": "The cron expression cannot be read.",
        "NEVER_FIRES": "The schedule has no fire time at all.",
        "TOO_FREQUENT": "Two fires would be closer together than the shortest allowed gap.",
        "INVALID_TIME": "A time cannot be read as ISO 8601.",
        "TIME_IN_PAST": "A one-off time has already passed.",
        "NONEXISTENT_LOCAL_TIME": "A local time falls into a clock change and does not exist.",
        "UNKNOWN_TIMEZONE": "Not an IANA time zone name.",
        "TASK_NOT_FOUND": "No such task for this caller.",
        "EXECUTION_NOT_FOUND": "No such execution for this caller.",
        "RUN_NOT_FOUND": "No execution has this run id.",
        "BATCH_JOB_NOT_FOUND": "No such batch job, or not for this app, is configured.",
        "BATCH_RUN_FAILED": "A batch run that was asked for failed, timed out or was taken over.",
        "TASK_KEY_CONFLICT": "The key is taken by a task with other arguments.",
        "REVISION_CONFLICT": "The task was changed since the revision given was read.",
        "INVALID_STATE": "The state of the task or execution does not allow this.",
        "QUOTA_EXCEEDED": "A limit per user is reached.",
        "RATE_LIMITED": "Too many requests from this caller.",
        "RECURSION_BLOCKED": "A run of a task may not create tasks here.",
        "FORBIDDEN": "The caller's token lacks the scope or identity for this.",
        "UNAUTHENTICATED": "No valid identity came with the request.",
        "CALLBACK_REFUSED": "The callback address is not allowed.",
        "STORE_UNAVAILABLE": "The database cannot be reached, is locked, full or read-only.",
        "SCHEMA_MISMATCH": "The database schema does not fit this version of crontask.",
        "CONFIG_INVALID": "A setting is missing or wrong.",
        "PORT_IN_USE": "Another program listens on the port.",
        "INTERNAL": "A fault in crontask itself; the error id finds it in the log.",
    }
)


def _shorten(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
