"""The pieces of an answer that is being given, for a reader that comes in the middle of it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cantrip_actors.stream.events import DeltaEvent, StreamedEvent


class AnswerSoFar:
    """The streamed events of one answer until now. The deltas of an item become one: its start, with its whole text."""

    def __init__(self) -> None:
        self._events: list[tuple[StreamedEvent, list[str]]] = []
        """The events in order, of an item's deltas only the first, with the texts of the deltas."""
        self._texts: dict[str, list[str]] = {}
        """The texts of the items' deltas, by id; an item may start again after its end."""

    def add(self, events: Iterable[StreamedEvent]) -> None:
        """Add the next events of the answer."""
        for event in events:
            if not isinstance(event, DeltaEvent):
                self._events.append((event, []))
                continue
            if event.is_start or event.item_id not in self._texts:
                self._texts[event.item_id] = []
                self._events.append((event, self._texts[event.item_id]))
            self._texts[event.item_id].append(event.text)

    def list_events(self) -> list[StreamedEvent]:
        """Return the events from which a reader gets the same items and texts as from all events until now."""
        return [
            replace(event, text="".join(texts)) if isinstance(event, DeltaEvent) else event
            for event, texts in self._events
        ]
