"""Values that are read from a store whenever events announce new ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

from cantrip_actors.runtime.events.events import Subscription
from cantrip_actors.stream.events import EntityEvent
from cantrip_actors.terms.errors import RuntimeClosed

T = TypeVar("T")


class Follower(AsyncIterator[T], Generic[T]):
    """The results of `_read`, in order: it is called at once, and again after `events` and after `_choose_interval`
    seconds.

    Events that have arrived together make it read once. Several tasks may iterate it: each item goes to one of them.
    It ends when its subscription ends. If reading raises, so does the iteration: iterate again to read again.
    """

    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._ready: deque[T] = deque()
        self._is_due = True
        """Whether it reads without waiting: nothing was read yet, or reading failed."""
        self._reading = anyio.Lock(fast_acquire=True)
        self._deadline: float | None = None
        """When it reads without an event; None before the first wait after an event or a reading."""

    @abstractmethod
    async def _read(self) -> Iterable[T]:
        """Return the values since the last call."""

    @abstractmethod
    def _choose_interval(self) -> float | None:
        """Return the seconds after which it reads without an event, if other processes may write the store."""

    @property
    def is_over(self) -> bool:
        """Whether no further item comes; earlier items can still be read."""
        return self._events.is_over

    def close(self) -> None:
        """Take no further items; earlier items can still be read."""
        self._events.close()

    async def __anext__(self) -> T:
        while (item := await self.poll()) is None:
            pass
        return item

    async def poll(self) -> T | None:
        """Return the next item, or None if one wait and one reading brought none. Raises StopAsyncIteration at the end.

        A caller that has something else to do meanwhile cancels no reading by it: a long log is read to its end.
        """
        if not self._ready:
            if self.is_over:
                raise StopAsyncIteration
            async with self._reading:
                if not self._ready:
                    await self._wait_and_read()
        return self._ready.popleft() if self._ready else None

    async def _wait_and_read(self) -> None:
        if not self._is_due:
            await self._wait()
            self._events._skip()  # noqa: SLF001  # the next reading finds what they announce
        await self._read_all()

    async def _wait(self) -> EntityEvent | None:
        """Wait for the next event, or for as long as `_choose_interval` says; return the event.

        The next call continues a cancelled wait: a reader that waits again and again for a short time reads, too.
        """
        event = self._events._take_arrived()  # noqa: SLF001  # of the same mechanism; without a timer
        if event is None:
            if self._deadline is None:
                interval = self._choose_interval()
                self._deadline = math.inf if interval is None else anyio.current_time() + interval
            with anyio.CancelScope(deadline=self._deadline), suppress(StopAsyncIteration):
                event = await anext(self._events)
        self._deadline = None
        return event

    async def _read_all(self) -> None:
        """Make the values since the last reading ready."""
        if self.is_over:
            return
        self._is_due = True
        with suppress(RuntimeClosed):  # then it is over
            self._ready.extend(await self._read())
        self._is_due = False
