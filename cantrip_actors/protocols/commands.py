"""The commands of `cantrip`: casting recipes, the demo, and looking at looms.

How the program is started and left is `cli.py`, what commands show is `say.py`, `watch.py` and `looms.py`, what they do
is the runtime's. Whatever takes time to import is imported inside the command that needs it, so that `--help` and a
mistyped option answer at once.

Exit codes: 0 terminated, 3 truncated, 1 failed, 2 a mistake in the command or the recipe, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Episode, Loom
    from cantrip_actors.loom import Verified
    from cantrip_actors.protocols.watch import Watcher

__all__ = ["app"]

TRUNCATED, FAILED, USAGE = 3, 1, 2
LOOM = "jsonl:.cantrip/loom.jsonl"

# ------------------------------------------------------------------------------------------------------- the commands

CODES = (
    "Exit codes: 0 terminated, 3 truncated by a ward, 1 failed, 2 a mistake in the command or recipe, 130 interrupted."
)


def _examples(*lines: str) -> str:
    r"""Examples as the end of a help text; the sign for `\b` keeps their lines apart."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


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
app.add_typer(looms, name="loom")


class Backend(StrEnum):
    """The event loops that there are."""

    asyncio = "asyncio"
    trio = "trio"


Url = Annotated[
    str,
    typer.Option(
        "--loom",
        metavar="URL",
        envvar="CANTRIP_LOOM",
        help="Where the loom is: sqlite:PATH, jsonl:PATH, postgresql://…, or a PATH that ends in .db or .jsonl.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what is going on.")]
Loop = Annotated[Backend, typer.Option("--backend", help="The event loop.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="A turn or an entity; the end of its id is enough.")]


@app.command(
    "cast",
    epilog=_examples(
        'cantrip cast vowels.yaml "How many vowels are in abracadabra?"',
        'cantrip cast review.toml "Review it" --context report.json --json',
        'cantrip cast notes.yaml "Sort my notes" --loom jsonl:notes.jsonl --events',
    ),
)
def cast_(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A cantrip as a .yaml or .toml file.")],
    intent: Annotated[str, typer.Argument(metavar="INTENT", help="What the entity is to achieve.")],
    loom: Url = LOOM,
    context: Annotated[
        str | None, typer.Option("--context", metavar="FILE|JSON", help="Data for the entity: a file, or JSON.")
    ] = None,
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
    with _answering(json=as_json or events, loom=loom, line=events):
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.recipe import load_recipe

        data = None if context is None else _data(context)
        cantrip = load_recipe(recipe)
        watcher = _watcher(events=events, silent=quiet or as_json)
        episode = run.cast(loom, cantrip, intent, watcher=watcher, context=data, backend=backend.value)
        if events:
            say.plain([say.as_json({"type": "Episode", **say.finished(episode, loom)})])
        elif as_json:
            say.value(say.finished(episode, loom))
        else:
            _answer(episode, loom, [say.shown(episode.result)])
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


@app.command(epilog=_examples("cantrip demo", "cantrip demo ~/notes --pace 0.5"))
def demo(
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
    with _answering(json=as_json, loom=loom):
        from cantrip_actors.protocols import run, say
        from cantrip_actors.protocols.demo import INTENT, demo_cantrip, own_folder, report

        read = _folder(folder or own_folder())
        watcher = _watcher(silent=quiet or as_json)
        if pace is None:
            pace = 0.15 if sys.stderr.isatty() and not (quiet or as_json) else 0.0
        if not (quiet or as_json):
            say.note(f"An entity and its children read {read}")
        episode = run.cast(loom, demo_cantrip(read, pace), INTENT, watcher=watcher, backend=backend.value)
        if as_json:
            say.value(say.finished(episode, loom))
        else:
            _answer(episode, loom, report(episode.result), demo=True)
        raise typer.Exit(0 if episode.terminated else TRUNCATED)


@looms.command("ls", epilog=_examples("cantrip loom ls", "cantrip loom ls --all --json"))
def ls(
    loom: Url = LOOM,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Children too.")] = False,
    as_json: Json = False,
) -> None:
    """List the entities that were cast, oldest first."""
    with _reading(loom, json=as_json) as (opened, _):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        wanted = [header for header in opened.headers() if everything or header.parent_entity is None or header.forked]
        rows = [views.entity_row(opened, header) for header in wanted]
        if as_json:
            say.value(rows)
        else:
            _print(views.table(rows, _width()), or_else=f"{loom} holds nothing yet")


@looms.command("tree", epilog=_examples("cantrip loom tree", "cantrip loom tree 5f3a9c1e"))
def tree(
    entity: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An entity, or a turn of it; left out: all.")
    ] = None,
    loom: Url = LOOM,
    as_json: Json = False,
) -> None:
    """Draw entities with their turns, children and forks."""
    with _reading(loom, json=as_json) as (opened, finder):
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
            _print(views.tree(opened, roots, _width()), or_else=f"{loom} holds nothing yet")


@looms.command("show", epilog=_examples("cantrip loom show 5f3a9c1e", "cantrip loom show 5f3a9c1e --full"))
def show(
    turn: Id,
    loom: Url = LOOM,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts.")] = False,
    as_json: Json = False,
) -> None:
    """Show one turn: what was said, what was called, what came of it. Of an entity, its last turn."""
    with _reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        found = opened.turn(finder.turn(turn))
        if as_json:
            say.value(_exported([found])[0])
        else:
            _print(views.shown_turn(opened, found, None if full else 30))


@looms.command("thread", epilog=_examples("cantrip loom thread 5f3a9c1e"))
def thread(
    turn: Id,
    loom: Url = LOOM,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts.")] = False,
    as_json: Json = False,
) -> None:
    """Tell the thread that leads to a turn, from its root. Of an entity, the one to its last turn."""
    with _reading(loom, json=as_json) as (opened, finder):
        from cantrip_actors.protocols import looms as views
        from cantrip_actors.protocols import say

        turns = opened.thread(finder.turn(turn))
        if as_json:
            say.value(_exported(turns))
        else:
            _print(views.thread_lines(turns, None if full else 12))


@looms.command(
    "export",
    epilog=_examples(
        "cantrip loom export 5f3a9c1e > thread.jsonl", "cantrip loom export 5f3a9c1e --output thread.jsonl"
    ),
)
def export(
    turn: Id,
    loom: Url = LOOM,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; left out: standard output.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array instead of JSON Lines.")] = False,
) -> None:
    """Write the thread that leads to a turn, or to an entity's last one: a turn a line, as JSON."""
    with _reading(loom, json=as_json) as (opened, finder):
        import orjson

        from cantrip_actors.loom import thread_jsonl

        turns = opened.thread(finder.turn(turn))
        data = orjson.dumps(_exported(turns)) + b"\n" if as_json else thread_jsonl(turns)
        if output is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        try:
            output.write_bytes(data)
        except OSError as error:
            raise typer.BadParameter(f"cannot write {output}: {error.strerror}", param_hint="--output") from error
        sys.stderr.write(f"{len(turns)} {'turn' if len(turns) == 1 else 'turns'} written to {output}\n")


@looms.command("verify", epilog=_examples("cantrip loom verify loom.db", "cantrip loom verify jsonl:loom.jsonl --json"))
def verify(
    url: Annotated[str, typer.Argument(metavar="URL", help="The loom: sqlite:PATH, jsonl:PATH, postgresql://…")],
    as_json: Json = False,
) -> None:
    """Hold every record against the hash chain of its tree: was any edited, moved or taken out?

    The fingerprint is the same for every loom with the same records: note it down, and compare it later.
    """
    with _answering(json=as_json, loom=url):
        from cantrip_actors.loom import open_store, verify_loom

        with open_store(url, read_only=True) as store:
            _verified(verify_loom(store), url, as_json=as_json)


@looms.command("copy", epilog=_examples("cantrip loom copy jsonl:loom.jsonl sqlite:loom.db"))
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The loom to copy; it may be in use.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The loom to copy to; it is made if it is not there.")],
    as_json: Json = False,
) -> None:
    """Copy everything in a loom to another one, of whichever kind, and verify the copy."""
    with _answering(json=as_json, loom=target):
        from cantrip_actors.loom import copy_loom, open_store

        with open_store(source, read_only=True) as here, open_store(target) as there:
            _verified(copy_loom(here, there), target, as_json=as_json)


# --------------------------------------------------------------------------------------------------- around a command


@contextmanager
def _answering(*, json: bool, loom: str, line: bool = False) -> Iterator[None]:
    """Expected failures become a message and an exit code; everything else is a bug and shows its traceback."""
    from cantrip_actors import CantripError, InvalidCantrip, InvalidIntent
    from cantrip_actors.protocols import run, say
    from cantrip_actors.protocols.looms import UnknownId

    _reports_to_stderr()
    try:
        yield
    except run.Interrupted as signalled:
        say.note(f"interrupted; what was done until then is in {loom}")
        raise typer.Exit(signalled.code) from None
    except CantripError as error:
        if line:
            say.plain([say.as_json({"type": "Episode", **say.failed(error, loom)})])
        elif json:
            say.value(say.failed(error, loom))
        else:
            say.note(str(error) if hasattr(error, "mistakes") else f"error: {error}")
            if error.entity_id is not None:
                say.note(f"its turns are in the loom: {_command()} loom thread {error.entity_id[-8:]}{_given(loom)}")
        mistake = isinstance(error, (InvalidCantrip, InvalidIntent, UnknownId, run.LoomUnusable))
        raise typer.Exit(USAGE if mistake else FAILED) from None


@contextmanager
def _reading(url: str, *, json: bool) -> Iterator[tuple[Loom, Any]]:
    """An open loom, and what finds ids in it."""
    with _answering(json=json, loom=url):
        from cantrip_actors import LoomError, open_loom
        from cantrip_actors.protocols import run
        from cantrip_actors.protocols.looms import Finder

        opening = open_loom(url, read_only=True)
        try:
            opened = opening.__enter__()
        except LoomError as error:
            hint = f"; cast something first, for example `{_command()} demo`" if url == LOOM else ""
            raise run.LoomUnusable(f"{error}{hint}") from error
        with _closing(opening):
            yield opened, Finder(opened)


@contextmanager
def _closing(opening: Any) -> Iterator[None]:
    try:
        yield
    finally:
        opening.__exit__(None, None, None)


def _reports_to_stderr() -> None:
    """Reports of supervision must not get between the answer and whoever reads it."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,  # the other one shows variables, secrets included
            ),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _watcher(*, events: bool = False, silent: bool = False) -> Watcher:
    from cantrip_actors.protocols import watch

    if events:
        return watch.EventLines(sys.stdout)
    if silent:
        return watch.Silent()
    return watch.LiveTree(sys.stderr) if watch.on_terminal(sys.stderr) else watch.PlainLines(sys.stderr)


def _answer(episode: Episode, loom: str, lines: Any, *, demo: bool = False) -> None:
    """The answer, or why there is none, and where to look further."""
    from cantrip_actors.protocols import say
    from cantrip_actors.protocols.progress import short

    if demo and sys.stderr.isatty():
        say.note("")
    if episode.terminated:
        say.plain(lines)
    else:
        say.note(f"truncated: {episode.summary}")
    if demo and sys.stderr.isatty():
        say.note("")
    say.note(f"loom: {loom}")
    look = [f"loom tree {short(episode.entity_id)}"]
    if demo and episode.thread:
        look.append(f"loom show {short(episode.thread[-1].id)}")
    for one in look:
        say.note(f"  {_command()} {one}{_given(loom)}")


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


def _print(lines: Iterator[Text], or_else: str = "") -> None:
    """Styled lines on a terminal, bare ones elsewhere; never wrapped, so that a line stays a line for `grep`."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    printed = False
    for line in lines:
        if sys.stdout.isatty():
            line.end = "\n"
            console.print(line, end="\n")
        else:
            sys.stdout.write(f"{line.plain}\n")
        printed = True
    sys.stdout.flush()
    if not printed:
        sys.stderr.write(f"{or_else}\n")


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((120, 40)).columns


def _data(given: str) -> Any:
    """The context that was given: a file's content (parsed where its name says what it is), or JSON."""
    import json

    import yaml

    path = Path(given)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path: it can only be JSON
        is_file = False
    try:
        if is_file:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                return json.loads(text)
            return yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else text
        return json.loads(given)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        what = f"{path} is not valid" if is_file else "neither a file nor JSON"
        raise typer.BadParameter(f"{what}: {error}", param_hint="--context") from error
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path} as text: {error}", param_hint="--context") from error


def _folder(folder: Path) -> Path:
    if not folder.exists():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; the demo reads a folder", param_hint="FOLDER")
    return folder


def _command() -> str:
    """How this program was called, so that what is proposed can be typed."""
    import shutil

    called = sys.argv[0]
    found = shutil.which("cantrip")
    if not called.endswith("cantrip") or (found and Path(called).resolve() == Path(found).resolve()):
        return "cantrip"
    near = os.path.relpath(called)
    return near if len(near) < len(called) else called


def _given(loom: str) -> str:
    import shlex

    return "" if loom == os.environ.get("CANTRIP_LOOM", LOOM) else f" --loom {shlex.quote(loom)}"
