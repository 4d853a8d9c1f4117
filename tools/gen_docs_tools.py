"""Write docs/reference/tools.md from the tool schemas: ``python tools/gen_docs_tools.py``.

``tests/unit/test_tools_page.py`` fails while the page is not what this writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crontask_adapters.argument_kinds import Argument, Kind
from crontask_adapters.arguments import TOOLS
from crontask_server.identity import EXECUTION_META, USER_META
from crontask_server.tool_schemas import SPECS, ToolSpec

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/tools.md"

_HEAD = f"""# MCP tools

<!-- Made by tools/gen_docs_tools.py from the tool schemas. Change those, then run it. -->

Thirteen tools, over streamable HTTP at `/mcp` or over standard input and output, in every protocol
revision from 2024-11-05 to 2026-07-28. HTTP is stateless: any replica may take any call, and no
session is needed.

**Answers.** `structuredContent` has `ok`, `message` (one sentence to repeat to a user) and the
fields named below; fields without a value are left out. The text block has the same for hosts that
show models only text. Fire times are objects of `local` (ISO 8601 with the task's offset), `utc`,
and, when they lie ahead, `in` ("in 3 min"). States come as a number and as a word (`status` and
`status_text`); see [states](states.md). Every answer about a task says when it fires next and, in
`will_fire`, whether a live node is there to fire it.

**Refusals** have `isError` true and the shape described in [errors](errors.md).

**Arguments.** An unknown name is refused with the nearest right one, never dropped
(`server.ignore_arguments` lists exceptions). Harmless variants are taken: `"2"` and `2.0` for 2,
`"true"` for true, full-width digits, blanks around words, and null, `""` or `"null"` for an
optional argument that is not given. A task is named by `task_id` or by `task_key`, one of them.
`schedule_type` may be left out when one field of a schedule is given, `task_run_id` when the fire
is named by `execution_id` or `fire_id`.

**Who calls.** Each tool needs a scope of the bearer token; over standard input and output, and on a
server without tokens, `identity.user` and `identity.role` decide. An agent that serves many users
(scope `act_as`) names one in `_meta` under `{USER_META}`, which its harness sets and the
model does not see, else in `user_id`. A harness whose model runs because of a callback sends that
callback's execution id in `_meta` under `{EXECUTION_META}`: a create from inside a run
is then warned about, or refused (`quota.nested_creates`).

**Resources.** `crontask://tasks/{{task_id}}`, `crontask://executions/{{execution_id}}` and
`crontask://guide/schedules`, the guide for models. Clients of the newest revision may listen to the
first two for changes; what another node does is not told.
"""

_CREATE = SPECS["create_cron_task"].input_schema["properties"]
# The schemas are short because a model reads them in every conversation; people get the rest here.
_MORE = {
    "task_id": "The task by its number",
    "task_key": "The task by its key",
    "create_cron_task.task_key": "The user's idempotency key, at most 128 characters; made if left "
    "out. The same key with equal arguments answers with the stored task",
    "task_name": "Short purpose, at most 256 characters",
    "conversation_id": "The conversation it belongs to, sent back at each fire; a label only",
    "task_content": "The complete instruction, sent to the agent byte for byte; at most 60 KB of "
    "UTF-8",
    "task_desc": "A note for people, at most 1,024 characters",
    "schedule_type": "1 once (`trigger_time` or `delay_seconds`), 2 cron (`cron_expr`), 3 interval "
    "(`interval_seconds`)",
    "trigger_time": "ISO 8601. Without an offset it is read in `timezone`. At most 60 s past fires "
    "at once",
    "delay_seconds": "Seconds from now, in place of `trigger_time`",
    "cron_expr": "Five fields, or a name such as @daily; see [cron](cron.md)",
    "interval_seconds": "Seconds between two fires, counted from when it was set",
    "timezone": "IANA name; without it `scheduler.timezone`",
    "end_at": "No fire after it; for cron and intervals",
    "max_fires": "Completed after so many scheduled fires; for cron and intervals",
    "max_retry": "Retries when the agent does not accept; without it `executor.max_retry`",
    "retry_interval_ms": "Wait before the first retry, then doubled; without it "
    "`executor.retry_interval`",
    "misfire_policy": "What happens with several runs missed; run_once if left out",
    "misfire_grace_seconds": "How late a fire may still run; without it "
    "`scheduler.compensate_window`",
    "overlap_policy": "What a fire does while an earlier one goes on; without it `overlap.default`",
    "delivery": "Whether a fire that may have arrived is sent again; at_least_once if left out",
    "report_timeout_seconds": "How long a run may take until its report; without it "
    "`executor.ga_callback_timeout`",
    "pause_after_failures": "Pause the task after so many failures in a row; 0 is never",
    "callback_url": "Another agent than `executor.default_callback_url`; its host must be in "
    "`callback.allow_hosts`",
    "paused": "Create it without firing",
    "dry_run": "Check everything and show the answer, store nothing",
    "user_id": "Whom the call is for; only for agents that serve many users",
    "unset": "Optional fields to clear",
    "revision": "Refuse when the task has changed since this revision",
    "include_executions": "How many of the newest executions to show; 3 if left out",
    "next_fire_from": "Next fire at or after this time",
    "next_fire_to": "Next fire up to this time",
    "list_cron_tasks.schedule_type": "Only of this kind",
    "list_cron_tasks.conversation_id": "Only of this conversation",
    "cursor": "`next_cursor` of the page before",
    "page_size": "Rows of a page; 20 if left out",
    "reason": "Why, for people",
    "since": "Fire time at or after",
    "until": "Fire time up to",
    "execution_id": "One execution",
    "report_task_result.execution_id": "From the callback; names the fire without doubt",
    "fire_id": "From the callback; names the fire without doubt",
    "task_run_id": "What the agent answered the callback with",
    "result": "Summary of the result, or a note with status running; at most 60 KB, longer ones "
    "are shortened with a mark",
    "error": "What went wrong; shortened like `result`",
    "count": "How many fires to show; 5 if left out",
    "after": "From this time on; now if left out",
    "idempotency_key": "The same key gives the same execution",
}


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_tool(spec) for spec in SPECS.values())])


def _tool(spec: ToolSpec) -> str:
    hints = [
        "reads only" if spec.read_only else "writes",
        "safe to repeat" if spec.idempotent else "a repeat acts again",
        *(["destructive"] if spec.destructive else []),
        *(["calls an agent"] if spec.open_world else []),
    ]
    lines = [
        f"## {spec.name}\n",
        _escaped(spec.description) + "\n",
        f"Scope `{spec.scope}`; {', '.join(hints)}.\n",
    ]
    arguments = TOOLS[spec.name]
    if arguments:
        lines += ["| argument | type | what it is | example |", "|---|---|---|---|"]
        lines += list(_rows(spec, arguments))
    else:
        lines.append("It takes no arguments.")
    shown = [name for name in spec.output_schema["properties"] if name not in ("ok", "error")]
    lines.append(f"\nAnswers with {', '.join(f'`{name}`' for name in shown)} and more.\n")
    return "\n".join(lines)


def _rows(spec: ToolSpec, arguments: tuple[Argument, ...]) -> Iterator[str]:
    taken = {argument.name: argument for argument in arguments}
    for name, schema in spec.input_schema["properties"].items():
        needed = "**required** " if name in spec.input_schema.get("required", []) else ""
        example = _escaped(taken[name].example).replace("`", "")
        shown = f"`{example}`" if example else ""
        what = _what(spec.name, taken[name], schema)
        yield f"| `{name}` | {needed}{schema['type']} | {what} | {shown} |"


def _what(tool: str, argument: Argument, schema: dict[str, Any]) -> str:
    """What the schema says, and what only people need to read."""
    name = argument.name
    text = _MORE.get(f"{tool}.{name}") or _MORE.get(name) or schema.get("description", "")
    words = _CREATE.get(name, schema).get("enum") or schema.get("enum")
    if words and schema["type"] == "string":
        text += f"{'; ' if text else ''}one of {', '.join(words)}"
    if argument.kind is Kind.WHOLE and argument.low >= 0 and argument.high < 2**31:
        text += f"; {argument.low:,} to {argument.high:,}" if argument.high < 2**31 - 1 else ""
    return _escaped(text)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(render())
