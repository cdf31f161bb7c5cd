"""What takes minutes: `make test` does an even part of it, and `EXHAUSTIVE=1` does all.

A step of `.ci/run` does the rest, `EXHAUSTIVE=rest`: what `make test` has done there is not done twice.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

import pytest

__all__ = ["EXAMPLES", "EXHAUSTIVE", "FULL", "REST", "is_in_part", "part"]

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


BACKENDS = ("asyncio", "trio")
JAILS = ("bubblewrap", "landlock")
"""The values of a parameter of which a test marked `alternate_jails` takes one."""

ON_BOTH = "tests/supervisors/"
"""The tests that run on both backends in `make test`; each other one runs on one of them."""


def is_in_part(items: Sequence[pytest.Item]) -> list[bool]:
    """Return which tests run: of one that alternates values, each set of its other parameters with one of them.

    The order is that of Thue and Morse, so the values of every other parameter meet both; whether it begins with the
    first or the second depends on the test's name. A test that is collected for one value only, because someone named
    it, runs.
    """
    functions = [item.nodeid.partition("[")[0] for item in items]
    found = [_read_alternate(item) for item in items]
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


def _read_alternate(item: pytest.Item) -> int | None:
    """Return which value of the two a test has that alternates them, 0 or 1, or None."""
    if callspec := getattr(item, "callspec", None):
        alternated = [JAILS] if item.get_closest_marker("alternate_jails") else []
        if not item.nodeid.startswith(ON_BOTH):
            alternated.append(BACKENDS)
        for values in alternated:
            if found := [values.index(value) for value in callspec.params.values() if value in values]:
                return found[0]
    return None
