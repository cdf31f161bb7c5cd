"""Frozen values: msgspec Structs, which are cheap to make, encode and decode, because every turn makes many.

Functions of `dataclasses` (`replace`, `fields`, `asdict`) work with them, because users' code calls those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeGuard, TypeVar

import msgspec

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

T = TypeVar("T")


@cache
def _get_fields(cls: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    fields: dict[str, Field[Any]] = make_dataclass(  # type: ignore[attr-defined]
        cls.__name__, cls.__struct_fields__
    ).__dataclass_fields__
    return fields


class _Fields:
    """The attribute by which `dataclasses` recognises a dataclass."""

    def __get__(self, value: object, cls: type[msgspec.Struct]) -> dict[str, Field[Any]]:
        return _get_fields(cls)


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frozen value, compared by its fields. Its JSON form leaves out the fields that have their defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = _Fields()  # type: ignore[assignment]  # a descriptor

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Let a value be a field of users' models, such as those of a web service: an instance, shown as JSON."""
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(asdict, return_schema=core_schema.dict_schema())
        return core_schema.is_instance_schema(cls, serialization=written)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "object", "title": cls.__name__, "properties": {name: {} for name in cls.__struct_fields__}}


class Immutable:
    """A value that nothing changes, so that a copy of it is the value itself, with all that it refers to."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the fields that do not have their defaults, for a frozen dataclass without a `repr` of its own."""
        shown = [(field, getattr(self, field.name)) for field in fields(self) if field.repr]  # type: ignore[arg-type]
        texts = [f"{field.name}={value!r}" for field, value in shown if not _has_default(field, value)]
        return f"{type(self).__name__}({', '.join(texts)})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Let a value be a field of users' models, such as those of their settings: an instance, as it is."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)


def _has_default(field: Field[Any], value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return value is default or (isinstance(value, (type(default), Mapping)) and value == default)


def set_fields(value: object, /, **parts: Any) -> None:
    """Set fields of a frozen dataclass that is being made."""
    for name, part in parts.items():
        object.__setattr__(value, name, part)


def replace_fields(value: T, /, **parts: Any) -> T:
    """Return a frozen dataclass with some fields replaced by others that are already validated: none is checked."""
    copy: T = object.__new__(type(value))
    set_fields(copy, **{name: getattr(value, name) for name in value.__dataclass_fields__} | parts)  # type: ignore[attr-defined]
    return copy


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return `isinstance(value, Mapping)`, quickly if it is a dict, as nearly always."""
    return value.__class__ is dict or isinstance(value, Mapping)
