"""Schemas that are recognised by their shape, without jsonschema."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import BaseModel, Field

from cantrip_actors.terms.schema_shape import is_plain

pytestmark = pytest.mark.rule("V-36")

KEYWORDS = [
    *Draft202012Validator.VALIDATORS,
    *("$schema", "$id", "$anchor", "$defs", "definitions", "title", "deprecated", "examples", "default", "x-own"),
    *("$comment", "readOnly", "contentEncoding", "contentSchema", "dependencies", "$recursiveRef", "$vocabulary"),
]
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=False, width=16)),
    st.sampled_from(["", "string", "object", "#", "#/$defs/a", "a#b", "(", "x"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    ),
    max_leaves=8,
)


def is_valid(schema: Any) -> bool:
    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=FormatChecker(formats=()))
    return bool(meta.is_valid(schema))


@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, min_size=1, max_size=3))
@settings(max_examples=60)
def test_a_schema_that_is_recognised_is_valid_for_jsonschema(schema: dict[str, Any]) -> None:
    assert not is_plain(schema) or is_valid(schema)


class Line(BaseModel):
    """A line of an order."""

    article: str = Field(pattern="^[a-z]+$", max_length=9)
    pieces: int | None = Field(default=None, ge=1, multiple_of=2)


class Order(BaseModel):
    """Order articles."""

    lines: list[Line] = Field(min_length=1)
    note: dict[str, float | bool] = {}


@pytest.mark.parametrize(
    "schema",
    [
        Order.model_json_schema(),
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://a.example/b",
            "type": ["string", "null"],
        },
        {"oneOf": [{"const": 1}, True], "not": {"enum": []}, "x-order": 3, "if": {}, "then": {"prefixItems": [{}]}},
    ],
    ids=["of a model", "with addresses", "with alternatives"],
)
def test_usual_schemas_are_recognised(schema: dict[str, Any]) -> None:
    assert is_plain(schema)


@pytest.mark.parametrize("schema", [None, 3, [], {"items": 3}, {"properties": {"a": None}}, {"anyOf": []}])
def test_values_that_are_no_schemas_are_not_recognised(schema: object) -> None:
    assert not is_plain(schema)
