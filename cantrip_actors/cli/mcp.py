"""`cantrip mcp`: cantrips as tools of an MCP server. Its dependencies are imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cantrip_actors.cli import mcp_client
from cantrip_actors.cli.command import (
    LOOM,
    Backend,
    Dependencies,
    FirstCommand,
    IfUnattended,
    Loop,
    MaxBody,
    MaxCostPerDay,
    MaxStreams,
    OfferedRecipes,
    RequestsPerMinute,
    UnattendedMode,
    Url,
    examples,
    import_extra,
    report_errors,
)
from cantrip_actors.cli.logs import configure_logs

app = typer.Typer(
    name="mcp",
    cls=FirstCommand,
    help="Offer cantrips as tools (Model Context Protocol).\n\n"
    "`cantrip mcp RECIPE...` is `cantrip mcp serve RECIPE...`, which has the options.\n\n"
    "\b\nExamples:\n"
    "  cantrip mcp notes.yaml                         on standard input and output\n"
    "  cantrip mcp notes.yaml review.toml --http      on http://127.0.0.1:8000/mcp, with a token for this run\n"
    "  cantrip mcp ls 'mcp-server-files /data'        the tools of somebody else's server, and their digest",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("serve", epilog=examples("cantrip mcp notes.yaml --loom sqlite:loom.db", "cantrip mcp notes.yaml --http"))
def serve(
    recipes: OfferedRecipes = None,
    loom: Url = LOOM,
    dependencies: Dependencies = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP, at /mcp, and not on standard input.")] = False,
    bind: Annotated[
        str, typer.Option("--bind", metavar="HOST:PORT", help="With --http: where to listen.")
    ] = "127.0.0.1:8000",
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="With --http: the file of tokens, as for cantrip serve."),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="With --http: let every user of this machine do everything.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="With --http: a further name of this service; repeat for more."),
    ] = None,
    max_body: MaxBody = 1,
    requests_per_minute: RequestsPerMinute = None,
    max_streams: MaxStreams = 32,
    max_cost_per_day: MaxCostPerDay = None,
    unattended: IfUnattended = UnattendedMode.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Offer each cantrip as a tool of an MCP server, until the client goes or a signal comes.

    The limits of bodies, requests and streams are those of --http.

    Entities of these cantrips that a crash interrupted are resumed, and so are their tasks.
    """
    from cantrip_actors.acp.stdio import StdioLines, take_standard_streams, write_all

    streams = None if http else take_standard_streams()  # before any code of the user runs
    with report_errors(json=False, loom=loom):
        from functools import partial

        import anyio

        from cantrip_actors import Runtime
        from cantrip_actors.cli.cantrip_source import load_dependencies
        from cantrip_actors.cli.offered_cantrips import load_cantrips
        from cantrip_actors.cli.sealed import seal_key

        configure_logs(whole=True)
        server = import_extra("cantrip_actors.mcp_server", "mcp", "cantrip mcp")
        cantrips = load_cantrips(loom, recipes or (), are_chosen=True)
        options: dict[str, Any] = {
            "recover": "resume",
            "unattended": unattended.value,
            "seal_key": seal_key(),
            "dependencies": load_dependencies(dependencies),
        }
        if streams is None:
            from cantrip_actors.cli.serve import make_limits, show_mcp

            package = import_extra("cantrip_actors.http", "serve", "cantrip mcp --http")
            settings = package.ServiceSettings(
                loom=loom,
                cantrips=tuple(cantrips),
                bind=bind,
                tokens=tokens,
                no_auth=no_auth,
                hosts=tuple(host or ()),
                page=False,
                only_mcp=True,
                limits=make_limits(max_body, requests_per_minute, max_streams),
                max_cost_per_day=max_cost_per_day,
                runtime=options,
            )
            anyio.run(partial(package.serve, settings, show_mcp), backend=backend.value)
            return

        messages, answers = streams

        async def run() -> None:
            async with Runtime.open(loom, cantrips=cantrips, **options) as runtime:
                runtime.set_allowance(max_cost_per_day)
                await server.serve_stdio(
                    runtime, server.by_name(cantrips), StdioLines(messages), partial(write_all, answers)
                )

        anyio.run(run, backend=backend.value)


app.add_typer(mcp_client.app)
