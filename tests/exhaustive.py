"""What takes minutes: `make test` does an even part of it, and `EXHAUSTIVE=1` does all.

A step of `.ci/run` does the rest, `EXHAUSTIVE=rest`: what `make test` has done there is not done twice.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

import pytest

__all__ = ["EXAMPLES", "EXHAUSTIVE", "FULL", "is_in_part", "part"]

T = TypeVar("T")

EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE"))

REST = os.environ.get("EXHAUSTIVE") == "rest"

FULL = EXHAUSTIVE and not REST
"""Whether a campaign has its full length; `EXHAUSTIVE=rest` does other cases, and no more of each."""

EXAMPLES = 100 if FULL else 20
"""How many examples Hypothesis makes, unless a test says otherwise."""


def part(items: Sequence[T], each: int) -> Sequence[T]:
    """One in `each`, all of them, or the rest."""
    if REST:
        return [one for at, one in enumerate(items) if at % each]
    return items if EXHAUSTIVE else items[::each]


ALTERNATES = {"alternate_backends": ("asyncio", "trio"), "alternate_jails": ("bubblewrap", "landlock")}
"""For each mark, the values of the parameter of which a test takes one."""

MANY = 4
"""A test that is collected at least so often, on both backends, alternates them without a mark."""


def is_in_part(items: Sequence[pytest.Item]) -> list[bool]:
    """Return which tests run: of one that alternates values, each set of its other parameters with one of them.

    So do tests with many cases, those on the real clock, which wait and do little else, and those with a mark. The
    order is that of Thue and Morse, so the values of every other parameter meet both; whether it begins with the first
    or the second depends on the test's name. A test that is collected for one value only, because someone named it,
    runs.
    """
    functions = [item.nodeid.partition("[")[0] for item in items]
    collected = Counter(functions)
    found = [
        _read_alternate(
            item, alternates=collected[function] >= MANY or item.get_closest_marker("real_time") is not None
        )
        for item, function in zip(items, functions, strict=True)
    ]
    counts = Counter(zip(functions, found, strict=True))
    seen: Counter[tuple[str, int | None]] = Counter()
    chosen = []
    for function, which in zip(functions, found, strict=True):
        number = seen[function, which]
        seen[function, which] += 1
        place = number.bit_count() + crc32(function.encode())
        if which is None or counts[function, 0] != counts[function, 1]:
            chosen.append(True)
        elif REST:
            chosen.append(place % 2 != which)
        else:
            chosen.append(EXHAUSTIVE or place % 2 == which)
    return chosen


def _read_alternate(item: pytest.Item, *, alternates: bool) -> int | None:
    """Return which value of the two a test has that alternates them, 0 or 1, or None."""
    if callspec := getattr(item, "callspec", None):
        texts = [value for value in callspec.params.values() if isinstance(value, str)]
        marks = [mark for mark in ALTERNATES if item.get_closest_marker(mark)]
        for mark in [*marks, *(["alternate_backends"] if alternates else [])]:
            if which := [ALTERNATES[mark].index(text) for text in texts if text in ALTERNATES[mark]]:
                return which[0]
    return None
