"""The pieces of a text, joined, are the text, whatever a reader has missed (Y-20)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.stream.events import AttemptFailedEvent, DeltaEvent, EntityEvent, ItemEndEvent, TextEvent
from cantrip_actors.stream.pieces import BREAK, TextPieces
from cantrip_actors.stream.wire import FinalMessage, FinalReasoning, StreamError

pytestmark = pytest.mark.rule("Y-20")

words = st.lists(st.text("ab ", min_size=1, max_size=3), min_size=1, max_size=4)


@given(st.lists(st.tuples(words, st.integers(0, 4), st.integers(0, 2), st.booleans(), st.booleans()), max_size=3))
def test_the_pieces_of_each_turn_are_its_text(turns: list[tuple[list[str], int, int, bool, bool]]) -> None:
    events: list[EntityEvent] = []
    for number, (parts, shown, missed, has_end, thinks) in enumerate(turns):
        turn, text = str(number), "".join(parts)
        if thinks:
            events.append(DeltaEvent("e", 0.0, turn, "t", "reasoning", "hm"))
            events.append(ItemEndEvent("e", 0.0, turn, "t", FinalReasoning("hm hm", "x")))
        streamed = [DeltaEvent("e", 0.0, turn, "m", "message", part) for part in parts[:shown]]
        events += [DeltaEvent("e", 0.0, turn, "m", "message", "", is_start=True), *streamed][missed:]
        if has_end:
            events.append(ItemEndEvent("e", 0.0, turn, "m", FinalMessage(text, "agent")))
        events += [TextEvent("e", 0.0, turn, text), TextEvent("e", 0.0, turn, "x = 1", is_code=True)]
    pieces = TextPieces()
    assert "".join(map(pieces.add, events)) == BREAK.join("".join(parts) for parts, *_ in turns)


def test_the_text_of_a_failed_attempt_is_followed_by_that_of_the_next() -> None:
    def attempt(number: int, *parts: str) -> list[EntityEvent]:
        item = f"t:{number}:0"
        return [
            DeltaEvent("e", 0.0, "t", item, "message", "", is_start=True),
            *(DeltaEvent("e", 0.0, "t", item, "message", part) for part in parts),
        ]

    failed = AttemptFailedEvent("e", 0.0, "t", StreamError("RETRY", "gone"))
    events = [*attempt(1, "one "), failed, *attempt(2, "two "), TextEvent("e", 0.0, "t", "two words")]
    assert "".join(map(TextPieces().add, events)) == f"one {BREAK}two words"
