"""The commands that run entities: one-shot and long-lived ones, and those that a crash interrupted.

Between two commands a long-lived entity exists only as its log. To continue it takes the loom and its recipe, which a
sidecar of the loom remembers (`recipe_sidecar.py`), or which is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    MAX_TURNS,
    TRUNCATED,
    Backend,
    ContextOption,
    CrystalOption,
    FilesOption,
    GateOption,
    HistoryOption,
    IfUnattended,
    ImagesOption,
    Json,
    Loop,
    Quiet,
    SystemOption,
    TurnsOption,
    UnattendedMode,
    Url,
    check_exists,
    examples,
    exit_code,
    finish,
    open_for_reading,
    print_rows,
    read_intent,
    report_errors,
    run,
    run_quietly,
    show_answer,
    terminal_width,
    with_thread,
)
from cantrip_actors.cli.listing import ListedCantrip, ListedLimit, ListedSince, ListedState, list_newest, make_selection
from cantrip_actors.own_files.login import get_login
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from cantrip_actors import Cantrip, CantripError, Entity, Episode, InvalidCantrip, Loom, Runtime
    from cantrip_actors.runtime.events.log_feed import EventFeed

app = typer.Typer(rich_markup_mode=None)

NOTHING = "nothing to do"
"""The state of an entity that had nothing to undo or to fold."""

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A cantrip: a .yaml or .toml file, or module:attribute.")
]
RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", metavar="RECIPE", help="The recipe to continue with; left out: the one it was made with."),
]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An entity's name, or its id; the last eight characters are enough.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Work on it exactly once, however often it is sent with this key."),
]

BeginningKey = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Begin it once: repeated with this key, print the same answer."),
]


@app.command(
    "cast",
    epilog=examples(
        'cantrip cast vowels.yaml "How many vowels are in abracadabra?"',
        'cantrip cast review.toml "Review it" --context report.json --json',
        'cantrip cast notes.yaml "Sort my notes" --loom jsonl:notes.jsonl --events',
        'cantrip cast desk.yaml "When will it be here?" --history earlier.json',
        'cantrip cast look.yaml "What is on it?" --image photo.jpg',
        'cantrip cast read.yaml "Sum it up." --file report.pdf',
        'cantrip cast "What is in notes.txt?" --crystal anthropic:claude-sonnet-5-5 --gate read=.',
    ),
)
def cast_(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[RECIPE] INTENT", help="A cantrip, unless --crystal is given; its intent."),
    ],
    key: BeginningKey = None,
    crystal: CrystalOption = None,
    gate: GateOption = None,
    system: SystemOption = None,
    max_turns: TurnsOption = MAX_TURNS,
    loom: Url = LOOM,
    context: ContextOption = None,
    history: HistoryOption = None,
    image: ImagesOption = None,
    file: FilesOption = None,
    as_json: Json = False,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event as a line of JSON; the last line is the outcome.")
    ] = False,
    quiet: Quiet = False,
    unattended: IfUnattended = UnattendedMode.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Cast a recipe on an intent, and print the answer.

    The recipe is a .yaml or .toml file, or module:attribute. With --crystal it may be left out: then --gate, --system
    and --max-turns describe the cantrip. With a recipe, --crystal replaces its model.

    The answer goes to standard output. Progress goes to standard error: a live tree on a terminal, else lines.
    """
    with report_errors(json=as_json or events, loom=loom, line=events):
        from cantrip_actors.cli.recipe_sidecar import remember

        message = read_intent(what[-1], context, history, image, file)
        cantrip, recipe = _choose_cantrip(what[:-1], crystal, gate or (), system, max_turns)

        followed = set[str]()

        async def work(runtime: Runtime) -> Episode:
            if recipe is not None:
                remember(loom, cantrip, recipe)  # so that another process can continue with it if this one dies
            if key is not None:  # another process may have begun it
                followed.add(runtime.id_of_key(key))
            return with_thread(await runtime.cast(cantrip, **message, key=key))

        episode = run(
            loom,
            work,
            backend=backend,
            quiet=quiet or as_json,
            events=events,
            unattended=unattended,
            followed=followed,
        )
        if events:
            output.print_lines([output.as_json({"type": "Episode", **output.episode_json(episode, loom)})])
            raise typer.Exit(exit_code(episode))
        finish(episode, loom, as_json=as_json)


def _choose_cantrip(
    recipes: Sequence[str], crystal: str | None, gates: Sequence[str], system: str | None, turns: int
) -> tuple[Cantrip, str | None]:
    """Return the cantrip to cast, and its recipe if that describes it whole. Raises InvalidCantrip, BadParameter."""
    from cantrip_actors.cli.cantrip_source import load_cantrip
    from cantrip_actors.cli.quick_cantrip import make_quick_cantrip, refuse_options

    if len(recipes) > 1:
        raise typer.BadParameter(
            f"expected a recipe and an intent, got {len(recipes) + 1} texts", param_hint="'INTENT'"
        )
    if recipes:
        refuse_options(gates, system)
        cantrip = load_cantrip(recipes[0])
        return (cantrip, recipes[0]) if crystal is None else (cantrip.with_crystal(crystal), None)
    if crystal is None:
        raise typer.BadParameter("expected a recipe and an intent, or --crystal and an intent", param_hint="'INTENT'")
    return make_quick_cantrip("cast", crystal, gates, system, turns), None


@app.command(epilog=examples('cantrip invoke notes.yaml "Read my notes" --name notes'))
def invoke(
    recipe: RecipeArgument,
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The first intent of the entity.")],
    name: Annotated[str | None, typer.Option("--name", help="Its name.")] = None,
    key: BeginningKey = None,
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
    """Make a long-lived entity, which takes further intents.

    It answers the first intent, and is then unloaded; its log stays in the loom. `cantrip send` gives it the next one.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors import InvalidIntent
        from cantrip_actors.cli.cantrip_source import load_cantrip
        from cantrip_actors.cli.recipe_sidecar import remember

        message = read_intent(intent, context, history, image, file)
        cantrip = load_cantrip(recipe)

        async def work(runtime: Runtime) -> Episode:
            is_repeated = key is not None and runtime.begun_with(key) is not None
            if name is not None and not is_repeated and runtime.entity(name) is not None:
                problem = f'an entity called "{name}" is there already: cantrip send {name} "…", or cantrip stop {name}'
                raise InvalidIntent(problem)
            remember(loom, cantrip, recipe)
            entity = await runtime.invoke(cantrip, **message, name=name, key=key)
            followed.add(entity.id)
            return with_thread(await entity.episode())

        followed = set[str]()
        episode = run(loom, work, backend=backend, quiet=quiet or as_json, unattended=unattended, followed=followed)
        finish(episode, loom, as_json=as_json)


@app.command(epilog=examples("cantrip ensure notes notes.yaml"))
def ensure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    recipe: RecipeArgument,
    loom: Url = LOOM,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Make a long-lived entity without an intent, unless it exists.

    No model is asked. It waits for its first intent, which `cantrip send` gives it. To repeat this is safe, also with
    a changed recipe: an entity that exists keeps its memory, and moves to the recipe, unless it is at work.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors import Held
        from cantrip_actors.cli.cantrip_source import load_cantrip
        from cantrip_actors.cli.recipe_sidecar import remember

        cantrip = load_cantrip(recipe)

        async def work(runtime: Runtime) -> dict[str, Any]:
            remember(loom, cantrip, recipe)
            entity = await runtime.ensure(name, cantrip)
            own_loom = runtime.loom
            header, state = await runtime.read(lambda: (own_loom.header_in_force(entity.id), own_loom.state(entity.id)))
            if header.cantrip_id != cantrip.id and state not in ("active", "waiting"):
                with suppress(Held):  # the process that runs it decides about its recipe
                    await runtime.resume(entity.id, cantrip=cantrip)
            return {"entity_id": entity.id, "name": name, "state": state}

        ensured = run_quietly(loom, work, as_json=as_json, backend=backend, makes_loom=True)
        output.show(
            ensured, [f"{ensured['entity_id']}  {name}  {output.name_state(ensured['state'])}"], as_json=as_json
        )


@app.command(
    epilog=examples(
        'cantrip send notes "And what did I forget?"', 'cantrip send orders "Ship 17 boxes" --key order-17 --json'
    )
)
def send(
    name: Name,
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The next intent.")],
    key: Key = None,
    recipe: RecipeOption = None,
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
    """Send a long-lived entity an intent, and print the answer.

    If another process runs the entity, it answers there. If a crash interrupted it, it first finishes its last intent.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.cli.cantrip_source import load_cantrip

        message = read_intent(intent, context, history, image, file)
        cantrip = None if recipe is None else load_cantrip(recipe)
        check_exists(loom)

        async def work(runtime: Runtime) -> Episode:
            entity_id = _find_for_mail(runtime.loom, name, key)
            if runtime.loom.is_over(entity_id):
                entity = runtime.get_entity(entity_id)
            else:
                entity = await load_entity(runtime, entity_id, loom, cantrip, recipe)
                feeds.append(runtime.cluster.events(entity_id))
            followed.add(entity_id)
            return with_thread(await entity.send(**message, key=key))

        followed, feeds = set[str](), list["EventFeed"]()
        options: dict[str, Any] = {"unattended": unattended, "followed": followed, "feeds": feeds}
        episode = run(loom, work, backend=backend, quiet=quiet or as_json, **options)
        finish(episode, loom, as_json=as_json)


@app.command(
    epilog=examples('cantrip post notes "Remember the milk"', 'cantrip post orders "Ship 17 boxes" --key order-17')
)
def post(
    name: Name,
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="The next intent.")],
    key: Key = None,
    loom: Url = LOOM,
    context: ContextOption = None,
    history: HistoryOption = None,
    image: ImagesOption = None,
    file: FilesOption = None,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Post an intent, and print its receipt without waiting.

    This needs no recipe. The process that runs the entity works on the intent; if there is none, the next one that
    loads the entity does, for example `cantrip send`. The receipt is the entity's id, the key of the intent, and its
    state: waiting, working, settled, refused or withdrawn.
    """

    async def work(runtime: Runtime) -> dict[str, str]:
        entity = runtime.get_entity(_find_for_mail(runtime.loom, name, key))
        receipt = await entity.post(**message, key=key)
        return {"entity_id": receipt.entity_id, "key": receipt.key, "state": receipt.state}

    with report_errors(json=as_json, loom=loom):
        message = read_intent(intent, context, history, image, file)
    _show_receipt(run_quietly(loom, work, as_json=as_json, backend=backend), loom, as_json=as_json)


@app.command(
    epilog=examples(
        "cantrip withdraw orders order-17",
        'cantrip withdraw orders order-17 --why "sold out"',
        "cantrip withdraw job-9                         a submission",
    )
)
def withdraw(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[ENTITY] KEY",
            help="The key that `cantrip post` or `cantrip submit` prints; an intent's after its entity.",
        ),
    ],
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="Why, for an intent's record.")
    ] = "no longer needed",
    loom: Url = LOOM,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Take back an intent or a submission that still waits.

    An intent waits in its entity's inbox, a submission for a node. Print the receipt. It does not matter which process
    runs the entity. If the entity has taken the intent, or has ended, or if the submission has begun, nothing changes,
    and the exit code is 1; the receipt says how it stands.
    """
    if len(what) > 2:  # an entity and a key
        raise typer.BadParameter(f"expected an entity and a key, or a key, got {len(what)} texts", param_hint="'KEY'")
    *names, key = what

    async def work(runtime: Runtime) -> dict[str, str]:
        return await (_withdraw_intent(runtime, names[0], key, why) if names else _withdraw_submission(runtime, key))

    receipt = run_quietly(loom, work, as_json=as_json, backend=backend)
    _show_receipt(receipt, loom, as_json=as_json)
    if receipt["state"] != "withdrawn":
        raise typer.Exit(FAILED)


async def _withdraw_intent(runtime: Runtime, name: str, key: str, why: str) -> dict[str, str]:
    from cantrip_actors.cli.loom_views import Finder

    receipt = runtime.receipt(Finder(runtime.loom).entity(name), key)
    state = await receipt.withdraw(why, by=get_login())
    return {"entity_id": receipt.entity_id, "key": receipt.key, "state": state}


async def _withdraw_submission(runtime: Runtime, key: str) -> dict[str, str]:
    from cantrip_actors.cli.errors import UnknownId

    submission = await runtime.submission(key)
    if submission is None:
        raise UnknownId(f'no submission with key "{key}" waits or has begun; an intent\'s key follows its entity')
    state = "withdrawn" if await submission.withdraw() == "withdrawn" else "begun"
    return {"entity_id": submission.entity_id, "key": key, "state": state}


@app.command(
    epilog=examples(
        'cantrip submit desk "Find the parcel." --key job-9',
        'cantrip submit desk "Report on May." --queue reports --priority 5',
    )
)
def submit(
    cantrip: Annotated[str, typer.Argument(metavar="CANTRIP", help="The name of a cantrip that a node serves.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="Its intent.")],
    queue: Annotated[str, typer.Option("--queue", help="The queue that it waits in: cantrip cluster queues.")] = "",
    priority: Annotated[
        int, typer.Option("--priority", min=-100, max=100, help="Those of a higher priority begin first.")
    ] = 0,
    key: Key = None,
    loom: Url = LOOM,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Have some node cast a cantrip, and do not wait for the answer.

    Print the id that its entity has or will have. This needs no recipe. A node, or another runtime that is open and
    offers a cantrip of that name, begins it once there is room. Repeated with the same key it is cast once.
    """

    async def work(runtime: Runtime) -> dict[str, str]:
        submission = await runtime.submit(cantrip, intent, key=key, priority=priority, queue=queue)
        return {"entity_id": submission.entity_id, "key": submission.key}

    receipt = run_quietly(loom, work, as_json=as_json, backend=backend, makes_loom=True)
    _show_receipt(receipt, loom, as_json=as_json)


@app.command(epilog=examples("cantrip undo notes"))
def undo(
    name: Name, recipe: RecipeOption = None, loom: Url = LOOM, as_json: Json = False, backend: Loop = Backend.asyncio
) -> None:
    """Take a long-lived entity back to before its last intent.

    Its old turns stay in the loom. An episode under way is interrupted first. If there is no intent to undo, the exit
    code is 1.
    """
    _change(name, recipe, loom, lambda entity: entity.undo(by=get_login()), "undone", as_json=as_json, backend=backend)


@app.command(epilog=examples("cantrip compact notes", 'cantrip compact notes "Keep all names and addresses."'))
def compact(
    name: Name,
    instructions: Annotated[
        str | None, typer.Argument(metavar="[INSTRUCTIONS]", help="Instructions for the summary.")
    ] = None,
    recipe: RecipeOption = None,
    loom: Url = LOOM,
    as_json: Json = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Fold older turns out of an entity's context now.

    With instructions a crystal writes a summary of them. If there is nothing to fold, the exit code is 1.
    """

    async def compact_entity(entity: Entity) -> bool:
        return await entity.compact(instructions, by=get_login())

    _change(name, recipe, loom, compact_entity, "compacted", as_json=as_json, backend=backend)


def _change(
    name: str,
    recipe: str | None,
    loom: str,
    change: Callable[[Entity], Awaitable[bool]],
    done: str,
    *,
    as_json: bool,
    backend: Backend,
) -> None:
    """Change a long-lived entity with its cantrip, and print the receipt; exit with 1 if there was nothing to do."""

    async def work(runtime: Runtime) -> dict[str, str]:
        entity = await load_entity(runtime, find_living(runtime.loom, name), loom, cantrip, recipe)
        return {"entity_id": entity.id, "state": done if await change(entity) else NOTHING}

    with report_errors(json=as_json, loom=loom):
        from cantrip_actors.cli.cantrip_source import load_cantrip

        cantrip = None if recipe is None else load_cantrip(recipe)
    receipt = run_quietly(loom, work, as_json=as_json, backend=backend)
    _show_receipt(receipt, loom, as_json=as_json)
    if receipt["state"] == NOTHING:
        raise typer.Exit(FAILED)


@app.command(epilog=examples("cantrip stop notes"))
def stop(name: Name, loom: Url = LOOM, as_json: Json = False) -> None:
    """End an entity for good, wherever it runs. Its turns stay in the loom, and its name is free again."""
    _end(name, loom, as_json=as_json, stops=True)


@app.command(epilog=examples("cantrip abandon 5f3a9c1e"))
def abandon(entity: Name, loom: Url = LOOM, as_json: Json = False) -> None:
    """End an interrupted entity and its children for good."""
    _end(entity, loom, as_json=as_json)


@app.command(
    epilog=examples(
        "cantrip entities", "cantrip entities --all --json", "cantrip entities --would-move --recipe notes.yaml"
    )
)
def entities(
    loom: Url = LOOM,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    state: ListedState = None,
    cantrip: ListedCantrip = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only those whose names begin so.")] = None,
    since: ListedSince = None,
    limit: ListedLimit = 100,
    would_move: Annotated[
        bool, typer.Option("--would-move", help="Only those that would move to a cantrip as it is now.")
    ] = False,
    recipes: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="For --would-move: a recipe or module:attribute; left out: the recipes that entities were made with.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the long-lived entities, their states and last answers.

    With --would-move, list those that a process with these cantrips would move to them. Nothing changes.
    """
    with open_for_reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.cli import loom_views as views

        if would_move:
            _print_moves(opened, loom, recipes or (), as_json=as_json)
            return

        selection = make_selection(state, cantrip, since, kind="lasting", prefix=prefix)
        listed = list_newest(opened, selection, limit, lambda one: everything or not opened.is_over(one.id))
        rows = [views.build_entity_row(opened, opened.header(entity.id)) for entity in listed]
        or_else = f"{render_url(loom)} has no long-lived entity: cantrip invoke"
        print_rows(rows, views.render_entities(rows, terminal_width()), or_else, as_json=as_json)


def _print_moves(opened: Loom, loom: str, recipes: Sequence[str], *, as_json: bool) -> None:
    from cantrip_actors.cli import loom_views as views
    from cantrip_actors.cli.offered_cantrips import load_cantrips
    from cantrip_actors.runtime.entity.upgrades import Upgrades

    moves = Upgrades(load_cantrips(loom, recipes), "idle").find_moves(opened)
    rows = [
        {
            "id": move.entity_id,
            "name": move.entity_name,
            "cantrip": move.cantrip_name,
            "from": move.from_id,
            "to": move.cantrip.id,
            "idle": move.is_idle,
        }
        for move in moves
    ]
    print_rows(rows, views.moves_table(moves), "no entity would move", as_json=as_json)


@app.command(epilog=examples("cantrip resume", "cantrip resume 5f3a9c1e --recipe notes.yaml"))
def resume(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ENTITY", help="Names or ids; left out: all that were interrupted."),
    ] = None,
    recipe: RecipeOption = None,
    loom: Url = LOOM,
    as_json: Json = False,
    quiet: Quiet = False,
    unattended: IfUnattended = UnattendedMode.wait,
    backend: Loop = Backend.asyncio,
) -> None:
    """Resume entities that a crash interrupted.

    Each continues where it was interrupted. Print their answers.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_actors import CantripError
        from cantrip_actors.cli.cantrip_source import load_cantrip
        from cantrip_actors.loom import Held

        cantrip = None if recipe is None else load_cantrip(recipe)
        check_exists(loom)

        async def work(runtime: Runtime) -> list[Episode | CantripError]:
            interrupted = [header.entity_id for header in runtime.interrupted()]
            wanted = [find_living(runtime.loom, name) for name in names] if names else interrupted
            resumed = []
            cantrips, unusable = _find_cantrips(runtime, loom, wanted, cantrip, recipe, are_named=bool(names))
            ended: list[Episode | CantripError] = [*unusable]
            for entity_id, own_cantrip in cantrips.items():
                try:
                    resumed.append(await runtime.resume(entity_id, cantrip=own_cantrip, by=get_login()))
                except Held as holder:  # it was not interrupted: another process runs it
                    if names:
                        holder.entity_id = entity_id
                        ended.append(holder)
                    elif not (quiet or as_json):
                        output.print_note(f"{entity_id[-8:]} is left alone: {holder}")
            for entity in resumed:
                try:
                    ended.append(with_thread(await entity.episode()))
                except CantripError as error:  # the error of one is reported, the others continue
                    ended.append(error)
            return ended

        ended = run(loom, work, backend=backend, quiet=quiet or as_json, unattended=unattended)
        if as_json:
            output.print_json(
                [
                    output.error_json(end, loom) if isinstance(end, CantripError) else output.episode_json(end, loom)
                    for end in ended
                ]
            )
        elif not ended:
            output.print_note(f"nothing in {render_url(loom)} was interrupted")
        for end in () if as_json else ended:
            if isinstance(end, CantripError):
                output.print_note(f"{(end.entity_id or '')[-8:]} error: {end}")
            else:
                show_answer(end, loom, [output.as_text(end.raw_result)])
        raise typer.Exit(max(map(exit_code, ended), key=(0, TRUNCATED, FAILED).index, default=0))


def _find_cantrips(
    runtime: Runtime,
    loom: str,
    entity_ids: Sequence[str],
    own_cantrip: Cantrip | None,
    recipe: str | None,
    *,
    are_named: bool,
) -> tuple[dict[str, Cantrip | None], list[InvalidCantrip]]:
    """Return the cantrip that each entity continues with, and the errors of those without a usable recipe.

    Raises the first of these errors for entities that were named, before any of them is resumed.
    """
    from cantrip_actors import InvalidCantrip
    from cantrip_actors.cli.recipe_sidecar import recipe_of

    cantrips: dict[str, Cantrip | None] = {}
    unusable: list[InvalidCantrip] = []
    for entity_id in entity_ids:
        try:
            cantrips[entity_id] = recipe_of(loom, runtime.loom.header_in_force(entity_id), own_cantrip, recipe)
        except InvalidCantrip as error:
            if runtime.get_entity(entity_id).held:
                cantrips[entity_id] = None  # the process that runs it continues it: resuming it says so
                continue
            if are_named:
                raise
            error.entity_id = entity_id
            unusable.append(error)
    return cantrips, unusable


def _show_receipt(receipt: dict[str, str], loom: str, *, as_json: bool) -> None:
    output.show_receipt(receipt, loom, [" ".join(receipt.values())], as_json=as_json)


def find_living(loom: Loom, name: str) -> str:
    """Return the id of an entity, by its name or the end of its id. Raises UnknownId if it has ended."""
    from cantrip_actors.cli.errors import UnknownId
    from cantrip_actors.cli.loom_views import Finder

    entity = Finder(loom).entity(name)
    if loom.is_over(entity):
        raise UnknownId(f'entity "{name}" has ended ({output.name_state(loom.state(entity))}): it cannot be continued')
    return entity


def _find_for_mail(loom: Loom, name: str, key: str | None) -> str:
    """Return the id of the entity that an intent is for; with a key, also of one that has ended.

    An ended entity takes no intents, but the answer to an earlier one may be asked for with its key. Raises UnknownId.
    """
    from cantrip_actors.cli.loom_views import Finder

    return find_living(loom, name) if key is None else Finder(loom).entity(name)


async def load_entity(
    runtime: Runtime, entity_id: str, loom: str, own_cantrip: Cantrip | None, recipe: str | None
) -> Entity:
    """Load an entity with its cantrip, unless another process runs it: that one answers, with its own cantrip.

    If that process dies, the entity continues here, unless a node serves it. Raises UnknownRecipe; Held if a recipe was
    given for an entity that another process runs.
    """
    from cantrip_actors.cli.errors import UnknownRecipe
    from cantrip_actors.cli.recipe_sidecar import recipe_of
    from cantrip_actors.loom import Held

    entity, header = runtime.get_entity(entity_id), runtime.loom.header_in_force(entity_id)
    served = header.cantrip_name or header.cantrip_id
    if recipe is None and any(node.is_living and served in node.serves for node in await runtime.cluster.nodes()):
        return entity  # a node runs it
    try:
        cantrip = recipe_of(loom, header, own_cantrip, recipe)
    except UnknownRecipe:
        if not entity.held:
            raise
        return entity
    try:
        return await runtime.resume(entity_id, cantrip=cantrip)
    except Held:
        if recipe is not None:
            raise
        return runtime.get_entity(entity_id, cantrip=cantrip)


def _end(name: str, loom: str, *, as_json: bool, stops: bool = False) -> None:
    async def work(runtime: Runtime) -> tuple[str, str]:
        entity_id, by = find_living(runtime.loom, name), get_login()
        if stops:
            await runtime.get_entity(entity_id).stop(by=by)
        else:
            await runtime.abandon(entity_id, by=by)
        return entity_id, await runtime.read(lambda: runtime.loom.state(entity_id))

    entity_id, state = run_quietly(loom, work, as_json=as_json)
    output.show_receipt({"entity_id": entity_id, "name": name, "state": state}, loom, (), as_json=as_json)
    if not as_json:
        output.print_note(f"{name} has ended")
