"""Incarnations without a task: the `HIBERNATE` value, and the timer that detects idle incarnations.

An incarnation that waits for mail needs no task. It *rests*: from its start, if it has no `init`, until there is
something to do; and again when it was idle for `hibernate_after` seconds, or when its `run` has returned `HIBERNATE`.
Its state is kept in the actor, so nothing is lost; writing to its mailbox, or ending it, starts a task.

`child.py` implements resting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from supervisors.backend import Timer
    from supervisors.child import Incarnation


class _Hibernate:
    """The type of `HIBERNATE`."""

    def __repr__(self) -> str:
        return "HIBERNATE"


HIBERNATE: Final = _Hibernate()
"""Return it from `run` to need no task until there is mail; then `run` is called again.

Like OTP's `proc_lib:hibernate`, it gives up the stack and keeps the state. If mail is waiting already, `run` is called
again at once, so `run` should look for mail first. If the actor is asked to stop meanwhile, `run` is called again, too,
and cancelled at its first checkpoint, as if it had never returned.
"""


class Idling:
    """Measures how long an incarnation has been idle.

    It uses one timer at a time, which checks when the incarnation last became idle, so short idle times cost almost
    nothing.
    """

    __slots__ = ("_me", "_since", "_timer", "has_idled_long_enough")

    def __init__(self, me: Incarnation) -> None:
        self._me = me
        self._since = 0.0  # in seconds of the loop's clock
        self._timer: Timer | None = None
        self.has_idled_long_enough = False  # the timer found that it was idle long enough

    def begin(self, hibernate_after: float) -> None:
        """Start measuring: the incarnation is about to wait for mail."""
        self._since = now = self._me.system.backend.now()
        if self._timer is None:
            self._watch(now + hibernate_after, hibernate_after)

    def end(self) -> None:
        """Stop the timer, which would otherwise keep the ended incarnation and its actor in memory."""
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, at: float, hibernate_after: float) -> None:
        self._timer = self._me.system.backend.call_at(at, self._look, hibernate_after)

    def _look(self, hibernate_after: float) -> None:
        me = self._me
        box = me.ref._box  # noqa: SLF001 - of this package
        self._timer = None
        if not me.is_up or me.rests or box.waiter is None:
            return
        due = self._since + hibernate_after
        if me.system.backend.now() < due:
            self._watch(due, hibernate_after)
        else:
            self.has_idled_long_enough = True
            box.notify()
