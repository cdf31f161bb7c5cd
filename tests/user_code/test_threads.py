"""Threads that outlive their callers."""

from __future__ import annotations

import asyncio
import threading

import anyio

from cantrip_actors.user_code.threads import run_in_thread


def test_a_thread_that_is_left_behind_ends_with_its_work_although_its_loop_has_stopped() -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def work() -> None:
        threads.append(threading.current_thread())
        release.wait(60)

    async def leave() -> None:
        with anyio.move_on_after(0.05):
            await run_in_thread(work, anyio.CapacityLimiter(1), grace=0.05)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())  # and it is not closed yet
    release.set()
    threads[0].join(5)
    assert not threads[0].is_alive()
    loop.close()
