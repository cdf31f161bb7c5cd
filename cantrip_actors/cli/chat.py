"""`cantrip chat`: talk to a long-lived entity at a terminal. `chat_session.py` holds the conversation."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli.command import (
    LOOM,
    MAX_TURNS,
    Backend,
    CrystalOption,
    GateOption,
    Loop,
    SystemOption,
    TurnsOption,
    Url,
    examples,
    report_errors,
)
from cantrip_actors.cli.entities import load_entity
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from cantrip_actors import Cantrip, Entity, Runtime

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "cantrip chat notes.yaml                                begin, or continue",
        "cantrip chat notes                                     continue, by its name",
        "cantrip chat --crystal anthropic:claude-sonnet-5-5 --gate read=.",
    )
)
def chat(
    what: Annotated[
        str | None,
        typer.Argument(metavar="NAME|RECIPE", help="An entity; or a recipe or module:attribute; left out: the newest."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The name of a new entity.")] = None,
    crystal: CrystalOption = None,
    gate: GateOption = None,
    system: SystemOption = None,
    max_turns: TurnsOption = MAX_TURNS,
    loom: Url = LOOM,
    backend: Loop = Backend.asyncio,
) -> None:
    """Talk to a long-lived entity at a terminal.

    Its text is shown while it comes, and you are asked about calls that wait for a person. `/help` lists the commands
    of the chat. The conversation is in the loom: call the command again, in any process, to continue it.
    """
    with report_errors(json=False, loom=loom):
        from cantrip_actors.cli import chat_session
        from cantrip_actors.cli.quick_cantrip import make_quick_cantrip, refuse_options

        if crystal is None:
            refuse_options(gate or (), system)
        elif what is not None:
            raise typer.BadParameter("expected an entity or a recipe, or --crystal, not both", param_hint="'--crystal'")
        described = None if crystal is None else make_quick_cantrip("chat", crystal, gate or (), system, max_turns)

        async def find(runtime: Runtime) -> tuple[Entity, Cantrip | None]:
            if described is not None:
                return await _ensure(runtime, name or "chat", described)
            if what is None:
                return await _load_by_name(runtime, await _find_newest(runtime, loom), loom)
            return await _find_named(runtime, what, name, loom)

        code = chat_session.run(loom, find, backend=backend.value)
    raise typer.Exit(code)


async def _find_named(runtime: Runtime, what: str, name: str | None, loom: str) -> tuple[Entity, Cantrip | None]:
    """Return the entity of that name or id, or that of a recipe. Raises InvalidRecipe, UnknownRecipe, UnknownId."""
    from cantrip_actors.cli.cantrip_source import is_module_source, load_cantrip
    from cantrip_actors.cli.errors import UnknownId
    from cantrip_actors.cli.loom_views import Finder
    from cantrip_actors.cli.recipe_sidecar import remember
    from cantrip_actors.recipes.document import SUFFIXES

    is_source = is_module_source(what) or Path(what).suffix in (*SUFFIXES, ".py")
    if not is_source or await runtime.read(lambda: runtime.loom.named(what)) is not None:
        entity_id = await runtime.read(lambda: Finder(runtime.loom).entity(what))
        if await runtime.read(lambda: runtime.loom.is_over(entity_id)):
            raise UnknownId(
                f'entity "{what}" has ended: `cantrip fork {what} "…" --lasting` continues from its last turn'
            )
        return await _load_by_name(runtime, entity_id, loom)
    cantrip = load_cantrip(what)
    remember(loom, cantrip, what)
    return await _ensure(runtime, name or cantrip.name or Path(what).stem.partition(":")[2] or Path(what).stem, cantrip)


async def _ensure(runtime: Runtime, name: str, cantrip: Cantrip) -> tuple[Entity, Cantrip | None]:
    """Return the entity of that name, which works with the cantrip unless another process runs it."""
    from cantrip_actors import Held

    entity = await runtime.ensure(name, cantrip)
    with suppress(Held):  # the process that runs it decides about its cantrip
        await runtime.resume(entity.id, cantrip=cantrip)
    return runtime.get_entity(entity.id, cantrip=cantrip), cantrip


async def _load_by_name(runtime: Runtime, entity_id: str, loom: str) -> tuple[Entity, Cantrip | None]:
    from cantrip_actors.cli.errors import UnknownRecipe
    from cantrip_actors.cli.recipe_sidecar import recipe_of

    entity = await load_entity(runtime, entity_id, loom, None, None)
    cantrip = None
    with suppress(UnknownRecipe):  # another process runs it; only forks need it here
        cantrip = recipe_of(loom, await runtime.read(lambda: runtime.loom.header_in_force(entity_id)))
    return entity, cantrip


async def _find_newest(runtime: Runtime, loom: str) -> str:
    from cantrip_actors.cli.errors import UnknownId

    for listed in await runtime.entities(kind="lasting", limit=1000):
        if listed.state in ("idle", "active", "waiting"):
            return listed.id
    raise UnknownId(f"{render_url(loom)} has no entity to talk to: cantrip chat RECIPE, or cantrip chat --crystal …")
