"""Showing a run while it runs: a live tree on a terminal, a line an event elsewhere, or JSON for other programs.

A watcher observes and never controls: what it shows it shows from a thread, so that a terminal that was stopped or a
pipe that nobody reads holds nobody up, and one that is gone ends the showing and nothing else.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TextIO, TypeVar

import anyio
import anyio.to_thread
from rich.console import Console, Group
from rich.live import Live

from cantrip_actors import (
    CantripError,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    MissedEvent,
    Runtime,
    StepCompleteEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from cantrip_actors.protocols.progress import Progress, one_line, short, tokens, turns
from cantrip_actors.protocols.say import as_json

__all__ = ["EventLines", "LiveTree", "PlainLines", "Silent", "Watcher", "on_terminal", "watched"]

T = TypeVar("T")


class Watcher(ABC):
    """What a run is shown by. `see` takes note of an event; `show`, called in a thread, brings it before people."""

    @abstractmethod
    def see(self, event: EntityEvent) -> None:
        """Take note of an event. Must not wait."""

    @abstractmethod
    def show(self) -> None:
        """Show what was seen since the last time. May wait for a terminal or a pipe."""

    def close(self) -> None:
        """The run is over: show what is left and give the terminal back."""
        self.show()


class Silent(Watcher):
    """Shows nothing."""

    def see(self, event: EntityEvent) -> None:
        """Nothing is kept."""

    def show(self) -> None:
        """Nothing is shown."""


class _Lines(Watcher):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._closed = False

    def show(self) -> None:
        """Write the lines noted since the last time."""
        lines, self._lines = self._lines, []
        if lines and not self._closed:
            try:
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            except BrokenPipeError:  # nobody reads any more; the run goes on
                self._closed = True


class PlainLines(_Lines):
    """A line for each thing that happens, indented by depth; no colours, nothing that moves."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._progress = Progress()

    def see(self, event: EntityEvent) -> None:
        """Note what there is to say."""
        self._progress.see(event)
        entity = self._progress.entities.get(event.entity_id)
        depth = 0 if entity is None else entity.depth
        self._lines += [f"{'  ' * depth}{short(event.entity_id)} {said}" for said in self._told(event)]

    def _told(self, event: EntityEvent) -> Iterator[str]:
        match event:
            case EntityStartedEvent():
                yield f"begins: {one_line(event.intent, 90)}"
            case TextEvent():
                yield f"says: {one_line(event.text, 90)}"
            case ToolCallEvent() if event.gate != "done":
                yield f"calls {event.gate}"
            case ToolResultEvent() if event.is_error:
                yield f"{event.gate} failed: {one_line(str(event.result), 200)}"
            case StepCompleteEvent():
                yield f"turn {event.sequence} is {short(event.turn_id)}"
            case EntityEndedEvent():
                entity = self._progress.entities.get(event.entity_id)
                used = "" if entity is None else f" after {turns(entity.turns)}, {tokens(entity.tokens)}"
                why = f": {one_line(event.detail, 200)}" if event.detail else ""
                yield f"ended, {event.reason}{used}{why}"
            case MissedEvent():
                yield f"({event.count} events not shown)"
            case _:
                pass


class EventLines(_Lines):
    """Each event as a JSON object of one line, `type` first."""

    def see(self, event: EntityEvent) -> None:
        """Note the event as it is."""
        said: dict[str, Any] = {"type": type(event).__name__}
        said |= {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
        self._lines.append(as_json(said))


class LiveTree(Watcher):
    """The tree of entities, redrawn in place; what it came to in the end stays on the screen."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress()
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def see(self, event: EntityEvent) -> None:
        """Bring the tree up to date."""
        self._progress.see(event)

    def show(self) -> None:
        """Draw it."""
        width = self._console.width
        lines = self._progress.picture(max(4, self._console.height - 2), width)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.end = "\n"
        self._live.update(Group(*lines), refresh=True)

    def close(self) -> None:
        """Draw it for the last time and give the cursor back."""
        self.show()
        self._live.stop()


def on_terminal(stream: TextIO) -> bool:
    """Whether a live picture makes sense on `stream`."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


async def watched(runtime: Runtime, watcher: Watcher, work: Callable[[], Awaitable[T]]) -> T:
    """Do `work` while `watcher` shows `runtime`'s events; its result, or the CantripError that it ended with."""
    subscription = runtime.events()
    new = anyio.Event()

    async def see() -> None:
        async for event in subscription:
            watcher.see(event)
            new.set()

    async def show() -> None:
        nonlocal new
        while True:
            await new.wait()
            new = anyio.Event()
            await anyio.to_thread.run_sync(watcher.show)
            await anyio.sleep(REFRESH)

    done: list[T] = []
    failed: CantripError | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(see)
            tasks.start_soon(show)
            try:
                done.append(await work())
            except CantripError as error:  # held back, so that it leaves as itself and not as a group
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return done[0]
    finally:
        subscription.close()
        with anyio.CancelScope(shield=True):  # what is left is there already: nothing here waits
            async for event in subscription:
                watcher.see(event)
        watcher.close()


REFRESH = 0.05
"""Seconds between two pictures, at least."""
