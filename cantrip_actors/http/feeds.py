"""Feeds: the event streams of entities, encoded once for all of their readers.

A feed follows one entity, or all of them. It reads durable events from the loom whenever the runtime reports new ones
(twice a second if another process runs the entity); upserts come from the runtime's canonical stream. Each event is
encoded once, into a ring of frames from which every reader reads at its own pace. A newer frame of an item empties the
older one, so a slow reader gets fewer steps and the same states.

A reader that falls out of the ring reads the loom again from its last durable event, so a slow reader loses nothing
durable. The memory of a feed is bounded by its ring, and the entity never waits for a reader (U-55, U-56).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from cantrip_actors import (
    DecidedEvent,
    EntityEndedEvent,
    EntityStartedEvent,
    MissedEvent,
    RequestedEvent,
    Runtime,
    ServerChangedEvent,
    StepCompleteEvent,
    Subscription,
)
from cantrip_actors.http.shapes import outcome_shape
from cantrip_actors.http.sse import COMMENT, END_OF_RECORD, QUIET, RETRY, Position, encode_event
from cantrip_actors.loom.export.thread import build_turn_fields
from cantrip_actors.machine.project import Story, StoryEvent
from cantrip_actors.observe import FellBehind, Output, TurnComplete, TurnError, Upsert, Upserts, as_message, standing
from cantrip_actors.records.records import Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.stream.turn import instant
from cantrip_actors.stream.wire import as_wire

LOOK: Final = 0.5
"""Seconds between two polls of the loom for records of another process."""
FRAMES: Final = 4096
BYTES: Final = 8 << 20
"""The maximum size of a ring."""
REMEMBERED: Final = 10_000
AT_A_TIME: Final = 16
PAUSE: Final = 0.005
"""Readers woken together, and seconds until the next group is woken."""
AT_ONCE: Final = 512
"""Records read without a pause."""

_DURABLE: Final = (
    *(StepCompleteEvent, RequestedEvent, DecidedEvent, EntityStartedEvent, EntityEndedEvent, MissedEvent),
)
"""The runtime's events after which the loom has new records."""

Select = Callable[[list["Frame"]], Awaitable[list["Frame"]]]
"""Returns the frames that a reader gets."""

Snapshot = Callable[[int], Awaitable[bytes]]
"""Returns the first event of a reader, for a feed that has read so many records of its entity."""

_log = get_logger("cantrip_actors.http")


class Frame(NamedTuple):
    """One encoded event; a durable event has a `position`."""

    entity_id: str
    kind: str
    data: bytes
    position: Position | None = None


class _Group:
    """Readers that are woken together."""

    def __init__(self) -> None:
        self.size = 0
        self._wake = anyio.Event()

    def wake(self) -> None:
        self._wake.set()
        self._wake = anyio.Event()

    async def wait(self) -> bool:
        """Wait to be woken; return False if that takes long."""
        wake = self._wake
        with anyio.move_on_after(QUIET):
            await wake.wait()
        return wake.is_set()


class Feed:
    """The events of one entity, or with `entity_id` None of all. `run` fills it, in a task of its own."""

    def __init__(
        self,
        runtime: Runtime,
        upserts: Upserts,
        entity_id: str | None,
        count_dropped: Callable[[], object] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._count_dropped = count_dropped
        self._source = upserts
        self._entity_id = entity_id
        self._frames: deque[Frame | None] = deque()
        self._first = 0
        """The number of the first frame in the ring."""
        self._bytes = 0
        self._newest: dict[tuple[str, str, str], int] = {}
        """For each open item the number of its newest frame."""
        self._stories: dict[str, Story] = {}
        self._reading = anyio.Lock()
        """Held while the log of an entity is read, which may take long: each record is encoded once."""
        self._has_begun = anyio.Event()
        self._positions: dict[str, int] = {}
        """By entity, the offset in the store up to which its log was read."""
        self._over: dict[str, int] = {}
        """The entities that ended last, and how many of their records were read; only `read_late` reads more."""
        self._opened_at = "" if entity_id is not None else instant(time.time())
        self._news = anyio.Event()
        self._groups: list[_Group] = []
        self._scope = anyio.CancelScope()
        self.readers = 0
        self.encoded = 0
        """The number of encoded events."""
        self.is_finished = False
        """True once no more events will come."""
        self._drains = False
        self._upserts = upserts.subscribe(entity_id, snapshot=False)
        self._events = self._subscribe()

    @property
    def end(self) -> int:
        """The number of the next frame."""
        return self._first + len(self._frames)

    @property
    def number(self) -> int:
        """The number of records of its one entity that the feed has read."""
        story = self._stories.get(self._entity_id or "")
        return 0 if story is None else story.number

    def _subscribe(self) -> Subscription:
        if self._entity_id is None:
            return self._runtime.events(lambda event: isinstance(event, (*_DURABLE, ServerChangedEvent)))
        return self._runtime.events(entity=self._entity_id)

    async def wait_until_begun(self) -> None:
        """Wait until the records that its entity has are counted, so that `number` is known."""
        await self._has_begun.wait()

    # Filling

    async def run(self) -> None:
        """Fill the ring until the feed is closed, or its entity has ended."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_upserts)
                    tasks.start_soon(self._wake_readers)
                    await self._follow_log()
                    tasks.cancel_scope.cancel()
        except Exception:  # the readers of this feed reconnect; other feeds continue
            _log.exception("a feed of events has crashed")
        finally:
            self.finish()
            self._upserts.close()
            self._events.close()

    def close(self) -> None:
        """End a feed without readers."""
        self._scope.cancel()

    async def _follow_log(self) -> None:
        own = self._entity_id
        entity = None if own is None else await self._runtime.read(partial(self._runtime.find, own))
        if own is not None:
            await self.read(own, is_first=True)
        self._has_begun.set()
        while not self.is_finished:
            is_here = entity is None or entity.loaded
            event = None
            with anyio.move_on_after(QUIET if is_here else LOOK):
                try:
                    event = await anext(self._events)
                except StopAsyncIteration:  # an episode of a long-lived entity was ended, or the runtime closes
                    await anyio.sleep(0.01)
                    self._events = self._subscribe()
            if isinstance(event, ServerChangedEvent):
                data = {"entity_id": event.entity_id, "server": event.server, "what": event.what}
                self._add(Frame(event.entity_id, "server", self._encode("server", data)))
            elif own is not None and (event is None or isinstance(event, _DURABLE)):
                await self.read(own)
            elif own is None and event is not None:
                await self.read(event.entity_id)

    async def read(self, entity_id: str, *, is_first: bool = False) -> None:
        """Read and encode the new records of an entity; the first time, only count them.

        For an entity new to it, the feed of all entities includes the records since the feed was opened.
        """
        async with self._reading:
            if entity_id in self._over:
                return
            found = await self._runtime.read(partial(self._fetch, entity_id, self._positions.get(entity_id, -1)))
            if found is not None:
                records, self._positions[entity_id] = found
                self._encode_records(entity_id, records, is_first=is_first)

    def _fetch(self, entity_id: str, position: int) -> tuple[Sequence[Record], int] | None:
        loom = self._runtime.shown_loom
        return loom.records_since(entity_id, position) if loom.has(entity_id) else None

    def _encode_records(self, entity_id: str, records: Sequence[Record], *, is_first: bool) -> None:
        story = self._stories.get(entity_id)
        since = self._opened_at if story is None else ""
        if story is None:
            story = self._stories[entity_id] = Story()
        for told in story.add_all(records):
            if not is_first and told.at >= since:
                self._add_durable(entity_id, told)
        if story.is_over and entity_id == self._entity_id:
            self.finish()
        elif story.is_over:
            del self._stories[entity_id], self._positions[entity_id]
            self._over[entity_id] = story.number
            if len(self._over) > REMEMBERED:
                del self._over[next(iter(self._over))]

    async def read_late(self, entity_id: str) -> None:
        """Read records of which the runtime reports no event, such as rewards, also of an entity that has ended."""
        if entity_id not in self._over:
            await self.read(entity_id)
            return
        async with self._reading:
            records = await self._runtime.read(partial(self._runtime.shown_loom.records, entity_id))
            story, known = Story(), self._over.get(entity_id, 0)
            for told in story.add_all(records):
                if told.number > known:
                    self._add_durable(entity_id, told)
            self._over[entity_id] = story.number

    def _add_durable(self, entity_id: str, told: StoryEvent) -> None:
        position = Position(told.number, told.part)
        id = str(position) if self._entity_id is not None else f"{entity_id}:{position}"
        data = self._encode(told.kind, story_data(entity_id, told), id)
        self._add(Frame(entity_id, told.kind, data, position))

    async def _follow_upserts(self) -> None:
        while True:
            try:
                async for output in self._upserts:
                    self._add_output(output)
            except FellBehind:  # the loop was busy for long: the current states replace the lost upserts
                self._upserts = self._source.subscribe(self._entity_id)
            else:
                return

    def _add_output(self, output: Output) -> None:
        if isinstance(output, Upsert):
            frame = Frame(output.session_id, "upsert", self._encode("upsert", as_message(output)))
            older = self._newest.pop(output.key, -1)
            if older >= self._first:
                self._empty(older)
            if not output.terminal:
                self._newest[output.key] = self.end
            self._add(frame)
        elif isinstance(output, TurnComplete) and output.usage is not None:
            data = {"entity_id": output.session_id, "turn_id": output.turn_id, "usage": as_wire(output.usage)}
            self._add(Frame(output.session_id, "usage", self._encode("usage", data)))

    def add_actors(self, data: dict[str, Any]) -> None:
        """Add the changes of the supervision tree."""
        self._add(Frame("", "actor", self._encode("actor", data)))

    def _encode(self, kind: str, data: dict[str, Any], id: str | None = None) -> bytes:
        self.encoded += 1
        return encode_event(kind, data, id)

    def _add(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._bytes += len(frame.data)
        while len(self._frames) > FRAMES or (self._bytes > BYTES and len(self._frames) > 1):
            old = self._frames.popleft()
            self._first += 1
            self._bytes -= 0 if old is None else len(old.data)
        self._news.set()

    def _empty(self, number: int) -> None:
        frame = self._frames[number - self._first]
        if frame is not None:
            self._bytes -= len(frame.data)
            self._frames[number - self._first] = None

    def finish(self) -> None:
        """Mark the feed as ended."""
        self.is_finished = True
        self._has_begun.set()
        self.signal()

    def drain(self) -> None:
        """End the readers with `drain`, after their unread events, because the service shuts down."""
        self._drains = True
        self.signal()

    def signal(self) -> None:
        """Wake all readers at once."""
        for group in self._groups:
            group.wake()

    async def _wake_readers(self) -> None:
        """Wake the readers when there are new events, in groups, so that entities can run in between."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            for number, group in enumerate(list(self._groups)):
                if number:
                    await anyio.sleep(PAUSE)
                group.wake()

    # Reading

    async def stream(self, after: Position | None, select: Select, snapshot: Snapshot) -> AsyncGenerator[bytes]:
        """Yield the events for one reader: those after a position, or a snapshot; then the new ones."""
        group = self._join()
        try:
            async with aclosing(self._stream(group, after, select, snapshot)) as parts:
                async for part in parts:
                    yield part
        finally:
            self._leave(group)

    def _join(self) -> _Group:
        group = next((one for one in self._groups if one.size < AT_A_TIME), None)
        if group is None:
            group = _Group()
            self._groups.append(group)
        group.size += 1
        return group

    def _leave(self, group: _Group) -> None:
        group.size -= 1
        if not group.size:
            self._groups.remove(group)

    async def _stream(
        self, group: _Group, after: Position | None, select: Select, snapshot: Snapshot
    ) -> AsyncGenerator[bytes]:
        yield RETRY
        cursor, number, last = self.end, self.number, after
        first = await snapshot(number) if after is None or self._entity_id is None else self._render_standing()
        while True:
            if last is not None and self._entity_id is not None:
                records = await self._runtime.read(partial(self._runtime.shown_loom.records, self._entity_id))
                for part in _history(self._entity_id, records[:number], last):
                    if part:
                        yield part
                    else:
                        await checkpoint()
            if first:
                yield first
            last = Position(number, END_OF_RECORD)
            while cursor >= self._first:
                new = islice(self._frames, cursor - self._first, None)
                frames, cursor = [frame for frame in new if frame is not None], self.end
                frames = await select(frames) if frames else frames
                last = next((frame.position for frame in reversed(frames) if frame.position is not None), last)
                if frames:
                    yield b"".join(frame.data for frame in frames)
                elif cursor < self.end:
                    continue  # more came while the reader's own were selected
                elif self.is_finished:
                    return
                elif self._drains:
                    yield encode_event("drain", {"retry": 2000})
                    return
                elif not await group.wait():
                    yield COMMENT
            self._count_dropped()
            yield encode_event("fell-behind", {"dropped": self._first - cursor})
            cursor, number = self.end, self.number
            first = await snapshot(number)

    def _render_standing(self) -> bytes:
        """Return the newest upserts of the running turns, for a reader that reconnects."""
        items = select_standing(self._source.snapshot(self._entity_id))
        return b"".join(encode_event("upsert", as_message(one)) for one in items)


def _history(entity_id: str, records: Sequence[Record], after: Position) -> Iterator[bytes]:
    """Yield the durable events of an entity's records after a position; b"" is a pause."""
    story = Story()
    for start in range(0, len(records), AT_ONCE):
        for told in story.add_all(records[start : start + AT_ONCE]):
            yield from replay(entity_id, told, after)
        yield b""


def replay(entity_id: str, told: StoryEvent, after: Position) -> Iterator[bytes]:
    """Yield a durable event, encoded, if it comes after a position."""
    position = Position(told.number, told.part)
    if position > after:
        yield encode_event(told.kind, story_data(entity_id, told), str(position))


def select_standing(outputs: Iterable[Output]) -> list[Upsert]:
    """Return the newest upserts of the running turns."""
    known = list(outputs)
    ended = {(one.session_id, one.turn_id) for one in known if isinstance(one, (TurnComplete, TurnError))}
    return [one for one in standing(known) if (one.session_id, one.turn_id) not in ended]


_TOLD: Final = {
    "intent": ("intent", "at", "key"),
    "steer": ("text", "at"),
    "fold": ("first", "last", "marker", "at"),
    "reward": ("turn_id", "reward", "at"),
    "resume": ("at",),
}
"""The fields of records that are events as they are."""


def story_data(entity_id: str, told: StoryEvent) -> dict[str, Any]:
    """Return the content of a durable event."""
    by = {"by": told.by} if told.by else {}
    value: Any = told.value
    match told.kind:
        case "entity":
            header, intent = value
            return {
                "id": entity_id,
                "parent": header.parent_entity,
                "parent_turn": header.parent_turn,
                "cantrip": header.cantrip_name,
                "name": header.name,
                "crystal": header.crystal,
                "lasting": header.lasting,
                "forked": header.forked,
                "intent": intent.intent,
                "began": header.at,
                **by,
            }
        case "intent" | "steer" | "fold" | "reward" | "resume":
            return {"id": entity_id, **{name: getattr(value, name) for name in _TOLD[told.kind]}, **by}
        case "turn":
            parts = {"thinking": value.thinking, "code": value.code}
            return {
                **build_turn_fields(value),
                "content": value.content,
                **{name: one for name, one in parts.items() if one},
            }
        case "request":
            return {
                "id": value.id,
                "kind": "approval" if value.question is None else "question",
                "entity": entity_id,
                "turn": value.turn_id,
                "call": value.tool_call_id,
                "gate": value.gate,
                "args": value.args or {},
                "text": value.why if value.question is None else value.question,
                "schema": value.answer_schema,
                "asked_at": value.at,
                "expires_at": value.expires_at,
            }
        case "decision":
            return {
                "id": value.request_id,
                "entity": entity_id,
                "decision": value.decision,
                "by": value.by,
                "note": value.note,
                "at": value.at,
            }
        case _:
            return {"id": entity_id, "state": value.reason, **outcome_shape(entity_id, value), "at": told.at, **by}
