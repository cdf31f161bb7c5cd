"""What the actors need of an event loop, and nothing more.

anyio gives scopes and groups on both backends; its tasks, events and streams cost two to four times what the loop's
own do (specs: supervision 4), so tasks, wake-ups and timers are native here. Cancel scopes stay anyio's or trio's: a
user's shield or timeout inside an actor works as everywhere.

Where the tasks live: all tasks of a system, supervisors and actors alike, run in ONE flat group under ONE shield,
which the system's keeper task hosts. A cancellation from outside reaches only the system's user; it is the
supervisors that end children, one after the other, in their order (S-34). Neither the books nor the stop order depend
on how a group wakes its tasks.
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
    """What anyio's and trio's cancel scopes have in common."""

    def cancel(self) -> None:
        """Cancel what runs in it."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None, /
    ) -> bool | None: ...


class Timer(Protocol):
    """Something that will be called later."""

    def cancel(self) -> object:
        """Do not call it. Nothing happens if it was called already."""


class Backend(abc.ABC):
    """One event loop. Made by the system that runs on it, in the task of its user."""

    name: str
    #: What this loop raises in a task that is cancelled.
    cancelled: type[BaseException]
    #: The loop's clock, in seconds.
    now: Callable[[], float]
    #: Returns the running task.
    current_task: Callable[[], object]
    #: Lets others run; a cancellation is raised here.
    checkpoint: Callable[[], Awaitable[None]]
    #: Makes a cancel scope; takes `shield`.
    scope: Callable[..., Scope]
    #: Calls the second argument with those behind it at the first one, in seconds of `now`. It must not raise.
    call_at: Callable[..., Timer]
    #: Makes a caller, to be awaited by the running task; takes its message.
    promise: Callable[..., Caller]
    #: What a mailbox calls with its waiter.
    wake: Callable[[Any], object]

    @abc.abstractmethod
    async def hold(self, main: Callable[[], Awaitable[None]]) -> None:
        """Open the group of all tasks, run `main`, and wait for the tasks that are left.

        Only while it runs can one spawn.
        """

    @abc.abstractmethod
    def spawn(self, body: Callable[[Any], Coroutine[Any, Any, None]], argument: Any, name: str) -> object:
        """Run `body(argument)` as a task of the group, in a copy of the context that the system was made in.

        Returns:
            the task; `None` where that is known only when it runs.
        """

    @abc.abstractmethod
    def left(self, task: object) -> None:
        """`task` takes its last step: what `body` of `spawn` has to say at its end, however that comes."""

    @property
    def is_torn_down(self) -> bool:
        """Whether the loop is being thrown away with its tasks: `asyncio.run` cancels whatever is left at its end."""
        return False

    @abc.abstractmethod
    def wait(self, box: Mailbox) -> Awaitable[object]:
        """Until somebody writes to `box` or notifies it. Only its one reader may wait."""

    @abc.abstractmethod
    def soon(self, callback: Callable[[], object]) -> object:
        """Call it when the running task waits next, in the system's context. It must not raise."""
