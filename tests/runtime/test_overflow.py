"""A context that a crystal refuses as too long: the entity folds once and asks again."""

from collections.abc import Awaitable, Callable

import pytest

from cantrip_actors import Cantrip, Circle, CrystalError, Episode, Folding, Message, Runtime, scripted
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-31", "PROD-4", "D-007")


class Narrow:
    """A crystal that refuses its third query, and answers `end` to the fourth, or refuses that too if it has none.

    An entity with the intent "delegate" has a child work on "go".
    """

    name = "narrow"

    def __init__(self, end: object) -> None:
        self.end = end
        self.queries = 0

    async def invoke(self, messages: list[Message], **_: object) -> object:
        if messages[0].content == "delegate":
            return say("call_agent", intent="go") if len(messages) == 1 else done(messages[-1].content)
        self.queries += 1
        if self.queries == 3 or (self.queries > 3 and self.end is None):
            error = CrystalError("the context is too long")
            error.overflows = True
            raise error
        return say("echo", text="x") if self.queries < 3 else self.end


async def cast(runtime: Runtime, cantrip: Cantrip) -> Episode:
    return await runtime.cast(cantrip, "go")


async def invoke(runtime: Runtime, cantrip: Cantrip) -> Episode:
    entity = await runtime.invoke(cantrip, "go", name="x")
    first = await entity.episode()
    assert (await entity.episode()).result == first.result
    return first


async def cast_a_parent(runtime: Runtime, cantrip: Cantrip) -> Episode:
    return await runtime.cast(cantrip, "delegate")


BEGINNINGS = [cast, invoke, cast_a_parent]


@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize("summary", [False, scripted(lambda _: "so far: x")], ids=["marker", "summary"])
async def test_an_overflow_that_a_fold_mends_returns_the_answer(
    begin: Callable[[Runtime, Cantrip], Awaitable[Episode]], summary: object
) -> None:
    crystal = Narrow(done("the answer"))
    circle = Circle(["done", "echo", "call_agent"], [max_turns(9), max_depth(1)])
    async with Runtime.open("memory:") as runtime:
        episode = await begin(runtime, Cantrip(crystal, circle=circle, folding=Folding(summary=summary)))
    assert (episode.result, crystal.queries) == ("the answer", 4)


async def test_an_episode_that_a_ward_ends_after_an_overflow_is_truncated() -> None:
    circle = Circle(["done", "echo"], [max_turns(3)])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(Narrow(say("echo", text="y")), circle=circle), "go")
    assert (episode.truncated, episode.ward) == (True, "max_turns")


async def test_an_overflow_that_the_fold_does_not_mend_is_the_error_of_the_cast() -> None:
    circle = Circle(["done", "echo"], [max_turns(9)])
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(CrystalError, match="too long"):
            await runtime.cast(Cantrip(Narrow(None), circle=circle), "go")
