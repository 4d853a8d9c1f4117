"""Write docs/reference/states.md from the lists of legal moves: ``python tools/gen_states.py``.

``tests/unit/test_docs.py`` fails while the page is not what this writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path

from crontask_core.model import EXEC_MOVES, FINAL, TASK_MOVES, ExecStatus, TaskStatus

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/states.md"

_TASK_WORDS = {
    TaskStatus.DISABLED: "paused; `next_fire_time` is empty",
    TaskStatus.ENABLED: "fires when `next_fire_time` comes",
    TaskStatus.COMPLETED: "over: its last fire has ended",
    TaskStatus.DELETED: "deleted; its key is free again, its executions stay readable",
}
_EXEC_WORDS = {
    ExecStatus.PENDING: "waits for a slot, or for a retry",
    ExecStatus.CALLING: "a node has begun the call and holds its lease",
    ExecStatus.SUCCESS: "the agent reported success",
    ExecStatus.FAILED: "refused, retries spent, or reported as failed",
    ExecStatus.TIMED_OUT: "accepted, but no report came in time",
    ExecStatus.CANCELLED: "cancelled before a call, or its task was paused or deleted",
    ExecStatus.SKIPPED: "never called: too late, or an earlier run was still going",
    ExecStatus.RUNNING: "the agent accepted and works",
}
_TASK_BIRTHS = ((TaskStatus.ENABLED, "created"), (TaskStatus.DISABLED, "created with paused"))
_EXEC_BIRTHS = (
    (ExecStatus.PENDING, "claimed, waits in the queue"),
    (ExecStatus.CALLING, "claimed while a slot was free"),
    (ExecStatus.SKIPPED, "found too late, or overlapping"),
    (ExecStatus.CANCELLED, "due when its task was paused, deleted or rescheduled"),
)

_HEAD = """# States

<!-- Made by tools/gen_states.py from crontask_core.model. Change the lists there, then run it. -->

A task and each of its executions have a state, stored as a number and shown in answers as number
and word. The lists below are the only legal moves; a decision that wants another one is a fault
and raises an error before anything is written.
"""
_BETWEEN = """
A final execution has no `next_action_at`: nothing will move it by itself. The moves that leave
a final state are all made by a report that comes late. Every other execution has a time in
`next_action_at` at which something will move it ([why](../adr/0011-next-action-at.md)).
"""


def render() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "## Task\n",
        _states(_TASK_WORDS, ()),
        _diagram(TASK_MOVES, _TASK_BIRTHS, (TaskStatus.DELETED,)),
        _moves(TASK_MOVES, _TASK_BIRTHS),
        "## Execution\n",
        _states(_EXEC_WORDS, FINAL),
        _BETWEEN.strip() + "\n",
        _diagram(EXEC_MOVES, _EXEC_BIRTHS, sorted(FINAL)),
        _moves(EXEC_MOVES, _EXEC_BIRTHS),
    ]
    return "\n".join(parts)


def _name(state: IntEnum) -> str:
    return state.name.lower()


def _states(words: Mapping[IntEnum, str], final: Iterable[IntEnum]) -> str:
    rows = ["| number | state | meaning |", "|---|---|---|"]
    for state, meaning in words.items():
        mark = " (final)" if state in final else ""
        rows.append(f"| {int(state)} | {_name(state)}{mark} | {meaning} |")
    return "\n".join(rows) + "\n"


def _diagram(
    moves: Mapping[tuple[IntEnum, IntEnum], str],
    births: Iterable[tuple[IntEnum, str]],
    ends: Iterable[IntEnum],
) -> str:
    states = sorted({state for pair in moves for state in pair})
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{int(s)} {_name(s)}" as {_name(s)}' for s in states]
    lines += [f"    [*] --> {_name(state)}: {_label(why)}" for state, why in births]
    lines += [f"    {_name(a)} --> {_name(b)}: {_label(why)}" for (a, b), why in moves.items()]
    lines += [f"    {_name(state)} --> [*]" for state in ends]
    return "\n".join([*lines, "```", ""])


def _label(why: str) -> str:
    # A colon or a semicolon would end the label of a Mermaid arrow.
    return why.replace(":", " -").replace(";", ",")


def _moves(
    moves: Mapping[tuple[IntEnum, IntEnum], str], births: Iterable[tuple[IntEnum, str]]
) -> str:
    rows = ["| from | to | when |", "|---|---|---|"]
    rows += [f"| (new) | {int(state)} {_name(state)} | {why} |" for state, why in births]
    for (a, b), why in moves.items():
        rows.append(f"| {int(a)} {_name(a)} | {int(b)} {_name(b)} | {why} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
