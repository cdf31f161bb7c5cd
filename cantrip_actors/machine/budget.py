"""Count the usage of subtrees of entities, and find exhausted budgets (PROD-3, readings 26 and 27).

Each entity has a `Ledger` that is linked to its parent's, so that a budget of the parent ends a child too. All ledgers
of a tree live in one event loop. The machine sees a `Budget`, a value that the ledger computes on request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.ward import Ward, Wards


class Budget(NamedTuple):
    """The budgets that limit an entity: its own and those of its ancestors.

    `levels` are their wards, each with the usage of the rest of that subtree. `below` is the usage of the entity's
    children and their subtrees.
    """

    levels: tuple[tuple[Wards, Usage], ...] = ()
    below: Usage = NO_USAGE

    def find_exhausted(self, own: Usage) -> Ward | None:
        """Return the first exhausted budget, where `own` is the entity's own usage; None if no budget is exhausted."""
        for wards, rest in self.levels:
            if (ward := wards.find_exhausted(rest + own)) is not None:
                return ward
        return None


NO_BUDGET: Final = Budget()


class Ledger:
    """The recorded usage of an entity and of all entities below it."""

    __slots__ = ("_is_loaded", "above", "below", "own", "wards")

    def __init__(self, wards: Wards, above: Ledger | None = None, *, is_new: bool = True) -> None:
        self._is_loaded = is_new
        self.wards = wards if wards.max_tokens is not None or wards.max_cost is not None else None
        self.above = above
        self.own = NO_USAGE
        self.below = NO_USAGE

    def add(self, usage: Usage) -> None:
        """Add usage of the entity itself, here and in all ledgers above."""
        self.own = self.own + usage
        ledger = self.above
        while ledger is not None:
            ledger.below = ledger.below + usage
            ledger = ledger.above

    def load(self, own: Usage, below: Usage) -> None:
        """Set the usage of a loaded entity and of all entities below it, as its log says.

        The ledgers above have counted this usage already. A later incarnation only adds what the last one recorded and
        did not count; entities below count for themselves.
        """
        if not self._is_loaded:
            self.own, self.below, self._is_loaded = own, below, True
        elif own != self.own:
            self.add(own - self.own)

    def make_budget(self) -> Budget:
        """Return the budgets as they are now."""
        if self.above is None and self.wards is None and self.below is NO_USAGE:
            return NO_BUDGET
        levels: list[tuple[Wards, Usage]] = []
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.wards is not None:
                levels.append((ledger.wards, ledger.own + ledger.below - self.own))
            ledger = ledger.above
        return Budget(tuple(levels), self.below)
