"""What a subtree of entities has used, and which budget that exhausts (PROD-3, readings 26 and 27).

One ledger an entity, linked to its parent's: usage is added all the way up, so that a budget of the parent ends a child
too. Each ledger is written by its own entity's actor and its children's, all in one event loop.
"""

from __future__ import annotations

from cantrip_actors.model.messages import NO_USAGE, Usage
from cantrip_actors.model.ward import Ward, Wards

__all__ = ["Ledger"]


class Ledger:
    """The usage of an entity and everything below it."""

    __slots__ = ("above", "usage", "wards")

    def __init__(self, wards: Wards, above: Ledger | None = None) -> None:
        self.wards = wards if wards.max_tokens is not None or wards.max_cost is not None else None
        self.above = above
        self.usage = NO_USAGE

    def add(self, usage: Usage) -> None:
        """Count `usage` here and all the way up."""
        ledger: Ledger | None = self
        while ledger is not None:
            ledger.usage = ledger.usage + usage
            ledger = ledger.above

    def spent(self) -> Ward | None:
        """The first budget, from here upwards, that is used up."""
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.wards is not None and (ward := ledger.wards.exhausted(ledger.usage)) is not None:
                return ward
            ledger = ledger.above
        return None
