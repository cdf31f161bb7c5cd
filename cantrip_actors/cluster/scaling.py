"""How many workers a backlog needs: a decision without clocks."""

from __future__ import annotations

import math
from typing import NamedTuple

SETTLED = 12
"""Looks in a row after which fewer workers are enough: starting one is cheap, and moving entities is not."""


class FleetSize(NamedTuple):
    """How many workers there should be, and for how many looks fewer would have been enough."""

    workers: int
    looks: int = 0


def workers_for(work: int, capacity: int, least: int, most: int) -> int:
    """Return how many workers of this capacity run so many root entities at once, within these limits."""
    return min(max(math.ceil(work / capacity), least), most)


def advance(size: FleetSize, work: int, capacity: int, least: int, most: int) -> FleetSize:
    """Return the size after a look at the backlog: more workers at once, one fewer after `SETTLED` looks."""
    wanted = workers_for(work, capacity, least, most)
    if wanted >= size.workers:
        return FleetSize(wanted)
    if size.looks + 1 < SETTLED:
        return FleetSize(size.workers, size.looks + 1)
    return FleetSize(size.workers - 1)
