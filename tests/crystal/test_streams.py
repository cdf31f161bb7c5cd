"""What holds for the decoders of all families: any cut, any drop, what may come twice, and what makes no sense."""

import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal.draft import Draft
from cantrip_actors.crystal.families import chat
from cantrip_actors.crystal.replay import faults
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError, ProviderError
from tests.crystal.streams import DECODERS, FAMILIES, STREAMS, Said, answers, decode, framed, frames, outcome

each_family = pytest.mark.parametrize("family", FAMILIES)
FULL = Said("thinking\n\nhard", "said and done ✓", (("read", {"path": "a/b", "n": [1, {"x": None}]}), ("done", {})))


@pytest.mark.rule("CRYSTAL-6", "CRYSTAL-4")
@each_family
@given(said=answers)
def test_every_family_decodes_its_own_stream(family, said):
    response, payloads = decode(family, [framed(family, said)])
    assert (response.content or "").strip() == said.text.strip()
    assert (response.thinking or "") == said.thinking
    assert [(call.gate, call.args) for call in response.tool_calls] == list(said.calls)
    assert all(call.id for call in response.tool_calls)
    assert response.usage.prompt_tokens == 10
    assert response.metadata["provider"] == family
    assert faults(payloads) == []


@each_family
@given(said=answers, places=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_chunks_of_the_bytes_give_the_same_answer(family, said, places):
    text = framed(family, said)
    ends = sorted(place % (len(text) + 1) for place in places)
    chunks = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert decode(family, chunks) == decode(family, [text])


@each_family
@given(said=answers, place=st.integers(0, 100_000))
def test_a_stream_that_is_cut_off_is_an_error_or_whole(family, said, place):
    text = framed(family, said)
    whole = decode(family, [text])[0]
    found = outcome(family, [text[: place % len(text)]])
    if isinstance(found, Exception):
        assert isinstance(found, ProviderError)
        assert found.retryable is not False
        assert found.status is None
    else:  # all was there but the counts, or the last blank line
        assert (found.content, found.tool_calls, found.thinking) == (whole.content, whole.tool_calls, whole.thinking)


@each_family
def test_a_stream_that_is_cut_off_at_any_byte_is_an_error_or_whole(family):
    text = framed(family, FULL)
    whole = decode(family, [text])[0]
    for place in range(len(text)):
        found = outcome(family, [text[:place]])
        assert isinstance(found, ProviderError) or found.tool_calls == whole.tool_calls


@each_family
@given(said=answers, chance=st.randoms(use_true_random=False))
def test_keep_alives_anywhere_change_nothing(family, said, chance):
    parts = [events(value) for value in STREAMS[family](said)]
    for _ in range(5):
        alive = chance.choice([b": PROCESSING\n\n", b"\n\n", b"event: ping\n\n", b": \n"])
        if family == "anthropic":
            alive = chance.choice([alive, events({"type": "ping"}), events({"type": "something_new", "index": 9})])
        parts.insert(chance.randrange(len(parts)), alive)
    assert decode(family, [b"".join(parts)])[0] == decode(family, [framed(family, said)])[0]


@given(said=answers, chance=st.randoms(use_true_random=False))
def test_responses_repeated_events_count_once(said, chance):
    sent = STREAMS["openai"](said)
    twice = [event for value in sent for event in [value] * chance.choice([1, 1, 2])]
    assert decode("openai", [events(*twice)]) == decode("openai", [events(*sent)])


@given(said=answers)
def test_anthropic_blocks_may_interleave(said):
    sent = STREAMS["anthropic"](said)
    starts = [value for value in sent if value["type"] == "content_block_start"]
    stops = [value for value in sent if value["type"] == "content_block_stop"]
    deltas = [value for value in sent if value["type"] == "content_block_delta"]
    random.Random(3).shuffle(stops)
    by_turns = sorted(deltas, key=lambda delta: deltas.index(delta) % 7)  # within a block the order stays
    order: dict[int, list] = {}
    for delta in deltas:
        order.setdefault(delta["index"], []).append(delta)
    mixed = [order[delta["index"]].pop(0) for delta in by_turns]
    again = [sent[0], *starts, *mixed, *stops, *sent[-2:]]
    one, other = decode("anthropic", [events(*again)])[0], decode("anthropic", [events(*sent)])[0]
    assert (one.content, one.tool_calls, one.thinking) == (other.content, other.tool_calls, other.thinking)


@each_family
@given(said=answers, place=st.integers(0, 1000), garbled=st.binary(min_size=1, max_size=20))
def test_garbage_in_the_middle_is_an_error_or_ignored(family, said, place, garbled):
    parts = [events(value) for value in STREAMS[family](said)]
    parts.insert(place % len(parts), b"\n\ndata: {" + garbled.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n")
    found = outcome(family, [b"".join(parts)])
    assert isinstance(found, (ProviderError, type(decode(family, [framed(family, said)])[0])))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@each_family
@given(said=answers, changes=st.lists(anything, min_size=1, max_size=3), chance=st.randoms(use_true_random=False))
def test_events_of_any_shape_never_break_a_decoder(family, said, changes, chance):
    sent = orjson.loads(orjson.dumps(STREAMS[family](said)))
    for change in changes:
        place = chance.choice(sent)
        while place:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.5:
                place[key] = change
                break
            place = inner
    decoder = DECODERS[family]()
    payloads = []
    try:
        for value in sent:
            payloads += decoder.feed(ServerSentEvent(orjson.dumps(value)))
        decoder.finish()
        payloads += decoder.draft.take()
    except CrystalError as error:
        payloads += decoder.fail(error)
    assert faults(payloads) == []


def test_characters_split_by_json_escapes_are_joined():
    halves = [rb'{"choices":[{"delta":{"content":"hm \ud83d"}}]}', rb'{"choices":[{"delta":{"content":"\ude00!"}}]}']
    lone = rb'{"choices":[{"delta":{"content":"\ud83d"}, "finish_reason": "stop"}]}'
    response, payloads = decode("openai-chat", [events(*halves, lone)])
    assert response.content == "hm 😀!\ufffd"
    assert faults(payloads) == []


@each_family
def test_calls_without_ids_get_ids_of_the_loop(family):
    sent = orjson.loads(orjson.dumps(STREAMS[family](Said(calls=(("read", {}), ("done", {}))))))
    text = orjson.dumps(sent).replace(b'"toolu_0"', b'""').replace(b'"toolu_1"', b"null")
    text = text.replace(b'"call_id":"call_0"', b'"call_id":""').replace(b'"call_id":"call_1"', b'"call_id":null')
    text = text.replace(b'"id":"call_0"', b'"id":""').replace(b'"id":"call_1"', b'"id":null')
    offered = frozenset({"read", "done"})
    response = decode(family, [events(*orjson.loads(text))], utterance=4, tools=offered)[0]
    assert [call.id for call in response.tool_calls] == ["call_4_1", "call_4_2"]
    assert response.with_ids(4) is response


@pytest.mark.rule("CRYSTAL-3")
def test_arguments_that_nest_too_deep_to_be_repaired_are_an_error_of_the_provider():
    deep = "[" * 200_000 + "]" * 200_000
    call = {"functionCall": {"name": "read", "args": {"number": "NaN", "deep": "DEEP"}}}
    answer = orjson.dumps({"candidates": [{"content": {"parts": [call]}, "finishReason": "STOP"}]}).decode()
    with pytest.raises(ProviderError):
        decode("google", [answer.replace('"NaN"', "NaN").replace('"DEEP"', deep).encode()])


@pytest.mark.parametrize("places", [[-5], [9], 5, [True], "x", [None], {"a": 1}])
def test_sources_at_places_that_do_not_exist_cost_no_answer(places):
    support = {"segment": {"text": "said"}, "groundingChunkIndices": places}
    grounding = {"groundingChunks": [{"web": {"uri": "https://a.example"}}], "groundingSupports": [support]}
    candidate = {
        "content": {"parts": [{"text": "said"}]},
        "finishReason": "STOP",
        "groundingMetadata": grounding,
    }
    response, _ = decode("google", [orjson.dumps({"candidates": [candidate]})])
    assert response.content == "said"
    assert "citations" not in response.metadata


def test_the_arguments_of_a_call_are_parsed_once_although_each_piece_has_its_name(monkeypatch):
    parsed = []
    parse = chat.parse_object
    monkeypatch.setattr(chat, "parse_object", lambda text: (parsed.append(text), parse(text))[1])
    decoder = DECODERS["openai-chat"]("model", tools={"write"})
    arguments = '{"text":"' + "word " * 100 + '"}'
    for at in range(0, len(arguments), 4):
        call = {"index": 0, "function": {"name": "write", "arguments": arguments[at : at + 4]}}
        decoder.feed(ServerSentEvent(orjson.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})))
    decoder.end()
    (call,) = decoder.finish().tool_calls
    assert call.args == {"text": "word " * 100}
    assert len(parsed) <= 2


def test_the_items_of_a_final_output_are_told_apart_by_their_ids_when_their_texts_are_the_same():
    decoder = DECODERS["openai"]("model")
    items = [
        {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "next", "arguments": '{"n":1}'}
        for n in range(3)
    ]
    output = [{"type": "response.output_item.added", "output_index": n, "item": item} for n, item in enumerate(items)]
    end = {"type": "response.completed", "response": {"status": "completed", "output": items}}
    for event in (*output, end):
        decoder.feed(ServerSentEvent(orjson.dumps(event)))
    calls = decoder.finish().tool_calls
    assert [(call.id, call.args) for call in calls] == [(f"call_{n}", {"n": 1}) for n in range(3)]


def test_calls_to_which_a_server_gives_one_id_get_short_ids_of_their_own():
    draft = Draft("provider", "model")
    for _ in range(1000):
        draft.call("read", "call_0")
    ids = [call.call_id for call in draft.calls]
    assert ids[:2] == ["call_0", "call_0_2"]
    assert len(set(ids)) == 1000
    assert max(map(len, ids)) <= len("call_0_1000")


@each_family
def test_an_empty_answer_is_an_error_with_its_reason(family):
    with pytest.raises(CrystalError, match=r"neither content nor tool_calls"):
        decode(family, [framed(family, Said())])


@each_family
def test_data_after_the_end_is_ignored(family):
    text = framed(family, FULL)
    late = events({"type": "error", "error": {"message": "late"}}) if family != "google" else b": late\n\n"
    if family == "bedrock":
        late = frames({"throttlingException": {"message": "late"}}, kind="exception")
    assert decode(family, [text + late])[0] == decode(family, [text])[0]


def cut_off(family, arguments):
    """An answer that ran out of tokens in its last call, of whose arguments these had come."""
    sent = STREAMS[family](Said("", "", (("read", {"path": "a"}), ("done", {"answer": "x"}))))
    if family == "anthropic":
        begun = [n for n, value in enumerate(sent) if value["type"] == "content_block_start"][-1]
        kept, delta = sent[: begun + 1], {"type": "input_json_delta", "partial_json": arguments}
        at = sent[begun]["index"]
        kept += [{"type": "content_block_delta", "index": at, "delta": delta}] if arguments else []
        reason = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}}
        return [*kept, {"type": "content_block_stop", "index": at}, reason, {"type": "message_stop"}]
    if family == "openai":
        begun = [n for n, value in enumerate(sent) if value["type"] == "response.output_item.added"][-1]
        item = {**sent[begun]["item"], "arguments": arguments, "status": "incomplete"}
        done = {"type": "response.output_item.done", "output_index": 1, "item": item}
        last = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return [*sent[: begun + 1], done, {"type": "response.incomplete", "response": last}]
    begun = [n for n, value in enumerate(sent) if "tool_calls" in (value["choices"] or [{"delta": {}}])[0]["delta"]]
    named = max(n for n in begun if "id" in sent[n]["choices"][0]["delta"]["tool_calls"][0])
    piece = {"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": arguments}}]}}
    return [
        *sent[: named + 1],
        {"choices": [piece]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    ]


@pytest.mark.parametrize("arguments", ["", '{"answer": "he'])
@pytest.mark.parametrize("family", ["anthropic", "openai", "openai-chat"])
def test_a_call_in_which_the_answer_was_cut_off_does_not_count_as_a_call_without_arguments(family, arguments):
    read, done = decode(family, [events(*cut_off(family, arguments))])[0].tool_calls
    assert (read.gate, read.args) == ("read", {"path": "a"})
    assert (done.gate, done.args) == ("done", None)


def test_a_call_in_which_a_model_declined_does_not_count_as_a_call_without_arguments():
    *sent, reason, stop = STREAMS["anthropic"](Said("", "", (("done", {}),)))
    sent = [value for value in sent if value["type"] != "content_block_delta"]
    went = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}}
    sent += [
        {"type": "content_block_start", "index": 1, "content_block": went},
        {"type": "content_block_stop", "index": 1},
    ]
    (call,) = decode("anthropic", [events(*sent, reason, stop)])[0].tool_calls
    assert call.args is None
