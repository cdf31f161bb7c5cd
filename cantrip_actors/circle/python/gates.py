"""Gates as Python functions: their names, signatures and positional arguments, and the capability text for the entity.

All of it is derived from the definition that the crystal of a tool circle would get (CALL-3). Required parameters come
first, as Python demands; the entity reads the signature in that order, and positional arguments get their names in it.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cantrip_actors.circle.gate_names import name_gates
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.terms.messages import ToolDefinition

_TYPES: Mapping[str, str] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_DEEP = 6
"""The depth of nested schemas that are spelt out, because references may be circular."""


def name_callables(gates: Sequence[ToolDefinition]) -> dict[str, ToolDefinition]:
    """Return the gates by the names that a program can call them by."""
    return name_gates(gates, _make_identifier)


def describe_for_calls(named: Mapping[str, ToolDefinition]) -> dict[str, Any]:
    """Return, as JSON, the facts that a worker needs to take gate calls: each gate's own name and its parameters."""
    return {
        name: [gate.name, [parameter for parameter, _ in _list_parameters(gate.parameters)]]
        for name, gate in named.items()
    }


def render(gate: ToolDefinition) -> str:
    """Return a gate as the entity reads it: `def search(query: str, limit: int = 5) -> any`, and its description."""
    more = bool(gate.parameters.get("additionalProperties", not gate.parameters.get("properties")))
    lines = [f"def {_make_identifier(gate.name)}({_render_signature(gate, more=more)}) -> any"]
    lines += [f"    {line}".rstrip() for line in gate.description.splitlines()]
    for name, shape in _list_parameters(gate.parameters):
        if isinstance(shape, Mapping) and isinstance(shape.get("description"), str):
            lines.append(f"    {name}: {' '.join(shape['description'].split())}")
    return "\n".join(lines)


def _render_signature(gate: ToolDefinition, *, more: bool) -> str:
    required = gate.parameters.get("required", ())
    written = []
    for name, shape in _list_parameters(gate.parameters):
        if not _is_parameter(name):  # its name is not an identifier, so it can only be passed as **{"from": …}
            more = True
            continue
        annotation = f"{name}: {_render_type(shape, gate.parameters.get('$defs', {}), 0)}"
        if name in required:
            written.append(annotation)
        elif isinstance(shape, Mapping) and "default" in shape:
            written.append(f"{annotation} = {shape['default']!r}")
        else:
            written.append(f"{annotation} = ...")
    return ", ".join([*written, "**more: Any"] if more else written)


def _list_parameters(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    required = schema.get("required", ())
    return sorted(schema.get("properties", {}).items(), key=lambda parameter: parameter[0] not in required)


def _render_type(shape: Any, definitions: Mapping[str, Any], depth: int) -> str:
    """Return the annotation for a JSON Schema; Any if Python has none."""
    if not isinstance(shape, Mapping) or depth > _DEEP:
        return "Any"
    if "$ref" in shape:
        return _render_type(definitions.get(str(shape["$ref"]).rsplit("/", 1)[-1]), definitions, depth + 1)
    if "const" in shape or "enum" in shape:
        values = shape["enum"] if "enum" in shape else [shape["const"]]
        if all(isinstance(value, (str, int, bool)) or value is None for value in values):
            return f"Literal[{', '.join(map(repr, values))}]"
        return "Any"
    for key in ("anyOf", "oneOf"):
        if key in shape:
            return _join_types(_render_type(option, definitions, depth + 1) for option in shape[key])
    kinds = shape.get("type", ())
    return _join_types(
        _render_kind(kind, shape, definitions, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _render_kind(kind: str, shape: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    if kind == "array":
        return f"list[{_render_type(shape.get('items'), definitions, depth + 1)}]"
    return "dict[str, Any]" if kind == "object" else _TYPES.get(kind, "Any")


def _join_types(types: Iterator[str]) -> str:
    names = list(dict.fromkeys(types))
    return "Any" if not names or "Any" in names else " | ".join(names)


def _make_identifier(name: str) -> str:
    identifier = name.replace("-", "_")
    return f"{identifier}_" if keyword.iskeyword(identifier) else identifier


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


_LANGUAGE: Final = """\
You act by writing Python programs. Each runs in your sandbox, and its variables and functions are there in your next
programs. You are shown what it prints, the value of its last expression, and its error.

It is a subset of Python 3: functions, closures, lambdas, decorators, simple classes, dataclasses, exceptions, with,
match, comprehensions, f-strings. It has no class inheritance (so no exception classes of your own), no generators
(yield), no del, no @property, @staticmethod or @classmethod, no input. Modules, in part: base64, bisect, collections,
copy, csv, dataclasses, datetime, decimal, functools, hashlib, itertools, json, math, random, re, tomllib, typing,
unicodedata. There are no packages, no files, no network, no environment and no clock.
"""
_GATES: Final = """\
The world is reached through these functions. Call them as they are, without import or await, with JSON values. They
raise RuntimeError when they fail. They cannot be called inside a callback such as sorted(key=…), map or filter: use a
loop or a comprehension.
"""


def write_capability(gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
    """Return the text for the entity: the language and its gaps, the gates, the limits, and how to finish.

    It is short, because every query contains it. It names only the gaps that an entity used to ordinary Python would
    run into; other failures explain themselves in their error message.
    """
    parts = [_LANGUAGE]
    if gates:
        parts.append(_GATES + "\n" + "\n".join(render(gate) for gate in gates) + "\n")
    if any(gate.name == "done" for gate in gates):
        parts.append("Finish with done(answer) or, which is the same, submit_answer(answer). No gate works after it.\n")
    bounds = ", ".join(limits.describe(limit) for limit in ("seconds", "memory", "gate_calls"))
    parts.append(
        f"Limits of one program: {bounds}. One that exceeds them is ended, and what it did to variables is undone; "
        f"what gates did stays done. Of printed output {limits.output} characters are kept.\n"
    )
    return "\n".join(parts)
