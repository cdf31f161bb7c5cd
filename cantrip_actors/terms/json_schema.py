"""JSON Schemas: check a schema, and list how a value violates one.

A schema can be made to cost hours: by a regular expression that backtracks, or by references that double at each level.
A user's own schema is trusted. That of a server of tools is not (`foreign`): its unbounded keywords are left to the
server, which checks its own arguments, and its references are counted.

jsonschema takes long to import (a second of CPU on a busy machine) and most processes never use it, so it is imported
on first use. Code in an event loop has a thread `load` it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from cantrip_actors.terms.bounds import DEEPEST, is_deeper
from cantrip_actors.terms.schema_shape import is_plain

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

REFERENCES: Final = 10_000
"""References that are followed in one check of a value against a foreign schema."""

LARGEST: Final = 100
"""Objects and lists in the schema of a question that a model wrote: a check takes half a millisecond for each."""

LONGEST: Final = 20_000
"""Characters of such a schema; a number and the like count as four."""

_UNBOUNDED: Final = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems")


def load() -> None:
    """Import what checking needs."""
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import EMPTY_REGISTRY

    Draft202012Validator({}, registry=EMPTY_REGISTRY)


def find_schema_fault(schema: Mapping[str, Any], *, foreign: bool = False) -> str | None:
    """Return what is wrong with a JSON Schema, or None. The patterns of a `foreign` one are not compiled.

    The first check of a schema that `is_plain` does not recognise takes milliseconds for each part. Equal ones are
    checked once.
    """
    if is_deeper(schema, DEEPEST):
        return f"it has more than {DEEPEST} levels"
    try:
        text = orjson.dumps(schema, default=dict)
    except TypeError:  # whole numbers of more than 64 bits
        return _check_schema(schema, foreign)
    return _check_text(text, foreign)


@lru_cache(maxsize=4096)
def _check_text(schema: bytes, foreign: bool) -> str | None:
    return _check_schema(orjson.loads(schema), foreign)


def _check_schema(schema: Mapping[str, Any], foreign: bool) -> str | None:
    if foreign and is_plain(schema):
        return None
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError

    formats = {"format_checker": FormatChecker(formats=())} if foreign else {}
    try:
        Draft202012Validator.check_schema(schema, **formats)
    except SchemaError as error:
        return error.message
    return None


def find_excess(schema: object) -> str | None:
    """Return how a schema exceeds the bounds for schemas that are checked on the event loop, or None."""
    parts, characters, todo = 0, 0, [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            parts += 1
            todo += [*part, *part.values()]
        elif isinstance(part, (list, tuple)):
            parts += 1
            todo += part
        elif isinstance(part, str):
            characters += len(part)
        else:
            characters += 4
        if parts > LARGEST or characters > LONGEST:
            return f"it has more than {LARGEST} objects and lists, or {LONGEST:,} characters: ask for less at once"
    return None


def find_dangling_reference(schema: Mapping[str, Any]) -> str | None:
    """Return the first `$ref` of a valid schema that leads nowhere within it, or None."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    top = Registry().with_resource(resource.id() or "", resource).resolver(resource.id() or "")
    resources = [(resource, top)]
    while resources:
        part, resolver = resources.pop()
        inner = [(two, resolver.in_subresource(two)) for two in part.subresources()]
        resources += [(two, inner_resolver) for two, inner_resolver in inner if isinstance(two.contents, Mapping)]
        reference = part.contents.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return reference
    return None


def make_validator(schema: Mapping[str, Any], *, foreign: bool = False) -> Draft202012Validator:
    """Return the validator of a valid schema. It does not fetch references of the schema."""
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import EMPTY_REGISTRY

    if foreign:
        return cast("Draft202012Validator", ForeignValidator(schema))
    return Draft202012Validator(schema, registry=EMPTY_REGISTRY)


class ForeignValidator:
    """The validator of a foreign schema. It has a class of its own, which is made for the first check."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._validator: Any = None

    @property
    def followed(self) -> list[int]:
        """The number of references that the current check has followed, as the only item."""
        followed: list[int] = self._load().followed
        return followed

    def iter_errors(self, value: Any) -> Any:
        """Return an iterator over the violations of the schema by a value."""
        return self._load().iter_errors(value)

    def _load(self) -> Any:
        from referencing.jsonschema import EMPTY_REGISTRY

        if self._validator is None:
            self._validator = _make_validator_class()(self._schema, registry=EMPTY_REGISTRY)
        return self._validator


def _make_validator_class() -> Any:
    """Return a class of validators for one foreign schema. Its `followed` counts the references of a check."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    validators, followed = Draft202012Validator.VALIDATORS, [0]

    def check_nothing(*_: Any) -> None:
        """Check nothing."""

    def follow(keyword: str) -> Any:
        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            followed[0] += 1
            if followed[0] > REFERENCES:
                raise RecursionError
            yield from validators[keyword](validator, value, instance, schema) or ()

        return check

    def check_additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if "patternProperties" not in schema:
            yield from validators["additionalProperties"](validator, value, instance, schema) or ()

    own = {"$ref": follow("$ref"), "$dynamicRef": follow("$dynamicRef"), "additionalProperties": check_additional}
    validator_class = extend(Draft202012Validator, {**dict.fromkeys(_UNBOUNDED, check_nothing), **own})  # type: ignore[no-untyped-call]
    validator_class.followed = followed
    return validator_class


def find_misfits(value: Any, schema: Mapping[str, Any], *, foreign: bool = False) -> list[str]:
    """Return a text for each violation of a valid schema by a value."""
    return find_problems(value, _load_validator(orjson.dumps(schema, default=dict), foreign))


def find_problems(value: Any, schema: Draft202012Validator) -> list[str]:
    """Return a text for each violation of a validator's schema by a value."""
    from referencing.exceptions import Unresolvable

    problems: list[str] = []
    getattr(schema, "followed", [0])[0] = 0
    try:
        errors = list(schema.iter_errors(value))
    except Unresolvable as elsewhere:
        return [f"the schema refers to {elsewhere.ref!r}, which is not in it, so nothing can be checked"]
    except RecursionError:
        return ["the schema refers to itself without end, so nothing can be checked"]
    for error in errors:
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            problems.append(f"missing required argument {', '.join(repr(name) for name in missing)}")
        else:
            where = "".join(f" {part}" for part in error.absolute_path)
            problems.append(f"argument{where}: {error.message}")
    return list(dict.fromkeys(problems))


@lru_cache(maxsize=64)
def _load_validator(schema: bytes, foreign: bool) -> Draft202012Validator:
    return make_validator(orjson.loads(schema), foreign=foreign)


def strip_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds: they cost tokens, and one provider refuses them."""
    if isinstance(schema, dict):
        return {
            key: {name: strip_titles(part) for name, part in value.items()}
            if key in ("properties", "$defs")
            else strip_titles(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    if isinstance(schema, list):
        return [strip_titles(part) for part in schema]
    return schema
