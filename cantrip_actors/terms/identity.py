"""The parts of a content id: what the author of a cantrip wrote, and nothing that this library or pydantic adds.

A standard gate enters by its name, whatever its text is. A gate of the author's enters by its name, its description
and its parameters as they are annotated, not by the JSON Schema that pydantic makes of them; decision 0140 says why.
A function enters by what the crystal sees of it, not by its module; wrapped steps enter by the wrapper's name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import is_typeddict

DEEPEST: Final = 20
"""Levels of a default that enter the id."""

_FIELD: Final = (
    *("alias", "validation_alias", "title", "description", "examples", "discriminator", "deprecated"),
    *("json_schema_extra", "default_factory"),
)
"""The arguments of pydantic's `Field` that enter; its constraints are in `metadata`."""

_TYPE: Final = "type"
"""The key of an object of JSON that stands for a value that is not JSON: it has the name of the value's type."""

_TEXTS: Final = (
    *(str, int, float, complex, bytes, bytearray, range),
    *(date, time, timedelta, Decimal, Fraction, PurePath),
)
"""The types whose `str` is all that a value consists of."""

_TEXT_MODULES: Final = frozenset({"ipaddress", "pydantic.networks", "uuid", "zoneinfo"})
"""The modules of further such types: addresses, URLs, UUIDs and time zones."""

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
            return {"class": _get_name(hint), "parts": parts, **_describe_class(hint)}
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
        return {field.name: _describe_own_field(hints[field.name], field, above) for field in dataclasses.fields(cls)}
    if is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        defaults = getattr(cls, "_field_defaults", {})
        return {
            name: _describe_parameter(hint, defaults[name], above) if name in defaults else _describe_type(hint, above)
            for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        }
    return None


def _describe_own_field(hint: Any, field: dataclasses.Field[Any], above: tuple[type, ...]) -> list[Any]:
    default = ... if field.default is dataclasses.MISSING else field.default
    if field.default_factory is dataclasses.MISSING:
        return _describe_parameter(hint, default, above)
    return [*_describe_parameter(hint, default, above), {"default_factory": _convert_value(field.default_factory)}]


def _describe_class(cls: type) -> dict[str, Any]:
    """Return the rest of what a class has in a schema: its docstring, its settings of pydantic, and its optional keys.

    The docstrings that Python writes for enumerations and dataclasses are left out.
    """
    text = inspect.cleandoc(vars(cls).get("__doc__") or "")
    is_own = text != "An enumeration." and not text.startswith(f"{cls.__name__}(")
    rest = {
        "docstring": text if is_own else "",
        "settings": getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None),
        "optional": sorted(getattr(cls, "__optional_keys__", ())),
    }
    return {name: _convert_value(part) for name, part in rest.items() if part}


def _get_name(item: Any) -> str:
    """Return the name of a type, without its module: libraries and Python move their own types."""
    return str(getattr(item, "__qualname__", None) or getattr(item, "__name__", None) or type(item).__qualname__)


def _mark(mark: Any) -> Any:
    """Return the metadata of an `Annotated` type as JSON, without the names of pydantic's own types."""
    if isinstance(mark, FieldInfo):
        return _describe_field(mark)
    fields = _list_fields(mark)
    return _convert_value(mark) if fields is None else {name: _convert_value(part) for name, part in fields.items()}


def _describe_field(field: FieldInfo) -> dict[str, Any]:
    """Return the arguments of a `Field(…)` that were given."""
    arguments = {name: _convert_value(value) for name in _FIELD if (value := getattr(field, name, None)) is not None}
    if field.metadata:
        arguments["constraints"] = [_mark(mark) for mark in field.metadata]
    if _is_given(field.default):
        arguments["default"] = _convert_value(field.default)
    return arguments


def _convert_value(value: Any, depth: int = 0) -> Any:
    """Return a default or a constraint as JSON, in which a value that is no JSON has its type and its content.

    A mapping with a key that is not a text, or that could be taken for another value, is converted like other types.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth == DEEPEST:
        return {_TYPE: "…"}
    convert = functools.partial(_convert_value, depth=depth + 1)
    if type(value) is list:
        return [convert(part) for part in value]
    if type(value) is dict and all(type(key) is str for key in value) and _TYPE not in value:
        return {key: convert(part) for key, part in value.items()}
    if isinstance(value, type) or inspect.isroutine(value):
        return {_TYPE: "function", "name": _get_name(value)}
    return {_TYPE: _get_name(type(value)), "content": _convert_content(value, convert)}


def _convert_content(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return what a value consists of besides its type, as JSON; None if only its author can tell."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, _TEXTS) or any(cls.__module__ in _TEXT_MODULES for cls in type(value).__mro__):
        return str(value)
    if isinstance(value, re.Pattern):
        return [convert(value.pattern), value.flags]
    if isinstance(value, (list, tuple)):
        return [convert(part) for part in value]
    fields = _list_fields(value)
    if fields is not None:
        return {name: convert(part) for name, part in fields.items()}
    if isinstance(value, Mapping):
        return sorted(([convert(key), convert(part)] for key, part in value.items()), key=_in_one_order)
    return sorted(map(convert, value), key=_in_one_order) if isinstance(value, (set, frozenset)) else None


_in_one_order: Final = functools.partial(json.dumps, sort_keys=True)


def _list_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or of an object of pydantic; None for any other value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel) or type(value).__module__.startswith("pydantic."):
        return {name: part for name, part in vars(value).items() if not name.startswith("_")}
    return None
