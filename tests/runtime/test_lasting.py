"""Entities that last: invoke, send, stop (D-001), and forks of what they did."""

import anyio
import pytest

from cantrip_actors import EntityEnded, InvalidIntent, LoomError, Runtime, scripted
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say


@pytest.mark.rule("D-001")
async def test_a_second_send_sees_what_the_first_was_answered() -> None:
    crystal = scripted([done("one"), done("two"), {"content": "three"}])
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(crystal), "first", name="notes")
        assert (await entity.send("second")).result == "two"
        assert (await entity.send("third")).result == "three"
        await entity.stop()
        assert runtime.entity("notes") is None
    said = [(m.role, m.content) for m in crystal.invocations[2]]
    assert [content for role, content in said if role == "user"] == ["first", "second", "third"]
    assert [content for role, content in said if role == "tool"] == ["one", "two"]


@pytest.mark.rule("LOOP-4")
async def test_max_turns_counts_anew_for_each_send() -> None:
    def talk(ctx: object) -> object:
        return say("echo", text="x") if ctx[-1].role == "user" else done("ok")

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(talk, wards=(max_turns(3),)), "start")
        results = [(await entity.send(f"task {n}")).result for n in range(20)]
    assert results == ["ok"] * 20


async def test_sends_are_taken_in_order() -> None:
    async def slow(ctx: object) -> object:
        return {**done(ctx[-1].content), "delay": 1.0}

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip(slow), "start")
        order = []

        async def send(text: str) -> None:
            order.append((await entity.send(text)).result)

        async with anyio.create_task_group() as tasks:
            for text in "abcde":
                tasks.start_soon(send, text)
                await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.01)
    assert order == list("abcde")


async def test_a_send_to_an_entity_that_has_ended_says_so() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1)]), "start")
        await entity.stop()
        with pytest.raises(EntityEnded, match="has ended"):
            await entity.send("hello")


@pytest.mark.rule("INTENT-1")
async def test_a_send_without_an_intent_changes_nothing() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(cantrip([done(1), done(2)]), "start")
        with pytest.raises(InvalidIntent):
            await entity.send("")
        assert (await entity.send("more")).result == 2


async def test_a_name_belongs_to_one_entity_at_a_time() -> None:
    async with Runtime.open() as runtime:
        first = await runtime.invoke(cantrip([done(1)]), "start", name="x")
        with pytest.raises(InvalidIntent, match='"x"'):
            await runtime.invoke(cantrip([done(1)]), "start", name="x")
        assert runtime.entity("x").id == first.id


@pytest.mark.rule("LOOM-4", "INTENT-3")
async def test_a_fork_goes_on_from_a_turn_and_leaves_the_original_alone() -> None:
    branch_crystal = scripted([done("forked")])
    async with Runtime.open() as runtime:
        spell = cantrip([say("echo", text="A"), say("echo", text="B"), done("original")])
        episode = await runtime.cast(spell, "go")
        before = list(episode.thread)
        branch = await runtime.fork(episode.thread[0].id, intent="another way", crystal=branch_crystal)
        assert [turn.id for turn in branch.thread[:1]] == [before[0].id]
        assert len(branch.thread) == 2
        assert branch.result == "forked"
        assert runtime.loom.turns(episode.entity_id) == before
        assert list(runtime.loom.forks(before[0].id)) == [branch.entity_id]
    (seen,) = branch_crystal.invocations
    assert [m.content for m in seen if m.role == "user"] == ["go", "another way"]
    assert [m.content for m in seen if m.role == "tool"] == ["A"]


@pytest.mark.rule("LOOM-4")
async def test_forks_of_forks_keep_the_whole_path() -> None:
    async with Runtime.open() as runtime:
        crystal = scripted(lambda ctx: say("echo", text=str(len(ctx))) if len(ctx) < 6 else done(len(ctx)))
        episode = await runtime.cast(cantrip(crystal), "go")
        one = await runtime.fork(episode.thread[-1].id, intent="again")
        two = await runtime.fork(one.thread[-1].id, intent="and again")
    assert len(two.thread) == len(episode.thread) + 2
    assert [turn.sequence for turn in two.thread] == [1, 2, 3, 4, 1, 1][-len(two.thread) :]


async def test_a_fork_of_an_unknown_turn_says_so() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(LoomError):
            await runtime.fork("nowhere", intent="x")
