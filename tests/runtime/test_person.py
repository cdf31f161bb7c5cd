"""A circle with a person: the text of an utterance is shown to a person, whose reply is the observation."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    AlreadyDecided,
    Call,
    Cantrip,
    Circle,
    DamagedLoom,
    Entity,
    File,
    Folding,
    Image,
    InvalidCantrip,
    InvalidDecision,
    LoomError,
    RequestedEvent,
    Runtime,
    RuntimeClosed,
    gate,
    scripted,
)
from cantrip_actors.gates import person
from cantrip_actors.loom.export.atif import trajectory
from cantrip_actors.loom.export.chat import build_tools, chat_jsonl
from cantrip_actors.loom.export.conversation import conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.runtime.people.utterances import rest
from cantrip_actors.testing import Crash, Declined, Process, every_crash_point, people, run_with_crashes, virtual
from cantrip_actors.wards import max_depth, max_turns, remove_gate
from tests.pictures import PDF, png
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("B-10")

WEEK = 7 * 86_400.0


@gate(idempotent=True)
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def talking(*steps: Any, gates: Any = (), wards: Any = (), **parts: Any) -> Cantrip:
    """Return a cantrip that talks with a person: one step for each of its utterances in the conversation."""

    def answer(context: Any) -> Any:
        step = steps[min(sum(message.role == "assistant" for message in context), len(steps) - 1)]
        return step(context) if callable(step) else step

    circle = Circle(["done", look_up, *gates], [max_turns(20), *wards], medium="person")
    return Cantrip(scripted(answer, record=False), circle=circle, name="talk", **parts)


def repeat_last(context: Any) -> Any:
    return done(context[-1].content)


INTERVIEW = talking("What is your name?", "Which colour do you like?", repeat_last)


def roles(context: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content or "") for message in context if message.role != "system"]


# Talking


async def test_a_text_is_shown_to_a_person_and_the_reply_is_the_observation() -> None:
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Anna.", "Blue."]) as requests:
        episode = await runtime.cast(INTERVIEW, "Find out who they are.")
    assert episode.result == "Blue."
    assert [request.text for request in requests] == ["What is your name?", "Which colour do you like?"]
    assert [turn.observation for turn in episode.thread] == ["Anna.", "Blue.", "Blue."]


async def test_the_crystal_reads_the_reply_as_the_next_message_of_the_conversation() -> None:
    contexts: list[Any] = []

    def note(context: Any) -> Any:
        contexts.append(roles(context))
        return done("ok")

    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Anna."]):
        await runtime.cast(talking("Your name?", note), "Ask.")
    assert contexts == [[("user", "Ask."), ("assistant", "Your name?"), ("user", "Anna.")]]


async def test_a_text_together_with_calls_waits_for_no_person() -> None:
    both = {"content": "I look it up.", **say("look_up", word="cat")}
    async with Runtime.open("memory:") as runtime, people(runtime, anna=[]) as requests:
        episode = await runtime.cast(talking(both, repeat_last), "What is a cat?")
    assert (episode.result, requests) == ("cat is a word", [])


async def test_the_crystal_is_told_about_the_person_and_offered_no_gate_for_texts() -> None:
    seen: list[Any] = []

    def note(context: Any) -> Any:
        seen.append((context[0].content, context[1].content, [tool.name for tool in context.tools]))
        return done("ok")

    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(talking(note, call=Call("Be kind.")), "Begin.")
        header = runtime.loom.header(episode.entity_id)
    ((prompt, capability, tools),) = seen
    assert prompt == "Be kind."
    assert "shown to a person" in capability
    assert tools == ["done", "look_up"] == [tool["function"]["name"] for tool in build_tools(header)]
    assert header.circle["medium"] == "person"


async def test_a_blank_text_is_not_shown_and_does_not_end_the_entity() -> None:
    async with Runtime.open("memory:") as runtime, people(runtime, anna=[]) as requests:
        episode = await runtime.cast(talking("  \n", done("ok")), "Go.")
    assert (episode.result, requests) == ("ok", [])


async def test_a_long_lived_entity_talks_in_each_of_its_episodes() -> None:
    ask_again = talking("First?", repeat_last, "Second?", repeat_last)
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["one", "two"]):
        entity = await runtime.ensure("talk", ask_again)
        assert [(await entity.send(text)).result for text in ("a", "b")] == ["one", "two"]


# Requests


@pytest.mark.rule("B-11")
async def test_a_reply_is_recorded_with_its_author_and_time() -> None:
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Anna.", "Blue."]):
        entity = await runtime.start(INTERVIEW, "Find out.")
        await entity.episode()
        turn = runtime.loom.turns(entity.id)[0]
        replies = [message for message in await entity.messages() if message.role == "user"][1:]
    assert [(one.by, one.decision) for one in turn.decisions] == [("anna", "answer")]
    assert [(message.by, message.content) for message in replies] == [("anna", "Anna."), ("anna", "Blue.")]
    assert replies[0].at == turn.decisions[0].at


@pytest.mark.rule("B-11")
async def test_images_and_files_of_a_reply_arrive_at_the_crystal() -> None:
    seen: list[Any] = []

    def note(context: Any) -> Any:
        seen.append(context[-1])
        return done("ok")

    reply = ["Here: ", Image(png()), File(PDF, filename="cv.pdf"), "and that is all"]
    async with Runtime.open("memory:") as runtime, people(runtime, anna=[reply]):
        episode = await runtime.cast(talking("Show me.", note), "Go.")
    (message,) = seen
    assert (message.role, message.content) == ("user", "Here: \nand that is all")
    assert [type(file).__name__ for file in message.images] == ["Image", "File"]
    assert [file.after for file in message.images] == [6, 6]
    assert [file.media_type for file in episode.thread[0].gate_calls[0].images] == ["image/png", "application/pdf"]


async def test_a_reply_has_to_be_a_text() -> None:
    async with Runtime.open("memory:") as runtime:
        await runtime.start(INTERVIEW, "Go.")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        for answer in ("  ", 7, {"name": "Anna"}, [], [" "]):
            with pytest.raises(InvalidDecision, match="answer: expected the reply"):
                await runtime.decide(request.id, answer=answer, by="anna")
        with pytest.raises(InvalidDecision, match="expected either an answer"):
            await runtime.decide(request.id, "allow", by="anna")
        await runtime.decide(request.id, answer="Anna.", by="anna")
        with pytest.raises(AlreadyDecided):
            await runtime.decide(request.id, answer="Ben.", by="ben")


@pytest.mark.parametrize(
    ("settings", "reply", "observation"),
    [
        ({}, Declined("busy"), "no reply: anna declined: busy"),
        ({"expires": 3600}, None, "no reply: nobody replied in time"),
        ({"unattended": "deny"}, "unheard", "no reply: the runtime declined: no program follows requests"),
    ],
    ids=["declined", "expired", "unattended"],
)
async def test_the_entity_reads_why_no_reply_came(settings: Any, reply: Any, observation: str) -> None:
    spell = talking("Are you there?", repeat_last, gates=[person.with_(**settings)])
    async with Runtime.open("memory:") as runtime:
        if reply == "unheard":
            episode = await runtime.cast(spell, "Go.")
        else:
            async with people(runtime, anna=[] if reply is None else [reply]):
                episode = await runtime.cast(spell, "Go.")
    assert episode.result == observation
    assert episode.thread[0].gate_calls[0].is_error


async def test_an_interrupt_ends_the_wait_and_the_next_intent_follows_in_the_conversation() -> None:
    contexts: list[Any] = []

    def note(context: Any) -> Any:
        contexts.append(roles(context))
        return done("ok")

    async with Runtime.open("memory:") as runtime:
        entity = await runtime.ensure("talk", talking("Hello?", note))
        work = await entity.post("Greet.")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        await entity.interrupt("lunch", by="anna", now=True)
        assert (await work.episode()).reason == "interrupted"
        with pytest.raises(AlreadyDecided):
            await runtime.decide(request.id, answer="Hi.", by="anna")
        assert (await entity.send("Now?")).result == "ok"
    assert contexts == [
        [("user", "Greet."), ("assistant", "Hello?"), ("user", "no reply: interrupted (lunch)"), ("user", "Now?")]
    ]


async def test_steering_while_it_waits_is_read_after_the_reply() -> None:
    contexts: list[Any] = []

    def note(context: Any) -> Any:
        contexts.append(roles(context)[2:])
        return done("ok")

    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(talking("Which?", note), "Ask.")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        await entity.steer("Hurry.", by="ben")
        await runtime.decide(request.id, answer="This.", by="anna")
        await entity.episode()
    assert contexts == [[("user", "This."), ("user", "Hurry.")]]


async def test_a_reply_may_come_after_a_week_a_restart_and_from_another_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[INTERVIEW]) as runtime:
        entity_id = (await runtime.start(INTERVIEW, "Go.")).id
        async with runtime.requests(follow=True) as requests:
            await anext(requests)
    await anyio.sleep(WEEK)
    async with Runtime.open(url) as elsewhere:  # it does not know the cantrip
        (request,) = elsewhere.requests()
        await elsewhere.decide(request.id, answer="Anna.", by="anna")
    async with (
        Runtime.open(url, cantrips=[INTERVIEW], recover="resume") as runtime,
        people(runtime, anna=["Blue."]),
    ):
        episode = await runtime.get_entity(entity_id).episode()
    assert [turn.observation for turn in episode.thread] == ["Anna.", "Blue.", "Blue."]


async def test_an_entity_unloads_while_it_waits_for_a_reply() -> None:
    async with Runtime.open("memory:", cantrips=[INTERVIEW], passivate_after=60.0) as runtime:
        entity = await runtime.start(INTERVIEW, "Go.")
        await anyio.sleep(3600)
        assert not entity.loaded
        async with people(runtime, anna=["Anna.", "Blue."]):
            assert (await entity.episode()).result == "Blue."


async def test_a_conversation_is_forked_at_a_reply() -> None:
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Anna.", "Blue.", "Red."]):
        episode = await runtime.cast(INTERVIEW, "Go.")
        branch = await runtime.fork(episode.thread[0].id, intent="Ask for another one.", cantrip=INTERVIEW)
    assert branch.result == "Red."
    assert branch.thread[0].observation == "Anna."


async def test_a_process_that_dies_at_any_write_loses_no_reply_and_repeats_no_question() -> None:
    asked: list[str] = []

    def reply(request: Any) -> str:
        asked.append(request.text)
        return f"reply to {request.text}"

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[INTERVIEW], recover="resume")) as runtime:
            entity = await runtime.invoke(INTERVIEW, "Go.", name="x", key="begin")
            async with people(runtime, anna=reply):
                return await entity.episode()

    for crash in [point for point in await every_crash_point(program) if point.write is not None]:
        asked.clear()
        episode = (await run_with_crashes(program, [crash])).value
        answered = [turn.observation for turn in episode.thread][:2]
        assert answered == ["reply to What is your name?", "reply to Which colour do you like?"], crash
        assert list(dict.fromkeys(asked)) == ["What is your name?", "Which colour do you like?"], crash


# Children, people by name, circles


async def test_a_child_talks_with_a_person_unless_it_was_not_granted_that() -> None:
    children = [{"intent": "talk"}, {"intent": "compute", "gates": ["look_up"]}]

    def child(context: Any) -> Any:
        if context[-1].content == "compute":
            return "a text ends nothing without done"
        return "Child here?" if context[-1].content == "talk" else done(context[-1].content)

    parent = talking(say("call_agent_batch", intents=children), repeat_last, gates=["call_agent_batch"])
    spell = Cantrip(
        parent.crystal,
        circle=Circle([*parent.circle.gates], [max_turns(2), max_depth(1)], medium="person"),
        child_crystal=scripted(child),
    )
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Yes."]) as requests:
        episode = await runtime.cast(spell, "Go.")
        assert [request.text for request in requests] == ["Child here?"]
        assert requests[0].entity != episode.entity_id
    assert "Yes." in episode.result


@pytest.mark.rule("B-11")
async def test_an_utterance_that_begins_with_a_name_addresses_that_person() -> None:
    spell = talking(
        "@ben, your name?",
        "@zoe is not here.",
        "And both of you?",
        repeat_last,
        gates=[person.with_(to=["anna", "ben"])],
    )
    async with (
        Runtime.open("memory:") as runtime,
        people(runtime, anna=["She is.", "We are Anna and Ben."], ben=["Ben."]) as requests,
    ):
        episode = await runtime.cast(spell, "Go.")
    assert [request.to for request in requests] == ["ben", None, None]
    assert [turn.observation for turn in episode.thread][:3] == [
        "ben: Ben.",
        "anna: She is.",
        "anna: We are Anna and Ben.",
    ]


@pytest.mark.rule("B-11")
async def test_requests_and_their_events_say_whom_an_utterance_addresses() -> None:
    spell = talking("@ben: hi", repeat_last, gates=[person.with_(to=["anna", "ben"])])
    async with Runtime.open("memory:") as runtime:
        events = runtime.events(lambda event: isinstance(event, RequestedEvent))
        await runtime.start(spell, "Go.")
        event: Any = await anext(events)
        (request,) = runtime.requests()
        assert (event.is_utterance, event.to) == (request.is_utterance, request.to) == (True, "ben")
        assert request.render(who="talk") == ["talk says to ben:", "│ @ben: hi"]
        assert [one.id for one in runtime.requests(to="ben")] == [request.id]
        assert list(runtime.requests(to="anna")) == []


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Circle(["done", person], [max_turns(3)]), 'give the circle medium="person"'),
        (lambda: Circle(["done"], [max_turns(3), remove_gate("person")], medium="person"), "remove_gate"),
        (lambda: Circle(["done", person.with_(to=["two words"])], [max_turns(3)], medium="person"), "expected names"),
        (lambda: talking("hi", call=Call(tool_choice="required")), "no text would reach the person"),
    ],
    ids=["gate in another medium", "removed gate", "odd name", "forced calls"],
)
def test_a_circle_in_which_no_text_could_reach_a_person_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(InvalidCantrip, match=problem):
        make()


def test_only_done_ends_an_entity_that_talks() -> None:
    assert INTERVIEW.requires_done


async def test_replies_stay_words_of_a_person_in_a_selective_fold() -> None:
    contexts: list[Any] = []

    def note(context: Any) -> Any:
        contexts.append([content for _, content in roles(context)])
        return done("ok")

    spell = talking(
        "One?",
        say("look_up", word="cat"),
        "Two?",
        "Three?",
        note,
        folding=Folding(trigger_after_turns=2, keep_turns=1, selective=True),
    )
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["1", "2", "3"]):
        await runtime.cast(spell, "Go.")
    assert contexts[0] == ["Go.", "One?", "1", "", "[folded:look_up]", "Two?", "2", "Three?", "3"]


async def test_a_fold_leaves_no_question_without_its_reply() -> None:
    contexts: list[Any] = []

    def count(context: Any) -> Any:
        contexts.append(roles(context))
        asked = int(context[-1].content) if context[-1].content.isdecimal() else 0
        return done("ok") if asked == 6 else f"Question {asked + 1}?"

    spell = talking(count, folding=Folding(trigger_after_turns=3, keep_turns=2))
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["1", "2", "3", "4", "5", "6"]):
        await runtime.cast(spell, "Go.")
    assert contexts[-1][:1] == [("user", "Go.")]
    assert contexts[-1][1][1].startswith("[folded: turns 1-")
    assert contexts[-1][-4:] == [
        ("assistant", "Question 5?"),
        ("user", "5"),
        ("assistant", "Question 6?"),
        ("user", "6"),
    ]
    for context in contexts:
        for before, message in pairwise(context):
            assert before[0] == "user" or message == ("user", before[1].removeprefix("Question ").removesuffix("?"))


async def test_a_conversation_is_exported_as_the_crystal_read_it() -> None:
    contexts: list[Any] = []

    def note(context: Any) -> Any:
        contexts.append(roles(context))
        return done("ok")

    look = {"content": "I look.", **say("look_up", word="cat")}
    async with Runtime.open("memory:") as runtime, people(runtime, anna=["Anna.", Declined("busy")]):
        episode = await runtime.cast(talking("Name?", look, " ", "Colour?", note), "Go.")
        (line,) = chat_jsonl([conversation_of(runtime.loom, episode.entity_id)])
        assert "no reply: anna declined: busy" in b"".join(html_page(runtime.loom)).decode()
        steps = trajectory(runtime.loom, episode.entity_id)["steps"]
    messages = [(one["role"], one["content"] or "") for one in orjson.loads(line)["messages"]]
    assert messages[: len(contexts[0])] == contexts[0]
    assert ("user", "Anna.") in messages
    assert [tool["function"]["name"] for tool in orjson.loads(line)["tools"]] == ["done", "look_up"]
    assert "Anna." in str(steps)


async def test_an_entity_that_moves_to_a_circle_without_a_person_reads_that_its_text_is_gone(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []

    def note(context: Any) -> Any:
        seen.append(context[-1].content)
        return done("ok")

    url = f"jsonl:{tmp_path / 'loom'}"
    async with Runtime.open(url) as runtime:
        entity = await runtime.ensure("talk", talking("Hello?"))
        await entity.post("Go.", key="go")
        async with runtime.requests(follow=True) as requests:
            await anext(requests)
    silent = Cantrip(scripted(note), circle=Circle(["done", look_up], [max_turns(20)]), name="talk")
    async with Runtime.open(url) as runtime:
        await runtime.resume(entity.id, cantrip=silent)
        assert (await runtime.get_entity(entity.id).episode()).result == "ok"
    assert "the entity moved to a cantrip without it" in seen[0]


async def test_an_error_of_a_test_leaves_the_block_of_scripted_people_as_itself() -> None:
    async with Runtime.open("memory:") as runtime:
        with pytest.raises(ZeroDivisionError):
            async with people(runtime):
                1 / 0  # noqa: B018


# Any conversation

TEXTS = st.sampled_from(["Hello?", "Which?", " ", "@ben: you?"])
STEPS = st.lists(
    st.one_of(
        TEXTS.map(lambda text: {"content": text}),
        st.just(say("look_up", word="x")),
        st.just({"content": "Wait.", **say("look_up", word="y")}),
        st.just(say("no_such_gate")),
        st.just(say("person", text="May I?")),
    ),
    max_size=6,
)
REPLIES = st.lists(
    st.one_of(st.sampled_from(["yes", "no", "@anna: hm"]), st.builds(Declined, st.sampled_from(["", "no time"]))),
    min_size=7,
    max_size=7,
)


@settings(max_examples=15)
@given(steps=STEPS, replies=REPLIES, crashes=st.lists(st.builds(Crash, st.integers(1, 25), st.booleans()), max_size=3))
def test_any_conversation_alternates_and_loses_no_reply(steps: Any, replies: Any, crashes: Any) -> None:
    contexts: list[Any] = []

    def answer(context: Any) -> Any:
        contexts.append(list(context))
        spoken = sum(message.role == "assistant" for message in context)
        return steps[spoken] if spoken < len(steps) else done("ok")

    circle = Circle(["done", look_up, person.with_(to=["anna", "ben"])], [max_turns(20)], medium="person")
    spell = Cantrip(scripted(answer, record=False), circle=circle, name="talk")
    decided: dict[str, Any] = {}

    def reply(request: Any) -> Any:
        by = request.to or "anna"
        return decided.setdefault(request.id, (by, replies[len(decided)]))[1]

    async def program(process: Process) -> Any:
        async with process.attach(Runtime.open("memory:", cantrips=[spell], recover="resume")) as runtime:
            entity = await runtime.invoke(spell, "Go.", name="x", key="begin")
            async with people(runtime, anna=reply, ben=reply):
                await entity.episode()
            return [turn.observation for turn in runtime.loom.turns(entity.id)]

    backend, options = virtual("asyncio")
    seen = anyio.run(run_with_crashes, program, crashes, backend=backend, backend_options=options).value
    spoken = [message for message in contexts[-1] if message.role != "system"]
    for before, message in pairwise(spoken):
        assert before.role != "assistant" or message.role == ("tool" if before.tool_calls else "user")
        assert before.role != "user" or message.role == "assistant" or not (before.content or "").strip()
    assert [text for text in seen if text.startswith(("anna: ", "ben: ", "no reply"))] == [
        f"{by}: {reply}" if isinstance(reply, str) else f"no reply: {by} declined{reply.note and ': '}{reply.note}"
        for by, reply in decided.values()
    ]


async def hesitate(_: Any) -> Any:
    return {**done("late"), "delay": 3600.0}


HESITANT = Cantrip(scripted(hesitate), circle=Circle(["done"], [max_turns(3)], medium="person"), name="hesitant")


async def test_a_door_that_waits_for_an_utterance_gets_the_error_of_a_runtime_that_closes() -> None:
    errors: list[BaseException] = []

    async def wait(runtime: Runtime, entity: Entity) -> None:
        try:
            await rest(runtime, entity.id, entity.episode)
        except RuntimeClosed as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, Runtime.open() as runtime:
        entity = await runtime.invoke(HESITANT, "go")
        tasks.start_soon(wait, runtime, entity)
        await anyio.sleep(1)
    assert "its intent is in the loom" in str(errors[0])


async def test_a_door_that_waits_for_an_utterance_gets_the_error_of_a_damaged_loom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(HESITANT, "go")
        read, reads = runtime.read, []

        async def read_once(work: Any) -> Any:
            reads.append(work)
            if len(reads) > 1:
                raise DamagedLoom("a record was edited")
            return await read(work)

        monkeypatch.setattr(runtime, "read", read_once)
        with pytest.raises(DamagedLoom, match="edited"):
            await rest(runtime, entity.id, entity.episode)


async def test_a_door_that_waits_for_an_utterance_waits_through_an_outage_of_the_loom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(INTERVIEW, "hello")
        read, began = runtime.read, anyio.current_time()

        async def read_later(work: Any) -> Any:
            if anyio.current_time() < began + 60:
                raise LoomError("the server is away")
            return await read(work)

        monkeypatch.setattr(runtime, "read", read_later)
        utterance = await rest(runtime, entity.id, entity.episode)
        assert utterance.text == "What is your name?"
