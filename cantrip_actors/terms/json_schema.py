"""JSON Schemas: check a schema, and list how a value violates one.

A schema can be made to cost hours: by a regular expression that backtracks, by references that double at each level,
or by ninety alternatives for each of a hundred thousand items. A user's own schema is trusted. That of a server of
tools is not (`foreign`): its unbounded keywords are left to the server, which checks its own arguments, and the steps
of a check are counted.

jsonschema takes long to import (a second of CPU on a busy machine) and most processes never use it, so it is imported
on first use. Code in an event loop has a thread `load` it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from cantrip_actors.terms.bounds import DEEPEST, is_deeper
from cantrip_actors.terms.schema_shape import is_plain

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

STEPS: Final = 100_000
"""Steps of one check of a value against a foreign schema: keywords at values, about a second of a busy processor."""

PROBLEMS: Final = 20
"""Violations that are listed."""

LONGEST_PROBLEM: Final = 500
"""Characters of the text about one of them, which quotes the value and the schema."""

OVER_STEPS: Final = f"checking takes more than {STEPS:,} steps, so nothing was checked: pass less at once"
"""The problem of a value that is too large for its foreign schema."""

LARGEST: Final = 100
"""Objects and lists in the schema of a question that a model wrote: a check takes half a millisecond for each."""

LONGEST: Final = 20_000
"""Characters of such a schema; a number and the like count as four."""

_UNBOUNDED: Final = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems")

_REFERENCE: Final = 20
"""Steps of a reference, which has to be looked up."""

_ITERATING: Final = frozenset({"additionalProperties", "contains", "items", "propertyNames"})
"""Keywords that look at each part of a value."""


class _OverSteps(Exception):
    """A check has taken all its steps."""


class _Budget:
    """The steps that are left for one check.

    They travel as the checker of formats, because jsonschema hands only its own fields on to the parts of a check.
    """

    def __init__(self) -> None:
        self._left = STEPS

    def take(self, steps: int) -> None:
        """Count steps. Raises _OverSteps for one too many."""
        self._left -= steps
        if self._left < 0:
            raise _OverSteps

    def check(self, *_: object) -> None:
        """Check no format."""


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
    if foreign:
        return cast("Draft202012Validator", ForeignValidator(schema))
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import EMPTY_REGISTRY

    return Draft202012Validator(schema, registry=EMPTY_REGISTRY)


class ForeignValidator:
    """The validator of a foreign schema, which imports jsonschema for its first check and counts the steps of each."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def iter_errors(self, value: Any) -> Any:
        """Return an iterator over the violations of the schema by a value. It raises _OverSteps at the bound."""
        from referencing.jsonschema import EMPTY_REGISTRY

        validator_class = _make_validator_class()
        return validator_class(self._schema, registry=EMPTY_REGISTRY, format_checker=_Budget()).iter_errors(value)


@lru_cache(maxsize=1)
def _make_validator_class() -> Any:
    """Return the class of validators for foreign schemas, whose keywords count their steps."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    validators = Draft202012Validator.VALIDATORS

    def check_nothing(*_: Any) -> None:
        """Check nothing."""

    def count(keyword: str) -> Any:
        check = validators[keyword]
        is_iterating, base = keyword in _ITERATING, _REFERENCE if keyword in ("$ref", "$dynamicRef") else 1

        def check_counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            steps = base + (len(value) // 8 if isinstance(value, list | dict) else 0)
            left: _Budget = validator.format_checker
            left.take(steps + (len(instance) if is_iterating and isinstance(instance, list | dict) else 0))
            for error in check(validator, value, instance, schema) or ():
                left.take(2 + len(error.message) // 50)  # the message has the whole value
                yield error

        return check_counted

    counted = {keyword: count(keyword) for keyword in validators}
    check_extra = counted["additionalProperties"]

    def check_additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if "patternProperties" not in schema:
            yield from check_extra(validator, value, instance, schema)

    own = {**counted, **dict.fromkeys(_UNBOUNDED, check_nothing), "additionalProperties": check_additional}
    return extend(Draft202012Validator, own)  # type: ignore[no-untyped-call]


def find_misfits(value: Any, schema: Mapping[str, Any], *, foreign: bool = False) -> list[str]:
    """Return a text for each of the first violations of a valid schema by a value."""
    try:
        validator = _load_validator(orjson.dumps(schema, default=dict), foreign)
    except TypeError:  # whole numbers of more than 64 bits
        validator = make_validator(schema, foreign=foreign)
    return find_problems(value, validator)


def find_problems(value: Any, schema: Draft202012Validator) -> list[str]:
    """Return a text for each of the first `PROBLEMS` violations of a validator's schema by a value.

    If a value is too large for a foreign schema, the only text is `OVER_STEPS`.
    """
    from referencing.exceptions import Unresolvable

    errors: list[Any] = []
    try:
        errors += islice(schema.iter_errors(value), PROBLEMS + 1)
    except Unresolvable as elsewhere:
        return [f"the schema refers to {elsewhere.ref!r}, which is not in it, so nothing can be checked"]
    except RecursionError:
        return ["the schema refers to itself without end, so nothing can be checked"]
    except _OverSteps:
        if not errors:
            return [OVER_STEPS]
        is_whole = False
    else:
        is_whole = len(errors) <= PROBLEMS
    problems = list(dict.fromkeys(_shorten(_describe(error)) for error in errors[:PROBLEMS]))
    return problems if is_whole else [*problems, "and more"]


def _describe(error: Any) -> str:
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"missing required argument {', '.join(repr(name) for name in missing)}"
    where = "".join(f" {part}" for part in error.absolute_path)
    return f"argument{where}: {error.message}"


def _shorten(text: str) -> str:
    """Return the two ends of a long text: the fault stands at its end."""
    half = LONGEST_PROBLEM // 2
    return text if len(text) <= LONGEST_PROBLEM else f"{text[:half]} … {text[-half:]}"


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
