"""Feeds of the log of one entity, in any process.

A feed reads the loom. If this process runs the entity, its events announce new records; otherwise the feed polls twice
a second. So it continues when another process takes the entity over, without repetitions and gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from cantrip_actors.records.records import Record
from cantrip_actors.records.turn import Turn
from cantrip_actors.runtime.events.follower import Follower
from cantrip_actors.runtime.mail.inboxes import POLL_INTERVAL
from cantrip_actors.stream.events import (
    EntityEvent,
    MissedEvent,
    ServerChangedEvent,
    StepCompleteEvent,
    StepFailedEvent,
    StepStartEvent,
    StreamedEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog
from cantrip_actors.terms.arguments import check, is_whole
from cantrip_actors.terms.errors import InvalidIntent

if TYPE_CHECKING:
    from cantrip_actors.runtime.tree import Tree

T = TypeVar("T")


class LogFeed(Follower[T]):
    """Items selected from an entity's log, in order. It ends with the entity, or when the runtime closes.

    Iterating raises LoomError for an entity that is not in the loom, and while the loom cannot be read: try again then.
    """

    def __init__(
        self, tree: Tree, entity_id: str, select: Callable[[EntityEvent, EventLog], T | None], *, deltas: bool = False
    ) -> None:
        super().__init__(tree.bus.subscribe(entity_id=entity_id, ends_with_it=False, deltas=deltas))
        self._tree = tree
        self.entity_id: Final = entity_id
        self._select = select
        self._log = EventLog()
        self._position = -1

    async def _read(self) -> Iterable[T]:
        is_over, records, position = await self._tree.in_store(self._read_records)
        self._position = position  # not before: what was read in vain, for a cancelled caller, is read again
        if is_over:
            self.close()
        items = (self._select(event, self._log) for event in self._log.add_all(records))
        return [item for item in items if item is not None]

    def _choose_interval(self) -> float:
        return POLL_INTERVAL  # another process may run the entity

    def _read_records(self) -> tuple[bool, Sequence[Record], int]:
        """Return whether the entity is over, its records since the last reading, and the position of the last one."""
        loom = self._tree.loom
        is_over = loom.is_over(self.entity_id)  # read first, so that the records include the end
        return is_over, *loom.records_since(self.entity_id, self._position)


def follow_turns(tree: Tree, entity_id: str, after: int) -> LogFeed[Turn]:
    """Return the turns of an entity with a higher number than `after`, as they are recorded. Raises InvalidIntent."""
    check(is_whole(after, 0), "story: after", "the number of a turn, 0 for all of them", after, InvalidIntent)

    def select(event: EntityEvent, log: EventLog) -> Turn | None:
        return log.turn if isinstance(event, StepCompleteEvent) and event.sequence > after else None

    return LogFeed(tree, entity_id, select)


_LIVE = (StreamedEvent, StepStartEvent, StepFailedEvent, ServerChangedEvent, MissedEvent)
"""The events that are in no log."""


class EventFeed(LogFeed[EntityEvent]):
    """The events of an entity after an id, each recorded one once and in order; with `deltas` also the streamed ones.

    Recorded events come from the loom, and have ids. Live and streamed ones come in between while this process runs the
    entity, those of a running answer from its beginning; those of an answer that was delivered already are left out. A
    `MissedEvent` says that some of them are lost.
    """

    def __init__(self, tree: Tree, entity_id: str, after: EventId | None, *, deltas: bool = False) -> None:
        super().__init__(tree, entity_id, self._select_new, deltas=deltas)
        answer = tree.bus.answers.get(entity_id) if deltas else None
        self._missed: list[StreamedEvent] = [] if answer is None else answer.list_events()
        """The pieces of the running answer from before the subscription, until they are delivered."""
        tip = tree.store.tip(entity_id) if after is None else None
        self._after = after
        """None for the events from now on, until the first reading."""
        self._begin = -1 if tip is None else tip.position
        self._answered = ""
        """The turn whose answer was delivered last."""
        self._covered = 0
        """The number of the first event of the subscription that was published after the last reading began."""

    async def _wait_and_read(self) -> None:
        event = None if self._is_due else await self._wait()
        if isinstance(event, _LIVE) and not isinstance(event, MissedEvent):
            if not self._is_outdated(event):
                self._ready.append(event)
            return
        following, arriving = self._events._list_numbers()  # noqa: SLF001  # of the same mechanism
        try:
            if event is None or isinstance(event, MissedEvent) or following > self._covered:
                self._covered = arriving
                await self._read_all()
                self._ready.extend(piece for piece in self._missed if not self._is_outdated(piece))
                self._missed = []
        finally:
            if isinstance(event, MissedEvent):  # it was taken, also if reading has failed
                self._ready.append(event)

    def _is_outdated(self, event: EntityEvent) -> bool:
        """Return whether the answer that an event belongs to was delivered already. Ids of turns sort by time."""
        return isinstance(event, StreamedEvent | StepStartEvent) and event.turn_id <= self._answered

    def _read_records(self) -> tuple[bool, Sequence[Record], int]:
        is_over, records, position = super()._read_records()
        while self._after is None:
            later, end = self._tree.loom.records_since(self.entity_id, self._begin)
            if end == position:
                self._after = EventId(len(records) - len(later), END_OF_RECORD)
            else:  # a record came in between
                is_over, records, position = super()._read_records()
        return is_over, records, position

    async def _read(self) -> Iterable[EntityEvent]:
        return self._tree.guard.redact_events(await super()._read())

    def _select_new(self, event: EntityEvent, _: EventLog) -> EntityEvent | None:
        if isinstance(event, UsageEvent):
            self._answered = event.turn_id
        id = EventId.parse(event.id)
        assert id is not None, "a log gives its events their ids"
        assert self._after is not None, "the first reading finds it"
        return event if id > self._after else None
