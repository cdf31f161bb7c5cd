"""One run from the command line: open the loom, watch, work, and leave in good order when a signal comes.

The first ctrl-C (or SIGTERM) cancels the cast: the entity and its children end with that reason in the loom. A second
one does not wait for anybody; the loom stands that, as it stands a kill at any moment.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

import anyio

from cantrip_actors import Cantrip, CantripError, Episode, LoomError, Runtime
from cantrip_actors.protocols.ends import Interrupted, LoomUnusable
from cantrip_actors.protocols.watch import Watcher, watched

__all__ = ["Backend", "cast", "perform", "settled"]

T = TypeVar("T")

Backend = Literal["asyncio", "trio"]


def cast(
    url: str, cantrip: Cantrip, intent: str, *, watcher: Watcher, context: Any = None, backend: Backend = "asyncio"
) -> Episode:
    """Cast and wait. Raises Interrupted, LoomUnusable, or what `Runtime.cast` raises."""

    async def work(runtime: Runtime) -> Episode:
        return settled(await runtime.cast(cantrip, intent, context=context))

    return perform(url, work, watcher=watcher, backend=backend)


def settled(episode: Episode) -> Episode:
    """The episode with its thread read: a closed loom cannot be asked."""
    assert episode.thread is not None
    return episode


def perform(
    url: str,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    watcher: Watcher,
    backend: Backend = "asyncio",
    cantrips: Iterable[Cantrip] = (),
) -> T:
    """Do `work` with a runtime that knows `cantrips`. Raises Interrupted, LoomUnusable, or what `work` raises."""

    async def opened() -> T:
        is_open = False
        try:
            async with Runtime.open(url, cantrips=cantrips) as runtime:
                is_open = True
                return await watched(runtime, watcher, lambda: work(runtime))
        except LoomError as error:
            if is_open:
                raise
            raise LoomUnusable(str(error)) from error

    before = signal.getsignal(signal.SIGINT)
    try:
        return anyio.run(_interruptible, opened, backend=backend)
    finally:
        signal.signal(signal.SIGINT, before)  # asyncio leaves Python's own, which would end in a traceback


async def _interruptible(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work`; a signal cancels it and becomes Interrupted."""
    came: list[int] = []
    done: list[T] = []
    failed: CantripError | None = None
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        await tasks.start(_listen, scope, came)
        with scope:
            try:
                done.append(await work())
            except CantripError as error:  # held back, so that it leaves as itself and not as a group
                failed = error
        tasks.cancel_scope.cancel()
    if done:
        return done[0]
    if came:
        raise Interrupted(came[0])
    assert failed is not None, "work is done, was interrupted or failed"
    raise failed


async def _listen(
    scope: anyio.CancelScope, came: list[int], *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if came:
                sys.stderr.write("\x1b[?25h\n" if sys.stderr.isatty() else "")  # a live picture hides the cursor
                sys.stderr.flush()
                os._exit(128 + number)
            came.append(number)
            scope.cancel()
