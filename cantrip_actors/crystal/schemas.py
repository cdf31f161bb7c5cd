"""JSON Schemas for providers: a user's schema becomes the nearest one that the rules of a family allow.

The providers publish the rules for structured outputs. If a rule requires more than the user's schema (OpenAI: every
property is required), the sent schema is stricter, and `drop_nulls` converts an answer to the user's schema. If a rule
allows less (for example no `minLength`), the sent schema is weaker. Each answer is checked against the user's schema
(`fit_answer`), and the crystal asks again if it does not fit.

If a family cannot express a schema at all, such as a map at OpenAI or recursion at Anthropic, its `Fitted` says why.
The names below `properties`, `enum`, `const`, `default` and `examples` are data and not keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly, strip_fence
from cantrip_actors.terms.json_schema import find_misfits

Schema = Mapping[str, Any]


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Fitted(NamedTuple):
    """A schema for a family. If `schema` is None, the family cannot express it, and `why` says the reason."""

    schema: Schema | None
    strict: bool = True
    why: str = ""


class _Inexpressible(Exception):
    """The family cannot express a schema; `args[0]` says why."""


def keep_schema(schema: Schema) -> Fitted:
    """Return the schema unchanged."""
    return Fitted(schema)


# -------------------------------------------------------------------------------------------------- what schemas are of

_OF_ONE: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties"}
)
_OF_MANY: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_OF_NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_NOTES: Final = frozenset(
    {"title", "$schema", "$id", "$comment", "examples", "default", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that validate nothing."""
_REST: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_MAP: Final = "an object with free keys"


def _map_schemas(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with `change` applied to each schema in it, the inner ones first."""
    if not isinstance(schema, Mapping):
        return schema
    changed: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _OF_ONE:
            changed[word] = _map_schemas(value, change)
        elif word in _OF_MANY and isinstance(value, Sequence):
            changed[word] = [_map_schemas(part, change) for part in value]
        elif word in _OF_NAMED and isinstance(value, Mapping):
            changed[word] = {name: _map_schemas(part, change) for name, part in value.items()}
        else:
            changed[word] = value
    return change(changed)


def _list_inner(schema: Schema) -> Iterator[Any]:
    for word, value in schema.items():
        if word in _OF_ONE:
            yield value
        elif word in _OF_MANY and isinstance(value, Sequence):
            yield from value
        elif word in _OF_NAMED and isinstance(value, Mapping):
            yield from value.values()


def _is_object(schema: Schema) -> bool:
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, Sequence) and "object" in kind) or "properties" in schema


def _replace_one_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with `anyOf` for `oneOf`, which the check of the answer covers, and without an `allOf` of one
    schema.
    """
    if "oneOf" in schema and "anyOf" not in schema:
        schema["anyOf"] = schema.pop("oneOf")
    parts = schema.get("allOf")
    if (
        isinstance(parts, list)
        and len(parts) == 1
        and isinstance(parts[0], Mapping)
        and not (schema.keys() & parts[0].keys())
    ):
        del schema["allOf"]
        schema.update(parts[0])
    if "definitions" in schema and "$defs" not in schema:
        schema["$defs"] = schema.pop("definitions")
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#/definitions/"):
        schema["$ref"] = f"#/$defs/{ref.removeprefix('#/definitions/')}"
    return schema


def _omit(schema: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    return {word: value for word, value in schema.items() if word not in words}


def _is_empty(schema: Any) -> bool:
    """Return whether a schema accepts any value."""
    return schema is True or (isinstance(schema, Mapping) and not schema.keys() - _NOTES - {"description"})


# -------------------------------------------------------------------------------------------------------------- OpenAI

_OPENAI_WORDS: Final = _split_words(
    "type properties required additionalProperties items enum const anyOf $ref $defs description title "
    "pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems"
)
_OPENAI_FORMATS: Final = _split_words("date-time time date duration email hostname ipv4 ipv6 uuid")
_NEVER: Final = _split_words("allOf not if then else dependentSchemas dependentRequired patternProperties")


def fit_for_openai(schema: Schema) -> Fitted:
    """Return the schema for OpenAI's strict mode, which Groq, xAI and others use too.

    Every object is closed, and every property is required; an optional one may be null instead. If that is impossible,
    the schema is sent unchanged, and not strict.
    """
    try:
        fitted = _map_schemas(schema, _fit_openai_part)
        if "anyOf" in fitted or not _is_object(fitted):
            raise _Inexpressible("an answer that is not an object")
        return Fitted(fitted)
    except _Inexpressible as problem:
        return Fitted(schema, strict=False, why=str(problem))


def _fit_openai_part(schema: dict[str, Any]) -> dict[str, Any]:
    schema = _replace_one_of(schema)
    _refuse(schema, _NEVER)
    if _is_empty(schema) or any(isinstance(part, bool) for part in _list_inner(_omit(schema, _REST))):
        raise _Inexpressible("a part that may be anything")
    if _is_object(schema):
        _refuse_maps(schema)
        required = set(schema.get("required", ()))
        named = schema.get("properties", {})
        schema["properties"] = {name: part if name in required else _allow_null(part) for name, part in named.items()}
        schema["required"] = list(schema["properties"])
        schema["additionalProperties"] = False
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if schema.get("format") not in _OPENAI_FORMATS:
        schema.pop("format", None)
    return {word: value for word, value in schema.items() if word in _OPENAI_WORDS}


def _is_plain(schema: Schema) -> bool:
    """Return whether an object has properties and allows any others."""
    return bool(schema.get("properties")) and schema.get("additionalProperties") is True


def _refuse(schema: Schema, words: frozenset[str]) -> None:
    refused = sorted(words & schema.keys())
    if refused:
        raise _Inexpressible(refused[0])


def _refuse_maps(schema: Schema) -> None:
    """Raise for an object with free keys: it has no properties, or a schema for other ones."""
    rest = schema.get("additionalProperties")
    if rest is not False and not schema.get("properties"):
        raise _Inexpressible(_MAP)
    if rest not in (None, False) and not _is_plain(schema):
        raise _Inexpressible(_MAP)


def _allow_null(schema: Any) -> Any:
    """Return a schema that also accepts null."""
    if _can_be_null(schema):
        return schema
    kind = schema.get("type")
    if "$ref" in schema or "anyOf" in schema or kind is None or "properties" in schema:
        inner = _omit(dict(schema), frozenset({"description"}))
        either = [*inner["anyOf"], {"type": "null"}] if inner.keys() == {"anyOf"} else [inner, {"type": "null"}]
        described = {"description": schema["description"]} if "description" in schema else {}
        return {"anyOf": either, **described}
    nullable = {**schema, "type": [*([kind] if isinstance(kind, str) else kind), "null"]}
    if "enum" in nullable:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable


def _can_be_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return schema is True
    kind = schema.get("type")
    return (
        kind == "null"
        or (isinstance(kind, Sequence) and not isinstance(kind, str) and "null" in kind)
        or (kind is None and None in schema.get("enum", ()))
        or any(_can_be_null(part) for part in schema.get("anyOf", ()))
    )


# ----------------------------------------------------------------------------------------------------------- Anthropic

_ANTHROPIC_WORDS: Final = _split_words(
    "type properties required additionalProperties items enum const anyOf allOf $ref $defs description "
    "title pattern format minItems default"
)
_ANTHROPIC_FORMATS: Final = _split_words("date-time time date duration email hostname uri ipv4 ipv6 uuid")
_LIMITS: Final = (
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "format"),
)


def fit_for_anthropic(schema: Schema) -> Fitted:
    """Return the schema for Anthropic's structured outputs: objects are closed, and descriptions state the limits.

    The provider accepts no maps and no recursion: there is no schema for them.
    """
    try:
        fitted = _map_schemas(schema, _fit_anthropic_part)
        if _is_recursive(fitted):
            raise _Inexpressible("a schema that refers to itself")
        if not fitted.keys() & {"type", "anyOf", "allOf", "$ref", "enum", "const"}:
            raise _Inexpressible("an answer that may be anything")
        return Fitted(fitted)
    except _Inexpressible as problem:
        return Fitted(None, why=str(problem))


def _fit_anthropic_part(schema: dict[str, Any]) -> dict[str, Any]:
    schema = _replace_one_of(schema)
    _refuse(schema, _NEVER | {"prefixItems"})
    if _is_object(schema):
        _refuse_maps(schema)
        schema["additionalProperties"] = False
    sent = {word: value for word, value in schema.items() if word in _ANTHROPIC_WORDS}
    if sent.get("format") not in _ANTHROPIC_FORMATS:
        sent.pop("format", None)
    if sent.get("minItems", 0) not in (0, 1):
        sent["minItems"] = 1
    return _describe_limits(schema, sent)


def _describe_limits(schema: Schema, sent: dict[str, Any]) -> dict[str, Any]:
    """State in the description the rules that the sent schema lacks."""
    lost = {word: schema[word] for word in _LIMITS if word in schema and sent.get(word) != schema[word]}
    if lost:
        rules = ", ".join(f"{word}: {dump_exactly(value).decode()}" for word, value in lost.items())
        sent["description"] = f"{sent['description']} ({rules})" if sent.get("description") else rules
    return sent


def _is_recursive(schema: Schema) -> bool:
    """Return whether a definition refers to itself, or a reference to the whole schema."""
    defs = schema.get("$defs", {})
    leads: dict[str, set[str]] = {name: set(_list_refs(definition)) for name, definition in defs.items()}
    if "#" in {ref for part in (schema, *defs.values()) for ref in _list_refs(part)}:
        return True
    for name in leads:
        seen: set[str] = set()
        todo = [name]
        while todo:
            for ref in leads.get(todo.pop(), ()):
                target = ref.removeprefix("#/$defs/")
                if target == name:
                    return True
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
    return False


def _list_refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for part in _list_inner(_omit(dict(schema), frozenset({"$defs"}))):
            yield from _list_refs(part)


# -------------------------------------------------------------------------------------------------------------- Gemini

_GEMINI_WORDS: Final = _split_words(
    "type properties required additionalProperties items prefixItems enum anyOf $ref $defs description "
    "title format minimum maximum minItems maxItems propertyOrdering"
)


def fit_for_gemini(schema: Schema, *, maps: bool) -> Fitted:
    """Return the schema for Gemini. `maps`: the model accepts objects with free keys."""
    try:
        return Fitted(_map_schemas(schema, lambda part: _fit_gemini_part(part, maps=maps, loose=False)))
    except _Inexpressible as problem:
        return Fitted(None, why=str(problem))


def fit_gemini_arguments(schema: Schema, *, maps: bool) -> Schema:
    """Return the nearest schema that Gemini accepts for a tool's arguments, without unknown keywords."""
    fitted: Schema = _map_schemas(schema, lambda part: _fit_gemini_part(part, maps=maps, loose=True))
    return fitted


def _fit_gemini_part(schema: dict[str, Any], *, maps: bool, loose: bool) -> dict[str, Any]:
    schema = _replace_one_of(schema)
    if not loose:
        _refuse(schema, frozenset({"not", "if", "then", "else", "patternProperties", "dependentSchemas", "allOf"}))
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    # only texts and numbers may be enumerated
    if "enum" in schema and not all(isinstance(value, (str, int, float)) or value is None for value in schema["enum"]):
        del schema["enum"]
    if "enum" in schema and None in schema["enum"]:
        kind = schema.get("type")
        named = {"type": next(word_type for word_type in kind if word_type != "null")} if isinstance(kind, list) else {}
        values = {**schema, **named, "enum": [value for value in schema["enum"] if value is not None]}
        schema = {"anyOf": [_fit_gemini_part(values, maps=maps, loose=loose), {"type": "null"}]}
    for word, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if isinstance(schema.get(word), (int, float)) and bound not in schema:
            is_whole = schema.get("type") == "integer" and float(schema[word]).is_integer()
            schema[bound] = int(schema[word]) + step if is_whole else schema[word]
    if (
        not maps
        and not loose
        and schema.get("additionalProperties", False) not in (False, None)
        and not _is_plain(schema)
    ):
        raise _Inexpressible(_MAP)
    sent = {word: value for word, value in schema.items() if word in _GEMINI_WORDS}
    if not maps or _is_plain(schema):
        sent.pop("additionalProperties", None)
    return sent


# -------------------------------------------------------------------------------------------------------------- answers


def describe_schema(schema: Schema) -> str:
    """Return the instructions for a model that cannot be forced to follow a schema."""
    text = dump_exactly(_map_schemas(schema, dict)).decode()
    return f"[Answer with one JSON value and nothing else. It has to fit this JSON Schema: {text}]"


def fit_answer(text: str, schema: Schema) -> tuple[str, str]:
    """Return an answer in the form of the user's schema, and how it violates that schema ("" if it does not).

    A Markdown fence around the JSON is removed, and so are nulls for omitted properties.
    """
    bare = strip_fence(text)
    try:
        value = parse_exactly(bare)
    except ValueError as error:
        return text, f"it is not JSON: {error}"
    misfits = find_misfits(value, schema)
    if misfits:
        whole = drop_nulls(value, schema)
        if whole != value and not find_misfits(whole, schema):
            return dump_exactly(whole).decode(), ""
        return bare, "; ".join(misfits[:5])
    return bare, ""


def drop_nulls(value: Any, schema: Schema) -> Any:
    """Return a value without the nulls of optional properties that may not be null in the schema."""
    return _NullDropper(schema).drop(value, schema)


class _NullDropper:
    """Drops nulls by one schema. Each part of a value meets each part of the schema once, however they are nested: the
    options of a recursive schema would otherwise be tried again at each level, and twice as often with each.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = {"$defs": root.get("$defs", {}), "definitions": root.get("definitions", {})}
        self._dropped: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """By the ids of a value and a schema: both, which keeps them in memory, and the result."""

    def drop(self, value: Any, schema: Any, depth: int = 0) -> Any:
        """Return a value without the nulls that the schema does not allow."""
        schema = _resolve(schema, self._root)
        if not isinstance(schema, Mapping) or not isinstance(value, (dict, list)) or depth > _DEEPEST:
            return value
        key = (id(value), id(schema))
        if key not in self._dropped:
            self._dropped[key] = (value, schema, self._drop_from(value, schema, depth + 1))
        return self._dropped[key][2]

    def _drop_from(self, value: Any, schema: Schema, depth: int) -> Any:
        for word in ("anyOf", "oneOf"):
            for option in schema.get(word, ()):
                if isinstance(option, Mapping):
                    candidate = self.drop(value, option, depth)
                    if not find_misfits(candidate, {**_resolve(option, self._root), **self._definitions}):
                        return candidate
        for option in schema.get("allOf", ()):
            value = self.drop(value, option, depth)
        if isinstance(value, dict):
            return self._drop_from_object(value, schema, depth)
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        return [self.drop(item, first[n] if n < len(first) else rest, depth) for n, item in enumerate(value)]

    def _drop_from_object(self, value: dict[str, Any], schema: Schema, depth: int) -> dict[str, Any]:
        required, named = set(schema.get("required", ())), schema.get("properties", {})
        rest = schema.get("additionalProperties")
        kept: dict[str, Any] = {}
        for name, part in value.items():
            own = named.get(name, rest)
            if part is None and name in named and name not in required and not _can_be_null(_resolve(own, self._root)):
                continue
            kept[name] = self.drop(part, own, depth)
        return kept


_DEEPEST: Final = 64


def _resolve(schema: Any, root: Schema) -> Any:
    """Return the schema that a local reference refers to."""
    for _ in range(8):
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(ref, str) or not ref.startswith("#"):
            return schema
        at: Any = root
        for step in ref.removeprefix("#").split("/")[1:]:
            at = at.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(at, Mapping) else {}
        schema = at
    return schema
