"""Values that fit a JSON Schema: one, or a Hypothesis strategy of them.

The schemas are those of gates, which pydantic makes. Of a foreign schema, keywords that are not known here are passed
over: the value may not fit then, and the entity observes that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LONGEST = 5
"""Items of a list, where the schema does not ask for more."""

DEEPEST = 5
"""Schemas in each other, below which each value is always the same."""


def make_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a schema, always the same one: the shortest with all that is required."""
    return _make(schema, schema, 0)


def make_values(schema: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Return a strategy of values that fit a schema."""
    return _make_strategy(schema, schema, 0)


def _follow(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a node; an empty one, which allows anything, if its reference leads nowhere."""
    for _ in range(20):
        if not isinstance(node, Mapping):
            return {}
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return node
        target: Any = root
        for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            target = target.get(part) if isinstance(target, Mapping) else None
        node = target
    return {}


def _list_values(node: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema lists, if it does."""
    return [node["const"]] if "const" in node else list(node.get("enum", ()))


def _list_choices(node: Mapping[str, Any]) -> list[Any]:
    """Return the schemas one of which is enough; of several that all hold, the first says most."""
    return [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())[:1]]


def _find_type(node: Mapping[str, Any]) -> str:
    kind = node.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    return str(kind or ("object" if "properties" in node else "string"))


def _make(node: Any, root: Mapping[str, Any], depth: int) -> Any:
    node = _follow(node, root)
    if values := _list_values(node):
        return values[0]
    if choices := _list_choices(node):
        # a schema that contains itself has a choice in which it ends
        return _make(min(choices, key=_leads_on) if depth > DEEPEST else choices[0], root, depth + 1)
    kind = _find_type(node)
    if kind == "object" and depth <= 2 * DEEPEST:
        properties = node.get("properties", {})
        return {name: _make(properties.get(name), root, depth + 1) for name in node.get("required", ())}
    if kind == "array" and depth <= 2 * DEEPEST:
        first = [_make(item, root, depth + 1) for item in node.get("prefixItems", ())]
        rest = range(node.get("minItems", 0) - len(first))
        return [*first, *(_make(node.get("items"), root, depth + 1) for _ in rest)]
    return _make_plain(kind, node)


def _leads_on(choice: Any) -> bool:
    return isinstance(choice, Mapping) and bool(choice.keys() & {"$ref", "properties", "items", "prefixItems"})


def _make_plain(kind: str, node: Mapping[str, Any]) -> Any:
    if kind == "string":
        return _make_text(node)
    if kind in ("integer", "number"):
        return _make_number(kind, node)
    return {"boolean": True, "object": {}, "array": []}.get(kind)


def _make_number(kind: str, node: Mapping[str, Any]) -> float:
    """Return a number within the bounds, as near to 1 as they allow."""
    low, high = _find_whole_bounds(node) if kind == "integer" else _find_bounds(node)
    least = -math.inf if low is None else low
    most = math.inf if high is None else high
    number: float = min(max(1, least), most)
    step = node.get("multipleOf")
    excluded = (node.get("exclusiveMinimum"), node.get("exclusiveMaximum"))
    if step is not None:
        nearest = math.ceil(number / step)
        multiples: list[float] = [step * count for count in (nearest, nearest - 1, nearest + 1)]
        fitting = (multiple for multiple in multiples if least <= multiple <= most and multiple not in excluded)
        return next(fitting, multiples[0])
    if number in excluded:  # of an integer, the bounds belong to it
        number = (max(least, number - 1) + min(most, number + 1)) / 2
    return number


_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "ada@example.org",
    "uri": "https://example.org/",
    "uuid": "6f1d3a4e-9a55-4d6f-9f5f-0f4a6c1b2d3e",
}


def _make_text(node: Mapping[str, Any]) -> str:
    text = _FORMATS.get(str(node.get("format")), "text")
    return text.ljust(node.get("minLength", 0), "x")[: node.get("maxLength")]


def _make_strategy(node: Any, root: Mapping[str, Any], depth: int) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    node = _follow(node, root)
    if values := _list_values(node):
        return st.sampled_from(values)
    choices = _list_choices(node)
    if depth > DEEPEST:  # a schema that contains itself
        return st.just(_make(node, root, DEEPEST))
    if choices:
        return st.one_of([_make_strategy(choice, root, depth + 1) for choice in choices])
    kind = _find_type(node)
    if kind == "object":
        return _make_objects(node, root, depth)
    if kind == "array" and "prefixItems" not in node:
        return _make_arrays(node, root, depth)
    return _make_plain_values(kind, node, root)


def _make_plain_values(kind: str, node: Mapping[str, Any], root: Mapping[str, Any]) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    if kind == "boolean":
        return st.booleans()
    if kind == "integer" and "multipleOf" not in node:
        return st.integers(*_find_whole_bounds(node))
    if kind == "number" and "multipleOf" not in node:
        low, high = _find_bounds(node)
        return st.floats(
            low,
            high,
            allow_nan=False,
            allow_infinity=False,
            exclude_min=low is not None and low == node.get("exclusiveMinimum"),
            exclude_max=high is not None and high == node.get("exclusiveMaximum"),
        )
    if kind == "string" and "pattern" in node:
        return st.from_regex(node["pattern"])
    if kind == "string" and "format" not in node:
        return st.text(min_size=node.get("minLength", 0), max_size=node.get("maxLength"))
    return st.just(_make(node, root, 0))


def _make_arrays(node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    least: int = node.get("minItems", 0)
    most = max(least, min(node.get("maxItems", LONGEST), least + LONGEST))
    return st.lists(_make_strategy(node.get("items"), root, depth + 1), min_size=least, max_size=most)


def _make_objects(node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    properties = {name: _make_strategy(part, root, depth + 1) for name, part in node.get("properties", {}).items()}
    required = set(node.get("required", ()))
    must = {name: properties.get(name, st.just(None)) for name in required}
    may = {name: values for name, values in properties.items() if name not in required}
    return st.fixed_dictionaries(must, optional=may)


def _find_bounds(node: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the bounds of a number, whether or not they belong to it."""
    lows = [node[name] for name in ("minimum", "exclusiveMinimum") if name in node]
    highs = [node[name] for name in ("maximum", "exclusiveMaximum") if name in node]
    return max(lows, default=None), min(highs, default=None)


def _find_whole_bounds(node: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the bounds of an integer, which belong to it."""
    low, high = _find_bounds(node)
    if low is not None:
        low = math.floor(low) + 1 if low == node.get("exclusiveMinimum") else math.ceil(low)
    if high is not None:
        high = math.ceil(high) - 1 if high == node.get("exclusiveMaximum") else math.floor(high)
    return low, high
