"""Virtual time: jumps when all wait, keeps still otherwise, and runs with the real clock while a thread works."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from supervisors.testing import Stuck, virtual


async def test_hours_of_virtual_time_take_no_real_time() -> None:
    real, start = time.monotonic(), anyio.current_time()
    for seconds in (1, 2, 4, 8, 600, 3600):
        await anyio.sleep(seconds)
    assert anyio.current_time() - start == 4215
    assert time.monotonic() - real < 2


async def test_virtual_time_stands_still_while_code_runs() -> None:
    before = anyio.current_time()
    time.sleep(0.02)  # noqa: ASYNC251 - blocks on purpose
    await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == before


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    order: list[float] = []

    async def sleeper(seconds: float) -> None:
        await anyio.sleep(seconds)
        order.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (30, 10, 20):
            group.start_soon(sleeper, seconds)
    assert order == [10, 20, 30]


async def test_a_thread_that_works_is_not_overtaken_by_a_timeout() -> None:
    for _ in range(5):
        with anyio.fail_after(2):
            await anyio.to_thread.run_sync(time.sleep, 0.05)


async def test_threads_of_a_custom_limiter_count_as_working() -> None:
    with anyio.fail_after(2):
        await anyio.to_thread.run_sync(time.sleep, 0.05, limiter=anyio.CapacityLimiter(1))


async def test_a_thread_can_exceed_a_short_timeout() -> None:
    before, work = time.monotonic(), threading.Event()
    with anyio.move_on_after(0.05) as scope:
        await anyio.to_thread.run_sync(work.wait, 60, abandon_on_cancel=True)
    assert scope.cancelled_caught
    assert time.monotonic() - before < 30
    work.set()
    await anyio.sleep(100)


@pytest.mark.thread_rate(0.01)
async def test_a_thread_takes_less_virtual_time_when_its_rate_is_below_one() -> None:
    before, real = anyio.current_time(), time.monotonic()
    await anyio.to_thread.run_sync(time.sleep, 0.2)
    assert anyio.current_time() - before < (time.monotonic() - real) / 50
    assert time.monotonic() - real >= 0.2
    await anyio.sleep(100)
    assert anyio.current_time() - before == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_thread_rate_that_is_not_above_zero_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="expected a thread_rate above 0"):
        virtual("asyncio", thread_rate=rate)


async def test_many_threads_can_run_in_virtual_time() -> None:
    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(anyio.to_thread.run_sync, time.sleep, 0.01 * n)
        with anyio.fail_after(1):
            await anyio.lowlevel.checkpoint()
    start = anyio.current_time()
    await anyio.sleep(1000)
    assert anyio.current_time() - start == pytest.approx(1000, abs=0.1)


async def test_a_thread_that_waits_for_the_loop_lets_time_jump() -> None:
    def work() -> float:
        anyio.from_thread.run(anyio.sleep, 3600)
        return anyio.from_thread.run_sync(anyio.current_time)

    start = anyio.current_time()
    assert await anyio.to_thread.run_sync(work) - start >= 3600


async def test_executors_of_asyncio_count_as_working_threads(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("there is no executor on trio")
    async with asyncio.timeout(2):
        await asyncio.to_thread(time.sleep, 0.05)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="curio"):
        virtual("curio")


def test_virtual_time_works_outside_pytest() -> None:
    async def main() -> float:
        await anyio.sleep(86_400 * 3)
        return anyio.current_time()

    for backend in ("asyncio", "trio"):
        name, options = virtual(backend)
        assert anyio.run(main, backend=name, backend_options=options) == 86_400 * 3


def test_a_run_that_nothing_can_wake_fails_instead_of_hanging() -> None:
    async def main() -> None:
        await anyio.sleep(10)
        await anyio.Event().wait()

    for backend in ("asyncio", "trio"):
        name, options = virtual(backend, stuck_after=0.02)
        with pytest.raises(Stuck):
            anyio.run(main, backend=name, backend_options=options)


def test_a_run_that_an_outside_event_can_wake_continues() -> None:
    async def main() -> float:
        event = anyio.Event()
        token = anyio.lowlevel.current_token()
        threading.Timer(0.03, lambda: anyio.from_thread.run_sync(event.set, token=token)).start()
        await event.wait()
        await anyio.sleep(1000)
        return anyio.current_time()

    for backend in ("asyncio", "trio"):
        name, options = virtual(backend, stuck_after=5)
        assert anyio.run(main, backend=name, backend_options=options) == 1000
