"""Messages of an actor to itself, delayed or repeated: `Actor.send_after`, `Actor.send_every`.

They end with the incarnation: the next incarnation does not receive them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisors.ref import INFO

if TYPE_CHECKING:
    from supervisors.backend import Timer
    from supervisors.child import Incarnation


class Sending:
    """One timer of `me`, which keeps its running timers in `timers`. It fires after `seconds`, again and again if
    `every`.
    """

    __slots__ = ("_every", "_me", "_message", "_seconds", "_timer")

    def __init__(self, me: Incarnation, seconds: float, message: Any, *, every: bool) -> None:
        self._me = me
        self._seconds = seconds
        self._message = message
        self._every = every
        self._timer = self._arm()
        if me.timers is None:
            me.timers = {}
        me.timers[self] = None

    def _arm(self) -> Timer:
        backend = self._me.system.backend
        return backend.call_at(backend.now() + self._seconds, self._fire)

    def _fire(self) -> None:
        if self._me.is_over:  # a zombie's timer: the mailbox belongs to the next incarnation
            return
        self._me.ref._box.put_urgent((INFO, self._message))  # noqa: SLF001 - its actor's
        if self._every:
            self._timer = self._arm()
        else:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the timer. A message that is already in the mailbox stays there."""
        if self._me.timers is not None:
            self._me.timers.pop(self, None)
        self._timer.cancel()
