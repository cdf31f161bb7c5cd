"""Cantrips as tools of an MCP server: over standard input and output, and at `/mcp` of a service.

Importing this package imports the MCP SDK, which takes about a second: import it where it is needed.
"""

from cantrip_actors.mcp_server.callers import CallerRefused, McpCaller
from cantrip_actors.mcp_server.server import make_server
from cantrip_actors.mcp_server.stdio import serve_stdio
from cantrip_actors.terms.cantrip import by_name

__all__ = ["CallerRefused", "McpCaller", "by_name", "make_server", "serve_stdio"]
