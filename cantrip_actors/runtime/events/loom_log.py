"""The events of all entities of a loom, in the order of recording, from any position (0173).

The position of an event is the number of its record in the loom, and its part within the record. The loom only grows,
so a position is the same in every process and after every crash: a reader that knows the last one it handled loses
nothing and gets nothing twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from cantrip_actors.loom import Loom
from cantrip_actors.records.records import Record, get_images, replace_images
from cantrip_actors.records.turn import Turn
from cantrip_actors.stream.events import EntityEvent
from cantrip_actors.stream.reading import END_OF_RECORD, EventId, EventLog
from cantrip_actors.terms.errors import UnknownEntity

PAGE: Final = 200
"""Records that are read at once."""

REMEMBERED: Final = 500
"""The entities whose logs are kept, those that were read last: their next records need no reading of earlier ones."""


class LoomEvent(NamedTuple):
    """An event of any entity, and its position in the loom. Its own `id` is that in the log of its entity."""

    position: EventId
    event: EntityEvent
    turn: Turn | None
    """The whole turn that the event completes."""
    record: Record
    """The record that it is of. The bytes of its images are read on first use."""


class LoomPage(NamedTuple):
    """The events of some records, and the number of the last one: the next page begins after it."""

    events: list[LoomEvent]
    number: int
    has_more: bool
    """Whether there may be further events at once."""


class LoomLog:
    """Reads the records of all entities after a position. It reads the loom, in `read` only.

    Its caller keeps the number of the last record that it has handled. So a page that was read in vain, because the
    loom failed or the caller was cancelled meanwhile, is read again.
    """

    def __init__(self, loom: Loom, after: EventId) -> None:
        self._loom = loom
        self._after = after
        self.begin = after.number if after.part == END_OF_RECORD else max(0, after.number - 1)
        """The number of the last record before the first page."""
        self._logs: OrderedDict[str, tuple[int, EventLog]] = OrderedDict()
        """By entity, the number of the last record that was read, and the log up to there."""

    def read(self, number: int) -> LoomPage:
        """Return the events of the next records after the one with this number."""
        numbered, last = self._loom.read_since(number, PAGE, settled=True)
        events = [
            event
            for own, record in numbered
            for event in self._read_record(own, record)
            if event.position > self._after
        ]
        return LoomPage(events, last, last != number)

    def _read_record(self, number: int, record: Record) -> Sequence[LoomEvent]:
        try:
            log = self._take_log(record.entity_id, number)
        except UnknownEntity:  # it was forgotten meanwhile
            return ()
        events = log.add(record)
        if not log.is_over:
            self._logs[record.entity_id] = number, log
            if len(self._logs) > REMEMBERED:
                self._logs.popitem(last=False)
        images = get_images(record)
        if images:
            record = replace_images(record, tuple(map(self._loom.attach, images)))
        return [LoomEvent(EventId(number, part), event, log.turn, record) for part, event in enumerate(events)]

    def _take_log(self, entity_id: str, number: int) -> EventLog:
        """Return the log of an entity up to the record before this number."""
        read, log = self._logs.pop(entity_id, (number, EventLog()))
        if read >= number:  # it was not read yet, or this record is read again
            log = EventLog()
            records, _ = self._loom.records_since(entity_id)
            later, _ = self._loom.records_since(entity_id, number - 1)
            for record in records[: len(records) - len(later)]:
                log.add(record)
        return log
