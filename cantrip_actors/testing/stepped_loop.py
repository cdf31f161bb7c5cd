"""An event loop in virtual time that runs only while a caller waits for it, for tests that go step by step.

A state machine of Hypothesis is no async function: it calls one rule after the other. Between two rules the loop stands
still, and so do its clock and its tasks: what a rule finds does not depend on how long Hypothesis needed to choose it.
The loop runs in a thread, and its main task waits for the next step without giving way to any other task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.from_thread
from anyio.lowlevel import EventLoopToken, current_token

from supervisors.testing import virtual

T = TypeVar("T")


class SteppedLoop:
    """An event loop of a backend that runs only during `run`; in a test that is no async function itself.

    Tasks of `spawn` continue during later calls of `run`. An exception that one of them raises ends the loop, and is
    raised by `run`.
    """

    def __init__(self, backend: str) -> None:
        self._steps: SimpleQueue[Callable[[], Coroutine[Any, Any, None]] | None] = SimpleQueue()
        self._result: Future[Any] | None = None
        """The result of the newest step."""
        self._group: anyio.abc.TaskGroup | None = None
        self._token: EventLoopToken
        if backend == "trio":
            _make_trio_repeatable()
        run = partial(anyio.run, self._hold, backend=backend, backend_options=virtual(backend)[1])
        thread = ThreadPoolExecutor(1, "cantrip-stepped-loop")
        self._end: Future[Any] = thread.submit(run)
        thread.shutdown(wait=False)

    async def _hold(self) -> None:
        """Hold the task group of the loop, from the first step to the last, in one task."""
        self._token = current_token()
        async with anyio.create_task_group() as self._group:
            while (step := self._steps.get()) is not None:  # the thread waits, so nothing runs and no time passes
                await step()
            self._group.cancel_scope.cancel()

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run an async function, and everything else in the loop meanwhile; return its result, or raise its error."""
        result = self._result = Future[T]()

        async def step() -> None:
            try:
                result.set_result(await function())
            except Exception as error:
                result.set_exception(error)

        self._steps.put(step)
        ends: tuple[Future[Any], ...] = (result, self._end)
        wait(ends, return_when=FIRST_COMPLETED)
        if result.done():
            return result.result()
        self._end.result()
        raise RuntimeError("the event loop is closed")

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that lasts longer than a step. Called in the loop."""
        assert self._group is not None, "the first step begins after the task group is open"
        self._group.start_soon(function)

    def close(self) -> None:
        """Cancel all tasks, and end the loop."""
        self._steps.put(None)
        if self._group is not None and self._result is not None and not (self._result.done() or self._end.done()):
            anyio.from_thread.run_sync(self._group.cancel_scope.cancel, token=self._token)  # ctrl-C left a step
        wait((self._end,))


def _make_trio_repeatable() -> None:
    """Have trio run tasks in the same order each time: an example that Hypothesis repeats has to be the same."""
    from trio._core import _run as scheduler

    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # noqa: SLF001  # as pytest-trio does
    scheduler._r.seed(0)  # noqa: SLF001  # likewise
