"""Anthropic's Messages API; the traps are those of section 4.1 of the landscape."""

import pytest

from cantrip_actors.crystal.constructors import anthropic
from cantrip_actors.crystal.testing import events
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import CONTEXT, TOOLS, request, said
from tests.crystal.streams import Said, decode, fed, framed
from tests.crystal.streams import anthropic as stream

CLAUDE = anthropic("claude-sonnet-4-5", api_key="k")


def message(*blocks, stop_reason="end_turn", usage=None, **more):
    made = [{"type": "message_start", "message": {"id": "m", "model": "claude", "usage": {"input_tokens": 1}}}]
    for index, (start, *deltas) in enumerate(blocks):
        made.append({"type": "content_block_start", "index": index, "content_block": start})
        made += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        made.append({"type": "content_block_stop", "index": index})
    told = {"type": "message_delta", "delta": {"stop_reason": stop_reason, **more}, "usage": usage or {}}
    return [*made, told, {"type": "message_stop"}]


def text(value):
    return ({"type": "text", "text": ""}, {"type": "text_delta", "text": value})


class TestDecoding:
    """The stream decoded."""

    def test_the_prompt_includes_what_was_cached(self):
        usage = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100}
        response = fed("anthropic", *message(text("x"), usage=usage))
        assert (response.usage.prompt_tokens, response.usage.cached_tokens) == (125, 100)

    def test_counts_are_cumulative(self):
        sent = message(text("x"), usage={"input_tokens": 61, "output_tokens": 2, "cache_read_input_tokens": None})
        assert fed("anthropic", *sent).usage.prompt_tokens == 61
        assert fed("anthropic", *sent).usage.completion_tokens == 2

    def test_a_count_that_is_not_restated_stays(self):
        start, *rest = message(text("x"), usage={"input_tokens": None, "cache_read_input_tokens": None})
        counts = {"input_tokens": 5, "cache_read_input_tokens": 50, "output_tokens": 1}
        usage = fed("anthropic", {**start, "message": {"model": "claude", "usage": counts}}, *rest).usage
        assert (usage.prompt_tokens, usage.cached_tokens) == (55, 50)

    @pytest.mark.parametrize("deltas", [[], [""], ["", ""]])
    def test_a_call_without_arguments_is_decoded(self, deltas):
        start = {"type": "tool_use", "id": "t", "name": "done", "input": {}}
        sent = message((start, *({"type": "input_json_delta", "partial_json": piece} for piece in deltas)))
        assert fed("anthropic", *sent).tool_calls[0].args == {}

    def test_arguments_in_the_block_start_event_are_decoded(self):
        sent = message(({"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},))
        assert fed("anthropic", *sent).tool_calls[0].args == {"path": "a"}

    def test_arguments_that_are_not_json_are_left_for_the_gate_to_refuse(self):
        start = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
        sent = message((start, {"type": "input_json_delta", "partial_json": '{"path": "a'}), stop_reason="max_tokens")
        (call,) = fed("anthropic", *sent).tool_calls
        assert (call.args, call.raw) == (None, '{"path": "a')

    def test_hidden_thinking_is_stored_with_its_signature(self):
        hidden = ({"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "c2ln/+="})
        response = fed("anthropic", *message(hidden, text("x")), model="claude-a")
        assert response.thinking is None
        (block,) = response.blocks
        assert (block["provider"], block["model"]) == ("anthropic", "claude-a")
        assert block["content"][0] == {"type": "thinking", "thinking": "", "signature": "c2ln/+="}

    def test_redacted_thinking_is_stored(self):
        response = fed("anthropic", *message(({"type": "redacted_thinking", "data": "b3BhcXVl"},), text("x")))
        assert response.blocks[0]["content"][0] == {"type": "redacted_thinking", "data": "b3BhcXVl"}

    def test_no_blocks_are_stored_for_an_answer_of_text_and_calls_alone(self):
        assert decode("anthropic", [framed("anthropic", Said("", "x", (("done", {}),)))])[0].blocks == ()

    def test_a_second_message_start_changes_nothing(self):
        sent = stream(Said("", "hello"))
        assert fed("anthropic", sent[0], *sent).content == "hello"
        assert fed("anthropic", *sent[:3], sent[0], *sent[3:]).content == "hello"

    def test_a_block_that_begins_twice_is_one(self):
        sent = stream(Said("", "hello", (("done", {}),)))
        again = [one for value in sent for one in [value] * (1 + (value["type"] == "content_block_start"))]
        assert decode("anthropic", [events(*again)]) == decode("anthropic", [events(*sent)])

    def test_blocks_in_the_message_start_event_count_once(self):
        sent = stream(Said("", "", (("read", {"path": "a"}),)))
        whole = {"type": "tool_use", "id": "toolu_9", "name": "done", "input": {"answer": 1}}
        filled = {**sent[0], "message": {**sent[0]["message"], "content": [whole]}}
        assert [c.gate for c in fed("anthropic", filled, *sent[1:]).tool_calls] == ["read", "done"]
        again = {**whole, "id": "toolu_0"}
        filled = {**sent[0], "message": {**sent[0]["message"], "content": [again]}}
        assert [c.gate for c in fed("anthropic", filled, *sent[1:]).tool_calls] == ["read"]

    def test_unknown_events_are_ignored(self):
        odd = (
            {"type": "text", "text": "a"},
            {"type": "sparkle_delta", "sparkle": 1},
            {"type": "text_delta", "text": "b"},
        )
        assert fed("anthropic", {"type": "news"}, *message(odd)).content == "ab"

    def test_an_unknown_block_goes_back_unchanged(self):
        odd = ({"type": "connector_text", "text": ""}, {"type": "text_delta", "text": "seen"})
        response = fed("anthropic", *message(odd, text("x")))
        assert response.content == "x"
        assert response.blocks[0]["content"][0] == {"type": "connector_text", "text": "seen"}

    def test_a_compaction_goes_back_unchanged_and_its_tokens_count(self):
        told = {"type": "compaction_delta", "content": None, "encrypted_content": "c2VhbGVk"}
        item = {"type": "compaction", "input_tokens": 900, "output_tokens": 40, "cache_read_input_tokens": 60}
        usage = {"input_tokens": 20, "output_tokens": 3, "iterations": [item, {"type": "message", "input_tokens": 20}]}
        response = fed("anthropic", *message(({"type": "compaction", "content": ""}, told), text("x"), usage=usage))
        kept = {"type": "compaction", "content": None, "encrypted_content": "c2VhbGVk"}
        assert response.blocks[0]["content"][0] == kept
        assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (980, 43)
        assert response.usage.cached_tokens == 60

    def test_an_answer_that_another_model_continued_names_that_model(self):
        went = {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"}, "trigger": None}
        assert fed("anthropic", *message((went,), text("x"))).metadata["model"] == "claude-b"

    def test_a_refusal_becomes_the_content(self):
        details = {"category": "cyber", "explanation": "I must not."}
        response = fed("anthropic", *message(stop_reason="refusal", stop_details=details))
        assert (response.content, response.metadata["stop_reason"]) == ("I must not.", "refusal")
        with pytest.raises(CrystalError, match="stopped with 'refusal'"):
            fed("anthropic", *message(stop_reason="refusal"))

    @pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("api_error", 500)])
    def test_errors_inside_a_stream_are_retryable(self, kind, status):
        with pytest.raises(ProviderError, match="busy") as caught:
            fed("anthropic", *stream(Said("", "he"))[:3], {"type": "error", "error": {"type": kind, "message": "busy"}})
        assert (caught.value.status, caught.value.retryable) == (status, True)

    @pytest.mark.parametrize("lost", [1, 2])
    def test_a_delta_of_a_block_that_never_began_is_an_error(self, lost):
        sent = stream(Said("", "hello"))
        with pytest.raises(ProviderError, match="never began"):
            fed("anthropic", *sent[:1], *sent[1 + lost :])

    def test_a_message_that_ends_without_a_reason_is_an_error(self):
        sent = stream(Said("", "hello"))
        with pytest.raises(ProviderError, match="without a reason"):
            fed("anthropic", *sent[:-2], sent[-1])

    def test_a_whole_body_is_decoded_like_a_stream(self):
        body = {
            "type": "message",
            "model": "claude",
            "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "done", "input": {}}],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        }
        response = fed("anthropic", body)
        assert (response.content, response.tool_calls[0].gate, response.usage.total_tokens) == ("a", "done", 7)


class TestEncoding:
    """Contexts encoded."""

    def test_results_come_in_one_message_in_order_and_none_is_missing(self):
        body = request(CLAUDE, CONTEXT)
        system, sent = body["system"], body["messages"]
        assert system[0]["text"] == "Be terse."
        assert [one["role"] for one in sent] == ["user", "assistant", "user", "assistant", "user"]
        one, two = sent[2]["content"]
        assert one == {"type": "tool_result", "tool_use_id": "one", "content": "no such file", "is_error": True}
        assert two == {"type": "tool_result", "tool_use_id": "two", "content": "B"}
        three, word = sent[4]["content"]
        assert (three["tool_use_id"], three["is_error"]) == ("three", True)
        assert word["text"] == "never mind c"

    def test_nothing_empty_is_sent(self):
        context = [
            Message("user", "go"),
            said("  ", ("a", "read", {})),
            Message("tool", "", (), "a", "read"),
            said("", ("b", "read", {})),
            Message("tool", "", (), "b", "read", True),
            said(" "),
        ]
        sent = request(CLAUDE, context)["messages"]
        assert [block["type"] for block in sent[1]["content"]] == ["tool_use"]
        assert "content" not in sent[2]["content"][0]
        assert sent[4]["content"][0]["content"]
        assert sent[-1]["role"] == "user"

    def test_thinking_goes_back_unchanged_to_its_own_model_only(self):
        thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
        unsigned = {"type": "thinking", "thinking": "interrupted", "signature": ""}
        redacted = {"type": "redacted_thinking", "data": "x"}
        call = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
        content = [thinking, redacted, unsigned, {"type": "text", "text": "x"}, call]
        block = {"provider": "anthropic", "model": "claude-sonnet-4-5", "content": content}
        context = [Message("user", "go"), said("x", ("a", "read", {}), thinking="hm", blocks=[block])]
        mine = request(CLAUDE, context)["messages"][1]["content"]
        assert mine == [thinking, redacted, {"type": "text", "text": "x"}, call]
        for other in (anthropic("claude-opus-4-5", api_key="k"), anthropic("claude-sonnet-4", api_key="k")):
            theirs = request(other, context)["messages"][1]["content"]
            assert [one["type"] for one in theirs] == ["text", "tool_use"]

    def test_blocks_of_another_message_are_left_out(self):
        call = {"type": "tool_use", "id": "other", "name": "read", "input": {}}
        block = {"provider": "anthropic", "model": "claude-sonnet-4-5", "content": [call]}
        sent = request(CLAUDE, [Message("user", "go"), said("x", ("a", "read", {}), blocks=[block])])["messages"]
        assert [one.get("id") for one in sent[1]["content"]] == [None, "a"]

    @pytest.mark.rule("CRYSTAL-5")
    def test_a_call_is_forced_if_the_model_allows_it(self):
        def choice(model, **options):
            return request(anthropic(model, api_key="k"), CONTEXT, choice="required", **options).get("tool_choice")

        assert choice("claude-sonnet-4-5") == {"type": "any"}
        assert choice("claude-sonnet-4-5", effort="high") is None  # thinking by budget and forcing exclude each other
        assert choice("claude-opus-5", effort="high") == {"type": "any"}
        assert choice("claude-opus-5-5") is None  # never to be forced

    def test_at_most_two_cache_marks_are_set(self):
        body = request(CLAUDE, CONTEXT)
        marks = [str(body["system"]).count("cache_control"), str(body["messages"]).count("cache_control")]
        assert marks == [1, 1]
        assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
        assert "cache_control" not in str(request(anthropic("claude-x", cache=None, api_key="k"), CONTEXT))
        kept = request(anthropic("claude-x", cache="1h", api_key="k"), CONTEXT)
        assert kept["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}

    def test_parameters_that_newer_models_refuse_are_not_sent(self):
        old = request(CLAUDE, CONTEXT, temperature=0.3, effort="high")
        assert "temperature" not in old  # thinking goes with none
        assert old["thinking"] == {"type": "enabled", "budget_tokens": 16384}
        new = request(anthropic("claude-opus-5", api_key="k"), CONTEXT, temperature=0.3, top_p=0.9, effort="high")
        assert not new.keys() & {"temperature", "top_p"}
        assert (new["thinking"], new["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})

    def test_max_tokens_is_always_sent(self):
        assert request(CLAUDE, CONTEXT)["max_tokens"] == 64_000
        assert request(anthropic("claude-unheard-of", api_key="k"), CONTEXT)["max_tokens"] == 8192
        assert request(CLAUDE, CONTEXT, max_tokens=7, stop="END")["stop_sequences"] == ["END"]

    def test_options_of_the_provider_are_passed_on(self):
        body = request(CLAUDE, CONTEXT, metadata={"user_id": "u"}, output_schema={"type": "string"}, choice="none")
        assert body["metadata"] == {"user_id": "u"}
        assert body["output_config"]["format"]["schema"] == {"type": "string"}
        assert body["tool_choice"] == {"type": "none"}
        assert [tool["name"] for tool in body["tools"]] == [tool.name for tool in TOOLS]
