"""The newest values of a sequence, for any number of readers: the mechanism under events, feeds and event streams.

A ring numbers the values that are published, and keeps the newest ones. A reader holds one number: that of the value
which it reads next. So publishing never waits, costs the same with any number of readers, and no reader affects
another. From its number on a reader gets each value once and in order, or it gets `Missed`, with the number of lost
values. Only a value that was replaced is left out in silence: the newer value comes later in the sequence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Missed(Exception):
    """A reader was too slow: `count` values are no longer kept. The oldest one that is kept has the number `begin`."""

    def __init__(self, begin: int, count: int) -> None:
        super().__init__(f"a reader was too slow: {count} values before number {begin} are no longer kept")
        self.begin = begin
        self.count = count


class Ring(Generic[T]):
    """The newest values of a sequence: at most `most`, and at most `most_size` as `measure` counts them.

    Readers wait in groups of at most `group`, for a subclass that wakes them one group after another.
    """

    def __init__(
        self,
        most: int,
        *,
        most_size: float = math.inf,
        measure: Callable[[T], int] = lambda _: 0,
        group: float = math.inf,
    ) -> None:
        self.begin = 0
        """The number of the oldest value that is kept."""
        self.size = 0
        """The size of all values that are kept."""
        self.is_closed = False
        self._most = most
        self._most_size = most_size
        self._measure = measure
        self._group = group
        self._values: deque[T | None] = deque()
        self._waiting: deque[anyio.Event] = deque()
        """The events of the groups that wait, the longest first."""

    @property
    def end(self) -> int:
        """The number of the next value."""
        return self.begin + len(self._values)

    def publish(self, value: T) -> int:
        """Add a value; return its number."""
        self._values.append(value)
        self.size += self._measure(value)
        while len(self._values) > self._most or (self.size > self._most_size and len(self._values) > 1):
            self.remove(self.begin)
            self._values.popleft()
            self.begin += 1
        self._announce()
        return self.end - 1

    def remove(self, number: int) -> None:
        """Drop a value that a newer one replaces; nothing happens if it is no longer kept."""
        value = self._values[number - self.begin] if number >= self.begin else None
        if value is not None:
            self.size -= self._measure(value)
            self._values[number - self.begin] = None

    def get(self, number: int) -> T | None:
        """Return a value, or None if it was replaced. Raises Missed if it is no longer kept."""
        self._check_kept(number)
        return self._values[number - self.begin]

    def read(self, number: int) -> list[T]:
        """Return the values from a number on; the reader continues at `end`. Raises Missed."""
        self._check_kept(number)
        return [value for value in islice(self._values, number - self.begin, None) if value is not None]

    def _check_kept(self, number: int) -> None:
        if number < self.begin:
            raise Missed(self.begin, self.begin - number)

    async def wait(self, number: int) -> None:
        """Wait until there is a value with this number. It may return early: look again, and at `is_closed`."""
        if number >= self.end and not self.is_closed:
            if not self._waiting or self._waiting[-1].statistics().tasks_waiting >= self._group:
                self._waiting.append(anyio.Event())
            await self._waiting[-1].wait()

    def _announce(self) -> None:
        self.wake()

    def wake(self) -> None:
        """Wake all readers that wait, so that they look again."""
        while self._waiting:
            self._waiting.popleft().set()

    def close(self) -> None:
        """End the sequence: readers get the values that are kept, and no others."""
        self.is_closed = True
        self.wake()
