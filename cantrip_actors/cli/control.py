"""The commands that act on an entity at work, and on its history: steer, interrupt, fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    LOOM,
    Backend,
    ContextOption,
    CrystalOption,
    FilesOption,
    HistoryOption,
    IfUnattended,
    ImagesOption,
    Json,
    Loop,
    Quiet,
    UnattendedMode,
    Url,
    check_exists,
    examples,
    finish,
    intent_with_files,
    read_intent,
    report_errors,
    run,
    run_quietly,
    with_thread,
)
from cantrip_actors.cli.entities import Key, Name, RecipeOption, find_living
from cantrip_actors.own_files.login import get_login

if TYPE_CHECKING:
    from cantrip_actors import Episode, Runtime

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog=examples('cantrip steer notes "Use metric units"'))
def steer(
    name: Name,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message for its next query.")],
    key: Key = None,
    loom: Url = LOOM,
    image: ImagesOption = None,
    file: FilesOption = None,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Insert a message before an entity's next query.

    It does not matter which process runs the entity. An idle entity reads the message before its next intent.
    """

    async def work(runtime: Runtime) -> str:
        entity = runtime.get_entity(find_living(runtime.loom, name))
        await entity.steer(message, key=key, by=get_login())
        return entity.id

    with report_errors(json=as_json, loom=loom):
        message = intent_with_files(text, image, file)
    entity_id = run_quietly(loom, work, as_json=as_json, backend=backend)
    output.show_receipt({"entity_id": entity_id}, loom, [entity_id], as_json=as_json)


@app.command(epilog=examples("cantrip interrupt notes", 'cantrip interrupt notes --now --why "the wrong order"'))
def interrupt(
    name: Name,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Why, for the record.")] = "interrupted",
    now: Annotated[bool, typer.Option("--now", help="Cancel the query or the gate under way, too, and wait.")] = False,
    key: Key = None,
    loom: Url = LOOM,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """End an entity's present episode before its next turn.

    A long-lived entity is idle then, and takes its next intent. An idle entity stays idle. It does not matter which
    process runs the entity.
    """

    async def work(runtime: Runtime) -> str:
        entity = runtime.get_entity(find_living(runtime.loom, name))
        await entity.interrupt(why, now=now, key=key, by=get_login())
        return entity.id

    entity_id = run_quietly(loom, work, as_json=as_json, backend=backend)
    output.show_receipt({"entity_id": entity_id}, loom, [entity_id], as_json=as_json)


@app.command(
    epilog=examples('cantrip fork 5f3a9c1e "Try another way"', 'cantrip fork notes "And in French?" --lasting')
)
def fork(
    turn: Annotated[
        str, typer.Argument(metavar="ID", help="A turn, or an entity, whose last turn is meant; or its name.")
    ],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The intent of the fork.")],
    lasting: Annotated[bool, typer.Option("--lasting", help="Make a long-lived entity, for `cantrip send`.")] = False,
    key: Key = None,
    recipe: RecipeOption = None,
    crystal: CrystalOption = None,
    loom: Url = LOOM,
    context: ContextOption = None,
    history: HistoryOption = None,
    image: ImagesOption = None,
    file: FilesOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    unattended: IfUnattended = UnattendedMode.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Continue from a turn with a new entity, and print the answer.

    The fork remembers everything up to that turn. The original is untouched.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.cli.cantrip_source import load_cantrip
        from cantrip_actors.cli.loom_views import Finder
        from cantrip_actors.cli.recipe_sidecar import recipe_of, remember

        message = read_intent(intent, context, history, image, file)
        own_cantrip = None if recipe is None else load_cantrip(recipe)
        check_exists(loom)

        async def work(runtime: Runtime) -> Episode:
            turn_id = Finder(runtime.loom).turn(turn)
            cantrip = own_cantrip
            if cantrip is None:
                cantrip = recipe_of(loom, runtime.loom.header_at(turn_id))
            elif recipe is not None:
                remember(loom, cantrip, recipe)
            entity = await runtime.start_fork(
                turn_id,
                **message,
                crystal=crystal,
                cantrip=cantrip,
                lasting=lasting,
                key=key,
                by=get_login(),
            )
            followed.add(entity.id)
            return with_thread(await entity.episode())

        followed = set[str]()
        episode = run(loom, work, backend=backend, quiet=quiet or as_json, unattended=unattended, followed=followed)
        finish(episode, loom, as_json=as_json)
