"""Cantrips as tools of an MCP server: over standard input and output, and at `/mcp` of a service.

Importing this package imports the MCP SDK, which takes about a second: import it where it is needed.
"""

from cantrip_actors.terms.cantrip import by_name

try:
    from cantrip_actors.mcp_server.callers import CallerRefused, McpCaller
    from cantrip_actors.mcp_server.server import make_server
    from cantrip_actors.mcp_server.stdio import serve_stdio
except ModuleNotFoundError as error:
    if str(error.name).startswith("cantrip_actors."):
        raise
    raise ModuleNotFoundError(
        f"cantrip_actors.mcp_server needs {error.name}: pip install 'cantrip-actors[mcp]'", name=error.name
    ) from error

__all__ = ["CallerRefused", "McpCaller", "by_name", "make_server", "serve_stdio"]
