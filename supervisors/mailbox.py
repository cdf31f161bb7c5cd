"""The mailbox of an actor identity, and the callers that wait for replies.

The mailbox belongs to an identity (`ref.py`), not to an incarnation, so messages survive a restart. There is one
reader, the actor's task; any task may write, without waiting. The *urgent* lane is for the system (`Down`, `Exit`,
timers): unbounded and read first. The *items* lane is for users and may be bounded.

It is not a stream of anyio: those cost a checkpoint per item, have no second lane and drop their items when they close.
The reader stores a *waiter* here, which the next writer removes and wakes (`waiting.py`). The wake-up carries no item,
so a cancelled reader loses none. Both queues are created with their first item: a deque takes 624 bytes, and in a
system with many actors most are idle.

A call is put into the mailbox as a `Caller`. The first reply counts; later replies, and replies after the caller has
left, are dropped. A caller without a message serves as a promise: a value that one task sets and another awaits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from supervisors.ref import BoundedWork
    from supervisors.waiting import EventLoop

#: "No bound". An int, so that the check on the hot path is one comparison.
UNBOUNDED = 1 << 62

#: The kinds of mailbox items other than calls: `(kind, message)`.
CAST, INFO = 0, 1


class NoReply:
    """The type of `NO_REPLY`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_REPLY"


NO_REPLY: Final = NoReply()
"""Returned by `handle_call`: the reply comes later, through `caller.reply` or `caller.fail`."""


class Caller:
    """A call that waits for its reply.

    Attributes:
        message: the message of the call.
        abandoned: the caller timed out or was cancelled, so no task waits for the reply.
        answered: a reply would be dropped.
        work: the callee's work on the call, if the call is bounded (`ActorRef.call` with `grace`).
        in_hand: the calls that the callee has taken and not answered; this one is removed when it is answered.
        on_late_reply: called with a reply that the caller does not get, because it has left.
        waiter: the object that the event loop wakes when there is a reply.
    """

    __slots__ = (
        *("_callback", "_error", "_loop", "_value"),
        *("abandoned", "answered", "in_hand", "message", "on_late_reply", "waiter", "work"),
    )

    def __init__(self, loop: EventLoop, message: Any = None) -> None:
        self.message = message
        self.abandoned: bool = False
        self.answered: bool = False
        self.work: BoundedWork | None = None
        self.in_hand: dict[Caller, float] | None = None
        self.on_late_reply: Callable[[Any], object] | None = None
        self.waiter: Any = None
        self._loop = loop
        self._value: Any = None
        self._error: BaseException | None = None
        self._callback: Callable[[], object] | None = None

    def reply(self, value: Any) -> None:
        """Answer with `value`. Ignored if the call was answered before; too late if it was abandoned."""
        if not self.answered:
            self._value = value
            self._settle()
            waiter = self.waiter
            if waiter is not None:
                self.waiter = None
                self._loop.wake(waiter)
        elif self.abandoned and self.on_late_reply is not None:
            self.on_late_reply(value)

    def fail(self, exception: BaseException) -> None:
        """Answer with an exception, which is raised in the caller and not in the callee."""
        if not self.answered:
            self._error = exception
            self.reply(None)

    def on_abandoned(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the caller times out or is cancelled before its reply; at once if it has left already.

        Args:
            callback: synchronous, must not raise. Typically the `cancel` of the scope in which this call is handled.
        """
        self._callback = callback
        if self.abandoned:
            callback()

    async def wait(self) -> Any:
        """Wait for the reply, once; return it, or raise the exception. A caller that is cancelled abandons the call."""
        if not self.answered:
            try:
                await self._loop.wait(self)
            except self._loop.cancelled:
                self._drop_reply()
                self.leave()
                raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers back to this frame
        return self._value

    def _drop_reply(self) -> None:
        """Report a reply that came before the caller was cancelled, and did not reach it: asyncio raises then."""
        if self.answered and not self.abandoned and self._error is None and self.on_late_reply is not None:
            self.on_late_reply(self._value)

    def leave(self) -> None:
        """Note that the caller was cancelled while it waited."""
        if not self.answered:
            self._settle()
            self.waiter = None
            self.abandon()

    def _settle(self) -> None:
        self.answered = True
        if self.in_hand is not None:
            self.in_hand.pop(self, None)

    def abandon(self) -> None:
        """Note that the caller has left."""
        if not self.abandoned:
            self.abandoned = True
            if self._callback is not None:
                self._callback()


def _wake_nobody(_: Any) -> None:
    """Wake no task: the mailbox has no reader yet."""


class Mailbox:
    """The messages of one actor identity. The hot paths in `ref.py`, `actor.py` and `waiting.py` use the fields."""

    __slots__ = ("has_room", "items", "limit", "urgent", "waiter", "wake")

    def __init__(self) -> None:
        self.items: deque[Any] | None = None
        self.urgent: deque[Any] | None = None
        self.limit = UNBOUNDED
        self.waiter: Any = None
        self.wake: Callable[[Any], object] = _wake_nobody
        self.has_room: anyio.Event | None = None  # if senders wait for room

    def __len__(self) -> int:
        return (len(self.items) if self.items else 0) + (len(self.urgent) if self.urgent else 0)

    def put(self, item: Any) -> None:
        """Append to the users' lane, regardless of the limit, and wake the reader."""
        if self.items is None:
            self.items = deque()
        self.items.append(item)
        self.notify()

    def put_urgent(self, item: Any) -> None:
        """Append to the system's lane and wake the reader."""
        if self.urgent is None:
            self.urgent = deque()
        self.urgent.append(item)
        self.notify()

    def put_back(self, items: list[Any]) -> None:
        """Put items back at the front of the users' lane, in their order."""
        if self.items is None:
            self.items = deque()
        self.items.extendleft(reversed(items))

    def leave(self) -> None:
        """Note that the reader was cancelled while it waited."""
        self.waiter = None

    def notify(self) -> None:
        """Wake the reader, if it waits."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            self.wake(waiter)

    def admit(self) -> None:
        """Wake the senders that wait for room; a sender that finds none waits again."""
        if self.has_room is not None:
            self.has_room.set()
            self.has_room = None

    def drain(self) -> list[Any]:
        """Remove and return all items, urgent ones first."""
        items = [*(self.urgent or ()), *(self.items or ())]
        self.urgent = self.items = None
        return items
