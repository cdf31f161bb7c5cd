"""Convert a gate's result to a JSON value: the form that the crystal reads and the loom stores (D-005).

The conversion loses no data and guesses none. A value without a JSON form is converted to the nearest one (NaN to
"NaN", a date to ISO 8601, a set to a sorted list, bytes to text or base64); if there is none, `NotPlain` says where in
the result the value is. The converted value is a copy: a list that the gate changes later does not change the loom. An
image becomes its handle, and `convert_with_images` also returns the images.

pydantic is imported where it is used: a worker of the Python medium imports this file whenever it starts, and rarely
needs pydantic, which would be a third of its start.

This file is pure, but it runs user code (a property, a serializer, a generator), so its callers are boundaries
(`gate_call.py`).
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple

from cantrip_actors.terms.bounds import DEEPEST, LONGEST_KEY, RESULT_VALUES, Meter, NotPlain, TooLarge, is_over
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import as_text, make_encodable

__all__ = ["NotPlain"]

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_NAMES: Final = frozenset({str})
_LONG: Final = frozenset({str, bytes, bytearray, memoryview})

_LEAST, _MOST = -(2**63), 2**64 - 1
"""The integers that every JSON reader of the project reads as integers."""


def plain(value: object) -> Any:
    """Return `value` as JSON: only str, int, float, bool, None, and lists and dicts of those.

    Raises NotPlain, including TooLarge, and the exceptions of the value's own code.
    """
    return Conversion(is_result=True).visit(value)


def is_plain(value: object) -> bool:
    """Return whether `value` is JSON already, with tuples as lists; large data is not copied."""
    level: Iterable[Any] = (value,)
    for _ in range(DEEPEST):
        parts: dict[int, Any] = {}
        for part in level:
            kind = type(part)
            if kind is dict:
                if not _NAMES.issuperset(map(type, part)):
                    return False
                inner: Iterable[Any] = part.values()
            elif kind is list or kind is tuple:
                inner = part
            elif kind in _ATOMS:
                continue
            else:
                return False
            parts.update([(id(part), part) for part in inner if type(part) not in _ATOMS])
        if not parts:
            return True
        level = parts.values()
    return False


class Pictured(NamedTuple):
    """A value as JSON, and the images whose handles it contains."""

    value: Any
    images: tuple[File, ...]


def convert_with_images(value: object) -> Any:
    """Like `plain`, but return a `Pictured` if the value contains images; each image is listed once."""
    walk = Conversion(is_result=True)
    converted = walk.visit(value)
    return Pictured(converted, tuple(walk.images)) if walk.images else converted


def _convert_integer(value: int) -> int | str:
    if _LEAST <= value <= _MOST:
        return value
    return hex(value) if value.bit_length() > 10_000 else str(value)  # Python writes no huge decimals


def _convert_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _convert_bytes(value: bytes | bytearray | memoryview) -> Any:
    raw = bytes(value)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


async def collect_with_images(items: AsyncIterator[object]) -> Any:
    """Return what an async iterator yields as `convert_with_images` returns the items of an iterator, and close it."""
    walk = Conversion(is_result=True)
    try:
        converted = await walk.visit_each(items)
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
    return Pictured(converted, tuple(walk.images)) if walk.images else converted


class Conversion(Meter):
    """The conversion of one value, or of several values that share the bounds.

    It counts what it has converted, and tracks the enclosing containers, to find cycles.
    """

    __slots__ = ("_above", "_where", "images")

    def __init__(self, *, is_result: bool = False) -> None:
        super().__init__(is_result=is_result)
        self.images: dict[File, None] = {}
        self._above: set[int] = set()
        self._where: list[str] = []

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Return a value, `depth` levels below the converted one, as JSON. Raises NotPlain."""
        self.count()
        kind = type(value)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            self._check_room(kind, value)
            return self._count_simple(simple(value))
        if depth >= DEEPEST:
            raise NotPlain(f"a value nested more than {DEEPEST} levels deep{self._render_place()}")
        if id(value) in self._above:
            raise NotPlain(f"a {type(value).__name__} that contains itself{self._render_place()}")
        self._above.add(id(value))
        try:
            return self._convert_compound(value, depth + 1)
        finally:
            self._above.discard(id(value))

    async def visit_each(self, items: AsyncIterator[object]) -> list[Any]:
        """Return the items of an async iterator as JSON. Raises NotPlain."""
        self.count()
        converted: list[Any] = []
        async for item in items:
            self._where.append(f"[{len(converted)}]")
            converted.append(self.visit(item, 1))
            self._where.pop()
        return converted

    def _check_room(self, kind: type, value: Any) -> None:
        """Raise TooLarge for a value that is sure to exceed the bound, before it is copied."""
        if kind in _LONG:
            self.check_length(len(value))
        elif kind is int:
            self.check_length(value.bit_length() // 4)

    def _count_simple(self, value: Any) -> Any:
        if type(value) is str:
            self.count_text(value)
        elif type(value) is dict:  # bytes that are not text
            self.count_text(value["base64"])
        return value

    def _convert_compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, File):
            self.images[value.with_position(None)] = None
            return value.handle
        if isinstance(value, (dict, Mapping)):
            return self._convert_mapping(value, depth)
        if isinstance(value, Enum):
            return self.visit(value.value, depth)
        if isinstance(value, (str, int, float)):
            kind = next(kind for kind in (str, int, float) if isinstance(value, kind))
            self._check_room(kind, value)
            return self._count_simple(_SIMPLE[kind](value))
        if isinstance(value, (set, frozenset)):  # sorted, so that the order is the same in every process
            return sorted(self._convert_items(value, depth), key=as_text)
        if isinstance(value, (list, tuple, range, deque, KeysView, ValuesView, ItemsView, Iterator)):
            return self._convert_items(value, depth)
        if isinstance(value, (AsyncIterable, Awaitable)):
            raise NotPlain(f"a {type(value).__name__} that was never awaited{self._render_place()}")
        return self._convert_other(value, depth)

    def _convert_other(self, value: Any, depth: int) -> Any:
        """Convert a value with fields, or one that pydantic can write: dates, paths, UUIDs, decimals, addresses."""
        from pydantic import BaseModel
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._convert_mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, depth)
        if isinstance(value, os.PathLike):
            return self.visit(os.fspath(value), depth)
        try:
            converted = value.model_dump(by_alias=True) if isinstance(value, BaseModel) else to_jsonable_python(value)
        except (PydanticSerializationError, UnicodeDecodeError) as error:
            if isinstance(value, Iterable) and not isinstance(value, type):
                return self._convert_items(value, depth)  # an array whose items only this file can convert
            raise NotPlain(f"a {type(value).__name__}{self._render_place()}") from error
        return self.visit(converted, depth)

    def _convert_items(self, value: Iterable[Any], depth: int) -> list[Any]:
        items = []
        for index, item in enumerate(islice(value, RESULT_VALUES + 1)):
            self._where.append(f"[{index}]")
            items.append(self.visit(item, depth))
            self._where.pop()
        return items

    def _convert_mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is str:
                self.check_length(len(key))
            name = make_encodable(key) if type(key) is str else self._convert_key(key)
            self.count_text(name)
            if name in mapping:
                raise NotPlain(f"two keys that both read {name!r}{self._render_place()}")
            self._where.append(f"[{name!r}]")
            mapping[name] = self.visit(item, depth)
            self._where.pop()
        return mapping

    def _convert_key(self, key: object) -> str:
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        if is_over(key, LONGEST_KEY):  # a key made of shared parts can be huge when written out
            raise TooLarge(f"more than {LONGEST_KEY:,} bytes in one key")
        try:
            (name,) = to_jsonable_python({key: None})
        except (PydanticSerializationError, UnicodeDecodeError) as error:
            raise NotPlain(f"a key of type {type(key).__name__}{self._render_place()}") from error
        return make_encodable(str(name))

    def _render_place(self) -> str:
        if not self._where:
            return ""
        shown = self._where if len(self._where) <= 8 else [*self._where[:8], "…"]
        return f" at result{''.join(shown)}"


_SIMPLE: Mapping[type, Callable[[Any], Any]] = {
    str: lambda value: make_encodable(str.__str__(value)),
    int: lambda value: _convert_integer(int(value)),
    float: lambda value: _convert_float(float(value)),
    bytes: _convert_bytes,
    bytearray: _convert_bytes,
    memoryview: _convert_bytes,
    bool: lambda value: value,
    type(None): lambda value: value,
}
