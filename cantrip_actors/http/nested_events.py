"""The events of an episode and of the children that its calls wait for, as they come, for one reader.

Each entity has a feed of its own, read by a task of its own. The result of a call comes after all events of the
children of that call, also when the events are read again from the loom. Children in the background are not read: their
calls have results at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from cantrip_actors import CantripError, Work
from cantrip_actors.http.calls import HttpCall
from cantrip_actors.stream.events import DelegatedEvent, EntityEvent, ToolCallEvent, ToolResultEvent

MOST_CHILDREN: Final = 16
"""The most children that are read at the same time: each of them reads the loom. Of further ones only the result is
shown."""
PATIENCE: Final = 5.0
"""Seconds that a result waits for the end of its children. One that was given up has no end."""


class NestedEvent(NamedTuple):
    """An event, and whether it is of the episode itself and not of a child."""

    event: EntityEvent
    is_own: bool


class NestedEvents:
    """Reads the events while `run` runs; `receive` returns the next one."""

    def __init__(self, call: HttpCall, work: Work) -> None:
        self._runtime = call.runtime
        self._events = work.events(deltas=True)
        self._send, self._receive = anyio.create_memory_object_stream[NestedEvent]()
        self._children = 0
        """The number of children that are read now."""

    @property
    def has_ended(self) -> bool:
        """Whether the end of the episode was among the events."""
        return self._events.has_ended

    async def receive(self) -> NestedEvent:
        """Return the next event. Raises EndOfStream after the last one."""
        return await self._receive.receive()

    def close(self) -> None:
        """Take no further events."""
        self._events.close()
        self._receive.close()

    async def run(self) -> None:
        """Read to the end of the episode."""
        with self._send:
            async with anyio.create_task_group() as tasks:
                with suppress(anyio.BrokenResourceError):  # the reader has closed
                    await self._read(self._events, tasks, is_own=True)
                tasks.cancel_scope.cancel()

    async def _read(self, events: AsyncIterator[EntityEvent], tasks: TaskGroup, *, is_own: bool) -> None:
        calls: set[str] = set()
        ends: dict[str, list[anyio.Event]] = {}
        async for event in events:
            if isinstance(event, ToolCallEvent):
                calls.add(event.tool_call_id)
            elif isinstance(event, ToolResultEvent):
                with anyio.move_on_after(PATIENCE):
                    for end in ends.pop(event.tool_call_id or "", ()):
                        await end.wait()
            await self._send.send(NestedEvent(event, is_own))
            if isinstance(event, DelegatedEvent) and self._is_shown(event, calls):
                end = anyio.Event()
                ends.setdefault(event.tool_call_id, []).append(end)
                self._children += 1
                tasks.start_soon(self._follow, event.child, tasks, end)

    def _is_shown(self, event: DelegatedEvent, calls: set[str]) -> bool:
        return event.tool_call_id in calls and not event.is_background and self._children < MOST_CHILDREN

    async def _follow(self, child_id: str, tasks: TaskGroup, end: anyio.Event) -> None:
        try:
            events = self._runtime.get_entity(child_id).events("0", deltas=True)
            # it was forgotten, so the call has its result; or the reader has closed
            with closing(events), suppress(CantripError, anyio.BrokenResourceError):
                await self._read(events, tasks, is_own=False)
        finally:
            self._children -= 1
            end.set()
