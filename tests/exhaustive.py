"""What takes minutes: `make test` does an even part of it, and `EXHAUSTIVE=1` does all.

A step of `.ci/run` does the rest, `EXHAUSTIVE=rest`: what `make test` has done there is not done twice.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["EXHAUSTIVE", "part"]

T = TypeVar("T")

EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE"))


REST = os.environ.get("EXHAUSTIVE") == "rest"


def part(items: Sequence[T], each: int) -> Sequence[T]:
    """One in `each`, all of them, or the rest."""
    if REST:
        return [one for at, one in enumerate(items) if at % each]
    return items if EXHAUSTIVE else items[::each]
