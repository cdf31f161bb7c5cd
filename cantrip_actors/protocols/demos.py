"""The demos, as commands: what they show is scripted nowhere but in the crystal.

`cantrip demo FOLDER` has no word for itself, so whatever is no name of a demo is taken for a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cantrip_actors.protocols.around import (
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

__all__ = ["app"]


class _Demos(TyperGroup):
    """A group whose first word may be left out: the demo of a folder is the one that is meant then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word in that was left out. (A newer typer has a click of its own, so the context has no type here.)"""
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
    "  cantrip demo ~/notes         or those of a folder\n",
    rich_markup_mode=None,
)


@app.command("folder", epilog=examples("cantrip demo", "cantrip demo ~/notes --pace 0.5"))
def folder_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A folder of texts; left out: this project's own.")
    ] = None,
    loom: Url = LOOM,
    pace: Annotated[
        float | None,
        typer.Option(
            "--pace", min=0, max=10, help="Seconds that each answer takes; left out: 0.15 on a terminal, else 0."
        ),
    ] = None,
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
        if pace is None:
            pace = 0.15 if sys.stderr.isatty() and not (quiet or as_json) else 0.0
        if not (quiet or as_json):
            say.note(f"An entity and its children read {read}")
        episode = run.cast(loom, demo_cantrip(read, pace), INTENT, watcher=shown, backend=backend.value)
        if as_json:
            say.value(say.finished(episode, loom))
        else:
            answer(episode, loom, report(episode.result), demo=True)
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


def _folder(folder: Path) -> Path:
    if not folder.exists():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; the demo reads a folder", param_hint="FOLDER")
    return folder
