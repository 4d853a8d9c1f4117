"""The documentation is reachable, its links lead somewhere, and what it names exists."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import gen_errors, gen_states

from crontask_adapters.metrics import COUNTED, OBSERVED, PREFIX, READ
from crontask_adapters.settings import specs
from crontask_adapters.settings_load import env_name
from crontask_adapters.sql.schema import TABLES, VERSION_TABLE, metadata
from crontask_cli.main import COMMANDS
from crontask_core.errors import CODES
from crontask_server.tool_schemas import SPECS
from tests.requirements import REQUIREMENTS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ADRS = sorted(DOCS.glob("adr/[0-9]*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
RULE_ID = re.compile(r"(?<![\w.-])(?:[AB]\d+(?:\.\d+)?[a-z]?|X-[A-Z]+\d*)(?![\w-])")
CONSTANT = re.compile(r"[A-Z]+(?:_[A-Z]+)+")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page, of one language or of all."""
    found = FENCE.findall(page.read_text())
    return [text for _, kind, text in found if language in ("", kind)]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Each relative link as (as written, file, heading)."""
    for target in LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            yield target, (page.parent / file).resolve() if file else page, heading


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page: Path) -> Iterator[str]:
    """Every ``crontask`` and ``make`` command line of a page, in blocks of sh and in its text."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    for line in [*lines, *CODE.findall(prose(page))]:
        plain = re.sub(r"^(?:\s*\w+=(?:'[^']*'|\S*))*\s*(?:\.venv/bin/)?", "", line)
        if plain.startswith(("crontask ", "make ")):
            yield plain.split("#")[0].strip()


def per_page(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=name_of)


# -- the pages as a whole --------------------------------------------------------------------------
@per_page(PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = [
        written
        for written, file, heading in links(page)
        if not file.exists() or (heading and heading not in headings(file))
    ]
    assert [] == wrong


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            waiting += [f for _, f, _ in links(page) if f.suffix == ".md" and f.exists()]
    assert [] == [name_of(page) for page in PAGES if page not in seen]


@per_page(PAGES)
def test_every_page_has_one_title_and_closes_its_blocks(page: Path) -> None:
    text = prose(page)
    assert 1 == len(re.findall(r"^# ", text, re.M))
    assert "```" not in text


@per_page(ADRS)
def test_every_decision_has_its_four_parts_on_one_page(page: Path) -> None:
    parts = ["Context", "Decision", "Evidence", "Consequences"]
    assert parts == re.findall(r"^## (.+)$", page.read_text(), re.M)
    assert page.read_text().startswith(f"# {int(page.name[:4])}. ")
    assert len(page.read_text().splitlines()) <= 60


def test_decisions_are_numbered_without_a_gap() -> None:
    assert list(range(1, len(ADRS) + 1)) == [int(page.name[:4]) for page in ADRS]


# -- what pages name -------------------------------------------------------------------------------
def test_the_generated_pages_are_current() -> None:
    for maker in (gen_states, gen_errors):
        assert maker.render() == maker.PAGE.read_text(), f"run python {maker.__name__}"


@per_page(PAGES)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    known = {name for section in COMMANDS.values() for name in section}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    wrong = []
    for line in commands(page):
        words = [word for word in line.split()[1:] if not word.startswith("-") and "=" not in word]
        allowed = known | {"COMMAND"} if line.startswith("crontask") else targets
        if words and words[0] not in allowed:
            wrong.append(line)
    assert [] == wrong


@per_page(PAGES)
def test_every_option_that_is_shown_exists(page: Path) -> None:
    wrong = [line for line in commands(page) if not _options_exist(line)]
    assert [] == wrong


def _options_exist(line: str) -> bool:
    import click

    from crontask_cli.main import cli

    words = re.sub(r'"[^"]*"|\'[^\']*\'', "TEXT", line).split("|")[0].split(">")[0].split()
    if words[0] != "crontask":
        return True
    command: click.Command = cli
    known: set[str] = set()
    for word in words[1:]:
        known |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        known |= {"--help", "-h"}
        if word.startswith("-"):
            if word.split("=")[0] not in known:
                return False
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            command = found or command
    return True


@per_page(PAGES)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    keys = {key for key, _ in specs()}
    groups = {key.split(".")[0] for key in keys}
    tables = {key.rpartition(".")[0] for key in keys}
    wrong = [
        text
        for text in CODE.findall(prose(page))
        if re.fullmatch(r"[a-z]+(\.[a-z_]+)+( = .*)?", text)
        and text.split(".")[0] in groups
        and text.split(" = ")[0] not in keys | tables
        and not text.endswith((".py", ".md", ".toml", ".lock"))
    ]
    assert [] == wrong


@per_page(PAGES)
def test_every_variable_that_is_named_exists(page: Path) -> None:
    names = {env_name(key) for key, _ in specs()} | {"CRONTASK_CONFIG", "CRONTASK_AGENT_TOKEN"}
    named = set(re.findall(r"CRONTASK_[A-Z_]+", page.read_text()))
    assert set() == named - names - {"CRONTASK_MCP_URL"}  # the last one is a sample agent's own


@per_page(PAGES)
def test_every_rule_that_is_named_exists(page: Path) -> None:
    named = {text for text in CODE.findall(prose(page)) if RULE_ID.fullmatch(text)}
    assert set() == named - set(REQUIREMENTS)


@per_page(PAGES)
def test_every_error_code_that_is_named_exists(page: Path) -> None:
    named = {text for text in CODE.findall(prose(page)) if CONSTANT.fullmatch(text)}
    others = {"AUTO_INCREMENT", "CRON_RULES_VERSION", "GET_LOCK", "TASK_ID", "TASK_RUN_ID"}
    wrong = {n for n in named - set(CODES) - others if not n.startswith("CRONTASK_")}
    assert set() == wrong


@per_page(PAGES)
def test_every_tool_that_is_named_exists(page: Path) -> None:
    shaped = re.compile(r"(?!t_)[a-z_]+_(cron_tasks?|cron_task_now|task_result|task_executions?)")
    named = {text for text in CODE.findall(page.read_text()) if shaped.fullmatch(text)}
    assert set() == named - set(SPECS)


@per_page(PAGES)
def test_every_metric_that_is_named_exists(page: Path) -> None:
    kept = {PREFIX + name for name in (*COUNTED, *OBSERVED, *READ)}
    shaped = re.compile(r"crontask_\w+_(seconds|total|in_use|size)")
    named = {text for text in CODE.findall(prose(page)) if shaped.fullmatch(text)}
    assert set() == named - kept


def test_the_schema_page_names_every_table_and_column() -> None:
    text = (DOCS / "reference/schema.md").read_text()
    parts = text.split("\n## ")
    missing = []
    for table in metadata.sorted_tables:
        part = next((part for part in parts if part.startswith(table.name)), "")
        named = set(CODE.findall(part))
        missing += [f"{table.name}.{c.name}" for c in table.columns if c.name not in named]
    assert [] == missing
    assert VERSION_TABLE in text


def test_the_rollback_drops_every_table_and_no_other() -> None:
    (drop,) = [b for b in blocks(DOCS / "howto/production.md", "sql") if "DROP TABLE" in b]
    assert {*TABLES, VERSION_TABLE} == set(re.findall(r"\w+_\w+", drop))


def test_the_readme_gives_the_three_promises_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    promises = ["accounted for", "at least once, always with the same `fire_id`", "kill -9"]
    assert [] == [words for words in promises if words not in text]
    assert {"make demo", "make test"} <= set(commands(ROOT / "README.md"))


# -- examples --------------------------------------------------------------------------------------
@per_page(PAGES)
def test_every_example_can_be_read(page: Path) -> None:
    for source in blocks(page, "python"):
        compile(source, name_of(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for text in blocks(page, "json"):
        json.loads(text)
    for text in blocks(page, "toml"):
        tomllib.loads(text)


async def test_the_examples_of_the_testing_page_pass() -> None:
    space: dict[str, object] = {}
    for source in blocks(DOCS / "howto/test.md", "python"):
        exec(compile(source, "docs/howto/test.md", "exec"), space)
    tests = [run for name, run in space.items() if name.startswith("test_") and callable(run)]
    assert 2 == len(tests)
    for run in tests:
        await run()
