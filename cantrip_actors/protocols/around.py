"""What stands around every command: its common options, its exit codes, and how it answers, fails and is watched.

Exit codes: 0 terminated, 3 truncated, 1 failed, 2 a mistake in the command or the recipe, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Episode, Loom
    from cantrip_actors.protocols.watch import Watcher

__all__ = [
    "CODES",
    "FAILED",
    "LOOM",
    "TRUNCATED",
    "USAGE",
    "Backend",
    "Images",
    "Json",
    "Loop",
    "Quiet",
    "Url",
    "answer",
    "answering",
    "context_of",
    "examples",
    "looking_further",
    "pictured",
    "printed",
    "reading",
    "watcher",
    "width",
]

TRUNCATED, FAILED, USAGE = 3, 1, 2
LOOM = "sqlite:.cantrip/loom.db"
CODES = (
    "Exit codes: 0 terminated, 3 truncated by a ward, 1 failed, 2 a mistake in the command or recipe, 130 interrupted."
)


def examples(*lines: str) -> str:
    r"""Examples as the end of a help text; the sign for `\b` keeps their lines apart."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


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


Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image", metavar="FILE|URL", help="A picture to look at: PNG, JPEG, GIF, WebP, or https://…; repeat for more."
    ),
]


@contextmanager
def answering(*, json: bool, loom: str, line: bool = False) -> Iterator[None]:
    """Expected failures become a message and an exit code; everything else is a bug and shows its traceback."""
    from cantrip_actors import CantripError, InvalidCantrip, InvalidImage, InvalidIntent
    from cantrip_actors.protocols import say
    from cantrip_actors.protocols.ends import Interrupted, LoomUnusable
    from cantrip_actors.protocols.looms import UnknownId

    _reports_to_stderr()
    try:
        yield
    except Interrupted as signalled:
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
        from cantrip_actors.dispatch import InvalidContract, UnknownDispatch, UnreadableContract

        mistake = isinstance(
            error,
            (
                InvalidCantrip,
                InvalidContract,
                InvalidImage,
                InvalidIntent,
                UnknownDispatch,
                UnknownId,
                UnreadableContract,
                LoomUnusable,
            ),
        )
        raise typer.Exit(USAGE if mistake else FAILED) from None


@contextmanager
def reading(url: str, *, json: bool) -> Iterator[tuple[Loom, Any]]:
    """An open loom, and what finds ids in it."""
    with answering(json=json, loom=url):
        from cantrip_actors import LoomError, open_loom
        from cantrip_actors.protocols.ends import LoomUnusable
        from cantrip_actors.protocols.looms import Finder

        opening = open_loom(url, read_only=True)
        try:
            opened = opening.__enter__()
        except LoomError as error:
            hint = f"; cast something first, for example `{_command()} demo`" if url == LOOM else ""
            raise LoomUnusable(f"{error}{hint}") from error
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


def watcher(*, events: bool = False, silent: bool = False) -> Watcher:
    """What shows a run: JSON events, nothing, a live tree on a terminal, else lines."""
    from cantrip_actors.protocols import watch

    if events:
        return watch.EventLines(sys.stdout)
    if silent:
        return watch.Silent()
    return watch.LiveTree(sys.stderr) if watch.on_terminal(sys.stderr) else watch.PlainLines(sys.stderr)


def answer(episode: Episode, loom: str, lines: Any, *, demo: bool = False) -> None:
    """The answer, or why there is none, and where to look further."""
    from cantrip_actors.protocols import say

    if demo and sys.stderr.isatty():
        say.note("")
    if episode.terminated:
        say.plain(lines)
    else:
        say.note(f"truncated: {episode.summary}")
    if demo and sys.stderr.isatty():
        say.note("")
    looking_further(episode, loom, demo=demo)


def looking_further(episode: Episode, loom: str, *, demo: bool = False) -> None:
    """Where to look further: the loom, and the commands that show what is in it."""
    from cantrip_actors.protocols import say
    from cantrip_actors.protocols.progress import short

    say.note(f"loom: {loom}")
    look = [f"loom tree {short(episode.entity_id)}"]
    if demo and episode.thread:
        look.append(f"loom show {short(episode.thread[-1].id)}")
    for one in look:
        say.note(f"  {_command()} {one}{_given(loom)}")


def printed(lines: Iterator[Text], or_else: str = "") -> None:
    """Styled lines on a terminal, bare ones elsewhere; never wrapped, so that a line stays a line for `grep`."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    any_line = False
    for line in lines:
        if sys.stdout.isatty():
            line.end = "\n"
            console.print(line, end="\n")
        else:
            sys.stdout.write(f"{line.plain}\n")
        any_line = True
    sys.stdout.flush()
    if not any_line:
        sys.stderr.write(f"{or_else}\n")


def width() -> int:
    """How many columns there are to write in."""
    import shutil

    return shutil.get_terminal_size((120, 40)).columns


def pictured(intent: str, images: list[str] | None) -> Any:
    """The intent as it is given: with its images after it, if there are any. Raises InvalidIntent, InvalidImage."""
    from cantrip_actors import Image, InvalidIntent

    if any("\udc80" <= sign <= "\udcff" for sign in intent):  # how Python hands on bytes that it cannot read
        raise InvalidIntent(f"intent: expected a text in {sys.getfilesystemencoding()}, got {os.fsencode(intent)!r}")
    if not images:
        return intent
    return [intent, *(Image.at(one) if one.startswith("https://") else Image.read(one) for one in images)]


def context_of(given: str) -> Any:
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
