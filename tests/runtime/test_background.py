"""Background children: `call_agent(…, wait=False)`, their answers, and what ends them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    CantripUnknown,
    Circle,
    EntityEndedEvent,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.gates import ask, background
from cantrip_actors.machine.project import list_turns_quoting
from cantrip_actors.testing import Crash, Process, run_with_crashes
from cantrip_actors.wards import max_children, max_depth, max_tokens, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-20")

Answer = dict[str, Any]


def helper(context: Sequence[Any]) -> Answer:
    """Answer with the intent, in capitals."""
    return done(context[0].content.upper())


async def slow_helper(context: Sequence[Any]) -> Answer:
    """Answer after ten seconds."""
    return {**helper(context), "delay": 10.0}


async def endless_helper(_: Sequence[Any]) -> Answer:
    """Never answer."""
    return {**done("too late"), "delay": 10_000.0}


def family(
    parent: Any, child: Any = slow_helper, *gates: Any, wards: Sequence[Any] = (), medium: Any = "tools", **parts: Any
) -> Cantrip:
    circle = Circle(["done", *background, *gates], [max_turns(20), *wards], medium=medium)
    return Cantrip(scripted(parent), circle=circle, child_crystal=scripted(child), **parts)


def start(intent: str, **options: Any) -> Answer:
    return say("call_agent", intent=intent, wait=False, **options)


def read_results(context: Sequence[Any], name: str) -> list[Any]:
    """Return the results of a gate that the context shows, oldest first, as JSON where they are."""
    texts = [message.content for message in context if message.role == "tool" and message.gate == name]
    return [json.loads(text) if text[:1] in "[{" else text for text in texts]


def read_answers(context: Sequence[Any]) -> list[str]:
    """Return the answers of children that came in as messages."""
    texts = [message.content for message in context if message.role == "user" and message.content.startswith("[child ")]
    return [text.partition("] ")[2] for text in texts]


def play(*steps: Answer | Callable[[Sequence[Any]], Answer]) -> Callable[[Sequence[Any]], Answer]:
    """Return a policy that makes these steps, one for each query; a function makes its step of the context."""

    def answer(context: Sequence[Any]) -> Answer:
        step = steps[sum(message.role == "assistant" for message in context)]
        return step(context) if callable(step) else step

    return answer


def of_child(name: str, **args: Any) -> Callable[[Sequence[Any]], Answer]:
    """Return a step that calls a gate for the child that was started first."""
    return lambda context: say(name, child=read_results(context, "call_agent")[0], **args)


class TestAnswers:
    async def test_the_call_returns_the_id_of_the_child_at_once(self) -> None:
        parent = play(start("look"), lambda context: done(read_results(context, "call_agent")[0]))
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(family(parent), "go")
            assert list(runtime.loom.below(episode.entity_id)) == [episode.result]
        assert anyio.current_time() < 10

    async def test_a_batch_returns_the_ids_of_its_children(self) -> None:
        start_two = say("call_agent_batch", intents=["a", {"intent": "b"}], wait=False)
        parent = play(start_two, say("wait_for_children"), lambda context: done(context[-1].content))
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(family(parent), "go")
            answers = json.loads(episode.result)["answers"]
            assert list(answers) == list(runtime.loom.below(episode.entity_id))
        assert list(answers.values()) == ["A", "B"]

    async def test_an_answer_comes_in_before_the_next_query(self) -> None:
        @gate
        async def nap() -> str:
            """Sleep for a minute."""
            await anyio.sleep(60)
            return "slept"

        parent = play(start("look"), say("nap"), lambda context: done(read_answers(context)))
        async with Runtime.open("memory:") as runtime:
            assert (await runtime.cast(family(parent, slow_helper, nap), "go")).result == ["answer:\nLOOK"]

    async def test_the_rest_of_a_long_answer_is_read_by_the_id_of_the_child(self) -> None:
        long = f"BEGIN{'0' * 300_000}END"

        async def report(_: Sequence[Any]) -> Answer:
            return done(long)

        def read_rest(context: Sequence[Any]) -> Answer:
            (answer,) = (message.content for message in context if (message.content or "").startswith("[child "))
            note = answer[answer.index("recall returns them: ") + 21 :].partition("]")[0]
            call, begin, _ = (part.partition("=")[2].strip('"') for part in note.split(", "))
            return say("recall", call=call, **{"from": int(begin), "to": int(begin) + 9})

        def compare(context: Sequence[Any]) -> Answer:
            return done(read_results(context, "recall")[0])

        parent = play(start("look"), done("begun"), read_rest, compare)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent, report, "recall"), "go", name="n")
            await anyio.sleep(30)
            assert runtime.loom.outcome(entity.id).result == "000000000"

    async def test_a_child_that_fails_is_an_answer_too(self) -> None:
        async def fail(_: Sequence[Any]) -> Answer:
            raise RuntimeError("no luck")

        parent = play(start("look"), say("wait_for_children"), lambda context: done(context[-1].content))
        async with Runtime.open("memory:") as runtime:
            (answer,) = json.loads((await runtime.cast(family(parent, fail), "go")).result)["answers"].values()
        assert answer["is_error"]
        assert "no luck" in answer["error"]

    async def test_an_urgent_answer_cuts_a_query_short_and_an_ordinary_one_does_not(self) -> None:
        took = {}
        for is_urgent in (True, False):

            async def parent(context: Sequence[Any], is_urgent: bool = is_urgent) -> Answer:
                if context[-1].role == "tool":
                    return {**done("nothing came"), "delay": 100.0}
                return done(read_answers(context)) if read_answers(context) else start("look", urgent=is_urgent)

            async with Runtime.open("memory:") as runtime:
                began = anyio.current_time()
                episode = await runtime.cast(family(parent), "go")
                took[episode.result if is_urgent is False else tuple(episode.result)] = anyio.current_time() - began
        assert took == {("answer:\nLOOK",): pytest.approx(10, abs=1), "nothing came": pytest.approx(100, abs=1)}

    async def test_a_wait_ends_with_the_first_child_if_that_was_asked_for(self) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            return {**helper(context), "delay": float(context[0].content)}

        parent = play(
            say("call_agent_batch", intents=["50", "5"], wait=False),
            say("wait_for_children", first=True),
            lambda context: done(context[-1].content),
        )
        async with Runtime.open("memory:") as runtime:
            result = json.loads((await runtime.cast(family(parent, child), "go")).result)
            assert list(result["answers"].values()) == ["5"]
            assert len(result["under_way"]) == 1
        assert anyio.current_time() < 50

    @pytest.mark.parametrize(
        ("medium", "code"),
        [
            ("python", "c = call_agent('look', wait=False)\ndone(wait_for_children([c])['answers'][c])"),
            (
                "javascript",
                "const c = call_agent({intent: 'look', wait: false}); done(wait_for_children().answers[c]);",
            ),
            ("shell", 'c=$(call_agent look --wait=false)\nwait_for_children > w\ndone "$(cat w)"'),
        ],
    )
    async def test_a_program_starts_children_and_waits_for_them(self, medium: str, code: str) -> None:
        def child(context: Sequence[Any]) -> Answer:
            return {"code": {"shell": "done LOOK"}.get(medium, "done('LOOK')")}

        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(family([{"code": code}], child, medium=medium), "go")
        assert "LOOK" in str(episode.result)


class TestLongLivedParents:
    async def test_an_answer_wakes_a_parent_that_rests(self) -> None:
        parent = play(start("look"), done("begun"), lambda context: done(read_answers(context)))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent), "go", name="n")
            assert (await entity.episode()).result == "begun"
            await anyio.sleep(20)
            assert runtime.loom.outcome(entity.id).result == ["answer:\nLOOK"]
            assert runtime.loom.state(entity.id) == "idle"

    async def test_a_parent_is_not_unloaded_while_its_child_works(self) -> None:
        parent = play(start("look"), done("begun"), lambda context: done(read_answers(context)))
        async with Runtime.open("memory:", passivate_after=0) as runtime:
            entity = await runtime.invoke(family(parent), "go", name="n")
            await entity.episode()
            await anyio.sleep(5)
            assert entity.loaded
            await anyio.sleep(20)
            assert not entity.loaded
            assert runtime.loom.outcome(entity.id).result == ["answer:\nLOOK"]

    async def test_an_interrupt_ends_the_episode_and_not_the_children(self) -> None:
        @gate
        async def hang() -> None:
            """Never return."""
            await anyio.sleep_forever()

        parent = play(start("look"), say("hang"), lambda context: done(read_answers(context)))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent, slow_helper, hang), "go", name="n")
            await anyio.sleep(1)
            await entity.interrupt(now=True)
            await anyio.sleep(20)
            assert runtime.loom.outcome(entity.id).result == ["answer:\nLOOK"]

    async def test_an_undo_takes_the_children_of_its_intent_back(self) -> None:
        parent = play(start("look"), done("begun"))
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent), "go", name="n")
            await entity.episode()
            (child,) = runtime.loom.below(entity.id)
            assert await entity.undo()
            await anyio.sleep(20)
            assert runtime.loom.outcome(child).reason == "cancelled"
            assert runtime.loom.outcome(entity.id) is None

    @pytest.mark.rule("K-23")
    async def test_an_undo_returns_when_the_children_of_its_intent_have_ended(self) -> None:
        events: list[str] = []

        @gate
        async def look() -> str:
            """Look, and take a second to end."""
            try:
                await anyio.sleep(60)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1.013)
                events.append("effect")
            return "seen"

        async def child(context: Sequence[Any]) -> Answer:
            return say("look")

        cantrip = family(play(start("look"), done("begun")), child, look)
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n")
            await entity.episode()
            await anyio.sleep(5)
            began = anyio.current_time()
            assert await entity.undo()
            events.append("undone")
            assert anyio.current_time() - began == pytest.approx(1.013)  # at once, and not at the next look
        assert events == ["effect", "undone"]

    async def test_a_fork_has_no_children_of_the_other_entity(self) -> None:
        parent = play(start("look"), say("list_children"), lambda context: done(read_results(context, "list_children")))
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(family(parent), "go")
            fork = await runtime.fork(episode.thread[1].id, intent="again")
            assert fork.result == [[]]
        assert len(episode.result[0]) == 1


class TestManagement:
    async def test_a_parent_lists_its_children(self) -> None:
        def finish(context: Sequence[Any]) -> Answer:
            return done([read_results(context, "call_agent"), *read_results(context, "list_children")])

        async with Runtime.open("memory:") as runtime:
            ids, children = (
                await runtime.cast(family(play(start("a"), start("b"), say("list_children"), finish)), "go")
            ).result
        assert [child["child"] for child in children] == ids
        assert [(child["intent"], child["status"]) for child in children] == [("a", "works"), ("b", "works")]

    async def test_a_message_reaches_the_child_before_its_next_query(self) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            if len(context) == 1:
                return {**say("list_children"), "delay": 5.0}
            return done(context[-1].content)

        parent = play(
            start("look"),
            of_child("message_child", message="look closer"),
            say("wait_for_children"),
            lambda context: done(context[-1].content),
        )
        async with Runtime.open("memory:") as runtime:
            result = json.loads((await runtime.cast(family(parent, child), "go")).result)
        assert list(result["answers"].values()) == ["look closer"]

    @pytest.mark.parametrize("name", ["cancel_child", "interrupt_child"])
    async def test_a_child_that_is_ended_answers_with_the_reason(self, name: str) -> None:
        async def child(_: Sequence[Any]) -> Answer:
            return {**say("list_children"), "delay": 5.0}

        parent = play(
            start("look"),
            of_child(name, why="found it"),
            say("wait_for_children"),
            lambda context: done(context[-1].content),
        )
        async with Runtime.open("memory:") as runtime:
            (answer,) = json.loads((await runtime.cast(family(parent, child), "go")).result)["answers"].values()
        assert "found it" in answer["error"]
        assert anyio.current_time() < (1 if name == "cancel_child" else 6)

    async def test_an_id_of_no_child_under_way_is_an_error_observation(self) -> None:
        parent = play(say("cancel_child", child="nobody"), lambda context: done(context[-1].content))
        async with Runtime.open("memory:") as runtime:
            assert (
                "expected children that work in the background (none)"
                in (await runtime.cast(family(parent), "go")).result
            )


class TestEnds:
    async def test_a_parent_that_is_done_ends_its_children_last_started_first(self) -> None:
        parent = play(start("a"), start("b"), done("over"))
        async with Runtime.open("memory:") as runtime:
            ends = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
            episode = await runtime.cast(family(parent, endless_helper), "go")
            ended = [(await anext(ends)).entity_id for _ in range(3)]
            loom = runtime.loom
            assert ended == [*reversed(loom.below(episode.entity_id)), episode.entity_id]
            assert {loom.outcome(child).reason for child in loom.below(episode.entity_id)} == {"parent_ended"}
        assert episode.result == "over"

    @pytest.mark.parametrize("how", ["cancel", "stop", "turns"])
    async def test_children_end_with_a_parent_that_is_ended(self, how: str) -> None:
        async def wait(_: Sequence[Any]) -> Answer:
            return {**say("list_children"), "delay": 5.0}

        parent = (
            play(start("a"), *[say("list_children")] * 30)
            if how == "turns"
            else play(start("a"), say("wait_for_children"))
        )
        async with Runtime.open("memory:") as runtime:
            if how == "stop":
                entity = await runtime.invoke(family(parent, wait), "go", name="n")
                await anyio.sleep(1)
                await entity.stop()
            else:
                with anyio.move_on_after(1):
                    await runtime.cast(family(parent, wait), "go")
            root, child = runtime.loom.entities()
            assert runtime.loom.is_over(child)
            assert runtime.loom.is_over(root)

    async def test_closing_the_runtime_keeps_the_children_of_a_long_lived_parent(self, tmp_path: Any) -> None:
        cantrip = family(play(start("look"), done("begun"), lambda context: done(read_answers(context))), name="clerk")
        url = f"sqlite:{tmp_path}/loom.db"
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            await (await runtime.invoke(cantrip, "go", name="n")).episode()
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            await anyio.sleep(20)
            entity = runtime.entity("n")
            assert runtime.loom.outcome(entity.id).result == ["answer:\nLOOK"]
            assert len(runtime.loom.below(entity.id)) == 1

    async def test_the_children_of_children_end_first(self) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            if context[0].content == "below" or len(context) > 1:
                return await endless_helper(context)
            return start("below")

        parent = play(start("a"), {**done("over"), "delay": 1.0})

        async def slow_parent(context: Sequence[Any]) -> Answer:
            return parent(context)

        async with Runtime.open("memory:") as runtime:
            ends = runtime.events(lambda event: isinstance(event, EntityEndedEvent))
            episode = await runtime.cast(family(slow_parent, child, wards=[max_depth(2)]), "go")
            ended = [(await anext(ends)).entity_id for _ in range(3)]
            assert ended == [*reversed(runtime.loom.subtree(episode.entity_id))]

    async def test_a_one_shot_parent_that_is_kept_gets_its_answers_in_the_next_process(self, tmp_path: Any) -> None:
        parent = play(start("look"), say("wait_for_children"), lambda context: done(context[-1].content))
        cantrip = family(parent, name="clerk")
        url = f"sqlite:{tmp_path}/loom.db"
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            with anyio.move_on_after(1):
                await (await runtime.submit("clerk", "go", key="k")).result()
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            episode = await (await runtime.submit("clerk", "go", key="k")).result()
            assert list(json.loads(episode.result)["answers"].values()) == ["LOOK"]
            assert len(runtime.loom.below(episode.entity_id)) == 1

    async def test_a_child_that_waits_for_a_person_keeps_its_resting_parent_unloaded_until_it_is_decided(
        self, tmp_path: Any
    ) -> None:
        @gate
        def pay() -> str:
            """Pay."""
            return "paid"

        def child(context: Sequence[Any]) -> Answer:
            return done(context[-1].content) if len(context) > 1 else say("pay")

        parent = play(start("pay it"), done("begun"), lambda context: done(read_answers(context)))
        cantrip = family(parent, child, ask_first(pay), name="clerk")
        url = f"sqlite:{tmp_path}/loom.db"
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            await (await runtime.invoke(cantrip, "go", name="n")).episode()
            await anyio.sleep(1)
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            entity = runtime.entity("n")
            assert entity is not None
            assert not entity.loaded
            (request,) = runtime.requests()
            await runtime.decide(request.id, "allow", by="anna")
            await anyio.sleep(5)
            assert runtime.loom.outcome(entity.id).result == ["answer:\npaid"]

    async def test_a_parent_that_moves_to_a_cantrip_without_the_gates_gets_the_reason_as_answer(
        self, tmp_path: Any
    ) -> None:
        url = f"sqlite:{tmp_path}/loom.db"
        old = family(play(start("look"), done("begun")), name="clerk")
        async with Runtime.open(url, cantrips=[old]) as runtime:
            entity = await runtime.invoke(old, "go", name="n")
            await entity.episode()
        new = Cantrip(scripted(lambda context: done(read_answers(context))), circle=Circle(["done"], [max_turns(3)]))
        async with Runtime.open(url) as runtime:
            entity = await runtime.resume(entity.id, cantrip=new)
            await anyio.sleep(20)
            (answer,) = runtime.loom.outcome(entity.id).result
            (child,) = runtime.loom.below(entity.id)
            assert "it cannot be resumed: gate not available: call_agent" in answer
            assert runtime.loom.outcome(child).reason == "parent_ended"

    async def test_forgetting_a_child_names_the_turns_that_have_its_answer(self) -> None:
        for by_wait in (True, False):
            parent = play(start("look"), say("nap"), say("wait_for_children" if by_wait else "nap"), done("over"))

            @gate
            async def nap(by_wait: bool = by_wait) -> str:
                """Sleep, longer than a child takes if the answer is to come as a message."""
                await anyio.sleep(1 if by_wait else 20)
                return "slept"

            async with Runtime.open("memory:") as runtime:
                episode = await runtime.cast(family(parent, slow_helper, nap), "go")
                (child,) = runtime.loom.below(episode.entity_id)
                quotes = list_turns_quoting(runtime.loom.records(episode.entity_id), child)
                # the turn with the id of the child, and that with its answer
                assert quotes == [episode.thread[1].id, episode.thread[3].id]


class TestRules:
    async def test_a_circle_without_the_gates_has_no_parameter_wait(self) -> None:
        circle = Circle(["done", "call_agent"], [max_turns(3)])
        crystal = scripted(play(start("look"), lambda context: done(context[-1].content)))
        async with Runtime.open("memory:") as runtime:
            assert "wait" in (await runtime.cast(Cantrip(crystal, circle=circle), "go")).result
        assert all("wait" not in definition.parameters["properties"] for definition in circle.definitions)

    @pytest.mark.rule("COMP-6")
    async def test_an_entity_that_may_have_no_children_has_none_of_the_gates(self) -> None:
        circle = Circle(["done", *background], [max_turns(3), max_depth(0)])
        assert list(circle.open_gates) == ["done"]

    @pytest.mark.parametrize("passivate_after", [1.0, 300.0])
    async def test_a_child_asks_its_parent_which_rests_and_answers(self, passivate_after: float) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            answers = read_results(context, "ask")
            return done(f"took {answers[0]}") if answers else {**say("ask", to="n", message="Which one?"), "delay": 5.0}

        parent = play(start("choose"), done("begun"), done("the red one"), lambda context: done(read_answers(context)))
        async with Runtime.open("memory:", passivate_after=passivate_after) as runtime:
            entity = await runtime.invoke(family(parent, child, ask.with_(to=["n"])), "go", name="n")
            await anyio.sleep(60)
            assert runtime.loom.outcome(entity.id).result == ["answer:\ntook the red one"]
            assert runtime.loom.state(entity.id) == "idle"
        assert anyio.current_time() < 100

    async def test_a_child_of_a_child_asks_an_ancestor_that_rests(self) -> None:
        async def below(context: Sequence[Any]) -> Answer:
            answers = read_results(context, "ask") or read_results(context, "call_agent")
            if answers:
                return done(answers[0])
            if context[0].content == "choose":
                return say("call_agent", intent="ask")
            return {**say("ask", to="n", message="Which one?"), "delay": 5.0}

        parent = play(start("choose"), done("begun"), done("the red one"), lambda context: done(read_answers(context)))
        family_of_three = family(parent, below, ask.with_(to=["n"]), wards=[max_depth(2)])
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family_of_three, "go", name="n")
            await anyio.sleep(60)
            assert runtime.loom.outcome(entity.id).result == ["answer:\nthe red one"]

    async def test_a_parent_cannot_wait_for_a_child_that_asks_it(self) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            answers = read_results(context, "ask")
            return done(answers[0]) if answers else {**say("ask", to="n", message="Which one?"), "delay": 5.0}

        parent = play(
            start("choose"),
            done("begun"),
            say("wait_for_children"),
            lambda context: done(read_results(context, "wait_for_children")[0]),
            lambda context: done(read_answers(context)),
        )
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent, child, ask.with_(to=["n"])), "go", name="n")
            await anyio.sleep(60)
            (answer,) = runtime.loom.outcome(entity.id).result
        assert "wait_for_children: " in answer
        assert "no answer can come" in answer

    async def test_a_child_cannot_ask_a_parent_that_waits_for_it(self) -> None:
        async def child(context: Sequence[Any]) -> Answer:
            answers = read_results(context, "ask")
            return done(answers[0]) if answers else say("ask", to="n", message="which one?")

        parent = play(
            start("choose"), say("wait_for_children"), lambda context: done(read_results(context, "wait_for_children"))
        )
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(family(parent, child, ask.with_(to=["n"])), "go", name="n")
            await anyio.sleep(30)
            (outcome,) = runtime.loom.outcome(entity.id).result
        assert "no answer can come" in str(outcome)

    @pytest.mark.rule("X-06")
    async def test_background_children_count_for_max_children(self) -> None:
        parent = play(start("a"), start("b"), lambda context: done(context[-1].content))
        async with Runtime.open("memory:") as runtime:
            assert "max_children" in (await runtime.cast(family(parent, wards=[max_children(1)]), "go")).result

    @pytest.mark.rule("PROD-3")
    async def test_their_tokens_count_for_the_budget_of_the_parent_also_after_a_restart(self, tmp_path: Any) -> None:
        usage = {"prompt_tokens": 60, "completion_tokens": 0}
        steps = (start("look"), done("begun"), say("list_children"), done("too many"))
        parent = play(*[{**step, "usage": usage} for step in steps])

        async def child(context: Sequence[Any]) -> Answer:
            return {**done("seen"), "usage": usage, "delay": 10.0}

        cantrip = family(parent, child, wards=[max_tokens(230)], name="clerk")
        url = f"sqlite:{tmp_path}/loom.db"
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n")
            assert (await entity.episode()).usage.prompt_tokens == 120
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            await anyio.sleep(20)
            outcome = runtime.loom.outcome(entity.id)
        assert outcome.subtree_usage.prompt_tokens == 240
        assert outcome.ward == "max_tokens"

    async def test_a_person_decides_about_the_call_of_a_child(self) -> None:
        @gate
        def pay() -> str:
            """Pay."""
            return "paid"

        def child(context: Sequence[Any]) -> Answer:
            return done(context[-1].content) if len(context) > 1 else say("pay")

        cantrip = family(
            play(start("pay it"), done("begun"), lambda context: done(read_answers(context))), child, ask_first(pay)
        )
        async with Runtime.open("memory:") as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n")
            await entity.episode()
            await anyio.sleep(5)
            (request,) = runtime.requests()
            await runtime.decide(request.id, "allow", by="anna")
            await anyio.sleep(1)
            assert runtime.loom.outcome(entity.id).result == ["answer:\npaid"]


@pytest.mark.parametrize("recorded", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("waits", [False, True], ids=["woken", "waiting"])
async def test_a_program_crashed_at_each_write_gets_each_answer_once(recorded: bool, waits: bool) -> None:
    def parent(context: Sequence[Any]) -> Answer:
        answers, started = read_answers(context), read_results(context, "call_agent")
        if len(started) < 2:
            return start("ab"[len(started)])
        waited = read_results(context, "wait_for_children")
        if waits and not waited:
            return say("wait_for_children")
        in_wait = [answer for result in waited for answer in result.get("answers", {}).values()]
        return done(sorted([*(answer.partition("\n")[2] for answer in answers), *in_wait]))

    cantrip = family(parent, slow_helper, name="clerk")

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[cantrip], recover="resume")) as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n", key="begin")
            await entity.episode()
            await anyio.sleep(30)
            assert len(runtime.loom.below(entity.id)) == 2
            return runtime.loom.outcome(entity.id).result

    write = 1
    while (survived := await run_with_crashes(program, [Crash(write, recorded)])).crashes:
        assert survived.value == ["A", "B"], f"crashed at write {write}"
        write += 1
    assert survived.value == ["A", "B"]
    assert write > 11


@pytest.mark.parametrize("recorded", [False, True], ids=["not written", "written"])
async def test_a_family_of_three_generations_crashed_at_each_write_gets_each_answer_once(
    recorded: bool, tmp_path: Any
) -> None:
    async def member(context: Sequence[Any]) -> Answer:
        """Start a child, go on, and answer with what it found; the youngest answers after a while."""
        level = int(context[0].content)
        if level == 2:
            return {**done("deep"), "delay": 10.0}
        if not read_results(context, "call_agent"):
            return start(str(level + 1))
        waited = read_results(context, "wait_for_children")
        if read_answers(context):
            return done(read_answers(context))
        return say("wait_for_children") if not waited else done(list(waited[0]["answers"].values()))

    cantrip = family(member, member, wards=[max_depth(2)], name="family")

    async def program(process: Process) -> Any:
        url = f"sqlite:{tmp_path}/{write}.db"
        async with process.attach(Runtime.open(url, cantrips=[cantrip], recover="resume")) as runtime:
            episode = await (await runtime.submit("family", "0", key="k")).result()
            assert len(runtime.loom.subtree(episode.entity_id)) == 3
            return episode.result

    write = 1
    while (survived := await run_with_crashes(program, [Crash(write, recorded)])).crashes:
        assert survived.value == [["deep"]], f"crashed at write {write}"
        write += 1
    assert survived.value == [["deep"]]
    assert write > 11


@pytest.mark.rule("V-20", "C-40")
class TestDeploys:
    """A deploy with another prompt, while the parent rests and a child works."""

    @pytest.fixture
    def url(self, tmp_path: Any) -> str:
        return f"sqlite:{tmp_path}/loom.db"

    @staticmethod
    async def look(context: Sequence[Any]) -> Answer:
        """Answer with the intent after ten seconds."""
        return {**done(context[-1].content), "delay": 10.0}

    def release(self, prompt: str, *gates: Any, child: Any = None) -> Cantrip:
        """Return a cantrip that starts a child for its first intent, and answers each other one with its prompt."""

        def answer(context: Sequence[Any]) -> Answer:
            if context[-1].role == "tool":
                return done("begun")
            if context[-1].content == "go":
                return start("look")
            return done([context[0].content, *read_answers(context)])

        return family(answer, child or self.look, *gates, call=Call(prompt), name="clerk")

    async def begin(self, url: str, cantrip: Cantrip) -> str:
        """Return the id of an entity that rests while its child works, in a loom that no process uses."""
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            entity = await runtime.invoke(cantrip, "go", name="n")
            await entity.episode()
            await anyio.sleep(1)
            return entity.id

    @pytest.mark.parametrize("recover", ["list", "resume"])
    async def test_a_send_is_answered_by_the_new_version_and_the_child_answers_once(
        self, url: str, recover: Any
    ) -> None:
        entity_id = await self.begin(url, self.release("one"))
        async with Runtime.open(url, cantrips=[self.release("two")], recover=recover) as runtime:
            entity = runtime.entity("n")
            assert entity is not None
            assert (await entity.send("more")).result == ["two"]
            await anyio.sleep(20)
            assert runtime.loom.outcome(entity_id).result == ["two", "answer:\nlook"]
            assert len(runtime.loom.below(entity_id)) == 1

    async def test_a_timer_wakes_the_parent_with_the_new_version(self, url: str) -> None:
        entity_id = await self.begin(url, self.release("one"))
        async with Runtime.open(url, cantrips=[self.release("two", child=endless_helper)]) as runtime:
            await runtime.schedule("n", "more", every=5)
            await anyio.sleep(7)
            assert runtime.loom.outcome(entity_id).result == ["two"]

    async def test_a_decision_about_a_call_of_the_child_is_carried_out_and_answers_the_parent(self, url: str) -> None:
        @gate
        def pay() -> str:
            """Pay."""
            return "paid"

        def child(context: Sequence[Any]) -> Answer:
            return done(context[-1].content) if context[-1].role == "tool" else say("pay")

        entity_id = await self.begin(url, self.release("one", ask_first(pay), child=child))
        async with Runtime.open(url, cantrips=[self.release("two", ask_first(pay), child=child)]) as runtime:
            (request,) = runtime.requests()
            await runtime.decide(request.id, "allow", by="anna")
            await anyio.sleep(5)
            assert runtime.loom.outcome(entity_id).result == ["two", "answer:\npaid"]

    async def test_the_parent_stays_with_its_version_while_a_living_process_has_that(self, url: str) -> None:
        entity_id = await self.begin(url, self.release("one"))
        async with (
            Runtime.open(url, cantrips=[self.release("two")]) as new,
            Runtime.open(url, cantrips=[self.release("one")]),
        ):
            entity = new.entity("n")
            assert entity is not None
            with anyio.fail_after(30):
                assert (await entity.send("more")).result == ["one"]
            assert new.loom.header_in_force(entity_id).cantrip_id == self.release("one").id

    async def test_a_policy_that_lets_nothing_move_refuses_the_send_and_keeps_what_is_posted(self, url: str) -> None:
        await self.begin(url, self.release("one"))
        async with Runtime.open(url, cantrips=[self.release("two")], upgrade="never") as runtime:
            entity = runtime.entity("n")
            assert entity is not None
            work = await entity.post("more", key="k")
            with pytest.raises(CantripUnknown, match="resume"):
                await entity.send("even more")
        async with Runtime.open(url, cantrips=[self.release("one")]) as runtime:
            assert (await runtime.work(work.id).result()).result == ["one"]
