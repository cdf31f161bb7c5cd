"""The backend for asyncio (and uvloop): futures to wait on, the loop's timers, tasks of its own.

No task is ever cancelled natively here: that loses what was handed over. Scopes are anyio's, which cancel a task only
while it waits.
"""

# ruff: noqa: D102 - backend.py says what each does

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from supervisors.backend import Backend, Scope
from supervisors.caller import Promise
from supervisors.errors import CallTimeout, MailboxFull, NotRunning, SelfCall
from supervisors.mailbox import Mailbox

if TYPE_CHECKING:
    from supervisors.ref import ActorRef


class AsyncioCaller(Promise):
    """A caller that waits for a future."""

    __slots__ = ("_future",)

    def __init__(self, message: Any, future: asyncio.Future[Any]) -> None:
        self.message = message
        self.abandoned = False
        self._callback = None
        self._debts = None
        self._future = future

    @property
    def answered(self) -> bool:
        return self._future.done()

    def _resolve(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _reject(self, exception: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(exception)

    def _expire(self, ref: ActorRef, timeout: float) -> None:
        if not self._future.done():
            self._future.set_exception(CallTimeout(ref, timeout))
            self._abandon()

    async def wait(self) -> Any:
        try:
            return await self._future
        except asyncio.CancelledError:
            self._abandon()
            raise

    async def wait_through(self) -> Any:
        cancelled: asyncio.CancelledError | None = None
        while not self._future.done():
            try:
                await asyncio.wait((self._future,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return self._future.result()


class AsyncioBackend(Backend):
    """The running asyncio loop."""

    name = "asyncio"

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self.scope = type(anyio.CancelScope())  # type: ignore[method-assign]  # anyio's own for this backend: no detour
        # what a loop of asyncio's own does, without a call in between
        plain = getattr(type(loop), "create_future", None) is asyncio.BaseEventLoop.create_future
        self._create_future = partial(asyncio.Future, loop=loop) if plain else loop.create_future
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty: asyncio.Future[None] | None = None
        self._keeper: asyncio.Task[Any] | None = None
        self.wake = self.wake  # type: ignore[method-assign]  # one for all mailboxes
        self.now = loop.time  # type: ignore[method-assign]
        self.call_at = loop.call_at  # type: ignore[method-assign,assignment]

    async def hold(self, main: Callable[[], Awaitable[None]]) -> None:
        # A group that cancels nobody: ending its tasks is what supervisors are for.
        self._keeper = asyncio.current_task(self._loop)
        await main()
        cancelled: asyncio.CancelledError | None = None
        while self._tasks:
            self._empty = self._create_future()
            try:
                await self._empty
            except asyncio.CancelledError as error:
                # Only native, since this is shielded: the loop is thrown away after a KeyboardInterrupt. So is each of
                # these tasks, and they shall end before it is closed.
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def spawn(self, body: Callable[[Any], Coroutine[Any, Any, None]], argument: Any, name: str) -> object:
        task = self._loop.create_task(body(argument), name=name, context=self._context.copy())
        self._tasks.add(task)
        return task

    def left(self, task: Any) -> None:
        # Not a callback of the task: that is a turn of the loop for each. What leaves a task nevertheless is a failure
        # of this package, and asyncio reports it.
        self._tasks.discard(task)
        if not self._tasks and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def now(self) -> float:
        return self._loop.time()

    def current_task(self) -> object:
        return asyncio.current_task(self._loop)

    def scope(self, *, shield: bool = False) -> Scope:
        return anyio.CancelScope(shield=shield)

    def is_cancellation(self, exception: BaseException) -> bool:
        return isinstance(exception, asyncio.CancelledError)

    @property
    def is_torn_down(self) -> bool:
        # anyio does not cancel the keeper, which is shielded from it
        return self._keeper is not None and self._keeper.cancelling() > 0

    def checkpoint(self) -> Awaitable[None]:
        return asyncio.sleep(0)

    def wait(self, box: Mailbox) -> Awaitable[object]:
        box.waiter = future = self._create_future()
        return future

    def wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():  # its task may have been cancelled
            waiter.set_result(None)

    def call_at(self, deadline: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        return self._loop.call_at(deadline, callback, *arguments)

    def soon(self, callback: Callable[[], object]) -> asyncio.Handle:
        return self._loop.call_soon(callback, context=self._context)

    def promise(self) -> AsyncioCaller:
        return AsyncioCaller(None, self._create_future())

    async def ask(self, ref: ActorRef, message: Any, timeout: float | None) -> Any:
        box = ref._box  # noqa: SLF001 - this is half of ActorRef.call
        incarnation = ref._incarnation  # noqa: SLF001
        if incarnation is None:
            if not ref._open:  # noqa: SLF001
                raise NotRunning(ref, ref._reason)  # noqa: SLF001
        elif box.waiter is None and incarnation.task is asyncio.current_task(self._loop):  # who waits does not run
            raise SelfCall(ref)
        caller = AsyncioCaller(message, future := self._create_future())
        items = box.items
        if items is None:
            box.put(caller)
        else:
            if len(items) >= box.limit:
                raise MailboxFull(ref, box.limit)
            items.append(caller)
            waiter = box.waiter
            if waiter is not None:
                box.waiter = None
                if not waiter.done():
                    waiter.set_result(None)
        if timeout is None:
            try:
                return await future
            except asyncio.CancelledError:
                caller._abandon()  # noqa: SLF001
                raise
        timer = self._loop.call_later(timeout, caller._expire, ref, timeout)  # noqa: SLF001
        try:
            return await future
        except asyncio.CancelledError:
            caller._abandon()  # noqa: SLF001
            raise
        finally:
            timer.cancel()
