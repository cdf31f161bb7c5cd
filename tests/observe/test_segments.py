"""Folding a dialect of deltas gives what the upserts said in the end, for any stream."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.http.openai_encoders import BETWEEN, ChatEncoder, ResponseEncoder
from cantrip_actors.observe import MessageUpsert, Output, ThinkingUpsert
from cantrip_actors.observe.segments import Segments
from cantrip_actors.terms.outcome import Outcome

WHEN = {"source_timestamp": "2026-01-01T00:00:00.000Z", "emitted_at": "2026-01-01T00:00:00.000Z"}
texts = st.text("ab \n", max_size=6)


def upsert(item: int, status: Any, text: str, *, thinks: bool = False) -> Output:
    common: dict[str, Any] = {"status": status, "turn_id": "t", "session_id": "s", "item_id": f"t:1:{item}", **WHEN}
    return ThinkingUpsert(content=text, provider_id="p", **common) if thinks else MessageUpsert(content=text, **common)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Output], list[str]]:
    """Interleaved items that grow, are sometimes rewritten at their end, and the final texts of the messages."""
    items = draw(st.lists(st.tuples(st.booleans(), st.lists(texts, min_size=1, max_size=3), texts), max_size=4))
    queues: list[list[Output]] = []
    finals: list[str] = []
    for n, (thinks, grows, other) in enumerate(items):
        whole = "".join(grows)
        final = draw(st.sampled_from([whole, whole + other, other]))
        steps = ["".join(grows[: i + 1]) for i in range(len(grows))]
        queues.append([upsert(n, "create" if i == 0 else "update", one, thinks=thinks) for i, one in enumerate(steps)])
        queues[-1].append(upsert(n, "complete", final, thinks=thinks))
        if not thinks:
            finals.append(final)
    outputs: list[Output] = []
    while any(queues):
        queue = draw(st.sampled_from([one for one in queues if one]))
        outputs.append(queue.pop(0))
    return outputs, finals


def squeezed(text: str) -> str:
    return "".join(text.split())


def data(parts: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for part in parts:
        line = part.partition(b"data: ")[2].strip()
        if line != b"[DONE]":
            yield json.loads(line)


@pytest.mark.rule("WIRE-06")
@given(streams())
def test_items_come_one_after_the_other_and_end_as_the_upserts_ended(case: tuple[list[Output], list[str]]) -> None:
    outputs, finals = case
    segments = Segments()
    pieces = [piece for output in outputs for piece in segments.add(output)]
    pieces += segments.finish(None)
    open_item, said, texts = None, {}, dict[int, str]()
    for piece in pieces:
        assert (piece.step == "begin") == (open_item is None)
        assert piece.step != "grow" or piece.text
        open_item = None if piece.step == "end" else piece.number
        if piece.step == "grow":
            texts[piece.number] = texts.get(piece.number, "") + piece.text
        if piece.step == "end":
            assert texts[piece.number] == piece.text
            said[piece.number] = (piece.kind, squeezed(piece.text))
    assert open_item is None
    spoken = [text for kind, text in said.values() if kind == "message"]
    for final in finals:
        assert not squeezed(final) or squeezed(final) in spoken


@pytest.mark.rule("WIRE-06")
@given(streams(), texts)
def test_folding_openais_dialects_gives_the_final_texts(case: tuple[list[Output], list[str]], answer: str) -> None:
    outputs, finals = case
    outcome = Outcome(answer, "terminated", terminated=True)
    chat, response = ChatEncoder("i", "m", 0, with_usage=False), ResponseEncoder("i", "m", 0)
    chunks = [*data(chat.begin())]
    events = [*data(response.begin())]
    for output in outputs:
        chunks += data(chat.add(output))
        events += data(response.add(output))
    chunks += data(chat.end(outcome))
    events += data(response.end(outcome))
    folded = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
    for final in (*finals, answer):
        assert squeezed(final) in squeezed(folded)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    said = [item["content"][0]["text"] for item in output if item["type"] == "message"]
    assert BETWEEN.join(said) == folded
    assert [event["type"] for event in events].count("response.output_item.added") == len(output)
