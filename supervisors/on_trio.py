"""The backend for trio: `wait_task_rescheduled` to wait, one nursery, and a task that keeps the timers.

Imported only when a system is made under trio, so that nobody else needs it installed.
"""

# ruff: noqa: D102 - backend.py says what each does

from __future__ import annotations

import contextvars
import functools
import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from supervisors.backend import Backend, Scope
from supervisors.caller import Promise
from supervisors.errors import CallTimeout, MailboxFull, NotRunning, SelfCall
from supervisors.mailbox import Mailbox

if TYPE_CHECKING:
    from supervisors.ref import ActorRef


class TrioCaller(Promise):
    """A caller whose task is parked."""

    __slots__ = ("_done", "_error", "_task", "_value")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.abandoned = False
        self._callback = None
        self._debts = None
        self._task: trio.lowlevel.Task | None = None
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self._done

    def _resolve(self, value: Any) -> None:
        if not self._done:
            self._done = True
            self._value = value
            if self._task is not None:
                reschedule(self._task)

    def _reject(self, exception: BaseException) -> None:
        if not self._done:
            self._error = exception
            self._resolve(None)

    def _leave(self, _: object) -> Abort:
        self._task = None
        self._done = True
        self._abandon()
        return Abort.SUCCEEDED

    async def wait(self) -> Any:
        if not self._done:
            self._task = current_task()
            await wait_task_rescheduled(self._leave)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback leads back here
        return self._value

    async def wait_through(self) -> Any:
        with trio.CancelScope(shield=True):
            return await self.wait()


class TrioBackend(Backend):
    """The running trio loop."""

    name = "trio"

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._nursery: trio.Nursery | None = None
        self._timers = _Timers()
        self.wake = self.wake  # type: ignore[method-assign]  # one for all mailboxes
        self.now = trio.current_time  # type: ignore[method-assign]
        self.current_task = current_task  # type: ignore[method-assign]
        self.checkpoint = trio.lowlevel.checkpoint  # type: ignore[method-assign]

    async def hold(self, main: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as timers:
            timers.start_soon(self._timers.run)
            async with trio.open_nursery() as self._nursery:
                await main()
            timers.cancel_scope.cancel()

    def spawn(self, body: Callable[[Any], Coroutine[Any, Any, None]], argument: Any, name: str) -> object:
        assert self._nursery is not None
        self._context.run(functools.partial(self._nursery.start_soon, body, argument, name=name))
        return None

    def left(self, task: object) -> None:
        pass  # the nursery knows

    def now(self) -> float:
        return trio.current_time()

    def current_task(self) -> object:
        return current_task()

    def scope(self, *, shield: bool = False) -> Scope:
        return trio.CancelScope(shield=shield)

    def is_cancellation(self, exception: BaseException) -> bool:
        return isinstance(exception, trio.Cancelled)

    def checkpoint(self) -> Awaitable[None]:
        return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits

    def wait(self, box: Mailbox) -> Awaitable[object]:
        box.waiter = current_task()
        return wait_task_rescheduled(functools.partial(_leave, box))  # noqa: ASYNC105 - the caller awaits

    def wake(self, waiter: Any) -> None:
        if isinstance(waiter, trio.lowlevel.Task):
            reschedule(waiter)
        else:  # an incarnation without a task
            waiter.set_result(None)

    def call_at(self, deadline: float, callback: Callable[..., object], *arguments: Any) -> _Timer:
        return self._timers.add(deadline, functools.partial(callback, *arguments))

    def soon(self, callback: Callable[[], object]) -> _Timer:
        return self._timers.add(-math.inf, callback)

    def promise(self) -> TrioCaller:
        return TrioCaller(None)

    async def ask(self, ref: ActorRef, message: Any, timeout: float | None) -> Any:
        box = ref._box  # noqa: SLF001 - this is half of ActorRef.call
        incarnation = ref._incarnation  # noqa: SLF001
        if incarnation is None:
            if not ref._open:  # noqa: SLF001
                raise NotRunning(ref, ref._reason)  # noqa: SLF001
        elif incarnation.task is current_task():
            raise SelfCall(ref)
        if box.items is not None and len(box.items) >= box.limit:
            raise MailboxFull(ref, box.limit)
        caller = TrioCaller(message)
        box.put(caller)
        if timeout is None:
            return await caller.wait()
        with trio.move_on_after(timeout) as scope:
            return await caller.wait()
        assert scope.cancelled_caught
        raise CallTimeout(ref, timeout)


def _leave(box: Mailbox, _: object) -> Abort:
    box.waiter = None
    return Abort.SUCCEEDED


class _Timer:
    """One entry of the timers' heap."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _Timers:
    """What asyncio's loop has built in: calls at a time, in the order of their deadlines. One task serves all."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._task: trio.lowlevel.Task | None = None  # while it waits
        self._wakes_at = math.inf

    def add(self, deadline: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._heap, (deadline, next(self._order), timer))
        if deadline < self._wakes_at and self._task is not None:
            task, self._task = self._task, None
            reschedule(task)
        return timer

    async def run(self) -> None:
        while True:
            now = trio.current_time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].callback is None):
                _, _, timer = heapq.heappop(self._heap)
                callback, timer.callback = timer.callback, None
                if callback is not None:
                    callback()
            self._wakes_at = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=self._wakes_at):
                self._task = current_task()
                await wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED
