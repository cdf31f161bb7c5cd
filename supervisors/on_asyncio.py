"""The backend for asyncio (and uvloop): futures to wait on, the loop's timers, native tasks.

No task is cancelled natively here, because that can lose a value that was just delivered. Scopes are anyio's, which
cancel a task only while it waits.
"""

# ruff: noqa: D102 - backend.py documents the methods

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio

from supervisors.backend import Backend
from supervisors.caller import Caller
from supervisors.mailbox import Mailbox


class AsyncioCaller(Caller):
    """A caller whose task waits for a future."""

    __slots__ = ("value",)

    def __init__(self, create_future: Callable[[], asyncio.Future[Any]], message: Any = None) -> None:
        self.message = message
        self.abandoned = False
        self._callback = None
        self.value: asyncio.Future[Any] = create_future()

    @property
    def answered(self) -> bool:
        return self.value.done()

    def reply(self, value: Any) -> None:
        if not self.value.done():
            self.value.set_result(value)

    def fail(self, exception: BaseException) -> None:
        if not self.value.done():
            self.value.set_exception(exception)


class AsyncioBackend(Backend):
    """The running asyncio loop."""

    name = "asyncio"
    cancelled = asyncio.CancelledError

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        # as a plain asyncio loop does it, without a call in between
        plain = getattr(type(loop), "create_future", None) is asyncio.BaseEventLoop.create_future
        self._create_future = partial(asyncio.Future, loop=loop) if plain else loop.create_future
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[Any] | None = None
        self.now = loop.time
        self.current_task = partial(asyncio.current_task, loop)
        self.checkpoint = partial(asyncio.sleep, 0)
        self.scope = type(anyio.CancelScope())  # anyio's own class for this backend, without dispatch
        self.call_at = loop.call_at
        self.promise = partial(AsyncioCaller, self._create_future)
        self.wake = _wake

    async def hold(self, main: Callable[[], Awaitable[None]]) -> None:
        # A group that cancels no task: supervisors end the tasks.
        self._keeper = asyncio.current_task(self._loop)
        await main()
        cancelled: asyncio.CancelledError | None = None
        while tasks := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as error:
                # Only a native cancellation gets here, since this is shielded: the loop is torn down after a
                # KeyboardInterrupt, and these tasks have to end before it is closed.
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def spawn(self, body: Callable[[Any], Coroutine[Any, Any, None]], argument: Any, name: str) -> object:
        task = self._loop.create_task(body(argument), name=name, context=self._context.copy())
        self._tasks.add(task)
        return task

    def note_last_step(self, task: Any) -> None:
        # Not a callback of the task, which would cost an iteration of the loop for each. An exception that still leaves
        # a task is a bug of this package, and asyncio reports it.
        self._tasks.discard(task)

    def has_ended(self, task: Any) -> bool:
        return bool(task.done())

    @property
    def is_torn_down(self) -> bool:
        # anyio does not cancel the keeper, which is shielded from it
        return self._keeper is not None and self._keeper.cancelling() > 0

    def wait(self, box: Mailbox) -> Awaitable[object]:
        box.waiter = future = self._create_future()
        return future

    def call_soon(self, callback: Callable[[], object]) -> asyncio.Handle:
        return self._loop.call_soon(callback, context=self._context)


def _wake(waiter: Any) -> None:
    if not waiter.done():  # its task may have been cancelled
        waiter.set_result(None)
