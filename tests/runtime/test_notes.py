"""Notes: what a sender keeps with an intent for itself."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, InvalidIntent, KeyUsed, Runtime, scripted
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("W-01")

NOTE = {"form": ["a", 1, None]}


def repeating(seen: list[str]) -> Cantrip:
    def answer(context: Any) -> str:
        seen.extend(str(message.content) for message in context)
        return "yes"

    return Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(9)]), name="repeats")


async def test_a_note_is_found_with_its_work_and_is_in_no_context() -> None:
    seen: list[str] = []
    cantrip = repeating(seen)
    async with Runtime.open("memory:", cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "one", note=NOTE)
        first = entity.work
        await first.result()
        second = await entity.post("two", note="second", key="k")
        assert second.note == "second"  # while it waits, too
        await second.result()
        fork = await first.continue_with("three", note={"third": True})
        await fork.result()
        plain = await entity.post("four")
        await plain.result()
        notes = [runtime.work(work.id).note for work in (first, second, fork, plain)]  # type: ignore[union-attr]
        assert notes == [NOTE, "second", {"third": True}, None]
        assert not any("form" in text or "second" in text or "third" in text for text in seen)


async def test_a_repeated_call_with_another_note_is_refused() -> None:
    cantrip = repeating([])
    async with Runtime.open("memory:", cantrips=[cantrip]) as runtime:
        entity = await runtime.invoke(cantrip, "one", key="k", note=1)
        assert (await runtime.invoke(cantrip, "one", key="k", note=1)).id == entity.id
        with pytest.raises(KeyUsed):
            await runtime.invoke(cantrip, "one", key="k", note=2)
        await (await entity.post("two", key="p", note=1)).result()
        with pytest.raises(KeyUsed):
            await entity.post("two", key="p", note=2)


@pytest.mark.parametrize(
    ("note", "fault"), [(object(), "expected JSON data"), ("x" * 300_000, "at most 262,144 bytes")]
)
async def test_a_note_is_json_of_a_bounded_size(note: Any, fault: str) -> None:
    cantrip = repeating([])
    async with Runtime.open("memory:", cantrips=[cantrip]) as runtime:
        with pytest.raises(InvalidIntent, match=fault):
            await runtime.start(cantrip, "one", note=note)
        assert not runtime.loom.entities()


@pytest.mark.parametrize("note", [{"long": 2**70}, {"half": "\ud800"}])
async def test_a_note_is_any_json_that_the_loom_can_hold(note: Any) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("keeper", repeating([]))
        assert (await (await entity.post("go", note=note)).episode()).result == "yes"


async def test_a_number_that_json_cannot_say_is_refused() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("keeper", repeating([]))
        for parts in ({"note": [10**5000]}, {"context": [10**5000]}):
            with pytest.raises(InvalidIntent, match="expected JSON data"):
                await entity.post("go", **parts)
