"""Half characters in JSON texts, whole and in pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.terms.exact_json import parse_exactly
from cantrip_actors.terms.half_characters import HalfCharacterFilter, replace_half_characters

pytestmark = pytest.mark.rule("V-02")

TEXTS = st.text(st.sampled_from('\ud83d\ude00\ud83c\udffe\\ud83"\né😀한\uffff') | st.characters(), max_size=12)
VALUES = st.recursive(TEXTS | st.integers() | st.none(), lambda parts: st.lists(parts) | st.dictionaries(TEXTS, parts))


def join(text: str) -> str:
    """Return a text whose halves are joined to characters, or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(TEXTS)
def test_half_characters_are_replaced_and_nothing_else_changes(text: str) -> None:
    assert parse_exactly(json.dumps([text])) == [join(text)]


@given(VALUES, st.booleans(), st.lists(st.integers(1, 9)))
def test_a_text_in_pieces_is_the_whole_text_without_half_characters(
    value: object, indented: bool, sizes: list[int]
) -> None:
    text = json.dumps(value, indent=1 if indented else None).encode()
    rest, pieces, filtering = text, list[bytes](), HalfCharacterFilter()
    for size in sizes:
        pieces.append(filtering.feed(rest[:size]))
        rest = rest[size:]
    pieces += [filtering.feed(rest), filtering.finish()]
    assert b"".join(pieces) == replace_half_characters(text)
