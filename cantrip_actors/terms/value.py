"""Frozen values: msgspec Structs, which are cheap to make, encode and decode, because every turn makes many.

Functions of `dataclasses` (`replace`, `fields`, `asdict`) work with them, because users' code calls those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, make_dataclass
from functools import cache
from typing import Any, ClassVar, TypeGuard, TypeVar

import msgspec

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
