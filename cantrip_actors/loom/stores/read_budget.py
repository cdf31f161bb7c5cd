"""How much an attempt (`Store.attempt`) may read: about as much as a millisecond allows. A thread reads more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from cantrip_actors.loom.stores.store import Postponed

T = TypeVar("T")

BUDGET: Final = 256
"""Units that an attempt may spend: a row, or a line, costs 1, and so do `UNIT` bytes."""
UNIT: Final = 2048


class ReadBudget(threading.local):
    """The units that the attempt of each thread may still spend; a thread that makes no attempt may spend any."""

    left: int | None = None

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. Raises Postponed once it has spent the budget."""
        self.left = BUDGET
        try:
            return work()
        finally:
            self.left = None

    def spend(self, units: int) -> None:
        """Take units from the budget of this thread. Raises Postponed if that is more than it has."""
        if self.left is not None:
            self.left -= units
            if self.left < 0:
                raise Postponed
