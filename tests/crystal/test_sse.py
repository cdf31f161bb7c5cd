"""From bytes to events, however they are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import sse
from cantrip_actors.crystal.sse import Framing, ServerSentEvent, Sse
from cantrip_actors.terms.errors import ProviderError


def parsed(*chunks: bytes, parser=Sse) -> list[ServerSentEvent]:
    made = parser()
    return [event for chunk in chunks for event in made.feed(chunk)] + made.close()


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


STREAM = (
    b'\xef\xbb\xbf: a comment\nevent: one\ndata: {"a":1}\n\ndata:no space\ndata\ndata:  two spaces\nid: 7\nretry: 3\n\n'
    b"event: without data\n\n\n\nunknown: field\ndata: \xe2\x82\xac\n\n: end\n"
)
EVENTS = [
    ServerSentEvent(b'{"a":1}', "one"),
    ServerSentEvent(b"no space\n\n two spaces"),
    ServerSentEvent("€".encode()),
]


class TestEvents:
    """Server-sent events."""

    @pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
    def test_every_kind_of_line_end_is_accepted(self, ends):
        assert parsed(STREAM.replace(b"\n", ends)) == EVENTS

    @given(st.lists(st.integers(0, 500), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
    def test_any_chunks_give_the_same_events(self, places, ends):
        text = STREAM.replace(b"\n", ends)
        assert parsed(*cut(text, places)) == EVENTS
        assert parsed(*(text[at : at + 1] for at in range(len(text)))) == EVENTS

    def test_an_event_whose_blank_line_is_missing_counts(self):
        for end in (b"", b"\n"):
            assert parsed(b"data: {}" + end) == [ServerSentEvent(b"{}")]

    def test_mixed_line_ends_are_accepted(self):
        assert parsed(b"data: 1\r\n\ndata: 2\r\r\ndata: 3\n\r\n") == [
            ServerSentEvent(b"1"),
            ServerSentEvent(b"2"),
            ServerSentEvent(b"3"),
        ]

    @given(st.lists(st.tuples(st.sampled_from(["", "delta", "x"]), st.text(min_size=1, max_size=40)), max_size=10))
    def test_written_events_are_read_back(self, given_events):
        text = b"".join(
            (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data)}\n\n".encode()
            for name, data in given_events
        )
        assert parsed(text) == [ServerSentEvent(json.dumps(data).encode(), name) for name, data in given_events]

    def test_an_event_of_many_lines_is_refused_before_it_fills_the_memory(self, monkeypatch):
        monkeypatch.setattr(sse, "LIMIT", 1000)
        for line in (b"data:\n", b"data\n", b"data: 12345\n"):
            with pytest.raises(ProviderError, match="1000 bytes"):
                Sse().feed(line * 1000)
            assert parsed(*[line * 20 + b"\n"] * 20)  # each event counts by itself

    def test_a_line_without_end_is_refused_before_it_fills_the_memory(self, monkeypatch):
        monkeypatch.setattr(sse, "LIMIT", 1000)
        with pytest.raises(ProviderError, match="a line of more than 1000 bytes"):
            parsed(*[b"data: " + b"x" * 100] * 20)
        with pytest.raises(ProviderError, match="an event of more than 1000 bytes"):
            parsed(*[b"data: " + b"x" * 100 + b"\n"] * 20)
        with pytest.raises(ProviderError, match="a body of more than 1000 bytes"):
            parsed(b"{", *[b"x" * 100] * 20, parser=Framing)


class TestFraming:
    """Servers that stream nothing, or in a way of their own, and do not say so."""

    @pytest.mark.parametrize("size", [1, 3, 1000])
    @pytest.mark.parametrize(
        ("text", "events"),
        [
            (b'{"a": 1}', [b'{"a": 1}']),
            (b'\n  {\n "a": 1,\n "b": [\n2]}\n', [b'{\n "a": 1,\n "b": [\n2]}']),
            (b'{"a": 1}\n{"b": 2}\r\n\n{"c": 3}', [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']),
            (b'[{"a": 1},\n{"b": 2}]', [b'{"a":1}', b'{"b":2}']),
            (b'[{"a": 1}, {"b": 2}]\n', [b'{"a":1}', b'{"b":2}']),
            (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
            (b"\n\n: hello\n\ndata: 1\n\n", [b"1"]),
            (b"", []),
            (b" \n ", []),
        ],
    )
    def test_the_framing_of_a_stream_is_detected(self, text, events, size):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert [event.data for event in parsed(*chunks, parser=Framing)] == events

    def test_a_page_instead_of_a_stream_is_an_error(self):
        with pytest.raises(ProviderError, match="a page instead of a stream"):
            parsed(b"<html>the proxy's</html>", parser=Framing)

    @given(st.binary(max_size=200), st.integers(1, 50))
    def test_any_other_text_gives_events_or_an_error(self, data, size):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        try:
            found = parsed(*chunks, parser=Framing)
        except ProviderError:
            return
        assert all(isinstance(event.data, bytes) for event in found)
