"""Work that a hibernating entity waits for: its children, the answer of another entity, or of a crystal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

from cantrip_actors.machine.events import Failed, Observed, Posted, Replied, Returned
from cantrip_actors.terms.outcome import EndReason


class Awaited(ABC):
    """Work of others that an entity waits for."""

    __slots__ = ()
    kind: ClassVar[Literal["", "children", "crystal"]] = ""
    """The reason for the entity's wait, if its runtime may close meanwhile."""

    @abstractmethod
    async def wait_for_event(
        self, why_stopping: Callable[[], EndReason | None], patience: float
    ) -> Observed | Returned | Replied | Posted | Failed | None:
        """Return the event that ends the wait; None if the work takes longer than `patience` seconds: call again then.

        If the wait is cancelled, `why_stopping` returns why the entity stops, or None if it will be resumed.
        """

    @abstractmethod
    def listen(self, on_ready: Callable[[], object]) -> None:
        """Call `on_ready` when `wait_for_event` may return an event."""

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting."""
