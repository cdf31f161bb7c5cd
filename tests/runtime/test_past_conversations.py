"""An intent with a history: messages of an earlier conversation are the beginning of the entity's context (W-21)."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    EntityStartedEvent,
    Folding,
    Image,
    InvalidIntent,
    Message,
    Runtime,
    ToolCall,
    scripted,
)
from cantrip_actors.crystal.encode import SamplingSettings
from cantrip_actors.crystal.provider import ProviderQuery
from cantrip_actors.loom import KeyUsed
from cantrip_actors.loom.export.atif import segments, trajectory
from cantrip_actors.loom.export.chat import build_chat_messages
from cantrip_actors.loom.export.conversation import build_messages, conversation_of
from cantrip_actors.loom.export.html import html_page
from cantrip_actors.loom.export.story import build_data, read_durable
from cantrip_actors.runtime.entity import cells
from cantrip_actors.stream.reading import EventLog, read_events
from cantrip_actors.terms import history as histories
from cantrip_actors.wards import max_turns
from tests.crystal.asking import TOOLS
from tests.crystal.test_histories import CRYSTALS
from tests.pictures import png
from tests.provider_rules import list_refusals
from tests.published import fault

pytestmark = pytest.mark.rule("W-21")

PICTURE = Image(png())
CALLED = ToolCall("their call: 1", "their.tool/look", {"at": "a", "deep": {"x": [1, None]}})
TALK: tuple[Any, ...] = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": ["What is on it?", PICTURE]},
    Message("assistant", "I look.", (CALLED,), thinking="hm"),
    {"role": "tool", "tool_call_id": CALLED.id, "content": "a cat", "is_error": True},
    {"role": "assistant", "content": "A cat."},
)
ROLES = ["system", "user", "assistant", "tool", "assistant"]


def make(seen: list[list[Message]], **parts: Any) -> Cantrip:
    """Return a cantrip whose crystal notes its messages, and answers with the number of its query."""

    def answer(context: Any) -> dict[str, Any]:
        seen.append(list(context))
        return {"tool_calls": [{"gate": "done", "args": {"answer": f"answer {len(seen)}"}}]}

    parts = {"name": "talker", "call": Call("Be terse."), **parts}
    return Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(5)]), **parts)


def show(messages: Any) -> list[tuple[Any, ...]]:
    return [(message.role, message.content) for message in messages]


async def test_a_history_precedes_the_intent_with_roles_calls_results_and_images() -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        await runtime.cast(make(seen), ["And now?", Image(png(shade=9))], history=TALK)
    (messages,) = seen
    assert [message.role for message in messages] == ["system", *ROLES, "user"]
    call, system, question, said, result, answer, intent = messages
    assert [call.content, system.content, answer.content] == ["Be terse.", "Be kind.", "A cat."]
    assert (question.content, [image.digest for image in question.images]) == ("What is on it?", [PICTURE.digest])
    assert (said.tool_calls, said.thinking) == ((CALLED,), "hm")
    assert (result.content, result.tool_call_id, result.gate, result.is_error) == (
        "a cat",
        CALLED.id,
        CALLED.gate,
        True,
    )
    assert (intent.content, len(intent.images)) == ("And now?", 1)


@pytest.mark.parametrize("begin", ["invoke", "start", "stream"])
async def test_every_way_to_begin_takes_a_history(begin: str) -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        if begin == "stream":
            async with runtime.stream(make(seen), "go", history=TALK) as run:
                await run.result()
        else:
            entity = await getattr(runtime, begin)(make(seen), "go", history=TALK)
            await entity.episode()
    assert [message.role for message in seen[0]] == ["system", *ROLES, "user"]


async def test_a_further_intent_and_a_fork_bring_their_own_history() -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(make(seen), "first", history=TALK[:2])
        first = await entity.episode()
        await entity.send("second", history=[{"role": "user", "content": "from elsewhere"}])
        async with entity.stream("third", history=[{"role": "user", "content": "streamed"}]) as run:
            await run.result()
        await runtime.fork(first.thread[-1].id, intent="fork", history=[{"role": "user", "content": "beside"}])
        work = await entity.work.continue_with("branch", history=[{"role": "user", "content": "aside"}])
        await work.result()
    assert show(seen[1])[-2:] == [("user", "from elsewhere"), ("user", "second")]
    assert show(seen[2])[-2:] == [("user", "streamed"), ("user", "third")]
    assert show(seen[3])[-2:] == [("user", "beside"), ("user", "fork")]
    assert show(seen[4])[-2:] == [("user", "aside"), ("user", "branch")]
    assert all(show(messages)[:3] == show(seen[0])[:3] for messages in seen)


async def test_a_restarted_entity_has_the_same_history(tmp_path: Path) -> None:
    seen: list[list[Message]] = []
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(make(seen), "first", name="a", history=TALK)).episode()
    async with Runtime.open(url, cantrips=[make(seen)]) as runtime:
        await runtime.get_entity("a").send("second")
    assert seen[1][: len(seen[0])] == seen[0]
    assert seen[1][2].images[0].data == PICTURE.data


async def test_an_entity_that_moves_to_another_prompt_keeps_the_system_messages_of_its_history(tmp_path: Path) -> None:
    seen: list[list[Message]] = []
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        await (await runtime.invoke(make(seen), "first", name="a", history=TALK)).episode()
    async with Runtime.open(url, cantrips=[make(seen, call=Call("Be long."))]) as runtime:
        await runtime.get_entity("a").send("second")
    assert show(seen[1])[:3] == [("system", "Be long."), ("system", "Be kind."), ("user", "What is on it?")]


async def test_a_fold_keeps_the_history_of_the_first_intent_and_folds_later_ones() -> None:
    seen: list[list[Message]] = []
    folding = Folding(trigger_after_turns=3, keep_turns=1, summary=False)
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(make(seen, folding=folding), "first", history=TALK)
        await entity.episode()
        await entity.send("second", history=[{"role": "user", "content": "from elsewhere"}])
        for intent in ("third", "fourth", "fifth"):
            await entity.send(intent)
        shown = await entity.messages()
    assert show(seen[-1])[:7] == show(seen[0])
    assert ("user", "from elsewhere") not in show(seen[-1])
    folded = {message.content: message.is_folded for message in shown if message.role == "user"}
    assert [folded[text] for text in ("What is on it?", "first", "from elsewhere", "fifth")] == [
        False,
        False,
        True,
        False,
    ]


async def test_a_repeated_key_with_another_history_is_refused() -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        first = await runtime.cast(make(seen), "go", key="k", history=TALK)
        again = await runtime.cast(make(seen), "go", key="k", history=list(TALK))
        assert (again.entity_id, len(seen)) == (first.entity_id, 1)
        with pytest.raises(KeyUsed, match="history"):
            await runtime.cast(make(seen), "go", key="k", history=TALK[1:])
        entity = await runtime.invoke(make(seen), "go")
        await entity.send("more", key="k", history=TALK)
        await entity.send("more", key="k", history=TALK)
        with pytest.raises(KeyUsed):
            await entity.send("more", key="k", history=TALK[1:])


async def test_the_messages_of_an_entity_are_a_history_of_another() -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(make(seen), "first", history=TALK)
        await entity.episode()
        await runtime.cast(make(seen, call=Call()), "second", history=await entity.messages())
    assert show(seen[1])[:6] == show(seen[0])[1:]
    assert show(seen[1])[6:] == [("assistant", None), ("tool", "answer 1"), ("user", "second")]


INVALID: dict[str, tuple[Any, str]] = {
    "a text": ("hi", "history: expected a list of messages"),
    "a message that is none": (["hi"], r"history\[0\]: expected a Message or a mapping"),
    "another role": ([{"role": "robot", "content": "hi"}], r"history\[0\]: expected one of the roles system, user"),
    "an unknown field": ([{"role": "user", "contents": "hi"}], 'unknown field "contents".*content'),
    "nothing in it": ([TALK[0], {"role": "user", "content": " "}], r"history\[1\]:.*says nothing"),
    "content that is no text": ([{"role": "user", "content": 5}], r"history\[0\]: expected a text"),
    "calls of a user": ([{"role": "user", "content": "a", "tool_calls": [{"gate": "x"}]}], "of an assistant only"),
    "a call without a name": ([{"role": "assistant", "tool_calls": [{"args": {}}]}], "without a gate's name"),
    "an image of a system": ([{"role": "system", "content": ["a", PICTURE]}], "a system message of text"),
    "an id that is no text": ([{"role": "tool", "content": "a", "tool_call_id": 5}], "tool_call_id as a text"),
    "images that are none": ([{"role": "user", "content": "a", "images": ["b"]}], "a list of Image and File"),
    "blocks that are none": ([{"role": "assistant", "content": "a", "blocks": ["b"]}], "blocks that are not objects"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_history_is_refused_with_the_message_that_is_wrong(name: str) -> None:
    history, problem = INVALID[name]
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match=problem):
            await runtime.cast(make([]), "go", history=history)
        assert list(runtime.loom.entities()) == []


async def test_a_history_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MAX_INPUT", 100)
    monkeypatch.setattr(histories, "MOST_MESSAGES", 3)
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidIntent, match="its history have 1"):
            await runtime.cast(make([]), "go", history=[{"role": "user", "content": "x" * 120}])
        with pytest.raises(InvalidIntent, match="at most 3 messages"):
            await runtime.cast(make([]), "go", history=[{"role": "user", "content": "x"}] * 4)


async def test_the_event_of_an_intent_has_its_history_without_bytes() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(make([]), "And now?", history=TALK)
        await entity.episode()
        events = runtime.events(entity=entity.id)
        await entity.send("And then?", history=TALK[:1])
        further = await anext(events)
        events.close()
        records = runtime.loom.records(entity.id)
    first, *_ = read_events(records)
    assert isinstance(first, EntityStartedEvent)
    assert isinstance(further, EntityStartedEvent)
    assert ([message.role for message in first.history], first.history[1].images) == (ROLES, 1)
    assert [message.content for message in further.history] == ["Be kind."]
    (
        begun,
        *_,
    ) = [build_data(one) for one in read_durable(EventLog(), records)]
    assert [(message["role"], message.get("gate")) for message in begun["history"]] == [
        *zip(ROLES, [None, None, None, CALLED.gate, None], strict=True)
    ]
    assert begun["history"][1]["images"][0]["url"].startswith("data:image/png;base64,")
    assert "images" not in begun


async def test_exports_have_the_messages_of_a_history() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(make([]), "And now?", history=TALK)
        await entity.episode()
        loom = runtime.loom
        chat = build_chat_messages(build_messages(conversation_of(loom, entity.id)))
        page = b"".join(html_page(loom)).decode()
        steps, (segment,) = trajectory(loom, entity.id)["steps"], segments(loom, entity.id)
    assert [message["role"] for message in chat][:8] == ["system", *ROLES, "user", "assistant"]
    assert chat[3]["tool_calls"][0]["function"]["name"] == CALLED.gate
    assert [step["source"] for step in steps] == ["system", "system", "user", "agent", "agent", "user", "agent"]
    assert [step.get("is_copied_context", False) for step in steps] == [False, *[True] * 4, False, False]
    assert steps[3]["observation"]["results"][0]["source_call_id"] == CALLED.id
    assert segment["steps"] == steps
    assert CALLED.gate in page


WAYS: dict[str, tuple[Any, ...]] = {
    "a whole conversation": TALK,
    "one that begins with an answer": TALK[4:],
    "one that begins with a call": TALK[2:],
    "a result without its call": TALK[3:4],
    "a call without its result": TALK[2:3],
    "the same call twice": TALK[1:4] * 2,
    "system messages in between": (*TALK[1:], TALK[0], TALK[1]),
}


@pytest.mark.parametrize("reader", CRYSTALS)
async def test_every_provider_takes_any_history(reader: str) -> None:
    seen: list[list[Message]] = []
    async with Runtime.open() as runtime:
        for history in WAYS.values():
            await runtime.cast(make(seen), "And now?", history=history)
    family = CRYSTALS[reader].family
    for way, messages in zip(WAYS, seen, strict=True):
        asked = ProviderQuery(messages, TOOLS, None, SamplingSettings.of({"max_tokens": 100}))
        request = family.make_request(asked)
        assert fault(family.provider, request.path, request.body) is None, way
        assert list_refusals(family.provider, request.path, request.body) == [], way
        assert ("Be kind." in request.body.decode()) == (way.startswith(("a whole", "system"))), way
