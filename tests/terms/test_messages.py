"""Messages, responses and usage: accepted shapes, and the values that are made of them."""

import dataclasses
import json
import math

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.terms.errors import CrystalError, InvalidCantrip
from cantrip_actors.terms.messages import (
    NO_USAGE,
    Invocation,
    Message,
    Response,
    ToolCall,
    ToolDefinition,
    Usage,
    as_text,
    make_encodable,
    parse_tool_choice,
)
from tests.exhaustive import EXHAUSTIVE


def deep(levels):
    """A list in a list in a list …"""
    made = []
    for _ in range(levels):
        made = [made]
    return made


class TestUsage:
    @pytest.mark.rule("PROD-3", "LOOM-9")
    def test_usages_add_up(self):
        total = Usage(100, 50, 10, 0.5) + Usage(200, 30, 0, 0.25)
        assert total == Usage(300, 80, 10, 0.75)
        assert total.total_tokens == 380

    def test_usage_is_read_from_a_crystals_report(self):
        given_ = {"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 9, "cost": 0.1}
        assert Usage.of(given_) == Usage(3, 0, 0, 0.1)
        assert Usage.of(None) is NO_USAGE
        assert Usage.of(Usage(1)) == Usage(1)

    @pytest.mark.parametrize("amount", [-1, "3", True, math.nan, math.inf, [3], pytest.param(10**5000, id="huge")])
    def test_a_usage_count_that_is_not_a_number_is_refused(self, amount):
        with pytest.raises(CrystalError, match="crystal reported usage prompt_tokens"):
            Usage.of({"prompt_tokens": amount})
        with pytest.raises(CrystalError, match="crystal reported usage cost"):
            Usage.of({"cost": amount})

    @pytest.mark.parametrize("junk", [7, "x", [1]])
    def test_a_report_that_is_not_a_mapping_is_refused(self, junk):
        with pytest.raises(CrystalError, match="expected a mapping of counts"):
            Usage.of(junk)

    @given(st.lists(st.builds(Usage, *[st.integers(0, 10**6)] * 3), max_size=5))
    def test_the_order_of_summing_does_not_matter(self, usages):
        forth = sum(usages, NO_USAGE)
        back = sum(reversed(usages), NO_USAGE)
        assert forth == back
        assert forth.prompt_tokens == sum(one.prompt_tokens for one in usages)


class TestToolCall:
    @pytest.mark.rule("CRYSTAL-4")
    @pytest.mark.parametrize("arguments", [{"text": "a"}, '{"text": "a"}', b'{"text": "a"}'])
    def test_arguments_may_be_an_object_or_json(self, arguments):
        call = ToolCall.of({"id": "c", "gate": "echo", "args": arguments})
        assert call == ToolCall("c", "echo", {"text": "a"})
        assert json.loads(call.arguments) == {"text": "a"}

    @pytest.mark.parametrize("arguments", [None, "", {}, "{}", "null"])
    def test_missing_arguments_are_an_empty_object(self, arguments):
        call = ToolCall.of({"gate": "echo", "args": arguments})
        assert call == ToolCall("", "echo", {})
        assert call.arguments == "{}"

    def test_a_call_may_use_the_field_names_of_providers(self):
        assert ToolCall.of({"name": "echo", "arguments": '{"a": 1}'}) == ToolCall("", "echo", {"a": 1})

    @pytest.mark.parametrize("arguments", ["{", "[1]", "7", [1], 7, '"x"', "{'a': 1}"])
    def test_arguments_that_are_not_an_object_are_kept_raw(self, arguments):
        call = ToolCall.of({"gate": "echo", "args": arguments})
        assert call.args is None
        assert call.arguments == call.raw == (arguments if isinstance(arguments, str) else repr(arguments))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"a": object},
            {1: "a"},
            {"a": {1, 2}},
            {"a": 2**70, "b": object},
            {"a": 2**70, 1: "b"},
            {"a": 2**70, "b": deep(300)},
        ],
    )
    def test_arguments_that_the_loom_cannot_write_are_kept_raw(self, arguments):
        call = ToolCall.of({"gate": "echo", "args": arguments})
        assert call.args is None
        orjson.dumps(call.raw)

    def test_arguments_with_a_number_that_python_cannot_write_are_kept_raw(self):
        call = ToolCall.of({"gate": "echo", "args": {"a": 2**15_000}})
        assert (call.args, call.raw) == (None, "{'a': a number of many digits}")

    @pytest.mark.rule("A-03")
    @given(st.recursive(st.integers() | st.integers(-(2**200), 2**200), st.lists, max_leaves=5))
    def test_whole_numbers_of_any_size_are_json(self, number):
        call = ToolCall.of({"gate": "echo", "args": {"n": number}})
        assert call.args == {"n": number}
        assert call.is_sound()
        assert ToolCall.of(call) is call
        assert json.loads(call.arguments) == {"n": number}

    @pytest.mark.rule("A-03")
    @settings(max_examples=100 if EXHAUSTIVE else 25)
    @given(st.recursive(st.integers(-(2**200), 2**200) | st.floats(allow_nan=False, allow_infinity=False), st.lists))
    def test_whole_numbers_of_any_size_are_read_exactly_from_json_text(self, number):
        call = ToolCall.of({"gate": "echo", "args": json.dumps({"n": number})})
        assert (call.args, call.raw) == ({"n": number}, None)

    @pytest.mark.parametrize(
        "text",
        ["NaN", "Infinity", "1e999", "[" * 2000 + "]" * 2000, "9" * 5000],
        ids=lambda one: one[:9],
    )
    def test_text_that_is_not_json_stays_text_although_a_long_number_is_beside_it(self, text):
        raw = f'{{"n": {10**30}, "m": {text}}}'
        call = ToolCall.of({"gate": "echo", "args": raw})
        assert (call.args, call.raw) == (None, raw)

    @pytest.mark.rule("D-002")
    def test_old_names_of_the_delegation_gates_become_the_new_ones(self):
        assert ToolCall.of({"gate": "call_entity"}).gate == "call_agent"
        assert ToolCall.of({"gate": "call_entity_batch"}).gate == "call_agent_batch"
        assert ToolCall.of(ToolCall("", "call_entity", {})).gate == "call_agent"

    @pytest.mark.parametrize("junk", [{"args": {}}, {"gate": 7}, "done", None, 7])
    def test_a_value_that_is_not_a_call_is_refused(self, junk):
        with pytest.raises(CrystalError, match="crystal returned a tool call"):
            ToolCall.of(junk)

    def test_a_valid_call_is_returned_unchanged(self):
        call = ToolCall("c", "echo", {"a": [1]})
        assert ToolCall.of(call) is call

    def test_a_message_has_attributes_and_keys(self):
        call = ToolCall("c", "echo", {"a": 1})
        assert call["gate"] == call.gate == call.get("gate") == "echo"
        assert call.get("nothing", 7) == 7
        with pytest.raises(KeyError):
            call["nothing"]


class TestResponse:
    @pytest.mark.rule("CRYSTAL-3")
    def test_a_response_needs_content_calls_or_code(self):
        for given_ in ({"content": "x"}, {"tool_calls": [{"gate": "a"}]}, {"code": "1"}):
            Response.of(given_)
        with pytest.raises(CrystalError, match="crystal returned neither content nor tool_calls"):
            Response.of({"thinking": "hm", "usage": {"prompt_tokens": 1}})

    @pytest.mark.rule("CRYSTAL-4")
    def test_repeated_ids_within_an_utterance_are_refused(self):
        with pytest.raises(CrystalError, match='duplicate tool call ID "call_1"'):
            Response.of({"tool_calls": [{"id": "call_1", "gate": "a"}, {"id": "call_1", "gate": "b"}]})
        Response.of({"tool_calls": [{"gate": "a"}, {"gate": "b"}]})

    def test_a_valid_response_is_returned_unchanged_and_shares_nothing_that_its_maker_may_change(self):
        response = Response(content="x", tool_calls=(ToolCall("", "a", {"n": [1]}),), metadata={"model": "m"})
        checked = Response.of(response)
        assert checked == response
        response.tool_calls[0].args["n"].append(2)
        assert checked.tool_calls[0].args == {"n": [1]}

    @pytest.mark.parametrize(
        "crooked",
        [
            Response(tool_calls=[{"gate": "a", "args": {}}]),  # type: ignore[arg-type, list-item]
            Response(tool_calls=({"gate": "a"},)),  # type: ignore[arg-type]
            Response(tool_calls=[ToolCall("", "a", {})]),  # type: ignore[arg-type]
            Response(tool_calls=(ToolCall(None, "a", "{}"),)),  # type: ignore[arg-type]
        ],
    )
    def test_a_response_with_fields_in_other_forms_is_normalised(self, crooked):
        assert Response.of(crooked) == Response(tool_calls=(ToolCall("", "a", {}),))

    @pytest.mark.parametrize(
        "wrong",
        [
            Response(content=7),  # type: ignore[arg-type]
            Response(content="x", usage=7),  # type: ignore[arg-type]
            Response(content="x", tool_calls=7),  # type: ignore[arg-type]
            Response(content="x", metadata=7),  # type: ignore[arg-type]
            {"content": "x", "metadata": {"raw": object()}},
            {"content": "x", "blocks": [object()]},
            {"content": "x", "blocks": 7},
            {"content": "x", "blocks": [7]},
            Response("x", blocks=(7,)),  # type: ignore[arg-type]
            {"contents": "x"},
            {7: "x"},
            None,
            7,
        ],
    )
    def test_an_invalid_response_is_an_error_with_an_explanation(self, wrong):
        with pytest.raises(CrystalError, match=r"crystal (returned|reported)"):
            Response.of(wrong)

    def test_lone_surrogates_are_escaped(self):
        response = Response.of({"content": "a\ud83d", "thinking": "\ud83d", "code": "\ud83d"})
        assert (response.content, response.thinking, response.code) == ("a\\ud83d", "\\ud83d", "\\ud83d")
        assert Response.of(Response(content="\ud83d")).content == "\\ud83d"
        assert Response.of("é 😀").content == "é 😀"

    def test_a_response_is_frozen(self):
        with pytest.raises(AttributeError, match="immutable"):
            Response(content="x").content = "y"  # type: ignore[misc]


class TestNumbered:
    @pytest.mark.rule("CRYSTAL-4")
    def test_each_call_without_an_id_gets_one(self):
        calls = Response.of({"tool_calls": [{"gate": "a"}, {"id": "mine", "gate": "b"}, {"gate": "c"}]}).with_ids(7)
        assert [call.id for call in calls.tool_calls] == ["call_7_1", "mine", "call_7_3"]

    def test_a_generated_id_is_never_one_in_use(self):
        calls = Response.of({"tool_calls": [{"gate": "a"}, {"id": "call_7_1", "gate": "b"}]}).with_ids(7).tool_calls
        assert [call.id for call in calls] == ["call_7_1_", "call_7_1"]

    def test_a_response_whose_calls_have_ids_is_unchanged(self):
        response = Response.of({"tool_calls": [{"id": "a", "gate": "a"}]})
        assert response.with_ids(1) is response

    def test_numbering_changes_no_other_field(self):
        response = Response.of({"content": "x", "tool_calls": [{"gate": "a"}], "thinking": "hm", "metadata": {"m": 1}})
        numbered = response.with_ids(1)
        assert dataclasses.replace(numbered, tool_calls=response.tool_calls) == response

    @given(st.lists(st.sampled_from(["", "call_1_1", "call_1_2", "call_1_1_", "x"]), max_size=6))
    def test_generated_ids_are_unique_among_the_crystals_ids(self, ids):
        given_ = [one for n, one in enumerate(ids) if not one or one not in ids[:n]]
        response = Response(content="x", tool_calls=tuple(ToolCall(one, "a", {}) for one in given_))
        named = [call.id for call in Response.of(response).with_ids(1).tool_calls]
        assert len(set(named)) == len(named)
        assert all(named)
        assert [new for new, old in zip(named, given_, strict=True) if old] == [old for old in given_ if old]


class TestInvocation:
    def test_an_invocation_is_a_sequence_with_tools_and_tool_choice(self):
        messages = [Message("system", "s"), Message("user", "u")]
        one = Invocation(messages, [ToolDefinition("done", "", {})], "auto")
        assert len(one) == 2
        assert list(one) == messages
        assert one[-1].content == one[1]["content"] == "u"
        assert one[:1] == messages[:1]
        assert one["tool_choice"] == one.tool_choice == "auto"
        assert one.tools[0].name == "done"
        with pytest.raises(KeyError):
            one["temperature"]

    def test_an_invocation_shares_the_messages(self):
        messages = [Message("user", "u")]
        assert Invocation(messages).messages is messages

    def test_an_invocation_has_a_readable_repr(self):
        shown = repr(Invocation([Message("user", "u")], [ToolDefinition("done", "", {})]))
        assert shown == "<Invocation of 1 messages, tools=['done'], tool_choice=None>"


class TestAsText:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("text", "text"),
            ("", ""),
            (None, "null"),
            (42, "42"),
            (True, "true"),
            ({"a": [1, "é"]}, '{"a":[1,"é"]}'),
            (2**70, str(2**70)),
            ({1: "a"}, '{"1": "a"}'),
            (["\ud800"], '["\\ud800"]'),
        ],
    )
    def test_a_text_stays_and_any_other_value_becomes_json(self, value, text):
        assert as_text(value) == text

    @settings(max_examples=100 if EXHAUSTIVE else 25)
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)), st.lists))
    def test_every_json_value_survives_as_text(self, value):
        if not isinstance(value, str):
            assert json.loads(as_text(value)) == value


@given(st.text(st.characters(codec=None)))
def test_encodable_text_changes_only_lone_surrogates(text):
    made = make_encodable(text)
    made.encode()
    if not any("\ud800" <= sign <= "\udfff" for sign in text):
        assert made == text


def test_tool_choices_are_normalised():
    assert [parse_tool_choice(one) for one in (None, "auto", "required", "none")] == [None, "auto", "required", "none"]
    with pytest.raises(InvalidCantrip, match='tool_choice "any": expected "auto", "required" or "none"'):
        parse_tool_choice("any")
