"""Deep trees of entities and long chains of questions: they work, or are refused, and nothing else suffers."""

from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.gates import ask
from cantrip_actors.machine.life import Cause, LoadedLife, Stage, Standing, find_causes
from cantrip_actors.terms.child_cantrip import DEEPEST_LEVEL
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("Z-04")


def delegate(context: Any) -> Any:
    """Delegate without end; return what came back."""
    if context[-1].role == "tool":
        return done(context[-1].content)
    return say("call_agent", intent="deeper")


DEEP = Cantrip(scripted(delegate), circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1_000)]))
SHALLOW = Cantrip(scripted(lambda _context: done("here")), max_turns=1)


@pytest.mark.rule("COMP-6", "D-011")
async def test_children_nest_to_a_documented_depth_and_deeper_ones_are_refused() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(DEEP, "go")
        assert "entities nest at most 100 levels deep" in episode.result
        assert len(runtime.loom.subtree(episode.entity_id)) == DEEPEST_LEVEL + 1
        assert (await runtime.cast(SHALLOW, "go")).result == "here"


async def test_a_cancelled_tree_of_the_greatest_depth_ends_whole() -> None:
    async def delegate_and_rest(context: Any) -> Any:
        answer = delegate(context)
        return {**answer, "delay": 3_600.0} if context[-1].role == "tool" else answer

    deep = Cantrip(scripted(delegate_and_rest), circle=DEEP.circle)
    async with Runtime.open() as runtime:
        with anyio.move_on_after(600):
            await runtime.cast(deep, "go")
        (root, *below) = runtime.loom.entities()
        assert len(below) == DEEPEST_LEVEL
        assert {runtime.loom.state(entity_id) for entity_id in (root, *below)} <= {"cancelled", "parent_ended"}
        assert (await runtime.cast(SHALLOW, "go")).result == "here"


async def test_a_long_chain_of_entities_that_ask_each_other_is_answered() -> None:
    length = 60

    def pass_on(context: Any) -> Any:
        last = context[-1]
        if last.role == "tool":
            return done(last.content)
        number = int(last.content.split()[-1])
        return done("end") if number == length else say("ask", to=f"e{number + 1}", message=f"{number + 1}")

    circle = Circle(["done", ask.with_(to=["e*"])], [max_turns(5)])
    asker = Cantrip(scripted(pass_on), circle=circle)
    async with Runtime.open() as runtime:
        for number in range(length + 1):
            await runtime.ensure(f"e{number}", asker)
        first = runtime.entity("e0", cantrip=asker)
        assert first is not None
        assert (await first.send("0")).result == "end"


def test_the_causes_of_a_chain_of_any_length_are_found() -> None:
    standing = Standing(LoadedLife(Stage.WAITING, "person"))
    for number in range(10_000):
        if number % 2:
            standing = Standing(LoadedLife(Stage.WAITING, "entity"), answerer=standing)
        else:
            standing = Standing(LoadedLife(Stage.WAITING, "children"), children=[standing])
    assert find_causes(standing.children[0] if standing.children else standing) == {Cause.PERSON}
