"""The target that prints: no text of an entity or a file may move a reader's cursor or change colours."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio.from_thread
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, Loom, Runtime, scripted
from cantrip_actors.cli.loom_views import Finder, entity_row, entity_table, find_thread, thread_lines, tree, turn_lines
from cantrip_actors.cli.watch import PlainLines
from cantrip_actors.gates import gate
from cantrip_actors.wards import max_turns
from conformance.fuzz.campaign import Check

__all__ = ["open_terminal"]

ACTING: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The Unicode categories of characters that a terminal may act upon."""

HARMLESS: Final = "\t\u200c\u200d"
"""The tab, and the joiners of scripts and of emoji."""


@gate
async def look(what: str) -> str:
    """Look at something."""
    raise ValueError(what)


@contextmanager
def open_terminal() -> Iterator[Check]:
    """Yield a check with a text as intent, utterance, call, observation and answer, in every view."""
    with capture_logs(), anyio.from_thread.start_blocking_portal() as portal:

        def check(data: bytes) -> None:
            portal.call(_check, data.decode(errors="replace"))

        yield check


async def _check(text: str) -> None:
    crystal = scripted(
        [
            {"content": text, "tool_calls": [{"gate": "look", "args": {"what": text}}]},
            {"content": text, "tool_calls": [{"gate": text[:40] or "x", "args": {text: text}}]},
            {"tool_calls": [{"gate": "done", "args": {"answer": text}}]},
        ]
    )
    cantrip = Cantrip(crystal, circle=Circle(["done", look], [max_turns(4)]))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(cantrip, f"Look: {text}")
        screen = io.StringIO()
        lines = PlainLines(screen)
        async for event in entity.events():
            lines.see(event)
        lines.close()
        await entity.episode()
        for line in (*screen.getvalue().split("\n"), *_views(runtime.loom)):
            wrong = [sign for sign in line if unicodedata.category(sign) in ACTING and sign not in HARMLESS]
            assert not wrong, f"{wrong[0]!r} is printed: {line[:100]!r}"


def _views(loom: Loom) -> Iterator[str]:
    headers = list(loom.headers())
    for header in headers:
        turns = loom.turns(header.entity_id)
        thread = find_thread(loom, Finder(loom), header.entity_id)
        for line in (*thread_lines(thread), *(line for turn in turns for line in turn_lines(loom, turn))):
            yield line.plain
    for line in (*tree(loom), *entity_table([entity_row(loom, header) for header in headers], 120)):
        yield line.plain
