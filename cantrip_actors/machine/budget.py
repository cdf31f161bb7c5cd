"""What a subtree of entities has used, and which budget that exhausts (PROD-3, readings 26 and 27).

Each entity has a `Ledger` that is linked to its parent's, so that a budget of the parent ends a child too. All ledgers
of a tree live in one event loop. The machine sees a `Budget`, a value that the ledger makes when it is asked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.ward import Ward, Wards

__all__ = ["NO_BUDGET", "Budget", "Ledger"]


class Budget(NamedTuple):
    """The budgets that an entity lives under: its own and those of its ancestors.

    `levels` are their wards, each with what the rest of that subtree has used. `below` is what the entity's own
    children and their children have used.
    """

    levels: tuple[tuple[Wards, Usage], ...] = ()
    below: Usage = NO_USAGE

    def exhausted(self, own: Usage) -> Ward | None:
        """Return the first budget that is used up, where `own` is the entity's own usage; None if there is none."""
        for wards, rest in self.levels:
            if (ward := wards.exhausted(rest + own)) is not None:
                return ward
        return None


NO_BUDGET: Final = Budget()


class Ledger:
    """What an entity and everything below it have used, as far as it is recorded."""

    __slots__ = ("_is_loaded", "above", "below", "own", "wards")

    def __init__(self, wards: Wards, above: Ledger | None = None, *, is_new: bool = True) -> None:
        self._is_loaded = is_new
        self.wards = wards if wards.max_tokens is not None or wards.max_cost is not None else None
        self.above = above
        self.own = NO_USAGE
        self.below = NO_USAGE

    def add(self, usage: Usage) -> None:
        """Count what the entity has used itself, here and all the way up."""
        self.own = self.own + usage
        ledger = self.above
        while ledger is not None:
            ledger.below = ledger.below + usage
            ledger = ledger.above

    def load(self, own: Usage, below: Usage) -> None:
        """Count what the log says that the entity and everything below it have used.

        The ledgers above have counted that already. An incarnation that is not the first counts only what the one
        before was cut off from counting itself; what is below counts itself.
        """
        if not self._is_loaded:
            self.own, self.below, self._is_loaded = own, below, True
        elif own != self.own:
            self.add(own - self.own)

    def budget(self) -> Budget:
        """Return the budgets as they are now."""
        levels: list[tuple[Wards, Usage]] = []
        ledger: Ledger | None = self
        while ledger is not None:
            if ledger.wards is not None:
                levels.append((ledger.wards, ledger.own + ledger.below - self.own))
            ledger = ledger.above
        return Budget(tuple(levels), self.below) if levels or self.below is not NO_USAGE else NO_BUDGET
