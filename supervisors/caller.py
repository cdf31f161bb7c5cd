"""The other end of a call: what the callee gets to answer it with.

A call is put into the mailbox as a `Caller`; its two subclasses, one a backend, know how to wake the asking task. A
reply goes through exactly once; what comes after it, or after the asking side left, is dropped.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any


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

    __slots__ = ("_callback", "_debts", "abandoned", "message")

    message: Any
    abandoned: bool
    _callback: Callable[[], object] | None
    #: The calls that the callee has taken and not answered, with this one among them.
    _debts: set[Caller] | None

    def reply(self, value: Any) -> None:
        """Answer with `value`. Dropped if it was answered before or abandoned."""
        if self._debts is not None:
            self._settle_debt()
        self._resolve(value)

    def fail(self, exception: BaseException) -> None:
        """Answer with an exception, which the asking side raises. It does no harm to the one who answers."""
        if self._debts is not None:
            self._settle_debt()
        self._reject(exception)

    def on_abandoned(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the asking side leaves: timed out or cancelled, before it had its reply. Now, if it
        has left.

        Args:
            callback: synchronous, must not raise; it runs in the task of the asking side. Typically the `cancel` of
                the scope in which the work for this call goes on.
        """
        self._callback = callback
        if self.abandoned:
            callback()

    @property
    @abc.abstractmethod
    def answered(self) -> bool:
        """Whether a reply would be dropped."""

    @abc.abstractmethod
    def _resolve(self, value: Any) -> None: ...

    @abc.abstractmethod
    def _reject(self, exception: BaseException) -> None: ...

    def _owe(self, debts: set[Caller]) -> None:
        debts.add(self)
        self._debts = debts

    def _forgive(self) -> None:
        """It was taken, and is put back."""
        if self._debts is not None:
            self._settle_debt()

    def _settle_debt(self) -> None:
        assert self._debts is not None
        self._debts.discard(self)
        self._debts = None

    def _abandon(self) -> None:
        """The asking side leaves."""
        self.abandoned = True
        if self._debts is not None:
            self._settle_debt()
        if self._callback is not None:
            self._callback()


class Promise(Caller):
    """A caller without a message: a value that one task will give and one waits for."""

    __slots__ = ()

    @abc.abstractmethod
    async def wait(self) -> Any:
        """The value, or the exception, once it is given."""

    @abc.abstractmethod
    async def wait_through(self) -> Any:
        """Like `wait`, and not to be interrupted: a cancellation, native ones included, is raised after it."""
