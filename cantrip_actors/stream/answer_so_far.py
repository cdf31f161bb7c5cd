"""The pieces of an answer that is being given, for its readers and for one that comes in the middle of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec.structs import replace

from cantrip_actors.stream.answer import AnswerStream
from cantrip_actors.stream.events import DeltaEvent, StreamedEvent
from cantrip_actors.stream.wire import Emitted, ItemDelta


class AnswerSoFar:
    """The streamed events of one answer until now.

    They are made of its payloads when a subscriber reads: the deltas of an item that have come together become one. For
    a reader that comes later all deltas of an item become one: its start, with its whole text.
    """

    def __init__(self, answer: AnswerStream) -> None:
        self.entity_id = answer.entity_id
        self._answer = answer
        self._payloads: list[Emitted] = []
        """The payloads of which no events were made yet."""
        self._events: list[tuple[StreamedEvent, list[str]]] = []
        """The events in order, of an item's deltas only the first, with the texts of the deltas."""
        self._texts: dict[str, list[str]] = {}
        """The texts of the items' deltas, by id; an item may start again after its end."""

    def add(self, payload: Emitted) -> bool:
        """Add the next payload of the answer; return whether it is the first one since `make_events`."""
        self._payloads.append(payload)
        return len(self._payloads) == 1

    def make_events(self) -> list[StreamedEvent]:
        """Return the events of the payloads that were added since the last call."""
        payloads, self._payloads = self._payloads, []
        events = [event for payload in _join_deltas(payloads) if (event := self._answer.read(payload)) is not None]
        for event in events:
            if not isinstance(event, DeltaEvent):
                self._events.append((event, []))
                continue
            if event.is_start or event.item_id not in self._texts:
                self._texts[event.item_id] = []
                self._events.append((event, self._texts[event.item_id]))
            self._texts[event.item_id].append(event.text)
        return events

    def list_events(self) -> list[StreamedEvent]:
        """Return the events from which a reader gets the same items and texts as from all events until now."""
        return [
            replace(event, text="".join(texts)) if isinstance(event, DeltaEvent) else event
            for event, texts in self._events
        ]


def _join_deltas(payloads: Iterable[Emitted]) -> Iterator[Emitted]:
    """Yield the payloads, with one delta for each run of deltas of the same item."""
    for block, run in groupby(payloads, _find_growing_block):
        if block is None:
            yield from run
        else:
            yield ItemDelta(block, "".join([delta.delta_content for delta in run if isinstance(delta, ItemDelta)]))


def _find_growing_block(payload: Emitted) -> str | None:
    return payload.item_id if isinstance(payload, ItemDelta) else None
