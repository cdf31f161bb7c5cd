"""Bounds on a value that an entity's work hands to the host: bytes of text, values, depth.

A list of one sub-object a thousand times is small where it was made and huge once it is written out. So a conversion
counts the values that it makes with a `Meter`, and ends at the first excess: it never makes more than the bounds allow.
All data that crosses to the host is bounded here: arguments of gates, their results, values and `done` answers of
programs, tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from sys import getsizeof
from typing import Final

import orjson

BYTES: Final = 8 * 2**20
"""Bytes of the texts in one value of a program or a crystal, as JSON. Python may need four times as many for a text."""

VALUES: Final = 200_000
"""Python objects in one value of a program or a crystal: as many as a host creates in an instant."""

RESULT_BYTES: Final = 16 * 2**20
"""Bytes of the texts in one result of a gate, which is host code and may return more than a program."""

RESULT_VALUES: Final = 1_000_000
"""Python objects in one result of a gate. The bound stops generators that never end."""

DEEPEST: Final = 100
"""Levels of nesting. The loom's encoder gives up at 254, and a record has levels of its own."""

LONGEST_KEY: Final = 10_000
"""Bytes of a key that is not a string, such as a tuple."""

_PIECE: Final = 64 * 1024

_FLAT: Final = frozenset((str, int, float, bool, type(None)))

OVER: Final = f"more than {BYTES:,} bytes in one"
"""The message for a value with more bytes than may cross."""


class NotPlain(ValueError):
    """A value that has no JSON form. The message says which value, and where it is."""


class TooLarge(NotPlain):
    """A value over a bound. The message names the bound."""


class Meter:
    """The rest of the bounds during the conversion of one value."""

    __slots__ = ("_bytes", "_most", "_values")

    def __init__(self, *, is_result: bool = False) -> None:
        self._most = (RESULT_BYTES, RESULT_VALUES) if is_result else (BYTES, VALUES)
        self._bytes, self._values = self._most

    def count(self, values: int = 1) -> None:
        """Count values. Raises TooLarge for one too many."""
        self._values -= values
        if self._values < 0:
            raise TooLarge(f"more than {self._most[1]:,} values in one")

    def check_length(self, length: int) -> None:
        """Raise TooLarge if a text of this length is sure to exceed the rest of the bound, before it is encoded."""
        if length > self._bytes:
            raise TooLarge(f"more than {self._most[0]:,} bytes in one")

    def count_text(self, text: str) -> None:
        """Count the bytes of a text that UTF-8 can say. Raises TooLarge if they exceed the rest of the bound."""
        self._bytes -= measure_size(text)
        if self._bytes < 0:
            raise TooLarge(f"more than {self._most[0]:,} bytes in one")


def measure_size(text: str) -> int:
    """Return the size of a text as JSON, in bytes. For a text over every bound, return some number over the bounds."""
    length = len(text)
    if length <= _PIECE:
        return len(orjson.dumps(text))
    if length > RESULT_BYTES:
        return length
    return sum(len(orjson.dumps(text[at : at + _PIECE])) - 2 for at in range(0, length, _PIECE))  # no large copy


def count_bytes(text: str) -> int:
    """Return the bytes of a text in UTF-8, which may have halves of characters."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def check_json(text: str | bytes) -> None:
    """Raise TooLarge for JSON that is over a bound, before it is parsed. Brackets and commas in texts count as well."""
    if len(text) > BYTES:
        raise TooLarge(OVER)
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, marks)) > VALUES:  # type: ignore[arg-type]  # marks of the text's own kind
        raise TooLarge(f"more than {VALUES:,} values in one")


def can_nest_too_deeply(text: bytes) -> bool:
    """Return whether JSON has so many brackets that it may have more than DEEPEST levels."""
    return text.count(b"[") + text.count(b"{") > DEEPEST


def is_deeper(value: object, levels: int) -> bool:
    """Return whether data have more than so many levels of lists and mappings."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            inner
            for part in level
            if isinstance(part, (Mapping, list, tuple))
            for inner in (part.values() if isinstance(part, Mapping) else part)
        ]
        if not level:
            return False
    return True


def check_value(value: object) -> None:
    """Raise TooLarge for parsed JSON that is over a bound: its bytes, its values, or its levels."""
    if (
        type(value) is dict
        and _FLAT.issuperset(map(type, value.values()))
        and sum(map(getsizeof, chain(value, value.values()))) < _PIECE
    ):
        return  # arguments as most calls have them: JSON takes at most six times as many bytes as Python
    meter = Meter()
    meter.count()
    texts_fit = _is_short_json(value)  # then only levels and values are counted, which takes a tenth of the time
    level = [value]
    for _ in range(DEEPEST + 1):
        below: list[object] = []
        for part in level:
            if isinstance(part, str):
                if not texts_fit:
                    meter.count_text(part)
            elif isinstance(part, dict):
                meter.count(len(part))
                for key in () if texts_fit else part:
                    meter.count_text(key)
                below.extend(part.values())
            elif isinstance(part, (list, tuple)):
                meter.count(len(part))
                below.extend(part)
        if not below:
            return
        level = below
    raise TooLarge(f"a value nested more than {DEEPEST} levels deep")


def _is_short_json(value: object) -> bool:
    """Return whether a value is surely within the bound on bytes; False for one that orjson does not write."""
    try:
        return len(orjson.dumps(value)) <= BYTES
    except TypeError:
        return False


def measure_share(text: str) -> float:
    """Return the share of the bounds on a gate's result that JSON or a text takes: 1 for the largest allowed result."""
    values = sum(map(text.count, (",", "[", "{")))
    return max(len(text.encode(errors="replace")) / RESULT_BYTES, values / RESULT_VALUES)


def is_over(value: object, most: int) -> bool:
    """Return whether data surely has more than `most` bytes as JSON, without writing it out.

    It stops at the first excess, however much of the data is shared. False does not mean that there are fewer.
    """
    todo = [value]
    size = 0
    while todo:
        part = todo.pop()
        if isinstance(part, (str, bytes)):
            size += len(part)
        elif isinstance(part, int):
            size += part.bit_length() // 4
        elif isinstance(part, dict):
            size += 2 * len(part)
            if size <= most:
                todo.extend(part)
                todo.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            size += 2 * len(part)
            if size <= most:
                todo.extend(part)
        if size > most:
            return True
    return False
