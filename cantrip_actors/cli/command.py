"""The common part of all commands: options, exit codes, errors, running an entity and printing its answer.

Exit codes: 0 done, 3 truncated, 1 failed, 2 a mistake in the command or the recipe, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from cantrip_actors.cli import output
from cantrip_actors.cli.logs import configure_logs
from cantrip_actors.cli.output import LOOM, render_loom_option, short
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.redact.urls import render_url
from cantrip_actors.terms.cut_off import render_cut_off
from cantrip_actors.terms.exact_json import parse_exactly

if TYPE_CHECKING:
    from rich.text import Text

    from cantrip_actors import Cantrip, Episode, Loom, Runtime
    from cantrip_actors.cli.loom_views import Finder
    from cantrip_actors.loom import Store
    from cantrip_actors.loom.seal.seal_key import GivenKey
    from cantrip_actors.runtime.events.log_feed import EventFeed

__all__ = ["LOOM"]

T = TypeVar("T")

TRUNCATED, FAILED, USAGE = 3, 1, 2


def examples(*lines: str) -> str:
    r"""Return examples for the end of a help text; the mark `\b` keeps their lines apart."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


class FirstCommand(TyperGroup):
    """A group of commands whose first one is meant if the word for it is left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the word if it was left out."""  # newer typers bring their own click: no common type
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if not is_named and (args or not self.no_args_is_help):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


class Backend(StrEnum):
    """The event loops to choose from."""

    asyncio = "asyncio"
    trio = "trio"


class UnattendedMode(StrEnum):
    """How a request to a person is handled without a terminal."""

    wait = "wait"
    deny = "deny"


IfUnattended = Annotated[
    UnattendedMode,
    typer.Option("--unattended", help="Without a terminal to ask a person at: wait for `cantrip allow`, or deny."),
]
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
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="The name of the author; left out: your login.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what is going on.")]
OfferedRecipes = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE", help="Recipes or module:attribute; left out: those of the loom."),
]
Dependencies = Annotated[
    str | None,
    typer.Option(
        "--dependencies",
        metavar="MODULE:FUNCTION",
        help="The function that provides the dependencies of gates for each episode.",
    ),
]
MaxCostPerDay = Annotated[
    float | None,
    typer.Option(
        "--max-cost-per-day",
        min=0,
        metavar="DOLLARS",
        help="Refuse new work once the entities of the loom have cost that today (in UTC).",
    ),
]
MaxBody = Annotated[
    int, typer.Option("--max-body", min=1, metavar="MIB", help="The largest body of a request; files are in it.")
]
RequestsPerMinute = Annotated[
    float | None,
    typer.Option("--requests-per-minute", min=1, help="Requests a minute for each token; left out: 3000."),
]
MaxStreams = Annotated[
    int, typer.Option("--max-streams", min=1, help="Streams that each token may have open at a time.")
]
Loop = Annotated[Backend, typer.Option("--backend", help="The event loop.")]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="FILE|JSON", help="Data for the entity: a file, or JSON.")
]
HistoryOption = Annotated[
    str | None,
    typer.Option("--history", metavar="FILE", help="Messages of an earlier conversation: .json, .yaml or .jsonl."),
]
FilesOption = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="FILE|URL", help="A PDF, text, audio or video, or https://…; repeat for more."),
]
ImagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--image", metavar="FILE|URL", help="A picture to look at: PNG, JPEG, GIF, WebP, or https://…; repeat for more."
    ),
]

CrystalOption = Annotated[
    str | None,
    typer.Option("--crystal", metavar="FAMILY:MODEL", help="The model, such as anthropic:claude-sonnet-5-5."),
]
GateOption = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="NAME[=DIR]", help="A gate besides done, a file gate with its folder; repeat."),
]
SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")]
TurnsOption = Annotated[int, typer.Option("--max-turns", metavar="N", min=1, help="The most turns of an intent.")]
MAX_TURNS = 20
"""The most turns of an intent, for a cantrip without a recipe."""


@contextmanager
def report_errors(*, json: bool, loom: str, line: bool = False) -> Iterator[None]:
    """Turn expected errors into a message and an exit code; any other error is a bug and shows its traceback."""
    from cantrip_actors import CantripError
    from cantrip_actors.cli.errors import Interrupted, is_mistake

    configure_logs()
    try:
        yield
    except Interrupted as signalled:
        output.print_note(f"interrupted; what was done until then is in {render_url(loom)}")
        raise typer.Exit(signalled.code) from None
    except CantripError as error:
        if line:
            output.print_lines([output.as_json({"type": "Episode", **output.error_json(error, loom)})])
        elif json:
            output.print_json(output.error_json(error, loom))
        else:
            text = str(error).replace("\n", "\n  ")  # quoted text must not begin a line of ours
            output.print_note(str(error) if hasattr(error, "mistakes") else f"error: {text}")
            if error.entity_id is not None:
                thread = f"{_find_program()} loom thread {error.entity_id[-8:]}{render_loom_option(loom)}"
                output.print_note(f"the turns that it recorded: {thread}")
        raise typer.Exit(USAGE if is_mistake(error) else FAILED) from None


def open_store(url: str, *, read_only: bool = False, seal_key: GivenKey = None) -> Store:
    """Open the store of a loom, as `cantrip_actors.loom.open_store`. Raises LoomUnusable."""
    from cantrip_actors.cli.errors import opening
    from cantrip_actors.loom import open_store as open_

    with opening(_make_hint(url) if read_only else ""):
        return open_(url, read_only=read_only, seal_key=seal_key)


def is_jsonl(url: str) -> bool:
    """Return whether a loom is a file of JSON Lines."""
    return url.startswith("jsonl:") or url.endswith(".jsonl")


def check_exists(url: str) -> None:
    """Raise LoomUnusable for a loom that cannot be read. Opening it for writing would make one of that name."""
    open_store(url, read_only=True, seal_key=seal_key() or False).close()


def _make_hint(url: str) -> str:
    """Return what to do about a loom that cannot be read."""
    return f"; cast something first, for example `{_find_program()} demo`" if url == LOOM else ""


@contextmanager
def open_for_reading(url: str, *, json: bool) -> Iterator[tuple[Loom, Finder]]:
    """Open a loom for the block; yield it with a finder of ids. Without its key a sealed loom is not checked."""
    with _open(url, json=json, read_only=True, seal_key=seal_key() or False) as opened:
        yield opened


@contextmanager
def open_for_writing(url: str, *, json: bool) -> Iterator[tuple[Loom, Finder]]:
    """Open a loom that exists for the block, which changes it; yield it with a finder of ids."""
    with open_for_reading(url, json=json):  # opening it for writing would make one of that name
        pass
    with _open(url, json=json, read_only=False, seal_key=seal_key()) as opened:
        yield opened


@contextmanager
def _open(url: str, *, json: bool, read_only: bool, seal_key: GivenKey) -> Iterator[tuple[Loom, Finder]]:
    with report_errors(json=json, loom=url), ExitStack() as stack:
        from cantrip_actors import open_loom
        from cantrip_actors.cli.errors import opening
        from cantrip_actors.cli.loom_views import Finder

        with opening(_make_hint(url) if read_only else ""):
            opened = stack.enter_context(open_loom(url, read_only=read_only, seal_key=seal_key))
        yield opened, Finder(opened)


def check_followable(url: str) -> None:
    """Raise typer.BadParameter for a loom whose growth a reader does not see."""
    if is_jsonl(url):
        hint = "other processes do not see it grow: read GET /events of its service"
        raise typer.BadParameter(f"expected a loom in SQLite or Postgres, got {url}: {hint}", param_hint="--follow")


def run(
    loom: str,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    backend: Backend,
    quiet: bool,
    events: bool = False,
    unattended: UnattendedMode | None = None,
    request_id: str = "",
    followed: Collection[str] = (),
    feeds: Sequence[EventFeed] = (),
) -> T:
    """Do `work` with a runtime on `loom`, shown as JSON events, as a live tree, as lines, or not at all.

    The person at the terminal is asked about requests; without a terminal their ids are printed, or they are denied, as
    `unattended` says. If it is None, other processes decide them. The request with `request_id` also belongs to the
    run, and so do those of the entities with the ids `followed`, which another process may run. The events of `feeds`,
    to which `work` may add one, are shown, too.

    Raises Interrupted, LoomUnusable, and any error of `work`.
    """
    from cantrip_actors.cli import session

    asks: Literal["wait", "deny"] | None = None
    if unattended is not None:
        asks = "deny" if unattended is UnattendedMode.deny else "wait"
    return session.perform(
        loom,
        work,
        backend=backend.value,
        quiet=quiet,
        events=events,
        unattended=asks,
        request_id=request_id,
        followed=followed,
        feeds=feeds,
    )


def run_quietly(
    loom: str,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    as_json: bool,
    backend: Backend = Backend.asyncio,
    makes_loom: bool = False,
) -> T:
    """Do `work` with a runtime on `loom`, which has to exist unless the command `makes_loom`, and report its errors."""
    with report_errors(json=as_json, loom=loom):
        if not makes_loom:
            check_exists(loom)
        return run(loom, work, backend=backend, quiet=True)


def cast(loom: str, cantrip: Cantrip, intent: Any, *, backend: Backend, quiet: bool) -> Episode:
    """Cast a cantrip and wait for its episode, as `run` does."""

    async def work(runtime: Runtime) -> Episode:
        return with_thread(await runtime.cast(cantrip, intent))

    return run(loom, work, backend=backend, quiet=quiet)


def with_thread(episode: Episode) -> Episode:
    """Return the episode with its thread read, because a closed loom cannot be read."""
    assert episode.thread is not None
    return episode


def exit_code(ended: Episode | Exception) -> int:
    """Return the exit code for how an entity's episode ended."""
    return FAILED if isinstance(ended, Exception) else 0 if ended.terminated else TRUNCATED


def finish(
    episode: Episode,
    loom: str,
    lines: Iterable[str] | None = None,
    code: int | None = None,
    *,
    as_json: bool,
    demo: bool = False,
    **more: Any,
) -> NoReturn:
    """Print the answer and exit: `lines`, or the result as text, or JSON with the fields `more`.

    `code` defaults to the exit code for how the episode ended.
    """
    if as_json:
        output.print_json({**output.episode_json(episode, loom), **more})
    else:
        show_answer(episode, loom, [output.as_text(episode.raw_result)] if lines is None else lines, demo=demo)
    raise typer.Exit(exit_code(episode) if code is None else code)


def show_answer(episode: Episode, loom: str, lines: Any, *, demo: bool = False) -> None:
    """Print the answer, or why the episode was truncated, and the commands that show more."""
    if demo and sys.stderr.isatty():
        output.print_note("")
    if episode.terminated:
        output.print_lines(lines)
        if episode.cut_off is not None:
            output.print_note(render_cut_off(episode.cut_off))
    else:
        output.print_note(f"truncated: {episode.summary}")
    if demo and sys.stderr.isatty():
        output.print_note("")
    show_next_commands(episode, loom, demo=demo)


def show_next_commands(episode: Episode, loom: str, *, demo: bool = False) -> None:
    """Print the loom, and the commands that show the entity in it."""
    if loom.startswith("memory:"):
        output.print_note("loom: memory:, which is gone now: --loom PATH.db keeps what happened")
        return
    output.print_note(f"loom: {render_url(loom)}")
    look = [f"loom tree {short(episode.entity_id)}"]
    if demo and episode.thread:
        look.append(f"loom show {short(episode.thread[-1].id)}")
    for command in look:
        output.print_note(f"  {_find_program()} {command}{render_loom_option(loom)}")


def print_rows(rows: Iterable[Any], lines: Iterator[Text], or_else: str = "", *, as_json: bool) -> None:
    """Print a list: its rows as JSON for programs, or its lines for people."""
    if as_json:
        output.print_json(list(rows))
    else:
        print_styled(lines, or_else)


def print_styled(lines: Iterator[Text], or_else: str = "") -> None:
    """Print styled lines on a terminal, bare ones elsewhere; never wrapped, so that `grep` finds whole lines."""
    from cantrip_actors.cli.terminal import console

    screen = console(sys.stdout, soft_wrap=True)
    any_line = False
    for line in lines:
        if sys.stdout.isatty():
            line.end = "\n"
            screen.print(line, end="\n")
        else:
            sys.stdout.write(f"{line.plain}\n")
        any_line = True
    sys.stdout.flush()
    if not any_line:
        sys.stderr.write(f"{or_else}\n")


def import_extra(package: str, extra: str, who: str) -> Any:
    """Return one of our packages that needs an extra. Raises InvalidCantrip if the extra is not installed."""
    from importlib import import_module

    from cantrip_actors import InvalidCantrip

    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("cantrip_actors"):
            raise
        raise InvalidCantrip(f"{who} needs an extra: pip install 'cantrip-actors[{extra}]'") from error


def terminal_width() -> int:
    """Return the columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((120, 40)).columns


def read_intent(
    intent: str, context: str | None, history: str | None, images: list[str] | None, files: list[str] | None
) -> dict[str, Any]:
    """Return an intent with its files, its context and its history, as arguments of a cast, a send or a post."""
    return {
        "context": None if context is None else read_context(context),
        "history": read_history(history),
        "intent": intent_with_files(intent, images, files),
    }


def intent_with_files(intent: str, images: list[str] | None, files: list[str] | None) -> Any:
    """Return the intent, with its images and files after it if there are any. Raises InvalidIntent, InvalidFile."""
    from cantrip_actors import File, Image, InvalidIntent

    if any("\udc80" <= sign <= "\udcff" for sign in intent):  # this is how Python passes on bytes that it cannot decode
        encoding = sys.getfilesystemencoding()
        message = f"intent: expected a text in {encoding}, got {os.fsencode(intent)!r}"
        raise InvalidIntent(f"{message}; {'give it in UTF-8' if encoding == 'utf-8' else 'set PYTHONUTF8=1'}")
    pictures = [Image.at(image) if image.startswith("https://") else Image.read(image) for image in images or ()]
    others = [File.at(file) if file.startswith("https://") else File.read(file) for file in files or ()]
    return [intent, *pictures, *others] if pictures or others else intent


def read_duration(text: str, option: str) -> float:
    """Return a duration, like "10m", or a number of seconds, in seconds. Raises typer.BadParameter."""
    from cantrip_actors.loom.maintenance.retention import parse_seconds

    try:
        return parse_seconds(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError:
        message = f'expected a duration like "90d", "12h", "30m" or "45s", or a number of seconds, got {text!r}'
        raise typer.BadParameter(message, param_hint=f"'{option}'") from None


def read_context(source: str) -> Any:
    """Return the context: a file's content, parsed if it is JSON or YAML by its name, or the JSON that was given."""
    if os.path.isfile(source):  # noqa: PTH113  # Path.is_file raises for a text that is too long for a path
        return _read_file(Path(source), "--context")
    try:
        return parse_exactly(source)
    except ValueError as error:
        raise typer.BadParameter(f"neither a file nor JSON: {error}", param_hint="--context") from error


def read_history(source: str | None) -> list[Any]:
    """Return the messages in a file, or none without one; the runtime checks each."""
    if source is None:
        return []
    messages = _read_file(Path(source), "--history")
    if not isinstance(messages, list):
        raise typer.BadParameter(f"expected {source} to hold a list of messages", param_hint="--history")
    return messages


def _read_file(path: Path, option: str) -> Any:
    """Return the content of a file, parsed if its name says that it is JSON, JSON Lines or YAML."""
    from cantrip_actors.terms.yaml_text import load_yaml

    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".json":
                return parse_exactly(text)
            case ".jsonl" if option == "--history":
                return [parse_exactly(line) for line in text.splitlines() if line.strip()]
            case ".yaml" | ".yml":
                return load_yaml(text)
            case _:
                return text
    except (UnicodeDecodeError, OSError) as error:
        raise typer.BadParameter(f"cannot read {path} as text: {error}", param_hint=option) from error
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not valid: {error}", param_hint=option) from error


def _find_program() -> str:
    """Return how this program was called, so that a proposed command can be typed."""
    import shutil

    called = sys.argv[0]
    installed = shutil.which("cantrip")
    if not called.endswith("cantrip") or (installed and Path(called).resolve() == Path(installed).resolve()):
        return "cantrip"
    near = os.path.relpath(called)
    return near if len(near) < len(called) else called
