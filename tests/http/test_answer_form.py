"""The form of an answer: equal schemas that are written in different ways, and answers that are made to fit."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.http.answer_form import find_form, find_reference_fault, is_endless
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("W-20")


def answers(schema: dict[str, Any]) -> Cantrip:
    """Return a cantrip whose answers have a schema."""

    @gate
    def done(answer: Any) -> None:
        """Finish."""

    parameters = {"type": "object", "properties": {"answer": schema}, "required": ["answer"]}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    object.__setattr__(done, "parameters", parameters)
    return Cantrip(scripted(["x"]), circle=Circle([done], [max_turns(3)]), name="typed")


LEAVES = st.sampled_from(
    [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "null"}, {"enum": ["a", "b"]}, {"const": 1}]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)
    return members.flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties))).map(
            lambda required: {
                "type": "object",
                "title": "T",
                "properties": {
                    name: part if name in required else {**part, "default": _example(part)}
                    for name, part in properties.items()
                },
                "required": sorted(required),
            }
        )
    )


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        _objects(inner)
        | inner.map(lambda part: {"type": "array", "items": part})
        | inner.map(lambda part: {"anyOf": [part, {"type": "null"}]})
    ),
    max_leaves=6,
)


def _example(schema: dict[str, Any]) -> Any:
    if "anyOf" in schema:
        return _example(schema["anyOf"][0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kind = schema["type"]
    if kind == "object":
        return {name: _example(part) for name, part in schema["properties"].items() if name in schema["required"]}
    if kind == "array":
        return [_example(schema["items"])]
    return {"string": "s", "integer": 1, "boolean": True, "null": None}[kind]


def _rewrite(schema: Any) -> Any:
    """Return a schema as strict clients write it: closed, with all members required, without defaults and titles."""
    if isinstance(schema, list):
        return [_rewrite(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "const" in schema:
        return {"type": "integer", "enum": [schema["const"]]}
    if "anyOf" in schema:
        kinds = [part.get("type") for part in schema["anyOf"]]
        if all(isinstance(part, dict) and set(part) == {"type"} for part in schema["anyOf"]):
            return {"type": kinds[::-1]}
        return {"anyOf": _rewrite(schema["anyOf"])[::-1]}
    rest = {name: value for name, value in schema.items() if name not in ("title", "default")}
    if "properties" in rest:
        rest["properties"] = {name: _rewrite(part) for name, part in rest["properties"].items()}
        rest |= {"required": sorted(rest["properties"])[::-1], "additionalProperties": False, "description": "d"}
    if "items" in rest:
        rest["items"] = _rewrite(rest["items"])
    return rest


def test_the_bounds_of_javascripts_whole_numbers_say_nothing() -> None:
    number: dict[str, Any] = {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1}
    assert find_form(answers({"type": "integer"}), number) is not None
    assert find_form(answers({"type": "integer"}), {**number, "minimum": 0}) is None


@given(SCHEMAS)
def test_a_strict_rewriting_of_the_own_schema_is_accepted_and_answers_fit_it(schema: dict[str, Any]) -> None:
    wanted, answer = _rewrite(copy.deepcopy(schema)), _example(schema)
    Draft202012Validator(schema).validate(answer)
    form = find_form(answers(schema), wanted)
    assert form is not None
    if isinstance(answer, dict):
        answer = {**answer, "made up": 1}
    Draft202012Validator(wanted).validate(form.apply(answer))


@given(SCHEMAS, SCHEMAS)
def test_an_accepted_form_is_one_that_answers_fit(schema: dict[str, Any], other: dict[str, Any]) -> None:
    for wanted in (other, _rewrite(copy.deepcopy(other))):
        form = find_form(answers(schema), wanted)
        if form is not None:
            Draft202012Validator(wanted).validate(form.apply(_example(schema)))


class Node(BaseModel):
    """A tree."""

    value: int
    below: list[Node] = []


class Cat(BaseModel):
    """An animal."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """Another one."""

    kind: Literal["dog"]
    tricks: dict[str, int] = {}


class Owner(BaseModel):
    """Its owner."""

    pet: Cat | Dog = Field(discriminator="kind")
    tree: Node | None = None


class Point(BaseModel):
    """A point."""

    x: float
    y: float


@pytest.mark.parametrize("model", [Node, Owner])
def test_models_as_openais_client_writes_them_are_accepted(model: type[BaseModel]) -> None:
    own = model.model_json_schema()
    form = find_form(answers(own), to_strict_json_schema(model))
    assert form is not None
    if model is Owner:
        assert form.apply({"pet": {"kind": "cat", "made_up": 1}}) == {"pet": {"kind": "cat", "lives": 9}, "tree": None}
    assert find_form(answers(own), to_strict_json_schema(Cat)) is None
    assert find_form(answers(own), {"type": "object"}) is not None


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({}, {"type": "object"}),
        ({"type": "string"}, {"type": "object"}),
        ({"type": "number"}, {"type": "integer"}),
        ({"type": "string"}, {"type": "string", "pattern": "^a"}),
        ({"type": "string"}, {"enum": ["a"]}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        (Point.model_json_schema(), {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "string"}, {"$ref": "#"}),
        ({"type": "string"}, {"$ref": "#/$defs/none"}),
        ({"type": "string"}, "string"),
        ({"type": "string"}, {"anyOf": 3, "required": 4, "properties": []}),
    ],
)
def test_a_form_that_not_every_answer_has_is_refused(own: dict[str, Any], wanted: Any) -> None:
    assert find_form(answers(own), wanted) is None


def test_a_schema_that_is_costly_on_purpose_is_refused() -> None:
    doubling = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(50)}
    assert find_form(answers({"type": "string"}), {"$ref": "#/$defs/a0", "$defs": doubling}) is None
    assert find_form(answers({"type": "string"}), {"anyOf": [{"type": "object"}] * 100_000}) is None


def test_a_reference_to_an_item_with_a_number_of_thousands_of_digits_leads_nowhere() -> None:
    schema = {"$ref": f"#/anyOf/{'1' * 5_000}", "anyOf": [{"type": "string"}]}
    assert not is_endless(schema)
    assert find_form(answers({"type": "string"}), schema) is None
    assert "leads to no part of it" in str(find_reference_fault(schema))
