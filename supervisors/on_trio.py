"""The backend for trio: `wait_task_rescheduled` to wait, one nursery, and a task that runs the timers.

Imported only when a system is made under trio, so that asyncio users need not install trio.
"""

# ruff: noqa: D102 - backend.py documents the methods

from __future__ import annotations

import contextvars
import functools
import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import trio
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from supervisors.backend import Backend
from supervisors.caller import Caller
from supervisors.mailbox import Mailbox

#: The number of timers below which cancelled ones are not removed.
FEW = 100


class TrioCaller(Caller):
    """A caller whose task is parked."""

    __slots__ = ("_done", "_error", "_task", "_value")

    def __init__(self, message: Any = None) -> None:
        self.message = message
        self.abandoned = False
        self._callback = None
        self._done = False
        self._task: trio.lowlevel.Task | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self._done

    def reply(self, value: Any) -> None:
        if not self._done:
            self._done = True
            self._value = value
            if self._task is not None:
                reschedule(self._task)

    def fail(self, exception: BaseException) -> None:
        if not self._done:
            self._error = exception
            self.reply(None)

    def _leave(self, _: object) -> Abort:
        self._task = None
        self._done = True
        self._abandon()
        return Abort.SUCCEEDED

    @property
    def value(self) -> Awaitable[Any]:
        return self._wait()

    async def _wait(self) -> Any:
        if not self._done:
            self._task = current_task()
            await wait_task_rescheduled(self._leave)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the traceback refers back to this frame
        return self._value


class TrioBackend(Backend):
    """The running trio loop."""

    name = "trio"
    cancelled = trio.Cancelled

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._nursery: trio.Nursery | None = None
        self._timers = _Timers()
        self.now = trio.lowlevel.current_clock().current_time  # also from other threads, unlike `trio.current_time`
        self.current_task = current_task
        self.checkpoint = trio.lowlevel.checkpoint
        self.scope = trio.CancelScope
        self.promise = TrioCaller
        self.wake = _wake

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

    def note_last_step(self, task: object) -> None:
        pass  # the nursery keeps track of its tasks

    def wait(self, box: Mailbox) -> Awaitable[object]:
        box.waiter = current_task()
        return wait_task_rescheduled(functools.partial(_leave, box))  # noqa: ASYNC105 - the caller awaits

    def call_at(self, deadline: float, callback: Callable[..., object], *arguments: Any) -> _Timer:
        return self._timers.add(deadline, functools.partial(callback, *arguments))

    def call_soon(self, callback: Callable[[], object]) -> _Timer:
        return self._timers.add(-math.inf, callback)


def _wake(waiter: Any) -> None:
    if isinstance(waiter, trio.lowlevel.Task):
        reschedule(waiter)
    else:  # an incarnation without a task
        waiter.set_result(None)


def _leave(box: Mailbox, _: object) -> Abort:
    box.waiter = None
    return Abort.SUCCEEDED


class _Timer:
    """One entry in the heap of timers."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: _Timers, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled += 1


class _Timers:
    """Calls at a given time, in the order of their deadlines, as asyncio's loop has built in. One task serves all."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._task: trio.lowlevel.Task | None = None  # set while it waits
        self._wakes_at = math.inf
        self.cancelled = 0  # how many in the heap are cancelled

    def add(self, deadline: float, callback: Callable[[], object]) -> _Timer:
        if 2 * self.cancelled > len(self._heap) > FEW:  # most calls with a timeout are answered long before the timeout
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        timer = _Timer(self, callback)
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
                if callback is None:
                    self.cancelled -= 1
                else:
                    callback()
            self._wakes_at = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=self._wakes_at):
                self._task = current_task()
                await wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _: object) -> Abort:
        self._task = None
        return Abort.SUCCEEDED
