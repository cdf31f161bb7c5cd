"""Children: nested subtrees, their outcomes as observations, cancellation downwards, usage upwards."""

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, EntityStartedEvent, Runtime, gate, scripted
from cantrip_actors.wards import max_depth, max_tokens, max_turns, timeout
from tests.runtime.spells import done, forever, say

DELEGATES = ["done", "echo", "call_agent", "call_agent_batch"]


def family(parent: object, child: object, *gates: object, wards: tuple[object, ...] = (), **parts: object) -> Cantrip:
    circle = Circle([*DELEGATES, *gates], [max_turns(10), *wards])
    return Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child), **parts)


@pytest.mark.rule("COMP-2", "COMP-5", "LOOM-8")
async def test_a_child_answers_its_parent_and_hangs_below_its_turn() -> None:
    both = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "compute"}}, *done("over")["tool_calls"]]}
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([both], [done(42)]), "go")
        parent = runtime.loom.turns(episode.entity_id)
        (child_id,) = runtime.loom.children(parent[0].id)
        (child,) = runtime.loom.turns(child_id)
        assert [turn.parent_id for turn in parent] == [None, parent[0].id]
        assert child.parent_id == parent[0].id
        assert parent[0].gate_calls == ()
        assert [(o.gate, o.result) for o in parent[1].gate_calls] == [("call_agent", 42), ("done", "over")]
        assert parent[1].utterance_id == parent[0].id
        assert parent[0].children == (child_id,)


@pytest.mark.rule("COMP-3")
async def test_batch_children_run_at_the_same_time_and_answer_in_order() -> None:
    ask = say("call_agent_batch", intents=[{"intent": f"{n}"} for n in range(8)])
    child = [{**done(n), "delay": 10.0 - n} for n in range(8)]
    async with Runtime.open() as runtime:
        began = anyio.current_time()
        episode = await runtime.cast(family([ask, done("over")], child), "go")
        assert anyio.current_time() - began == pytest.approx(10.0, abs=1)
    assert episode.thread[1].gate_calls[0].result == list(range(8))


@pytest.mark.rule("COMP-8", "D-011")
async def test_a_child_that_fails_or_hangs_does_not_affect_its_siblings() -> None:
    ask = say("call_agent_batch", intents=[{"intent": "a"}, {"intent": "b"}, {"intent": "c", "timeout": 5}, "d", "e"])

    def child(ctx: object) -> object:
        match ctx[0].content:
            case "b":
                return {"content": None}
            case "c":
                return say("hang")
            case other:
                return done(other.upper())

    @gate
    async def hang() -> str:
        """Never answer."""
        await anyio.sleep_forever()
        return ""

    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([ask, done("over")], child, hang), "go")
    (seen,) = episode.thread[1].gate_calls
    assert [seen.result[0], *seen.result[3:]] == ["A", "D", "E"]
    assert "neither content nor tool_calls" in seen.result[1]["error"]
    assert "timeout(5)" in seen.result[2]["error"]
    assert episode.result == "over"


@pytest.mark.rule("COMP-1")
async def test_a_gate_that_the_parent_lacks_is_not_granted_and_no_child_runs() -> None:
    ask = say("call_agent", intent="sub", gates=["fetch"])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([ask, done("over")], [done(1)]), "go")
        assert 'cannot grant gate "fetch"' in episode.thread[0].observation
        assert len(runtime.loom.entities()) == 1


@pytest.mark.rule("COMP-4")
async def test_a_child_has_its_own_context() -> None:
    child = scripted([done(1)])
    spell = Cantrip(
        scripted([say("echo", text="secret"), say("call_agent", intent="sub", context={"k": 1}), done(2)]),
        circle=Circle(DELEGATES, [max_turns(9)]),
        child_crystal=child,
    )
    async with Runtime.open() as runtime:
        await runtime.cast(spell, "go")
    assert [m.content for m in child.invocations[0]] == ["sub", 'context:\n{"k":1}']


@pytest.mark.rule("COMP-6")
async def test_delegation_stops_at_the_depth_of_the_ward() -> None:
    def deeper(ctx: object) -> object:
        if len(ctx) == 1 and any(tool.name == "call_agent" for tool in ctx.tools):
            return say("call_agent", intent="deeper")
        return done(ctx[-1].content)

    spell = Cantrip(scripted(deeper), circle=Circle(DELEGATES, [max_turns(9), max_depth(3)]))
    async with Runtime.open() as runtime:
        await runtime.cast(spell, "go")
        depths = [runtime.loom.header(entity).depth for entity in runtime.loom.entities()]
    assert sorted(depths) == [0, 1, 2, 3]


@pytest.mark.rule("PROD-3")
async def test_usage_counts_for_the_entity_and_for_its_subtree() -> None:
    paid = {"usage": {"prompt_tokens": 10, "completion_tokens": 1}}
    async with Runtime.open() as runtime:
        spell = family([{**say("call_agent", intent="a"), **paid}, {**done(1), **paid}], [{**done(2), **paid}])
        episode = await runtime.cast(spell, "go")
    assert episode.usage.total_tokens == 22
    assert episode.subtree_usage.total_tokens == 33


@pytest.mark.rule("PROD-3")
async def test_a_childs_tokens_use_up_its_parents_budget() -> None:
    def child(_: object) -> object:
        return {**say("echo", text="x"), "usage": {"prompt_tokens": 50, "completion_tokens": 0}}

    async with Runtime.open() as runtime:
        spell = family([say("call_agent", intent="a"), done(1)], child, wards=(max_tokens(120),))
        episode = await runtime.cast(spell, "go")
        _, child_id = runtime.loom.subtree(episode.entity_id)
        assert len(runtime.loom.turns(child_id)) == 3
    assert (episode.truncated, episode.ward) == (True, "max_tokens")


async def test_cancelling_a_parent_stops_its_subtree_with_the_reason() -> None:
    async with Runtime.open() as runtime:
        spell = family([say("call_agent_batch", intents=["a", "b"]), done(1)], forever)
        with anyio.move_on_after(3.5):
            await runtime.cast(spell, "go")
        states = {entity: runtime.loom.state(entity) for entity in runtime.loom.entities()}
        reasons = [runtime.loom.records(entity)[-1].reason for entity in states]
    assert sorted(reasons) == ["cancelled", "parent_ended", "parent_ended"]


async def test_a_parents_timeout_ends_its_child_with_that_reason() -> None:
    async with Runtime.open() as runtime:
        spell = family([say("call_agent", intent="a")], forever, wards=(timeout(2.5),))
        episode = await runtime.cast(spell, "go")
        _, below = runtime.loom.subtree(episode.entity_id)
        assert runtime.loom.records(below)[-1].reason == "timeout"
    assert episode.ward == "timeout"
    assert "stopped" in episode.thread[-1].observation


@pytest.mark.rule("COMP-8")
async def test_a_child_that_crashes_is_an_error_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_actors.runtime.entity.performer import Performer

    whole = Performer._ask

    async def buggy(self: Performer, action: object) -> object:
        if self._cell.parent is not None:
            raise ZeroDivisionError("a bug")
        return await whole(self, action)

    monkeypatch.setattr(Performer, "_ask", buggy)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([say("call_agent", intent="a"), done("on")], [done(1)]), "go")
    (seen,) = episode.thread[1].gate_calls
    assert seen.is_error
    assert "a bug" in seen.content
    assert episode.result == "on"


@pytest.mark.rule("D-002")
async def test_the_old_names_of_the_delegation_gates_still_work() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(family([say("call_entity", intent="a"), done("on")], [done(7)]), "go")
    assert episode.thread[1].gate_calls[0].gate == "call_agent"
    assert episode.thread[1].gate_calls[0].result == 7


async def test_children_name_their_parent() -> None:
    async with Runtime.open() as runtime:
        seen = runtime.events(lambda event: isinstance(event, EntityStartedEvent))
        episode = await runtime.cast(family([say("call_agent", intent="a"), done("on")], [done(7)]), "go")
        seen.close()
        started = [event async for event in seen]
    assert [(event.intent, event.depth) for event in started] == [("go", 0), ("a", 1)]
    assert started[1].parent_entity == episode.entity_id
    assert started[1].parent_turn == episode.thread[0].id
