"""Imports point inward, and the core loads nothing but attrs and a cron parser."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
OURS = {"crontask_core", "crontask_adapters", "crontask_server", "crontask_cli"}
CORE_MAY_IMPORT = {"attr", "attrs", "croniter", "tzdata"}
# Reading the world or drawing from it is for adapters.
CORE_MAY_NOT_IMPORT = {"logging", "random", "secrets", "socket", "sqlite3", "subprocess", "time"}


def imported_modules(source: str) -> Iterator[str]:
    """The top-level name of each import anywhere in this source, function bodies included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def imports_of(folder: Path) -> dict[str, str]:
    """Each imported top-level module and one file that imports it."""
    return {
        module: str(path.relative_to(SRC))
        for path in sorted(folder.rglob("*.py"))
        for module in imported_modules(path.read_text())
    }


def import_linter(config: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo", config]
    return subprocess.run(
        command, cwd=config.parent, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_import_contracts_are_kept() -> None:
    done = import_linter(ROOT / "pyproject.toml")
    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_core_imports_only_attrs_and_the_cron_parser() -> None:
    foreign = {
        module: path
        for module, path in imports_of(SRC / "crontask_core").items()
        if module not in sys.stdlib_module_names | OURS | CORE_MAY_IMPORT
    }
    assert {} == foreign


def test_the_core_reads_no_clock_draws_no_random_number_and_does_no_io() -> None:
    imported = imports_of(SRC / "crontask_core")
    assert {} == {module: imported[module] for module in CORE_MAY_NOT_IMPORT & set(imported)}


def test_importing_the_core_loads_nothing_but_attrs_and_the_cron_parser() -> None:
    script = (
        "import sys; before = set(sys.modules); import crontask_core;"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    # croniter brings dateutil.
    allowed = sys.stdlib_module_names | OURS | CORE_MAY_IMPORT | {"dateutil"}
    assert set() == set(done.stdout.split()) - allowed


def test_every_library_the_source_imports_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"]]
    for lines in project["optional-dependencies"].values():
        declared += lines
    names = {distribution_name(line) for line in declared}
    providers = packages_distributions()
    undeclared = {
        module: path
        for module, path in imports_of(SRC).items()
        if module not in sys.stdlib_module_names | OURS
        and not names & {name.lower().replace("_", "-") for name in providers.get(module, [])}
    }
    assert {} == undeclared


def distribution_name(requirement: str) -> str:
    """The bare lower-case name in a requirement line."""
    end = next((i for i, char in enumerate(requirement) if char in "[<>=!~; "), len(requirement))
    return requirement[:end].lower().replace("_", "-")


@pytest.mark.parametrize(
    ("line", "name"),
    [("sqlalchemy[asyncio]>=2.1.9,<2.2", "sqlalchemy"), ("attrs>=26.1", "attrs"), ("rich", "rich")],
)
def test_the_name_of_a_requirement_is_read_from_its_line(line: str, name: str) -> None:
    assert name == distribution_name(line)
