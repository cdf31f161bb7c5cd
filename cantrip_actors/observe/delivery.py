"""Outputs to subscribers, each at its own pace; none of them can hold up what it watches.

`Upserts` folds events: `runtime.watch(upserts.publish)`. `publish` never waits: it runs the one processor and queues
the outputs for every subscriber. It has no task of its own: a reader that waits also watches the clock for the
processor, so without readers nothing runs.

A subscriber that is slower than the stream gets fewer steps and the same states. At most two upserts of an item wait
for it: a `create` with the newest state, and the terminal upsert; updates in between are merged. Terminal upserts and
turn events are neither merged nor dropped, so the queue is bounded by items and turns, not by tokens. If even
these are not read, the subscription ends with `FellBehind`; a new subscription begins with a snapshot, without a gap.

A late subscriber first gets a snapshot: of every running turn, and of the turns that ended last, the beginning, the
latest upsert of each item, and the end. From there on it gets the live outputs.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
from msgspec.structs import replace

from cantrip_actors.observe.batching import Batching
from cantrip_actors.observe.processor import Processor
from cantrip_actors.observe.upserts import Output, TurnEvent, TurnStarted, Upsert, history
from cantrip_actors.stream.events import EntityEndedEvent, EntityEvent, EntityStartedEvent, EpisodeEndedEvent
from cantrip_actors.terms.errors import CantripError

CAPACITY = 10_000
"""The most outputs, after merging, that wait for one subscriber before its subscription ends."""

KEPT = 64
"""The most ended turns that a late subscriber sees. Older ones are in the loom."""

_Key = tuple[str, str]


class FellBehind(CantripError):
    """The subscriber did not read for too long. Subscribe again: a subscription begins with a snapshot."""


class Upserts:
    """The upserts and turn events of all published events, for any number of subscribers.

    `wall` is the clock of `emitted_at`, in seconds since the epoch; `clock` the monotonic one of the event loop. Both
    `publish` and the subscriptions belong to one event loop.
    """

    def __init__(
        self,
        batching: Batching | None = None,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = anyio.current_time,
        kept: int = KEPT,
    ) -> None:
        self._processor = Processor(wall, batching)
        self._clock = clock
        self._kept = kept
        self._turns: OrderedDict[_Key, _DeliveredTurn] = OrderedDict()
        self._ended: OrderedDict[_Key, None] = OrderedDict()
        # weak: a subscription dropped by its reader costs nothing
        self._subscriptions: weakref.WeakKeyDictionary[UpsertSubscription, None] = weakref.WeakKeyDictionary()
        self._closed = False

    def publish(self, events: Iterable[EntityEvent]) -> None:
        """Publish events. It never waits, and no subscriber can make it fail."""
        before = self.tick()
        now = self._clock()
        for event in events:
            outputs = self._processor.process(event, now)
            if isinstance(event, EntityStartedEvent):
                self._note_episode(event.entity_id, event.key or "")
            if outputs:
                self._deliver(outputs)
            if isinstance(event, EpisodeEndedEvent | EntityEndedEvent):
                self._note_episode(event.entity_id, None)
        after = self._processor.deadline
        if after is not None and (before is None or after < before):
            for subscription in self._subscriptions:
                subscription._look()  # noqa: SLF001  # it waits for a time that is too late now

    def close(self) -> None:
        """End all subscriptions once they have been read."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()

    def _note_episode(self, entity_id: str, intent: str | None) -> None:
        for subscription in self._subscriptions:
            subscription._note_episode(entity_id, intent)  # noqa: SLF001

    def subscribe(
        self,
        session_id: str | None = None,
        *,
        snapshot: bool = True,
        capacity: int = CAPACITY,
        intent: str | None = None,
    ) -> UpsertSubscription:
        """Return a subscription to one session or to all: a snapshot, unless declined, then the live outputs.

        With the key of an `intent` of one session, the outputs before its episode and after it are left out; the
        subscription is muted until it begins.
        """
        subscription = UpsertSubscription(self, session_id, capacity, intent)
        if snapshot:
            subscription._begin(self.snapshot(session_id))  # noqa: SLF001
        if self._closed:
            subscription.close()
        else:
            self._subscriptions[subscription] = None
        return subscription

    def snapshot(self, session_id: str | None = None) -> Iterator[Output]:
        """Yield the current state: turns and items in the order of their beginnings."""
        self.tick()
        for (session, _), turn in self._turns.items():
            if session_id is None or session == session_id:
                yield from turn.list_outputs()

    def history(self, session_id: str) -> dict[str, Any]:
        """Return the `session:history` message of a session: the terminal upserts of its kept turns."""
        return history(session_id, self.snapshot(session_id))

    def tick(self) -> float | None:
        """Deliver the outputs that are due; return when to call again (monotonic clock). Subscriptions call it."""
        deadline = self._processor.deadline
        if deadline is None:
            return None
        now = self._clock()
        if deadline <= now:
            self._deliver(self._processor.tick(now))
        return self._processor.deadline

    def statistics(self) -> dict[str, int]:
        """Return the number of subscribers, of the slowest one's waiting outputs, and of kept turns."""
        waiting = [len(subscription) for subscription in self._subscriptions]
        return {"subscribers": len(waiting), "waiting": max(waiting, default=0), "turns": len(self._turns)}

    def now(self) -> float:
        """Return the time of the monotonic clock, in seconds."""
        return self._clock()

    def _deliver(self, outputs: Iterable[Output]) -> None:
        subscriptions = list(self._subscriptions)
        for output in outputs:
            self._keep(output)
            for subscription in subscriptions:
                subscription._put(output)  # noqa: SLF001

    def _keep(self, output: Output) -> None:
        key = (output.session_id, output.turn_id)
        if isinstance(output, TurnStarted) and key in self._ended:
            del self._ended[key], self._turns[key]  # the same turn begins anew
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = _DeliveredTurn()
        if isinstance(output, TurnStarted):
            turn.started = output
        elif isinstance(output, Upsert):
            turn.items[output.item_id] = output
        else:
            turn.ends.append(output)
            self._ended[key] = None
            if len(self._ended) > self._kept:
                oldest, _ = self._ended.popitem(last=False)
                del self._turns[oldest]


@dataclass(slots=True, eq=False)
class _DeliveredTurn:
    """The outputs of a turn for a late subscriber."""

    started: TurnStarted | None = None
    items: dict[str, Upsert] = field(default_factory=dict)
    ends: list[TurnEvent] = field(default_factory=list)

    def list_outputs(self) -> Iterator[Output]:
        if self.started is not None:
            yield self.started
        yield from self.items.values()
        yield from self.ends


class UpsertSubscription(AsyncIterator[Output]):
    """One subscriber's outputs. Iterate it; `close()` it, or drop it, to unsubscribe.

    It ends when its `Upserts` are closed, and raises FellBehind if too much was not read.
    """

    def __init__(self, upserts: Upserts, session_id: str | None, capacity: int, intent: str | None = None) -> None:
        self.is_muted: bool = intent is not None
        """Whether the episode of its intent is not under way, as far as it knows: there are no outputs then."""
        self._intent = intent
        self._upserts = upserts
        self._session_id = session_id
        self._capacity = capacity
        self._waiting: OrderedDict[object, Output] = OrderedDict()
        self._closed = False
        self._fell_behind = False
        self._wake: anyio.Event | None = None

    def __len__(self) -> int:
        """Return the number of outputs that wait to be read."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:
        """End the subscription; outputs that wait can still be read."""
        self._closed = True
        self._look()

    def _begin(self, snapshot: Iterable[Output]) -> None:
        """Queue a snapshot, whatever its length: the capacity counts only what is not read after it."""
        capacity, self._capacity = self._capacity, sys.maxsize
        for output in snapshot:
            self._put(output)
        self._capacity = capacity + len(self._waiting)

    def unmute(self) -> None:
        """Take the outputs from here on: the episode of its intent has begun before it was subscribed."""
        self.is_muted = False

    def _note_episode(self, entity_id: str, intent: str | None) -> None:
        if self._intent is not None and entity_id == self._session_id:
            self.is_muted = intent != self._intent

    def read(self) -> Output | None:
        """Return the next output, or None if none waits."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    async def __anext__(self) -> Output:
        while True:
            output = self.read()
            if output is not None:
                return output
            if self._fell_behind:
                raise FellBehind(f"more than {self._capacity} upserts and turn events were not read: subscribe again")
            if self._closed:
                raise StopAsyncIteration
            deadline = self._upserts.tick()
            if not self._waiting:
                await self._wait(deadline)

    async def _wait(self, deadline: float | None) -> None:
        """Wait until there is an output, or until `deadline`."""
        if self._wake is None:
            self._wake = anyio.Event()
        if deadline is None:
            await self._wake.wait()
        else:
            with anyio.move_on_after(deadline - self._upserts.now()):
                await self._wake.wait()

    def _look(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def _put(self, output: Output) -> None:
        is_other = self._session_id is not None and output.session_id != self._session_id
        if self._closed or self.is_muted or is_other:
            return
        if isinstance(output, Upsert):
            self._merge(output)
        else:
            self._waiting[object()] = output
        if len(self._waiting) > self._capacity:
            self._closed = self._fell_behind = True
            self._waiting.clear()
        self._look()

    def _merge(self, upsert: Upsert) -> None:
        """Queue an upsert in place of the one that it replaces: a `create` stays a `create`, an `update` is dropped."""
        waiting, key = self._waiting, upsert.key
        earlier = waiting.get(key)
        created = isinstance(earlier, Upsert) and earlier.status == "create"
        if not upsert.terminal:
            waiting[key] = replace(upsert, status="create") if created else upsert
            return
        if earlier is not None and not created:
            del waiting[key]
        waiting[*key, "end"] = upsert
