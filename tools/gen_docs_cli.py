"""Write docs/reference/cli.md from the commands themselves. With --check only compare.

python tools/gen_docs_cli.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from crontask_cli.main import COMMANDS, cli
from crontask_cli.shell import Argument, Command, Group, global_options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line

`crontask COMMAND --help` shows what stands here. This page is generated from the commands
(`tools/gen_docs_cli.py`); do not edit it by hand.

Every command takes these options, before or after its name:

{shared}

`--config` reads that file and no other. Later sources win: default, file, `CRONTASK_*` environment,
`-o`. The store's credentials are the authority here: whoever has them may name any `--user`, or
`--all-users`.

## Answers and exit codes

Answers go to standard output: for a person, or with `--json` as one JSON document (objects carry
`"ok": true`). Times are shown in the task's zone and in UTC. Errors and warnings go to standard
error: one block with the message, the code, a hint and an example that works, or with `--json` one
object `{{"ok": false, "message", "error": {{"code", "field", "hint", "example", "retryable"}}}}`. A
code is stable; [errors](errors.md) lists them.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | usage or configuration |
| 3 | not found |
| 4 | conflict with what is stored, or a limit is reached |
| 5 | something needed is unavailable: the store, a port |
| 130 | interrupted |
"""


def page() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="crontask")
    shared = "\n".join(f"- {row}" for row in rows(global_options(), root))
    parts = [HEAD.format(shared=shared)]
    for section, commands in COMMANDS.items():
        parts.append(f"## {section}\n")
        for name in commands:
            command = cli.get_command(root, name)
            assert command is not None
            parts += describe(command, click.Context(command, info_name=name, parent=root))
    return "\n".join(parts).rstrip() + "\n"


def describe(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A command, and the commands inside it."""
    assert isinstance(command, Command | Group)
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"### {ctx.command_path}\n"
    yield f"    {usage}\n"
    yield f"{paragraphs(command.help or '')}\n"
    names = {param.name for param in global_options()}
    own = [p for p in command.params if p.expose_value or p.name not in names]
    for title, kind in (("Arguments", Argument), ("Options", click.Option)):
        listed = rows([p for p in own if isinstance(p, kind)], ctx)
        if listed:
            yield f"{title}:\n\n" + "\n".join(f"- {row}" for row in listed) + "\n"
    yield "Examples:\n\n" + "\n".join(f"    {line}" for line in command.examples) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from describe(inner, click.Context(inner, info_name=name, parent=ctx))


def paragraphs(text: str) -> str:
    """Help text with each paragraph on one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def rows(params: list[click.Parameter], ctx: click.Context) -> list[str]:
    """Each parameter: how it is written, and what it means."""
    out = []
    for param in params:
        if isinstance(param, Argument):
            out.append(f"`{param.make_metavar(ctx)}` {param.doc}")
        elif (record := param.get_help_record(ctx)) is not None:
            out.append(f"`{record[0]}` {record[1]}")
    return out


def main() -> int:
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{PAGE.name} is not current: run python tools/gen_docs_cli.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
