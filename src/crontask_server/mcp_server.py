"""The MCP server: tools and resources over whatever transport (A4.2).

Built on the SDK's low-level server, which sends our schemas as they are written. Whatever goes
wrong inside a tool becomes a result with ``isError``, which a model can read and act on; a raised
exception would be hidden from it, and on older connections its text would leak to the client.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from mcp import MCPError, types
from mcp.server import CacheHint, Server, ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from crontask_adapters import views
from crontask_adapters.ids import error_id
from crontask_core.errors import CrontaskError, Unavailable
from crontask_core.events import Event, ExecutionMoved, TaskChanged
from crontask_core.tasks import Tasks
from crontask_server.guide import INSTRUCTIONS, guide
from crontask_server.identity import Caller
from crontask_server.tool_schemas import SPECS, ToolSpec
from crontask_server.tools import answer

__all__ = ["Feed", "McpFace", "tool_list"]

log = logging.getLogger("crontask.mcp")

Context = ServerRequestContext[Any, Any]
_HOUR_MS = 3_600_000
_GUIDE = "crontask://guide/schedules"
_TASKS = "crontask://tasks/"
_EXECUTIONS = "crontask://executions/"
_HINTS: dict[Any, CacheHint] = {
    method: CacheHint(ttl_ms=_HOUR_MS, scope="public")
    for method in ("tools/list", "resources/list", "resources/templates/list")
}


def tool_list() -> list[types.Tool]:
    """The tools as they go over the wire, always the same, in one order."""
    return [_tool(spec) for spec in SPECS.values()]


def _tool(spec: ToolSpec) -> types.Tool:
    return types.Tool(
        name=spec.name,
        description=spec.description,
        input_schema=spec.input_schema,
        output_schema=spec.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=spec.read_only,
            destructive_hint=spec.destructive,
            idempotent_hint=spec.idempotent,
            open_world_hint=spec.open_world,
        ),
    )


@attrs.define
class Feed:
    """Tells listening clients that a task or an execution changed: an ``Observer``.

    Only what this process does is told, best effort, without replay: a hint to read again.
    """

    handler: ListenHandler = attrs.field(init=False)
    _bus: _Bus = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._bus = _Bus()
        self.handler = ListenHandler(self._bus)

    def on(self, event: Event) -> None:
        if isinstance(event, TaskChanged):
            self._bus.tell(f"{_TASKS}{event.task.id}")
        elif isinstance(event, ExecutionMoved):
            self._bus.tell(f"{_EXECUTIONS}{event.after.id}")
            self._bus.tell(f"{_TASKS}{event.after.task_id}")

    def close(self) -> None:
        """End every listening stream in an orderly way; an open one would keep a server up."""
        self.handler.close()


class _Bus(InMemorySubscriptionBus):
    def tell(self, uri: str) -> None:
        for listener in list(self._listeners.values()):
            listener(ResourceUpdated(uri=uri))


@attrs.define(kw_only=True)
class McpFace:
    """What a client of one installation sees. ``caller`` says who calls, per request.

    ``ignore`` names arguments that are dropped in silence (``server.ignore_arguments``). ``feed``
    makes the server offer listening streams; whoever gives it also puts it among the observers.
    """

    tasks: Tasks
    caller: Callable[[], Caller]
    version: str
    ignore: Collection[str] = ()
    feed: Feed | None = None

    def server(self) -> Server[Any]:
        """A new server of the SDK; one for each transport."""
        return Server(
            "crontask",
            title="crontask",
            version=self.version,
            instructions=INSTRUCTIONS,
            cache_hints=_HINTS,
            get_tool_input_schema=_input_schema,
            on_list_tools=_list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=_list_resources,
            on_list_resource_templates=_list_templates,
            on_read_resource=self.read_resource,
            on_subscriptions_listen=self.feed.handler if self.feed else None,
        )

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """One tool call; every failure of it is a result. MCPError only for an unknown tool."""
        if params.name not in SPECS:
            near = difflib.get_close_matches(params.name, SPECS, 3, 0.5)
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name:.60}", {"candidates": near}
            )
        try:
            shown = await answer(
                self.tasks,
                self.caller(),
                params.name,
                params.arguments or {},
                meta=_meta(ctx),
                ignore=self.ignore,
                version=self.version,
            )
        except Exception as error:  # noqa: BLE001 - a raised one would not reach the model
            return _failed(*_told(error, params.name))
        return _done(shown)

    async def read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """A task, an execution or the guide. MCPError (-32602) for anything else."""
        uri = str(params.uri)
        try:
            kind, text = await self._resource(uri, _meta(ctx))
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - its text could leak to the client
            told, mark = _told(error, uri)
            code = types.INTERNAL_ERROR if mark else types.INVALID_PARAMS
            raise MCPError(code, told.line(), {"uri": uri, **views.error(told, mark)}) from None
        contents = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[contents])

    async def _resource(self, uri: str, meta: Mapping[str, Any]) -> tuple[str, str]:
        if uri == _GUIDE:
            return "text/markdown", guide(self.tasks.rules.zone)
        for prefix, tool, name in (
            (_TASKS, "get_cron_task", "task_id"),
            (_EXECUTIONS, "get_task_executions", "execution_id"),
        ):
            number = uri.removeprefix(prefix)
            if uri.startswith(prefix) and number.isascii() and number.isdigit():
                args = {name: number[:20]}
                shown = await answer(self.tasks, self.caller(), tool, args, meta=meta)
                return "application/json", _json(shown)
        raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri:.200}", {"uri": uri})


async def _list_tools(
    _ctx: Context, _params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=tool_list())


async def _list_resources(
    _ctx: Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    about = "How to write schedules and task_content, and what the states mean."
    shown = types.Resource(
        uri=_GUIDE, name="schedules", description=about, mime_type="text/markdown"
    )
    return types.ListResourcesResult(resources=[shown])


async def _list_templates(
    _ctx: Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    made = [
        types.ResourceTemplate(
            uri_template=f"{prefix}{{{name}}}",
            name=noun,
            description=about,
            mime_type="application/json",
        )
        for prefix, name, noun, about in (
            (_TASKS, "task_id", "task", "One task, as get_cron_task shows it."),
            (_EXECUTIONS, "execution_id", "execution", "One execution with its attempts."),
        )
    ]
    return types.ListResourceTemplatesResult(resource_templates=made)


def _input_schema(name: str) -> dict[str, Any] | None:
    spec = SPECS.get(name)
    return spec.input_schema if spec else None


def _meta(ctx: Context) -> Mapping[str, Any]:
    return dict(ctx.meta or {})


def _told(error: Exception, what: str) -> tuple[CrontaskError, str]:
    """The error as the caller may see it, and the id that finds it in the log ("" for his own)."""
    if isinstance(error, CrontaskError) and not isinstance(error, Unavailable):
        return error, ""
    mark = error_id()
    if isinstance(error, CrontaskError):
        log.warning("%s failed, %s: %s", what, mark, error.line())
        return error, mark
    log.error("%s failed, %s", what, mark, exc_info=error)
    return (
        CrontaskError(
            f"something went wrong inside crontask (error id {mark})",
            hint="Try again later; tell the operator the error id.",
            retryable=True,
        ),
        mark,
    )


def _done(shown: dict[str, Any]) -> types.CallToolResult:
    """The answer for programs, and the same for models whose host shows them only text."""
    rest = {name: value for name, value in shown.items() if name not in ("ok", "message")}
    text = f"{shown.get('message', 'Done.')}\n{_json(rest)}"
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=shown)


def _failed(told: CrontaskError, mark: str) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=views.printable(told.line()))],
        structured_content=views.error(told, mark),
        is_error=True,
    )


def _json(shown: object) -> str:
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
