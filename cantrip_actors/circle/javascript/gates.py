"""Gates as JavaScript functions: their names, the mapping of arguments, and the capability text for the entity.

A call may give its arguments in order, as one object, or in order with an object of the rest at the end. The gate's own
schema decides which of these a call means; `prelude.js` has the code for that, and this file gives it the necessary
facts. The resulting arguments are checked like those of a tool call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cantrip_actors.circle.gate_names import name_gates
from cantrip_actors.circle.medium import ProgramLimits
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.messages import ToolDefinition

_NO_NAME: Final = re.compile(r"[^\w$]")
_WORDS: Final = (
    "await break case catch class const continue debugger default delete do else enum export extends false finally for "
    "function if import in instanceof let new null return static super switch this throw true try typeof var void "
    "while with yield"
)
_RESERVED: Final = frozenset(_WORDS.split())
_TYPES: Final = {"integer": "number", "number": "number", "boolean": "boolean", "null": "null", "string": "string"}


def describe_functions(gates: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the descriptions of the gates for the prelude. `calls` are the names by which a program can call one."""
    calls: dict[str, list[str]] = {}
    for name, gate in name_gates(gates, _make_identifier).items():
        calls.setdefault(gate.name, []).append(name)
    specifications = []
    for gate in gates:
        definitions = gate.parameters.get("$defs", {})
        objects = [_may_be_object(shape, definitions) for shape in _get_properties(gate).values()]
        specifications.append(
            {
                "name": gate.name,
                "calls": calls[gate.name],
                "names": list(_get_properties(gate)),
                # if the first parameter cannot be an object, a single object always means arguments by name
                "record": not (objects and objects[0]),
                "objects": objects,
                "signature": _render_signature(gate),
            }
        )
    return specifications


def _make_identifier(name: str) -> str:
    identifier = _NO_NAME.sub("_", name)
    return f"{identifier}_" if identifier in _RESERVED else identifier


def _get_properties(gate: ToolDefinition) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = gate.parameters.get("properties", {})
    return properties


def _may_be_object(shape: Any, definitions: Mapping[str, Any]) -> bool:
    if not isinstance(shape, Mapping):
        return True
    if "$ref" in shape:
        return True
    for key in ("anyOf", "oneOf"):
        if key in shape:
            return any(_may_be_object(option, definitions) for option in shape[key])
    if "enum" in shape:
        return False
    kind = shape.get("type", "object")
    return "object" in kind if isinstance(kind, list) else kind == "object"


def _render_signature(gate: ToolDefinition) -> str:
    definitions = gate.parameters.get("$defs", {})
    required = gate.parameters.get("required", ())
    parameters = (
        f"{name}{'' if name in required else '?'}: {_render_type(shape, definitions)}"
        for name, shape in _get_properties(gate).items()
    )
    return f"{_make_identifier(gate.name)}({', '.join(parameters)})"


def _render_type(shape: Any, definitions: Mapping[str, Any], depth: int = 0) -> str:
    """Return a JSON Schema as a TypeScript type, as far as it helps a reader."""
    if not isinstance(shape, Mapping) or depth > 3:
        return "any"
    if "$ref" in shape:
        return _render_type(definitions.get(str(shape["$ref"]).rsplit("/", 1)[-1]), definitions, depth + 1)
    if "enum" in shape:
        return " | ".join(dump_exactly(value).decode() for value in shape["enum"])
    for key in ("anyOf", "oneOf"):
        if key in shape:
            return " | ".join(dict.fromkeys(_render_type(option, definitions, depth + 1) for option in shape[key]))
    kind = shape.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(kind_name, "any") for kind_name in kind)
    if kind == "array":
        inner = _render_type(shape.get("items"), definitions, depth + 1)
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if kind == "object" and shape.get("properties"):
        required = shape.get("required", ())
        fields = (
            f"{name}{'' if name in required else '?'}: {_render_type(field, definitions, depth + 1)}"
            for name, field in shape["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    return _TYPES.get(kind, "any")


_LANGUAGE: Final = """\
You act by writing JavaScript (QuickJS, ES2023). Each program you write runs as one script in a sandbox of your own;
variables and functions of its top level live on to your next one. You are shown what it prints with console.log, the
value of its last expression, and the error that ends it, if one does. There are no modules, files, network, timers or
environment in there, the clock stands still at 1970, and Math.random repeats its numbers."""

_CALLS: Final = """\
Call them like any function: they need no await, take their arguments in order or as one object by name, return JSON,
and throw an Error when they fail. Integers beyond 2**53 are BigInts in them, as in 12345678901234567890n."""


def write_capability(gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
    """Return the text about this medium for the entity."""
    lines = [_LANGUAGE]
    if gates:
        lines += ["", "What you can do beyond computing are these functions:", ""]
    for gate in gates:
        about = " ".join(gate.description.split("\n\n")[0].split())
        lines.append(f"  {_render_signature(gate)}{f'  // {about}' if about else ''}")
    if gates:
        lines += ["", _CALLS]
    if any(gate.name == "done" for gate in gates):
        lines.append("done(answer) ends the task; submit_answer(answer) is the same.")
    lines.append(
        f"A program may compute for {limits.seconds:g} s, use {limits.memory / 2**20:.4g} MiB, print "
        f"{limits.output} characters and make {limits.gate_calls} calls; functions nested about 1000 deep end it. A "
        "program that exceeds one of these limits is undone: its variables are then as they were before."
    )
    return "\n".join(lines)
