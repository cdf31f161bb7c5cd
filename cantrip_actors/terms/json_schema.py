"""JSON Schemas: check a schema, and list how a value violates one.

jsonschema takes a tenth of a second to import and most processes never use it, so it is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

__all__ = ["dangling_reference", "fault_of_schema", "misfits", "problems", "validator"]


def fault_of_schema(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a JSON Schema, or None."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return error.message
    return None


def dangling_reference(schema: Mapping[str, Any]) -> str | None:
    """Return the first `$ref` of a valid schema that leads nowhere within it, or None."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resource = DRAFT202012.create_resource(schema)
    top = Registry().with_resource(resource.id() or "", resource).resolver(resource.id() or "")
    resources = [(resource, top)]
    while resources:
        one, resolver = resources.pop()
        inner = [(two, resolver.in_subresource(two)) for two in one.subresources()]
        resources += [(two, found) for two, found in inner if isinstance(two.contents, Mapping)]
        reference = one.contents.get("$ref")
        if isinstance(reference, str):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                return reference
    return None


def validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return the validator of a valid schema. It does not fetch references of the schema."""
    from jsonschema import Draft202012Validator
    from referencing.jsonschema import EMPTY_REGISTRY

    return Draft202012Validator(schema, registry=EMPTY_REGISTRY)


def misfits(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return a text for each violation of a valid schema by a value."""
    return problems(value, _cached(orjson.dumps(schema, default=dict)))


def problems(value: Any, schema: Draft202012Validator) -> list[str]:
    """Return a text for each violation of a validator's schema by a value."""
    from referencing.exceptions import Unresolvable

    found: list[str] = []
    try:
        errors = list(schema.iter_errors(value))
    except Unresolvable as elsewhere:
        return [f"the schema refers to {elsewhere.ref!r}, which is not in it, so nothing can be checked"]
    for error in errors:
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            found.append(f"missing required argument {', '.join(repr(name) for name in missing)}")
        else:
            where = "".join(f" {part}" for part in error.absolute_path)
            found.append(f"argument{where}: {error.message}")
    return list(dict.fromkeys(found))


@lru_cache(maxsize=64)
def _cached(schema: bytes) -> Draft202012Validator:
    return validator(orjson.loads(schema))
