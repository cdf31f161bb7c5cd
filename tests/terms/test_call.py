"""The call: an immutable value, validated when it is made."""

import re
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cantrip_actors.terms.call import Call
from cantrip_actors.terms.errors import ImmutableError, InvalidCantrip


@pytest.mark.rule("CALL-1")
class TestImmutable:
    @pytest.mark.parametrize("name", ["system_prompt", "temperature", "anything"])
    def test_no_field_can_be_set(self, name: str) -> None:
        call = Call("You are helpful", temperature=0.7)
        with pytest.raises(ImmutableError, match=r"^call is immutable"):
            setattr(call, name, "You are evil")
        assert call == Call("You are helpful", temperature=0.7)

    def test_no_field_can_be_deleted(self) -> None:
        call = Call("You are helpful")
        with pytest.raises(ImmutableError, match=r"^call is immutable"):
            del call.system_prompt

    def test_options_cannot_be_changed_in_place_or_through_the_given_mapping(self) -> None:
        given: dict[str, Any] = {"top_k": 1}
        call = Call(options=given)
        given["top_k"] = 2
        assert call.options == {"top_k": 1}
        with pytest.raises(TypeError):
            call.options["top_k"] = 2

    def test_replace_makes_another_call(self) -> None:
        call = Call("You are helpful", temperature=0.7, stop="END", options={"top_k": 1})
        other = replace(call, system_prompt="You are terse")
        assert other == Call("You are terse", temperature=0.7, stop=("END",), options={"top_k": 1})
        assert call.system_prompt == "You are helpful"

    def test_equal_calls_are_equal_values(self) -> None:
        assert len({Call("a", options={"top_k": 1}), Call("a", options={"top_k": 1}), Call("b")}) == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"system_prompt": 5}, "system_prompt: expected text, got int"),
        ({"temperature": 2.5}, "temperature: expected a number from 0 to 2, got 2.5"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p: expected a number from 0 to 1"),
        ({"top_p": "high"}, "top_p"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number >= 1"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"tool_choice": "sometimes"}, 'tool_choice "sometimes": expected "auto", "required" or "none"'),
        ({"stop": 5}, "stop: expected texts"),
        ({"stop": ["a", 5]}, "stop: expected texts"),
        ({"require_done_tool": "yes"}, "require_done_tool: expected true or false"),
        ({"options": [1]}, "options: expected a mapping"),
        ({"options": {1: 2}}, "options: expected a mapping"),
        ({"options": {"temperature": 3}}, "options: temperature is a field of Call itself"),
        ({"options": {"seed": 3}}, "options: seed is a field of Call itself"),
    ],
)
def test_an_invalid_call_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidCantrip, match=why):
        Call(**fields)


def test_sampling_has_only_the_fields_that_were_set() -> None:
    assert Call("prompt", tool_choice="auto").sampling() == {}
    assert Call(temperature=0, top_p=1, max_tokens=9, stop=["a", "b"], options={"top_k": 1}).sampling() == {
        "temperature": 0,
        "top_p": 1,
        "max_tokens": 9,
        "stop": ("a", "b"),
        "top_k": 1,
    }


@pytest.mark.rule("CALL-4")
def test_the_header_has_every_field_that_was_set() -> None:
    call = Call("prompt", temperature=0, tool_choice="required", require_done_tool=True, options={"top_k": 1})
    assert call.as_json() == {
        "system_prompt": "prompt",
        "tool_choice": "required",
        "require_done_tool": True,
        "temperature": 0,
        "top_k": 1,
    }
    assert Call().as_json() == {}


@pytest.mark.rule("C-64", "CALL-1")
class TestOptions:
    """Options are JSON, and cannot be changed at any depth."""

    GIVEN = {"metadata": {"tags": ["a", {"b": [1, 2.5, None, True]}]}, "top_k": 7}  # noqa: RUF012

    def test_nested_options_cannot_be_changed(self):
        call = Call(options=self.GIVEN)
        with pytest.raises(TypeError):
            call.options["metadata"]["tags"] = []
        with pytest.raises(TypeError):
            call.options["metadata"]["tags"][1]["b"] = []
        assert not hasattr(call.options["metadata"]["tags"], "append")

    def test_options_are_copied_from_the_given_mapping(self):
        given = {"metadata": {"tags": ["a"]}}
        call = Call(options=given)
        given["metadata"]["tags"].append("b")
        assert call.sampling() == {"metadata": {"tags": ["a"]}}

    def test_sampling_returns_a_copy_that_an_encoder_accepts(self):
        call = Call(options=self.GIVEN)
        sent = call.sampling()
        assert orjson.loads(orjson.dumps(sent)) == self.GIVEN
        sent["metadata"]["tags"].append("c")
        assert call.sampling() == self.GIVEN

    def test_calls_with_equal_options_are_equal(self):
        assert Call(options=self.GIVEN) == Call(options=self.GIVEN)
        assert hash(Call(options=self.GIVEN)) == hash(Call(options=self.GIVEN))

    @pytest.mark.parametrize(
        ("value", "where"),
        [
            ({"a": {1, 2}}, r"options: x\.a"),
            ([object()], r"options: x\[0\]"),
            ({"a": {1: 2}}, r"options: x\.a"),
            (b"bytes", "options: x"),
            (float("nan"), "options: x"),
            ([float("inf")], r"options: x\[0\]"),
            ("\ud800", "options: x"),
            (print, "options: x"),
        ],
    )
    def test_an_option_that_is_not_json_is_refused_with_its_path(self, value, where):
        with pytest.raises(InvalidCantrip, match=f"{where}: expected a JSON value"):
            Call(options={"x": value})

    def test_a_list_that_contains_itself_is_refused(self):
        endless: list[object] = []
        endless.append(endless)
        with pytest.raises(InvalidCantrip, match="nested more than 100 levels deep, or it contains itself"):
            Call(options={"x": endless})


@pytest.mark.rule("R-02")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"effort": 3}, "effort: expected a level such as"),
        ({"effort": ""}, "effort: expected a level such as"),
        ({"output_schema": "x"}, "output_schema: expected a JSON Schema as an object, got 'x'"),
        ({"output_schema": {"type": "strnig"}}, "output_schema: expected a valid JSON Schema: 'strnig'"),
        ({"output_schema": {"$ref": "#/$defs/no"}}, "'#/$defs/no' is nowhere in it"),
        ({"output_schema": {"items": {"$ref": "https://a.example/b"}}}, "'https://a.example/b' is nowhere in it"),
    ],
)
def test_an_invalid_effort_or_schema_is_refused_when_the_call_is_made(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidCantrip, match=re.escape(why)):
        Call(**options)
    with pytest.raises(InvalidCantrip, match=re.escape(why)):
        Call(options=options)


@pytest.mark.rule("Y-12")
def test_effort_and_schema_are_fields_also_when_they_come_among_the_options() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "enum": [1, 2]}}}
    call = Call(effort="high", output_schema=schema, options={"x": [1]})
    assert (call.effort, call.output_schema) == ("high", {**schema, "properties": call.output_schema["properties"]})  # type: ignore[index]
    assert call.sampling() == {"effort": "high", "output_schema": schema, "x": [1]} == call.as_json()
    moved = Call(options={"effort": "high", "output_schema": schema, "x": [1]})
    assert (moved, hash(moved), moved.sampling()) == (call, hash(call), call.sampling())
    assert dict(replace(moved, effort="low").options) == {"x": (1,)}
    schema["properties"] = {}
    assert call.sampling()["output_schema"]["properties"] == {"n": {"type": "integer", "enum": [1, 2]}}


@pytest.mark.rule("Y-12")
@pytest.mark.parametrize("setting", [{"effort": "low"}, {"output_schema": {"type": "object"}}])
def test_a_setting_that_is_given_twice_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidCantrip, match="is given twice"):
        Call(**setting, options=setting)


@pytest.mark.rule("R-02")
@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$anchor": "q", "type": "string"}}, "properties": {"x": {"$ref": "#q"}}},
        {"$id": "https://a.example/b", "$defs": {"a": {}}, "items": {"$ref": "https://a.example/b#/$defs/a"}},
        {"$defs": {"t": {"$id": "t", "items": {"$ref": "#"}}}, "$ref": "#/$defs/t"},
        {"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "data"}},
    ],
)
def test_a_schema_may_refer_to_its_own_definitions(schema: dict[str, Any]) -> None:
    assert Call(output_schema=schema).sampling()["output_schema"] == schema
