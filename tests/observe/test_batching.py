"""A growing text with an interval: each word as it comes, and never more often than the interval says."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.observe import Batching
from cantrip_actors.observe.batching import GROWTH, LONGEST_INTERVAL, WHOLE_TEXTS, GrowingText

pytestmark = pytest.mark.rule("W-10")


def play(batching: Batching, pieces: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return when a text is shown whose pieces arrive after these waits, and what is shown then."""
    text, now, shown = GrowingText(batching), 0.0, []
    for wait, piece in pieces:
        now += wait
        if text.due <= now:
            shown.append((text.due, text.show()))
        if text.add(piece, now):
            shown.append((now, text.show()))
    if text.due < math.inf:
        shown.append((text.due, text.show()))
    return shown


@given(st.lists(st.tuples(st.floats(0, 0.2), st.text(" ab", max_size=400)), max_size=60))
@pytest.mark.parametrize("batching", [GROWTH, WHOLE_TEXTS], ids=["growth", "whole texts"])
def test_each_piece_is_shown_within_an_interval_and_none_is_shown_sooner(
    batching: Batching, pieces: list[tuple[float, str]]
) -> None:
    assert batching.interval is not None
    shown = play(batching, pieces)
    times = [at for at, _ in shown]
    assert all(after - before >= batching.interval - 1e-9 for before, after in itertools.pairwise(times))
    now, whole = 0.0, ""
    for wait, piece in pieces:
        now, whole = now + wait, whole + piece
        longest = batching.interval if batching.rate is None else LONGEST_INTERVAL
        if whole.strip() and piece:
            assert any(at <= now + longest + 1e-9 and text.startswith(whole) for at, text in shown)


def test_a_model_that_says_fifty_words_a_second_is_shown_word_by_word() -> None:
    for batching in (GROWTH, WHOLE_TEXTS):
        shown = play(batching, [(0.02, f"{number} ") for number in range(250)])
        assert len(shown) == 250
        assert shown[0][0] == 0.02


def test_a_long_text_is_sent_whole_less_often() -> None:
    pieces = [(0.01, "word " * 20)] * 1_000
    assert len(play(GROWTH, pieces)) == pytest.approx(500, rel=0.4)
    assert len(play(WHOLE_TEXTS, pieces)) < 180
