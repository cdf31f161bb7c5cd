"""Incarnations without a task: who wants to be one, and the watch over one that is idle.

An incarnation that waits for mail needs no task. It *rests*: from its start, where it has no `init`, until there is
something to do; and again when it was idle for `hibernate_after` seconds, or when its `run` has returned `HIBERNATE`.
Its state is the actor's, so nothing is lost; whoever writes to its mailbox, or ends it, gives it a task.

What resting does to an incarnation is in `child.py`.
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
"""What a `run` returns that needs no task until there is mail: then `run` is called again.

As OTP's `proc_lib:hibernate`: the stack is given up, the state stays. Where mail waits already `run` is called again at
once, so a `run` that begins looks for mail first. One that is asked to stop meanwhile is called again, too, and
cancelled at its first checkpoint, as if it had never left.
"""


class Idling:
    """Looks after how long an incarnation has been idle.

    With one timer at a time, which looks at when it last went idle, so who is idle for moments only pays next to
    nothing.
    """

    __slots__ = ("_me", "_since", "_timer", "is_drowsy")

    def __init__(self, me: Incarnation) -> None:
        self._me = me
        self._since = 0.0  # seconds of the loop's clock
        self._timer: Timer | None = None
        self.is_drowsy = False  # that timer found that it was idle for long enough

    def begin(self, hibernate_after: float) -> None:
        """It is about to wait for mail."""
        self._since = now = self._me.system.backend.now()
        if self._timer is None:
            self._watch(now + hibernate_after, hibernate_after)

    def end(self) -> None:
        """It is over. A timer that went on would keep it, and all that its actor holds, for as long."""
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
            self.is_drowsy = True
            box.notify()
