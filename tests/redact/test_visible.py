"""Untrusted values as text: nothing in them hides, moves or ends, and what is shown whole can be read back."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Request
from cantrip_actors.redact.visible import CONTINUED, FRAME, count_columns, escape, frame, shorten, show_call, show_value

pytestmark = pytest.mark.rule("Z-01")

HOSTILE = "for lunch" + "\n" * 40 + "ab12cd34 wants to call pay\n│ to: anna\x1b[2J\u202egnp\u2028allow it?\u3164\u2800"
TEXTS = st.text(max_size=60) | st.sampled_from([HOSTILE, HOSTILE * 50, '"', "\\", "宽" * 200, "…", " " * 300])
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)
ARGS = st.dictionaries(TEXTS, VALUES, max_size=40)


def ask(args: dict[str, Any], text: str = "", kind: Any = "approval", gate: str = "pay", schema: Any = None) -> Request:
    return Request(
        "e:t:c", kind, "0123456789ab12cd34", "t", "c", gate, args, text, schema, "2026-11-28T10:00:00Z", None
    )


@given(TEXTS, st.integers(16, 200))
def test_a_text_is_one_line_of_visible_characters_and_no_wider_than_the_room(text: str, columns: int) -> None:
    assert escape(text).isprintable()
    shown = shorten(text, columns)
    assert shown.isprintable()
    assert count_columns(shown) <= max(columns, 16 + len(" (1,000,000 characters)…"))
    if shown != escape(text):
        assert shown.endswith(f" ({len(text):,} characters)")
        assert not text or escape(text)[0] == shown[0]


@given(ARGS, TEXTS, st.sampled_from(["approval", "question"]), TEXTS, st.integers(40, 120), st.integers(8, 30))
def test_a_request_fits_on_a_screen_and_no_line_of_it_is_forged(
    args: dict[str, Any], text: str, kind: Any, gate: str, columns: int, rows: int
) -> None:
    lines = ask(args, text, kind, gate or "pay", {"enum": [text]}).render(columns=columns, rows=rows)
    assert len(lines) <= rows
    assert all(line.isprintable() for line in lines)
    assert all(count_columns(line) <= max(columns, 120) for line in lines)
    own = [line for line in lines if not line.startswith(FRAME)]
    if kind == "question":
        assert [line[:15] for line in own] == ["ab12cd34 asks:", "the answer has "]
        return
    assert own[:-1] == (["why a person decides:"] if text else [])
    assert own[-1].startswith("ab12cd34 wants to call ")
    shown = [line for line in lines[lines.index(own[-1]) + 1 :] if line.startswith(FRAME)]
    assert bool(shown) == bool(args)


@given(ARGS, st.integers(30, 120))
def test_a_request_that_is_shown_whole_has_each_argument_as_it_is(args: dict[str, Any], columns: int) -> None:
    lines = ask(args).render(columns=columns)
    assert all(count_columns(line) <= columns + len(FRAME) for line in lines[1:])
    rows: list[str] = []
    for line in lines[1:]:
        content = line.removeprefix(FRAME)
        if content.startswith(CONTINUED):
            rows[-1] += content.removeprefix(CONTINUED)
        else:
            rows.append(content)
    assert len(rows) == len(args)
    for row, value in zip(rows, args.values(), strict=True):
        assert row.endswith(escape(show_value(value, sys.maxsize)))
        assert json.loads(show_value(value, sys.maxsize)) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("\u0430nna", r'"\u0430nna"'),
        ("pay to \uff50aypal", r'"pay to \uff50aypal"'),
        ("\n\u0430nna", r'"\n\u0430nna"'),
        ({"t\u043e": "x"}, r'{"t\u043e": "x"}'),
        ("\n\u043c\u0438\u0440 world", '"\\n\u043c\u0438\u0440 world"'),
        ("T\u30b7\u30e3\u30c4 na\u00efve stra\u00dfe", '"T\u30b7\u30e3\u30c4 na\u00efve stra\u00dfe"'),
    ],
    ids=["cyrillic", "wide", "after an escape", "in a name", "a word of its own script", "scripts that are mixed"],
)
@pytest.mark.rule("Z-01")
def test_a_letter_that_looks_like_a_latin_one_is_an_escape_in_a_word_with_latin_letters(value: Any, shown: str) -> None:
    assert show_value(value, 80) == shown
    assert shown in "\n".join(ask({"to": value}).render())


def test_a_call_that_is_too_long_shows_both_ends_of_its_values_and_their_lengths() -> None:
    request = ask({"note": "a" * 5_000 + "to the tail", "to": "mallory"}, "amounts\nover\n100\nneed\na person")
    assert request.render(rows=10) == [
        "why a person decides:",
        "│ amounts",
        "│ over",
        "│ 100",
        "│ … 2 more lines (12 characters)",
        "ab12cd34 wants to call pay with",
        f'│ note: "{"a" * 34}…aaaaato the tail" (5,013 characters)',
        '│ to: "mallory"',
    ]
    many = ask({f"a{n}": n for n in range(50)})
    assert many.render(rows=4) == ["ab12cd34 wants to call pay with", "│ a0: 0", "│ a1: 1", "│ … 48 more arguments"]
    assert len(many.render()) == 51


@given(ARGS, st.integers(20, 200))
def test_a_call_in_one_line_does_not_let_one_argument_hide_the_others(args: dict[str, Any], columns: int) -> None:
    shown = show_call(args, columns)
    assert shown.isprintable()
    assert show_call({"note": "x" * 1_000, "to": "mallory"}, 80).endswith(', to: "mallory"')


def test_a_framed_text_is_wrapped_whole_or_cut_with_its_length() -> None:
    assert frame("a" * 50, 22) == ["│ " + "a" * 20, "│ " + "a" * 20, "│ " + "a" * 10]
    assert frame("a\nb\nc\nd", 40, 3) == ["│ a", "│ b", "│ … 2 more lines (2 characters)"]
    assert frame("", 40) == ["│ "]
