"""Tools that a provider runs itself, for `Call(server_tools=[…])`, and their calls and citations in a turn."""

from cantrip_actors.terms.server_tools import (
    Citation,
    ServerCall,
    ServerTool,
    code_execution,
    file_search,
    mcp_connector,
    url_context,
    web_search,
)

__all__ = [
    "Citation",
    "ServerCall",
    "ServerTool",
    "code_execution",
    "file_search",
    "mcp_connector",
    "url_context",
    "web_search",
]
