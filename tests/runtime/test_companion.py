"""Companions, and summaries of folded turns."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    Companion,
    EntityCrashed,
    Folding,
    Here,
    InvalidCantrip,
    Quarantined,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.records.records import Ended
from cantrip_actors.wards import max_tokens, max_turns, timeout
from tests.runtime.spells import done, say


class Told(Companion):
    """A companion that records its calls."""

    def __init__(self, greeting: str | None = None, recalled: str | None = None) -> None:
        self.heard: list[str] = []
        self.greeting, self.recalled = greeting, recalled

    async def begins(self, here: Here) -> str | None:
        self.heard.append(f"begins{' again' if here.restored else ''}")
        return self.greeting

    async def recalls(self, here: Here, last: int) -> str | None:
        self.heard.append(f"recalls to {last}")
        return self.recalled

    async def ends(self, here: Here, outcome: Any) -> None:
        self.heard.append(f"ends {outcome.reason}")


def accompanied(responses: Any, companion: Companion, *gates: Any, **parts: Any) -> Cantrip:
    crystal = scripted(responses)
    return Cantrip(crystal, circle=Circle(["done", "echo", *gates], [max_turns(10)], companion=companion), **parts)


async def test_a_companion_is_called_at_each_beginning_and_end_of_an_episode() -> None:
    companion = Told()
    async with Runtime.open() as runtime:
        made = accompanied([done(1), done(2)], companion)
        entity = await runtime.invoke(made, "one", name="notes")
        await entity.episode()
        await entity.send("two")
        await entity.stop()
    assert companion.heard == ["begins", "ends terminated", "begins", "ends terminated", "ends cancelled"]


async def test_a_companions_greeting_is_in_the_first_query() -> None:
    made = accompanied([done(1)], Told(greeting="mind the step"))
    async with Runtime.open() as runtime:
        await runtime.cast(made, "go")
    assert [message.content for message in made.crystal.invocations[0].messages] == ["go", "mind the step"]


async def test_a_companion_learns_that_an_episode_is_resumed_after_a_crash() -> None:
    companion = Told()
    crashes = iter([True, False])

    class Crashing(Told):
        async def recalls(self, here: Here, last: int) -> str | None:
            if next(crashes):
                raise RuntimeError("the book is shut")
            return await super().recalls(here, last)

    companion = Crashing()
    made = accompanied([say("echo", text="a"), say("echo", text="b"), done(1)], companion, folding=Folding(1))
    async with Runtime.open() as runtime:
        assert (await runtime.cast(made, "go")).result == 1
    assert companion.heard == ["begins", "begins again", "recalls to 1", "ends terminated"]


@pytest.mark.rule("V-10")
@pytest.mark.parametrize("hook", ["begins", "recalls", "ends"])
def test_a_hook_that_nothing_can_wait_for_is_refused_when_the_circle_is_made(hook: str) -> None:
    companion = type("Diary", (Companion,), {hook: lambda *_: None})()
    with pytest.raises(InvalidCantrip, match=f"expected `async def {hook}` in Diary"):
        Circle(["done"], [max_turns(3)], companion=companion)


@pytest.mark.rule("F-04")
async def test_an_entity_crashes_for_good_when_its_companion_keeps_raising() -> None:
    class Broken(Companion):
        async def begins(self, here: Here) -> str | None:
            raise RuntimeError("the contract was tampered with")

    async with Runtime.open() as runtime:
        with pytest.raises(EntityCrashed, match="tampered with"):
            await runtime.cast(accompanied([done(1)], Broken()), "go")


@pytest.mark.rule("F-29", "V-10")
@pytest.mark.parametrize("error", [GeneratorExit, BaseException, BaseExceptionGroup])
async def test_a_companion_that_raises_what_is_no_exception_crashes_its_own_entity_only(
    error: type[BaseException],
) -> None:
    class Broken(Companion):
        async def begins(self, here: Here) -> str | None:
            raise error("broken", [GeneratorExit()]) if error is BaseExceptionGroup else error("broken")

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(accompanied([done(1)], Broken()), "go", name="notes")
        with pytest.raises(Quarantined):
            await entity.episode()
        assert (await runtime.cast(accompanied([done(2)], Companion()), "go")).result == 2


@pytest.mark.rule("F-29")
@pytest.mark.rule("K-24")
async def test_a_caller_gets_its_answer_at_once_when_the_companion_crashes_at_the_end() -> None:
    class Crashing(Companion):
        async def ends(self, here: Here, outcome: Any) -> None:
            raise ZeroDivisionError

    async with Runtime.open() as runtime:
        entity = await runtime.invoke(accompanied([done(1), done(2)], Crashing()), "one", name="notes")
        await entity.episode()
        began = anyio.current_time()
        assert (await entity.send("two", timeout=0.5)).result == 2
        assert anyio.current_time() == began  # the second restart waits for a second


class Hanging(Companion):
    """Hangs when an episode begins, while `hangs` is set."""

    hangs = False
    restored: bool | None = None

    async def begins(self, here: Here) -> None:
        if self.hangs:
            self.restored = here.restored
            await anyio.sleep_forever()


@pytest.mark.rule("K-23", "LOOP-4")
@pytest.mark.parametrize("how", ["interrupt", "cancel", "undo", "timeout"])
async def test_an_end_at_once_cancels_a_companion_that_hangs_at_the_beginning_of_an_episode(how: str) -> None:
    companion = Hanging()
    wards = [max_turns(3), timeout(10)] if how == "timeout" else [max_turns(3)]
    circle = Circle(["done"], wards, companion=companion)
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("notes", Cantrip(scripted([done(1), done(2)]), circle=circle))
        await entity.send("one")
        companion.hangs = True
        work = await entity.post("two")
        await anyio.sleep(1)
        with anyio.fail_after(20):
            if how == "interrupt":
                await entity.interrupt(now=True)
            elif how == "cancel":
                await work.cancel(now=True)
            elif how == "undo":
                assert await entity.undo()
            assert (await work.result()).reason == ("timeout" if how == "timeout" else "interrupted")
        companion.hangs = False
        assert (await entity.send("three")).result == 2


@pytest.mark.rule("K-23", "K-25")
async def test_an_interrupt_cancels_a_companion_that_hangs_when_an_episode_is_resumed(tmp_path: Path) -> None:
    @gate
    async def wait() -> str:
        """Wait."""
        await anyio.sleep_forever()
        return "late"

    url, companion = f"sqlite:{tmp_path / 'loom.db'}", Hanging()
    circle = Circle(["done", wait], [max_turns(3)], companion=companion)
    made = Cantrip(scripted(lambda context: say("wait") if context[-1].content == "two" else done(1)), circle=circle)
    async with Runtime.open(url) as runtime:
        await (await runtime.ensure("notes", made)).post("two", key="2")
        await anyio.sleep(1)
    companion.hangs = True
    async with Runtime.open(url, cantrips=[made], recover="resume") as runtime:
        await anyio.sleep(1)
        assert companion.restored
        entity = runtime.get_entity("notes")
        with anyio.fail_after(20):
            await entity.interrupt(now=True)
            assert (await runtime.receipt("notes", "2").result()).reason == "interrupted"
        companion.hangs = False
        assert (await entity.send("three")).result == 1


class HangingAtTheEnd(Companion):
    """Hangs when an episode ends, while `hangs` is set."""

    hangs = False

    async def ends(self, here: Here, outcome: Any) -> None:
        if self.hangs:
            await anyio.sleep_forever()


def make_notes(companion: Companion, *wards: Any) -> Cantrip:
    @gate
    async def wait() -> str:
        """Wait."""
        await anyio.sleep_forever()
        return "late"

    circle = Circle(["done", wait], [max_turns(3), *wards], companion=companion)
    crystal = scripted(lambda context: say("wait") if context[-1].content == "wait" else done("well"))
    return Cantrip(crystal, circle=circle, name="notes")


@pytest.mark.rule("K-23", "V-07")
@pytest.mark.parametrize("how", ["interrupt", "undo", "timeout"])
async def test_an_end_from_outside_does_not_wait_for_a_companion_that_hangs_at_the_end(how: str) -> None:
    companion = HangingAtTheEnd()
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("notes", make_notes(companion, *([timeout(10)] if how == "timeout" else [])))
        await entity.send("one")
        companion.hangs = True
        work = await entity.post("wait")
        await anyio.sleep(1)
        with anyio.fail_after(20):
            if how == "interrupt":
                await entity.interrupt(now=True)
            elif how == "undo":
                assert await entity.undo()
            assert (await work.result()).reason == ("timeout" if how == "timeout" else "interrupted")
        companion.hangs = False
        assert (await entity.send("three")).result == "well"


@pytest.mark.rule("K-23")
@pytest.mark.parametrize("intent", ["one", "wait"])
async def test_a_stop_does_not_wait_for_a_companion_that_hangs_at_the_end(intent: str) -> None:
    companion = HangingAtTheEnd()
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("notes", make_notes(companion))
        companion.hangs = True
        await entity.post(intent)
        await anyio.sleep(1)
        with anyio.fail_after(10):
            await entity.stop()
        assert runtime.loom.is_over(entity.id)


@pytest.mark.rule("K-23", "V-07")
async def test_an_undo_in_another_process_cuts_a_companion_short_that_hangs_at_the_end(tmp_path: Path) -> None:
    url, companion = f"sqlite:{tmp_path / 'loom.db'}", HangingAtTheEnd()
    async with Runtime.open(url) as runtime, Runtime.open(url) as other:
        entity = await runtime.ensure("notes", make_notes(companion))
        companion.hangs = True
        work = await entity.post("one")
        await anyio.sleep(1)
        with anyio.fail_after(20):
            assert await other.get_entity("notes").undo(by="anna")
            assert (await work.result()).result == "well"
        companion.hangs = False
        assert (await entity.send("two")).result == "well"
        assert [message.content for message in await entity.messages() if message.role == "user"] == ["two"]


@pytest.mark.rule("V-07")
async def test_an_undo_interrupts_the_episode_in_the_name_of_its_sender() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.ensure("notes", make_notes(Companion()))
        work = await entity.post("wait")
        await anyio.sleep(1)
        assert await entity.undo(by="anna")
        episode = await work.result()
        assert (episode.reason, episode.summary) == ("interrupted", "interrupted (undone) after 1 turn")
        assert [end.sender for end in runtime.loom.records(entity.id) if isinstance(end, Ended)] == ["anna"]


@pytest.mark.rule("V-10", "V-07")
@pytest.mark.parametrize("change", ["undo", "compact"])
async def test_an_undo_of_a_quarantined_entity_is_refused_and_done_when_it_is_resumed(change: str) -> None:
    class Poisoned(Companion):
        async def begins(self, here: Here) -> None:
            if here.entity_id in poisoned:
                raise ValueError("poison")

    poisoned: set[str] = set()
    async with Runtime.open(cantrips=[made := make_notes(Poisoned())]) as runtime:
        entity = await runtime.ensure("notes", made)
        await entity.send("one")
        poisoned.add(entity.id)
        with pytest.raises(Quarantined):
            await entity.send("two", key="2")
        with anyio.fail_after(20), pytest.raises(Quarantined, match="poison"):
            await getattr(entity, change)()
        poisoned.clear()
        await runtime.resume(entity.id)
        episode = await runtime.receipt("notes", "2").result()
        assert episode.reason == ("interrupted" if change == "undo" else "terminated")


@pytest.mark.rule("K-23", "K-25")
async def test_an_interrupt_cancels_a_gate_that_hangs_after_a_restart_of_its_entity() -> None:
    class Once(Companion):
        crashes = iter([True])

        async def begins(self, here: Here) -> None:
            if next(self.crashes, False):
                raise ValueError("once")

    async with Runtime.open() as runtime:
        entity = await runtime.ensure("notes", make_notes(Once()))
        work = await entity.post("wait")
        await anyio.sleep(3)
        with anyio.fail_after(20):
            await entity.interrupt(now=True)
            assert (await work.result()).reason == "interrupted"


async def test_children_have_no_companion_unless_they_get_one() -> None:
    companion = Told()
    made = accompanied(
        [say("call_agent", intent="x"), done(1)], companion, "call_agent", child_crystal=scripted([done(2)])
    )
    async with Runtime.open() as runtime:
        await runtime.cast(made, "go")
    assert companion.heard == ["begins", "ends terminated"]


@pytest.mark.rule("F-28", "D-007")
async def test_a_companions_recollection_replaces_folded_turns() -> None:
    companion = Told(recalled="the plan: step 2 is current")
    turns = [say("echo", text=str(n)) for n in range(4)]
    made = accompanied([*turns, done(1)], companion, folding=Folding(2, keep_turns=1))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(made, "go")
        assert len(episode.thread) == 5
    shown = [[message.content for message in asked.messages] for asked in made.crystal.invocations]
    assert shown[3][:2] == ["go", "[folded: turns 1-2]\nthe plan: step 2 is current"]
    assert companion.heard.count("recalls to 2") == 1


@pytest.mark.rule("D-007", "LOOM-5")
async def test_a_crystal_summarises_folded_turns() -> None:
    summaries = scripted(
        [{"content": "so far: 0 and 1 were said", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}]
    )
    turns = [say("echo", text=f"word {n}") for n in range(4)]
    crystal = scripted([*turns, done(1)])
    circle = Circle(["done", "echo"], [max_turns(10)])
    made = Cantrip(crystal, circle=circle, folding=Folding(2, keep_turns=1, summary=summaries))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(made, "go")
        whole = [seen.result for turn in episode.thread for seen in turn.gate_calls]
        assert runtime.loom.usage(episode.entity_id) == episode.usage
    assert crystal.invocations[3].messages[1].content == "[folded: turns 1-2]\nso far: 0 and 1 were said"
    asked = summaries.invocations[0].messages
    assert "word 0" in asked[1].content
    assert "word 2" not in asked[1].content  # this turn is not folded
    assert whole == ["word 0", "word 1", "word 2", "word 3", 1]
    assert episode.usage.total_tokens >= 10


@pytest.mark.rule("D-007")
async def test_a_summary_includes_the_one_before_it() -> None:
    summaries = scripted([{"content": "first summary"}, {"content": "second summary"}])
    turns = [say("echo", text=f"word {n}") for n in range(5)]
    crystal = scripted([*turns, done(1)])
    circle = Circle(["done", "echo"], [max_turns(10)])
    made = Cantrip(crystal, circle=circle, folding=Folding(2, keep_turns=1, summary=summaries))
    async with Runtime.open() as runtime:
        await runtime.cast(made, "go")
    assert "first summary" in summaries.invocations[1].messages[1].content
    assert "word 0" not in summaries.invocations[1].messages[1].content
    assert "second summary" in crystal.invocations[5].messages[1].content


@pytest.mark.rule("D-007")
async def test_a_fold_has_only_its_marker_when_no_summary_can_be_made() -> None:
    summaries = scripted([{"error": {"status": 400, "message": "no"}}])
    turns = [say("echo", text="x") for _ in range(4)]
    crystal = scripted([*turns, done(1)])
    made = Cantrip(
        crystal,
        circle=Circle(["done", "echo"], [max_turns(10)]),
        folding=Folding(2, keep_turns=1, summary=summaries),
    )
    async with Runtime.open() as runtime:
        assert (await runtime.cast(made, "go")).result == 1
    assert crystal.invocations[3].messages[1].content == "[folded: turns 1-2]"


@pytest.mark.rule("PROD-3")
async def test_a_summary_counts_against_the_budget() -> None:
    summaries = scripted([{"content": "dear", "usage": {"prompt_tokens": 900, "completion_tokens": 100}}])
    turns = [{**say("echo", text="x"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}} for _ in range(4)]
    made = Cantrip(
        scripted([*turns, done(1)]),
        circle=Circle(["done", "echo"], [max_tokens(500)]),
        folding=Folding(2, keep_turns=1, summary=summaries),
    )
    async with Runtime.open() as runtime:
        episode = await runtime.cast(made, "go")
    assert (episode.reason, episode.ward) == ("budget", "max_tokens")
    assert "used up by a summary" in episode.summary


@pytest.mark.rule("LOOM-1")
async def test_a_reloaded_entity_sees_its_earlier_summary(tmp_path: Any) -> None:
    summaries = scripted([{"content": "the milk is bought"}])
    turns = [say("echo", text="x") for _ in range(3)]
    crystal = scripted([*turns, done(1), done(2)])
    made = Cantrip(
        crystal,
        circle=Circle(["done", "echo"], [max_turns(10)]),
        folding=Folding(3, keep_turns=2, summary=summaries),
    )
    url = f"jsonl:{tmp_path}/loom.jsonl"
    async with Runtime.open(url) as runtime:
        entity = await runtime.invoke(made, "go", name="notes")
        assert (await entity.episode()).result == 1
        # the fold is due at the next intent
        assert (await entity.send("more")).result == 2
    again = crystal.invocations[-1].messages
    later = made.with_crystal(scripted([done(3)]))
    async with Runtime.open(url, cantrips=[later]) as runtime:
        found = runtime.entity("notes")
        assert found is not None
        assert (await found.send("once more")).result == 3
        usage = runtime.loom.usage(found.id)
    shown = later.crystal.invocations[0].messages
    assert shown[1].content == again[1].content == "[folded: turns 1-2]\nthe milk is bought"
    assert usage.total_tokens >= 0


async def test_a_name_is_free_once_its_entity_has_ended_while_the_companion_is_still_notified() -> None:
    class Slow(Companion):
        async def ends(self, here: Here, outcome: object) -> None:
            await anyio.sleep(10)

    async with Runtime.open() as runtime:
        first = await runtime.invoke(accompanied([{**done(1), "delay": 100.0}], Slow()), "begin", name="x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.stop)
            await anyio.sleep(1)
            second = await runtime.ensure("x", accompanied([done(2)], Companion()))
            assert (await second.send("more")).result == 2
            assert runtime.loom.is_over(first.id)
        assert runtime.entity("x").id == second.id
