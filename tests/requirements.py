"""The rules this project keeps, one entry each.

``due`` says that the rule is built: a due rule without a test that names it fails the build, and so
does a test that names a rule which is not here. ``A`` and ``B`` are the rules of the two source
documents (the task service, the batch service), ``X`` are the project's own.
"""

from __future__ import annotations

from typing import NamedTuple


class Requirement(NamedTuple):
    """One rule: its id, its wording, and whether it is already built."""

    id: str
    text: str
    due: bool


_SCHEDULES = [
    Requirement(
        "A2.1a",
        "schedule_type 1 = one-off: trigger_time or delay_seconds, not both; 2 = cron: "
        "cron_expr; 3 = every: interval_seconds. Fields of another kind are refused, not "
        "ignored.",
        due=True,
    ),
    Requirement(
        "A2.1b",
        "A trigger_time in the past is refused with both times and the server's now, unless it "
        "is at most 60 s past: then it fires at once. One without an offset is read in the "
        "task's zone.",
        due=True,
    ),
    Requirement(
        "X-S1",
        "Cron is Debian/ISC cron behind a strict parser: five fields, names, lists, ranges, "
        "steps, 7 is Sunday, day OR/AND rule, @macros, @every, CRON_TZ=, ?, L, LW, nW, d#n, dL."
        " Anything else names the field, what is wrong and a right example.",
        due=True,
    ),
    Requirement(
        "X-S2",
        "Time zones are IANA names, per task, default scheduler.timezone. Every answer shows "
        "fire times in the task's zone with offset, and in UTC.",
        due=True,
    ),
    Requirement(
        "X-S3",
        "DST as in Debian cron: wildcard jobs follow real time; a fixed time inside a gap under"
        " three hours fires once right after it; a repeated time fires once, in the first pass.",
        due=True,
    ),
    Requirement(
        "X-S4",
        "next_after(t) > t, always, and is the least such instant, at a cost that is the same "
        "for rare and common expressions within a factor of ten.",
        due=True,
    ),
    Requirement(
        "X-S5",
        "interval_seconds keeps its phase from the anchor; a late pass does not shift it.",
        due=True,
    ),
    Requirement(
        "X-S6",
        "end_at and max_fires end a recurring task (status 2). max_fires counts scheduled fires"
        " not skipped at claim, never manual ones; fire_count counts manual ones too.",
        due=True,
    ),
    Requirement(
        "X-S7",
        "Any schedule can be previewed (next N fires, in words) without creating anything.",
        due=True,
    ),
    Requirement(
        "X-S8",
        "The tzdata package comes before the system's copy. When newer zone data or cron rules "
        "change a zone, one node recomputes its tasks forward; a node with older data does not "
        "claim.",
        due=True,
    ),
]

_TASKS = [
    Requirement(
        "A2.2",
        "Task states and moves. Pause, resume and delete are idempotent; a completed or deleted"
        " task cannot be resumed: a clear error.",
        due=True,
    ),
    Requirement(
        "X-T0",
        "Keys compare by bytes; outer white space and over 128 characters are refused. Names, "
        "keys and texts are checked for length in the table's own unit and refused, never cut.",
        due=True,
    ),
    Requirement(
        "A2.3a",
        "task_content goes to the agent byte for byte, up to 60 KB of UTF-8; more is refused. "
        "Descriptions ask for self-contained content; content that refers to a conversation or "
        "says when to run gets a warning.",
        due=True,
    ),
    Requirement(
        "A3.1a",
        "task_key is the idempotency key: equal arguments return the stored task with created "
        "false, others are a conflict naming the fields; without one a unique key is made. "
        "Right under any concurrency.",
        due=True,
    ),
    Requirement(
        "A3.1b",
        "Delete is soft (status 3, is_deleted, deleted_at); the key is free again; executions "
        "stay readable; deleting again answers already.",
        due=True,
    ),
    Requirement(
        "A4.2",
        "The nine tools of the source document keep their names, required lists and types; ours"
        " are preview_schedule, run_cron_task_now, cancel_task_execution, get_scheduler_info. "
        "Unknown arguments are refused with the nearest name.",
        due=True,
    ),
    Requirement(
        "A4.2b",
        "Every create, update, get and resume says when the task fires next (local, UTC, in how"
        " long), in words, and whether a live node will fire it.",
        due=True,
    ),
    Requirement(
        "X-T1",
        "Update changes only the fields given; with revision it is refused when stale. Changing"
        " the schedule recomputes forward only.",
        due=True,
    ),
    Requirement(
        "X-T2",
        "Lists page by cursor, say how many in all, filter by status, conversation, text and "
        "next-fire range, newest first; an agent never gets more than it can read.",
        due=True,
    ),
    Requirement(
        "X-T3",
        "Quotas per user: 1,000 enabled or disabled tasks, shortest gap between two fires 60 s,"
        " both configurable; refused with the limit in the message.",
        due=False,
    ),
    Requirement(
        "X-T4",
        "Every listing shows the last execution's state beside the task's; delivery and result "
        "are two things everywhere.",
        due=True,
    ),
]

_FIRING = [
    Requirement(
        "A5.2",
        "Start: check schema, register node, sweep, claim. SIGTERM: no new claims, running "
        "calls finish within stop_timeout, outcomes are written, the unsent is handed back; a "
        "second signal ends it at once with nothing lost. Over stdio the drain takes under 2 s.",
        due=True,
    ),
    Requirement(
        "A5.4",
        "A fire found late inside the compensation window (30 min) runs once; older missed runs"
        " become one skipped row with count and span; outside it is skipped with the reason.",
        due=True,
    ),
    Requirement(
        "A5.5",
        "Two nodes never create two executions for one (task, fire time); the lock is an "
        "economy, never a guarantee.",
        due=True,
    ),
    Requirement(
        "A6.1a",
        "Callback: POST JSON to callback_url or the default one; fields as in the source "
        "document, fire_time with the task's zone offset, fire_timestamp in true Unix seconds, "
        "fire_count counting this fire.",
        due=True,
    ),
    Requirement(
        "A6.1b",
        "Any 2xx is accepted, with or without a usable task_run_id (without: a warning). A 409 "
        "to a repeat is accepted.",
        due=True,
    ),
    Requirement(
        "A6.2r",
        "Reports: found by fire_id, execution_id or run id; the first final one wins, the same "
        "again is a duplicate, early ones wait in the inbox, late ones count; texts over 60 KB "
        "are shortened with a mark; JSON-looking text stays text.",
        due=True,
    ),
    Requirement(
        "A6.3",
        "Retry after min(base * 2^(attempt-1), 60 s) with 10 % hashed jitter, 3 retries from 5 "
        "s, each task its own. Connect errors, timeouts, 404, 408, 425, 429, 5xx are retried; "
        "Retry-After up to 10 min; other 4xx, 3xx, bad certificates and refused addresses are "
        "not.",
        due=True,
    ),
    Requirement(
        "A6.4",
        "50 calls at once, 200 idle and 50 per host, 30 s per call in total; at most 64 KB of "
        "an answer is read and 8 KB stored.",
        due=True,
    ),
    Requirement("A6.5", "Metrics are kept as the metrics rule lists them.", due=False),
    Requirement(
        "A6.6",
        "No report within executor.ga_callback_timeout (30 min, or the task's own): status 4, "
        'error "GA callback timeout, auto-marked".',
        due=True,
    ),
    Requirement(
        "X-F1",
        "One slow or dead destination does not delay the others; a single healthy agent gets "
        "all 50 slots.",
        due=False,
    ),
    Requirement(
        "X-F2",
        "One user's thousand due tasks do not starve another's one: slots are shared fairly by "
        "user.",
        due=True,
    ),
    Requirement(
        "X-F3",
        "The agent may extend a long run: a report with status running and a note moves the "
        "deadline.",
        due=True,
    ),
    Requirement(
        "X-F4",
        "The 30 s are one total over pool wait, connect, headers and a trickled body; a "
        "compressed answer is never inflated past the 64 KB.",
        due=True,
    ),
    Requirement(
        "X-F5",
        "A task whose fires keep failing shows its failure streak in every listing; "
        "pause_after_failures (off by default) pauses it with a reason.",
        due=False,
    ),
    Requirement(
        "X-F6",
        "A create from inside a run gets a warning; with quota.nested_creates = refuse it is "
        "refused.",
        due=False,
    ),
]

_IDENTITY = [
    Requirement(
        "X-I1",
        "Bearer tokens from settings (hashed) or JWT; scopes read, write, report, act_as, "
        "admin. An agent token with act_as names the user. Without any token the server binds "
        "to loopback only and says so.",
        due=True,
    ),
    Requirement(
        "X-I2",
        "Allowed hosts and origins are always set; /healthz and /readyz are open, /metrics and "
        "the dashboard are not, unless told.",
        due=True,
    ),
]

_BATCH = [
    Requirement(
        "B1",
        "Interval, timeout, lock_ttl, batch_size, app_codes and extra windows per job come from"
        " configuration; unknown keys are errors.",
        due=True,
    ),
    Requirement(
        "B2",
        "One holder per (task_name, app_code): lease by compare-and-set, renewed while "
        "draining, released at the end; an expired one is taken over.",
        due=True,
    ),
    Requirement(
        "B3",
        "A run row per run; status running, succeeded, failed, timed_out, abandoned (its node "
        "died).",
        due=True,
    ),
    Requirement(
        "B4",
        "has_more drains until false, an empty batch (ends the round with a warning), or "
        "max_round.",
        due=True,
    ),
    Requirement(
        "B5",
        "Back-off per (task, app_code): max(interval, min(interval * 2^(failures-1), 15 min)), "
        "kept in the lease row; one success resets it; others are untouched.",
        due=True,
    ),
    Requirement(
        "B6",
        "Only configured targets can be called; an unknown job, method or owner fails at start.",
        due=True,
    ),
    Requirement(
        "B7",
        "Every call carries RequestMeta{request_id, app_code, caller}, run_id, worker_id, "
        "batch_size, lock_ttl_ms and the job's extra fields.",
        due=True,
    ),
    Requirement(
        "B8",
        "Logs carry the eight agreed fields; metrics show backlog, oldest pending age, calls by"
        " code, successes, failures, consecutive failures, duration; alert rules ship.",
        due=True,
    ),
    Requirement(
        "B9",
        "Shutdown of batch runs as the batch document's operational notes.",
        due=True,
    ),
]

_SURFACES = [
    Requirement(
        "X-CLI",
        "Every command has --json and exits 0 done, 1 failed, 2 usage or configuration, 3 not "
        "found, 4 conflict, 5 unavailable; --help in under 0.3 s even with a broken "
        "configuration file.",
        due=True,
    ),
    Requirement(
        "X-CONF",
        "Every key has a default, a unit and a help text; TOML file, CRONTASK_* environment, "
        "option; unknown keys are errors; secrets are masked.",
        due=True,
    ),
    Requirement(
        "X-MET",
        "Prometheus metrics under crontask_; no label carries a user, a key or a URL.",
        due=False,
    ),
]

REQUIREMENTS: dict[str, Requirement] = {
    entry.id: entry for entry in (*_SCHEDULES, *_TASKS, *_FIRING, *_IDENTITY, *_BATCH, *_SURFACES)
}
