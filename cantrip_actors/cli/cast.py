"""The command `cantrip cast`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
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

if TYPE_CHECKING:
    from cantrip_actors import Episode, Runtime

app = typer.Typer(rich_markup_mode=None)


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
