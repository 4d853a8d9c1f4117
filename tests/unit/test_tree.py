"""The tree holds nothing that only works on one machine, and tests keep to the house rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THIS = Path(__file__).resolve()
LEFT_OUT = {
    ".git", ".venv", ".mysql", "build", "dist", "__pycache__", ".pytest_cache", ".mypy_cache",
    ".ruff_cache", ".hypothesis", ".import_linter_cache", ".idea", ".vscode",
}  # fmt: skip

REGISTRIES = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|deb\.debian\.org|crates\.io|proxy\.golang", re.I
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}/-])/(work|farm|root|home|Users|mnt)/")
MOCKS = re.compile(r"unittest\.mock|from unittest import mock|MagicMock|AsyncMock|\bmocker\b")
SLEEPS = re.compile(r"\b(time|asyncio|anyio)\.sleep\(")
HIDDEN_TESTS = re.compile(r"pytest\.(mark\.)?(skip|xfail|importorskip)|@unittest\.skip")


def text_files(*folders: str) -> Iterator[Path]:
    """The text files of the tree, or of these folders of it, without what tools have made."""
    for folder in folders or (".",):
        for path in sorted((ROOT / folder).rglob("*")):
            left_out = path == THIS or set(path.relative_to(ROOT).parts) & LEFT_OUT
            if not left_out and path.is_file() and b"\0" not in path.read_bytes():
                yield path


def lines_with(pattern: re.Pattern[str], *folders: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in text_files(*folders)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_the_address_of_a_package_registry() -> None:
    assert [] == lines_with(REGISTRIES)


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert [] == lines_with(MACHINE_PATHS)


def test_no_mock_library_is_used() -> None:
    assert [] == lines_with(MOCKS, "src", "tests")


def test_unit_and_contract_tests_do_not_sleep() -> None:
    assert [] == lines_with(SLEEPS, "tests/unit", "tests/contract")


def test_no_test_is_hidden_by_a_skip_or_an_expected_failure() -> None:
    assert [] == lines_with(HIDDEN_TESTS, "tests")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /" + "home/ann/notes", True),
        ("(/" + "root/.cache)", True),
        ("$HOME/" + "work/x", False),
        ("docs/" + "work/x", False),
    ],
)
def test_a_machine_path_is_an_absolute_one(text: str, found: bool) -> None:
    assert found is bool(MACHINE_PATHS.search(text))
