"""One run from the command line: open the loom, watch, work, and stop in good order at a signal.

The first ctrl-C (or SIGTERM, or SIGHUP of a terminal that is closed) cancels the run: the entity and its children end
with that reason in the loom. The second exits at once, which the loom survives as it survives a kill at any moment.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Literal, TypeVar

import anyio

from cantrip_actors import Runtime
from cantrip_actors.cli.errors import Interrupted, opening
from cantrip_actors.cli.sealed import seal_key
from cantrip_actors.cli.terminal import bare
from cantrip_actors.cli.watch import EventLines, background, run_watched, watch_on
from cantrip_actors.runtime.events.log_feed import EventFeed
from cantrip_actors.runtime.nodes.node import list_ending_signals

T = TypeVar("T")


def perform(
    url: str,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    backend: str,
    quiet: bool,
    events: bool = False,
    unattended: Literal["wait", "deny"] | None = None,
    request_id: str = "",
    followed: Collection[str] = (),
    feeds: Sequence[EventFeed] = (),
) -> T:
    """Do `work` with a runtime, as `command.run` describes it.

    With `unattended` the person at the terminal is asked about the requests of its entities, of those that are
    `followed`, and about the one with `request_id` (`inline_decisions.py`). The watcher shows `feeds` (`run_watched`).
    """
    watcher = EventLines(sys.stdout) if events else None if quiet else watch_on(sys.stderr)

    async def opened() -> T:
        async with AsyncExitStack() as stack:
            with opening():
                runtime = await stack.enter_async_context(
                    Runtime.open(url, unattended=unattended or "wait", seal_key=seal_key())
                )
            terminal = anyio.Lock()
            if unattended is not None:
                from cantrip_actors.cli.inline_decisions import attend

                tasks = await stack.enter_async_context(background())
                denies = unattended == "deny"
                work_for = partial(attend, runtime, watcher, terminal, url, request_id, followed, denies=denies)
                await tasks.start(work_for)
            if watcher is None:
                return await work(runtime)
            return await run_watched(runtime, watcher, terminal, lambda: work(runtime), feeds)

    before = signal.getsignal(signal.SIGINT)
    try:
        return anyio.run(_run_interruptible, opened, backend=backend)
    finally:
        signal.signal(
            signal.SIGINT, before
        )  # asyncio installs Python's own handler again, which would end in a traceback


async def _run_interruptible(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work`; a signal cancels it and becomes Interrupted."""
    came: list[int] = []
    async with background() as tasks:
        scope = anyio.CancelScope()
        await tasks.start(_listen, scope, came)
        with scope:
            return await work()
    raise Interrupted(came[0])


async def _listen(
    scope: anyio.CancelScope, came: list[int], *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(*list_ending_signals()) as signals:
        task_status.started()
        async for number in signals:
            if came:
                bare(sys.stderr).write("\x1b[?25h\n" if sys.stderr.isatty() else "")  # a live tree hides the cursor
                sys.stderr.flush()
                os._exit(128 + number)
            came.append(number)
            scope.cancel()
