"""What an entity waits for without a task: its children, or the answer of another entity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cantrip_actors.machine.events import Observed, Returned
from cantrip_actors.terms.outcome import EndReason

__all__ = ["Awaited"]


class Awaited(ABC):
    """Work that others do for an entity."""

    __slots__ = ()

    @abstractmethod
    async def returned(
        self, why_stopping: Callable[[], EndReason | None], patience: float
    ) -> Observed | Returned | None:
        """Return what it came to; None if it is not done after `patience` seconds: call again then.

        If the wait is cancelled, `why_stopping` says why the entity stops; None if it will be back.
        """

    @abstractmethod
    def listen(self, tell: Callable[[], object]) -> None:
        """Call `tell` when it may have returned."""

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting."""
