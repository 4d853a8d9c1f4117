"""The page about the tools is what its generator writes."""

from __future__ import annotations

from tools import gen_docs_tools

from crontask_server.tool_schemas import SPECS


def test_the_page_about_the_tools_is_current() -> None:
    page = gen_docs_tools.PAGE.read_text()
    assert gen_docs_tools.render() == page, "run python tools/gen_docs_tools.py"


def test_the_page_about_the_tools_names_every_tool_and_argument() -> None:
    page = gen_docs_tools.PAGE.read_text()
    for name, spec in SPECS.items():
        part = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert [] == [a for a in spec.input_schema["properties"] if f"| `{a}` |" not in part]
