"""JSON Schemas as each family takes them: accepted by its published rules, and answers fit the user's own schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.crystal import schemas
from cantrip_actors.crystal.batch_families import make_endpoint
from cantrip_actors.crystal.constructors import anthropic, google, openai, openrouter
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.crystal.query import Query, ask
from cantrip_actors.crystal.schemas import (
    describe_schema,
    drop_nulls,
    fit_answer,
    fit_for_anthropic,
    fit_for_gemini,
    fit_for_openai,
    fit_gemini_arguments,
)
from cantrip_actors.crystal.simulated import write_instructions
from cantrip_actors.crystal.testing import FaultyServer, Reply
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.json_schema import find_misfits
from cantrip_actors.terms.messages import Invocation, Message, ToolCall, ToolDefinition
from cantrip_actors.terms.retry import Retry
from tests.crystal.streams import Said, framed

pytestmark = pytest.mark.rule("R-02")

GO = [Message("user", "go")]


def obj(required=None, /, **properties: Any) -> dict[str, Any]:
    """An object with these properties, all of them required unless it is said which."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
TREE = {
    **obj(["name"], name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}}),
    "$defs": {"node": obj(["name"], name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}})},
}
PERSON = {"$ref": "#/$defs/person"}
PERSONS = {"person": obj(["name"], name=TEXT, age=WHOLE)}

SCHEMAS: dict[str, tuple[dict[str, Any], Any]] = {
    "one text": (obj(a=TEXT), {"a": "x"}),
    "one number": (obj(a=NUMBER), {"a": 1.5}),
    "one whole number": (obj(a=WHOLE), {"a": 3}),
    "true or false": (obj(a={"type": "boolean"}), {"a": True}),
    "null": (obj(a={"type": "null"}), {"a": None}),
    "optional text": (obj([], a=TEXT), {}),
    "optional text that is there": (obj([], a=TEXT), {"a": "x"}),
    "optional beside required": (obj(["a"], a=TEXT, b=WHOLE), {"a": "x"}),
    "optional and nullable": (obj([], a={"type": ["string", "null"]}), {"a": None}),
    "required and nullable": (obj(a={"type": ["string", "null"]}), {"a": None}),
    "nullable by anyOf": (obj(a={"anyOf": [TEXT, {"type": "null"}]}), {"a": None}),
    "optional by anyOf": (obj([], a={"anyOf": [TEXT, WHOLE]}), {}),
    "a list of texts": (obj(a={"type": "array", "items": TEXT}), {"a": ["x", "y"]}),
    "an optional list": (obj([], a={"type": "array", "items": TEXT}), {}),
    "a list of objects": (obj(a={"type": "array", "items": obj(["b"], b=TEXT, c=WHOLE)}), {"a": [{"b": "x"}]}),
    "a bounded list": (obj(a={"type": "array", "items": TEXT, "minItems": 2, "maxItems": 3}), {"a": ["x", "y"]}),
    "a list of one": (obj(a={"type": "array", "items": TEXT, "minItems": 1}), {"a": ["x"]}),
    "a list without repeats": (obj(a={"type": "array", "items": TEXT, "uniqueItems": True}), {"a": ["x"]}),
    "a list of lists": (obj(a={"type": "array", "items": {"type": "array", "items": WHOLE}}), {"a": [[1], []]}),
    "an enumeration": (obj(a={"type": "string", "enum": ["x", "y"]}), {"a": "y"}),
    "an optional enumeration": (obj([], a={"type": "string", "enum": ["x", "y"]}), {}),
    "an enumeration of numbers": (obj(a={"enum": [1, 2]}), {"a": 2}),
    "an enumeration with null": (obj(a={"enum": ["x", None]}), {"a": None}),
    "a constant": (obj(a={"const": "x"}), {"a": "x"}),
    "an optional constant": (obj([], a={"type": "string", "const": "x"}), {}),
    "a date": (obj(a={"type": "string", "format": "date"}), {"a": "2026-01-02"}),
    "an address of a page": (obj(a={"type": "string", "format": "uri"}), {"a": "https://x.example"}),
    "a format of one's own": (obj(a={"type": "string", "format": "color"}), {"a": "red"}),
    "a pattern": (obj(a={"type": "string", "pattern": "^x+$"}), {"a": "xx"}),
    "a text's length": (obj(a={"type": "string", "minLength": 1, "maxLength": 3}), {"a": "xx"}),
    "a number's bounds": (obj(a={"type": "number", "minimum": 0, "maximum": 1}), {"a": 0.5}),
    "exclusive bounds": (obj(a={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9}), {"a": 1}),
    "exclusive bounds of numbers": (obj(a={"type": "number", "exclusiveMinimum": 0}), {"a": 0.1}),
    "a multiple": (obj(a={"type": "integer", "multipleOf": 5}), {"a": 10}),
    "an object within": (obj(a=obj(b=TEXT)), {"a": {"b": "x"}}),
    "an optional object": (obj([], a=obj(b=TEXT)), {}),
    "optional within optional": (obj([], a=obj([], b=TEXT)), {"a": {}}),
    "a reference": ({**obj(a=PERSON), "$defs": PERSONS}, {"a": {"name": "x"}}),
    "an optional reference": ({**obj([], a=PERSON), "$defs": PERSONS}, {}),
    "references in a list": ({**obj(a={"type": "array", "items": PERSON}), "$defs": PERSONS}, {"a": [{"name": "x"}]}),
    "definitions of an older draft": (
        {**obj(a={"$ref": "#/definitions/person"}), "definitions": PERSONS},
        {"a": {"name": "x", "age": 1}},
    ),
    "a tree": (TREE, {"name": "x", "children": [{"name": "y", "children": []}]}),
    "a tree of the whole": (
        obj(["name"], name=TEXT, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
        {"name": "x", "next": {"name": "y"}},
    ),
    "a union of objects": (
        obj(a={"anyOf": [obj(kind={"const": "x"}, b=TEXT), obj(["kind"], kind={"const": "y"}, c=WHOLE)]}),
        {"a": {"kind": "y"}},
    ),
    "one of several": (obj(a={"oneOf": [TEXT, WHOLE]}), {"a": 3}),
    "all of one": (obj(a={"allOf": [TEXT]}), {"a": "x"}),
    "all of two": (obj(a={"allOf": [obj(b=TEXT), obj(c=TEXT)]}), {"a": {"b": "x", "c": "y"}}),
    "a map": (obj(a={"type": "object", "additionalProperties": WHOLE}), {"a": {"x": 1}}),
    "a free object": (obj(a={"type": "object"}), {"a": {"x": [1]}}),
    "anything": (obj(a={}), {"a": [1, {"x": None}]}),
    "anything, by true": (obj(a=True), {"a": 1}),
    "an open object": ({**obj(a=TEXT), "additionalProperties": True}, {"a": "x"}),
    "a closed object": ({**obj(a=TEXT), "additionalProperties": False}, {"a": "x"}),
    "an empty object": (
        obj(a={"type": "object", "properties": {}, "additionalProperties": False}),
        {"a": {}},
    ),
    "a pair": (obj(a={"type": "array", "prefixItems": [TEXT, WHOLE]}), {"a": ["x", 1]}),
    "not a text": (obj(a={"not": TEXT}), {"a": 1}),
    "a condition": (
        {**obj(["a"], a=TEXT, b=TEXT), "if": obj(a={"const": "x"}), "then": {"required": ["b"]}},
        {"a": "x", "b": "y"},
    ),
    "names by a pattern": ({"type": "object", "patternProperties": {"^x": WHOLE}}, {"x1": 1}),
    "keywords as names": (
        obj(["title"], title=TEXT, default=TEXT, enum=WHOLE, properties=obj(required=TEXT)),
        {"title": "x", "properties": {"required": "y"}},
    ),
    "keywords as data": (
        obj(a={"enum": ["title", "const"], "default": {"title": "x"}, "examples": [{"const": 1}]}),
        {"a": "const"},
    ),
    "notes": (
        {**obj(a={**TEXT, "title": "A", "description": "what it is", "default": "x"}), "title": "T", "$schema": "x"},
        {"a": "x"},
    ),
    "several types": (obj(a={"type": ["string", "integer"]}), {"a": 1}),
    "a text at the top": (TEXT, "x"),
    "a list at the top": ({"type": "array", "items": TEXT}, ["x"]),
    "a union at the top": ({"anyOf": [obj(a=TEXT), obj(b=TEXT)]}, {"b": "x"}),
}


def parts(schema: Any):
    """All schemas within a schema, and itself."""
    if isinstance(schema, dict):
        yield schema
        for word in ("properties", "$defs", "definitions", "patternProperties"):
            for one in schema.get(word, {}).values():
                yield from parts(one)
        for word in ("items", "additionalProperties", "not"):
            yield from parts(schema.get(word))
        for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for one in schema.get(word, []):
                yield from parts(one)


def references(schema: Any):
    return [one["$ref"] for one in parts(schema) if "$ref" in one]


def words(text: str) -> set[str]:
    return set(text.split())


FORMATS = words("date-time time date duration email hostname ipv4 ipv6 uuid")
OPENAI = words(
    "type properties required additionalProperties items enum anyOf $ref $defs description title pattern "
    "format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems"
)
ANTHROPIC = words(
    "type properties required additionalProperties items enum const anyOf allOf $ref $defs description "
    "title pattern format minItems default"
)
GEMINI = words(
    "type properties required additionalProperties items prefixItems enum anyOf $ref $defs description "
    "title format minimum maximum minItems maxItems propertyOrdering"
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_openai_gets_a_strict_schema_or_one_marked_as_not_strict(name: str) -> None:
    schema, value = SCHEMAS[name]
    fitted = fit_for_openai(schema)
    assert fitted.schema is not None
    if not fitted.strict:
        assert fitted.why
        assert fitted.schema == schema
        return
    assert fitted.schema["type"] == "object"
    for part in parts(fitted.schema):
        assert part.keys() <= OPENAI, part
        if "properties" in part:
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
        if "format" in part:
            assert part["format"] in FORMATS
    assert all(ref == "#" or ref.startswith("#/$defs/") for ref in references(fitted.schema))
    answer = fill_in(value, fitted.schema, fitted.schema)
    assert find_misfits(answer, fitted.schema) == []
    assert fit_answer(json.dumps(answer), schema)[1] == ""
    assert find_misfits(drop_nulls(answer, schema), schema) == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_anthropic_gets_closed_objects_or_a_description_in_words(name: str) -> None:
    schema, value = SCHEMAS[name]
    fitted = fit_for_anthropic(schema)
    if fitted.schema is None:
        assert fitted.why
        return
    for part in parts(fitted.schema):
        assert part.keys() <= ANTHROPIC, part
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
        assert part.get("minItems", 0) in (0, 1)
    assert find_misfits(value, fitted.schema) == [] or name == "an open object"


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("maps", [True, False])
def test_gemini_gets_only_supported_keywords(name: str, maps: bool) -> None:
    schema, value = SCHEMAS[name]
    fitted = fit_for_gemini(schema, maps=maps)
    if fitted.schema is None:
        assert fitted.why
    for made in (fit_gemini_arguments(schema, maps=maps), *([] if fitted.schema is None else [fitted.schema])):
        for part in parts(made):
            assert part.keys() <= GEMINI, part
            assert maps or "additionalProperties" not in part
            assert all(isinstance(one, (str, int, float)) for one in part.get("enum", []))
    if fitted.schema is not None:
        assert find_misfits(value, fitted.schema) == []


def fill_in(value: Any, schema: Any, root: Any) -> Any:
    """The value as a model says it that has to name every property: null for what is left out."""
    while "$ref" in schema:
        ref = schema["$ref"]
        schema = root if ref == "#" else root["$defs"][ref.removeprefix("#/$defs/")]
    for one in schema.get("anyOf", []):
        made = fill_in(value, one, root)
        if not find_misfits(made, {**one, "$defs": root.get("$defs", {})} if one != {"$ref": "#"} else root):
            return made
    if isinstance(value, dict):
        return {name: fill_in(value.get(name), one, root) for name, one in schema.get("properties", {}).items()}
    if isinstance(value, list):
        return [fill_in(one, schema.get("items", {}), root) for one in value]
    return value


def test_most_schemas_of_the_corpus_can_be_expressed_by_each_family() -> None:
    assert len(SCHEMAS) >= 60
    assert sum(fit_for_openai(schema).strict for schema, _ in SCHEMAS.values()) >= 45
    assert sum(fit_for_anthropic(schema).schema is not None for schema, _ in SCHEMAS.values()) >= 48
    assert sum(fit_for_gemini(schema, maps=True).schema is not None for schema, _ in SCHEMAS.values()) >= 58


def test_constraints_that_anthropic_cannot_enforce_are_in_the_description() -> None:
    schema, _ = SCHEMAS["a text's length"]
    sent = fit_for_anthropic(schema).schema
    assert sent is not None
    assert sent["properties"]["a"] == {"type": "string", "description": "minLength: 1, maxLength: 3"}


def test_exclusive_bounds_of_whole_numbers_are_bounds_for_gemini() -> None:
    schema, _ = SCHEMAS["exclusive bounds"]
    assert fit_gemini_arguments(schema, maps=True)["properties"]["a"] == {"type": "integer", "minimum": 1, "maximum": 8}


@given(
    names=st.lists(st.sampled_from("abcd"), unique=True),
    required=st.sets(st.sampled_from("abcd")),
    given_=st.sets(st.sampled_from("abcd")),
)
def test_nulls_of_omitted_properties_are_removed_and_others_stay(names, required, given_) -> None:
    schema = obj([name for name in names if name in required], **dict.fromkeys(names, TEXT))
    value = {name: "x" for name in names if name in given_ or name in required}
    sent = fit_for_openai(schema)
    if sent.strict:
        assert drop_nulls(fill_in(value, sent.schema, sent.schema), schema) == value


# -------------------------------------------------------------------------------------------------------- asking again


@pytest.mark.real_time
@pytest.mark.parametrize(("make", "family"), [(anthropic, "anthropic"), (openai, "openai"), (google, "google")])
async def test_a_crystal_is_asked_again_when_its_answer_misses_the_schema(make, family) -> None:
    replies = [
        Reply(framed(family, Said("", text))) for text in ('{"a": "x"}', "nothing", '```json\n{"a": "xxxx"}\n```')
    ]
    schema = obj(a={"type": "string", "minLength": 3})
    async with FaultyServer(replies) as server:
        crystal = make("m", base_url=server.url, api_key="k")
        response = await ask(crystal, Query(Invocation(GO), {"output_schema": schema}), retry=Retry())
        assert response.content == '{"a": "xxxx"}'
        assert "is too short" in server.requests[1].body.decode()
        assert "it is not JSON" in server.requests[2].body.decode()
        assert len(server.requests) == 3


@pytest.mark.real_time
async def test_a_crystal_that_never_follows_the_schema_fails_and_its_tokens_are_counted() -> None:
    async with FaultyServer([Reply(framed("openai", Said("", "nothing")))] * 8) as server:
        crystal = openai("m", base_url=server.url, api_key="k")
        with pytest.raises(CrystalError, match="was asked 4 times; simplify output_schema") as failed:
            await ask(crystal, Query(Invocation(GO), {"output_schema": obj(a=TEXT)}), retry=Retry())
        assert len(server.requests) == 4
        assert failed.value.usage.total_tokens > 0


@pytest.mark.real_time
async def test_a_schema_that_a_family_cannot_express_is_put_in_words_and_reported_as_left_out() -> None:
    schema, value = SCHEMAS["a tree"]
    async with FaultyServer([Reply(framed("anthropic", Said("", json.dumps(value))))]) as server:
        crystal = anthropic("m", base_url=server.url, api_key="k")
        response = await crystal.invoke(GO, options={"output_schema": schema})
        assert "It has to fit this JSON Schema" in server.requests[0].body.decode()
        assert "output_config" not in server.requests[0].json
        assert response.metadata["left_out"] == ("schema",)


@pytest.mark.real_time
async def test_a_schema_that_openai_cannot_enforce_strictly_is_reported_as_adjusted() -> None:
    async with FaultyServer([Reply(framed("openai-chat", Said("", '{"a": {"x": 1}}')))]) as server:
        crystal = openrouter("m", base_url=server.url, api_key="k")
        response = await crystal.invoke(GO, options={"output_schema": SCHEMAS["a map"][0]})
        assert server.requests[0].json["response_format"]["json_schema"]["strict"] is False
        assert response.metadata["adjusted"] == {
            "schema": {"asked": "strict", "sent": "not strict: an object with free keys"}
        }


LARGE = 10**30 + 1


def test_whole_numbers_past_64_bits_stay_exact_in_every_form_of_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": LARGE}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert f'"maximum":{LARGE}' in describe_schema(schema)
    assert f"maximum: {LARGE}" in str(fit_for_anthropic(schema).schema)
    tools = [ToolDefinition("count", "", schema)]
    assert f'"maximum":{LARGE}' in write_instructions(tools, must_call=True, described=False)


def test_arguments_past_64_bits_stay_exact_in_a_batch() -> None:
    crystal = anthropic("claude-sonnet-4-5", api_key="key")
    call = Message("assistant", "", (ToolCall("c", "count", {"n": LARGE}),))
    result = Message("tool", "done", tool_call_id="c", gate="count")
    query = ProviderQuery([Message("user", "go"), call, result], (), None, SamplingSettings.of({}))
    body = make_endpoint(crystal).make_body(crystal.family.make_request(query))
    assert str(LARGE).encode() in body


def test_a_part_of_an_answer_meets_a_part_of_a_recursive_schema_once(monkeypatch) -> None:
    def make_node(kind: str) -> dict[str, object]:
        parts = {"kind": {"const": kind}, "of": {"$ref": "#/$defs/node"}, "note": {"type": "string"}}
        return {"type": "object", "properties": parts, "required": ["kind", "of"], "additionalProperties": False}

    leaf = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    node = {"anyOf": [make_node("first"), make_node("second"), leaf]}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    levels, answer, whole = 8, {"n": 1}, {"n": 1}
    for _ in range(levels):
        answer = {"kind": "second", "of": answer, "note": None}
        whole = {"kind": "second", "of": whole}
    checks = []

    def count_check(value: object, schema: dict[str, object]) -> list[str]:
        """Check a node without the nodes in it, which were checked before."""
        checks.append(value)
        kind = schema["properties"].get("kind", {}).get("const")
        return [] if value.get("kind") == kind and None not in value.values() else ["another kind"]

    monkeypatch.setattr(schemas, "find_misfits", count_check)
    assert drop_nulls(answer, schema) == whole
    assert len(checks) <= 3 * (levels + 1)
