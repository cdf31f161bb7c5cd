"""Chat Completions as they stream; the traps are those of section 4.3 of the landscape."""

import pytest

from cantrip_actors.crystal.constructors import local, openai
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Message
from tests.crystal.asking import CONTEXT, request
from tests.crystal.streams import Said, decode, fed
from tests.crystal.streams import chat as stream

GPT = openai("gpt-4o", chat=True, api_key="k")


def chunk(delta, reason=None, **more):
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def calls(*parts, reason="tool_calls", **more):
    """The calls of a stream whose chunks have these pieces of calls."""
    sent = [chunk({"tool_calls": [part] if isinstance(part, dict) else part}) for part in parts]
    response = fed("openai-chat", *sent, chunk({}, reason), done=True, **more)
    return [(call.id, call.gate, call.args if call.args is not None else call.raw) for call in response.tool_calls]


def part(index=None, id_=None, name=None, arguments=None):
    made = {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}
    made["function"] = {key: value for key, value in made["function"].items() if value is not None}
    return {key: value for key, value in made.items() if value is not None}


class TestDecoding:
    """The stream decoded."""

    @pytest.mark.parametrize("choices", [[], None, [None], "x"])
    def test_chunks_without_choices_are_accepted(self, choices):
        assert fed("openai-chat", {"choices": choices}, *stream(Said("", "hi")), done=True).content == "hi"

    def test_a_null_delta_is_accepted(self):
        assert fed("openai-chat", chunk(None), *stream(Said("", "hi")), done=True).content == "hi"

    def test_pieces_of_one_call_are_joined(self):
        assert calls(part(0, "a", "read", ""), part(0, None, None, '{"p'), part(0, "a", None, '": 1}')) == [
            ("a", "read", {"p": 1})
        ]

    def test_an_index_with_another_id_begins_another_call(self):
        assert calls(part(0, "a", "read", '{"n": 1}'), part(0, "b", "read", '{"n": 2}')) == [
            ("a", "read", {"n": 1}),
            ("b", "read", {"n": 2}),
        ]

    def test_a_complete_call_without_an_id_is_followed_by_another_at_the_same_index(self):
        assert calls(part(0, None, "read", '{"n": 1}'), part(0, None, "write", '{"n": 2}')) == [
            ("call_1_1", "read", {"n": 1}),
            ("call_1_2", "write", {"n": 2}),
        ]
        assert [args for _, _, args in calls(part(0, None, "read", '{"n": 1}'), part(0, None, "read", '{"n": 2}'))] == [
            {"n": 1},
            {"n": 2},
        ]
        known = calls(part(0, None, "read"), part(0, None, "done"), tools=["read", "done"])
        assert [gate for _, gate, _ in known] == ["read", "done"]

    def test_pieces_without_an_index_are_joined_by_id_or_position(self):
        assert calls(part(None, "a", "read", '{"n"'), part(None, "b", "read", "{}"), part(None, "a", None, ": 1}")) == [
            ("a", "read", {"n": 1}),
            ("b", "read", {}),
        ]
        both = calls([part(None, None, "read", "{}"), part(None, None, "done", "{}")])
        assert [gate for _, gate, _ in both] == ["read", "done"]

    def test_pieces_with_an_id_only_at_first_are_joined(self):
        sent = [part(None, "a", "read", "{}"), part(None, "b", "write"), *(part(arguments=a) for a in ('{"n"', ": 1}"))]
        assert calls(*sent) == [("a", "read", {}), ("b", "write", {"n": 1})]
        pieces = [[part(None, None, "read", '{"n"'), part(None, None, "write", '{"m"')]]
        assert calls(*pieces, [part(None, None, None, ": 1}"), part(None, None, None, ": 2}")]) == [
            ("call_1_1", "read", {"n": 1}),
            ("call_1_2", "write", {"m": 2}),
        ]

    @pytest.mark.parametrize(("index", "name"), [(0, None), (0, "read"), (None, None)])
    def test_pieces_of_one_call_with_a_new_id_each_are_joined(self, index, name):
        found = calls(part(index, "a", "read", '{"n"'), part(index, "b", name, ": 1}"))
        assert found == [("a", "read", {"n": 1})]
        assert len(calls(part(0, "a", "done"), part(0, "b", "done"))) == 2

    def test_two_calls_with_one_id_get_different_ids(self):
        found = calls(part(0, "a", "read", "{}"), part(1, "a", "done", "{}"))
        assert len({id_ for id_, _, _ in found}) == 2

    @pytest.mark.parametrize(
        "names", [["read_file"], ["read_file", "read_file"], ["read", "_file"], ["re", "ad", "_file"]]
    )
    def test_a_name_may_be_sent_once_or_repeatedly_or_in_pieces(self, names):
        sent = [part(0, "a", name) for name in names]
        assert calls(*sent, part(0, "a", None, "{}")) == [("a", "read_file", {})]

    @pytest.mark.parametrize("repeated", ["read", None])
    def test_a_name_in_every_piece_is_read_once(self, repeated):
        sent = [part(0, "a", "read", '{"n"'), part(0, "a", repeated, ": 1"), part(0, "a", repeated, "}")]
        assert calls(*sent) == [("a", "read", {"n": 1})]

    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            ({"n": 1}, {"n": 1}),
            ("", {}),
            (None, {}),
            ('{}{"n": 1}', {"n": 1}),
            ('{"n": 1}{"n": 1}', {"n": 1}),
            ('"{\\"n\\": 1}"', {"n": 1}),
            ('{"n": 1}{"n": 2}', '{"n": 1}{"n": 2}'),
            ("[1]", "[1]"),
            ('{"n', '{"n'),
        ],
    )
    def test_arguments_in_any_form_are_decoded(self, arguments, meant):
        assert calls(part(0, "a", "read", arguments)) == [("a", "read", meant)]

    @pytest.mark.parametrize("reason", ["stop", None, "length"])
    def test_calls_count_whatever_the_finish_reason_is(self, reason):
        assert calls(part(0, "a", "read", "{}"), reason=reason) == [("a", "read", {})]

    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
    def test_reasoning_is_read_under_each_of_its_names(self, field):
        sent = [chunk({field: "hm", "content": None}), chunk({field: "!"}), chunk({"content": "hi"}, "stop")]
        response = fed("openai-chat", *sent, done=True)
        assert (response.thinking, response.content) == ("hm!", "hi")

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("blank", ["", "\n"])
    def test_reasoning_in_tags_is_separated_from_the_content(self, size, blank):
        text = f"{blank}<think>a < b, </thin no</think>\n\nhi </think> <think>"
        sent = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
        response = fed("openai-chat", *sent, chunk({}, "stop"), done=True)
        assert (response.thinking, response.content) == ("a < b, </thin no", "hi </think> <think>")

    def test_text_that_only_begins_like_a_tag_stays_content(self):
        sent = [chunk({"content": "<th"}), chunk({"content": "ree>"}), chunk({}, "stop")]
        assert fed("openai-chat", *sent, done=True).content == "<three>"
        assert fed("openai-chat", chunk({"content": "<thin"}), chunk({}, "stop"), done=True).content == "<thin"

    def test_content_in_parts_is_joined(self):
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        sent = [chunk({"content": [thought]}), chunk({"content": [{"type": "text", "text": "hi"}]}, "stop")]
        response = fed("openai-chat", *sent, done=True)
        assert (response.thinking, response.content) == ("hm", "hi")

    def test_a_refusal_becomes_the_content(self):
        response = fed("openai-chat", chunk({"refusal": "I "}), chunk({"refusal": "won't."}, "stop"), done=True)
        assert (response.content, response.metadata["refusal"]) == ("I won't.", "I won't.")

    def test_the_last_token_counts_are_used(self):
        first, last = ({"prompt_tokens": 3, "completion_tokens": n} for n in (1, 9))
        response = fed("openai-chat", chunk({"content": "x"}, usage=first), chunk({}, "stop", usage=last), done=True)
        assert response.usage.completion_tokens == 9

    @pytest.mark.rule("OTEL-02")
    def test_tokens_of_each_modality_are_kept(self):
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"audio_tokens": 7, "x": 1}}
        usage["completion_tokens_details"] = {"audio_tokens": 0, "text_tokens": 3, "image_tokens": "many"}
        response = fed("openai-chat", chunk({"content": "x"}, "stop", usage=usage), done=True)
        assert response.metadata["modality_tokens"] == {"input": {"audio": 7}, "output": {"text": 3}}

    def test_reasoning_tokens_that_are_reported_separately_count(self):
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 30}
        usage["completion_tokens_details"] = {"reasoning_tokens": 20}
        response = fed("openai-chat", chunk({"content": "x"}, "stop", usage=usage), done=True)
        assert (response.usage.completion_tokens, response.metadata["reasoning_tokens"]) == (23, 20)

    @pytest.mark.parametrize(
        "error",
        [
            {"error": {"code": 502, "message": "gone"}},
            {"choices": [{"error": {"code": 502, "message": "gone"}, "finish_reason": "error"}]},
            {
                "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
                "error": {"code": 502, "message": "gone"},
            },
        ],
    )
    def test_errors_inside_a_stream_are_raised(self, error):
        with pytest.raises(ProviderError, match="gone") as caught:
            fed("openai-chat", *stream(Said("", "hello"))[:3], error)
        assert caught.value.status == 502

    def test_an_answer_that_a_filter_emptied_is_an_error(self):
        with pytest.raises(CrystalError, match="content_filter"):
            fed("openai-chat", chunk({}, "content_filter"), done=True)

    def test_the_answer_of_a_server_that_does_not_stream_is_decoded(self):
        message = {"content": "hi", "tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]}
        response, payloads = decode("openai-chat", [b'{"choices": [{"message": %b}]}' % _json(message)])
        assert (response.content, response.tool_calls[0].id) == ("hi", "a")
        assert payloads[-1].type == "response_done"


def _json(value) -> bytes:
    import orjson

    return orjson.dumps(value)


class TestEncoding:
    """Contexts encoded."""

    def test_every_call_is_answered_in_order(self):
        sent = request(GPT, CONTEXT)["messages"]
        roles = [(one["role"], one.get("tool_call_id")) for one in sent]
        assert roles == [
            ("system", None),
            ("user", None),
            ("assistant", None),
            ("tool", "one"),
            ("tool", "two"),
            ("assistant", None),
            ("tool", "three"),
            ("user", None),
        ]
        assert sent[3]["content"] == "[error] no such file"

    def test_an_utterance_with_calls_alone_has_the_content_that_the_server_takes(self):
        assert request(GPT, CONTEXT)["messages"][5]["content"] is None
        assert request(local("http://x/v1", "m"), CONTEXT)["messages"][5]["content"] == ""

    def test_reasoning_goes_back_with_the_call_that_it_led_to(self):
        sent = [chunk({"reasoning_content": "hm"}), chunk({"tool_calls": [part(0, "a", "read", "{}")]}, "tool_calls")]
        response = fed("openai-chat", *sent, done=True, model="gpt-4o")
        utterance = Message("assistant", None, response.tool_calls, thinking="hm", blocks=response.blocks)
        assert request(GPT, [Message("user", "go"), utterance])["messages"][1]["reasoning_content"] == "hm"
        other = openai("gpt-4o-mini", chat=True, api_key="k")
        assert "reasoning_content" not in request(other, [Message("user", "go"), utterance])["messages"][1]

    def test_all_reasoning_of_an_answer_goes_back_with_its_calls(self):
        """Text and calls may come between two pieces of reasoning; an answer in one piece would have both."""
        call = chunk({"tool_calls": [part(0, "a", "read", "{}")]}, "tool_calls")
        sent = [
            chunk({"reasoning_content": "first, "}),
            chunk({"content": "Well."}),
            chunk({"reasoning_content": "th"}),
        ]
        response = fed("openai-chat", *sent, chunk({"reasoning_content": "en"}), call, done=True, model="gpt-4o")
        utterance = Message("assistant", "Well.", response.tool_calls, blocks=response.blocks)
        assert request(GPT, [Message("user", "go"), utterance])["messages"][1]["reasoning_content"] == "first, then"

    def test_signatures_of_gemini_go_back_through_this_interface(self):
        extra = {"google": {"thought_signature": "c2ln"}}
        sent = [chunk({"tool_calls": [{**part(0, "a", "read", "{}"), "extra_content": extra}]}, "stop")]
        response = fed("openai-chat", *sent, done=True, model="gpt-4o")
        utterance = Message("assistant", None, response.tool_calls, blocks=response.blocks)
        assert (
            request(GPT, [Message("user", "go"), utterance])["messages"][1]["tool_calls"][0]["extra_content"] == extra
        )

    def test_max_tokens_is_sent_under_the_name_that_the_server_takes(self):
        assert request(GPT, CONTEXT, max_tokens=9)["max_completion_tokens"] == 9
        assert request(local("http://x/v1", "m"), CONTEXT, max_tokens=9)["max_tokens"] == 9

    def test_token_counts_are_requested(self):
        assert request(GPT, CONTEXT)["stream_options"] == {"include_usage": True}

    @pytest.mark.rule("CRYSTAL-5")
    def test_a_call_is_forced(self):
        assert request(GPT, CONTEXT, choice="required")["tool_choice"] == "required"

    def test_no_tool_field_is_sent_without_tools(self):
        body = request(GPT, [Message("user", "go")], tools=())
        assert not body.keys() & {"tools", "tool_choice"}

    def test_schema_effort_and_provider_options_are_sent(self):
        body = request(GPT, CONTEXT, output_schema={"type": "object"}, effort="low", seed=7, stop=["a", "b"])
        assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert (body["reasoning_effort"], body["seed"], body["stop"]) == ("low", 7, ["a", "b"])

    def test_arguments_that_were_not_json_go_back_as_an_empty_object(self):
        from cantrip_actors.terms.messages import ToolCall

        broken = Message("assistant", None, (ToolCall("a", "read", None, '{"x'),))
        sent = request(GPT, [Message("user", "go"), broken])["messages"]
        assert sent[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(("reason", "args"), [("length", None), ("content_filter", None), ("tool_calls", {})])
def test_arguments_of_a_body_that_was_cut_off_in_a_call_are_left_for_the_gate_to_refuse(reason, args):
    given = [{"id": "a", "function": {"name": "done", "arguments": ""}}]
    body = {"choices": [{"message": {"content": None, "tool_calls": given}, "finish_reason": reason}]}
    (found,) = fed("openai-chat", body).tool_calls
    assert found.args == args
