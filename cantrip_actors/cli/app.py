"""The command `cantrip`: its groups of commands, and `cantrip cast`.

`main.py` starts and ends the process, `command.py` has what commands share. Modules that take time to import are
imported inside the command that needs them, so that `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import (
    acp,
    arithmetic,
    cluster,
    crashes,
    crystals,
    demos,
    dispatch,
    entities,
    loom,
    loom_data,
    loom_export,
    mcp,
    output,
    requests,
    schedules,
    serve,
    system,
    top,
)
from cantrip_actors.cli.command import (
    CODES,
    LOOM,
    Backend,
    Context,
    Files,
    IfUnattended,
    Images,
    Json,
    Loop,
    Quiet,
    Unattended,
    Url,
    examples,
    exit_code,
    finish,
    intent_with_files,
    read_context,
    report_errors,
    run,
    with_thread,
)
from cantrip_actors.cli.logs import LogFormat, LogLevel, logs

if TYPE_CHECKING:
    from cantrip_actors import Episode, Runtime

__all__ = ["app"]

app = typer.Typer(
    name="cantrip",
    help="Language-model agents as supervised actors: cast them, watch them, look at what they did.\n\n"
    "\b\nExamples:\n"
    "  cantrip demo                                   see it work, without a key\n"
    '  cantrip cast vowels.yaml "count the vowels"    cast a recipe on an intent\n'
    "  cantrip loom tree                              what happened, as a tree\n\n" + CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(arithmetic.app)
app.add_typer(demos.app, name="demo")
app.add_typer(entities.app)
app.add_typer(requests.app)
app.add_typer(crashes.app)
app.add_typer(system.app)
loom.app.add_typer(loom_export.app)
loom.app.add_typer(loom_data.app)
app.add_typer(loom.app, name="loom")
app.add_typer(dispatch.app, name="dispatch")
app.add_typer(schedules.app, name="schedule")
app.add_typer(crystals.app, name="crystals")
app.add_typer(serve.app, name="serve")
app.add_typer(top.app)
app.add_typer(acp.app)
app.add_typer(mcp.app, name="mcp")
app.add_typer(cluster.app)
app.add_typer(cluster.cluster, name="cluster")


@app.callback()
def options(
    log_level: Annotated[
        LogLevel | None, typer.Option("--log-level", help="Log lines from this level on; left out: info.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Log lines for people, or as JSON; to standard error.")
    ] = None,
) -> None:
    """Set the options that apply to every command."""
    logs.level, logs.form = log_level, log_format


@app.command(
    "cast",
    epilog=examples(
        'cantrip cast vowels.yaml "How many vowels are in abracadabra?"',
        'cantrip cast review.toml "Review it" --context report.json --json',
        'cantrip cast notes.yaml "Sort my notes" --loom jsonl:notes.jsonl --events',
        'cantrip cast look.yaml "What is on it?" --image photo.jpg',
        'cantrip cast read.yaml "Sum it up." --file report.pdf',
    ),
)
def cast_(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A cantrip as a .yaml or .toml file.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What the entity is to achieve.")],
    loom: Url = LOOM,
    context: Context = None,
    image: Images = None,
    file: Files = None,
    as_json: Json = False,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event as a line of JSON; the last line is the outcome.")
    ] = False,
    quiet: Quiet = False,
    unattended: IfUnattended = Unattended.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Cast a recipe on an intent, and print the answer.

    The answer goes to standard output. Progress goes to standard error: a live tree on a terminal, else lines.
    """
    with report_errors(json=as_json or events, loom=loom, line=events):
        from cantrip_actors.cli.recipe_sidecar import remember
        from cantrip_actors.recipes import load_recipe

        data = None if context is None else read_context(context)
        given = intent_with_files(intent, image, file)
        cantrip = load_recipe(recipe)

        async def work(runtime: Runtime) -> Episode:
            remember(loom, cantrip, recipe)  # so that another process can continue with it if this one dies
            return with_thread(await runtime.cast(cantrip, given, context=data))

        episode = run(loom, work, backend=backend, quiet=quiet or as_json, events=events, unattended=unattended)
        if events:
            output.print_lines([output.as_json({"type": "Episode", **output.episode_json(episode, loom)})])
            raise typer.Exit(exit_code(episode))
        finish(episode, loom, as_json=as_json)
