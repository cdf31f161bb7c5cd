"""The commands of `cantrip`: casting recipes, and looking at looms; the demos are in `demos.py`, entities that
outlive a command in `lasting.py`, the Arithmetic domain in `arithmetic.py`, dispatches in `dispatch.py`, and what takes
things out of looms (export, search, stats) in `taking.py`.

How the program is started and left is `cli.py`, what stands around every command is `around.py`, what commands show is
`say.py`, `watch.py` and `looms.py`, what they do is the runtime's. Whatever takes time to import is imported inside the
command that needs it, so that `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.protocols import arithmetic, demos, dispatch, lasting, taking
from cantrip_actors.protocols.around import (
    CODES,
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
    from cantrip_actors import Episode, Runtime
    from cantrip_actors.loom import Verified

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
looms = typer.Typer(
    help="Look at a loom: every turn of every entity, as it was recorded.\n\n"
    "An ID is a turn's or an entity's; its end, as lists show it, is enough.\n\n"
    "\b\nExamples:\n"
    "  cantrip loom ls\n"
    "  cantrip loom tree 5f3a9c1e\n"
    "  cantrip loom export 5f3a9c1e --output thread.jsonl",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(demos.app, name="demo")
app.add_typer(lasting.app)
arithmetic.add_to(app)
taking.add_to(looms)
app.add_typer(looms, name="loom")
app.add_typer(dispatch.app, name="dispatch")

Id = Annotated[
    str, typer.Argument(metavar="ID", help="A turn or an entity, or an entity's name; the end of an id is enough.")
]


@app.command(
    "cast",
    epilog=examples(
        'cantrip cast vowels.yaml "How many vowels are in abracadabra?"',
        'cantrip cast review.toml "Review it" --context report.json --json',
        'cantrip cast notes.yaml "Sort my notes" --loom jsonl:notes.jsonl --events',
        'cantrip cast look.yaml "What is on it?" --image photo.jpg',
    ),
)
def cast_(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A cantrip as a .yaml or .toml file.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What the entity is to achieve.")],
    loom: Url = LOOM,
    context: Annotated[
        str | None, typer.Option("--context", metavar="FILE|JSON", help="Data for the entity: a file, or JSON.")
    ] = None,
    image: Images = None,
    as_json: Json = False,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event as a line of JSON; the last line is the outcome.")
    ] = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Cast a recipe on an intent, and print the answer.

    The answer goes to standard output. What is going on goes to standard error: a live tree on a terminal, else lines.
    """
    with answering(json=as_json or events, loom=loom, line=events):
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.recipe import load_recipe
        from cantrip_actors.protocols.recipes import remember

        given = None if context is None else context_of(context)
        put = pictured(intent, image)
        cantrip = load_recipe(recipe)
        shown = watcher(events=events, silent=quiet or as_json)

        async def work(runtime: Runtime) -> Episode:
            remember(loom, cantrip, recipe)  # whoever has to go on with it, if this process dies, will want it
            return run.settled(await runtime.cast(cantrip, put, context=given))

        episode = run.perform(loom, work, watcher=shown, backend=backend.value)
        if events:
            say.plain([say.as_json({"type": "Episode", **say.finished(episode, loom)})])
        elif as_json:
            say.value(say.finished(episode, loom))
        else:
            answer(episode, loom, [say.shown(episode.result)])
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


@looms.command("ls", epilog=examples("cantrip loom ls", "cantrip loom ls --all --json"))
def ls(
    loom: Url = LOOM,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Children too.")] = False,
    as_json: Json = False,
) -> None:
    """List the entities that were cast, oldest first."""
    with reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        wanted = [header for header in opened.headers() if everything or header.parent_entity is None or header.forked]
        rows = [views.entity_row(opened, header) for header in wanted]
        if as_json:
            say.value(rows)
        else:
            printed(views.table(rows, width()), or_else=f"{loom} holds nothing yet")


looms.command("interrupted", epilog=examples("cantrip loom interrupted"))(lasting.interrupted)


@looms.command("tree", epilog=examples("cantrip loom tree", "cantrip loom tree 5f3a9c1e"))
def tree(
    entity: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An entity, or a turn of it; left out: all.")
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Draw entities with their turns, children and forks."""
    with reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        roots = None
        if entity is not None:
            found = finder.find(entity)
            roots = [found.id if found.kind == "entity" else opened.owner(found.id)]
        if as_json:
            every = roots or [header.entity_id for header in opened.headers() if header.parent_turn is None]
            say.value([views.tree_json(opened, one) for one in every])
        else:
            printed(views.tree(opened, roots, width()), or_else=f"{loom} holds nothing yet")


@looms.command("show", epilog=examples("cantrip loom show 5f3a9c1e", "cantrip loom show 5f3a9c1e --full"))
def show(
    turn: Id,
    loom: Url = LOOM,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts.")] = False,
    as_json: Json = False,
) -> None:
    """Show one turn: what was said, what was called, what came of it. Of an entity, its last turn."""
    with reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        found = opened.turn(finder.turn(turn))
        if as_json:
            say.value(_exported([found])[0])
        else:
            printed(views.shown_turn(opened, found, None if full else 30))


@looms.command("thread", epilog=examples("cantrip loom thread 5f3a9c1e"))
def thread(
    turn: Id,
    loom: Url = LOOM,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts.")] = False,
    as_json: Json = False,
) -> None:
    """Tell the thread that leads to a turn, from its root. Of an entity, the one to its last turn."""
    with reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        turns = opened.thread(finder.turn(turn))
        if as_json:
            say.value(_exported(turns))
        else:
            printed(views.thread_lines(turns, None if full else 12))


@looms.command("verify", epilog=examples("cantrip loom verify loom.db", "cantrip loom verify jsonl:loom.jsonl --json"))
def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="The loom: sqlite:PATH, jsonl:PATH, postgresql://…")],
    as_json: Json = False,
) -> None:
    """Hold every record against the hash chain of its tree: was any edited, moved or taken out?

    The fingerprint is the same for every loom with the same records: note it down, and compare it later.
    """
    with answering(json=as_json, loom=url):
        from cantrip_actors.loom import open_store, verify_loom

        with open_store(url, read_only=True) as store:
            _verified(verify_loom(store), url, as_json=as_json)


@looms.command("copy", epilog=examples("cantrip loom copy jsonl:loom.jsonl sqlite:loom.db"))
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The loom to copy; it may be in use.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The loom to copy to; it is made if it is not there.")],
    as_json: Json = False,
) -> None:
    """Copy everything in a loom to another one, of whichever kind, and verify the copy."""
    with answering(json=as_json, loom=target):
        from cantrip_actors.loom import copy_loom, open_store

        with open_store(source, read_only=True) as here, open_store(target) as there:
            _verified(copy_loom(here, there), target, as_json=as_json)


def _verified(found: Verified, url: str, *, as_json: bool) -> None:
    """What was found, and exit code 1 where it is not as it was written."""
    from dataclasses import asdict

    from cantrip_actors.protocols import say

    if as_json:
        say.value({"loom": url, "ok": found.ok, **asdict(found)})
    else:
        what = f"{found.records:,} records, {found.turns:,} turns, {found.entities:,} entities"
        faults = "1 fault" if len(found.faults) == 1 else f"{len(found.faults):,} faults"
        state = "every record is as it was written" if found.ok else faults
        say.plain([f"{url}: {what}: {state}", *map(str, found.faults), f"fingerprint {found.fingerprint}"])
    if not found.ok:
        raise typer.Exit(FAILED)


def _exported(turns: Sequence[Any]) -> list[Any]:
    import json

    from cantrip_actors.loom import thread_jsonl

    return [json.loads(line) for line in thread_jsonl(turns).splitlines()]
