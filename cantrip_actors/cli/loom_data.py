"""The commands of `cantrip loom` that delete, copy and repair: forget, prune, backup, compact, migrate, repair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    Json,
    Url,
    check_exists,
    examples,
    is_jsonl,
    open_for_reading,
    open_for_writing,
    open_store,
    read_duration,
    report_errors,
)
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from cantrip_actors.loom import Forgotten, Verified

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

LoomArgument = Annotated[str, typer.Argument(metavar="URL", help="The loom: sqlite:PATH, jsonl:PATH, postgresql://…")]


@app.command("forget", epilog=examples("cantrip loom forget 5f3a9c1e --by anna --why 'asked by the customer'"))
def forget(
    entity: Annotated[str, typer.Argument(metavar="ID", help="An entity, or its name; the end of an id is enough.")],
    loom: Url = LOOM,
    by: Annotated[str, typer.Option("--by", help="The person who asked for it.")] = "",
    why: Annotated[str, typer.Option("--why", help="For what reason.")] = "",
    forks: Annotated[bool, typer.Option("--forks", help="Forget the entities that were forked from it, too.")] = False,
    parents: Annotated[
        bool, typer.Option("--parents", help="Forget the entities that spawned it and quote its result, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete the content of an entity that has ended, and of everything that it spawned. Ids and counts stay."""
    with open_for_writing(loom, json=as_json) as (opened, finder):
        forgotten = opened.forget(finder.owner(entity), by=by, why=why, forks=forks, parents=parents)
    _show_forgotten(forgotten, as_json=as_json)


@app.command(
    "prune", epilog=examples("cantrip loom prune --older-than 90d --dry-run", "cantrip loom prune --older-than 12h")
)
def prune(
    older_than: Annotated[str, typer.Option("--older-than", help="Since an entity ended: 90d, 12h, 30m.")],
    loom: Url = LOOM,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be forgotten.")] = False,
    as_json: Json = False,
) -> None:
    """Forget the entities that ended longer ago than that."""
    from dataclasses import asdict

    seconds = read_duration(older_than, "--older-than")
    open_ = open_for_reading if dry_run else open_for_writing
    with open_(loom, json=as_json) as (opened, _):
        pruned = opened.prune(seconds, dry_run=dry_run)
    lines = [f"{len(pruned.entities):,} entities with {pruned.records:,} records are forgotten"]
    if dry_run:
        lines = [*pruned.entities, f"{len(pruned.entities):,} entities would be forgotten"]
    output.show({"dry_run": dry_run, **asdict(pruned)}, lines, as_json=as_json)


@app.command("backup", epilog=examples("cantrip loom backup sqlite:loom.db backup.db"))
def backup(
    url: LoomArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file: SQLite, or JSONL if it ends in .jsonl.")],
    as_json: Json = False,
) -> None:
    """Copy a loom in use, as it is at one moment, and verify the copy."""
    with report_errors(json=as_json, loom=url):
        from cantrip_actors.loom import backup_loom

        check_exists(url)
        show_verification(backup_loom(url, file, seal_key=seal_key()), str(file), as_json=as_json)


@app.command("compact", epilog=examples("cantrip loom compact sqlite:loom.db"))
def compact(url: LoomArgument, as_json: Json = False) -> None:
    """Delete blobs without references and keys of mail that are older than a week, and free space."""
    with report_errors(json=as_json, loom=url):
        from dataclasses import asdict

        from cantrip_actors.loom import compact_loom

        check_exists(url)
        with open_store(url, seal_key=seal_key()) as store:
            done = compact_loom(store)
        size = f", {done.before:,} bytes before, {done.after:,} after" if done.before else ""
        lines = [f"{render_url(url)}: {done.blobs:,} blobs were deleted{size}"]
        output.show(asdict(done), lines, as_json=as_json)


@app.command("migrate", epilog=examples("cantrip loom migrate sqlite:loom.db"))
def migrate(url: LoomArgument, as_json: Json = False) -> None:
    """Upgrade the tables of an earlier version to the current one, in one transaction; make a backup first."""
    with report_errors(json=as_json, loom=url):
        from cantrip_actors.cli.errors import LoomUnusable
        from cantrip_actors.loom.tables.migration import EarlierTables

        try:
            check_exists(url)
        except LoomUnusable as error:
            if not isinstance(error.__cause__, EarlierTables):
                raise
        with open_store(url if is_jsonl(url) else _with_option(url, "migrate=upgrade"), seal_key=seal_key()) as store:
            migrated = getattr(store, "migrated", None)
        if as_json:
            output.print_json({"loom": render_url(url), "migrated": None if migrated is None else migrated._asdict()})
        elif migrated is None:
            output.print_lines([f"{render_url(url)} is of the present version already: nothing was changed"])
        else:
            output.print_lines(
                [f"{render_url(url)}: tables of version {migrated.found} are of version {migrated.version} now"]
            )


@app.command("repair", epilog=examples("cantrip loom repair sqlite:loom.db"))
def repair(url: LoomArgument, as_json: Json = False) -> None:
    """Rewrite a damaged loom without its damaged parts; a copy of its files is kept."""
    with report_errors(json=as_json, loom=url):
        from dataclasses import asdict

        from cantrip_actors.cli.errors import opening
        from cantrip_actors.loom import repair_loom

        with opening():
            done = repair_loom(url, seal_key=seal_key())
        lines = [f"{render_url(url)}: {done.records:,} records are kept; a copy is in {done.copy}"]
        lines += [f"  {root}: {count:,} lines left out" for root, count in done.left_out.items()]
        lines += [f"  {entity}: its content was deleted; it is forgotten again" for entity in done.forgotten]
        output.show(asdict(done) | {"copy": str(done.copy)}, lines, as_json=as_json)


def show_verification(verified: Verified, url: str, *, as_json: bool) -> None:
    """Print the result of a verification; exit with 1 if it found a fault."""
    from dataclasses import asdict

    if as_json:
        output.print_json({"loom": render_url(url), "ok": verified.ok, **asdict(verified)})
    else:
        what = f"{verified.records:,} records, {verified.turns:,} turns, {verified.entities:,} entities"
        if verified.forgotten:
            what += f", {verified.forgotten:,} of them forgotten ({verified.tombstones:,} tombstones)"
        faults = "1 fault" if len(verified.faults) == 1 else f"{len(verified.faults):,} faults"
        state = "every record is as it was written" if verified.ok else faults
        if verified.seal != "none":
            state += (
                "; sealed, checked with its key" if verified.seal == "checked" else "; sealed, and not checked: no key"
            )
        output.print_lines(
            [f"{render_url(url)}: {what}: {state}", *map(str, verified.faults), f"fingerprint {verified.fingerprint}"]
        )
    if not verified.ok:
        raise typer.Exit(FAILED)


def _with_option(url: str, option: str) -> str:
    """Return a loom's URL with one more option; a plain path becomes a URL."""
    if ":" not in url:
        from urllib.parse import quote

        url = f"sqlite:{'//' if url.startswith('/') else ''}{quote(url)}"
    return f"{url}{'&' if '?' in url else '?'}{option}"


def _show_forgotten(forgotten: Forgotten, *, as_json: bool) -> None:
    from dataclasses import asdict

    counts = f"{forgotten.records:,} records ({forgotten.bytes:,} bytes) and {forgotten.blobs:,} blobs"
    lines = [f"{len(forgotten.entities):,} entities with {counts} are forgotten"]
    lines += [
        f"  entity {fork} was forked from it, and is left as it is (--forks forgets it, too)"
        for fork in forgotten.forks
    ]
    lines += [
        f"  turn {quote.turn_id} of entity {quote.entity_id} quotes its result, and is left as it is (--parents "
        "forgets that entity, too)"
        for quote in forgotten.quotes
    ]
    result = asdict(forgotten) | {"quotes": [quote._asdict() for quote in forgotten.quotes]}
    output.show(result, lines, as_json=as_json)
