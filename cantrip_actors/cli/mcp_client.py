"""`cantrip mcp ls`, `prompts`, `call` and `check`: look at an MCP server before it is used. `login`: log in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cantrip_actors.cli.command import examples, report_errors
from cantrip_actors.cli.output import as_text, print_json, print_note
from cantrip_actors.cli.terminal import printable
from cantrip_actors.redact.visible import escape
from cantrip_actors.terms.exact_json import explain_arguments, read_arguments

if TYPE_CHECKING:
    from cantrip_actors.mcp.oauth import OAuth
    from cantrip_actors.mcp.servers import McpServer
    from cantrip_actors.terms.tool_server import ListedTools

NO_LOOM: Final = "memory:"

app = typer.Typer(rich_markup_mode=None)

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="A URL, or a command with its arguments in quotes.")
]
TokenVariable = Annotated[
    str | None,
    typer.Option("--token-env", metavar="NAME", help="The environment variable with the bearer token for a URL."),
]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", metavar="SCOPE", help="A scope to ask for; repeat for more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(
    epilog=examples(
        "cantrip mcp ls 'mcp-server-files /data'", "cantrip mcp ls https://example.org/mcp --token-env TOKEN"
    )
)
def ls(target: TargetArgument, token_env: TokenVariable = None, json: AsJson = False) -> None:
    """List the tools of an MCP server as gates, and the digest to pin them with."""
    with report_errors(json=json, loom=NO_LOOM):
        from cantrip_actors.terms.tool_server import make_gates

        server, listed = _list(target, token_env)
        if json:
            listing = listed.as_json(server)
            print_json({"digest": listed.digest, "tools": listing["tools"]})
            return
        for gate in make_gates(server, listed, _refuse_call, in_programs=False):
            typer.echo(f"{escape(gate.signature)}\n    {printable(gate.description.strip().partition(chr(10))[0])}")
            if gate.hints:
                typer.echo(f"    {printable(gate.hints)}")
        typer.echo(f'pin="{listed.digest}"')


@app.command(epilog=examples("cantrip mcp prompts https://example.org/mcp"))
def prompts(target: TargetArgument, token_env: TokenVariable = None, json: AsJson = False) -> None:
    """List the prompts of an MCP server, with their arguments; those in brackets may be left out."""
    with report_errors(json=json, loom=NO_LOOM):
        import anyio

        from cantrip_actors.mcp.look import with_connection

        listed = anyio.run(with_connection, _make_server(target, token_env), lambda connection: connection.prompts())
        if json:
            print_json({"prompts": [prompt._asdict() for prompt in listed]})
            return
        for prompt in listed:
            typer.echo(escape(f"{prompt.name} {prompt.usage}".strip()))
            if prompt.description:
                typer.echo(f"    {printable(prompt.description.strip().partition(chr(10))[0])}")
            for name, description in prompt.arguments.items():
                if description:
                    typer.echo(f"    {escape(name)}: {printable(description.strip().partition(chr(10))[0])}")
        if not listed:
            print_note("the server has no prompts")


@app.command(epilog=examples("""cantrip mcp call https://example.org/mcp search '{"query": "actors"}'"""))
def call(
    target: TargetArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, as its server calls it.")],
    arguments: Annotated[str, typer.Argument(metavar="ARGUMENTS", help="Its arguments, a JSON object.")] = "{}",
    token_env: TokenVariable = None,
) -> None:
    """Call a tool of an MCP server once, and print what it returns; exit with 1 if that is an error."""
    with report_errors(json=False, loom=NO_LOOM):
        import anyio

        from cantrip_actors import InvalidCantrip
        from cantrip_actors.mcp.look import call_once, with_connection

        args = read_arguments(arguments)
        if args is None:
            raise InvalidCantrip(f"expected a JSON object: {explain_arguments(arguments)}")
        answered = anyio.run(with_connection, _make_server(target, token_env), call_once(tool, args))
        if answered.is_error:
            print_note(printable(as_text(answered.value)))
            raise typer.Exit(1)
        typer.echo(printable(as_text(answered.value)))


@app.command(epilog=examples("cantrip mcp check 'mcp-server-files /data'"))
def check(target: TargetArgument, token_env: TokenVariable = None) -> None:
    """Connect to an MCP server, and check its tools as for an entity that is given them."""
    with report_errors(json=False, loom=NO_LOOM):
        _, listed = _list(target, token_env)
        typer.echo(f"connection: ok\ntools: {len(listed.tools)}, ok")


@app.command(epilog=examples("cantrip mcp login https://example.org/mcp"))
def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server.")],
    client_id: Annotated[
        str | None,
        typer.Option("--client-id", metavar="ID", help="A client that is registered; left out, one is registered."),
    ] = None,
    scope: Scopes = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port of 127.0.0.1 that the browser comes back to.")
    ] = 0,
) -> None:
    """Log in at an MCP server with OAuth: print a link, wait for the browser, and keep the tokens.

    Then `http(NAME, URL, auth=oauth())` and `oauth: true` in a recipe use them, and refresh them.
    """
    with report_errors(json=False, loom=NO_LOOM):
        import anyio

        from cantrip_actors import InvalidCantrip
        from cantrip_actors.mcp import oauth
        from cantrip_actors.mcp.look import server_at, with_connection
        from cantrip_actors.mcp.oauth import Login

        settings, links = oauth(client_id=client_id, scopes=scope or ()), []

        def show(link: str) -> None:
            links.append(link)
            print_note(f"Open this link, and log in there:\n{printable(link)}")

        if not url.startswith(("http://", "https://")):
            raise InvalidCantrip(f"expected the URL of a server, got {url!r}")
        server = server_at(url, auth=Login(settings, show, port))
        tools = anyio.run(with_connection, server, lambda connection: connection.tools())
        if not links:
            print_note("the server wants no login")
        typer.echo(f"connection: ok\ntools: {len(tools)}")


def _list(target: str, token_env: str | None) -> tuple[McpServer, ListedTools]:
    import anyio

    from cantrip_actors.mcp.look import with_connection
    from cantrip_actors.terms.tool_server import ListedTools

    server = _make_server(target, token_env)
    listed = ListedTools.of(server, anyio.run(with_connection, server, lambda connection: connection.tools()))
    for name, fault in listed.left_out.items():
        print_note(printable(f"left out: {name}: its JSON Schema is invalid: {fault}"))
    return server, listed


def _make_server(target: str, token_env: str | None) -> McpServer:
    from cantrip_actors import InvalidCantrip
    from cantrip_actors.mcp.look import server_at

    if token_env is not None and token_env not in os.environ:
        raise InvalidCantrip(f"--token-env: the environment has no variable {token_env}: set it")
    return server_at(target, auth=_find_login(target) if token_env is None else os.environ[token_env])


def _find_login(target: str) -> OAuth | None:
    """Return the login at a URL, if there is one."""
    from cantrip_actors.mcp.oauth import file_of, oauth

    settings = oauth()
    return settings if file_of(settings, target).exists() else None


async def _refuse_call(*_: Any) -> None:
    """Do nothing: gates that are only listed are not called."""
