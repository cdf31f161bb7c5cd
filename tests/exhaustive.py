"""What takes minutes: `make test` does an even part of it, `EXHAUSTIVE=1`, a step of `.ci/run` of its own, all."""

import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["EXHAUSTIVE", "part"]

T = TypeVar("T")

EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE"))


def part(items: Sequence[T], each: int) -> Sequence[T]:
    """One in `each`, or all of them."""
    return items if EXHAUSTIVE else items[::each]
