"""Events: what can be seen of entities while they run (SPEC 7.2), and the bus that carries them to subscribers.

Events are a view of what was recorded, not a second truth: they are derived from the records of a step after these were
appended, so nobody sees what the loom does not hold. They inform and never control: publishing is a plain function that
waits for nobody, a subscriber that falls behind loses its oldest events and is told how many (`MissedEvent`), one that
raises does so in its own task. With no subscriber nothing is even built.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from cantrip_actors.model.image import Image, labelled
from cantrip_actors.model.messages import ToolCall, Usage
from cantrip_actors.model.stream import Envelope
from cantrip_actors.model.turn import (
    Committed,
    Ended,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Record,
    Utterance,
)

__all__ = [
    "Bus",
    "EntityEndedEvent",
    "EntityEvent",
    "EntityStartedEvent",
    "FinalResponseEvent",
    "MissedEvent",
    "StepCompleteEvent",
    "StepStartEvent",
    "Subscription",
    "TextEvent",
    "ThinkingEvent",
    "ToolCallEvent",
    "ToolResultEvent",
    "UsageEvent",
    "Watchers",
    "events_of",
]

_log = structlog.get_logger("cantrip_actors.runtime")

CAPACITY = 10_000
"""Events that a subscriber may be behind before it loses the oldest."""


@dataclass(frozen=True, slots=True)
class EntityEvent:
    """Something about an entity: which one, and when (seconds since the epoch)."""

    entity_id: str
    at: float


@dataclass(frozen=True, slots=True)
class EntityStartedEvent(EntityEvent):
    """An entity was cast, or given a further intent. Children name their parent and the turn they hang from.

    `intent` has the labels of the images that came with it; `images` are what those are, never their bytes.
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
    """The crystal is asked; the turn in the making has this id already."""

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
    """A gate answered. Observers get the real result, ephemeral or not; of `images` what they are."""

    turn_id: str
    tool_call_id: str | None
    gate: str
    result: Any
    is_error: bool
    images: tuple[str, ...] = ()


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
    """The entity is over, and why."""

    reason: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class MissedEvent(EntityEvent):
    """The subscriber was too slow: `count` events before the next one are lost to it. They are in the loom."""

    count: int


def events_of(records: Iterable[Record], at: float) -> Iterator[EntityEvent]:
    """The events that a step's records amount to, in their order."""
    header: Header | None = None
    for record in records:
        entity = record.entity_id
        match record:
            case Utterance():
                yield from _said(record, at)
            case GateFinished():
                seen = record.observation
                call, images = seen.tool_call_id, _labels(seen.images)
                yield ToolResultEvent(entity, at, record.turn_id, call, seen.gate, seen.result, seen.is_error, images)
            case Committed():
                yield StepCompleteEvent(
                    entity, at, record.turn_id, record.sequence, record.terminated, record.truncated
                )
            case Ended():
                yield EntityEndedEvent(entity, at, record.reason, record.detail)
            case Header():
                header = record
            case IntentGiven():
                yield _started(record, header, at)
            case GateStarted() if record.args is not None:  # a code circle: the utterance did not say it
                yield ToolCallEvent(entity, at, record.turn_id, record.tool_call_id, record.gate, record.args)
            case _:
                pass


def _said(record: Utterance, at: float) -> Iterator[EntityEvent]:
    entity, turn = record.entity_id, record.turn_id
    if record.thinking:
        yield ThinkingEvent(entity, at, turn, record.thinking)
    if record.content:
        yield TextEvent(entity, at, turn, record.content)
    call: ToolCall
    for call in record.tool_calls:
        yield ToolCallEvent(entity, at, turn, call.id, call.gate, call.args)
    yield UsageEvent(entity, at, turn, record.usage)


def _labels(images: Iterable[Image]) -> tuple[str, ...]:
    return tuple([image.label for image in images])


def _started(record: IntentGiven, header: Header | None, at: float) -> EntityStartedEvent:
    intent = labelled(record.intent, record.images) if record.images else record.intent
    if header is None:
        return EntityStartedEvent(record.entity_id, at, intent, images=_labels(record.images))
    return EntityStartedEvent(
        record.entity_id,
        at,
        intent,
        header.parent_entity,
        header.parent_turn,
        header.depth,
        header.name,
        header.crystal,
        _labels(record.images),
    )


class Subscription(AsyncIterator[EntityEvent]):
    """One subscriber's events, in order. Iterate it; `close()` it, or let go of it, to unsubscribe.

    It ends when the runtime closes, or with the entity that it was made for; what the function that chooses the events
    raises is raised here, after the events before.
    """

    def __init__(self, wanted: Callable[[EntityEvent], bool] | None, capacity: int, until: str | None) -> None:
        self._wanted = wanted
        self._until = until
        self._events: deque[EntityEvent] = deque()
        self._capacity = capacity
        self._missed = 0
        self._closed = False
        self._failed: Exception | None = None
        self._wake: anyio.Event | None = None

    def _put(self, event: EntityEvent) -> None:
        if self._closed or not (self._wanted is None or self._wants(event, self._wanted)):
            return
        if len(self._events) >= self._capacity:
            self._events.popleft()
            self._missed += 1
        self._events.append(event)
        if self._until is not None and event.entity_id == self._until and isinstance(event, EntityEndedEvent):
            self._closed = True
        self._wake_readers()

    def _wants(self, event: EntityEvent, wanted: Callable[[EntityEvent], bool]) -> bool:
        try:
            return wanted(event)
        except Exception as failure:  # the subscriber's own, which has to hear of it: publishing goes on
            self._failed = failure
            self.close()
            return False

    def _wake_readers(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def close(self) -> None:
        """No further events; those that arrived before can still be read."""
        self._closed = True
        self._wake_readers()

    async def __anext__(self) -> EntityEvent:
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                first = self._events[0]
                return MissedEvent(first.entity_id, first.at, missed)
            if self._events:
                return self._events.popleft()
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            if self._closed:
                raise StopAsyncIteration
            if self._wake is None:
                self._wake = anyio.Event()
            await self._wake.wait()  # several may read: each event goes to one of them


class Watchers:
    """Those who watch the canonical stream itself: functions that take envelopes as they come.

    They are called in the entity's own task, so they must not wait: `observe.Upserts.publish` is made so. One that
    raises is not called again, and the entity goes on.
    """

    def __init__(self) -> None:
        self._publish: tuple[Callable[[Sequence[Envelope]], None], ...] = ()

    def __bool__(self) -> bool:
        """Whether anybody watches: without, envelopes are not worth making."""
        return bool(self._publish)

    def add(self, publish: Callable[[Sequence[Envelope]], None]) -> Callable[[], None]:
        """One more; returns what ends it."""
        self._publish = (*self._publish, publish)
        return lambda: self._remove(publish)

    def _remove(self, publish: Callable[[Sequence[Envelope]], None]) -> None:
        self._publish = tuple(one for one in self._publish if one is not publish)

    def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Hand envelopes to all."""
        for publish in self._publish:
            try:
                publish(envelopes)
            except Exception:  # observation, never control
                self._remove(publish)
                _log.exception("a watcher has raised, and is not called any more", watcher=repr(publish))


class Bus:
    """Carries events to whoever listens. Publishing never waits and never fails."""

    def __init__(self) -> None:
        # weak: a subscriber that let go of its subscription costs nothing from then on
        self._subscribers: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether anybody listens: without, events are not worth building."""
        return len(self._subscribers) > 0

    def publish(self, events: Iterable[EntityEvent]) -> None:
        """Hand `events` to every subscriber that wants them."""
        subscribers = list(self._subscribers)
        for event in events:
            for subscriber in subscribers:
                subscriber._put(event)  # noqa: SLF001  # bus and subscription are two halves of one thing

    def subscribe(
        self,
        wanted: Callable[[EntityEvent], bool] | None = None,
        *,
        until: str | None = None,
        capacity: int = CAPACITY,
    ) -> Subscription:
        """A new subscriber's events from now on: those that `wanted` says yes to, up to the end of entity `until`."""
        subscription = Subscription(wanted, capacity, until)
        if self._closed:
            subscription.close()
        else:
            self._subscribers.add(subscription)
        return subscription

    def close(self) -> None:
        """End every subscription: the runtime closes."""
        self._closed = True
        for subscriber in list(self._subscribers):
            subscriber.close()
