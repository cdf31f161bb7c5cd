"""The commands of `cantrip loom`: entities and turns as they were recorded, verified and copied."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cantrip_actors.cli import loom_data, loom_export, output
from cantrip_actors.cli.command import (
    LOOM,
    Json,
    Url,
    examples,
    open_for_reading,
    open_store,
    print_rows,
    print_styled,
    report_errors,
    terminal_width,
)
from cantrip_actors.cli.listing import ListedCantrip, ListedLimit, ListedSince, ListedState, list_newest, make_selection
from cantrip_actors.cli.loom_data import show_verification
from cantrip_actors.cli.sealed import HeadFileOption, KeyFileOption, OutputFile, read_heads, write_heads
from cantrip_actors.redact.urls import render_url

app = typer.Typer(
    name="loom",
    help="Look at a loom: every turn of every entity.\n\n"
    "An ID is a turn's or an entity's; its end, as lists show it, is enough.\n\n"
    "\b\nExamples:\n"
    "  cantrip loom ls\n"
    "  cantrip loom tree 5f3a9c1e\n"
    "  cantrip loom export 5f3a9c1e --output thread.jsonl",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(loom_export.app)
app.add_typer(loom_data.app)

HistoryIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A turn or an entity, or an entity's name; the end of an id is enough.")
]


class SpendingPeriod(StrEnum):
    """The periods by which spending is summed up."""

    intent = "intent"
    day = "day"
    month = "month"


Full = Annotated[bool, typer.Option("--full", help="Do not cut long texts.")]


@app.command("ls", epilog=examples("cantrip loom ls", "cantrip loom ls --all --json"))
def ls(
    loom: Url = LOOM,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Children too.")] = False,
    state: ListedState = None,
    cantrip: ListedCantrip = None,
    since: ListedSince = None,
    limit: ListedLimit = 100,
    as_json: Json = False,
) -> None:
    """List the newest entities that were cast, oldest first."""
    with open_for_reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.cli import loom_views as views

        selection = make_selection(state, cantrip, since)
        listed = list_newest(opened, selection, limit, lambda one: everything or one.kind != "child")
        rows = [views.entity_row(opened, opened.header(entity.id)) for entity in listed]
        print_rows(
            rows, views.entity_table(rows, terminal_width()), f"{render_url(loom)} holds nothing yet", as_json=as_json
        )


@app.command("tree", epilog=examples("cantrip loom tree", "cantrip loom tree 5f3a9c1e"))
def tree(
    entity: Annotated[
        str | None, typer.Argument(metavar="ID", help="An entity, or a turn of it; left out: all.")
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Draw entities with their turns, children and forks."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.cli import loom_views as views

        roots = None
        if entity is not None:
            roots = [finder.owner(entity)]
        if as_json:
            every = roots or [header.entity_id for header in opened.headers() if header.parent_turn is None]
            output.print_json([views.tree_json(opened, root) for root in every])
        else:
            print_styled(views.tree(opened, roots, terminal_width()), or_else=f"{render_url(loom)} holds nothing yet")


@app.command("show", epilog=examples("cantrip loom show 5f3a9c1e", "cantrip loom show 5f3a9c1e --full"))
def show(
    turn: HistoryIdArgument,
    loom: Url = LOOM,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Show one turn: the utterance, the gate calls and their observations. Of an entity, its last turn."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.cli import loom_views as views

        found_turn = opened.turn(finder.turn(turn))
        if as_json:
            output.print_json(_export([found_turn])[0])
        else:
            print_styled(views.turn_lines(opened, found_turn, None if full else 30))


@app.command("input", epilog=examples("cantrip loom input 5f3a9c1e", "cantrip loom input 5f3a9c1e --json"))
def show_input(
    turn: HistoryIdArgument,
    loom: Url = LOOM,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Show what the model was given for a turn: its messages, gates and settings. Of an entity, for its last turn."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.cli import loom_views as views
        from cantrip_actors.loom.export.model_input import build_input_fields, read_model_input

        model_input = read_model_input(opened, finder.turn(turn))
        if as_json:
            output.print_json(build_input_fields(model_input))
        else:
            print_styled(views.input_lines(model_input, None if full else 12))


@app.command("thread", epilog=examples("cantrip loom thread 5f3a9c1e"))
def thread(
    turn: HistoryIdArgument,
    loom: Url = LOOM,
    full: Full = False,
    as_json: Json = False,
) -> None:
    """Show the thread that leads to a turn, with its intents, from its root. Of an entity, the one to its last turn."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.cli import loom_views as views

        found = views.find_thread(opened, finder, turn)
        if as_json:
            rows = zip(_export(found.turns), found.turns, strict=True)
            output.print_json(
                [
                    {"messages": [views.build_message_fields(one) for one in found.messages.get(own.id, ())], **row}
                    for row, own in rows
                ]
            )
        else:
            print_styled(views.thread_lines(found, None if full else 12))


@app.command("spending", epilog=examples("cantrip loom spending 5f3a9c1e --per month --zone Europe/Oslo"))
def spending(
    entity: HistoryIdArgument,
    loom: Url = LOOM,
    per: Annotated[SpendingPeriod, typer.Option(help="The group of each sum.")] = SpendingPeriod.day,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Whose days and months.")] = "UTC",
    as_json: Json = False,
) -> None:
    """Sum up what an entity and everything below it have used, by days, months or intents."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.cli import loom_views as views
        from cantrip_actors.loom.export.shapes import usage_shape
        from cantrip_actors.loom.export.spending import read_spending
        from cantrip_actors.terms.period import find_zone

        find_zone(zone, typer.BadParameter)
        spent = read_spending(opened, finder.owner(entity), per.value, zone)
        rows = [{"period": period, "usage": usage_shape(usage)} for period, usage in spent]
        print_rows(rows, views.spending_table(spent), "it has used nothing", as_json=as_json)


@app.command(
    "verify",
    epilog=examples("cantrip loom verify loom.db", "cantrip loom verify loom.db --key seal.key --head heads.json"),
)
def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="The loom: sqlite:PATH, jsonl:PATH, postgresql://…")],
    key: KeyFileOption = None,
    head: HeadFileOption = None,
    as_json: Json = False,
) -> None:
    """Check every record against the hash chain of its tree: was any edited, moved or taken out?

    With the key of a sealed loom this also finds records that an author without the key has forged, cut off or swapped.
    With heads of an earlier time it finds a loom that was replaced by an older copy of itself, with or without a key.

    The fingerprint is the same for every loom with the same records: note it, and compare it later.
    """
    with report_errors(json=as_json, loom=url):
        from cantrip_actors.loom import verify_loom

        heads = None if head is None else read_heads(head)
        with open_store(url, read_only=True, seal_key=key or False) as store:
            show_verification(verify_loom(store, heads), url, as_json=as_json)


@app.command("head", epilog=examples("cantrip loom head loom.db --output heads.json"))
def head_(
    url: Annotated[str, typer.Argument(metavar="URL", help="The loom: sqlite:PATH, jsonl:PATH, postgresql://…")],
    output_file: OutputFile = None,
    key: KeyFileOption = None,
) -> None:
    """Export the heads: the ends of all trees at this time, as JSON, for a later `verify --head`."""
    with report_errors(json=False, loom=url):
        from cantrip_actors.loom import collect_heads

        with open_store(url, read_only=True, seal_key=key or False) as store:
            write_heads(collect_heads(store), output_file)


@app.command(
    "copy",
    epilog=examples(
        "cantrip loom copy jsonl:loom.jsonl sqlite:loom.db", "cantrip loom copy a.db b.db --to-key seal.key"
    ),
)
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The loom to copy; it may be in use.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The loom to copy to; it is made if it is not there.")],
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The key of FROM, if it is sealed.")] = None,
    to_key: Annotated[Path | None, typer.Option("--to-key", metavar="FILE", help="Seal TO with this key.")] = None,
    as_json: Json = False,
) -> None:
    """Copy everything in a loom to another one of any kind, and verify the copy."""
    with report_errors(json=as_json, loom=target):
        from cantrip_actors.loom import copy_loom

        with (
            open_store(source, read_only=True, seal_key=key) as here,
            open_store(target, seal_key=to_key) as there,
        ):
            show_verification(copy_loom(here, there), target, as_json=as_json)


@app.command("interrupted", epilog=examples("cantrip loom interrupted"))
def interrupted(loom: Url = LOOM, as_json: Json = False) -> None:
    """List the interrupted entities; those that another process runs at this moment are among them."""
    with open_for_reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.cli import loom_views as views

        headers = [opened.header(entity_id) for entity_id in opened.unfinished(idle=False)]
        rows = [views.entity_row(opened, header) for header in headers if header.parent_entity is None]
        or_else = f"nothing in {render_url(loom)} was interrupted"
        print_rows(rows, views.entity_table(rows, terminal_width()), or_else, as_json=as_json)


def _export(turns: Sequence[Any]) -> list[Any]:
    import json

    from cantrip_actors.loom import thread_jsonl

    return [json.loads(line) for line in thread_jsonl(turns).splitlines()]
