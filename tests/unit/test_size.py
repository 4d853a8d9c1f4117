"""Nothing grows past what one can hold in the head: files of 500 lines, functions of 40."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
FILE_LINES = 500
FUNCTION_LINES = 40


def own_sources() -> list[Path]:
    """Our source files without what is generated or frozen: migration versions, protobuf code."""
    return [
        path
        for path in sorted(SRC.rglob("*.py"))
        if "versions" not in path.parts and not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def function_lengths(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of each function: ``def`` to end, docstring left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                first = node.body[0]
                length -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.name, node.lineno, length


def test_no_source_file_is_longer_than_500_lines() -> None:
    lengths = {
        str(path.relative_to(SRC)): len(path.read_text().splitlines()) for path in own_sources()
    }
    assert lengths
    assert {} == {path: lines for path, lines in lengths.items() if lines > FILE_LINES}


def test_no_function_is_longer_than_40_lines() -> None:
    assert [] == [
        f"{path.relative_to(SRC)}:{line} {name} has {length}"
        for path in own_sources()
        for name, line, length in function_lengths(path.read_text())
        if length > FUNCTION_LINES
    ]


def test_a_function_is_measured_from_def_to_end_without_its_docstring() -> None:
    source = '@decorated\ndef f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    assert [("f", 2, 3)] == list(function_lengths(source))
