"""Events of running entities (SPEC 7.2), and the bus that delivers them to subscribers.

Events are derived from the records of a step after these were appended, so a subscriber never sees an event that the
loom does not hold. Events inform and never control: publishing is a plain function that does not wait. A subscriber
that falls behind loses its oldest events and gets their number (`MissedEvent`); one that raises does so in its task.
Without subscribers no events are built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from cantrip_actors.machine.project.observed import Answered, Asks, Begun, Done, Finished, read_observed
from cantrip_actors.records.records import Header, IntentGiven, Observation, Record
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.instrument import Instrument
from cantrip_actors.runtime.events.ring import Missed, Ring
from cantrip_actors.stream.wire import Envelope
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import add_labels
from cantrip_actors.terms.messages import Response, ToolCall, Usage

_log = get_logger("cantrip_actors.runtime")

CAPACITY = 10_000
"""Events that a subscriber may be behind before it loses the oldest: of all entities, or of the one it asks for."""


@dataclass(frozen=True, slots=True)
class EntityEvent:
    """Something about an entity: which one, and when (seconds since the epoch)."""

    entity_id: str
    at: float


@dataclass(frozen=True, slots=True)
class EntityStartedEvent(EntityEvent):
    """An entity was cast, or given a further intent. Children name their parent and the turn that spawned them.

    `intent` contains a label for each image that came with it; `images` are those labels, never bytes.
    """

    intent: str
    parent_entity: str | None = None
    parent_turn: str | None = None
    depth: int = 0
    name: str | None = None
    crystal: str | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepStartEvent(EntityEvent):
    """The crystal is queried for the turn with this id."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class ThinkingEvent(EntityEvent):
    """The crystal's reasoning."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TextEvent(EntityEvent):
    """Text of the utterance."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent(EntityEvent):
    """The utterance calls a gate."""

    turn_id: str
    tool_call_id: str
    gate: str
    args: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ToolResultEvent(EntityEvent):
    """A gate answered. Observers get the real result, ephemeral or not; `images` are labels, never bytes."""

    turn_id: str
    tool_call_id: str | None
    gate: str
    result: Any
    is_error: bool
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestedEvent(EntityEvent):
    """The entity waits for a person: `runtime.decide(request_id, …)`; `text` says why, or is the question."""

    turn_id: str
    request_id: str
    gate: str
    args: Mapping[str, Any] | None
    text: str
    expires_at: str | None


@dataclass(frozen=True, slots=True)
class DecidedEvent(EntityEvent):
    """A request was decided: "allow", "deny", "answer" or "expired"."""

    turn_id: str
    request_id: str
    decision: str
    by: str
    note: str


@dataclass(frozen=True, slots=True)
class ServerChangedEvent(EntityEvent):
    """An MCP server of the entity has changed its list of "tools", "prompts" or "resources".

    It is in no log: the entity keeps the tools that it was made with (CALL-3), and a new one gets the changed ones.
    """

    server: str
    what: str


@dataclass(frozen=True, slots=True)
class UsageEvent(EntityEvent):
    """Tokens of one crystal invocation."""

    turn_id: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class StepCompleteEvent(EntityEvent):
    """A turn is in the loom."""

    turn_id: str
    sequence: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class FinalResponseEvent(EntityEvent):
    """The entity's answer."""

    result: Any


@dataclass(frozen=True, slots=True)
class EntityEndedEvent(EntityEvent):
    """The entity is over; `reason` says why."""

    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class MissedEvent(EntityEvent):
    """The subscriber was too slow and lost `count` events, wanted or not. The loom has their content."""

    count: int


def make_events(records: Iterable[Record], at: float) -> Iterator[EntityEvent]:
    """Yield the events of a step's records, in order."""
    for entity, turn, seen in read_observed(records):
        match seen:
            case Response():
                yield from _make_response_events(entity, turn, seen, at)
            case Observation():
                call, images = seen.tool_call_id, _list_labels(seen.images)
                yield ToolResultEvent(entity, at, turn, call, seen.gate, seen.result, seen.is_error, images)
            case Done():
                yield StepCompleteEvent(entity, at, turn, *seen)
            case Finished():
                yield EntityEndedEvent(entity, at, *seen)
            case Begun():
                yield _make_start_event(*seen, at)
            case Asks():
                yield RequestedEvent(entity, at, turn, *seen)
            case Answered():
                yield DecidedEvent(entity, at, turn, *seen)
            case ToolCall():
                yield ToolCallEvent(entity, at, turn, seen.id, seen.gate, seen.args)


def _make_response_events(entity: str, turn: str, said: Response, at: float) -> Iterator[EntityEvent]:
    if said.thinking:
        yield ThinkingEvent(entity, at, turn, said.thinking)
    if said.content:
        yield TextEvent(entity, at, turn, said.content)
    for call in said.tool_calls:
        yield ToolCallEvent(entity, at, turn, call.id, call.gate, call.args)
    yield UsageEvent(entity, at, turn, said.usage)


def _list_labels(images: Iterable[File]) -> tuple[str, ...]:
    return tuple([image.label for image in images])


def _make_start_event(record: IntentGiven, header: Header | None, at: float) -> EntityStartedEvent:
    intent = add_labels(record.intent, record.images) if record.images else record.intent
    if header is None:
        return EntityStartedEvent(record.entity_id, at, intent, images=_list_labels(record.images))
    return EntityStartedEvent(
        record.entity_id,
        at,
        intent,
        header.parent_entity,
        header.parent_turn,
        header.depth,
        header.name,
        header.crystal,
        _list_labels(record.images),
    )


class Subscription(AsyncIterator[EntityEvent]):
    """One subscriber's events, in order. Iterate it; to unsubscribe, call `close()` or drop the last reference to it.

    It ends when the runtime closes, or with the entity that it was made for. If the `wanted` function raises, the
    iteration raises that error after the earlier events.
    """

    def __init__(
        self,
        ring: Ring[EntityEvent],
        wanted: Callable[[EntityEvent], bool] | None = None,
        until: str | None = None,
        first: Iterable[EntityEvent] = (),
        has_ended: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._ring = ring
        self._first = deque(first)
        self._next = ring.end
        self._end: int | None = None
        """The position at which it ends, once it is closed."""
        self._wanted = wanted
        self._until = until
        self._has_ended = has_ended
        """Asked before the first event: whether there are no further ones, because the entity is over."""

    def close(self) -> None:
        """Take no further events; events that arrived before can still be read."""
        self._end = self._ring.end if self._end is None else self._end
        self._ring.wake()

    @property
    def is_over(self) -> bool:
        """Whether no further event comes: the remaining ones have arrived, and reading them does not wait."""
        return self._end is not None or self._ring.is_closed

    def _skip(self) -> None:
        """Skip all events that have arrived."""
        self._first.clear()
        self._next = self._ring.end if self._end is None else self._end

    async def __anext__(self) -> EntityEvent:
        if self._has_ended is not None and not self.is_over:
            if await self._has_ended():
                self.close()
            self._has_ended = None  # after the answer, since the reader may be cancelled before
        while True:
            if self._first:
                return self._first.popleft()
            if self._next < (self._ring.end if self._end is None else self._end):
                event = self._take()
                if self._until == event.entity_id and isinstance(event, EntityEndedEvent):
                    self._end = self._next
                if self._wanted is None or isinstance(event, MissedEvent):
                    return event
                end, self._end = self._end, self._next  # if `wanted` raises, the subscription ends here
                is_wanted = self._wanted(event)
                self._end = end
                if is_wanted:
                    return event
            elif self.is_over:
                raise StopAsyncIteration
            else:
                await self._ring.wait(self._next)  # several tasks may read: each event goes to one of them

    def _take(self) -> EntityEvent:
        """Return the next event, or the number of those that are no longer kept."""
        try:
            event = self._ring.get(self._next)
        except Missed as missed:
            self._next, oldest = missed.begin, self._ring.get(missed.begin)
            assert oldest is not None, "no event is ever replaced"
            return MissedEvent(oldest.entity_id, oldest.at, missed.count)
        self._next += 1
        assert event is not None, "no event is ever replaced"
        return event


class Watchers:
    """The watchers of the canonical stream: functions that are called with envelopes.

    They are called in the entity's own task, so they must not wait; `observe.Upserts.publish` does not. A watcher that
    raises is not called again, and the entity continues.
    """

    def __init__(self, instrument: Instrument | None = None) -> None:
        self.instrument = instrument
        """The instrument that traces the episodes, if there is one."""
        self._publish: tuple[partial[None], ...] = ()
        self.has_any = False
        """Whether any watcher was added: without watchers no envelopes are made."""

    @property
    def count(self) -> int:
        """The number of watchers."""
        return len(self._publish)

    def add(self, publish: Callable[[Sequence[Envelope]], None]) -> Callable[[], None]:
        """Add a watcher; return a function that removes it."""
        watcher = partial(publish)  # its own identity: one function may watch several times
        self._publish, self.has_any = (*self._publish, watcher), True
        return lambda: self._remove(watcher)

    def _remove(self, watcher: partial[None]) -> None:
        self._publish = tuple(one for one in self._publish if one is not watcher)
        self.has_any = bool(self._publish)

    def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Call all watchers with envelopes."""
        for publish in self._publish:
            try:
                publish(envelopes)
            except Exception:  # observation, never control
                self._remove(publish)
                _log.exception("a watcher has raised, and is not called any more", watcher=repr(publish.func))


class Bus:
    """Delivers events to subscribers. Publishing never waits and never fails."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._rings: WeakValueDictionary[str | None, Ring[EntityEvent]] = WeakValueDictionary()
        """The events of single entities, by entity id, and under None those of all. A ring lives while it is read."""
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._is_closed = False

    def __bool__(self) -> bool:
        """Whether the bus has subscribers: without subscribers no events are built."""
        return bool(self._rings)

    @property
    def subscribers(self) -> int:
        """The number of subscriptions, from any thread."""
        return len(self._subscriptions)

    def publish(self, events: Iterable[EntityEvent]) -> None:
        """Deliver `events` to the subscribers."""
        find, everything = self._rings.get, self._rings.get(None)
        for event in events:
            if everything is not None:
                everything.publish(event)
            ring = find(event.entity_id)
            if ring is not None:
                ring.publish(event)

    def subscribe(
        self,
        wanted: Callable[[EntityEvent], bool] | None = None,
        *,
        entity_id: str | None = None,
        ends_with_it: bool = True,
        first: Iterable[EntityEvent] = (),
        has_ended: Callable[[], Awaitable[bool]] | None = None,
    ) -> Subscription:
        """Return a subscription: `first`, then later events for which `wanted` is true, or those of one entity."""
        ring = self._rings.get(entity_id)
        if ring is None:
            ring = self._rings[entity_id] = Ring(self._capacity)
        if self._is_closed:
            ring.close()
        subscription = Subscription(ring, wanted, entity_id if ends_with_it else None, first, has_ended)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """End every subscription: the runtime closes."""
        self._is_closed = True
        for ring in list(self._rings.values()):
            ring.close()
