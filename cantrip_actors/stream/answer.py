"""One answer while the crystal gives it: from the payloads that it emits to streamed events.

The rules of this file:

- An item has a whole id (`ItemId`), which is made here and nowhere else: a crystal names blocks only.
- What belongs to no open item is dropped: a delta of an unknown block, the end of one that has ended, a repeated start.
  An item may end without a start, and start again after its end.
- `AttemptFailed` ends an attempt; the items of the next one have its number in their ids.
- A response that ends in error is a failed attempt that is not retried; of several errors the first one counts (seed
  decision 002). Its good end is left to the records.
- Secrets are redacted before an event is made, so a key that is cut in two is in neither delta.
- Nothing that a crystal emits after its answer belongs to it: `close` ends the stream.
"""

from __future__ import annotations

from collections.abc import Callable

from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.redact.stream import RedactedStream
from cantrip_actors.stream.events import AttemptFailedEvent, DeltaEvent, ItemEndEvent, StreamedEvent
from cantrip_actors.stream.wire import (
    AttemptFailed,
    Emitted,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemId,
    ItemStart,
    ItemType,
    ResponseDone,
    ResponseError,
    StreamError,
)


class AnswerStream:
    """The streamed events of one query for the turn `turn_id`. `now` returns seconds since the epoch.

    `redactor` returns the redactor of the moment, because a runtime learns secrets while it runs.
    """

    def __init__(
        self, entity_id: str, turn_id: str, now: Callable[[], float], redactor: Callable[[], Redactor]
    ) -> None:
        self.is_closed = False
        self.entity_id = entity_id
        self._turn_id = turn_id
        self._now = now
        self._redactor = redactor
        self._attempt = 1
        self._open: dict[str, ItemType] = {}
        """The open items of the attempt, by block."""
        self._ended: set[str] = set()
        """The blocks that have ended."""
        self._texts: dict[str, RedactedStream] = {}
        """The redacted streams of growing texts, which hold back an end in which a secret may begin."""
        self._has_failed = False

    def close(self) -> None:
        """End the stream: the crystal has answered, or its query is over."""
        self.is_closed = True

    def read(self, emitted: Emitted) -> StreamedEvent | None:
        """Return the event of a payload; None if it adds nothing."""
        if self.is_closed:
            return None
        match emitted:
            case ItemDelta():
                return self._grow_item(emitted)
            case ItemStart():
                return self._start_item(emitted)
            case ItemDone() | ItemError() | ItemCancelled():
                return self._end_item(emitted)
            case AttemptFailed():
                self._attempt += 1
                for items in (self._open, self._ended, self._texts):
                    items.clear()
                return self._fail(emitted.error, is_retried=True)
            case ResponseError() | ResponseDone(status="error"):
                return self._fail(_find_error(emitted), is_retried=False)
            case _:
                return None

    def _start_item(self, start: ItemStart) -> DeltaEvent | None:
        block = start.item_id
        if block in self._open:
            return None
        self._ended.discard(block)
        self._open[block] = start.item_type
        text = self._redact_text(block, start.initial_content) if start.initial_content else ""
        return DeltaEvent(
            self.entity_id,
            self._now(),
            self._turn_id,
            self._make_item_id(block),
            start.item_type,
            text,
            is_start=True,
            gate=start.name or "",
            tool_call_id=start.call_id or "",
        )

    def _grow_item(self, delta: ItemDelta) -> DeltaEvent | None:
        block, kind = delta.item_id, self._open.get(delta.item_id)
        text = "" if kind is None else self._redact_text(block, delta.delta_content)
        if kind is None or not text:
            return None
        return DeltaEvent(self.entity_id, self._now(), self._turn_id, self._make_item_id(block), kind, text)

    def _end_item(self, end: ItemDone | ItemError | ItemCancelled) -> ItemEndEvent | None:
        block = end.item_id
        if isinstance(end, ItemDone) and block in self._ended:
            return None
        self._open.pop(block, None)
        self._texts.pop(block, None)
        self._ended.add(block)
        shown = self._redactor().value(end)
        final = shown.final_item if isinstance(shown, ItemDone) else None
        error = shown.error if isinstance(shown, ItemError) else None
        return ItemEndEvent(self.entity_id, self._now(), self._turn_id, self._make_item_id(block), final, error)

    def _fail(self, error: StreamError, *, is_retried: bool) -> AttemptFailedEvent | None:
        if self._has_failed and not is_retried:
            return None
        self._has_failed = not is_retried
        shown = self._redactor().value(error)
        return AttemptFailedEvent(self.entity_id, self._now(), self._turn_id, shown, is_retried)

    def _make_item_id(self, block: str) -> str:
        return str(ItemId(self._turn_id, self._attempt, block))

    def _redact_text(self, block: str, text: str) -> str:
        if block not in self._texts:
            self._texts[block] = RedactedStream(self._redactor())
        return self._texts[block].feed(text)


def _find_error(end: ResponseError | ResponseDone) -> StreamError:
    fallback = "RESPONSE_ERROR"
    if isinstance(end, ResponseDone):
        fallback = end.finish_reason or fallback
    return end.error or StreamError(fallback, "Response finished with error status")
