"""Ask the person at the terminal about the requests of a run; without a terminal, print their ids.

The run continues meanwhile. While a person is asked, the watcher of the run does not write (`Pausable.pause`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
import anyio.abc

from cantrip_actors import (
    AlreadyDecided,
    CantripError,
    EntityEnded,
    Request,
    RequestedEvent,
    Runtime,
    UnknownRequest,
)
from cantrip_actors.cli.decision_author import door
from cantrip_actors.cli.output import print_note, render_loom_option
from cantrip_actors.own_files.login import get_login
from cantrip_actors.redact.visible import escape, shorten
from cantrip_actors.runtime.people.request import parse_answer
from cantrip_actors.terms.exact_json import parse_exactly

LOOK = 0.5
"""Seconds between two looks for requests, and for decisions of other processes."""

SETTLING = 0.1
"""Seconds until the id of a request is printed: an unattended one may be denied at once."""

_COMMANDS = {"question": ["answer ID TEXT"], "deferred": ["deliver ID RESULT"]}
"""The commands for requests that are not decided by `allow` and `deny`."""

ROWS_AROUND = 3
"""Lines of the screen that a request leaves free: for the question, for what is typed, and for an error."""


def parse_result(text: str) -> Any:
    """Return the result of a deferred call: the JSON value if the text is one, else the text."""
    try:
        return parse_exactly(text)
    except ValueError:
        return text


def screen_size() -> tuple[int, int]:
    """Return the columns and the rows of the terminal that a person reads."""
    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        columns, rows = 0, 0
    return columns or 80, rows or 24


class Pausable(Protocol):
    """A display on the terminal that writes nothing while a person is asked."""

    def pause(self) -> None:
        """Give the terminal back until `resume`."""

    def resume(self) -> None:
        """Take the terminal again."""


class Keyboard:
    """Reads lines from the terminal without a thread, so that a cancelled wait leaves nothing behind."""

    def __init__(self) -> None:
        self._read = b""
        self._file = sys.stdin.fileno()

    def discard(self) -> None:
        """Forget what was typed so far: it was typed before the person read the next request."""
        import termios

        self._read = b""
        termios.tcflush(self._file, termios.TCIFLUSH)

    async def line(self, seconds: float) -> str | None:
        """Return the next line without its end, "" at the end of the input, or None after `seconds` without one."""
        with anyio.move_on_after(seconds):
            while b"\n" not in self._read:
                await anyio.wait_readable(self._file)
                read = os.read(self._file, 4096)
                if not read:
                    return ""
                self._read += read
            line, _, self._read = self._read.partition(b"\n")
            return line.decode(errors="replace") + "\n"
        return None


async def attend(
    runtime: Runtime,
    watcher: Pausable | None,
    terminal: anyio.Lock,
    loom: str,
    also: str = "",
    followed: Collection[str] = (),
    *,
    denies: bool = False,
    keyboard: Keyboard | None = None,
    replies_itself: Callable[[Request], bool] | None = None,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Ask about each request of an entity that this process runs, or print its id; until it is cancelled.

    `also` is the id of a request that belongs to the run and to no entity: its dispatch's. `followed` has the ids of
    entities whose answers the caller waits for: another process may run them. If it `denies`, their requests are denied
    where no person can be asked; the runtime denies those of its own entities itself. A `keyboard` that others read,
    too, is read only while `terminal` is held. Requests that the caller `replies_itself` to are left out.
    """
    by = get_login()
    if keyboard is None and has_terminal():
        keyboard = Keyboard()
    seen: set[tuple[str, str]] = set()
    async with AsyncExitStack() as stack:
        if keyboard is not None:  # a person follows requests
            await stack.enter_async_context(runtime.requests(follow=True))
        news = runtime.events(lambda event: isinstance(event, RequestedEvent))
        task_status.started()
        while True:
            for request in runtime.requests():
                if (
                    _identify(request) in seen
                    or not (request.id == also or _is_followed(runtime, request, followed))
                    or (replies_itself is not None and replies_itself(request))
                ):
                    continue
                seen.add(_identify(request))
                if keyboard is None:
                    await anyio.sleep(SETTLING)
                    if not _is_open(runtime, request):
                        continue
                    if denies and request.entity is not None and request.kind != "deferred":
                        await _deny(runtime, request, by)
                        continue
                async with _pause(watcher, terminal):
                    name = None if request.entity is None else runtime.get_entity(request.entity).name
                    if keyboard is None or not await _ask(runtime, request, name, keyboard, by):
                        _announce(request, loom)
            with anyio.move_on_after(LOOK):
                await anext(news)


def _is_followed(runtime: Runtime, request: Request, followed: Collection[str]) -> bool:
    """Return whether this process runs the entity that waits, or follows it or an entity above it."""
    if request.entity is None:
        return False
    if runtime.get_entity(request.entity).loaded:
        return True
    return bool(followed) and any(above in followed for above in runtime.loom.ancestry(request.entity))


async def _deny(runtime: Runtime, request: Request, by: str) -> None:
    with suppress(AlreadyDecided, EntityEnded, UnknownRequest):
        await runtime.decide(request.id, "deny", by=by, note="no program follows requests", door=door())


def has_terminal() -> bool:
    """Return whether a person can be asked: a shell's background job may not read its terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # the terminal belongs to another session
        return False


@asynccontextmanager
async def _pause(watcher: Pausable | None, terminal: anyio.Lock) -> AsyncIterator[None]:
    async with terminal:
        if watcher is not None:
            watcher.pause()
        try:
            yield
        finally:
            if watcher is not None:
                watcher.resume()


def _identify(request: Request) -> tuple[str, str]:
    """Return the identity of a request, which is more than its id: a dispatch waits several times under one id."""
    return request.id, request.asked_at


def _is_open(runtime: Runtime, request: Request) -> bool:
    return any(_identify(other) == _identify(request) for other in runtime.requests(entity=request.entity))


def _announce(request: Request, loom: str) -> None:
    how = _COMMANDS.get(request.kind, ["allow ID", "deny ID"])
    commands = ", ".join(f"cantrip {words}{render_loom_option(loom)}" for words in ("requests", *how))
    what = f"the result of {escape(request.gate)}" if request.kind == "deferred" else "a person"
    print_note(f"waits for {what}: {escape(request.id)} ({commands})")


async def _ask(runtime: Runtime, request: Request, name: str | None, keyboard: Keyboard, by: str) -> bool:
    """Ask until the request is decided; return False if the input has ended.

    The request is shown again above each question, so that the answer decides exactly the text that the person reads
    there.
    """
    is_question = request.kind in _COMMANDS
    keyboard.discard()
    while True:
        columns, rows = screen_size()
        lines = request.render(who=name or "", columns=columns - 1, rows=rows - ROWS_AROUND)
        whole = request.render(who=name or "", columns=columns - 1)
        for line in lines:
            print_note(line)
        sys.stderr.write(_make_prompt(request.kind, is_cut=lines != whole))
        sys.stderr.flush()
        while (typed := await keyboard.line(LOOK)) is None:
            if not _is_open(runtime, request):
                print_note("\nit was decided in the meantime")
                return True
        if not typed:
            print_note("")  # ends the line of the prompt
            return False
        if not is_question and typed.strip().lower() == "all":
            for line in whole:
                print_note(line)
            continue
        try:
            if await _decide(runtime, request, typed.strip(), by):
                return True
        except AlreadyDecided as first:
            print_note(str(first))
            return True
        except CantripError as error:
            print_note(f"error: {shorten(str(error), columns * 2)}")


async def _decide(runtime: Runtime, request: Request, typed: str, by: str) -> bool:
    """Decide a request as typed; return False if the text is no decision. Raises AlreadyDecided and other errors."""
    if request.kind == "deferred":
        if typed:
            await runtime.deliver(request.id, parse_result(typed), by=by, door=door())
        return bool(typed)
    if request.kind == "question":
        if typed:
            await runtime.decide(request.id, answer=parse_answer(typed, request.schema), by=by, door=door())
        return bool(typed)
    word, _, note = typed.partition(" ")
    if word.lower() not in ("y", "yes", "n", "no"):
        return False
    if not _is_open(runtime, request):
        print_note("it was decided in the meantime")
        return True
    await runtime.decide(request.id, "allow" if word[0] in "yY" else "deny", by=by, note=note.strip(), door=door())
    return True


def _make_prompt(kind: str, *, is_cut: bool) -> str:
    if kind == "deferred":
        return "its result (text or JSON), unless another program delivers it: "
    if kind == "question":
        return "answer (`cantrip requests ID` shows all of the question): " if is_cut else "answer: "
    return "allow it? y, n, n with a note, or all to see the rest: " if is_cut else "allow it? y, n, or n with a note: "
