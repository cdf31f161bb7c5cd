"""Recorded calls, decisions and programs are bounded, and a recorded call does not change."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    EntityInterrupted,
    InvalidDecision,
    InvalidIntent,
    Response,
    Runtime,
    ToolCall,
    UnknownRequest,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Z-16")


def _done(answer: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


@pytest.mark.parametrize(
    "make",
    [
        lambda args: {"tool_calls": [{"gate": "pay", "args": args}]},
        lambda args: Response(None, (ToolCall("c1", "pay", args),)),
    ],
    ids=["mapping", "Response"],
)
async def test_a_recorded_call_stays_when_its_crystal_changes_what_it_returned(make: Callable[[Any], Any]) -> None:
    paid: list[Any] = []
    args: dict[str, Any] = {"to": {"names": ["anna"]}}

    @gate
    async def pay(to: dict[str, Any]) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    class Changing:
        async def invoke(self, messages: Any) -> Any:
            return make(args) if messages[-1].role == "user" else _done("paid")

    cantrip = Cantrip(Changing(), circle=Circle(["done", ask_first(pay)], [max_turns(3)]))
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(cantrip, "pay anna")
        while not (requests := runtime.requests()):
            await anyio.sleep(0.01)
        args["to"]["names"][0] = "mallory"
        args["amount"] = 99_999
        await runtime.decide(requests[0].id, "allow", by="anna")
        await entity.episode()
    assert paid == [{"names": ["anna"]}]


async def test_arguments_of_a_decision_have_the_bounds_of_a_call() -> None:
    @gate
    async def pay(to: str) -> str:
        """Pay somebody."""
        return to

    script = scripted([{"tool_calls": [{"gate": "pay", "args": {"to": "anna"}}]}, _done("paid")])
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(Cantrip(script, circle=Circle(["done", ask_first(pay)], [max_turns(3)])), "pay")
        while not (requests := runtime.requests()):
            await anyio.sleep(0.01)
        for value in ("x" * 10_000_000, [0] * 300_000):
            with pytest.raises(InvalidDecision, match="args: expected what one call may have, got more than"):
                await runtime.decide(requests[0].id, "allow", args={"to": value}, by="anna")
        for text in ({"note": "x" * 300_000}, {"by": "x" * 300_000}):
            with pytest.raises(InvalidDecision, match="expected a text of at most 262,144 characters, got 300,000"):
                await runtime.decide(requests[0].id, "allow", **{"by": "anna", **text})
        with pytest.raises(InvalidDecision, match="expected the name of the person"):
            await runtime.decide(requests[0].id, "allow", by="\u200b\u2060")
        with pytest.raises(UnknownRequest) as unknown:
            await runtime.decide("x" * 200_000, "allow", by="anna")
        assert len(str(unknown.value)) < 300
        await runtime.decide(requests[0].id, "allow", by="anna")
        assert (await entity.episode()).result == "paid"


async def test_a_message_to_steer_has_the_bound_of_an_intent() -> None:
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.ensure("bob", Cantrip(scripted([]), circle=Circle(["done"], [max_turns(1)])))
        with pytest.raises(InvalidIntent, match="steer: the text has 17,000,000 bytes: expected at most 16,777,216"):
            await entity.steer("x" * 17_000_000)


@pytest.mark.real_time
@pytest.mark.parametrize("medium", ["python", "javascript", "shell"])
async def test_a_program_of_millions_of_characters_is_refused_before_it_is_parsed(medium: str) -> None:
    cantrip = Cantrip(scripted([{"code": "1;" * 5_000_000}]), circle=Circle(["done"], [max_turns(1)], medium=medium))
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "go")
    assert "1,000,000 characters in one program" in str(episode.thread[-1].observations)


async def test_a_scripted_crystal_records_its_newest_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cantrip_actors.crystal.scripted"], "MOST_INVOCATIONS", 3)
    crystal = scripted(lambda context: _done(context[-1].content))
    cantrip = Cantrip(crystal, circle=Circle(["done"], [max_turns(1)]))
    async with Runtime.open("memory:") as runtime:
        for number in range(5):
            await runtime.cast(cantrip, str(number))
    assert [query[-1].content for query in crystal.invocations] == ["2", "3", "4"]


async def test_entities_of_equal_content_continue_with_the_cantrip_of_their_name(tmp_path: Path) -> None:
    def make(answer: str) -> Cantrip:
        return Cantrip(scripted([_done(answer)] * 9), circle=Circle(["done"], [max_turns(1)]), name=answer)

    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[make("red"), make("blue")]) as runtime:
        for cantrip in (make("red"), make("blue")):
            await runtime.ensure(f"the {cantrip.name} one", cantrip)
    async with Runtime.open(url, cantrips=[make("red"), make("blue")]) as runtime:
        for name in ("red", "blue"):
            entity = runtime.entity(f"the {name} one")
            assert (await entity.send("who are you?")).result == name


async def test_waiting_for_a_submission_that_nothing_continues_says_that_it_was_interrupted(tmp_path: Path) -> None:
    @gate
    async def wait() -> str:
        """Wait."""
        await anyio.sleep(60)
        return "waited"

    cantrip = Cantrip(
        scripted(lambda context: {"tool_calls": [{"gate": "wait", "args": {}}]}),
        circle=Circle(["done", wait], [max_turns(3)]),
        name="slow",
    )
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        first = await runtime.submit("slow", "go", key="k")
        while not runtime.loom.has_begun(first.entity_id):
            await anyio.sleep(0.1)
    async with Runtime.open(url) as runtime:  # it does not know the cantrip, so it cannot continue the entity itself
        again = await runtime.submit("slow", "go", key="k")
        with pytest.raises(EntityInterrupted, match="was interrupted, and nothing continues it"):
            await again.episode()
