"""The other end of a call: what the callee gets to answer it with.

A call is put into the mailbox as a `Caller`; its two subclasses, one a backend, know how to wake the asking task. A
reply goes through exactly once; what comes after it, or after the asking side left, is dropped.

A caller without a message serves as a promise: a value that one task will give and one awaits.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from supervisors.errors import CallTimeout

if TYPE_CHECKING:
    from supervisors.ref import ActorRef


class NoReply:
    """The type of `NO_REPLY`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_REPLY"


#: Returned by `handle_call`: the reply comes later, through `caller.reply` or `caller.fail`.
NO_REPLY = NoReply()


class Caller(abc.ABC):
    """A call that waits for its reply.

    Attributes:
        message: what was asked.
        abandoned: the asking side timed out or was cancelled; nobody waits for the reply.
    """

    __slots__ = ("__weakref__", "_callback", "abandoned", "message")

    message: Any
    abandoned: bool
    _callback: Callable[[], object] | None

    @abc.abstractmethod
    def reply(self, value: Any) -> None:
        """Answer with `value`. Dropped if it was answered before or abandoned."""

    @abc.abstractmethod
    def fail(self, exception: BaseException) -> None:
        """Answer with an exception, which the asking side raises. It does no harm to the one who answers."""

    def on_abandoned(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the asking side leaves: timed out or cancelled, before it had its reply. Now, if it
        has left.

        Args:
            callback: synchronous, must not raise. Typically the `cancel` of the scope in which the work for this call
                goes on.
        """
        self._callback = callback
        if self.abandoned:
            callback()

    @property
    @abc.abstractmethod
    def answered(self) -> bool:
        """Whether a reply would be dropped."""

    @property
    @abc.abstractmethod
    def value(self) -> Awaitable[Any]:
        """What the asking task awaits, once: the reply, or the exception."""

    def _abandon(self) -> None:
        """The asking side leaves."""
        if not self.abandoned:
            self.abandoned = True
            if self._callback is not None:
                self._callback()

    def _expire(self, ref: ActorRef, timeout: float) -> None:
        """The asking side has waited for `timeout` seconds: it leaves, if it still waits."""
        if not self.answered:
            self.fail(CallTimeout(ref, timeout))
            self._abandon()
