"""Every command explains itself, and help loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from crontask_cli.main import COMMANDS, cli
from crontask_cli.shell import Command, Group

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"aiohttp", "alembic", "asyncmy", "cattrs", "mcp", "redis", "sqlalchemy", "starlette"}
NAMES = [name for section in COMMANDS.values() for name in section]


def walk(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and subcommand."""
    yield words
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from walk(inner, (*words, name))


def find(words: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), word)
        assert inner is not None
        command = inner
    return command


ALL = list(walk(cli))


@pytest.mark.requirement("X-CLI")
def test_the_commands_are_those_the_rule_lists() -> None:
    expected = (
        "serve worker mcp create update get list pause resume delete run preview next executions "
        "cancel report import export batch db nodes doctor config demo agent"
    )
    assert sorted(expected.split(" ")) == sorted(NAMES)


@pytest.mark.requirement("X-CLI")
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*words, "--help"])
    assert 0 == shown.exit_code
    command = find(words)
    assert isinstance(command, Command | Group)
    assert command.examples
    assert all(example in shown.stdout for example in command.examples)
    assert "--json" in shown.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_example_starts_with_its_own_command(words: tuple[str, ...]) -> None:
    command = find(words)
    assert isinstance(command, Command | Group)
    own = " ".join(("crontask", *words))
    assert [] == [e for e in command.examples if not (own in e if words else "crontask" in e)]


@pytest.mark.parametrize("words", [w for w in ALL if w], ids=" ".join)
def test_every_option_and_argument_says_what_it_is(words: tuple[str, ...]) -> None:
    silent = [
        param.name
        for param in find(words).params
        if not (getattr(param, "help", None) or getattr(param, "doc", ""))
    ]
    assert [] == silent


@pytest.mark.parametrize("name", NAMES)
def test_the_line_in_the_list_is_the_first_line_of_the_help(name: str) -> None:
    line = next(section[name][1] for section in COMMANDS.values() if name in section)
    assert line == (find((name,)).help or "").split("\n\n")[0].replace("\n", " ")


def modules_after(*words: str) -> set[str]:
    """What a fresh process has loaded after this command line."""
    script = (
        "import sys\nfrom crontask_cli.main import cli\n"
        f"try:\n    cli.main({list(words)!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('MODULES', *{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.requirement("X-CLI")
def test_help_loads_nothing_heavy_not_even_the_core() -> None:
    loaded = modules_after("--help")
    assert set() == loaded & (HEAVY | {"attrs", "croniter", "crontask_core", "rich"})


@pytest.mark.requirement("X-CLI")
@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_loads_nothing_heavy(name: str) -> None:
    # In this process, which may have loaded them for other tests, so by source.
    path = next(s[name][0] for s in COMMANDS.values() if name in s)
    spec = util.find_spec(f"crontask_cli.{path}")
    assert spec is not None and spec.origin is not None
    top = [
        line
        for line in Path(spec.origin).read_text().splitlines()
        if line.startswith(("import ", "from ")) and line.split()[1].partition(".")[0] in HEAVY
    ]
    assert [] == top


@pytest.mark.requirement("X-CLI")
def test_next_with_a_zone_loads_neither_store_nor_server() -> None:
    loaded = modules_after("next", "0 9 * * *", "--timezone", "UTC", "--count", "1")
    assert set() == loaded & HEAVY


def test_the_reference_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_docs_cli.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, done.stderr
