"""How answers are shown: tables on a terminal, plain aligned text elsewhere, JSON on request.

Commands hand over the views that MCP answers with too, so both say the same.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from crontask_cli.shell import Shell

__all__ = ["clean", "details", "emit", "fires", "moment", "table", "tell"]

View = Mapping[str, Any]


def emit(shell: Shell, view: View, show: Callable[[View], None]) -> None:
    """Answer: as one JSON object with ``ok``, or through ``show``, warnings to stderr."""
    if shell.as_json:
        click.echo(json.dumps({"ok": True, **view}, ensure_ascii=False, indent=2))
        return
    show(view)
    for warning in view.get("warnings", ()):
        click.echo(f"warning: {clean(warning)}", err=True)


def tell(view: View) -> None:
    """The answer's sentence."""
    click.echo(clean(view["message"]))


def clean(value: object) -> str:
    """Text that cannot move the cursor or hide anything: control characters are spelled out."""
    return "".join(_visible(c) for c in str(value))


def _visible(char: str) -> str:
    if char == "\n":
        return "⏎"
    # Cc control, Cf format (such as right-to-left marks), Cs lone surrogates.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\u200d\ufe0f":
        return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
    return char


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "") -> None:
    """Rows under heads. On a terminal long cells wrap; elsewhere each row is one line. ``right``
    names, blank-separated, the columns of numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    drawn = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        justify = "right" if head in right.split() else "left"
        drawn.add_column(head, justify=justify, no_wrap=not terminal, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        drawn.add_row(*(Text(clean("" if cell is None else cell)) for cell in row))
    # Elsewhere than on a terminal nothing may be cut: the reader is a program or a file.
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else 10_000)
    with console.capture() as drawing:
        console.print(drawn)
    for line in drawing.get().splitlines():
        click.echo(line.rstrip())


def details(pairs: Iterable[tuple[str, object]]) -> None:
    """Name and value, one pair a line, those without a value left out; texts keep their lines."""
    kept = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        lines = [clean(line) for line in _text(value).split("\n")]
        click.echo(f"{name:<{width}}  {lines[0]}")
        for line in lines[1:]:
            click.echo(f"{'':<{width}}  {line}")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and "local" in value:
        return moment(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


def moment(at: Mapping[str, Any] | None) -> str:
    """An instant of a view: local time, and how far off if that is told; "" for none."""
    if not at:
        return ""
    return f"{at['local']} ({at['in']})" if "in" in at else str(at["local"])


def fires(view: View) -> str:
    """The next fires of a view, one a line: local time and how far off."""
    return "\n".join(moment(at) for at in view.get("next_fire_times", ()))
