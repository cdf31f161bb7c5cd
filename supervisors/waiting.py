"""How a task waits: until another one wakes it, or until it is time.

*Wake-ups* are the only part of this package that differs between the event loops. Tasks, scopes and groups are anyio's.
Only two waits are native, because they are the cost of each message: an actor that waits for its mailbox, and a caller
that waits for its reply; with `anyio.Event` a call takes 2.4 times as long on asyncio (S-0006). So are three questions
that anyio does not answer at that price: which task runs, what time it is, and whether asyncio is cancelling all its
tasks because the loop is torn down. trio is not imported here: a program that runs under trio has imported it.

*Timers* are one heap and one task for a whole system, on anyio alone. They serve `send_after`, delayed restarts, graces
and kills. Callbacks run in the order of their deadlines; they are this package's own, short,
and do not raise. The task of the timers ends only when the system's root has ended: no cancellation stops it, because
actors that are being stopped need their graces.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import heapq
import itertools
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

from supervisors.mailbox import Caller, Mailbox


class EventLoop(abc.ABC):
    """The running event loop, as a system needs it.

    Attributes:
        cancelled: the exception that this loop raises in a cancelled task.
        now: the loop's clock, in seconds.
        has_machine_time: whether this clock is known to be the machine's, and not one of a test.
        current_task: returns the running task.
        wake: wakes a task: takes the `waiter` of the mailbox or caller that it waits for.
        make_scope: makes a cancel scope: anyio's own class for this loop, without its dispatch.
        make_caller: makes a caller for a message, or a promise without one.
    """

    cancelled: type[BaseException]
    now: Callable[[], float]
    has_machine_time: bool = False
    current_task: Callable[[], object]
    wake: Callable[[Any], object]

    def __init__(self) -> None:
        self.make_scope: Callable[..., anyio.CancelScope] = type(anyio.CancelScope())
        self.make_caller = functools.partial(Caller, self)

    @abc.abstractmethod
    def wait(self, thing: Mailbox | Caller) -> Awaitable[object]:
        """Wait until a mailbox or a caller wakes its `waiter`, which this sets. Only one task may wait for it."""

    def is_current(self, task: object) -> bool:
        """Return whether `task` is the running task; no task runs when Python discards those of a loop that is gone."""
        try:
            return self.current_task() is task
        except RuntimeError:  # trio's loop has ended
            return False

    def has_ended(self, task: object) -> bool:  # noqa: ARG002  # on trio, a task with an open group cannot end
        """Return whether a task that entered a group has ended without leaving the group."""
        return False

    def is_tearing_down(self, task: object) -> bool:  # noqa: ARG002
        """Return whether `task`, which no scope ever cancels, is cancelled: `asyncio.run` cancels all at its end."""
        return False


class _AsyncioLoop(EventLoop):
    """asyncio's loop, or uvloop's. Tasks are not cancelled natively here: that can lose a value just delivered."""

    cancelled = asyncio.CancelledError

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._create_future = loop.create_future
        self.now = loop.time
        # uvloop's loop is no BaseEventLoop; its time is that of its last step, which is old in another thread
        self.has_machine_time = (
            not isinstance(loop, asyncio.BaseEventLoop) or type(loop).time is asyncio.BaseEventLoop.time
        )
        self.current_task = functools.partial(asyncio.current_task, loop)
        self.wake = _wake_future

    def wait(self, thing: Mailbox | Caller) -> Awaitable[object]:
        thing.waiter = future = self._create_future()
        return future

    def has_ended(self, task: Any) -> bool:
        return bool(task.done())

    def is_tearing_down(self, task: Any) -> bool:
        return task is not None and task.cancelling() > 0


def _wake_future(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task may have been cancelled
        future.set_result(None)


class _TrioLoop(EventLoop):
    """trio's loop."""

    def __init__(self, trio: Any) -> None:
        super().__init__()
        lowlevel = trio.lowlevel
        self.cancelled = trio.Cancelled
        self.now = lowlevel.current_clock().current_time  # also from other threads, unlike `trio.current_time`
        self.current_task = lowlevel.current_task
        self.wake = lowlevel.reschedule
        self._wait = lowlevel.wait_task_rescheduled
        self._aborted = lowlevel.Abort.SUCCEEDED

    def wait(self, thing: Mailbox | Caller) -> Awaitable[object]:
        thing.waiter = self.current_task()
        return self._wait(functools.partial(self._leave, thing))  # type: ignore[no-any-return]

    def _leave(self, thing: Mailbox | Caller, _: object) -> Any:
        thing.leave()  # now and not when the task runs: the callee sees at once that its caller has left
        return self._aborted


def find_event_loop() -> EventLoop:
    """Return the running event loop."""
    trio = sys.modules.get("trio")
    return _TrioLoop(trio) if trio is not None and trio.lowlevel.in_trio_task() else _AsyncioLoop()


async def wait_uninterrupted(
    loop: EventLoop, is_done: Callable[[], bool], wait: Callable[[], Awaitable[object]]
) -> BaseException | None:
    """Call `wait` until `is_done`, through every cancellation and Ctrl-C.

    Returns:
        the last that no cancel scope will raise again: a native cancellation, or trio's `KeyboardInterrupt`.
    """
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not is_done():
            try:
                await wait()
            except (loop.cancelled, KeyboardInterrupt) as error:
                cancelled = error
    return cancelled


# --- timers -----------------------------------------------------------------------------------------------------------


#: The number of timers below which cancelled ones are not removed.
FEW = 100


class Alarm(Protocol):
    """A message that is scheduled for later."""

    def cancel(self) -> object:
        """Cancel it. Does nothing if it was sent already."""


class ScheduledCall:
    """One entry in the heap of timers."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: TimerQueue, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Cancel the call. Does nothing if it was made already."""
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled += 1


class TimerQueue:
    """The calls that a system makes later."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, ScheduledCall]] = []
        self._order = itertools.count()
        self._event = anyio.Event()  # set when the next deadline has changed
        self._wakes_at = -math.inf
        self._is_stopped = False
        self.cancelled = 0  # how many in the heap are cancelled

    def call_after(self, seconds: float, callback: Callable[[], object]) -> ScheduledCall:
        """Call `callback` after `seconds` of the loop's clock."""
        deadline = self._loop.now() + seconds
        if 2 * self.cancelled > len(self._heap) > FEW:  # most actors end long before their grace is over
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self.cancelled = 0
        call = ScheduledCall(self, callback)
        heapq.heappush(self._heap, (deadline, next(self._order), call))
        if deadline < self._wakes_at:
            self._event.set()
        return call

    def stop(self) -> None:
        """End the task of the timers; calls that are not due are never made."""
        self._is_stopped = True
        self._event.set()

    async def run(self) -> None:
        """Make the calls when they are due, until `stop`."""
        with anyio.CancelScope(shield=True):
            while not self._is_stopped:
                self._event = anyio.Event()
                self._call_due()
                self._wakes_at = self._heap[0][0] if self._heap else math.inf
                try:
                    with anyio.CancelScope(deadline=self._wakes_at):
                        await self._event.wait()
                except self._loop.cancelled:  # natively: the loop is torn down, and ending actors still need graces
                    continue
                finally:
                    self._wakes_at = -math.inf  # it looks at the heap before it waits again

    def _call_due(self) -> None:
        now, newest = self._loop.now(), next(self._order)
        while (heap := self._heap) and heap[0][0] <= now:
            if heap[0][1] > newest:
                return  # a callback has added it: let other tasks run before
            call = heapq.heappop(heap)[2]
            callback, call.callback = call.callback, None
            if callback is None:
                self.cancelled -= 1
            else:
                callback()
