"""Recognise a valid JSON Schema by its shape.

jsonschema needs two milliseconds for each part of a schema, because it walks the whole meta-schema there. A client may
send the schemas of a hundred tools with every request. Nearly all schemas have keywords of plain kinds only: a text, a
number, a list of names, a schema. This walk looks at each keyword once, in a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_names(names) and bool(names) and _TYPES.issuperset(names)


def _is_never(_: Any) -> bool:
    """Leave a rare keyword to jsonschema."""
    return False


def _map(check: Callable[[Any], bool], keywords: str) -> dict[str, Callable[[Any], bool]]:
    return dict.fromkeys(keywords.split(), check)


_VALUES: Final = {
    **_map(_is_text, "$schema $ref $comment title description format pattern contentEncoding contentMediaType"),
    **_map(_is_flag, "deprecated readOnly writeOnly uniqueItems"),
    **_map(_is_number, "maximum minimum exclusiveMaximum exclusiveMinimum"),
    **_map(_is_count, "maxLength minLength maxItems minItems maxContains minContains maxProperties minProperties"),
    **_map(_is_list, "enum examples"),
    **_map(_is_names, "required"),
    **_map(_is_type, "type"),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "$id": lambda value: isinstance(value, str) and "#" not in value,
    **_map(_is_never, "$anchor $dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef $vocabulary"),
    **_map(_is_never, "dependencies dependentRequired"),
}
"""Keywords whose value is no schema, and whether jsonschema accepts a value. Its meta-schema accepts any value of
`const`, of `default`, and of a keyword that it does not have.
"""

_SCHEMAS: Final = frozenset({
    "items", "contains", "additionalProperties", "propertyNames", "if", "then", "else", "not", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS: Final = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_MAPS: Final = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})


def is_plain(schema: Any) -> bool:
    """Return whether a value is certainly a JSON Schema, for one whose patterns and addresses are not checked.

    If not, only jsonschema can tell.
    """
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            return False
        for keyword, value in part.items():
            inner = _list_schemas(keyword, value)
            if inner is None:
                return False
            todo += inner
    return True


def _list_schemas(keyword: str, value: Any) -> Iterable[Any] | None:
    """Return the schemas in the value of a keyword; None if the value is not of the keyword's plain kind."""
    check = _VALUES.get(keyword)
    if check is not None:
        return () if check(value) else None
    if keyword in _SCHEMAS:
        return (value,)
    if keyword in _LISTS:
        return value if isinstance(value, list) and value else None
    if keyword in _MAPS:
        return value.values() if isinstance(value, dict) else None
    return ()
