"""The parts of a content id: what the author of a cantrip wrote, and nothing that this library or pydantic adds.

A standard gate enters by its name, whatever its text is. A gate of the author's enters by its name, its description
and its parameters as they are annotated, not by the JSON Schema that pydantic makes of them; decision 0140 says why.
A function enters by what the crystal sees of it, not by its module; wrapped steps enter by the wrapper's name.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

DEEPEST: Final = 20
"""Levels of a default that enter the id."""

_FIELD: Final = ("alias", "title", "description", "examples", "discriminator", "json_schema_extra")
"""The arguments of pydantic's `Field` that enter; its constraints are in `metadata`."""

ParameterFields = Mapping[str, tuple[Any, Any]]
"""A function's parameters: annotations and defaults; `...` means that the parameter has no default."""


def build_parameters_identity(fields: ParameterFields, *, others: Any) -> dict[str, Any]:
    """Return a function's parameters as they enter a content id; `others` is the annotation of `**others`, or None."""
    parameters = {name: _describe_parameter(hint, default, ()) for name, (hint, default) in fields.items()}
    identity: dict[str, Any] = {"written": parameters, "open": others is not None}
    return identity if others in (None, Any) else identity | {"others": _describe_type(others, ())}


def _describe_parameter(hint: Any, default: Any, above: tuple[type, ...]) -> list[Any]:
    parts = [_describe_type(hint, above)]
    if isinstance(default, FieldInfo):
        parts.append(_describe_field(default))
    elif _is_given(default):
        parts.append({"default": _convert_value(default)})
    return parts


def _is_given(default: object) -> bool:
    """Return whether a parameter has a default. The marks for "no default" are compared without the author's code."""
    return default is not ... and default is not PydanticUndefined


def _describe_type(hint: Any, above: tuple[type, ...]) -> Any:  # noqa: PLR0911  # a table of kinds
    """Return an annotation as JSON; `above` are the classes that contain it."""
    if isinstance(hint, str) or hint is None:
        return hint
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base, *marks = args
        return {"annotated": _describe_type(base, above), "with": [_mark(mark) for mark in marks]}
    if origin is typing.Literal:
        return {"literal": [_convert_value(arg) for arg in args]}
    if origin in (typing.Union, types.UnionType):
        return {"union": [_describe_type(arg, above) for arg in args]}
    if origin is not None:
        return {"of": [_get_name(origin), *(_describe_type(arg, above) for arg in args)]}
    if isinstance(hint, list):  # the arguments of a Callable
        return [_describe_type(argument, above) for argument in hint]
    if hint is types.NoneType:
        return None
    if isinstance(hint, type) and hint not in above and not hint.__module__.startswith("cantrip_actors."):
        parts = _describe_parts(hint, (*above, hint))
        if parts is not None:
            return {"class": _get_name(hint), "parts": parts}
    return _get_name(hint)


def _describe_parts(cls: type, above: tuple[type, ...]) -> dict[str, Any] | None:
    """Return the fields of a class that has a schema; None for any other class."""
    if issubclass(cls, Enum):
        return {member.name: _convert_value(member.value) for member in cls}
    if issubclass(cls, BaseModel):
        return {
            name: [*_describe_parameter(field.annotation, field.default, above), _describe_field(field)]
            for name, field in cls.model_fields.items()
        }
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        return {
            field.name: _describe_parameter(
                hints[field.name], ... if field.default is dataclasses.MISSING else field.default, above
            )
            for field in dataclasses.fields(cls)
        }
    if typing.is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return {
            name: _describe_type(hint, above) for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        }
    return None


def _get_name(item: Any) -> str:
    """Return the name of a type, without its module: libraries and Python move their own types."""
    return str(getattr(item, "__qualname__", None) or getattr(item, "__name__", None) or type(item).__qualname__)


def _mark(mark: Any) -> Any:
    """Return the metadata of an `Annotated` type as JSON."""
    return _describe_field(mark) if isinstance(mark, FieldInfo) else _convert_value(mark)


def _describe_field(field: FieldInfo) -> dict[str, Any]:
    """Return the arguments of a `Field(…)` that were given."""
    arguments = {name: _convert_value(value) for name in _FIELD if (value := getattr(field, name, None)) is not None}
    if field.metadata:
        arguments["constraints"] = [_mark(mark) for mark in field.metadata]
    if _is_given(field.default):
        arguments["default"] = _convert_value(field.default)
    return arguments


def _convert_value(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911  # likewise
    """Return a default or a constraint as JSON: scalars and containers as they are, other values by their parts."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return f"{_get_name(type(value))}.{value.name}"
    if depth == DEEPEST:
        return "…"
    parts = functools.partial(_convert_value, depth=depth + 1)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {str(key): parts(part) for key, part in value.items()}
        return {"entries of a mapping": sorted(([parts(key), parts(part)] for key, part in value.items()), key=repr)}
    if isinstance(value, (list, tuple)):
        return [parts(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((parts(part) for part in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: parts(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel) or type(value).__module__.startswith("pydantic."):
        return {name: parts(part) for name, part in vars(value).items() if not name.startswith("_")}
    return _get_name(value if callable(value) else type(value))
