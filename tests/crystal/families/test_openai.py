"""Chat Completions bodies of real servers are normalised to the contract (CRYSTAL-6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import Query, attempt_now, normalise_chat, replayed
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolCall, Usage

pytestmark = pytest.mark.rule("CRYSTAL-6")


def body(message, finish_reason="stop", **more):
    return {"choices": [{"message": message, "finish_reason": finish_reason}], **more}


def called(arguments, **more):
    call = {"type": "function", "function": {"name": "echo", "arguments": arguments}, **more}
    return normalise_chat(body({"content": None, "tool_calls": [call]})).tool_calls[0]


def test_the_raw_response_of_the_suite_is_normalised():
    raw = {
        "choices": [{"message": {"content": "hello", "tool_calls": []}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    crystal = replayed("mock_openai", raw)
    for _ in range(2):
        response = attempt_now(crystal, Query(Invocation([Message("user", "x")])))
        assert response == Response(content="hello", usage=Usage(10, 5), metadata={"stop_reason": "stop"})


def test_an_unknown_provider_of_a_raw_response_is_refused():
    with pytest.raises(InvalidCantrip, match='did you mean "openai"'):
        replayed("open_ai", {})


class TestContent:
    @pytest.mark.parametrize(
        "content",
        [
            "hello",
            [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
            [{"type": "text", "text": "hello"}],
        ],
    )
    def test_content_may_be_a_text_or_a_list_of_parts(self, content):
        assert normalise_chat(body({"content": content})).content == "hello"

    @pytest.mark.parametrize("content", [None, "", []])
    def test_content_is_none_when_there_are_only_calls(self, content):
        message = {"content": content, "tool_calls": [{"id": "1", "function": {"name": "done", "arguments": "{}"}}]}
        response = normalise_chat(body(message))
        assert response.content is None
        assert len(response.tool_calls) == 1

    def test_a_refusal_becomes_the_content(self):
        response = normalise_chat(body({"content": None, "refusal": "I will not"}))
        assert response.content == "I will not"
        assert response.metadata["refusal"] == "I will not"

    @pytest.mark.parametrize(
        "message",
        [
            {"content": "x", "reasoning_content": "hm"},
            {"content": "x", "reasoning": "hm"},
            {"content": "<think>hm</think>\n\nx"},
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "x"},
                ]
            },
        ],
    )
    def test_reasoning_is_read_under_each_of_its_names(self, message):
        response = normalise_chat(body(message))
        assert (response.content, response.thinking) == ("x", "hm")

    def test_reasoning_that_has_to_go_back_is_stored_unchanged(self):
        message = {"content": "x", "reasoning_details": [{"type": "reasoning.encrypted", "data": "…"}]}
        assert normalise_chat(body(message)).blocks == (message,)
        assert normalise_chat(body({"content": "x"})).blocks == ()


class TestCalls:
    @pytest.mark.parametrize(
        ("arguments", "args"),
        [
            ('{"text": "a"}', {"text": "a"}),
            ({"text": "a"}, {"text": "a"}),
            ("", {}),
            (None, {}),
            ("{}", {}),
            ('{}{"text": "a"}', {"text": "a"}),
            ('{"text": "a"}{"text": "a"}', {"text": "a"}),
            ("{}{}", {}),
            ('"{\\"text\\": \\"a\\"}"', {"text": "a"}),
        ],
    )
    def test_arguments_are_read_in_each_form(self, arguments, args):
        assert called(arguments).args == args

    @pytest.mark.parametrize("arguments", ["not json", '{"text": "a"', "[1]", "7", '{"a": 1}{"a": 2}', [1]])
    def test_arguments_that_are_not_an_object_are_left_for_the_gate_to_refuse(self, arguments):
        call = called(arguments)
        assert call.args is None
        assert call.raw

    def test_a_missing_id_is_left_to_the_loop(self):
        assert called("{}") == ToolCall("", "echo", {})
        assert called("{}", id=None).id == ""

    def test_calls_count_whatever_the_finish_reason_is(self):
        message = {"content": "", "tool_calls": [{"function": {"name": "done", "arguments": "{}"}}]}
        for reason in ("stop", None, "tool_calls"):
            assert normalise_chat(body(message, reason)).tool_calls

    def test_the_old_function_call_field_is_read(self):
        response = normalise_chat(
            body({"content": None, "function_call": {"name": "done", "arguments": '{"answer": 1}'}})
        )
        assert response.tool_calls == (ToolCall("", "done", {"answer": 1}),)

    @pytest.mark.rule("CRYSTAL-4")
    def test_two_calls_with_one_id_get_different_ids(self):
        call = {"id": "1", "function": {"name": "a", "arguments": "{}"}}
        with pytest.raises(CrystalError, match="duplicate tool call ID"):
            normalise_chat(body({"content": None, "tool_calls": [call, call]}))

    def test_a_message_with_a_signature_is_stored_whole(self):
        call = {"function": {"name": "a", "arguments": "{}"}, "extra_content": {"google": {"thought_signature": "…"}}}
        message = {"content": None, "tool_calls": [call]}
        assert normalise_chat(body(message)).blocks == (message,)


class TestUsage:
    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            (
                {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
                Usage(10, 5, 4),
            ),
            ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 4}, Usage(10, 5, 4)),
            (
                {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": None, "cost": 0.5},
                Usage(1, 1, 0, 0.5),
            ),
            ({"prompt_tokens": None, "completion_tokens": "many"}, Usage()),
            ({"prompt_tokens": -1, "completion_tokens": True, "cost": float("nan")}, Usage()),
            (None, Usage()),
            ("free", Usage()),
        ],
    )
    def test_usage_counts_are_read_if_they_are_numbers(self, usage, expected):
        assert normalise_chat(body({"content": "x"}, usage=usage)).usage == expected


class TestErrors:
    """Errors that come with status 200."""

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            ({"code": 429, "message": "slow down"}, 429),
            ({"code": "502", "message": "slow down"}, 502),
            ({"code": "rate_limit_exceeded", "message": "slow down"}, 429),
            ({"type": "server_error", "message": "slow down"}, 500),
            ({"code": "unheard_of", "message": "slow down"}, 400),
            ("slow down", 400),
        ],
    )
    def test_errors_are_classified_by_number_and_by_name(self, error, status):
        for raw in ({"error": error}, {"choices": [{"error": error, "finish_reason": "error"}]}):
            with pytest.raises(ProviderError, match="slow down") as caught:
                normalise_chat(raw)
            assert caught.value.status == status

    def test_an_exhausted_quota_is_not_retried(self):
        with pytest.raises(ProviderError, match="want of credit") as caught:
            normalise_chat({"error": {"code": "insufficient_quota", "message": "no money"}})
        assert caught.value.retryable is False

    @pytest.mark.rule("CRYSTAL-3")
    @pytest.mark.parametrize("choices", [None, [], [None], "x"])
    def test_a_body_without_choices_is_an_error(self, choices):
        with pytest.raises(CrystalError, match="crystal returned neither content nor tool_calls"):
            normalise_chat({"choices": choices})

    @pytest.mark.rule("CRYSTAL-3")
    @pytest.mark.parametrize("message", [None, {}, {"content": None}, {"content": ""}])
    def test_an_empty_answer_is_an_error_with_its_finish_reason(self, message):
        with pytest.raises(CrystalError, match=r"neither content nor tool_calls.*'content_filter'"):
            normalise_chat(body(message, "content_filter"))

    def test_a_completion_that_a_proxy_nests_is_read(self):
        assert normalise_chat({"choices": None, "provider": body({"content": "x"})}).content == "x"

    @pytest.mark.parametrize("raw", [None, [], "x", 7])
    def test_a_body_that_is_not_an_object_is_refused(self, raw):
        with pytest.raises(CrystalError, match="expected a Chat Completions object"):
            normalise_chat(raw)


def test_metadata_is_kept_and_not_needed():
    response = normalise_chat(
        body({"content": "x"}, "length", id="1", model="m", provider=None, object="chat.completion")
    )
    assert response.metadata == {"id": "1", "model": "m", "stop_reason": "length"}


NAMES = """choices message content tool_calls function name arguments id error code usage prompt_tokens text thinking
reasoning refusal finish_reason prompt_tokens_details function_call provider cost type"""
names = st.sampled_from(NAMES.split())
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
fields = st.dictionaries(names, junk, max_size=5)


@given(junk, fields, fields, fields)
def test_any_body_is_a_response_or_an_error_of_the_cast(raw, top, message, call):
    for one in (
        raw,
        top,
        {**body(message), **top},
        body({"tool_calls": [call], **message}),
        body({"tool_calls": [{"function": call}]}),
    ):
        try:
            response = normalise_chat(one)
        except CrystalError:
            continue
        assert Response.of(response) is response
