"""The access to the store: only this file decides which calls run in the event loop and which in a thread.

Work is tried at once, as an attempt (`Store.attempt`). If it would wait or take long, it is done in a thread. While a
thread is at work there, no attempt is made: the event loop would wait for the interpreter at each statement.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import anyio

from cantrip_actors.loom.stores.store import Postponed, Store
from cantrip_actors.user_code.threads import run_to_end

T = TypeVar("T")

THREADS: Final = 8
"""Threads that read the store at once. More would only wait for the disk, or for a server's connection."""


class StoreAccess:
    """Runs the work of one runtime on its store.

    The threads are its own, because the threads of a service may all wait for the runtime.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = anyio.CapacityLimiter(THREADS)
        self._writer = anyio.CapacityLimiter(1)
        self._at_work = 0
        """The number of threads that are at work, or are about to be."""
        self._scrubbing = anyio.Lock(fast_acquire=True)
        self._deletions = self._scrubbed = 0
        """The number of calls of `scrub`, and of the newest one whose deletion is scrubbed."""

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, as `Store.attempt`. Raises Postponed."""
        if self._at_work:
            raise Postponed
        return self._store.attempt(work)

    def attempt_to_write(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which changes the store. Raises Postponed."""
        if self._store.blocking:
            raise Postponed
        return self.attempt(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which reads the store and makes at most one change, as its last use of it."""
        try:
            return self.attempt(work)
        except Postponed:
            pass
        return await self.run_in_thread(work)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may take long or make several changes."""
        return await self._run(work, self._readers)

    async def write(self, work: Callable[[], T]) -> T:
        """Return the result of `work` as `run` does, but one after the other, and also if the caller is cancelled.

        A thread completes its write, so its callers need the result.
        """
        try:
            return self.attempt_to_write(work)
        except Postponed:
            pass
        scope = anyio.CancelScope(shield=True)
        with scope:
            result = await self._run(work, self._writer)
        return result  # noqa: RET504  # mypy: a scope may end without its return

    async def scrub(self, lock_deletions: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """Free the store of the bytes of what was deleted before this call, as `Store.scrub`.

        It may rewrite the whole file, so calls that wait together share it: it begins after the deletions that already
        wait for their lock, which each deletion holds. Raises LoomError.
        """
        self._deletions += 1
        deletion = self._deletions
        async with self._scrubbing:
            if self._scrubbed < deletion:
                async with lock_deletions():
                    deletions = self._deletions
                    await self.run_in_thread(self._store.scrub)
                self._scrubbed = deletions

    async def close(self) -> None:
        """Close the store."""
        with anyio.CancelScope(shield=True):
            await self.run(self._store.close)

    async def _run(self, work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        self._at_work += 1
        try:
            return await run_to_end(work, limiter)
        finally:
            self._at_work -= 1
