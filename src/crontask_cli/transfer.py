"""Tasks as JSON lines: import and export (X-CLI)."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import attrs
import click

from crontask_cli.render import clean
from crontask_cli.shell import Argument, Command, Shell, pass_shell

if TYPE_CHECKING:
    from crontask_adapters.wiring import App
    from crontask_core.errors import CrontaskError
    from crontask_core.model import NewTask, Task

__all__ = ["export_command", "import_command", "record_of"]

CHUNK = 500
_SHOWN_FAULTS = 20
_LINE = (
    '{"task_key": "daily", "task_name": "Daily", "task_content": "Post the agenda.", '
    '"cron_expr": "0 9 * * 1-5"}'
)
_MAYBE_KNOWN = frozenset({"TASK_KEY_CONFLICT", "TIME_IN_PAST", "NEVER_FIRES"})


@attrs.define
class Tally:
    """What became of the lines of an import."""

    tasks: int = 0
    failed: int = 0
    faults: list[dict[str, Any]] = attrs.field(factory=list)

    def fault(self, line: int, error: CrontaskError) -> None:
        self.failed += 1
        if len(self.faults) < _SHOWN_FAULTS:
            self.faults.append({"line": line, **error.as_dict()})


@click.command(
    "import",
    cls=Command,
    examples=["crontask import tasks.jsonl", "crontask export | crontask import - --user ann"],
)
@click.argument(
    "file",
    # What is not UTF-8 is a fault of its line, not of the file; some editors put a mark in front.
    type=click.File(encoding="utf-8-sig", errors="surrogateescape"),
    cls=Argument,
    doc="JSON lines; - is standard input.",
)
@pass_shell
def import_command(shell: Shell, file: IO[str]) -> None:
    """Create tasks from a file of JSON lines.

    A line holds the arguments of create_cron_task; task_key is required, so that the same file may
    be imported again: a task that is there already counts as imported. Wrong lines are told by
    number and do not stop the others; then the exit code is 1. With --all-users a line may name
    its user_id.
    """
    tally = Tally()
    owner = None if shell.all_users else shell.owner()

    async def use(app: App) -> None:
        chunk: list[tuple[int, str, NewTask]] = []
        for number, text in _lines(file):
            try:
                user, new = _parse(text, owner, app.settings.identity.user)
            except _error() as error:
                tally.fault(number, error)
                continue
            chunk.append((number, user, new))
            if len(chunk) == CHUNK:
                await _store(app, chunk, tally)
                chunk = []
        await _store(app, chunk, tally)

    shell.with_app(use)
    tally.faults.sort(key=lambda fault: int(fault["line"]))
    _tell(shell, tally)


def _tell(shell: Shell, tally: Tally) -> None:
    if shell.as_json:
        view = {"ok": not tally.failed, "tasks": tally.tasks, "failed": tally.failed}
        click.echo(json.dumps({**view, "errors": tally.faults}, ensure_ascii=False, indent=2))
    else:
        for fault in tally.faults:
            field = f" {fault['field']}" if "field" in fault else ""
            text = clean(f"line {fault['line']}: {fault['code']}{field}: {fault['message']}")
            click.echo(text, err=True)
        if tally.failed > len(tally.faults):
            click.echo(f"... and {tally.failed - len(tally.faults)} more", err=True)
        click.echo(f"{tally.tasks} tasks imported, {tally.failed} lines wrong")
    if tally.failed:
        sys.exit(1)


def _error() -> type[CrontaskError]:
    from crontask_core.errors import CrontaskError

    return CrontaskError


def _lines(file: IO[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, with a progress bar on a terminal."""
    size = _size(file)
    if size is None or not sys.stderr.isatty():
        yield from ((n, line) for n, line in enumerate(file, 1) if line.strip())
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("importing", total=size)
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line
            progress.advance(bar, len(line.encode(errors="surrogateescape")))


def _size(file: IO[str]) -> int | None:
    import os

    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _parse(text: str, owner: str | None, default: str) -> tuple[str, NewTask]:
    """The user and the task of one line. Raises InvalidInput."""
    from crontask_core.errors import InvalidInput

    try:
        text.encode()
        raw = json.loads(text)
    except UnicodeEncodeError:
        raise InvalidInput("not UTF-8", hint="Save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}", hint="One object a line.", example=_LINE) from None
    if not isinstance(raw, dict):
        raise InvalidInput("not an object", hint="One object a line.", example=_LINE)
    if not raw.get("task_key"):
        raise InvalidInput(
            "task_key is missing",
            code="MISSING_ARGUMENT",
            field="task_key",
            hint="It makes the import repeatable.",
            example="daily-report",
        )
    user = str(raw.get("user_id") or owner or default)
    if owner is not None and user != owner:
        raise InvalidInput(
            f"the line belongs to user {user}, not to {owner}",
            field="user_id",
            received=user,
            hint="Import it with --all-users, or leave user_id out.",
        )
    return user, _request(raw)


def _request(raw: Mapping[str, Any]) -> NewTask:
    from crontask_adapters.arguments import new_task, read

    # A task made on the command line need not come from a conversation.
    conversation = raw.get("conversation_id") or ""
    args = read("create_cron_task", {**raw, "conversation_id": conversation or "none"})
    return attrs.evolve(new_task(args), conversation_id=str(conversation))


async def _store(app: App, chunk: Sequence[tuple[int, str, NewTask]], tally: Tally) -> None:
    """Add a chunk, user by user."""
    users: dict[str, list[tuple[int, NewTask]]] = {}
    for number, user, new in chunk:
        users.setdefault(user, []).append((number, new))
    for user, items in users.items():
        answers = await app.tasks.add_many(user, [new for _, new in items])
        doubtful: list[tuple[int, NewTask, CrontaskError]] = []
        for (number, new), answer in zip(items, answers, strict=True):
            if not isinstance(answer, _error()):
                tally.tasks += 1
            elif answer.code in _MAYBE_KNOWN:
                doubtful.append((number, new, answer))
            else:
                tally.fault(number, answer)
        known = await _known(app, user, [new for _, new, _ in doubtful])
        for (number, _, error), there in zip(doubtful, known, strict=True):
            if there:
                tally.tasks += 1
            else:
                tally.fault(number, error)


async def _known(app: App, user: str, news: Sequence[NewTask]) -> list[bool]:
    """For each whether the stored task of its key is what it asks for: in the same words, of a time
    that has passed since, or in other words, as an export of this very store has them."""
    from crontask_core.policy.drafts import create_digest
    from crontask_core.ports import TaskRef

    if not news:
        return []
    rows = await app.repo.get_tasks(user, [TaskRef(key=new.task_key) for new in news])
    return [
        row is not None
        and (row.task.create_digest == create_digest(new) or _request(record_of(row.task)) == new)
        for row, new in zip(rows, news, strict=True)
    ]


@click.command(
    "export",
    cls=Command,
    examples=["crontask export > tasks.jsonl", "crontask export --all-users --output all.jsonl"],
)
@click.option("--output", type=click.File("w", encoding="utf-8", lazy=False), default="-",
              metavar="FILE", help="Where to write (default: standard output).")  # fmt: skip
@click.option("--completed", is_flag=True, help="Completed tasks too.")
@pass_shell
def export_command(shell: Shell, output: IO[str], completed: bool) -> None:
    """Write tasks as JSON lines.

    Enabled and paused tasks, oldest first, as arguments of create_cron_task: what import reads. An
    interval's phase and a task's history are not part of it.
    """
    user = shell.reader()
    statuses = (0, 1, 2) if completed else (0, 1)

    async def use(app: App) -> int:
        tasks = [task async for task in _tasks(app, user, statuses)]
        for task in reversed(tasks):
            record: dict[str, Any] = dict(record_of(task))
            if user is None:
                record["user_id"] = task.user_id
            output.write(json.dumps(record, ensure_ascii=False) + "\n")
        return len(tasks)

    count = shell.with_app(use)
    output.flush()
    if output.name != "<stdout>":
        click.echo(f"{count} tasks written", err=True)


async def _tasks(app: App, user: str | None, statuses: tuple[int, ...]) -> AsyncIterator[Task]:
    from crontask_core.ports import TaskFilter

    where = TaskFilter(user_id=user, statuses=statuses, limit=CHUNK)
    while True:
        page = await app.repo.list_tasks(where)
        for row in page.rows:
            yield row.task
        if not page.cursor:
            return
        where = attrs.evolve(where, cursor=page.cursor)


def record_of(task: Task) -> Mapping[str, Any]:
    """A task as the arguments that would create it again, in any installation."""
    out: dict[str, Any] = {
        "task_key": task.task_key,
        "task_name": task.task_name,
        "task_desc": task.task_desc or None,
        "task_content": task.task_content,
        "conversation_id": task.conversation_id or None,
        "schedule_type": int(task.schedule_type),
        "timezone": task.timezone,
        "trigger_time": _iso(task.trigger_time),
        "cron_expr": task.cron_expr or None,
        "interval_seconds": _seconds(task.interval_ms),
        "end_at": _iso(task.end_at),
        "max_fires": task.max_fires,
        "max_retry": task.max_retry,
        "retry_interval_ms": task.retry_interval,
        "misfire_policy": task.misfire_policy.value,
        "misfire_grace_seconds": _seconds(task.misfire_grace_ms),
        "overlap_policy": task.overlap_policy.value,
        "delivery": task.delivery.value,
        "report_timeout_seconds": _seconds(task.report_timeout_ms),
        "pause_after_failures": task.pause_after_failures or None,
        "callback_url": task.callback_url or None,
        "paused": True if int(task.status) == 0 else None,
    }
    return {name: value for name, value in out.items() if value is not None}


def _iso(at: Any) -> str | None:
    return None if at is None else str(at.isoformat())


def _seconds(milliseconds: int | None) -> float | int | None:
    if milliseconds is None:
        return None
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000
