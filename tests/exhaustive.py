"""What takes minutes: `make test` does an even part of it, and `EXHAUSTIVE=1` does all.

A step of `.ci/run` does the rest, `EXHAUSTIVE=rest`: what `make test` has done there is not done twice.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import pytest

__all__ = ["EXHAUSTIVE", "is_in_part", "part"]

T = TypeVar("T")

EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE"))


REST = os.environ.get("EXHAUSTIVE") == "rest"


def part(items: Sequence[T], each: int) -> Sequence[T]:
    """One in `each`, all of them, or the rest."""
    if REST:
        return [one for at, one in enumerate(items) if at % each]
    return items if EXHAUSTIVE else items[::each]


ALTERNATES = {"alternate_backends": ("asyncio", "trio"), "alternate_jails": ("bubblewrap", "landlock")}
"""For each mark, the values of the parameter of which a test takes one."""


def is_in_part(items: Sequence[pytest.Item]) -> list[bool]:
    """Return which tests run: of one marked `alternate_...`, each set of its other parameters once.

    The order is that of Thue and Morse, so the values of every other parameter meet both. A test that is collected for
    one value only, because someone named it, runs.
    """
    found = [_read_alternate(item) for item in items]
    functions = [item.nodeid.partition("[")[0] for item in items]
    counts = Counter(zip(functions, found, strict=True))
    seen: Counter[tuple[str, int | None]] = Counter()
    chosen = []
    for function, which in zip(functions, found, strict=True):
        number = seen[function, which]
        seen[function, which] += 1
        if which is None or counts[function, 0] != counts[function, 1]:
            chosen.append(True)
        elif REST:
            chosen.append(number.bit_count() % 2 != which)
        else:
            chosen.append(EXHAUSTIVE or number.bit_count() % 2 == which)
    return chosen


def _read_alternate(item: pytest.Item) -> int | None:
    """Return which value of the two a marked test has, 0 or 1, or None."""
    if callspec := getattr(item, "callspec", None):
        for mark, values in ALTERNATES.items():
            if item.get_closest_marker(mark):
                texts = [value for value in callspec.params.values() if isinstance(value, str)]
                return next((values.index(text) for text in texts if text in values), None)
    return None
