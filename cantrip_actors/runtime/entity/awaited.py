"""Work that a hibernating entity waits for: its children, the answer of another entity, or of a crystal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import anyio

from cantrip_actors.machine.events import Failed, Observed, Posted, Replied, Returned
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
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

    @property
    @abstractmethod
    def ready(self) -> OneShotEvent:
        """Set when `wait_for_event`, which was called before, may return an event."""

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting."""

    async def _wait(self, patience: float) -> bool:
        """Wait until it is ready, `patience` seconds at most; return whether it is. If cancelled, stop waiting."""
        ready = self.ready
        try:
            with anyio.move_on_after(patience):
                await ready.wait()
        except anyio.get_cancelled_exc_class():
            self.leave()
            raise
        return ready.is_set
