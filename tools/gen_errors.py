"""Write docs/reference/errors.md from ``crontask_core.errors``: ``python tools/gen_errors.py``.

``tests/unit/test_docs.py`` fails while the page is not what this writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crontask_core.errors import CODES, CrontaskError, InvalidInput

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/errors.md"

_HEAD = """# Errors

<!-- Made by tools/gen_errors.py from crontask_core.errors. Change the lists there, then run it. -->

Every refusal is the same object wherever you meet it. Branch on `code`: codes are stable, texts
are not.

| part | what it says |
|---|---|
| `code` | one of the codes below |
| `message` | what is wrong, in a sentence |
| `field` | the argument or setting at fault; left out when there is none |
| `received` | the offending value, shortened to 120 characters |
| `hint` | what to do |
| `example` | a value for `field` that works as it stands |
| `candidates` | near matches, best first |
| `retryable` | `true`: the very same call may succeed later. Always there |

Where you meet it:

- **MCP**: a result with `isError` true, one line of text, and `structuredContent` of
  `{"ok": false, "message": ..., "error": {...}}`. It is a result and not a protocol error, so that
  a model can read it ([why](../adr/0014-errors-are-returned.md)).
- **Command line**: a block on standard error and the exit code of the class; with `--json` the same
  object as over MCP, also on standard error.
- **Python**: an exception of one of the classes below, with the parts as attributes.

An example:

"""


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD + _example(), "## Classes\n", _classes(), "## Codes\n", _codes()])


def _example() -> str:
    error = InvalidInput(
        "there is no such time zone",
        code="UNKNOWN_TIMEZONE",
        field="timezone",
        received="Asia/Shanghia",
        hint="Give an IANA name.",
        example="Asia/Shanghai",
        candidates=("Asia/Shanghai",),
    )
    return f"```text\n{error.line()}\n```\n"


def _classes() -> str:
    rows = [
        "| class | when | exit code | HTTP status | its own code |",
        "|---|---|---|---|---|",
    ]
    for kind in _tree(CrontaskError):
        when = (kind.__doc__ or "").split("\n\n")[0].replace("``", "`")
        rows.append(
            f"| `{kind.__name__}` | {' '.join(when.split())} | {kind.exit_code} "
            f"| {kind.http_status} | `{kind.default_code}` |"
        )
    note = (
        "\nThe exit code is that of the class an error was raised with. The class says what the\n"
        "caller can do, so a code may come with another class than the one it is the default of."
    )
    return "\n".join(rows) + "\n" + note + "\n"


def _tree(root: type[CrontaskError]) -> Iterator[type[CrontaskError]]:
    """The class and those of its subclasses that errors.py itself defines."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == CrontaskError.__module__:
            yield from _tree(kind)


def _codes() -> str:
    rows = ["| code | meaning |", "|---|---|"]
    rows += [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
