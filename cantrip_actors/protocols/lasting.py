"""The commands for entities that outlive a command: those that take further intents, and those that a crash cut short.

Between two commands such an entity is its log and nothing else. To go on with it takes the loom and its recipe, which
is remembered beside the loom (`recipes.py`) or given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.protocols.around import (
    FAILED,
    LOOM,
    TRUNCATED,
    Backend,
    Images,
    Json,
    Loop,
    Quiet,
    Url,
    answer,
    answering,
    context_of,
    examples,
    pictured,
    printed,
    reading,
    watcher,
    width,
)

if TYPE_CHECKING:
    from cantrip_actors import CantripError, Episode, Loom, Runtime

__all__ = ["app", "interrupted"]

app = typer.Typer(rich_markup_mode=None)

Given = Annotated[
    Path | None,
    typer.Option("--recipe", metavar="RECIPE", help="The recipe to go on with; left out: the one it was made with."),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An entity's name, or its id; the last eight characters are enough.")
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="FILE|JSON", help="Data for the entity: a file, or JSON.")
]


@app.command(epilog=examples('cantrip invoke notes.yaml "Read my notes" --name notes'))
def invoke(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A cantrip as a .yaml or .toml file.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What the entity is to achieve first.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call it.")] = None,
    loom: Url = LOOM,
    context: Context = None,
    image: Images = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Make an entity that lasts: it takes further intents with `cantrip send`, and remembers.

    It answers the first intent, and then sleeps in the loom.
    """
    with answering(json=as_json, loom=loom):
        from cantrip_actors import InvalidIntent
        from cantrip_actors.protocols import run
        from cantrip_actors.protocols.recipe import load_recipe
        from cantrip_actors.protocols.recipes import remember

        given = None if context is None else context_of(context)
        put = pictured(intent, image)
        cantrip = load_recipe(recipe)

        async def work(runtime: Runtime) -> Episode:
            if name is not None and runtime.entity(name) is not None:
                taken = f'an entity called "{name}" is there already: cantrip send {name} "…", or cantrip stop {name}'
                raise InvalidIntent(taken)
            remember(loom, cantrip, recipe)
            entity = await runtime.invoke(cantrip, put, name=name, context=given)
            return run.settled(await entity.episode())

        episode = run.perform(loom, work, watcher=watcher(silent=quiet or as_json), backend=backend.value)
        _told(episode, loom, as_json=as_json)


@app.command(epilog=examples('cantrip send notes "And what did I forget?"'))
def send(
    name: Name,
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What it is to do next.")],
    recipe: Given = None,
    loom: Url = LOOM,
    context: Context = None,
    image: Images = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Wake an entity that lasts, give it a further intent, and print the answer.

    If a crash had cut it short, it first ends what it was at.
    """
    with answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import run
        from cantrip_actors.protocols.recipe import load_recipe
        from cantrip_actors.protocols.recipes import recipe_of

        given = None if context is None else context_of(context)
        put = pictured(intent, image)
        cantrip = None if recipe is None else load_recipe(recipe)

        async def work(runtime: Runtime) -> Episode:
            header = runtime.loom.header(_living(runtime.loom, name))
            entity = await runtime.resume(header.entity_id, cantrip=recipe_of(loom, header, cantrip, recipe))
            return run.settled(await entity.send(put, context=given))

        episode = run.perform(loom, work, watcher=watcher(silent=quiet or as_json), backend=backend.value)
        _told(episode, loom, as_json=as_json)


@app.command(epilog=examples("cantrip stop notes"))
def stop(name: Name, loom: Url = LOOM, as_json: Json = False) -> None:
    """End an entity for good. What it did stays in the loom, and its name is free again."""
    _ended(name, loom, as_json=as_json)


@app.command(epilog=examples("cantrip abandon 5f3a9c1e"))
def abandon(entity: Name, loom: Url = LOOM, as_json: Json = False) -> None:
    """End an entity that a crash cut short, and what it spawned: nobody will go on with it."""
    _ended(entity, loom, as_json=as_json)


@app.command(epilog=examples("cantrip entities", "cantrip entities --all --json"))
def entities(
    loom: Url = LOOM,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    as_json: Json = False,
) -> None:
    """List the entities that last: their names, how they stand, and what they said last."""
    with reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        lasting = [header for header in opened.headers() if header.lasting]
        rows = [
            views.lasting_row(opened, header)
            for header in lasting
            if everything or not opened.is_over(header.entity_id)
        ]
        if as_json:
            say.value(rows)
        else:
            printed(views.lasting_table(rows, width()), or_else=f"{loom} has no entity that lasts: cantrip invoke")


@app.command(epilog=examples("cantrip resume", "cantrip resume 5f3a9c1e --recipe notes.yaml"))
def resume(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ENTITY]...", help="Names or ids; left out: all that were cut short.")
    ] = None,
    recipe: Given = None,
    loom: Url = LOOM,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Go on with entities that a crash cut short, each from where it stood, and print their answers."""
    with answering(json=as_json, loom=loom):
        from cantrip_actors import CantripError
        from cantrip_actors.loom import Held
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.recipe import load_recipe
        from cantrip_actors.protocols.recipes import recipe_of

        cantrip = None if recipe is None else load_recipe(recipe)

        async def work(runtime: Runtime) -> list[Episode | CantripError]:
            cut_short = [header.entity_id for header in runtime.interrupted()]
            wanted = [_living(runtime.loom, name) for name in names] if names else cut_short
            made = {
                one: recipe_of(loom, runtime.loom.header(one), cantrip, recipe) for one in wanted
            }  # all, or none begins
            going = []
            ended: list[Episode | CantripError] = []
            for one in wanted:
                try:
                    going.append(await runtime.resume(one, cantrip=made[one]))
                except Held as held:  # it was not cut short at all: another process runs it, and the others go on here
                    if names:
                        held.entity_id = one
                        ended.append(held)
                    elif not (quiet or as_json):
                        say.note(f"{one[-8:]} is left alone: {held}")
            for entity in going:
                try:
                    ended.append(run.settled(await entity.episode()))
                except CantripError as error:  # one that fails is told, and the others go on
                    ended.append(error)
            return ended

        ended = run.perform(loom, work, watcher=watcher(silent=quiet or as_json), backend=backend.value)
        if as_json:
            say.value(
                [say.failed(one, loom) if isinstance(one, CantripError) else say.finished(one, loom) for one in ended]
            )
        elif not ended:
            say.note(f"nothing in {loom} was cut short")
        for one in () if as_json else ended:
            if isinstance(one, CantripError):
                say.note(f"{(one.entity_id or '')[-8:]} error: {one}")
            else:
                answer(one, loom, [say.shown(one.result)])
        raise typer.Exit(max((_code(one) for one in ended), key=(0, TRUNCATED, FAILED).index, default=0))


def interrupted(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the entities that a crash cut short; those that another process runs at this moment are among them."""
    with reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        headers = [opened.header(one) for one in opened.unfinished(idle=False)]
        rows = [views.entity_row(opened, header) for header in headers if header.parent_entity is None]
        if as_json:
            say.value(rows)
        else:
            printed(views.table(rows, width()) if rows else iter(()), or_else=f"nothing in {loom} was cut short")


def _living(loom: Loom, name: str) -> str:
    """The id of the entity that is called so, by its name or the end of its id. Raises UnknownId where it is over."""
    from cantrip_actors.protocols.looms import Finder, UnknownId

    entity = Finder(loom).entity(name)
    if loom.is_over(entity):
        raise UnknownId(f'entity "{name}" has ended ({loom.state(entity)}): nothing goes on with it')
    return entity


def _ended(name: str, loom: str, *, as_json: bool) -> None:
    with answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import run, say

        async def work(runtime: Runtime) -> str:
            entity = _living(runtime.loom, name)
            await runtime.abandon(entity)
            return entity

        entity = run.perform(loom, work, watcher=watcher(silent=True))
        if as_json:
            say.value({"entity_id": entity, "name": name, "state": "abandoned", "loom": loom})
        else:
            say.note(f"{name} has ended")


def _told(episode: Episode, loom: str, *, as_json: bool) -> None:
    """The answer, and the exit code for it."""
    from cantrip_actors.protocols import say

    if as_json:
        say.value(say.finished(episode, loom))
    else:
        answer(episode, loom, [say.shown(episode.result)])
    raise typer.Exit(_code(episode))


def _code(ended: Any) -> int:
    return FAILED if isinstance(ended, Exception) else 0 if ended.terminated else TRUNCATED
