"""Ask the person at the terminal about the requests of a run; without a terminal, print their ids.

The run continues meanwhile. While a person is asked, the watcher of the run does not write (`Watcher.pause`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from cantrip_actors import AlreadyDecided, CantripError, Request, RequestedEvent, Runtime
from cantrip_actors.cli.decision_author import door, login
from cantrip_actors.cli.output import as_json, print_note, render_loom_option, short
from cantrip_actors.cli.terminal import printable
from cantrip_actors.cli.watch import Watcher
from cantrip_actors.terms.json_schema import find_misfits

LOOK = 0.5
"""Seconds between two looks for requests, and for decisions of other processes."""

SETTLING = 0.1
"""Seconds until the id of a request is printed: an unattended one may be denied at once."""

LONGEST = 4_000
"""Characters of an argument that are shown."""


def parse_answer(text: str, schema: Any) -> Any:
    """Return the answer to a question: the text, or a JSON value if the schema refuses the text and it is JSON."""
    import json

    if schema is None or not find_misfits(text, schema, foreign=True):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def request_lines(request: Request, name: str | None) -> Iterator[str]:
    """Yield everything that a person needs to read about a request before deciding it, without control characters."""
    who = printable(name or short(request.entity or request.id))
    text = "\n  ".join(map(printable, request.text.splitlines()))
    if request.kind == "question":
        yield f"{who} asks: {text}"
        if request.schema is not None:
            yield f"  the answer has to fit {printable(as_json(request.schema))}"
        return
    yield f"{who} wants to call {request.gate}"
    for key, value in request.args.items():
        shown = printable(value if isinstance(value, str) else as_json(value))
        more = f"… ({len(shown) - LONGEST:,} more characters)" if len(shown) > LONGEST else ""
        yield f"  {printable(key)}: {shown[:LONGEST]}{more}"
    if request.text:
        yield f"  why a person decides: {text}"


class Keyboard:
    """Reads lines from the terminal without a thread, so that a cancelled wait leaves nothing behind."""

    def __init__(self) -> None:
        self._read = b""
        self._file = sys.stdin.fileno()

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
    watcher: Watcher | None,
    terminal: anyio.Lock,
    loom: str,
    also: str = "",
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Ask about each request of an entity that this process runs, or print its id; until it is cancelled.

    `also` is the id of a request that belongs to the run and to no entity: its dispatch's.
    """
    by = login()
    keyboard = Keyboard() if _has_terminal() else None
    seen: set[str] = set()
    async with AsyncExitStack() as stack:
        if keyboard is not None:  # a person follows requests
            await stack.enter_async_context(runtime.requests(follow=True))
        news = runtime.events(lambda event: isinstance(event, RequestedEvent))
        task_status.started()
        while True:
            for request in runtime.requests():
                entity = None if request.entity is None else runtime.find(request.entity)
                is_ours = request.id == also or (entity is not None and entity.loaded)
                if request.id in seen or not is_ours:
                    continue
                seen.add(request.id)
                if keyboard is None:
                    await anyio.sleep(SETTLING)
                    if not _is_open(runtime, request):
                        continue
                async with _pause(watcher, terminal):
                    name = None if entity is None else entity.name
                    if keyboard is None or not await _ask(runtime, request, name, keyboard, by):
                        _announce(request, loom)
            with anyio.move_on_after(LOOK):
                await anext(news)


def _has_terminal() -> bool:
    """Return whether a person can be asked: a shell's background job may not read its terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # the terminal belongs to another session
        return False


@asynccontextmanager
async def _pause(watcher: Watcher | None, terminal: anyio.Lock) -> AsyncIterator[None]:
    async with terminal:
        if watcher is not None:
            watcher.pause()
        try:
            yield
        finally:
            if watcher is not None:
                watcher.resume()


def _is_open(runtime: Runtime, request: Request) -> bool:
    return any(other.id == request.id for other in runtime.requests())


def _announce(request: Request, loom: str) -> None:
    how = ["answer ID TEXT"] if request.kind == "question" else ["allow ID", "deny ID"]
    commands = ", ".join(f"cantrip {words}{render_loom_option(loom)}" for words in ("requests", *how))
    print_note(f"waits for a person: {request.id} ({commands})")


async def _ask(runtime: Runtime, request: Request, name: str | None, keyboard: Keyboard, by: str) -> bool:
    """Ask until the request is decided; return False if the input has ended."""
    for line in request_lines(request, name):
        print_note(line)
    is_question = request.kind == "question"
    prompt = "answer: " if is_question else "allow it? y, n, or n with a note: "
    while True:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        while (typed := await keyboard.line(LOOK)) is None:
            if not _is_open(runtime, request):
                print_note("\nit was decided in the meantime")
                return True
        if not typed:
            print_note("")  # ends the line of the prompt
            return False
        word, _, note = typed.strip().partition(" ")
        try:
            if is_question and word:
                await runtime.decide(request.id, answer=parse_answer(typed.strip(), request.schema), by=by, door=door())
                return True
            if not is_question and word.lower() in ("y", "yes", "n", "no"):
                await runtime.decide(
                    request.id, "allow" if word[0] in "yY" else "deny", by=by, note=note.strip(), door=door()
                )
                return True
        except AlreadyDecided as first:
            print_note(str(first))
            return True
        except CantripError as error:
            print_note(f"error: {error}")
