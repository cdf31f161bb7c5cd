"""A message that an actor has coming to itself, later or again and again: `Actor.send_after`, `Actor.send_every`.

It ends with its incarnation: the next one under that name gets nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisors.ref import INFO

if TYPE_CHECKING:
    from supervisors.backend import Timer
    from supervisors.child import Incarnation


class Sending:
    """One timer of `me`, which keeps those that are running in `pending`; with `every`, in seconds, it fires again."""

    __slots__ = ("_every", "_me", "_message", "_pending", "_timer")

    def __init__(self, me: Incarnation, pending: set[Sending], message: Any, every: float | None) -> None:
        self._me = me
        self._pending = pending
        self._message = message
        self._every = every
        self._timer: Timer | None = None

    def arm(self, seconds: float) -> None:
        """Fire in so many seconds from now."""
        backend = self._me.system.backend
        self._timer = backend.call_at(backend.now() + seconds, self._fire)
        self._pending.add(self)

    def _fire(self) -> None:
        if self._me.is_over:  # a zombie's: the mailbox is the next one's
            return
        self._me.ref._box.put_urgent((INFO, self._message))  # noqa: SLF001 - its actor's
        if self._every is None:
            self._pending.discard(self)
        else:
            self.arm(self._every)

    def cancel(self) -> None:
        """No message any more. One that is in the mailbox already stays there."""
        self._pending.discard(self)
        if self._timer is not None:
            self._timer.cancel()
