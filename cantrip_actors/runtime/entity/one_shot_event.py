"""An event that tasks and listeners can wait for."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint


class OneShotEvent:
    """An event that is set once and stays set. Tasks can wait for it, and listeners are called."""

    __slots__ = ("_event", "_listeners", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._event: anyio.Event | None = None  # made when a task waits for it, which is rare
        self._listeners: tuple[Callable[[], object], ...] = ()

    async def wait(self) -> None:
        """Wait until it is set. Other tasks run meanwhile, also if it is set already."""
        if self.is_set:
            await checkpoint()
        else:
            self._event = self._event or anyio.Event()
            await self._event.wait()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` once when it is set; at once if it is set already."""
        if self.is_set:
            listener()
        elif listener not in self._listeners:
            self._listeners += (listener,)

    def set(self) -> None:
        """Set the event, and call its listeners."""
        self.is_set = True
        if self._event is not None:
            self._event.set()
        if self._listeners:
            listeners, self._listeners = self._listeners, ()
            for listener in listeners:
                listener()
