"""Feeds: the event streams of entities, encoded once for all of their readers.

A feed follows one entity, or all of them. It reads durable events from the loom whenever the runtime reports new ones,
and twice a second for those of other processes. The id of an event is its position in the log of the one entity, or in
the loom. Upserts are folded from the runtime's events. Each event is encoded once, into a ring of frames from which
every reader reads at its own pace. A newer frame of an item empties the older one, so a slow reader gets fewer steps
and the same states.

A reader that falls out of the ring reads the loom again from its last durable event, so a slow reader loses nothing
durable. The memory of a feed is bounded by its ring, and the entity never waits for a reader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from cantrip_actors import (
    AdoptedEvent,
    DecidedEvent,
    EntityEndedEvent,
    EntityStartedEvent,
    FoldedEvent,
    ForgottenEvent,
    MissedEvent,
    RequestedEvent,
    ResumedEvent,
    Runtime,
    ServerChangedEvent,
    SteeredEvent,
    StepCompleteEvent,
    Subscription,
    UndoneEvent,
)
from cantrip_actors.http.sse import COMMENT, QUIET, RETRY, encode_event
from cantrip_actors.loom.export.story import DurableEvent, build_data, find_kind, read_durable
from cantrip_actors.observe import FellBehind, Output, TurnComplete, TurnError, Upsert, Upserts, as_message, standing
from cantrip_actors.records.records import Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.loom_feed import LoomFeed
from cantrip_actors.runtime.events.loom_log import LoomEvent, LoomLog
from cantrip_actors.runtime.events.ring import Missed, Ring
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog
from cantrip_actors.stream.wire import as_wire

LOOK: Final = 0.5
"""Seconds between two polls of the loom for records of another process."""
FRAMES: Final = 4096
BYTES: Final = 8 << 20
"""The maximum size of a ring."""
AT_A_TIME: Final = 16
PAUSE: Final = 0.001
"""Readers woken together, and seconds until the next group is woken."""
AT_ONCE: Final = 512
"""Records read without a pause."""

_ANNOUNCING: Final = (
    *(StepCompleteEvent, RequestedEvent, DecidedEvent, EntityStartedEvent, EntityEndedEvent, MissedEvent),
    *(AdoptedEvent, SteeredEvent, FoldedEvent, ForgottenEvent, UndoneEvent, ResumedEvent, ServerChangedEvent),
)
"""The runtime's events after which the loom has new records, and the one that is in no log."""

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
    position: EventId | None = None


class _Frames(Ring[Frame]):
    """The ring of a feed. It wakes readers in groups with a pause between them, so that entities can run."""

    def __init__(self) -> None:
        super().__init__(FRAMES, most_size=BYTES, measure=lambda frame: len(frame.data), group=AT_A_TIME)
        self._news = anyio.Event()

    def _announce(self) -> None:
        self._news.set()

    async def wake_readers(self) -> None:
        """Wake the readers whenever there are new frames."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            for _ in range(len(self._waiting)):
                if self._waiting:
                    self._waiting.popleft().set()
                    await anyio.sleep(PAUSE)


class Feed:
    """The events of one entity, or with `entity_id` None of all. `run` fills it, in a task of its own."""

    def __init__(
        self, runtime: Runtime, upserts: Upserts, entity_id: str | None, count_dropped: Callable[[], object]
    ) -> None:
        self._runtime = runtime
        self._count_dropped = count_dropped
        self._source = upserts
        self._entity_id = entity_id
        self.frames = _Frames()
        self._newest: dict[tuple[str, str, str], int] = {}
        """For each open item the number of its newest frame."""
        self._log, self._offset = EventLog(), -1
        """The log of the one entity as far as it was read, and the offset in the store up to there."""
        self._loom_log: LoomLog | None = None
        """The log of all entities, once a reader has begun."""
        self._loom_number = 0
        """The number of the last record whose events are in the ring."""
        self._reading = anyio.Lock()
        """Held while a log is read, which may take long: each record is encoded once."""
        self._scope = anyio.CancelScope()
        self.readers = 0
        self.encoded = 0
        """The number of encoded events."""
        self._farewell = b""
        """The last event of each reader."""
        self._upserts = upserts.subscribe(entity_id, snapshot=False)
        self._events = self._subscribe()

    def _subscribe(self) -> Subscription | LoomFeed:
        return self._runtime.events(lambda event: isinstance(event, _ANNOUNCING), entity=self._entity_id)

    @property
    def number(self) -> int:
        """The number of records that the feed has read of its one entity; of all of them, the last one's number."""
        return self._log.number if self._entity_id is not None else self._loom_number

    @property
    def is_finished(self) -> bool:
        """Whether no more events will come."""
        return self.frames.is_closed

    async def begin(self, after: EventId | None = None) -> None:
        """Read the records that its entity has, so that `number` is known. Each reader calls it. Raises LoomError.

        A feed of all entities begins at the end of the loom. A reader may have got the event `after` from another
        process before this feed has read it.
        """
        async with self._reading:
            if self._entity_id is None and self._loom_log is None:
                loom = self._runtime.shown_loom
                self._loom_log = await self._runtime.read(
                    lambda: LoomLog(loom, EventId(loom.last_number(), END_OF_RECORD))
                )
                self._loom_number = self._loom_log.begin
        if (self._entity_id is not None and not self._log.number) or (after is not None and after.number > self.number):
            await self.read()

    # Filling

    async def run(self) -> None:
        """Fill the ring until the feed or the runtime is closed, or its entity has ended."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow_upserts)
                    tasks.start_soon(self.frames.wake_readers)
                    await self._follow_log()
                    tasks.cancel_scope.cancel()
        except Exception:  # the readers of this feed reconnect; other feeds continue
            _log.exception("a feed of events has crashed")
        finally:
            self.frames.close()
            self._upserts.close()
            self._events.close()

    def close(self) -> None:
        """End a feed without readers."""
        self._scope.cancel()

    async def _follow_log(self) -> None:
        own = self._entity_id
        entity = None if own is None else await self._runtime.read(partial(self._runtime.find, own))
        read_at = anyio.current_time()
        while not self.is_finished:
            event = None
            with anyio.move_on_after(LOOK):
                try:
                    event = await anext(self._events)
                except StopAsyncIteration:  # the entity has ended, or the runtime closes
                    self._events = self._subscribe()
                    if self._events.is_over:
                        return
                    read_at -= QUIET
            if isinstance(event, ServerChangedEvent):
                data = {"entity_id": event.entity_id, "server": event.server, "what": event.what}
                self.frames.publish(Frame(event.entity_id, "server", self._encode("server", data)))
                continue
            is_loaded = entity is not None and entity.loaded  # another process may run it soon
            if event is not None or not is_loaded or anyio.current_time() >= read_at + QUIET:
                await self.read()
                read_at = anyio.current_time()

    async def read(self) -> None:
        """Read and encode the new records."""
        async with self._reading:
            if self._entity_id is not None:
                await self._read_entity(self._entity_id)
            elif self._loom_log is not None:
                await self._read_loom(self._loom_log)

    async def _read_loom(self, log: LoomLog) -> None:
        has_more = True
        while has_more:
            events, self._loom_number, has_more = await self._runtime.read(partial(log.read, self._loom_number))
            for durable in _select_durable(events):
                self._publish_durable(durable)

    async def _read_entity(self, entity_id: str) -> None:
        fetched = await self._runtime.read(partial(self._fetch, entity_id, self._offset))
        if fetched is None:
            return
        records, self._offset = fetched
        for durable in read_durable(self._log, records):
            self._publish_durable(durable)
        if self._log.is_over:
            self.frames.close()

    def _fetch(self, entity_id: str, position: int) -> tuple[Sequence[Record], int] | None:
        loom = self._runtime.shown_loom
        return loom.records_since(entity_id, position) if loom.has(entity_id) else None

    def _publish_durable(self, durable: DurableEvent) -> None:
        self.encoded += 1
        self.frames.publish(_encode_durable(durable))

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
            self.frames.remove(self._newest.pop(output.key, -1))
            number = self.frames.publish(frame)
            if not output.terminal:
                self._newest[output.key] = number
        elif isinstance(output, TurnComplete) and output.usage is not None:
            data = {"entity_id": output.session_id, "turn_id": output.turn_id, "usage": as_wire(output.usage)}
            self.frames.publish(Frame(output.session_id, "usage", self._encode("usage", data)))

    def add_actors(self, data: dict[str, Any]) -> None:
        """Add the changes of the supervision tree."""
        self.frames.publish(Frame("", "actor", self._encode("actor", data)))

    def _encode(self, kind: str, data: dict[str, Any], id: str | None = None) -> bytes:
        self.encoded += 1
        return encode_event(kind, data, id)

    def drain(self) -> None:
        """End the readers with `drain`, after their unread events, because the service shuts down."""
        self._farewell = encode_event("drain", {"retry": 2000})
        self.frames.close()

    # Reading

    async def stream(self, after: EventId | None, select: Select, snapshot: Snapshot) -> AsyncGenerator[bytes]:
        """Yield the events for one reader: those after a position, or a snapshot; then the new ones.

        In a feed of all entities, a snapshot also follows the events after a position: it has the state that is in no
        log.
        """
        yield RETRY
        cursor, number, last = self.frames.end, self.number, after
        continues = after is not None and self._entity_id is not None
        first = self._render_standing() if continues else await snapshot(number)
        while True:
            if last is not None:
                async for part in self._replay(last, number, select):
                    yield part
            yield first
            last = EventId(number, END_OF_RECORD)
            try:
                while cursor < self.frames.end or not self.frames.is_closed:
                    frames, cursor = self.frames.read(cursor), self.frames.end
                    frames = await select(frames) if frames else frames
                    last = next((frame.position for frame in reversed(frames) if frame.position is not None), last)
                    if frames:
                        yield b"".join(frame.data for frame in frames)
                    else:
                        yield await self._wait(cursor)
            except Missed as missed:
                self._count_dropped()
                yield encode_event("fell-behind", {"dropped": missed.count})
                cursor, number = self.frames.end, self.number
                first = await snapshot(number)
            else:
                yield self._farewell
                return

    async def _replay(self, after: EventId, number: int, select: Select) -> AsyncGenerator[bytes]:
        """Yield the durable events after an id, up to the record with a number."""
        loom = self._runtime.shown_loom
        if self._entity_id is not None:
            records = await self._runtime.read(partial(loom.records, self._entity_id))
            for part in render_history(records[:number], after):
                yield part
                await checkpoint()
            return
        log, has_more = LoomLog(loom, after), True
        position = log.begin
        while has_more and position < number:
            events, position, has_more = await self._runtime.read(partial(log.read, position))
            frames = [_encode_durable(durable) for durable in _select_durable(events) if durable.id.number <= number]
            frames = await select(frames)
            yield b"".join(frame.data for frame in frames)
            await checkpoint()

    async def _wait(self, cursor: int) -> bytes:
        """Wait for a frame, or for the end; return a comment that keeps the connection alive if that takes long."""
        with anyio.move_on_after(QUIET) as quiet:
            await self.frames.wait(cursor)
        return COMMENT if quiet.cancelled_caught else b""

    def _render_standing(self) -> bytes:
        """Return the newest upserts of the running turns, for a reader that reconnects."""
        items = select_standing(self._source.snapshot(self._entity_id))
        return b"".join(encode_event("upsert", as_message(item)) for item in items)


def _select_durable(events: Iterable[LoomEvent]) -> Iterator[DurableEvent]:
    """Yield those of a loom's events that a stream shows with an id."""
    for position, event, turn, record in events:
        kind = find_kind(event)
        if kind is not None:
            yield DurableEvent(position, kind, event, turn, record, event.id)


def _encode_durable(durable: DurableEvent) -> Frame:
    data = encode_event(durable.kind, build_data(durable), durable.full_id)
    return Frame(durable.event.entity_id, durable.kind, data, durable.id)


def render_history(records: Sequence[Record], after: EventId) -> Iterator[bytes]:
    """Yield the durable events of an entity's records after an id; b"" is a pause."""
    log = EventLog()
    for start in range(0, len(records), AT_ONCE):
        for durable in read_durable(log, records[start : start + AT_ONCE]):
            if durable.id > after:
                yield encode_event(durable.kind, build_data(durable), str(durable.id))
        yield b""


def select_standing(outputs: Iterable[Output]) -> list[Upsert]:
    """Return the newest upserts of the running turns."""
    known = list(outputs)
    ended = {(one.session_id, one.turn_id) for one in known if isinstance(one, (TurnComplete, TurnError))}
    return [one for one in standing(known) if (one.session_id, one.turn_id) not in ended]
