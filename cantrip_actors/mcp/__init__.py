"""Gates from servers of tools that speak MCP, the Model Context Protocol.

    Circle(gates=["done", stdio("files", "mcp-server-files", "/data", only=["read_file"])], wards=[max_turns(20)])

`stdio` starts a program, `http` connects to a URL, and `inproc` takes a server object, for tests. All three take the
options of `ToolServer`, and both eras of the protocol are spoken. Needs `pip install "cantrip-actors[mcp]"`.
"""

from cantrip_actors.mcp.oauth import OAuth, oauth
from cantrip_actors.mcp.servers import HttpServer, InprocServer, StdioServer, http, inproc, stdio
from cantrip_actors.terms.tool_server import Elicit, Elicited, ToolServer, ToolServerError

__all__ = [
    "Elicit",
    "Elicited",
    "HttpServer",
    "InprocServer",
    "OAuth",
    "StdioServer",
    "ToolServer",
    "ToolServerError",
    "http",
    "inproc",
    "oauth",
    "stdio",
]
