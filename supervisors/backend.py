"""The part of an event loop that actors need.

anyio provides scopes and groups on both backends, but its tasks, events and streams cost two to four times as much as
the loop's own (specs: supervision 4), so tasks, wake-ups and timers are native here. Cancel scopes are anyio's or
trio's: a user's shield or timeout inside an actor works as everywhere.

Runs the tasks of a system: supervisors and actors alike run in ONE flat group under ONE shield, which the system's
keeper task hosts. A cancellation from outside reaches only the system's user; the supervisors end children, one after
the other, in their order (S-34). Neither the child records nor the stop order depend on how a group wakes its tasks.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from supervisors.caller import Caller
    from supervisors.mailbox import Mailbox


class Scope(Protocol):
    """The common interface of anyio's and trio's cancel scopes."""

    def cancel(self) -> None:
        """Cancel the code that runs in it."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> bool | None: ...


class Timer(Protocol):
    """A call that is scheduled for later."""

    def cancel(self) -> object:
        """Cancel the call. Does nothing if it was made already."""


class Backend(abc.ABC):
    """One event loop. The system that runs on it makes it in the task of the system's user."""

    name: str
    #: The exception that this loop raises in a cancelled task.
    cancelled: type[BaseException]
    #: The loop's clock, in seconds.
    now: Callable[[], float]
    #: Returns the running task.
    current_task: Callable[[], object]
    #: Lets other tasks run; a cancellation is raised here.
    checkpoint: Callable[[], Awaitable[None]]
    #: Makes a cancel scope; takes `shield`.
    scope: Callable[..., Scope]
    #: `call_at(deadline, callback, *arguments)`: calls back at a time in seconds of `now`. The callback must not raise.
    call_at: Callable[..., Timer]
    #: Makes a caller that the running task awaits; takes its message.
    promise: Callable[..., Caller]
    #: The function that a mailbox calls with its waiter.
    wake: Callable[[Any], object]

    @abc.abstractmethod
    async def hold(self, main: Callable[[], Awaitable[None]]) -> None:
        """Open the group of all tasks, run `main`, and wait for the remaining tasks.

        `spawn` works only while it runs.
        """

    @abc.abstractmethod
    def spawn(self, body: Callable[[Any], Coroutine[Any, Any, None]], argument: Any, name: str) -> object:
        """Run `body(argument)` as a task of the group, in a copy of the context that the system was made in.

        Returns:
            the task; `None` where that is known only when it runs.
        """

    @abc.abstractmethod
    def note_last_step(self, task: object) -> None:
        """Note that `task` takes its last step; the `body` of `spawn` calls this at its end, however it ends."""

    def has_ended(self, task: object) -> bool:  # noqa: ARG002  # on trio, a task with an open group cannot end
        """Return whether a task that entered a group has ended without leaving the group."""
        return False

    @property
    def is_torn_down(self) -> bool:
        """Whether the loop is being torn down with its tasks: `asyncio.run` cancels all remaining tasks at its end."""
        return False

    @abc.abstractmethod
    def wait(self, box: Mailbox) -> Awaitable[object]:
        """Wait until `box` is written to or notified. Only its one reader may wait."""

    @abc.abstractmethod
    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call `callback` when the running task waits next, in the system's context. It must not raise."""
