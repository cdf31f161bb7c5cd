"""The MCP servers that an editor lists for a session, as servers of tools of its entity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cantrip_actors.acp.jsonrpc import INVALID_PARAMS, RequestError
from cantrip_actors.mcp import http, stdio
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.tool_server import ToolServer


def servers_of(given: Any, cwd: Path) -> tuple[ToolServer, ...]:
    """Return the servers of `mcpServers`; programs start in `cwd`. Raises RequestError for anything else."""
    if not isinstance(given, list):
        raise RequestError(INVALID_PARAMS, "mcpServers: expected a list")
    try:
        return tuple(_read_server(one, cwd) for one in given)
    except InvalidCantrip as problem:
        raise RequestError(INVALID_PARAMS, f"mcpServers: {problem}") from problem


def _read_server(given: Any, cwd: Path) -> ToolServer:
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise RequestError(INVALID_PARAMS, "mcpServers: expected objects, each with a name")
    name = _name(given["name"])
    match given.get("type", "stdio"):
        case "stdio":
            args = given.get("args") or []
            command = given.get("command", "")
            if not isinstance(args, list):
                raise RequestError(INVALID_PARAMS, f"mcpServers: {name}: args: expected a list of texts")
            return stdio(name, command, *args, env=_read_pairs(name, given.get("env")), cwd=str(cwd))
        case "http":
            return http(name, given.get("url", ""), headers=_read_pairs(name, given.get("headers")))
        case other:
            raise RequestError(INVALID_PARAMS, f"mcpServers: {name}: expected stdio or http, got {other!r}")


def _name(given: str) -> str:
    """Return the name of a server as a prefix of gate names."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", given)[:32]
    return name if name[:1].isalpha() else f"s{name}"[:32]


def _read_pairs(name: str, given: Any) -> dict[str, str]:
    try:
        return {str(one["name"]): str(one["value"]) for one in given or []}
    except (KeyError, TypeError) as problem:
        raise RequestError(INVALID_PARAMS, f"mcpServers: {name}: expected objects with name and value") from problem
