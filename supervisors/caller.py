"""The caller's side of a call: the object with which the callee answers.

A call is put into the mailbox as a `Caller`; its two subclasses, one per backend, wake the calling task. The first
reply counts; later replies, and replies after the caller has left, are dropped.

A caller without a message serves as a promise: a value that one task sets and another awaits.
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
        message: the message of the call.
        abandoned: the caller timed out or was cancelled, so no task waits for the reply.
    """

    __slots__ = ("__weakref__", "_callback", "abandoned", "message")

    message: Any
    abandoned: bool
    _callback: Callable[[], object] | None

    @abc.abstractmethod
    def reply(self, value: Any) -> None:
        """Answer with `value`. Ignored if the call was answered or abandoned before."""

    @abc.abstractmethod
    def fail(self, exception: BaseException) -> None:
        """Answer with an exception, which is raised in the caller and not in the callee."""

    def on_abandoned(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the caller times out or is cancelled before its reply; at once if it has left already.

        Args:
            callback: synchronous, must not raise. Typically the `cancel` of the scope in which this call is handled.
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
        """Return the awaitable that the calling task awaits, once: the reply, or the exception."""

    def _abandon(self) -> None:
        """Note that the caller has left."""
        if not self.abandoned:
            self.abandoned = True
            if self._callback is not None:
                self._callback()

    def _expire(self, ref: ActorRef, timeout: float) -> None:
        """Raise `CallTimeout` in the caller if it still waits after `timeout` seconds."""
        if not self.answered:
            self.fail(CallTimeout(ref, timeout))
            self._abandon()
