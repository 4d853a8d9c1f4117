"""The MCP server and the loops that fire tasks."""
