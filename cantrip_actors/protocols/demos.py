"""The demos, as commands: what they show is scripted nowhere but in the crystal.

`cantrip demo FOLDER` has no word for itself, so whatever is no name of a demo is taken for a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cantrip_actors.protocols.around import (
    FAILED,
    LOOM,
    TRUNCATED,
    Backend,
    Json,
    Loop,
    Quiet,
    Url,
    answer,
    answering,
    examples,
    watcher,
)

if TYPE_CHECKING:
    from cantrip_actors import Runtime

__all__ = ["app"]

LARGEST = 5_000_000
"""Bytes of a document: what a sandbox of 64 MiB holds with its pieces beside it."""

Pace = Annotated[
    float | None,
    typer.Option("--pace", min=0, max=10, help="Seconds that each answer takes; left out: 0.15 on a terminal, else 0."),
]


class _Demos(TyperGroup):
    """A group whose first word may be left out: the demo of a folder is the one that is meant then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word in that was left out."""  # a newer typer has its own click: there is no one type of context
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["folder", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Demos,
    help="See it work, without a key: entities, children, gates and loom are real, only what the crystal says is "
    "scripted.\n\n"
    "`cantrip demo PATH` is `cantrip demo folder PATH`; write ./rlm for a folder that is called like a demo.\n\n"
    "\b\nExamples:\n"
    "  cantrip demo                 children read this project's files\n"
    "  cantrip demo ~/notes         or those of a folder\n"
    "  cantrip demo rlm             children work through a document that fits no prompt\n"
    "  cantrip demo local           a real model, on this machine",
    rich_markup_mode=None,
)


@app.command("folder", epilog=examples("cantrip demo", "cantrip demo ~/notes --pace 0.5"))
def folder_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A folder of texts; left out: this project's own.")
    ] = None,
    loom: Url = LOOM,
    pace: Pace = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Watch an entity and its children read a folder.

    The crystal is a script, so no key is needed; gates, supervision, children and loom are real.
    """
    with answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.demo import INTENT, demo_cantrip, own_folder, report

        read = _folder(folder or own_folder())
        shown = watcher(silent=quiet or as_json)
        seconds = _pace(pace, watched=not (quiet or as_json))
        if not (quiet or as_json):
            say.note(f"An entity and its children read {read}")
        episode = run.cast(loom, demo_cantrip(read, seconds), INTENT, watcher=shown, backend=backend.value)
        if as_json:
            say.value(say.finished(episode, loom))
        else:
            answer(episode, loom, report(episode.result), demo=True)
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


@app.command(
    epilog=examples(
        "cantrip demo rlm", "cantrip demo rlm war-and-peace.txt", 'cantrip demo rlm log.txt --find "ERROR 42"'
    )
)
def rlm(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A text; left out: the licences and sources that are installed here."),
    ] = None,
    find: Annotated[
        str | None, typer.Option("--find", metavar="TEXT", help="What to find in it; left out: a line of it.")
    ] = None,
    loom: Url = LOOM,
    pace: Pace = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Watch entities work through a document that fits no prompt.

    It is a variable in a sandbox of Python. Their programs cut it, children count, and the answer is checked against a
    plain count. Needs the extra "python".
    """
    with answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.rlm import Reading, read
        from cantrip_actors.protocols.rlm_document import a_sentence, own_document

        document = own_document() if file is None else _text(file)
        sentence = a_sentence(document) if find is None else find
        shown = watcher(silent=quiet or as_json)
        if not (quiet or as_json):
            say.note(f"Entities work through {len(document):,} characters of {file or 'licences and sources'}")

        async def work(runtime: Runtime) -> Reading:
            reading = await read(runtime, document, sentence, _pace(pace, watched=not (quiet or as_json)))
            run.settled(reading.episode)
            return reading

        reading = run.perform(loom, work, watcher=shown, backend=backend.value)
        if as_json:
            say.value({**say.finished(reading.episode, loom), **reading.as_json()})
        else:
            answer(reading.episode, loom, reading.report(), demo=True)
        if not reading.episode.terminated:
            raise typer.Exit(TRUNCATED)
        raise typer.Exit(0 if reading.right else FAILED)


@app.command("local", epilog=examples("cantrip demo local", "cantrip demo local --model qwen2.5-0.5b.gguf"))
def local_(
    model: Annotated[
        Path | None, typer.Option("--model", metavar="FILE", help="A GGUF file; left out: what `make local` fetched.")
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Watch a real model on this machine call gates: nothing is scripted, nothing leaves the machine.

    Needs the extra "local" and a model file: `make local` gets both.
    """
    with answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import local, run, say

        file = local.model_file(model)
        shown = watcher(silent=quiet or as_json)
        with local.serving(file) as address:
            if not (quiet or as_json):
                say.note(f"{file.stem} answers at {address}: {local.INTENT}")
            cantrip = local.local_cantrip(address, file.stem)
            episode = run.cast(loom, cantrip, local.INTENT, watcher=shown, backend=backend.value)
        if as_json:
            say.value(say.finished(episode, loom))
        else:
            answer(episode, loom, [say.shown(episode.result)], demo=True)
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


def _pace(given: float | None, *, watched: bool) -> float:
    if given is not None:
        return given
    return 0.15 if watched and sys.stderr.isatty() else 0.0


def _text(file: Path) -> str:
    try:
        size = file.stat().st_size
        text = "" if size > LARGEST else file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {(error.strerror or '').lower()}", param_hint="FILE") from error
    if size > LARGEST:
        raise typer.BadParameter(f"{file} has {size:,} bytes; a sandbox has room for {LARGEST:,}", param_hint="FILE")
    if not text.strip():
        raise typer.BadParameter(f"there is nothing in {file}", param_hint="FILE")
    return text


def _folder(folder: Path) -> Path:
    if not folder.exists():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; the demo reads a folder", param_hint="FOLDER")
    return folder
