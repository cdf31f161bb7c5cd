"""The mailbox: two lanes, a bound, and the backend's own wake-up.

It belongs to an identity (`ActorRef`), not to an incarnation, so messages survive a restart. There is one reader, the
actor's task; any task may write, without waiting. The *urgent* lane is for the system (`Down`, `Exit`, timers):
unbounded and read first. The *items* lane is for users and may be bounded.

It is not a stream of anyio: those cost a checkpoint per item and two objects per actor, have no second lane and drop
their items when they close (specs: supervision 3.3 and 4 have the figures).

How the reader waits: it stores a *waiter* here, an asyncio `Future` or a trio `Task`, which the next writer removes and
passes to `wake`. The wake-up carries no item, so a cancelled reader loses none. Both queues are created with their
first item: a deque takes 624 bytes, and in a system with many actors most are idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisors.caller import Caller

#: "No bound". An int, so that the check on the hot path is one comparison.
UNBOUNDED = 1 << 62


def _wake_nobody(_: Any) -> None:
    """Wake no task: the mailbox has no reader yet."""


class Mailbox:
    """The messages of one actor identity. The hot paths in `actor.py` and the backends access the fields directly."""

    __slots__ = ("items", "limit", "producers", "urgent", "waiter", "wake")

    def __init__(self) -> None:
        self.items: deque[Any] | None = None
        self.urgent: deque[Any] | None = None
        self.limit = UNBOUNDED
        self.waiter: Any = None
        self.wake: Callable[[Any], object] = _wake_nobody
        self.producers: list[Caller] | None = None  # senders that wait for room

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

    def notify(self) -> None:
        """Wake the reader, if it waits."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            self.wake(waiter)

    def admit(self) -> None:
        """Wake the senders that wait for room; a sender that finds none waits again."""
        producers, self.producers = self.producers, None
        for promise in producers or ():
            promise.reply(None)

    def drain(self) -> list[Any]:
        """Remove and return all items, urgent ones first."""
        left = [*(self.urgent or ()), *(self.items or ())]
        self.urgent = self.items = None
        return left
