"""Values that are read from a store whenever events announce new ones."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

from cantrip_actors.runtime.events import Subscription
from cantrip_actors.terms.errors import RuntimeClosed

T = TypeVar("T")


class Follower(AsyncIterator[T], Generic[T]):
    """What `_read` returns, in order: at once, and again after each of `events` and after `_choose_interval` seconds.

    It ends when its subscription ends. If reading raises, so does the iteration: iterate again to read again.
    """

    def __init__(self, events: Subscription) -> None:
        self._events = events
        self._ready: deque[T] = deque()
        self._is_due = True
        """Whether it reads without waiting: nothing was read yet, or reading failed."""

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
        while not self._ready:
            if not (self._is_due or self.is_over):
                with anyio.move_on_after(self._choose_interval()), suppress(StopAsyncIteration):
                    await anext(self._events)
            if self.is_over:
                raise StopAsyncIteration
            self._is_due = True
            with suppress(RuntimeClosed):  # then it is over
                self._ready.extend(await self._read())
            self._is_due = False
        return self._ready.popleft()
