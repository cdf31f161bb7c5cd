"""`cantrip mcp ls`, `call` and `check`: look at an MCP server before an entity is given its tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cantrip_actors.cli.command import report_errors
from cantrip_actors.cli.output import as_text, print_json, print_note
from cantrip_actors.cli.terminal import printable

if TYPE_CHECKING:
    from cantrip_actors.mcp.servers import McpServer
    from cantrip_actors.terms.tool_server import Listed

__all__ = ["COMMANDS", "EXAMPLES"]

NO_LOOM: Final = "memory:"

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A URL, or a command with its arguments in quotes.")]
TokenVariable = Annotated[
    str | None,
    typer.Option("--token-env", metavar="NAME", help="The environment variable with the bearer token for a URL."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def ls(target: Target, token_env: TokenVariable = None, json: AsJson = False) -> None:
    """List the tools of an MCP server as gates, and the digest to pin them with."""
    with report_errors(json=json, loom=NO_LOOM):
        from cantrip_actors.terms.tool_server import gates_of

        server, listed = _list(target, token_env)
        if json:
            print_json({"digest": listed.digest, "tools": listed.as_json(server)["tools"]})
            return
        for gate in gates_of(server, listed, _no_call, in_programs=False):
            typer.echo(f"{gate.signature}\n    {printable(gate.description.strip().partition(chr(10))[0])}")
        typer.echo(f'pin="{listed.digest}"')


def call(
    target: Target,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, as its server calls it.")],
    arguments: Annotated[str, typer.Argument(metavar="[ARGUMENTS]", help="Its arguments, a JSON object.")] = "{}",
    token_env: TokenVariable = None,
) -> None:
    """Call a tool of an MCP server once, and print what it returns; exit with 1 if that is an error."""
    with report_errors(json=False, loom=NO_LOOM):
        import anyio

        from cantrip_actors import InvalidCantrip
        from cantrip_actors.mcp.look import call_once, with_connection

        try:
            given = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            raise InvalidCantrip(f"arguments: expected a JSON object: {error}") from error
        if not isinstance(given, dict):
            raise InvalidCantrip("arguments: expected a JSON object")
        answered = anyio.run(with_connection, _server(target, token_env), call_once(tool, given))
        if answered.is_error:
            print_note(printable(as_text(answered.value)))
            raise typer.Exit(1)
        typer.echo(printable(as_text(answered.value)))


def check(target: Target, token_env: TokenVariable = None) -> None:
    """Connect to an MCP server, and check its tools as for an entity that is given them."""
    with report_errors(json=False, loom=NO_LOOM):
        _, listed = _list(target, token_env)
        typer.echo(f"connection: ok\ntools: {len(listed.tools)}, ok")


COMMANDS: Final[Mapping[str, Callable[..., None]]] = {"ls": ls, "call": call, "check": check}
EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("cantrip mcp ls 'mcp-server-files /data'", "cantrip mcp ls https://example.org/mcp --token-env TOKEN"),
    "call": ("""cantrip mcp call https://example.org/mcp search '{"query": "actors"}'""",),
    "check": ("cantrip mcp check 'mcp-server-files /data'",),
}


def _list(target: str, token_env: str | None) -> tuple[McpServer, Listed]:
    import anyio

    from cantrip_actors.mcp.look import with_connection
    from cantrip_actors.terms.tool_server import Listed

    server = _server(target, token_env)
    return server, Listed.of(server, anyio.run(with_connection, server, lambda connection: connection.tools()))


def _server(target: str, token_env: str | None) -> McpServer:
    from cantrip_actors import InvalidCantrip
    from cantrip_actors.mcp.look import server_at

    if token_env is not None and token_env not in os.environ:
        raise InvalidCantrip(f"--token-env: the environment has no variable {token_env}: set it")
    return server_at(target, token=None if token_env is None else os.environ[token_env])


async def _no_call(*_: Any) -> None:
    """Nothing: gates that are only listed are not called."""
