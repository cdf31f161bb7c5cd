"""Work that a hibernating entity waits for: its children, or the answer of another entity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cantrip_actors.machine.events import Observed, Returned
from cantrip_actors.terms.outcome import EndReason

__all__ = ["Awaited"]


class Awaited(ABC):
    """Work that other entities do for this one."""

    __slots__ = ()

    @abstractmethod
    async def wait_for_event(
        self, why_stopping: Callable[[], EndReason | None], patience: float
    ) -> Observed | Returned | None:
        """Return the event that ends the wait; None if the work takes longer than `patience` seconds: call again then.

        If the wait is cancelled, `why_stopping` returns why the entity stops, or None if it will be resumed.
        """

    @abstractmethod
    def listen(self, tell: Callable[[], object]) -> None:
        """Call `tell` when `wait_for_event` may return an event."""

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting."""
