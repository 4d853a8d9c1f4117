"""Every rule that is built has a test that names it, and no test names a rule that is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import REQUIREMENTS

TESTS = Path(__file__).resolve().parent.parent


def marked_ids(source: str) -> Iterator[tuple[str, int]]:
    """Each rule id in a ``requirement(...)`` marker of this source, with its line.

    A marker counts on a test function or class, in a ``pytestmark`` and in ``pytest.param``. An
    argument that is not a plain string is reported as ``?``: it could not be checked.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(
            "mark.requirement"
        ):
            continue
        for argument in node.args:
            plain = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            yield (argument.value if plain else "?"), node.lineno


def all_marked() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for rule, line in marked_ids(path.read_text()):
            found.setdefault(rule, []).append(f"{path.relative_to(TESTS)}:{line}")
    return found


def test_every_rule_that_is_built_has_a_test_that_names_it() -> None:
    due = {rule for rule, entry in REQUIREMENTS.items() if entry.due}
    assert [] == sorted(due - set(all_marked()))


def test_no_test_names_a_rule_that_does_not_exist() -> None:
    unknown = {rule: where for rule, where in all_marked().items() if rule not in REQUIREMENTS}
    assert {} == unknown


def test_every_rule_says_something() -> None:
    assert [] == [entry.id for entry in REQUIREMENTS.values() if len(entry.text) < 20]


def test_markers_are_found_wherever_pytest_takes_them() -> None:
    mark = "pytest.mark." + "requirement"
    source = (
        f"pytestmark = {mark}('A')\n"
        f"@{mark}('B', 'C')\ndef test(): ...\n"
        f"@parametrize('x', [pytest.param(1, marks={mark}('D'))])\ndef test_2(x): ...\n"
        f"@{mark}(NAME)\ndef test_3(): ...\n"
    )
    assert ["A", "B", "C", "D", "?"] == [
        rule for rule, line in sorted(marked_ids(source), key=lambda pair: pair[1])
    ]
