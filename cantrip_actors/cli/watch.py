"""Show a run while it runs: a live tree on a terminal, a line for each event elsewhere, or JSON for programs.

A watcher observes and never controls. It writes from a thread, so that a stopped terminal or a pipe without a reader
does not hold up the run; if the terminal or the pipe is gone, only the display ends.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from rich.console import Group
from rich.live import Live

from cantrip_actors import (
    CantripError,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    EpisodeEndedEvent,
    MissedEvent,
    Runtime,
    StepCompleteEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from cantrip_actors.cli.output import as_json, name_state, one_line, short, tokens, turns
from cantrip_actors.cli.progress import Progress
from cantrip_actors.cli.terminal import console
from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.stream.events import build_event_fields

T = TypeVar("T")


class Watcher(ABC):
    """Shows a run. `see` notes an event; `show`, called in a thread, reads and writes the noted events.

    Only the thread that shows reads an event: a long text does not hold up the event loop, and no event changes what is
    being drawn.
    """

    def __init__(self) -> None:
        self._unread: deque[EntityEvent] = deque()

    def see(self, event: EntityEvent) -> None:
        """Note an event."""
        self._unread.append(event)

    def show(self) -> None:
        """Show the events since the last time. May wait for a terminal or a pipe. One thread at a time may call it."""
        while self._unread:
            self._read(self._unread.popleft())
        self._draw()

    @abstractmethod
    def _read(self, event: EntityEvent) -> None:
        """Add an event to what is drawn."""

    @abstractmethod
    def _draw(self) -> None:
        """Write what has been read."""

    def pause(self) -> None:  # noqa: B027  # most watchers do not use the terminal exclusively
        """Give the terminal back until `resume`; `show` is not called meanwhile."""

    def resume(self) -> None:  # noqa: B027
        """Take the terminal again."""

    def close(self) -> None:
        """Show the last events and give the terminal back."""
        self.show()


class _LineWatcher(Watcher):
    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: list[str] = []
        self._closed = False

    def _draw(self) -> None:
        lines, self._lines = self._lines, []
        if lines and not self._closed:
            try:
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            except OSError:  # its reader is gone, or its disk is full; the run continues
                self._closed = True


class PlainLines(_LineWatcher):
    """A line for each event, indented by depth, without colours."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._progress = Progress()

    def _read(self, event: EntityEvent) -> None:
        self._progress.see(event)
        entity = self._progress.entities.get(event.entity_id)
        depth = 0 if entity is None else entity.depth
        self._lines += [f"{'  ' * depth}{short(event.entity_id)} {word}" for word in self._words(event)]

    def _words(self, event: EntityEvent) -> Iterator[str]:
        match event:
            case EntityStartedEvent():
                yield f"begins: {one_line(event.intent, 90)}"
            case TextEvent():
                yield f"{'runs' if event.is_code else 'says'}: {one_line(event.text, 90)}"
            case ToolCallEvent() if event.gate != "done":
                yield f"calls {one_line(event.gate, 64)}"
            case ToolResultEvent() if event.is_error:
                yield f"{one_line(event.gate, 64)} failed: {one_line(str(event.result), 200)}"
            case StepCompleteEvent():
                yield f"turn {event.sequence} is {short(event.turn_id)}"
            case EntityEndedEvent():
                entity = self._progress.entities.get(event.entity_id)
                used = "" if entity is None else f" after {turns(entity.turns)}, {tokens(entity.tokens)}"
                why = f": {one_line(event.detail, 200)}" if event.detail else ""
                yield f"ended, {name_state(event.reason)}{used}{why}"
            case MissedEvent():
                yield f"({event.count} events not shown)"
            case _:
                pass


class EventLines(_LineWatcher):
    """Each event as a JSON object on a line, `type` first."""

    def _read(self, event: EntityEvent) -> None:
        self._lines.append(as_json(build_event_fields(event)))


class LiveTree(Watcher):
    """The tree of entities, redrawn in place; its last state stays on the screen."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._progress = Progress()
        self._console = console(stream, force_terminal=True)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def _read(self, event: EntityEvent) -> None:
        self._progress.see(event)

    def _draw(self) -> None:
        width = self._console.width
        lines = self._progress.lines(max(4, self._console.height - 2), width)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.end = "\n"
        self._live.update(Group(*lines), refresh=True)

    def pause(self) -> None:
        """Leave the tree on the screen, and restore the cursor."""
        self.show()
        self._live.stop()

    def resume(self) -> None:
        """Begin another tree below."""
        self._live.start()

    def close(self) -> None:
        """Draw the tree for the last time and restore the cursor."""
        self.show()
        self._live.stop()


def watch_on(stream: TextIO) -> Watcher:
    """Return a live tree on a terminal that can redraw, lines elsewhere."""
    can_redraw = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return LiveTree(stream) if can_redraw else PlainLines(stream)


@asynccontextmanager
async def background(*functions: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[TaskGroup]:
    """Run functions as tasks until the block ends. A CantripError of the block leaves as itself, not in a group."""
    failed: CantripError | None = None
    async with anyio.create_task_group() as tasks:
        for function in functions:
            tasks.start_soon(function)
        try:
            yield tasks
        except CantripError as error:
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def run_watched(
    runtime: Runtime,
    watcher: Watcher,
    terminal: anyio.Lock,
    work: Callable[[], Awaitable[T]],
    feeds: Sequence[EventFeed] = (),
) -> T:
    """Return the result of `work`, while `watcher` shows the runtime's events. Raises any error of `work`.

    `work` may add the feed of one entity to `feeds`: its steps are shown while another process runs it. The watcher
    writes only while it holds `terminal`.
    """
    subscription = runtime.events()
    new = anyio.Event()

    async def see() -> None:
        async for event in subscription:
            watcher.see(event)
            new.set()

    async def see_next(feed: EventFeed) -> bool:
        """Note the next event of an entity; return whether more of the episode may follow."""
        event = await feed.poll()
        if event is not None and not runtime.get_entity(event.entity_id).loaded:
            watcher.see(event)
            new.set()
        return event is not None and not isinstance(event, EpisodeEndedEvent | EntityEndedEvent)

    async def see_elsewhere() -> None:
        with suppress(StopAsyncIteration):
            while True:
                await (see_next(feeds[0]) if feeds else anyio.sleep(REFRESH))

    async def see_the_end() -> None:
        with suppress(StopAsyncIteration):
            while feeds and not runtime.get_entity(feeds[0].entity_id).loaded and await see_next(feeds[0]):
                pass

    async def show() -> None:
        nonlocal new
        while True:
            await new.wait()
            new = anyio.Event()
            async with terminal:
                await anyio.to_thread.run_sync(watcher.show)
            await anyio.sleep(REFRESH)

    try:
        async with background(see, show):
            async with background(see_elsewhere):
                result = await work()
            await see_the_end()
            return result
    finally:
        subscription.close()
        with anyio.CancelScope(shield=True):  # the last events have already arrived, so nothing here waits
            async for event in subscription:
                watcher.see(event)
        watcher.close()


REFRESH = 0.05
"""Seconds between two drawings, at least."""
