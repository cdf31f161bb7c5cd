"""The commands `cantrip loom export`, `search` and `stats`.

Their output is redacted, unless `--as-it-is` is given: words that look like common keys, and the values of environment
variables that are named like one. `cantrip_actors.loom.export` has the formats.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import LOOM, Json, Url, examples, open_for_reading, print_styled
from cantrip_actors.cli.logs import secrets_of_environment
from cantrip_actors.cli.output import short

if TYPE_CHECKING:
    from cantrip_actors import Loom
    from cantrip_actors.loom.reading.search import Hit
    from cantrip_actors.loom.reading.statistics import Tally

app = typer.Typer(rich_markup_mode=None)


class ExportFormat(StrEnum):
    """The formats of an export."""

    jsonl = "jsonl"
    chat = "chat"
    pairs = "pairs"
    atif = "atif"
    html = "html"
    otlp_json = "otlp-json"


WithoutImages = Annotated[bool, typer.Option("--without-images", help="Leave images out: they cannot be redacted.")]
AsItIs = Annotated[bool, typer.Option("--as-it-is", help="Leave in texts that look like a key or a password.")]


@app.command(
    "export",
    epilog=examples(
        "cantrip loom export 5f3a9c1e --output thread.jsonl",
        "cantrip loom export --format html --output loom.html",
        "cantrip loom export --format chat > training.jsonl",
    ),
)
def export(
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A turn or an entity; left out: the whole loom.")
    ] = None,
    loom: Url = LOOM,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            "-f",
            help="jsonl: turns; chat: conversations with tools; pairs: preferences from rewarded forks; "
            "atif: trajectories; html: a page to read; otlp-json: spans for a collector.",
        ),
    ] = ExportFormat.jsonl,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; left out: standard output.")
    ] = None,
    as_it_is: AsItIs = False,
    without_images: WithoutImages = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of JSON Lines.")] = False,
) -> None:
    """Export a thread, an entity with everything below it, or the whole loom, in one of several formats.

    Of a turn or an entity, jsonl and chat have the thread that leads to it, atif, html and otlp-json the entity and
    everything below it.
    """
    with open_for_reading(loom, json=as_json) as (opened, finder):
        entity = None if id is None else finder.owner(id)
        if form is ExportFormat.pairs and id is not None:
            raise typer.BadParameter("pairs are made from a whole loom: leave it out", param_hint="ID")
        if form is ExportFormat.html and as_json:
            raise typer.BadParameter("a page is not JSON", param_hint="--json")
        last = None if id is None or form not in (ExportFormat.jsonl, ExportFormat.chat) else finder.turn(id)
        seen = _redact(opened, as_it_is=as_it_is, show_images=not without_images)
        pieces = _export_pieces(seen, form, entity, last, title=Path(loom.partition("?")[0]).name)
        if as_json:
            pieces = _join_as_array(pieces)
        if output is None:
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()
            return
        try:
            with output.open("wb") as file:
                written = sum(file.write(piece) for piece in pieces)
        except OSError as error:
            raise typer.BadParameter(f"cannot write {output}: {error.strerror}", param_hint="--output") from error
        sys.stderr.write(f"{written:,} bytes written to {output}\n")


def _export_pieces(loom: Loom, form: ExportFormat, entity: str | None, last: str | None, title: str) -> Iterator[bytes]:
    match form:
        case ExportFormat.jsonl if last is not None:
            from cantrip_actors.loom import thread_jsonl

            yield from (thread_jsonl([turn]) for turn in loom.thread(last))
        case ExportFormat.chat if last is not None:
            from cantrip_actors.loom.export.chat import chat_jsonl
            from cantrip_actors.loom.export.conversation import conversation_of

            yield from chat_jsonl([conversation_of(loom, loom.owner(last), until=last)])
        case ExportFormat.html:
            from cantrip_actors.loom.export.html import family, html_page

            yield from html_page(loom, None if entity is None else family(loom, entity), title=title)
        case ExportFormat.otlp_json:
            from cantrip_actors.observe.backfill import otlp_json

            yield from otlp_json(loom, loom.entities() if entity is None else loom.subtree(entity))
        case ExportFormat.jsonl | ExportFormat.chat | ExportFormat.pairs | ExportFormat.atif:
            from cantrip_actors.loom.export.formats import export_lines

            yield from export_lines(loom, form.value, entity)


def _join_as_array(lines: Iterable[bytes]) -> Iterator[bytes]:
    before = b"["
    for line in lines:
        yield before + line.rstrip(b"\n")
        before = b",\n"
    yield b"]\n" if before != b"[" else b"[]\n"


@app.command(
    "search",
    epilog=examples(
        'cantrip loom search "no such file"',
        "cantrip loom search --gate fetch --errors",
        "cantrip loom search --regex 'HTTP [45]..' --in 5f3a9c1e",
        "cantrip loom search refund --by anna --since 2026-11-02T00:00Z --until 2026-11-09T00:00Z",
    ),
)
def search(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text to search for, in any case.")] = None,
    loom: Url = LOOM,
    regex: Annotated[str | None, typer.Option("--regex", metavar="EXPRESSION", help="An expression instead.")] = None,
    gate: Annotated[
        str | None, typer.Option("--gate", metavar="NAME", help="Only turns that called this gate.")
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only turns in which a gate failed.")] = False,
    within: Annotated[
        str | None, typer.Option("--in", metavar="ID", help="Only this entity and everything below it.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only what was recorded then or later.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only what was recorded before.")] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="NAME", help="Only messages of this sender, and the work for its intents."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show.")] = 50,
    as_it_is: AsItIs = False,
    as_json: Json = False,
) -> None:
    """Find turns by their utterances, gate calls and observations. Exit code 1 if nothing is found."""
    from dataclasses import asdict, replace
    from itertools import islice

    from cantrip_actors.loom.reading.search import Query
    from cantrip_actors.loom.reading.search import search as search_loom
    from cantrip_actors.terms.errors import LoomError

    try:
        query = Query(text=text, regex=regex, gate=gate, errors=errors, since=since, until=until, by=by)
    except LoomError as error:
        raise typer.BadParameter(str(error)) from error
    with open_for_reading(loom, json=as_json) as (opened, finder):
        query = replace(query, entity=None if within is None else finder.owner(within))
        seen = _redact(opened, as_it_is=as_it_is)
        try:
            hits = list(islice(search_loom(seen, query), limit + 1))
        except LoomError as error:
            if regex is None:
                raise
            raise typer.BadParameter(str(error), param_hint="--regex") from error
        if as_json:
            output.print_json([asdict(hit) for hit in hits[:limit]])
        else:
            print_styled(map(_render_hit, hits[:limit]), or_else="no turn has this text")
            if len(hits) > limit:
                output.print_note(f"there is more: --limit shows more than {limit}")
        if not hits:
            raise typer.Exit(1)


def _render_hit(hit: Hit) -> Any:
    from rich.text import Text

    from cantrip_actors.cli.terminal import printable

    what = f"turn {hit.sequence} {short(hit.turn_id)}" if hit.turn_id is not None else f"entity {short(hit.entity_id)}"
    sender = f" by {printable(hit.by)}" if hit.by and hit.turn_id is None else ""
    line = Text(end="").append(f"{hit.at[:16].replace('T', ' ')} ", "dim").append(f"{what} ", "bold")
    line.append(f"{hit.place}{sender}: ", "dim")
    before, match, after = hit.excerpt[: hit.start], hit.excerpt[hit.start : hit.end], hit.excerpt[hit.end :]
    return line.append(printable(before)).append(printable(match), "reverse").append(printable(after))


@app.command("stats", epilog=examples("cantrip loom stats", "cantrip loom stats 5f3a9c1e --json"))
def stats(
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="An entity, with everything below it; left out: the whole loom."),
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Count turns, tokens, cost, durations, errors and rewards, in all and for each gate."""
    with open_for_reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.loom.reading.statistics import statistics

        counted = statistics(opened, None if id is None else finder.owner(id))
        output.show(counted.as_json(), _render_statistics(counted), as_json=as_json)


def _render_statistics(counted: Tally) -> Iterator[str]:
    usage, turns, crystal = counted.usage, counted.turn_durations, counted.crystal_durations
    states = ", ".join(f"{n:,} {output.name_state(state)}" for state, n in sorted(counted.states.items()))
    yield f"entities    {counted.entities:,} ({states})" if states else "entities    0"
    yield f"turns       {counted.turns:,}, of {counted.utterances:,} utterances; {counted.folds:,} folds"
    yield f"tokens      {usage.prompt_tokens:,} in ({usage.cached_tokens:,} cached), {usage.completion_tokens:,} out"
    if usage.cost:
        yield f"cost        ${usage.cost:,.4f}"
    for name, times in (("a turn", turns), ("crystal", crystal)):
        most = times.compute_percentile(0.95)
        yield f"{name:<11} mean {times.mean_ms:,.1f} ms, 95 % within {most:,.1f} ms, all within {times.max_ms:,.1f} ms"
    if counted.mean_reward is not None:
        yield f"rewards     {counted.rewarded:,}, mean {counted.mean_reward:g}"
    for name in sorted(counted.gates):
        gate = counted.gates[name]
        failed = f", {gate.errors:,} failed ({gate.error_rate:.0%})" if gate.errors else ""
        yield f"gate {name}: {gate.calls:,} calls{failed}, mean {gate.durations.mean_ms:,.1f} ms"


def _redact(loom: Loom, *, as_it_is: bool, show_images: bool = True) -> Loom:
    """Return the loom without secrets, unless `as_it_is`, and with images if `show_images`."""
    from cantrip_actors.loom.reading.redaction import redacted_loom
    from cantrip_actors.redact.redactor import Redactor

    if as_it_is:
        return loom if show_images else redacted_loom(loom, Redactor((), ()), show_images=False)
    return redacted_loom(loom, Redactor(secrets_of_environment()), show_images=show_images)
