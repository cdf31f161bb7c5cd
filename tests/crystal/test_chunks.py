"""Chunks with only more text take a fast path, with the same result as the full path (R-32)."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal.draft import Decoder
from cantrip_actors.crystal.families.chat import ChatDecoder
from cantrip_actors.crystal.families.google import GoogleDecoder
from cantrip_actors.crystal.families.responses import ResponsesDecoder
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.terms.errors import CrystalError

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.rule("R-32")

words = st.sampled_from(["word ", "", "<think>", "</think>", "\n", None])
junk = st.sampled_from([None, [], {}, "x", 0, 1])


def some(**fields):
    """Mappings with some of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


calls = st.just([{"index": 0, "id": "c1", "function": {"name": "read", "arguments": "{}"}}])
chat_delta = some(
    content=words,
    role=st.just("assistant"),
    reasoning_content=words,
    refusal=words,
    tool_calls=calls | junk,
    function_call=junk,
    images=junk,
    annotations=junk,
)
chat_choice = some(
    delta=chat_delta,
    index=st.sampled_from([0, 0, 1, None]),
    finish_reason=st.sampled_from([None, "stop"]),
    logprobs=junk,
)
chat = some(
    id=st.just("c"),
    model=st.just("m"),
    object=st.just("chunk"),
    choices=st.lists(chat_choice, max_size=2) | junk,
    usage=st.sampled_from([None, {"prompt_tokens": 5, "completion_tokens": 3}]),
    provider=st.sampled_from([None, "Acme"]),
    x_groq=st.sampled_from([None, {"usage": {"prompt_tokens": 7}}]),
)

google_part = some(
    text=words, thought=st.booleans(), thoughtSignature=st.just("s"), functionCall=st.just({"name": "f"})
)
google_candidate = some(
    content=some(parts=st.lists(google_part, max_size=2) | junk) | junk,
    index=st.sampled_from([0, 0, 1, None]),
    finishReason=st.sampled_from(["STOP", "MAX_TOKENS", "FINISH_REASON_UNSPECIFIED"]),
    groundingMetadata=st.just({"webSearchQueries": ["q"]}),
    safetyRatings=junk,
)
google = some(
    candidates=st.lists(google_candidate, max_size=2) | junk,
    usageMetadata=st.fixed_dictionaries({"promptTokenCount": st.integers(0, 9)}),
    modelVersion=st.just("gemini"),
)

item = st.sampled_from([{"type": "message", "id": "i", "content": []}, {"type": "reasoning", "id": "j"}])
place = st.sampled_from([0, 1, None, True])
responses = st.one_of(
    some(type=st.just("response.output_item.added"), output_index=place, item=item),
    some(
        type=st.sampled_from(["response.output_text.delta", "response.refusal.delta"]),
        output_index=place,
        item_id=st.sampled_from(["i", "j", None]),
        delta=words | junk,
        sequence_number=st.integers(0, 9),
    ),
    some(type=st.just("response.output_item.done"), output_index=place, item=item),
    st.just({"type": "response.completed", "response": {"status": "completed", "output": []}}),
)


def decoded(kind: type[Decoder], values, *, short: bool):
    """What a stream comes to: the payloads, and the response or the error."""
    decoder = kind()
    if not short:
        decoder._try_extend = lambda *_: False
    payloads = []
    try:
        for value in values:
            payloads += decoder.feed(ServerSentEvent(orjson.dumps(value)))
        return payloads, decoder.finish(), decoder.draft.take()
    except CrystalError as error:
        return payloads, str(error), decoder.fail(error)


@pytest.mark.parametrize(
    ("kind", "chunk"), [(ChatDecoder, chat), (GoogleDecoder, google), (ResponsesDecoder, responses)]
)
def test_the_fast_path_decodes_a_stream_to_the_same_answer(kind, chunk):
    @given(st.lists(chunk, min_size=2, max_size=12))
    def holds(values):
        assert decoded(kind, values, short=True) == decoded(kind, values, short=False)

    holds()


@pytest.mark.parametrize("kind", [ChatDecoder, GoogleDecoder])
def test_most_chunks_of_a_text_take_the_fast_path(kind, monkeypatch):
    chunks = {
        ChatDecoder: {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "word "}}]},
        GoogleDecoder: {"candidates": [{"content": {"parts": [{"text": "word "}]}, "index": 0}], "modelVersion": "g"},
    }
    decoder = kind()
    decoder.feed(ServerSentEvent(orjson.dumps(chunks[kind])))
    monkeypatch.setattr(decoder, "_read_choice" if kind is ChatDecoder else "_read_part", pytest.fail)
    for _ in range(3):
        assert len(decoder.feed(ServerSentEvent(orjson.dumps(chunks[kind])))) == 1


def test_crystals_are_measured_against_another_commit():
    command = [sys.executable, "-m", "bench", "crystals", "--rounds", "1", "--turns", "70", "--json"]
    ran = subprocess.run(
        [*command, "--beside", str(ROOT)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    told = orjson.loads(ran.stdout)
    families = ("anthropic", "openai-responses", "openai-chat", "google")
    assert all(told[family][what] > 0 for family in families for what in ("chunk", "x_raw", "x_chunk", "x_turn"))
    assert ran.returncode == (1 if told["over"] else 0)
