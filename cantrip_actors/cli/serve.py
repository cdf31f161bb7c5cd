"""The commands `cantrip serve` and `cantrip serve token`. Their dependencies are imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
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

if TYPE_CHECKING:
    from cantrip_actors.http import ServiceLimits

TOKENS = Path(".cantrip/tokens.toml")

app = typer.Typer(
    name="serve",
    cls=FirstCommand,
    help="Serve entities over HTTP, with a live page and OpenAI's API.\n\n"
    "`cantrip serve RECIPE...` is `cantrip serve run RECIPE...`, which has the options.\n\n"
    "\b\nExamples:\n"
    "  cantrip serve notes.yaml                       for this machine, with a token for this run\n"
    "  cantrip serve token ci --scope cast --scope read\n"
    "  cantrip serve notes.yaml --bind 0.0.0.0:8000 --tokens .cantrip/tokens.toml --host notes.example",
    rich_markup_mode=None,
)


@app.command(
    "run",
    epilog=examples(
        "cantrip serve notes.yaml",
        "cantrip serve notes.yaml review.toml --loom sqlite:loom.db --health 127.0.0.1:8001",
    ),
)
def run(
    recipes: OfferedRecipes = None,
    loom: Url = LOOM,
    dependencies: Dependencies = None,
    bind: Annotated[str, typer.Option("--bind", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8000",
    health: Annotated[
        str | None, typer.Option("--health", metavar="HOST:PORT", help="Answer /health/live and /health/ready there.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="FILE", help="Who may do what: `cantrip serve token` makes it.")
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let every user of this machine do everything (loopback only).")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A further name of this service; repeat for more."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="A site whose pages may use the service; repeat for more."),
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the page to chat on, at /.")] = True,
    refuse_system: Annotated[
        bool,
        typer.Option("--refuse-system", help="OpenAI's and Anthropic's API: refuse system messages."),
    ] = False,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds for episodes under way at a shutdown.")
    ] = 30.0,
    max_body: MaxBody = 1,
    requests_per_minute: RequestsPerMinute = None,
    max_streams: MaxStreams = 32,
    webhooks: Annotated[
        Path | None, typer.Option("--webhooks", metavar="FILE", help="Send events there: a file in TOML.")
    ] = None,
    dispatches: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", envvar="CANTRIP_DISPATCHES", help="Also serve the dispatches in there."),
    ] = None,
    crash_dir: Annotated[
        Path | None, typer.Option("--crash-dir", metavar="DIR", help="Keep crash reports there: see cantrip crashes.")
    ] = None,
    debug_dump: Annotated[
        bool, typer.Option("--debug-dump", help="Write the actors and the tasks to standard error at SIGUSR2.")
    ] = False,
    max_cost_per_day: MaxCostPerDay = None,
    unattended: IfUnattended = UnattendedMode.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Serve cantrips until SIGTERM or ctrl-C, which let what is under way end first.

    Entities of these cantrips that a crash interrupted are resumed.
    """
    with report_errors(json=False, loom=loom):
        from functools import partial

        import anyio

        from cantrip_actors.cli.cantrip_source import load_dependencies
        from cantrip_actors.cli.extensions import open_service_extensions
        from cantrip_actors.cli.offered_cantrips import load_cantrips
        from cantrip_actors.cli.sealed import seal_key
        from cantrip_actors.cli.webhooks_file import read_webhooks

        configure_logs(whole=True)
        http = import_extra("cantrip_actors.http", "serve", "cantrip serve")
        limits = make_limits(max_body, requests_per_minute, max_streams)
        settings = http.ServiceSettings(
            loom=loom,
            cantrips=tuple(load_cantrips(loom, recipes or (), are_chosen=True)),
            bind=bind,
            health=health,
            tokens=tokens,
            no_auth=no_auth,
            hosts=tuple(host or ()),
            origins=tuple(origin or ()),
            page=page,
            system_messages="refuse" if refuse_system else "data",
            grace=grace,
            limits=limits,
            max_cost_per_day=max_cost_per_day,
            extensions=open_service_extensions(dispatches, seal_key()),
            crash_dir=crash_dir,
            debug_dump=debug_dump,
            access_log=True,
            runtime={
                "recover": "resume",
                "unattended": unattended.value,
                "seal_key": seal_key(),
                "dependencies": load_dependencies(dependencies),
                "webhooks": () if webhooks is None else read_webhooks(webhooks),
            },
        )
        anyio.run(partial(http.serve, settings, _show), backend=backend.value)


def make_limits(max_body: int, requests_per_minute: float | None, max_streams: int) -> ServiceLimits:
    """Return the limits of a service that its options name; `max_body` is in MiB."""
    from cantrip_actors.http import ServiceLimits

    limits = ServiceLimits(body=max_body << 20, streams=max_streams)
    return limits if requests_per_minute is None else limits.with_requests_per_minute(requests_per_minute)


def show_mcp(ready: Any) -> None:
    """Print where MCP clients find the service."""
    output.print_note(f"serving MCP at {ready.url}/mcp")
    if ready.token is not None:
        output.print_note(f"authorization: Bearer {ready.token}")
    sys.stderr.flush()


def _show(ready: Any) -> None:
    output.print_note(f"serving at {ready.url}/api/v1, OpenAI's API at {ready.url}/v1")
    if ready.token is not None:
        output.print_note(f"authorization: Bearer {ready.token}")
        output.print_note(f"{ready.url}/#token={ready.token}")
    if ready.health is not None:
        output.print_note(f"health checks at {ready.health}/health/ready")
    sys.stderr.flush()


@app.command("token", epilog=examples("cantrip serve token ci --scope cast --scope read --tenant acme"))
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token's holder in records.")],
    scope: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help="A scope of it; repeat for more.")],
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose entities it sees; left out: all.")] = None,
    tokens: Annotated[Path, typer.Option("--tokens", metavar="FILE", help="The file to add it to.")] = TOKENS,
) -> None:
    """Make a token, add its hash to the file, and print the token, this once.

    Scopes: read, observe, cast, send, steer, stop, approve, reward, dispatch, secrets, inputs, admin; and those that
    packages add.
    """
    with report_errors(json=False, loom=LOOM):
        http = import_extra("cantrip_actors.http", "serve", "cantrip serve")
        from cantrip_actors.cli.extensions import open_service_extensions

        known = http.list_scopes(open_service_extensions(None, None))
        text = http.add_token(tokens, name, scope, tenant, known)
        output.print_lines([text])
        output.print_note(f"its hash is in {tokens}; a service that runs reads it again at SIGHUP")
