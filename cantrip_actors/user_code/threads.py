"""Run blocking work in a thread, so that it has ended when its caller continues, also if the caller is cancelled.

Nothing can stop a thread. A cancelled caller asks the work to end, if the work can be asked, and waits for it; after
the grace it leaves the thread behind, and reports that. Work that had not begun is never done.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar, current_token

T = TypeVar("T")

GRACE: Final = 4.0
"""Seconds that a cancelled caller waits for its thread."""

OWN: Final = 8
"""Threads of the runtime for its own short work."""

CLIENTS: Final = 16
"""Threads of the runtime for the work of clients: of HTTP, MCP and editors, and of dispatches."""

_own: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.user_code.threads own")
_clients: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.user_code.threads clients")


class _Work:
    """Work for a thread, and whether it has begun, ended, or was left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_begun = self._has_ended = self._is_left = False
        self._notify: Callable[[], None] | None = None

    def run(self, work: Callable[[], T]) -> list[T]:
        """Do the work in the thread, and return its result; nothing if its caller has left before.

        The result is in a list: trio takes a bare coroutine that comes back from a thread for a mistake.
        """
        with self._lock:
            self._has_begun = not self._is_left
            if self._is_left:
                return []
        try:
            return [work()]
        finally:
            with self._lock:
                self._has_ended = True
                notify = self._notify
            if notify is not None:
                notify()

    async def leave(self, grace: float) -> bool:
        """Wait in the caller until work that has begun has ended; return False after `grace` seconds."""
        ended, run_soon = anyio.Event(), get_run_soon()

        def notify() -> None:
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                run_soon(ended.set)

        with self._lock:
            self._is_left = True
            if self._has_ended or not self._has_begun:
                return True
            self._notify = notify
        with anyio.move_on_after(grace, shield=True):
            await ended.wait()
        return ended.is_set()


def get_run_soon() -> Callable[[Callable[[], object]], object]:
    """Return what has the running event loop call a function, from any thread.

    It does not wait for that call, which may never come: the loop may have ended. It may raise RuntimeError then.
    """
    loop: Any = current_token().native_token
    run_soon: Callable[[Callable[[], object]], object] = (
        loop.call_soon_threadsafe if isinstance(loop, asyncio.AbstractEventLoop) else loop.run_sync_soon
    )
    return run_soon


async def run_to_end(work: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
    """Return the result of `work`, which runs in a thread. No cancellation ends this before `work` has ended.

    That of a scope is raised later, where the caller waits next. asyncio's own, by which Ctrl-C ends a program, is
    raised when `work` has ended: nothing may close a store that a thread still uses.
    """
    state = _Work()

    try:
        (result,) = await anyio.to_thread.run_sync(state.run, work, limiter=limiter)
    except anyio.get_cancelled_exc_class():
        await state.leave(math.inf)
        raise
    return result


async def run_apart(work: Callable[[], T]) -> T:
    """Return the result of short work as `run_to_end` does, in a thread of the runtime's own.

    The default threads of anyio are those of a service, and may all wait for the runtime.
    """
    return await run_to_end(work, get_limiter(_own, OWN))


async def run_for_client(work: Callable[..., T], *args: object) -> T:
    """Return `work(*args)`, which reads for a client, as `run_to_end` does.

    Its threads are neither those of the application nor those of `run_apart`, so a slow store stops clients alone.
    """
    return await run_to_end(partial(work, *args), get_client_limiter())


def get_client_limiter() -> anyio.CapacityLimiter:
    """Return the limiter of the threads of clients."""
    return get_limiter(_clients, CLIENTS)


def get_limiter(variable: RunVar[anyio.CapacityLimiter], tokens: int) -> anyio.CapacityLimiter:
    """Return the limiter in a variable of the event loop; the first call makes it."""
    try:
        return variable.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(tokens)
        variable.set(limiter)
        return limiter


async def run_in_thread(
    work: Callable[[], T],
    limiter: anyio.CapacityLimiter,
    *,
    interrupt: Callable[[], object] = lambda: None,
    on_refusal: Callable[[], object] = lambda: None,
    grace: float | None = None,
) -> T:
    """Return the result of `work`, which runs in a thread.

    Args:
        work: the blocking work.
        limiter: bounds how many threads of its kind run at once.
        interrupt: asks the work to end soon, once the caller is cancelled.
        on_refusal: called if the work still runs `grace` seconds later; its thread is left behind.
        grace: seconds; `GRACE` if left out.
    """
    state = _Work()

    try:
        (result,) = await anyio.to_thread.run_sync(state.run, work, abandon_on_cancel=True, limiter=limiter)
    except anyio.get_cancelled_exc_class():
        interrupt()
        if not await state.leave(GRACE if grace is None else grace):
            on_refusal()
        raise
    return result
