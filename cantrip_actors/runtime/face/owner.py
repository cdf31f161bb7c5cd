"""The owner of a runtime that is opened in one task and closed in another.

A runtime is a tree of tasks in a task group, and only the task that entered a task group may leave it. `async with`
follows this rule. Fixtures, notebook cells and application frameworks often open in one task and close in another; for
them a separate task, the owner, enters the runtime and leaves it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import Any

import anyio

from supervisors.waiting import find_event_loop, wait_uninterrupted


class Owner:
    """A task that enters a context manager on `open` and leaves it on `close`."""

    def __init__(self, managed: AbstractAsyncContextManager[Any]) -> None:
        self._managed = managed
        self._is_open = anyio.Event()
        self._closes = anyio.Event()
        self._is_over = anyio.Event()
        self._error: BaseException | None = None
        self._task: object = None
        """A reference to the task: asyncio does not keep a task alive by itself."""

    async def open(self) -> None:
        """Enter the context manager, and raise its errors. If the caller is cancelled meanwhile, leave it again."""
        trio: Any = sys.modules.get("trio")  # a program that runs on trio has imported it
        if trio is not None and trio.lowlevel.in_trio_task():
            trio.lowlevel.spawn_system_task(self._run, context=copy_context())
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="cantrip_actors runtime")
        try:
            await self._is_open.wait()
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            self._closes.set()
            await self._wait_for_end()
            raise
        if self._is_over.is_set():
            self._raise()

    async def close(self, *, from_within: bool = False) -> None:
        """Leave the context manager, wait until that is done, and raise its errors.

        A caller `from_within`, which leaving cancels and waits for, is cancelled while it waits here.
        """
        self._closes.set()
        if from_within:
            await self._is_over.wait()
        elif (interrupt := await self._wait_for_end()) is not None:
            raise interrupt
        self._raise()

    async def _wait_for_end(self) -> BaseException | None:
        """Wait until the runtime has closed; return the interrupt that the caller then raises."""
        return await wait_uninterrupted(find_event_loop(), self._is_over.is_set, self._is_over.wait)

    async def _run(self) -> None:
        try:
            async with self._managed:
                self._is_open.set()
                await self._closes.wait()
        except Exception as error:  # `open` and `close` raise it: a system task of trio must not
            self._error = error
        finally:
            self._is_over.set()
            self._is_open.set()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
