"""Each direct dependency is named, with its reason, on the page about dependencies, and locked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return found[0].lower().replace("_", "-")


def run_names() -> set[str]:
    lines = [*PROJECT["project"]["dependencies"]]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        lines += extra
    return {name_of(line) for line in lines}


def dev_names() -> set[str]:
    return {name_of(line) for line in PROJECT["dependency-groups"]["dev"]}


def explained() -> dict[str, str]:
    """Name and reason of each row in the tables of the page."""
    page = (ROOT / "docs/explanation/dependencies.md").read_text()
    return dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|$", page, re.M))


def locked(name: str) -> dict[str, int]:
    """Each name in a lock file with its number of hashes."""
    text = (ROOT / "requirements" / name).read_text()
    blocks = re.findall(r"^([a-z0-9-]+)==[^\n]*((?:\n    [^\n]*)*)", text, re.M)
    return {package: block.count("--hash=sha256:") for package, block in blocks}


def test_the_page_explains_each_direct_dependency_and_no_other() -> None:
    assert sorted(run_names() | dev_names()) == sorted(explained())


def test_each_reason_is_more_than_a_word() -> None:
    assert [] == [name for name, reason in explained().items() if len(reason) < 25]


def test_every_direct_dependency_is_locked() -> None:
    assert set() == run_names() - set(locked("run.lock"))
    assert set() == (run_names() | dev_names()) - set(locked("dev.lock"))


@pytest.mark.parametrize("lock", ["run.lock", "dev.lock"])
def test_a_lock_file_has_hashes_for_everything_and_no_address(lock: str) -> None:
    assert [] == [name for name, hashes in locked(lock).items() if not hashes]
    assert "://" not in (ROOT / "requirements" / lock).read_text()


def test_both_lock_files_agree_on_versions() -> None:
    def versions(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text()
        return set(re.findall(r"^[a-z0-9-]+==[^\s;\\]+", text, re.M))

    assert set() == versions("run.lock") - versions("dev.lock")
