"""In virtual time the loom's time of day passes, too: records, budgets, keys and retention see the days of a test."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from cantrip_actors import AllowanceSpent, Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import Ward, max_calls, max_cost, max_turns, timeout
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-15")

DAY = 86_400.0


@gate(idempotent=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def make_desk(*wards: Ward) -> Cantrip:
    """Return a cantrip that pays once for each intent, and spends half a dollar in each of two queries."""

    def answer(context: Any) -> dict[str, object]:
        reply = say("pay") if context[-1].role == "user" else done(context[-1].content)
        return {**reply, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.5}}

    return Cantrip(scripted(answer), circle=Circle(["done", pay], [max_turns(9), *wards]), name="desk")


async def test_the_spending_of_each_day_is_a_row_of_its_own() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", make_desk())
        for _ in range(3):
            await entity.send("pay")
            await anyio.sleep(DAY)
        assert [row.usage.cost for row in await entity.spending(per="day")] == [1, 1, 1]


async def test_a_limit_of_calls_a_day_counts_anew_each_day_also_after_unloading() -> None:
    async with Runtime.open(passivate_after=5) as runtime:
        entity = await runtime.ensure("desk", make_desk(max_calls("pay", 1, per="day")))
        results = []
        for _ in range(3):
            for _ in range(2):
                results.append((await entity.send("pay")).result == "paid")
                await anyio.sleep(60)
                assert not entity.loaded
            await anyio.sleep(DAY)
    assert results == [True, False] * 3


async def test_a_budget_of_a_day_that_was_spent_yesterday_is_whole_today_after_unloading() -> None:
    async with Runtime.open(passivate_after=5) as runtime:
        entity = await runtime.ensure("desk", make_desk(max_cost(1.0, per="day")))
        for _ in range(3):
            began = anyio.current_time()
            await entity.send("pay")
            assert anyio.current_time() - began < 5
            await anyio.sleep(DAY)


async def test_an_allowance_of_a_day_is_whole_on_the_next_one() -> None:
    async with Runtime.open() as runtime:
        runtime.set_allowance(1.0, by="anna")
        for _ in range(2):
            await runtime.cast(make_desk(), "pay", by="anna")
            with pytest.raises(AllowanceSpent):
                await runtime.cast(make_desk(), "pay", by="anna")
            await anyio.sleep(DAY)


async def test_a_timeout_counts_the_time_before_a_restart() -> None:
    @gate(idempotent=True)
    async def dawdle() -> None:
        """Wait."""
        await anyio.sleep(50)

    circle = Circle(["done", dawdle], [max_turns(99), timeout(120)])
    cantrip = Cantrip(scripted(lambda _: say("dawdle")), circle=circle, name="slow")

    async def program(process: Process) -> str | None:
        async with process.attach(Runtime.open(cantrips=[cantrip], recover="resume")) as runtime:
            return (await runtime.cast(cantrip, "go", key="once")).ward

    began = anyio.current_time()
    assert (await run_with_crashes(program, [Crash(after=80)])).value == "timeout"
    assert anyio.current_time() - began == pytest.approx(120, abs=1)


async def test_pruning_forgets_only_entities_that_ended_long_ago() -> None:
    async with Runtime.open() as runtime:
        old = await runtime.cast(make_desk(), "pay")
        await anyio.sleep(8 * DAY)
        new = await runtime.cast(make_desk(), "pay")
        await anyio.sleep(2 * DAY)
        await runtime.prune("9d")
        states = [runtime.loom.state(episode.entity_id) for episode in (old, new)]
    assert states == ["forgotten", "terminated"]


async def test_keys_are_kept_for_a_week_after_the_episode() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("desk", make_desk())
        await anyio.sleep(8 * DAY)
        await entity.send("pay", key="bill")
        await anyio.sleep(6 * DAY)
        await entity.send("pay", key="bill")
        assert len(runtime.loom.turns(entity.id)) == 2
        await entity.send("pay", key="coffee")  # the newest mail keeps its key
        await anyio.sleep(2 * DAY)
        await entity.send("pay", key="bill")
        assert len(runtime.loom.turns(entity.id)) == 6
