"""Whatever adds up times works after ten years of virtual time, on asyncio as on trio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from cantrip_actors import Cantrip, Circle, Companion, Quarantined, Retry, Runtime, ask_first, gate, scripted
from cantrip_actors.wards import max_turns, timeout
from supervisors.testing import VirtualLoop
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-15")

TEN_YEARS = 10 * 365.25 * 86_400


def jump(seconds: float) -> None:
    """Let virtual time pass, without running what is due meanwhile."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(seconds)
    else:
        assert isinstance(loop, VirtualLoop)
        loop.advance(seconds)


@pytest.mark.parametrize("seconds", [1e-6, 0.1, 1.0, 12_345.678])
async def test_a_sleep_ends_at_its_time(seconds: float) -> None:
    jump(TEN_YEARS)
    for _ in range(20):
        began = anyio.current_time()
        await anyio.sleep(seconds)
        assert anyio.current_time() - began == pytest.approx(seconds, abs=1e-6)


async def test_sleeping_for_ten_years_day_by_day_ends() -> None:
    for _ in range(10):
        await anyio.sleep(TEN_YEARS / 10)
    assert anyio.current_time() == pytest.approx(TEN_YEARS)


async def test_a_deadline_ends_a_wait() -> None:
    jump(TEN_YEARS)
    with anyio.move_on_after(3.5) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


async def unload(runtime: Runtime) -> None:
    cantrip = Cantrip(scripted(lambda _: done("kept")), circle=Circle(["done"], [max_turns(3)]), name="a")
    entity = await runtime.invoke(cantrip, "go", name="notes")
    await entity.episode()
    await anyio.sleep(400)
    assert not entity.loaded
    assert (await entity.send("again")).result == "kept"


async def exceed_a_timeout(runtime: Runtime) -> None:
    @gate
    async def dawdle() -> None:
        """Wait."""
        await anyio.sleep(3600)

    circle = Circle(["done", dawdle], [max_turns(3), timeout(30)])
    began = anyio.current_time()
    assert (await runtime.cast(Cantrip(scripted([say("dawdle")]), circle=circle), "go")).truncated
    assert anyio.current_time() - began == pytest.approx(30, abs=1)


async def retry_a_gate(runtime: Runtime) -> None:
    calls: list[int] = []

    @gate(idempotent=True, retry=Retry(on=(ConnectionError,), attempts=3))
    async def act() -> str:
        """Act."""
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return "acted"

    circle = Circle(["done", act], [max_turns(3)])
    assert (await runtime.cast(Cantrip(scripted([say("act"), done("over")]), circle=circle), "go")).result == "over"


async def end_a_quarantine(runtime: Runtime) -> None:
    broken = [True]

    class Diary(Companion):
        async def begins(self, here: Any) -> None:
            if broken[0]:
                raise ConnectionError("away")

    circle = Circle(["done"], [max_turns(3)], companion=Diary())
    entity = await runtime.invoke(Cantrip(scripted(lambda _: done("well")), circle=circle), "go", name="ill")
    with pytest.raises(Quarantined):
        await entity.episode()
    broken[0] = False
    await anyio.sleep(610)
    assert (await entity.send("again")).result == "well"


async def fire_a_schedule(runtime: Runtime) -> None:
    cantrip = Cantrip(scripted(lambda _: done("fired")), circle=Circle(["done"], [max_turns(3)]), name="clock")
    entity = await runtime.invoke(cantrip, "go", name="clock")
    await entity.episode()
    await runtime.schedule("clock", "tick", every=60.0)
    await anyio.sleep(185)
    assert len(runtime.loom.turns(entity.id)) in (3, 4)


async def expire_a_request(runtime: Runtime) -> None:
    @gate
    async def pay() -> str:
        """Pay."""
        return "paid"

    circle = Circle(["done", ask_first(pay, expires=100.0)], [max_turns(3)])
    began = anyio.current_time()
    await runtime.cast(Cantrip(scripted([say("pay"), done("over")]), circle=circle), "go")
    assert anyio.current_time() - began == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    "use", [unload, exceed_a_timeout, retry_a_gate, end_a_quarantine, fire_a_schedule, expire_a_request]
)
async def test_a_runtime_counts_seconds_as_on_its_first_day(use: Callable[[Runtime], Awaitable[None]]) -> None:
    jump(TEN_YEARS)
    async with Runtime.open() as runtime:
        with anyio.fail_after(5000):
            await use(runtime)
