"""Typed answers: the gate `done` of a cantrip whose `answer` is a type, and the values of that type.

The gate asks for an `answer` of the type, so a wrong one is an error observation that says why, and the entity tries
again. The loom keeps the answer as JSON. Validating that JSON once more yields the value that `Episode.result` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import isroutine
from typing import Any, Final

from typing_extensions import TypeVar

from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.gate import Gate, Refused, standard
from cantrip_actors.terms.json_schema import make_validator
from cantrip_actors.terms.own_gate_names import DONE
from cantrip_actors.terms.problems import shorten

_STAYING: Final = ("#/$defs/", "#/definitions/")
"""The keywords that stay at the top level of a schema when the rest of it becomes the schema of an argument."""
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""The keywords with values that are no schemas."""

Answer_co = TypeVar("Answer_co", covariant=True, default=Any)
"""The type of the answers of a cantrip; Any for a cantrip without one."""


def make_typed_done(answer: object) -> Gate:
    """Return the gate `done` for answers of a type. Raises InvalidCantrip for one that pydantic cannot validate."""
    from cantrip_actors.terms.argument_model import make_model
    from cantrip_actors.terms.identity import build_parameters_identity

    if isinstance(answer, str) or isroutine(answer):
        got = answer if isinstance(answer, str) else repr(answer)
        raise InvalidCantrip(f"answer: expected a type, such as a pydantic model or list[str], got {shorten(got)}")
    fields = {"answer": (answer, ...)}
    try:
        model, schema = make_model(DONE, fields)
    except InvalidCantrip as problem:
        raise InvalidCantrip(
            f"answer: expected a type that pydantic can validate, got {shorten(repr(answer))}: {problem}"
        ) from problem
    written = build_parameters_identity(fields, others=None)
    return replace(standard(DONE), parameters=schema, written=written, model=model)


def hold_to_schema(done: Gate, schema: Mapping[str, Any]) -> Gate | Refused:
    """Return the gate `done` for answers that fit a schema that a model wrote, or a text that says why there can be no
    such gate.
    """
    if done.function is not None:
        return Refused("cannot ask for an answer of another form: yours is the only one here; leave out `answer`")
    defined = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    inner = {name: part for name, part in schema.items() if name not in defined}
    properties = {"answer": _move_references(inner)}
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": ["answer"]}
    parameters |= {"additionalProperties": False, **_move_references(defined)}
    validator = make_validator(parameters, foreign=True)
    return replace(done, parameters=parameters, schema=validator, model=None, written=None)


def _move_references(part: Any) -> Any:
    """Return a part of a schema with its references changed so that they lead to the same definitions in the schema of
    `answer`.
    """
    if isinstance(part, list | tuple):
        return [_move_references(inner) for inner in part]
    if not isinstance(part, Mapping):
        return part
    moved = {name: inner if name in _VALUES else _move_references(inner) for name, inner in part.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.partition("/")[0] == "#" and not reference.startswith(_STAYING):
        moved["$ref"] = f"#/properties/answer{reference[1:]}"
    return moved
