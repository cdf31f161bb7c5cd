"""The commands of `cantrip demo`. Only their crystals are scripted.

`cantrip demo PATH` is `cantrip demo folder PATH`: a first word that is not a demo's name is a folder.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from cantrip_actors.cli import output
from cantrip_actors.cli.command import (
    FAILED,
    LOOM,
    Backend,
    Json,
    Loop,
    Quiet,
    Url,
    cast,
    examples,
    finish,
    report_errors,
    run,
    with_thread,
)
from cantrip_actors.redact.urls import render_url

if TYPE_CHECKING:
    from cantrip_actors import Runtime

LARGEST = 5_000_000
"""The most bytes of a document: a sandbox of 64 MiB has room for them and their pieces."""

Pace = Annotated[
    float | None,
    typer.Option("--pace", min=0, max=10, help="Seconds that each answer takes; left out: 0.15 on a terminal, else 0."),
]


Tasks = Annotated[
    bool, typer.Option("--tasks", help="With --backend trio: print trio's tree of tasks while the children read.")
]

TASKS_PACE = 0.1
"""The least seconds that an answer takes with --tasks, so that all children read when the tree is read."""


class _Demos(TyperGroup):
    """A group whose first word may be left out: it is `folder` then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the word `folder` if it was left out."""  # newer typers bring their own click: no common type
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["folder", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="demo",
    cls=_Demos,
    help="Show agents at work, without a key.\n\n"
    "Entities, children, gates and loom are real; only the crystal's answers are scripted.\n\n"
    "`cantrip demo PATH` is `cantrip demo folder PATH`; write ./rlm for a folder that is called like a demo.\n\n"
    "\b\nExamples:\n"
    "  cantrip demo                 children read this project's files\n"
    "  cantrip demo ~/notes         or those of a folder\n"
    "  cantrip demo rlm             children work through a document that fits no prompt\n"
    "  cantrip demo approval        a person allows a payment, although the process that asked was killed\n"
    "  cantrip demo serve           a service over HTTP is killed, and its reader misses nothing\n"
    "  cantrip demo cluster         three nodes; one is killed, one is frozen, and nothing is lost\n"
    "  cantrip demo browser         an entity orders in a small shop, in a real browser\n"
    "  cantrip demo local           a real model, on this machine",
    rich_markup_mode=None,
)


@app.command("folder", epilog=examples("cantrip demo", "cantrip demo ~/notes --pace 0.5"))
def folder_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="A folder of texts; left out: this project's own.")
    ] = None,
    loom: Url = LOOM,
    pace: Pace = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
    tasks: Tasks = False,
) -> None:
    """Watch an entity and its children read a folder.

    The crystal is a script, so no key is needed; gates, supervision, children and loom are real.
    """
    if tasks and backend is not Backend.trio:
        raise typer.BadParameter("only trio shows a tree of tasks: add --backend trio", param_hint="--tasks")
    with report_errors(json=as_json, loom=loom):
        from cantrip_demos.folder import INTENT, demo_cantrip, own_folder, report

        read = _check_folder(folder or own_folder())
        is_silent = quiet or as_json
        if not is_silent:
            output.print_note(f"An entity and its children read {read}")
        seconds = _parse_pace(pace, is_silent=is_silent)
        if tasks:
            from cantrip_demos.tasks import cast_and_read_tasks

            seconds = max(seconds, TASKS_PACE)
            work = partial(cast_and_read_tasks, cantrip=demo_cantrip(read, seconds), intent=INTENT, seconds=seconds / 2)
            episode, tree = run(loom, work, backend=backend, quiet=is_silent)
            finish(episode, loom, [*tree, "", *report(episode.result)], as_json=as_json, demo=True, tasks=tree)
        episode = cast(loom, demo_cantrip(read, seconds), INTENT, backend=backend, quiet=is_silent)
        finish(episode, loom, report(episode.result), as_json=as_json, demo=True)


@app.command(
    epilog=examples(
        "cantrip demo rlm", "cantrip demo rlm war-and-peace.txt", 'cantrip demo rlm log.txt --find "ERROR 42"'
    )
)
def rlm(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A text; left out: the licences and sources that are installed here."),
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
    with report_errors(json=as_json, loom=loom):
        from cantrip_demos.rlm import Reading, read
        from cantrip_demos.rlm_document import find_sentence, own_document

        document = own_document() if file is None else _read_text(file)
        sentence = find_sentence(document) if find is None else find
        is_silent = quiet or as_json
        if not is_silent:
            output.print_note(f"Entities work through {len(document):,} characters of {file or 'licences and sources'}")

        async def work(runtime: Runtime) -> Reading:
            reading = await read(runtime, document, sentence, _parse_pace(pace, is_silent=is_silent))
            with_thread(reading.episode)
            return reading

        reading = run(loom, work, backend=backend, quiet=is_silent)
        code = None if reading.is_right or not reading.episode.terminated else FAILED
        finish(reading.episode, loom, reading.report(), code, as_json=as_json, demo=True, **reading.as_json())


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
    with report_errors(json=as_json, loom=loom):
        from cantrip_demos import local as demo_local

        file = demo_local.model_file(model)
        with demo_local.serving(file) as address:
            if not (quiet or as_json):
                output.print_note(f"{file.stem} answers at {address}: {demo_local.INTENT}")
            cantrip = demo_local.local_cantrip(address, file.stem)
            episode = cast(loom, cantrip, demo_local.INTENT, backend=backend, quiet=quiet or as_json)
        finish(episode, loom, as_json=as_json, demo=True)


@app.command(epilog=examples("cantrip demo browser", "cantrip demo browser --pace 1"))
def browser(
    loom: Url = LOOM,
    pace: Pace = None,
    as_json: Json = False,
    quiet: Quiet = False,
    backend: Loop = Backend.asyncio,
) -> None:
    """Watch an entity order in a small shop on this machine, in a real Chromium.

    It logs in with a password that it knows by name only. Needs the extra "browser" and a Chromium.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_demos.browser import INTENT, browser_cantrip, open_shop

        is_silent = quiet or as_json
        with open_shop() as shop:
            if not is_silent:
                output.print_note(f"An entity uses the shop at http://{shop.host}/: {INTENT}")
            cantrip = browser_cantrip(shop, _parse_pace(pace, is_silent=is_silent))
            episode = cast(loom, cantrip, INTENT, backend=backend, quiet=is_silent)
        code = None if shop.orders == ["2 x Mint"] or not episode.terminated else FAILED
        finish(episode, loom, code=code, as_json=as_json, demo=True, orders=shop.orders)


@app.command(epilog=examples("cantrip demo approval", "cantrip demo approval --json"))
def approval(loom: Url = LOOM, as_json: Json = False, quiet: Quiet = False) -> None:
    """Watch an entity ask a person before it pays, and survive a SIGKILL while it waits.

    The demo starts the process that asks, kills it, starts another in its place, and runs `cantrip allow` in a third.
    """
    with report_errors(json=as_json, loom=loom), tempfile.TemporaryDirectory() as folder:
        from cantrip_demos.approval import run_approval

        if loom.startswith(("memory:", "jsonl:")) or loom.endswith(".jsonl"):
            raise typer.BadParameter(
                f"several processes use it: expected sqlite:PATH or postgresql://…, got {render_url(loom)}",
                param_hint="--loom",
            )
        for news in run_approval(loom, Path(folder, "payments.txt"), f"demo-{uuid.uuid4()}"):
            if not isinstance(news, str):
                if as_json:
                    output.print_json({**news._asdict(), "loom": render_url(loom)})
                else:
                    output.print_lines([f"It paid {'exactly once' if news.is_right else 'wrongly'}: {news.payments}"])
                raise typer.Exit(0 if news.is_right else FAILED)
            if not (quiet or as_json):
                output.print_lines([news])


@app.command(epilog=examples("cantrip demo serve", "cantrip demo serve --json"))
def serve(loom: Url = LOOM, as_json: Json = False, quiet: Quiet = False) -> None:
    """Watch a service over HTTP whose stream is cut and whose process is killed, and a reader who misses nothing.

    The demo runs `cantrip serve` in a process, casts through it, kills it, runs another, and resumes.
    """
    with report_errors(json=as_json, loom=loom):
        from cantrip_demos.serve import run_serve

        if loom.startswith("memory:"):
            raise typer.BadParameter(
                f"two processes use it: expected sqlite:PATH, jsonl:PATH or postgresql://…, got {render_url(loom)}",
                param_hint="--loom",
            )
        for news in run_serve(loom, f"demo-{uuid.uuid4()}"):
            if not isinstance(news, str):
                if as_json:
                    output.print_json({**news._asdict(), "loom": render_url(loom)})
                else:
                    seen = "every event once" if news.is_right else f"{news.read}, where there are {news.there}"
                    output.print_lines([f"It {news.result}. The reader saw {seen}."])
                raise typer.Exit(0 if news.is_right else FAILED)
            if not (quiet or as_json):
                output.print_lines([news])


@app.command(epilog=examples("cantrip demo cluster", "cantrip demo cluster --loom postgresql://localhost/loom"))
def cluster(loom: Url = LOOM, as_json: Json = False, quiet: Quiet = False) -> None:
    """Watch three nodes run sixty entities; one is killed, one is frozen, and nothing is lost or done twice.

    The demo runs `cantrip worker` in three processes, and posts orders to entities that pay them.
    """
    with report_errors(json=as_json, loom=loom), tempfile.TemporaryDirectory() as folder:
        from cantrip_demos.cluster import run_cluster

        if loom.startswith(("memory:", "jsonl:")) or loom.endswith(".jsonl"):
            raise typer.BadParameter(
                f"several processes use it: expected sqlite:PATH or postgresql://…, got {render_url(loom)}",
                param_hint="--loom",
            )
        is_silent = quiet or as_json
        result = run_cluster(loom, Path(folder), lambda line: None if is_silent else output.print_lines([line]))
        if as_json:
            output.print_json({**result._asdict(), "loom": render_url(loom)})
        else:
            how = "each exactly once" if result.is_right else f"wrongly: {result}"
            output.print_lines([f"{result.paid} of {result.orders} orders were paid and recorded, {how}."])
        raise typer.Exit(0 if result.is_right else FAILED)


def _parse_pace(pace: float | None, *, is_silent: bool) -> float:
    if pace is not None:
        return pace
    return 0.15 if not is_silent and sys.stderr.isatty() else 0.0


def _read_text(file: Path) -> str:
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


def _check_folder(folder: Path) -> Path:
    if not folder.exists():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; the demo reads a folder", param_hint="FOLDER")
    return folder
