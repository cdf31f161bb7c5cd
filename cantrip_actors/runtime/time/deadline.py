"""When the `timeout` wards end an episode, on the event loop's clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from cantrip_actors.terms.ward import Wards


class Deadline:
    """The deadlines of `timeout`, which is paused while the entity waits for people, and `timeout_while_waiting`."""

    __slots__ = ("_left", "_scope", "_until", "_wards", "total")

    def __init__(self, wards: Wards) -> None:
        self._wards = wards
        self._until = math.inf
        self.total = math.inf
        """When `timeout_while_waiting` ends the episode, if that is known."""
        self._left: float | None = None
        """Seconds that `timeout` leaves, while it does not count."""
        self._scope: anyio.CancelScope | None = None

    @property
    def is_set(self) -> bool:
        """Whether a ward limits the time of an episode."""
        return self._wards.timeout is not None or self._wards.timeout_while_waiting is not None

    @property
    def time(self) -> float:
        """When a ward ends the episode, in event loop time; infinite if no ward counts."""
        return min(self._until, self.total)

    @property
    def ward(self) -> str:
        """The ward that ends the episode first."""
        is_total = self.total <= self._until
        seconds = self._wards.timeout_while_waiting if is_total else self._wards.timeout
        return f"timeout({seconds:g}{', while_waiting' if is_total else ''})"

    def start(self, worked: float = 0.0, waited: float = 0.0) -> None:
        """Start it for an episode that began `worked` seconds ago, and waited for people for `waited` of them."""
        now, self._left = anyio.current_time(), None
        if self._wards.timeout is not None:
            self._until = now + max(0.0, self._wards.timeout - worked + waited)
        if self._wards.timeout_while_waiting is not None:
            self.total = now + max(0.0, self._wards.timeout_while_waiting - worked)

    @contextmanager
    def limit(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel `scope` at the deadline while the block runs."""
        self._scope, scope.deadline = scope, self.time
        try:
            yield
        finally:
            self._scope, scope.deadline = None, math.inf

    @property
    def has_passed(self) -> bool:
        """Whether a ward ends the episode now."""
        return self.time <= anyio.current_time()

    def pause(self) -> None:
        """Stop the time of `timeout`: the entity waits for people."""
        if self._left is None and self._until < math.inf:
            self._left = self._until - anyio.current_time()
            self._set(math.inf)

    def resume(self) -> None:
        """Let the time of `timeout` count again."""
        if self._left is not None:
            self._set(anyio.current_time() + self._left)
            self._left = None

    def _set(self, until: float) -> None:
        self._until = until
        if self._scope is not None:
            self._scope.deadline = self.time
