"""The upserts of one episode as growing text, from which every dialect of deltas is encoded.

An upsert carries the whole text of an item, a dialect its new suffix. So this remembers the sent part of each item, and
sends only the other part. Items come strictly one after the other: while one is open, a later one waits. If the final
text of an item does not begin with the streamed text, nothing can be taken back: the item is closed, and the final text
follows as an item of its own, if the two differ by more than white space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cantrip_actors.observe.upserts import MessageUpsert, Output, ThinkingUpsert

SegmentKind = Literal["message", "thinking"]


class Piece(NamedTuple):
    """A step of one item: it begins, grows by `text`, or ends with `text` as everything that was sent of it."""

    step: Literal["begin", "grow", "end"]
    kind: SegmentKind
    number: int
    """The item's number in this stream, from 0."""
    text: str = ""


@dataclass(slots=True)
class _SentItem:
    """The known content of an item, and the sent part of it."""

    kind: SegmentKind
    text: str = ""
    is_final: bool = False
    sent: str = ""
    number: int = -1


class Segments:
    """Turns the upserts of one entity into pieces. Of a typed answer they are the reasoning and the answer at the end:
    what the crystal says before may be refused, and a reader takes all texts for the answer.
    """

    def __init__(self, *, is_typed: bool = False) -> None:
        self._is_typed = is_typed
        self._items: dict[tuple[str, str, str], _SentItem] = {}
        """Items that were not sent completely, in their order."""
        self._count = 0
        self._said = ""
        """The text of the last message that was sent completely."""

    def add(self, output: Output) -> Iterator[Piece]:
        """Yield the pieces that an output adds."""
        if not isinstance(output, (MessageUpsert, ThinkingUpsert)):
            return
        if isinstance(output, MessageUpsert) and (self._is_typed or output.origin != "agent"):
            return
        kind: SegmentKind = "message" if isinstance(output, MessageUpsert) else "thinking"
        item = self._items.setdefault(output.key, _SentItem(kind))
        if output.status != "error":  # of an abandoned attempt, the sent part stays
            item.text = output.content
        item.is_final = output.terminal
        yield from self._send()

    def restart(self) -> None:
        """Begin the items that are open again, as new ones with their whole text."""
        for item in self._items.values():
            item.sent, item.number = "", -1

    def finish(self, answer: str | None) -> Iterator[Piece]:
        """Yield the rest of open items; then the answer, unless it equals the last message."""
        for item in self._items.values():
            item.is_final = True
        yield from self._send()
        if answer is not None and _squeeze(answer) != _squeeze(self._said):
            yield from self._cut_whole("message", answer)

    def _send(self) -> Iterator[Piece]:
        for key, item in list(self._items.items()):
            if item.text.startswith(item.sent):
                rest = item.text[len(item.sent) :]
                if rest:
                    yield from self._grow(item, rest)
            if not item.is_final:
                return
            del self._items[key]
            yield from self._close(item)

    def _grow(self, item: _SentItem, rest: str) -> Iterator[Piece]:
        if item.number < 0:
            item.number, self._count = self._count, self._count + 1
            yield Piece("begin", item.kind, item.number)
        item.sent += rest
        yield Piece("grow", item.kind, item.number, rest)

    def _close(self, item: _SentItem) -> Iterator[Piece]:
        if item.number >= 0:
            if item.kind == "message":
                self._said = item.sent
            yield Piece("end", item.kind, item.number, item.sent)
        if item.text and _squeeze(item.text) != _squeeze(item.sent):
            yield from self._cut_whole(item.kind, item.text)

    def _cut_whole(self, kind: SegmentKind, text: str) -> Iterator[Piece]:
        item = _SentItem(kind)
        if text:
            yield from self._grow(item, text)
            yield from self._close(_SentItem(kind, text, is_final=True, sent=text, number=item.number))


def _squeeze(text: str) -> str:
    return "".join(text.split())
