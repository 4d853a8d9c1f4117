"""A client of a crontask MCP endpoint, for the sample agent and the demo."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp.client.streamable_http import (  # type: ignore[attr-defined]  # meant for callers
    create_mcp_http_client,
    streamable_http_client,
)
from mcp.types import CallToolResult, TextContent

__all__ = ["ToolFailed", "call_tool", "mcp_client"]


class ToolFailed(Exception):
    """A tool answered with an error; ``error`` is its ``code``, ``hint`` and the rest."""

    def __init__(self, message: str, error: dict[str, Any]) -> None:
        super().__init__(message)
        self.error = error

    @property
    def retryable(self) -> bool:
        return bool(self.error.get("retryable"))


def mcp_client(url: str, token: str = "") -> Client:
    """A client of the endpoint ``url``, with a bearer token if one is given. Not yet connected."""
    if not token:
        return Client(url)
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
    return Client(streamable_http_client(url, http_client=http))


async def call_tool(
    client: Client, name: str, arguments: dict[str, Any], *, timeout: float = 30.0
) -> dict[str, Any]:
    """The structured answer of a tool. Raises ToolFailed when it says that it failed."""
    result = await client.call_tool(name, arguments, read_timeout_seconds=timeout)
    answer = result.structured_content or {}
    if result.is_error:
        raise ToolFailed(_text(result), dict(answer.get("error") or {}))
    return dict(answer)


def _text(result: CallToolResult) -> str:
    return " ".join(part.text for part in result.content if isinstance(part, TextContent))
