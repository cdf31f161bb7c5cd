"""The text of an entity in pieces, as a reader shows it while it grows: one pure reducer over events.

The pieces of a turn, joined, are the text of its utterance. Deltas show an answer one word late, and a reader may have
missed some; so the end of each item, and the recorded text, add what is missing. Programs and thinking are no text.
"""

from __future__ import annotations

from typing import Final

from cantrip_actors.stream.events import AttemptFailedEvent, DeltaEvent, EntityEvent, ItemEndEvent, TextEvent
from cantrip_actors.stream.wire import FinalMessage

BREAK: Final = "\n\n"
"""Between the texts of two turns."""


class TextPieces:
    """Follows the events of one entity."""

    def __init__(self) -> None:
        self._turn_id = ""
        self._turn = ""
        """The text of this turn so far, in all pieces."""
        self._item_id = ""
        self._item = ""
        """The text of this item so far: deltas add to it."""
        self._is_partial = False
        """Whether a part of this answer was missed: then its recorded text brings the rest."""
        self._has_any = False
        """Whether an earlier turn had a text."""

    @property
    def turn(self) -> str:
        """The text of the last turn that has one, so far."""
        return self._turn

    def add(self, event: EntityEvent) -> str:
        """Return the piece of text that an event adds, "" for none."""
        match event:
            case DeltaEvent(kind="message"):
                self._follow_turn(event.turn_id)
                if event.is_start:
                    self._item_id, self._item = event.item_id, ""
                return self._append_streamed(event.item_id, event.text)
            case ItemEndEvent(final=FinalMessage(content=content)):
                self._follow_turn(event.turn_id)
                return self._append_streamed(event.item_id, _find_rest(content, self._item))
            case AttemptFailedEvent():
                self._begin_turn(event.turn_id)
                return ""
            case TextEvent(is_code=False):
                self._follow_turn(event.turn_id)
                return self._append(_find_rest(event.text, self._turn))
            case _:
                return ""

    def _follow_turn(self, turn_id: str) -> None:
        if turn_id != self._turn_id:
            self._begin_turn(turn_id)

    def _begin_turn(self, turn_id: str) -> None:
        self._has_any = self._has_any or bool(self._turn)
        self._turn_id, self._turn = turn_id, ""
        self._item_id, self._is_partial = "", False

    def _append_streamed(self, item_id: str, piece: str) -> str:
        self._is_partial = self._is_partial or item_id != self._item_id
        if self._is_partial:
            return ""
        self._item += piece
        return self._append(piece)

    def _append(self, piece: str) -> str:
        begins = bool(piece) and not self._turn and self._has_any
        self._turn += piece
        return BREAK + piece if begins else piece


def _find_rest(text: str, beginning: str) -> str:
    """Return what follows a beginning; "" if the text does not begin so, because it was shown in another form."""
    return text.removeprefix(beginning) if text.startswith(beginning) else ""
