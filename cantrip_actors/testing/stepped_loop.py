"""An event loop in virtual time that runs only while a caller waits for it, for tests that go step by step.

A state machine of Hypothesis is no async function: it calls one rule after the other. Between two rules the loop stands
still, and so do its clock and its tasks: what a rule finds does not depend on how long Hypothesis needed to choose it.
On asyncio each step is a `run_until_complete`. On trio the run is a guest, whose host is the caller of `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import anyio

from supervisors.testing import virtual

T = TypeVar("T")


class SteppedLoop:
    """An event loop of a backend that runs only during `run`; in a test that is no async function itself.

    Tasks of `spawn` continue during later calls of `run`. An exception that one of them raises ends the loop, and is
    raised by `run`.
    """

    def __init__(self, backend: str) -> None:
        _, options = virtual(backend)
        host = _AsyncioHost if backend == "asyncio" else _TrioHost
        self._host: _Host = host(options, self._hold)
        self._closes: anyio.Event | None = None
        self._group: anyio.abc.TaskGroup | None = None

    async def _hold(self) -> None:
        """Hold the task group of the loop, from the first step to the last, in one task."""
        self._closes = anyio.Event()
        async with anyio.create_task_group() as self._group:
            await self._closes.wait()
            self._group.cancel_scope.cancel()

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an async function, and everything else in the loop meanwhile; return its result, or raise its error."""
        return self._host.run(function)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that lasts longer than a step. Called in the loop."""
        assert self._group is not None, "the first step begins after the task group is open"
        self._group.start_soon(function)

    def close(self) -> None:
        """Cancel all tasks, and end the loop."""
        if not self._host.is_over:
            self._host.run(self._release)
        self._host.close()

    async def _release(self) -> None:
        assert self._closes is not None, "likewise"
        self._closes.set()


class _Host(Protocol):
    """Runs an event loop step by step."""

    @property
    def is_over(self) -> bool: ...

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    def close(self) -> None: ...


class _AsyncioHost:
    def __init__(self, options: dict[str, Any], hold: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runner = asyncio.Runner(loop_factory=options["loop_factory"])
        self._loop = self._runner.get_loop()
        self._holder = self._loop.create_task(hold())

    @property
    def is_over(self) -> bool:
        return self._holder.done()

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = self._loop.create_task(function())
        self._loop.run_until_complete(asyncio.wait((task, self._holder), return_when=asyncio.FIRST_COMPLETED))
        if not task.done():
            task.cancel()
            self._loop.run_until_complete(asyncio.wait((task,)))
            self._holder.result()
        return task.result()

    def close(self) -> None:
        if not self._holder.done():
            self._loop.run_until_complete(asyncio.wait((self._holder,)))
        self._runner.close()


class _TrioHost:
    def __init__(self, options: dict[str, Any], hold: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import trio
        from trio._core import _run as scheduler

        # trio runs tasks in a random order, on purpose; an example that Hypothesis repeats has to be the same
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # noqa: SLF001  # as pytest-trio does
        scheduler._r.seed(0)  # noqa: SLF001  # likewise
        self._due: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._end: list[Any] = []
        self._step: _TrioStep[Any] | None = None
        trio.lowlevel.start_guest_run(
            partial(self._hold, hold),
            clock=options["clock"],
            run_sync_soon_threadsafe=self._due.put,
            done_callback=self._end.append,
            host_uses_signal_set_wakeup_fd=False,
        )

    async def _hold(self, hold: Callable[[], Coroutine[Any, Any, None]]) -> None:
        import trio

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve)
            await hold()
            nursery.cancel_scope.cancel()

    async def _serve(self) -> None:
        """Do the steps. Between two of them this task is always ready, so that the clock does not jump."""
        import trio

        while True:
            while self._step is None:
                await trio.lowlevel.checkpoint()
            step, self._step = self._step, None
            await step.do()

    @property
    def is_over(self) -> bool:
        return bool(self._end)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._step = step = _TrioStep(function)
        self._drive(lambda: step.is_done)
        return step.take()

    def _drive(self, is_done: Callable[[], bool]) -> None:
        """Let the guest run until something is done. Raise its error if it ends before."""
        while not is_done():
            if self._end:
                self._end[0].unwrap()
                raise RuntimeError("the event loop is closed")
            self._due.get()()

    def close(self) -> None:
        self._drive(lambda: self.is_over)


class _TrioStep(Generic[T]):
    """One function, whose error is for the caller of `run` and not for the loop."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._values: list[T] = []
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self._error is not None or bool(self._values)

    async def do(self) -> None:
        try:
            self._values.append(await self._function())
        except Exception as error:
            self._error = error

    def take(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]
