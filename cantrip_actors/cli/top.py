"""The command `cantrip top`: the current state of entities, on a screen that is redrawn.

It reads a service through its API, or a loom. The source is read in a thread, so that keys are answered at once; the
terminal is restored however the command ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol
from urllib.parse import quote

import typer

from cantrip_actors.cli import output
from cantrip_actors.cli.command import LOOM, Json, Url, examples, open_for_reading, report_errors
from cantrip_actors.cli.errors import Unreachable
from cantrip_actors.cli.output import one_line, short
from cantrip_actors.cli.service import ServiceClient

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cantrip_actors import Loom, Request
    from cantrip_actors.cli.top_screen import TopSelections

app = typer.Typer(rich_markup_mode=None)

ARROWS: Final = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}
LONGEST: Final = 0.25
"""Seconds between two checks of the terminal's size."""

PAGE: Final = 200
"""Turns that a service is asked for at a time."""


class OverviewSource(Protocol):
    """A source of overviews. Methods are called in a thread, and raise `Unreachable`."""

    name: str

    def look(self) -> Mapping[str, Any]:
        """Return an overview."""

    def turns(self, entity_id: str) -> list[str]:
        """Return the turns of an entity as lines."""


class LoomSource:
    """A loom, read from its store. It has no listener, so nothing acts on its entities."""

    def __init__(self, loom: Loom, name: str) -> None:
        from cantrip_actors.observe.overview import Overview

        self.name = name
        self._loom = loom
        self._overview = Overview(loom)

    def look(self) -> Mapping[str, Any]:
        """Return an overview."""
        from cantrip_actors import LoomError

        try:
            return self._overview.look()
        except LoomError as error:
            raise Unreachable(str(error)) from error

    def turns(self, entity_id: str) -> list[str]:
        """Return the turns of an entity as lines."""
        from cantrip_actors import LoomError

        try:
            turns = self._loom.turns(entity_id)
        except LoomError as error:
            raise Unreachable(str(error)) from error
        return [line for turn in turns for line in _turn_lines(turn.sequence, turn.utterance, turn.observation)]


class ServiceSource:
    """A service, through its API, which also acts on entities."""

    def __init__(self, service: ServiceClient) -> None:
        self.name = service.url
        self._ask = service.ask

    def look(self) -> Mapping[str, Any]:
        """Return an overview."""
        told: Mapping[str, Any] = self._ask("GET", "overview")
        return told

    def turns(self, entity_id: str) -> list[str]:
        """Return the turns of an entity as lines."""
        turns: list[dict[str, Any]] = []
        path = f"entities/{entity_id}/turns?limit={PAGE}"
        while page := self._ask("GET", f"{path}&after={turns[-1]['sequence'] if turns else 0}")["items"]:
            turns += page
        return [
            line
            for turn in turns
            for line in _turn_lines(turn["sequence"], turn.get("utterance") or "", turn.get("observation") or "")
        ]

    def find_request(self, entity_id: str) -> Request | None:
        """Return the open request of an entity."""
        from cantrip_actors import Request

        items = self._ask("GET", f"requests?entity={entity_id}")["items"]
        names = {field.name for field in fields(Request)}
        return Request(**{name: value for name, value in items[0].items() if name in names}) if items else None

    def decide(self, request: Request, decision: str, note: str) -> str:
        """Decide this request, and return the result as text."""
        self._ask("POST", f"requests/{quote(request.id, safe='')}", {"decision": decision, "note": note})
        return f"{short(request.entity or request.id)}: {decision} is done"

    def interrupt(self, entity_id: str) -> str:
        """Interrupt an entity, and return the result as text."""
        self._ask("POST", f"entities/{entity_id}/interrupt", {"why": "cantrip top"})
        return f"{short(entity_id)}: interrupt is done"

    def steer(self, entity_id: str, text: str) -> str:
        """Steer an entity, and return the result as text."""
        self._ask("POST", f"entities/{entity_id}/steer", {"text": text})
        return f"{short(entity_id)}: steer is done"

    def stop(self, entity_id: str) -> str:
        """Stop an entity, and return the result as text."""
        self._ask("DELETE", f"entities/{entity_id}?reason=cantrip+top")
        return f"{short(entity_id)}: stop is done"


def _turn_lines(sequence: int, said: str, observed: str) -> Iterator[str]:
    yield f"turn {sequence}  {one_line(said, 2000)}"
    if observed:
        yield f"        {one_line(observed, 2000)}"


@app.command(
    "top",
    epilog=examples("cantrip top --url http://127.0.0.1:8000 --token $TOKEN", "cantrip top --once --json"),
)
def top(
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="A service; left out: the loom.")] = None,
    token: Annotated[str, typer.Option("--token", envvar="CANTRIP_TOKEN", help="The service's token.")] = "",
    loom: Url = LOOM,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as text. Without a terminal always.")] = False,
    as_json: Json = False,
) -> None:
    """Show what entities do now, and keep the screen up to date.

    It has their states, turns, tokens and cost, requests for people, and restarts.

    Keys: arrows select, Enter shows turns; i interrupts, t steers, a and d show a request and decide it, k stops
    (asks first), s sorts, f filters, p pauses, q ends.
    """
    with _open_source(url, token, loom, json=as_json) as source:
        if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print_once(source, as_json=as_json)
        else:
            from cantrip_actors.cli.top_screen import TopSelections

            _Screen(source, TopSelections(source.name, can_act=isinstance(source, ServiceSource)), interval).run()


@contextmanager
def _open_source(url: str | None, token: str, loom: str, *, json: bool) -> Iterator[OverviewSource]:
    if url is not None:
        with report_errors(json=json, loom=loom), closing(ServiceClient(url, token)) as service:
            yield ServiceSource(service)
    else:
        with open_for_reading(loom, json=json) as (opened, _):
            from cantrip_actors.redact.urls import render_url

            yield LoomSource(opened, render_url(loom))


def _print_once(source: OverviewSource, *, as_json: bool) -> None:
    from cantrip_actors.cli.top_screen import TopSelections, whole

    overview = source.look()
    output.show(
        overview, [line.plain.rstrip() for line in whole(overview, TopSelections(source.name))], as_json=as_json
    )


class _Screen:
    """The loop: read the source, draw, handle keys."""

    def __init__(self, source: OverviewSource, view: TopSelections, interval: float) -> None:
        self._source = source
        self._view = view
        self._interval = interval
        self._overview: Mapping[str, Any] | None = None
        self._answer: Callable[[str], None] | None = None
        """The function that gets the text that is being typed."""
        self._question = ""
        self._typed = ""
        self._is_over = False
        from concurrent.futures import ThreadPoolExecutor

        self._threads = ThreadPoolExecutor(1, "cantrip-top")
        self._looking: Future[Mapping[str, Any]] | None = None
        self._next_look = 0.0

    def run(self) -> None:
        """Show the screen until q or ctrl-C. The terminal is restored afterwards, also after an error."""
        from rich.live import Live

        from cantrip_actors.cli.terminal import console

        # the thread starts before ctrl-C raises: a start that it interrupts leaves a thread that no one waits for
        self._overview = self._threads.submit(self._source.look).result()
        self._next_look = time.monotonic() + self._interval
        shown = console(sys.stdout)
        try:
            with _read_raw_keys() as descriptor, Live(console=shown, screen=True, auto_refresh=False) as live:
                while not self._is_over:
                    width, height = os.get_terminal_size(descriptor)
                    live.update(self._render(width, height), refresh=True)
                    self._wait(descriptor)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        finally:
            # a loom is closed next, which crashes a thread that reads it; a service may be slow
            self._threads.shutdown(wait=isinstance(self._source, LoomSource), cancel_futures=True)

    def _render(self, width: int, height: int) -> Any:
        from rich.text import Text

        from cantrip_actors.cli.top_screen import screen

        assert self._overview is not None
        self._view.prompt = None if self._answer is None else f"{self._question} {self._typed}"
        return Text("\n").join(screen(self._overview, self._view, width, height))

    def _wait(self, descriptor: int) -> None:
        """Wait for a key or the next reading."""
        if self._looking is not None and self._looking.done():
            self._take(self._looking)
        now = time.monotonic()
        if self._looking is None and not self._view.is_paused and now >= self._next_look:
            self._looking = self._threads.submit(self._source.look)
        until = LONGEST if self._view.is_paused else self._next_look - now
        patience = 0.05 if self._looking is not None else min(LONGEST, max(0.0, until))
        ready, _, _ = select.select([descriptor], [], [], patience)
        if ready:
            for key in _parse_keys(os.read(descriptor, 1024).decode(errors="replace")):
                self._press(key)

    def _take(self, looked: Future[Mapping[str, Any]]) -> None:
        self._looking, self._next_look = None, time.monotonic() + self._interval
        try:
            self._overview = looked.result()
        except Unreachable as error:
            self._view.note = str(error)

    def _press(self, key: str) -> None:
        if self._answer is not None:
            self._type(key)
            return
        view = self._view
        view.note = ""
        match key:
            case "q":
                self._is_over = True
            case "\x1b" | "\x7f":
                view.detail, view.scroll = None, 0
            case "up" | "down":
                self._move(-1 if key == "up" else 1)
            case "\r" | "\n":
                self._do(lambda: self._show_turns(view.selected))
            case "p":
                view.is_paused = not view.is_paused
            case "s":
                from cantrip_actors.cli.top_screen import SORTS

                view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
            case "f":
                self._ask("filter:", self._filter)
            case "i" | "t" | "a" | "d" | "k":
                self._begin_action(key)
            case _:
                pass

    def _move(self, step: int) -> None:
        view = self._view
        if view.detail is not None:
            view.scroll = min(max(0, view.scroll + step), max(0, len(view.detail) - 1))
        elif view.shown:
            at = view.shown.index(view.selected) + step if view.selected in view.shown else 0
            view.selected = view.shown[min(max(0, at), len(view.shown) - 1)]

    def _begin_action(self, key: str) -> None:
        view, entity, service = self._view, self._view.selected, self._source
        if not isinstance(service, ServiceSource):
            view.note = "this is a loom: give --url to act on a service"
        elif not entity:
            view.note = "select an entity first: ↑ ↓"
        elif key == "t":
            self._ask(f"tell {short(entity)}:", lambda text: self._note(lambda: service.steer(entity, text)))
        elif key == "k":
            question = f"stop {short(entity)} and everything below it? y/n"
            self._ask(question, lambda text: self._note(lambda: service.stop(entity)) if _is_yes(text) else None)
        elif key == "i":
            self._note(lambda: service.interrupt(entity))
        else:
            self._do(lambda: self._show_request(service, entity, "allow" if key == "a" else "deny"))

    def _show_request(self, service: ServiceSource, entity: str, decision: str) -> None:
        """Show the request of an entity, and ask for the decision about this one and no later one."""
        request = service.find_request(entity)
        if request is None:
            self._view.note = f"{short(entity)} asks nothing"
            return
        if request.kind == "question" and decision == "allow":
            self._view.note = f"{short(entity)} asks a question: `cantrip answer` answers it"
            return
        if request.kind == "deferred" and decision == "allow":
            self._view.note = f"{short(entity)} waits for a result: `cantrip deliver` delivers it"
            return

        def decide(text: str) -> None:
            if decision == "deny" or _is_yes(text):
                self._note(lambda: service.decide(request, decision, text if decision == "deny" else ""))

        self._ask("allow it? y/n" if decision == "allow" else "deny it, because:", decide)
        self._view.request = request

    def _note(self, act: Callable[[], str]) -> None:
        """Show what an action returns."""

        def note() -> None:
            self._view.note = act()

        self._do(note)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Unreachable as error:
            self._view.note = str(error)

    def _show_turns(self, entity: str) -> None:
        if entity:
            self._view.detail, self._view.scroll = self._source.turns(entity) or ["no turn yet"], 0

    def _filter(self, text: str) -> None:
        self._view.filter = text

    def _ask(self, question: str, answer: Callable[[str], None]) -> None:
        self._question, self._typed, self._answer = question, "", answer

    def _type(self, key: str) -> None:
        answer = self._answer
        if key in ("\r", "\n"):
            self._answer, self._view.request = None, None
            if answer is not None:
                answer(self._typed)
        elif key == "\x1b":
            self._answer, self._view.request = None, None
        elif key in ("\x7f", "\x08"):
            self._typed = self._typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typed += key


def _is_yes(text: str) -> bool:
    return text.strip().lower() in ("y", "yes")


def _parse_keys(text: str) -> Iterator[str]:
    """Yield the keys in a terminal's input: arrows by their names, others unchanged."""
    while text:
        found = next((code for code in ARROWS if text.startswith(code)), None)
        if found is not None:
            yield ARROWS[found]
            text = text[len(found) :]
        else:
            yield text[0]
            text = text[1:]


@contextmanager
def _read_raw_keys() -> Iterator[int]:
    """Make the terminal send keys at once and without echo, and ctrl-C raise KeyboardInterrupt, in this block."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGINT, handler)
