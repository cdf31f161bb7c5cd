"""What observers learn when a server changes its lists; entities keep what they have."""

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, ServerChangedEvent, scripted
from cantrip_actors.mcp import inproc
from cantrip_actors.wards import max_turns
from tests.mcp.prompting import prompting
from tests.mcp.test_gates import ERAS, seen, spell
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("MCP-20")


def is_change(event: object) -> bool:
    return isinstance(event, ServerChangedEvent)


@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_list_is_an_event_of_each_entity_that_has_the_server(era: str) -> None:
    server = inproc("p", prompting(), era=era)  # type: ignore[arg-type]
    async with Runtime.open() as runtime:
        events = runtime.events(is_change)
        other = await runtime.invoke(spell(done("ok"), server=server), "go")
        stranger = await runtime.invoke(Cantrip(scripted([done("ok")]), circle=Circle(["done"], [max_turns(2)])), "go")
        await other.episode()
        await stranger.episode()
        entity = await runtime.invoke(spell(say("p__learn", word="x"), done("ok"), server=server), "go")
        await entity.episode()
        await anyio.sleep(3)
        events.close()
        told = [(one.entity_id, one.server, one.what) async for one in events]  # type: ignore[attr-defined]
    assert sorted(told) == sorted((id, "p", what) for id in (other.id, entity.id) for what in ("prompts", "tools"))


@pytest.mark.rule("MCP-08")
@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_tool_is_there_for_the_next_entity_only(era: str) -> None:
    server = inproc("p", prompting(), era=era)  # type: ignore[arg-type]
    async with Runtime.open() as runtime:
        first = await runtime.invoke(
            spell(say("p__learn", word="x"), done("ok"), say("p__x_tool"), done("ok"), server=server), "go"
        )
        await first.episode()
        gates = [[one["name"] for one in runtime.loom.header(first.id).circle["gates"]]]
        unknown = (await first.send("again")).thread[-2].observations[0]
        second = await runtime.cast(spell(say("p__x_tool"), done("ok"), server=server), "go")
        gates.append([one["name"] for one in runtime.loom.header(second.entity_id).circle["gates"]])
    assert gates == [["done", "p__learn"], ["done", "p__learn", "p__x_tool"]]
    assert unknown.is_error
    assert seen(second)[0] == ({"result": "This is x."}, False)


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_floods_with_changes_makes_few_events(era: str) -> None:
    server = inproc("p", prompting(), era=era)  # type: ignore[arg-type]
    async with Runtime.open() as runtime:
        events = runtime.events(is_change)
        outcome = await runtime.cast(spell(say("p__learn", word="x", times=500), done("ok"), server=server), "go")
        assert seen(outcome)[0] == ("learned", False)
        events.close()
        assert len([one async for one in events]) <= 4
