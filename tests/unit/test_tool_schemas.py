"""The tools a client is shown: portable, small, and the same as what the server takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import mcp_types as types
import pytest

from crontask_adapters.argument_kinds import Kind
from crontask_adapters.arguments import TOOLS
from crontask_server.guide import INSTRUCTIONS, guide
from crontask_server.identity import ALL_SCOPES
from crontask_server.mcp_server import tool_list
from crontask_server.tool_schemas import SPECS
from crontask_server.tools import HANDLERS

NINE = [
    "create_cron_task", "update_cron_task", "get_cron_task", "list_cron_tasks", "delete_cron_task",
    "pause_cron_task", "resume_cron_task", "get_task_executions", "report_task_result",
]  # fmt: skip
OURS = [
    "preview_schedule", "run_cron_task_now", "cancel_task_execution", "get_scheduler_info",
]  # fmt: skip
# What no host is sure to take: seen to be refused or stripped by some.
BANNED = {
    "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "$defs", "definitions", "const",
    "nullable", "default", "format", "pattern", "patternProperties", "additionalProperties",
    "title",
}  # fmt: skip
TYPES = {
    Kind.CONTENT: "string", Kind.LOOSE: "string", Kind.ID: "string", Kind.RUN: "string",
    Kind.PLAIN: "string", Kind.TIME: "string", Kind.WHOLE: "integer", Kind.NUMBER: "number",
    Kind.FLAG: "boolean", Kind.NAMES: "array",
}  # fmt: skip


def wire() -> dict[str, Any]:
    listed = types.ListToolsResult(tools=tool_list())
    return listed.model_dump(mode="json", by_alias=True, exclude_none=True)


def schemas(node: object) -> Iterator[dict[str, Any]]:
    """Every schema within a schema, itself included."""
    if isinstance(node, dict):
        yield node
        for inner in node.get("properties", {}).values():
            yield from schemas(inner)
        yield from schemas(node.get("items"))


@pytest.mark.requirement("A4.2")
def test_the_nine_tools_of_the_source_and_our_four_are_offered() -> None:
    assert [*NINE, *OURS] == [tool.name for tool in tool_list()]
    assert set(SPECS) == set(HANDLERS) == set(TOOLS)


@pytest.mark.requirement("A4.2")
def test_the_required_lists_are_the_source_documents() -> None:
    required = {name: spec.input_schema.get("required", []) for name, spec in SPECS.items()}
    assert {
        "create_cron_task": ["task_name", "schedule_type", "conversation_id", "task_content"],
        "report_task_result": ["task_id", "task_run_id", "status"],
        "cancel_task_execution": ["execution_id"],
    } == {name: names for name, names in required.items() if names}


@pytest.mark.requirement("A4.2")
def test_the_source_documents_arguments_keep_their_names_and_types() -> None:
    create = {n: s["type"] for n, s in SPECS["create_cron_task"].input_schema["properties"].items()}
    seed = {
        "task_name": "string", "task_key": "string", "conversation_id": "string",
        "task_content": "string", "schedule_type": "integer", "trigger_time": "string",
        "cron_expr": "string", "max_retry": "integer", "task_desc": "string",
    }  # fmt: skip
    assert seed.items() <= create.items()
    report = SPECS["report_task_result"].input_schema["properties"]
    assert {
        "task_id": "integer", "task_run_id": "string", "status": "string", "result": "string",
        "error": "string",
    }.items() <= {name: schema["type"] for name, schema in report.items()}.items()  # fmt: skip
    assert ["success", "failed"] == report["status"]["enum"][:2]
    kinds = SPECS["create_cron_task"].input_schema["properties"]["schedule_type"]["enum"]
    assert [1, 2] == kinds[:2]


@pytest.mark.requirement("A4.2")
def test_a_schema_names_exactly_the_arguments_the_server_takes_in_their_types() -> None:
    for name, spec in SPECS.items():
        shown = {n: s["type"] for n, s in spec.input_schema["properties"].items()}
        taken = {a.name: TYPES.get(a.kind, a.kind.value) for a in TOOLS[name]}
        words = {a.name: "integer" if a.words else "string" for a in TOOLS[name]}
        taken = {n: words[n] if kind == Kind.WORD else kind for n, kind in taken.items()}
        assert taken == shown, name


def test_what_a_schema_requires_is_required_or_has_a_documented_stand_in() -> None:
    # schedule_type follows from the field given; a run is also named by its fire or execution.
    stand_ins = {"schedule_type", "task_run_id"}
    for name, spec in SPECS.items():
        required = set(spec.input_schema.get("required", [])) - stand_ins
        assert required == {a.name for a in TOOLS[name] if a.required}, name


@pytest.mark.requirement("A4.2")
def test_every_schema_is_flat_with_one_plain_type_each() -> None:
    for name, spec in SPECS.items():
        for schema in (*schemas(spec.input_schema), *schemas(spec.output_schema)):
            assert isinstance(schema["type"], str), (name, schema)
            assert schema["type"] != "null"
            assert set() == BANNED & schema.keys(), (name, schema)
        for argument, schema in spec.input_schema["properties"].items():
            assert schema["type"] != "object", (name, argument)
            assert schema["type"] != "array" or schema["items"] == {"type": "string"}
            assert set(map(type, schema.get("enum", [""]))) in ({str}, {int})
        jsonschema.Draft202012Validator.check_schema(spec.input_schema)
        jsonschema.Draft202012Validator.check_schema(spec.output_schema)


@pytest.mark.requirement("A4.2")
def test_every_output_schema_takes_an_error_as_well() -> None:
    error = {"ok": False, "message": "m", "error": {"code": "INTERNAL", "retryable": True}}
    for spec in SPECS.values():
        jsonschema.validate(error, spec.output_schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"message": "no ok"}, spec.output_schema)


def test_every_tool_has_a_description_four_hints_and_a_scope() -> None:
    for tool in tool_list():
        assert tool.description and tool.description[0].isupper()
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(exclude={"title"})
        assert 4 == len(hints) and all(isinstance(value, bool) for value in hints.values())
    assert {spec.scope for spec in SPECS.values()} <= ALL_SCOPES
    assert ["report_task_result"] == [n for n, s in SPECS.items() if s.scope == "report"]
    assert [n for n, s in SPECS.items() if s.scope == "read"] == [
        n for n, s in SPECS.items() if s.read_only
    ]


def test_the_whole_list_stays_under_12_kb() -> None:
    assert len(json.dumps(wire(), ensure_ascii=False, separators=(",", ":")).encode()) < 12 * 1024


def test_the_instructions_stay_under_1_kb() -> None:
    assert len(INSTRUCTIONS.encode()) < 1024


@pytest.mark.requirement("A2.3a")
def test_create_and_the_guide_show_self_contained_content_with_identity_and_destination() -> None:
    texts = [SPECS["create_cron_task"].description, guide("Europe/Berlin")]
    for text in texts:
        assert "rts_name" in text and "push_target" in text
        assert "Parameters: {" in text
        assert "when" in text
    assert "Europe/Berlin" in texts[1] and "{zone}" not in texts[1]
