"""A companion or a step around a gate that cannot reach its service: its entity waits, without a crash."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Companion, Folding, Runtime, Unavailable, ask_first, gate, scripted, wrap
from cantrip_actors.wards import max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-11")


class Service:
    """A service that cannot be reached `failures` times, for ten seconds each; `times` are those of the uses."""

    def __init__(self, place: str, failures: int) -> None:
        self.place, self.failures = place, failures
        self.times: list[float] = []

    async def use(self, place: str) -> None:
        if place != self.place:
            return
        self.times.append(anyio.current_time())
        if len(self.times) <= self.failures:
            raise Unavailable("the ledger is away", retry_after=10.0)


class Ledger(Companion):
    def __init__(self, service: Service) -> None:
        self.service = service

    async def begins(self, here: Any) -> None:
        await self.service.use("begins")

    async def recalls(self, here: Any, last: int) -> None:
        await self.service.use("recalls")

    async def ends(self, here: Any, outcome: Any) -> None:
        await self.service.use("ends")


def make_cantrip(service: Service, calls: list[str]) -> Cantrip:
    @gate
    async def act() -> str:
        """Act."""
        calls.append("act")
        return "acted"

    async def before(site: Any) -> None:
        await service.use("before")

    async def after(site: Any, seen: Any) -> None:
        await service.use("after")

    async def must_ask(args: Any) -> bool:
        await service.use("condition")
        return False

    wrapped = ask_first(wrap(act, pre=[before], post=[after]), when=must_ask)
    crystal = scripted([say("act"), say("act"), say("act"), done("well")])
    circle = Circle(["done", wrapped], [max_turns(9)], companion=Ledger(service))
    return Cantrip(crystal, circle=circle, folding=Folding(trigger_after_turns=2), name="agent")


@pytest.mark.parametrize("place", ["begins", "recalls", "ends", "before", "after", "condition"])
async def test_an_entity_waits_while_a_service_beside_it_is_unavailable(place: str) -> None:
    service, calls = Service(place, failures=2), []
    async with Runtime.open() as runtime:
        episode = await runtime.cast(make_cantrip(service, calls), "go")
        restarts = [report for report in runtime.inspect().tree.walk() if report.restarts]
    assert (episode.result, calls) == ("well", ["act"] * 3)
    assert not any(observation.is_error for turn in episode.thread for observation in turn.gate_calls)
    first = service.times[0]
    assert [time - first for time in service.times[:3]] == pytest.approx([0, 10, 20], abs=1)
    assert not restarts


@pytest.mark.parametrize("place", ["begins", "recalls", "before"])
async def test_an_entity_that_waits_for_a_service_can_be_interrupted(place: str) -> None:
    service = Service(place, failures=1_000_000)
    cantrip = make_cantrip(service, [])
    async with Runtime.open(cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "go", name="notes")
        await anyio.sleep(95)
        with anyio.fail_after(5):
            await entity.interrupt("enough", now=True)
            assert (await entity.episode()).reason == "interrupted"
        service.failures = 0
        assert (await entity.send("again")).terminated


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "10", None])
def test_a_wait_has_to_be_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ValueError, match="a positive number of seconds"):
        Unavailable(retry_after=seconds)
