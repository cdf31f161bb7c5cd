"""Encoded contexts of all families: their guarantees and their cost."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import encode
from cantrip_actors.crystal.constructors import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.encode import UNANSWERED, Encoder
from cantrip_actors.terms.context import Fading, Shared, View
from cantrip_actors.terms.messages import Message, ToolCall
from tests.crystal.asking import CONTEXT, request, result, said

CRYSTALS = {
    "anthropic": anthropic("claude-sonnet-4-5", api_key="k"),
    "openai": openai("gpt-5", api_key="k"),
    "openai-chat": openai("gpt-4o", chat=True, api_key="k"),
    "google": google("gemini-3-pro-preview", api_key="k"),
    "openrouter": openrouter("x/y", api_key="k"),
    "local": local("http://localhost/v1", "m"),
    "by schema": local("http://localhost/v1", "m", tools="schema"),
}
each_family = pytest.mark.parametrize("family", CRYSTALS)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.sampled_from(["a", "b", "c d", "", "call_1_1", "x" * 90])
calls = st.builds(ToolCall, ids, st.sampled_from(["read", "done"]), st.just({"n": 1}))
messages = st.one_of(
    st.builds(Message, st.sampled_from(["user", "system"]), texts),
    st.builds(Message, st.just("assistant"), texts | st.none(), st.lists(calls, max_size=3).map(tuple)),
    st.builds(lambda id_, text: Message("tool", text, (), id_ or None, "read"), ids, texts),
)
contexts = st.lists(messages, max_size=12)


def told(family, body):
    """Which calls a request has and which results, in the order in which they stand."""
    sent = body.get("messages") or body.get("input") or body.get("contents")
    if family == "anthropic":
        ids = {"tool_use": ("call", "id"), "tool_result": ("result", "tool_use_id")}
        blocks = [block for one in sent for block in one["content"] if block["type"] in ids]
        return [(ids[block["type"]][0], block[ids[block["type"]][1]]) for block in blocks]
    if family == "openai":
        kinds = {"function_call": "call", "function_call_output": "result"}
        return [(kinds[one["type"]], one["call_id"]) for one in sent if one.get("type") in kinds]
    if family == "google":
        kinds = {"functionCall": "call", "functionResponse": "result"}
        parts = [part for one in sent for part in one["parts"]]
        return [(kinds[name], part[name]["name"]) for part in parts for name in kinds if name in part]
    found = []
    for one in sent:
        found += [("call", call["id"]) for call in one.get("tool_calls") or ()]
        found += [("result", one["tool_call_id"])] if one["role"] == "tool" else []
    return found


@pytest.mark.rule("CRYSTAL-2")
@each_family
@given(context=contexts)
def test_every_call_has_its_result_right_after_it_in_any_context(family, context):
    found = told(family, request(CRYSTALS[family], context))
    open_calls = []
    for kind, id_ in found:
        if kind == "call":
            open_calls.append(id_)
        else:
            assert open_calls.pop(0) == id_, found
    assert not open_calls
    if family not in ("google", "by schema"):
        named = [id_ for kind, id_ in found if kind == "call"]
        assert len(named) == len(set(named))


@each_family
@given(context=contexts, start=st.integers(0, 12))
def test_cached_encodings_equal_fresh_ones(family, context, start):
    crystal = CRYSTALS[family]
    crystal.family.encoder.forget()
    shared = Shared(context[:start])
    for message in context[start:]:
        request(crystal, View(shared))
        shared = shared.append(message)
    kept = request(crystal, View(shared))
    crystal.family.encoder.forget()
    assert kept == request(crystal, View(shared)) == request(crystal, list(shared))


def test_calls_of_a_server_that_repeats_one_id_are_told_apart_at_a_bounded_cost(monkeypatch):
    tried = []
    fit_id = encode.fit_id
    monkeypatch.setattr(encode, "fit_id", lambda call_id, rules: (tried.append(call_id), fit_id(call_id, rules))[1])
    turns = 200
    context = [message for _ in range(turns) for message in (said(None, ("0", "read", {})), result("0", "fine"))]
    found = told("openai-chat", request(CRYSTALS["openai-chat"], [Message("user", "go"), *context]))
    assert len({id_ for kind, id_ in found if kind == "call"}) == turns
    assert len(tried) <= 3 * turns


@each_family
def test_a_query_encodes_only_new_messages(family, monkeypatch):
    crystal = CRYSTALS[family]
    encoder = crystal.family.encoder
    encoder.forget()
    taken = []
    take = encode._Transcript.take
    monkeypatch.setattr(
        encode._Transcript, "take", lambda self, new, writer: (taken.append(len(new)), take(self, new, writer))[1]
    )
    shared = Shared([Message("system", "s"), Message("user", "go")])
    for turn in range(50):
        request(crystal, View(shared))
        shared = shared.extend([said(None, (f"c{turn}", "read", {})), result(f"c{turn}", "x" * 100)])
    assert taken == [2] + [2] * 49
    assert len(encoder._kept) == 1


def test_a_fold_a_fork_and_a_faded_result_are_encoded_anew():
    crystal = CRYSTALS["openai-chat"]
    big = result("a", "big")
    fading = Fading(big, result("a", "[ephemeral:read]"), 1)
    shared = Shared([Message("user", "go"), said(None, ("a", "read", {})), fading])
    shown = str(request(crystal, View(shared, query=0)))
    faded = str(request(crystal, View(shared, query=1, faded=1)))
    assert "big" in shown
    assert "big" not in faded
    assert "ephemeral" in faded
    longer = shared.append(Message("user", "on"))
    fork = shared.append(Message("user", "another way"))
    assert "another way" in str(request(crystal, View(fork, query=1, faded=1)))
    assert "another way" not in str(request(crystal, View(longer, query=1, faded=1)))
    folded = View(Shared([shared[0], Message("user", "[folded: turns 1-1]"), longer[3]]), 2)
    assert [one["content"] for one in request(crystal, folded)["messages"]] == ["go", "[folded: turns 1-1]", "on"]


def test_the_encoders_cache_is_bounded():
    encoder = Encoder(CRYSTALS["openai-chat"].family.encoder.writer, budget=10_000)
    for n in range(50):
        encoder.encode(View(Shared([Message("user", str(n)), said("x" * 1000), Message("user", "on")])))
    assert 5 <= len(encoder._kept) <= 10
    assert encoder._size == sum(len(one.done) for one in encoder._kept.values()) <= 10_000
    encoder.encode(View(Shared([Message("user", "go"), said("x" * 20_000), Message("user", "on")])))
    assert (len(encoder._kept), encoder._size) == (0, 0)


@each_family
def test_a_result_without_its_call_is_sent_as_text(family):
    context = [Message("user", "go"), result("lost", "what was it"), said("x"), result("lost", "again")]
    text = orjson.dumps(request(CRYSTALS[family], context)).decode()
    assert "[result of read]\\nwhat was it" in text
    assert "[result of read]\\nagain" in text


@each_family
def test_a_call_without_a_result_gets_a_result_that_says_so(family):
    assert UNANSWERED in orjson.dumps(request(CRYSTALS[family], CONTEXT)).decode()


@each_family
def test_the_provider_is_never_left_without_a_question(family):
    for context in ([], [Message("system", "s")], [Message("user", "go"), said("x")]):
        body = request(CRYSTALS[family], context)
        last = (body.get("messages") or body.get("input") or body.get("contents"))[-1]
        assert last["role"] == "user"


def test_numbers_past_64_bits_are_sent_as_they_are():
    parts = CRYSTALS["openai"].family.encoder.encode([said(None, ("a", "read", {"n": 2**70}))]).parts
    assert str(2**70).encode() in parts[0]
