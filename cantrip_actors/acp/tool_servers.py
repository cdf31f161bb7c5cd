"""The MCP servers that an editor lists for a session, as servers of tools of its entity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cantrip_actors.acp.jsonrpc import INVALID_PARAMS, InvalidParams, RequestError
from cantrip_actors.mcp import http, stdio
from cantrip_actors.mcp.servers import make_server_name
from cantrip_actors.terms.arguments import check_kind
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.tool_server import ToolServer


def servers_of(servers: Any, cwd: Path) -> tuple[ToolServer, ...]:
    """Return the servers of `mcpServers`; programs start in `cwd`. Raises RequestError for anything else."""
    check_kind("mcpServers", servers, list, "a list", InvalidParams)
    try:
        return tuple(_read_server(server, cwd) for server in servers)
    except InvalidCantrip as problem:
        raise RequestError(INVALID_PARAMS, f"mcpServers: {problem}") from problem


def _read_server(server: Any, cwd: Path) -> ToolServer:
    name = server.get("name") if isinstance(server, Mapping) else None
    check_kind("mcpServers", name, str, "objects, each with a name", InvalidParams)
    name = make_server_name(server["name"])
    match server.get("type", "stdio"):
        case "stdio":
            args = server.get("args") or []
            command = server.get("command", "")
            check_kind(f"mcpServers: {name}: args", args, list, "a list of texts", InvalidParams)
            return stdio(name, command, *args, env=_read_pairs(name, server.get("env")), cwd=str(cwd))
        case "http":
            return http(name, server.get("url", ""), headers=_read_pairs(name, server.get("headers")))
        case other:
            raise RequestError(INVALID_PARAMS, f"mcpServers: {name}: expected stdio or http, got {other!r}")


def _read_pairs(name: str, pairs: Any) -> dict[str, str]:
    try:
        return {str(pair["name"]): str(pair["value"]) for pair in pairs or []}
    except (KeyError, TypeError) as problem:
        raise RequestError(INVALID_PARAMS, f"mcpServers: {name}: expected objects with name and value") from problem
