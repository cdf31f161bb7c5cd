"""The bus that delivers the events of running entities to subscribers, from memory.

Recorded events are published after their records were appended, so a subscriber sees none that the loom does not hold.
Events inform and never control: publishing is a plain function that does not wait. A subscriber that falls behind loses
its oldest events and gets their number (`MissedEvent`); one that raises does so in its task. Without subscribers no
events are built.

A crystal may emit many pieces of an answer before any other task runs. They become events when a subscriber reads, or
when another event has to follow them, so the pieces of a text that are there together are one event for all readers.
Watchers do not read, and get each piece at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakSet, WeakValueDictionary

import anyio

from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.events.ring import Missed, Ring
from cantrip_actors.stream.answer_so_far import AnswerSoFar
from cantrip_actors.stream.events import EntityEndedEvent, EntityEvent, MissedEvent, StreamedEvent
from cantrip_actors.user_code import Failure, attempt_now

_log = get_logger("cantrip_actors.runtime")

CAPACITY = 10_000
"""Events that a subscriber may be behind before it loses the oldest: of all entities, or of the one it asks for."""

END_INTERVAL = 0.5
"""Seconds between two checks whether an entity has ended in another process, which publishes no event here."""


class Subscription(AsyncIterator[EntityEvent]):
    """One subscriber's events, in order. Iterate it; to unsubscribe, call `close()` or drop the last reference to it.

    It ends when the runtime closes, or with the entity that it was made for. If the `wanted` function raises, the
    iteration raises that error after the earlier events.
    """

    def __init__(
        self,
        bus: Bus,
        ring: Ring[EntityEvent],
        wanted: Callable[[EntityEvent], bool] | None = None,
        until: str | None = None,
        first: Iterable[EntityEvent] = (),
        has_ended: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._bus = bus
        self._ring = ring
        self._first = deque(first)
        self._next = ring.end
        self._end: int | None = None
        """The position at which it ends, once it is closed."""
        self._wanted = wanted
        self._until = until
        self._has_ended = has_ended
        """Asked before each wait, and every `END_INTERVAL`: whether the entity has ended in another process."""

    def close(self) -> None:
        """Take no further events; events that arrived before can still be read."""
        self._bus.publish_streamed()
        self._end = self._ring.end if self._end is None else self._end
        self._ring.wake()

    @property
    def is_over(self) -> bool:
        """Whether no further event comes: the remaining ones have arrived, and reading them does not wait."""
        return self._end is not None or self._ring.is_closed

    def _list_numbers(self) -> tuple[int, int]:
        """Return the number of the next event of its ring, and of the next one to arrive there."""
        return self._next, self._ring.end

    def _skip(self) -> None:
        self._first.clear()
        self._next = self._ring.end if self._end is None else self._end

    async def __anext__(self) -> EntityEvent:
        while (event := self._take_arrived()) is None:
            if self.is_over:
                raise StopAsyncIteration
            if self._has_ended is None:
                await self._ring.wait(self._next)  # several tasks may read: each event goes to one of them
            elif await self._has_ended():
                self.close()  # events that have arrived meanwhile can still be read
            else:
                with anyio.move_on_after(END_INTERVAL):
                    await self._ring.wait(self._next)
        return event

    def _take_arrived(self) -> EntityEvent | None:
        """Return the next event that has arrived and is wanted; None if it has not arrived."""
        self._bus.publish_streamed()
        if self._first:
            return self._first.popleft()
        while self._next < (self._ring.end if self._end is None else self._end):
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
        return None

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
    """The watchers: functions that are called with all events as they are published, the streamed ones included.

    They are called in the tasks of entities and of the loom's writer, so they must not wait; `observe.Upserts.publish`
    does not. A watcher that raises is not called again, and the entity continues.
    """

    def __init__(self) -> None:
        self._publish: tuple[partial[None], ...] = ()
        self.has_any = False
        """Whether any watcher was added."""

    @property
    def count(self) -> int:
        """The number of watchers."""
        return len(self._publish)

    def add(self, publish: Callable[[Sequence[EntityEvent]], None]) -> Callable[[], None]:
        """Add a watcher; return a function that removes it."""
        watcher = partial(publish)  # its own identity: one function may watch several times
        self._publish, self.has_any = (*self._publish, watcher), True
        return lambda: self._remove(watcher)

    def _remove(self, watcher: partial[None]) -> None:
        self._publish = tuple(publish for publish in self._publish if publish is not watcher)
        self.has_any = bool(self._publish)

    def publish(self, events: Sequence[EntityEvent]) -> None:
        """Call all watchers with events."""
        for publish in self._publish:
            result = attempt_now(partial(publish, events))
            if isinstance(result, Failure):  # observation, never control
                self._remove(publish)
                text = "a watcher has raised, and is not called any more"
                _log.error(text, watcher=repr(publish.func), exc_info=result.exception)


T = TypeVar("T")
_RingKey = tuple[str | None, bool]
"""An entity's id, or None for all of them; and whether the streamed events are among those of the ring."""


class Bus:
    """Delivers events to watchers and subscribers. Publishing never waits and never fails."""

    def __init__(self, watchers: Watchers | None = None, *, capacity: int = CAPACITY) -> None:
        self._watchers = Watchers() if watchers is None else watchers
        self._capacity = capacity
        self._rings: WeakValueDictionary[_RingKey, Ring[EntityEvent]] = WeakValueDictionary()
        """The events of each subject that is read. A ring lives while it is read."""
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._is_closed = False
        self.answers: dict[str, AnswerSoFar] = {}
        """The answers that crystals are streaming, by entity."""
        self._growing: list[AnswerSoFar] = []
        """Those of them that have payloads of which no events were made yet."""

    def __bool__(self) -> bool:
        """Whether anything is delivered: without watchers and subscribers no events are made."""
        return self._watchers.has_any or bool(self._rings)

    @property
    def delivers_deltas(self) -> bool:
        """Whether streamed events are delivered: without readers of them no crystal is asked to stream."""
        return self._watchers.has_any or any(has_deltas for _, has_deltas in list(self._rings))

    @property
    def subscribers(self) -> int:
        """The number of subscriptions, from any thread."""
        return len(self._subscriptions)

    def publish_made(self, make: Callable[[T], Sequence[EntityEvent]], source: T) -> None:
        """Deliver the events that `make` makes of a source, if anything is delivered."""
        if self:
            self.publish(make(source))

    def announce(self, answer: AnswerSoFar) -> None:
        """Wake the subscribers of a streamed answer, whose events are made when one of them reads."""
        self._growing.append(answer)
        if self._watchers.has_any:
            self.publish_streamed()
            return
        for entity_id in (None, answer.entity_id):
            ring = self._rings.get((entity_id, True))
            if ring is not None:
                ring.wake()

    def publish_streamed(self) -> None:
        """Deliver the events of the payloads that crystals have emitted since the last call."""
        while self._growing:
            self._deliver(self._growing.pop().make_events())

    def publish(self, events: Sequence[EntityEvent]) -> None:
        """Deliver `events`, after those of all payloads that were emitted before."""
        self.publish_streamed()
        self._deliver(events)

    def _deliver(self, events: Sequence[EntityEvent]) -> None:
        if self._watchers.has_any:
            self._watchers.publish(events)
        find = self._rings.get
        for event in events:
            for has_deltas in (True,) if isinstance(event, StreamedEvent) else (True, False):
                for entity_id in (None, event.entity_id):
                    ring = find((entity_id, has_deltas))
                    if ring is not None:
                        ring.publish(event)

    def subscribe(
        self,
        wanted: Callable[[EntityEvent], bool] | None = None,
        *,
        entity_id: str | None = None,
        ends_with_it: bool = True,
        deltas: bool = False,
        first: Iterable[EntityEvent] = (),
        has_ended: Callable[[], Awaitable[bool]] | None = None,
    ) -> Subscription:
        """Return a subscription: `first`, then later events for which `wanted` is true, or those of one entity.

        With `deltas` the streamed events are among them.
        """
        self.publish_streamed()
        key = (entity_id, deltas)
        ring = self._rings.get(key)
        if ring is None:
            ring = self._rings[key] = Ring(self._capacity)
        if self._is_closed:
            ring.close()
        subscription = Subscription(self, ring, wanted, entity_id if ends_with_it else None, first, has_ended)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """End every subscription: the runtime closes."""
        self._is_closed = True
        for ring in list(self._rings.values()):
            ring.close()
