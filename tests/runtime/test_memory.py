"""What a caller changes in the memory of an entity: `undo` goes back before the last intent, `compact` folds now."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    Companion,
    EntityEnded,
    Folding,
    Here,
    InvalidIntent,
    Message,
    Pinned,
    Runtime,
    scripted,
)
from cantrip_actors.loom import verify_loom
from cantrip_actors.machine.project import drop_undone, get_committed_turn
from cantrip_actors.records.records import Steered
from cantrip_actors.terms.messages import Usage
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_turns
from tests.runtime.spells import cantrip, done, say

pytestmark = pytest.mark.rule("V-07")


def answer(context: Sequence[Message]) -> object:
    """Answer with the number of messages, after one call of echo."""
    if context[-1].role == "tool":
        return done(f"saw {len(context)}")
    return say("echo", text=context[-1].content or "")


def intents(context: Sequence[Message]) -> list[str]:
    return [message.content or "" for message in context if message.role == "user"]


class TestUndo:
    async def test_undo_goes_back_to_before_the_last_intent(self) -> None:
        crystal = scripted(answer)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            first = await entity.episode()
            await entity.send("two")
            await entity.send("three")
            assert await entity.undo()
            assert await entity.undo()
            again = await entity.send("four")
            assert intents(crystal.invocations[-1]) == ["one", "four"]
            assert again.result == "saw 8"
            assert [turn.id for turn in again.thread[:2]] == [turn.id for turn in first.thread]
            assert len(again.thread) == 4
            assert len(runtime.loom.turns(entity.id)) == 8  # the old branch stays
            assert [turn.sequence for turn in runtime.loom.turns(entity.id)] == [*range(1, 9)]
            assert [turn.sequence for turn in runtime.loom.turns(entity.id) if turn.undone] == [3, 4, 5, 6]
            pages = [runtime.loom.list_turns(entity.id, after=after, limit=3) for after in (0, 3, 6)]
            assert [turn.sequence for page in pages for turn in page if turn.undone] == [3, 4, 5, 6]

    @pytest.mark.parametrize("steps", ["u", "su", "suu", "susu", "suussu", "ssuusus", "sfu", "sfsuu", "suuu"])
    async def test_the_turns_that_are_marked_are_those_that_the_context_does_not_have(self, steps: str) -> None:
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(answer), "begin", name="n")
            await entity.episode()
            for number, step in enumerate(steps):
                if step == "s":
                    await entity.send(f"intent {number}")
                elif step == "u":
                    await entity.undo()
                else:
                    newest = runtime.loom.turns(entity.id)[-1].id
                    entity = await runtime.start_fork(newest, intent="fork", lasting=True)
                    await entity.episode()
            turns, records = runtime.loom.turns(entity.id), drop_undone(runtime.loom.records(entity.id))
            in_force = {get_committed_turn(record) for record in records} - {None}
            assert {turn.id for turn in turns if not turn.undone} == in_force
            pages = [runtime.loom.list_turns(entity.id, after=turn.sequence - 1, limit=1) for turn in turns]
            assert [turn for page in pages for turn in page] == turns

    async def test_an_undone_branch_can_be_forked(self) -> None:
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(answer), "one", name="n")
            await entity.episode()
            old = await entity.send("two")
            await entity.undo()
            new = await entity.send("three")
            crystal = scripted(answer)
            for thread, before in ((old.thread, "two"), (new.thread, "three")):
                await runtime.fork(thread[-1].id, intent="four", cantrip=cantrip(crystal))
                assert intents(crystal.invocations[-1]) == ["one", before, "four"]

    async def test_all_intents_can_be_undone_and_no_more(self) -> None:
        crystal = scripted(answer)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            assert [await entity.undo() for _ in range(3)] == [True, False, False]
            assert (await entity.send("two")).result == "saw 3"
            assert intents(crystal.invocations[-1]) == ["two"]

    @pytest.mark.parametrize("is_unloaded", [False, True])
    async def test_an_undo_survives_unloading_and_restarts(self, tmp_path: Any, is_unloaded: bool) -> None:
        url, crystal = f"sqlite:{tmp_path}/loom.db", scripted(answer)
        offered = cantrip(crystal, name="c")
        async with Runtime.open(url, cantrips=[offered]) as runtime:
            entity = await runtime.invoke(offered, "one", name="n")
            await entity.episode()
            await entity.send("two")
        async with Runtime.open(url, cantrips=[offered]) as runtime:
            entity = runtime.entity("n") if is_unloaded else await runtime.resume(runtime.entity("n").id)
            assert await entity.undo(key="k")
            assert await entity.undo(key="k")  # the same one
        async with Runtime.open(url, cantrips=[offered]) as runtime:
            await runtime.entity("n").send("three")
        assert intents(crystal.invocations[-1]) == ["one", "three"]

    async def test_undo_interrupts_the_episode_under_way(self) -> None:
        async def policy(context: Sequence[Message]) -> object:
            return {**done("late"), "delay": 1e6 if context[-1].content == "two" else 0.0}

        crystal = scripted(policy)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            receipts = [await entity.post(intent) for intent in ("two", "three")]
            await anyio.sleep(1)
            assert await entity.undo()
            assert [(await receipt.episode()).ward or "" for receipt in receipts]
            assert intents(crystal.invocations[-1]) == ["one", "three"]

    async def test_the_usage_of_undone_turns_stays_counted(self) -> None:
        usage = Usage(10, 5)
        crystal = scripted(lambda _: {**done("ok"), "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            await entity.send("two")
            await entity.undo()
            episode = await entity.send("three")
            assert runtime.loom.usage(entity.id) == usage + usage + usage
            assert episode.usage.total_tokens == 45

    async def test_the_sandbox_is_as_it_was_before_the_intent(self) -> None:
        says = [
            {"code": "n = 1\ndone(n)"},
            {"code": "n = 2\ndone(n)"},
            {"code": "done(n)"},
        ]
        circle = Circle(["done"], [max_turns(9)], medium="python")
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(Cantrip(scripted(says), circle=circle), "one", name="n")
            await entity.episode()
            await entity.send("two")
            await entity.undo()
            assert (await entity.send("three")).result == 1

    async def test_a_one_shot_entity_cannot_be_undone(self) -> None:
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(cantrip(answer), "one")
            with pytest.raises(InvalidIntent, match="undo: this entity was cast"):
                await runtime.find(episode.entity_id).undo()


@pytest.mark.parametrize("recorded", [False, True], ids=["not written", "written"])
async def test_a_program_crashed_at_each_write_changes_the_memory_once(recorded: bool) -> None:
    crystal = scripted(lambda context: done(", ".join(intents(context))))
    clerk = cantrip(crystal, name="clerk")

    async def program(process: Process) -> str | None:
        async with process.attach(Runtime.open("memory:", cantrips=[clerk], recover="resume")) as runtime:
            entity = await runtime.invoke(clerk, "one", name="n", key="begin")
            for key in ("two", "three", "four"):
                await entity.send(key, key=key)
            assert await entity.undo(key="undo")
            assert await entity.compact(key="compact")
            return (await entity.send("five", key="five")).result

    write = 1
    while (survived := await run_with_crashes(program, [Crash(write, recorded)])).crashes:
        assert survived.value == "one, [folded: turns 1-2], three, five"
        write += 1
    assert write > 12
    assert survived.value == "one, [folded: turns 1-2], three, five"


class TestCompact:
    async def test_compact_folds_an_idle_entity_at_once(self) -> None:
        crystal = scripted(answer)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            for n in range(4):
                await entity.send(f"more {n}")
            assert await entity.compact()
            folds = [record for record in runtime.loom.records(entity.id) if type(record).__name__ == "Folded"]
            assert [(fold.first, fold.last, fold.marker) for fold in folds] == [(1, 6, "[folded: turns 1-6]")]
            await entity.send("last")
        assert "[folded: turns 1-6]" in intents(crystal.invocations[-1])
        assert "more 0" not in intents(crystal.invocations[-1])

    async def test_a_crystal_obeys_the_instructions(self) -> None:
        def policy(context: Sequence[Message]) -> object:
            if (context[0].content or "").startswith("You keep an agent's memory"):
                return {"content": "Anna lives in Oslo."}
            return answer(context)

        crystal = scripted(policy)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            assert await entity.compact("Keep all addresses.")
            await entity.send("two")
        asked = next(context for context in crystal.invocations if context[0].role == "system")
        assert (asked[0].content or "").endswith("Keep all addresses.")
        assert "[folded: turns 1-1]\nAnna lives in Oslo." in intents(crystal.invocations[-1])

    async def test_blank_instructions_ask_no_crystal_for_a_summary(self) -> None:
        crystal = scripted(answer)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip(crystal), "one", name="n")
            await entity.episode()
            asked = len(crystal.invocations)
            assert await entity.compact(" ")
            assert len(crystal.invocations) == asked
            await entity.send("two")
        assert "[folded: turns 1-1]" in intents(crystal.invocations[-1])

    async def test_there_may_be_nothing_to_fold(self) -> None:
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.ensure("n", cantrip(lambda _: done("ok")))
            assert not await entity.compact()
            await entity.send("one")
            assert not await entity.compact("Keep all.")
            assert (await entity.send("two")).result == "ok"

    async def test_an_entity_asks_for_it_with_the_gate(self) -> None:
        says = [say("compact"), *[say("echo", text="x")] * 3, say("compact", instructions="Keep x."), done("ok")]

        def policy(context: Sequence[Message]) -> object:
            if (context[0].content or "").startswith("You keep an agent's memory"):
                return {"content": "x"}
            return says.pop(0)

        crystal = scripted(policy)
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(cantrip(crystal, "compact"), "go")
        refused, *_, folded, _ = [turn.observations[0] for turn in episode.thread]
        assert refused.is_error
        assert "there is nothing to fold" in refused.result
        assert folded.result == "your older turns are folded now"
        assert intents(crystal.invocations[-1]) == ["go", "[folded: turns 1-1]\nx"]

    @pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
    async def test_an_entity_that_ends_as_soon_as_it_has_asked_for_a_fold_leaves_no_mail(
        self, kind: str, tmp_path: Any
    ) -> None:
        last = {"tool_calls": [*say("compact", instructions="Keep x.")["tool_calls"], *done("ok")["tool_calls"]]}
        url, says = f"{kind}:{'' if kind == 'memory' else tmp_path / 'loom'}", [say("echo", text="x")] * 2
        async with Runtime.open(url) as runtime:
            for _ in range(2):
                episode = await runtime.cast(cantrip(scripted([*says, last]), "compact"), "go")
                assert episode.result == "ok"
                assert runtime.loom.state(episode.entity_id) == "terminated"
                assert list(runtime._tree.store.pending(episode.entity_id)) == []
                assert verify_loom(runtime._tree.store).ok

    @pytest.mark.parametrize("is_direct", [True, False])
    async def test_mail_for_an_entity_that_has_just_ended_fails_its_sender_and_not_the_loom(
        self, is_direct: bool
    ) -> None:
        async with Runtime.open("memory:") as runtime:
            ended = await runtime.cast(cantrip(lambda _: done("ok")), "go")
            sender = await runtime.ensure("n", cantrip(lambda _: done("ok")))
            tree = runtime._tree
            mail = tree.inboxes.make_mail(ended.entity_id, "steer", {"text": "late"}, key="k")
            if not is_direct:
                tree.loom_actor = None
            with pytest.raises(EntityEnded):
                await tree.append([Steered(sender.id, "told it", "2026-11-30T12:00:00.000Z")], outgoing=[mail])
            assert (await sender.send("one")).result == "ok"

    async def test_a_fold_that_was_asked_for_survives_a_restart(self, tmp_path: Any) -> None:
        url, crystal = f"sqlite:{tmp_path}/loom.db", scripted(answer)
        offered = cantrip(crystal, name="c", folding=Folding(9))
        async with Runtime.open(url, cantrips=[offered]) as runtime:
            entity = await runtime.invoke(offered, "one", name="n")
            await entity.episode()
            await entity.send("two")
        async with Runtime.open(url, cantrips=[offered]) as runtime:
            assert await runtime.entity("n").compact(key="k")
            assert await runtime.entity("n").compact(key="k")
            await runtime.entity("n").send("three")
        assert [text for text in intents(crystal.invocations[-1]) if "folded" in text] == ["[folded: turns 1-2]"]


@pytest.mark.rule("Y-31")
class TestPinned:
    async def test_pinned_messages_of_a_person_and_a_companion_survive_folds(self) -> None:
        class Memory(Companion):
            async def begins(self, here: Here) -> str | None:
                return Pinned("The guest is Anna.")

        crystal = scripted(answer)
        circle = Circle(["done", "echo"], [max_turns(9)], companion=Memory())
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(Cantrip(crystal, circle=circle, folding=Folding(2)), "one", name="n")
            await entity.episode()
            await entity.steer("Pay in euros.", pin=True)
            await entity.steer("Hurry.")
            for n in range(5):
                await entity.send(f"more {n}")
        seen = intents(crystal.invocations[-1])
        assert "Pay in euros." in seen
        assert "The guest is Anna." in seen
        assert "Hurry." not in seen


@pytest.mark.rule("V-39")
async def test_a_selective_fold_takes_out_the_results_of_programs() -> None:
    says = [{"code": f"print('result {n}' * 20)"} for n in range(4)]
    circle = Circle(["done"], [max_turns(9)], medium="python")
    crystal = scripted([*says, {"code": "done('ok')"}])
    async with Runtime.open("memory:") as runtime:
        await runtime.cast(Cantrip(crystal, circle=circle, folding=Folding(2, selective=True)), "go")
    last = crystal.invocations[-1]
    assert [message.content for message in last if message.gate][:2] == ["[folded:python]"] * 2
    assert sum(message.role == "assistant" for message in last) == 4
