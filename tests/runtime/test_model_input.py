"""What a model was given can be read from the loom: it is what the crystal received, for every turn of every thread."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    Folding,
    Image,
    LoomError,
    Message,
    ModelInput,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.loom import open_loom
from cantrip_actors.wards import max_depth, max_turns

pytestmark = pytest.mark.rule("W-33")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

Received = list[list[Message]]


@gate(ephemeral=True)
async def peek(page: int) -> str:
    """Look at a page for a moment."""
    return f"page {page}: " + "words " * 50


@gate(max_shown=600)
async def read(name: str) -> str:
    """Read a long file."""
    return f"{name}: " + "text " * 1000


def recording(policy: Callable[[Sequence[Message]], Any], received: Received, **options: Any) -> Any:
    """Return a crystal that notes each context that it receives."""

    def answer(context: Sequence[Message]) -> Any:
        received.append([*context])
        return policy(context)

    return scripted(answer, **options)


def work(context: Sequence[Message]) -> Any:
    """Look, read, look again, and finish, for each intent."""
    since = 0
    for message in reversed(context):
        if message.role == "user" and not message.is_steering:
            break
        since += message.role == "assistant"
    calls = [("peek", {"page": since}), ("read", {"name": "a"}), ("peek", {"page": since}), ("done", {"answer": "ok"})]
    name, args = calls[min(since, 3)]
    return {"content": f"step {since}", "tool_calls": [{"gate": name, "args": args}]}


def make_worker(received: Received, **options: Any) -> Cantrip:
    circle = Circle(["done", peek, read], [max_turns(60), max_depth(1)])
    call = Call(system_prompt="You look things up.", temperature=0.5)
    return Cantrip(recording(work, received, name="worker"), call, circle, name="worker", **options)


async def read_inputs(runtime: Runtime, entity_id: str) -> list[ModelInput]:
    return [await runtime.model_input(turn.id) for turn in runtime.loom.turns(entity_id)]


async def test_the_input_of_each_turn_is_what_the_crystal_received() -> None:
    received: Received = []
    async with Runtime.open("memory:") as runtime:
        image = Image(PIXEL)
        episode = await runtime.cast(make_worker(received), ["look at this", image], context={"rows": [1, 2]})
        inputs = await read_inputs(runtime, episode.entity_id)
        assert [[*given.messages] for given in inputs] == received
        first = inputs[0]
        assert first.messages[0] == Message("system", "You look things up.")
        assert [image.media_type for message in first.messages for image in message.images] == ["image/png"]
        assert first.settings == {"temperature": 0.5}
        assert [tool["name"] for tool in first.tools] == ["done", "peek", "read"]
        assert (first.crystal, first.is_exact, first.folded_turns) == ("worker", True, ())


async def test_the_input_names_the_turns_that_were_folded_when_it_was_sent() -> None:
    received: Received = []
    async with Runtime.open("memory:") as runtime:
        cantrip = make_worker(received, folding=Folding(trigger_after_turns=4))
        entity = await runtime.invoke(cantrip, "the first", name="notes")
        await entity.episode()
        for intent in ("the second", "the third"):
            await entity.steer("be quick", pin=intent == "the second")
            await entity.send(intent)
        inputs = await read_inputs(runtime, entity.id)
        assert [[*given.messages] for given in inputs] == received
        turns = [turn.id for turn in runtime.loom.turns(entity.id)]
        assert inputs[0].folded_turns == ()
        assert 0 < len(inputs[-1].folded_turns) < len(turns)
        assert [*inputs[-1].folded_turns] == turns[: len(inputs[-1].folded_turns)]


async def test_the_input_of_forks_undone_intents_and_children_is_read_too() -> None:
    received: Received = []

    def delegate(context: Sequence[Message]) -> Any:
        if context[-1].role == "user" and context[-1].content == "ask":
            return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "help"}}]}
        return f"answer to {context[-1].content}"

    circle = Circle(["done", "call_agent"], [max_turns(60), max_depth(1)])
    cantrip = Cantrip(recording(delegate, received), Call(system_prompt="You ask."), circle, name="asker")
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.invoke(cantrip, "one", name="asker")
        await entity.episode()
        await entity.send("two")
        await entity.undo()
        await entity.send("ask")
        fork = await runtime.fork(runtime.loom.turns(entity.id)[0].id, intent="another way")
        ids = [entity.id, *(header.entity_id for header in runtime.loom.headers() if header.entity_id != entity.id)]
        assert fork.entity_id in ids
        contexts = [[*one.messages] for entity_id in ids for one in await read_inputs(runtime, entity_id)]
        assert len(ids) == 3
        for context in contexts:
            assert context in received
        assert all(context in contexts for context in received)


async def test_the_input_of_a_code_circle_has_the_description_of_its_functions() -> None:
    pytest.importorskip("pydantic_monty")
    received: Received = []
    crystal = recording(lambda _context: {"code": "done(len(context))"}, received)
    cantrip = Cantrip(crystal, Call(system_prompt="You count."), Circle(["done"], [max_turns(5)], medium="python"))
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(cantrip, "count", context="abc")
        (given,) = await read_inputs(runtime, episode.entity_id)
        assert [*given.messages] == received[0]
        assert "done(" in (given.messages[1].content or "")


async def test_a_process_without_the_cantrip_says_that_the_input_is_not_exact(tmp_path: Any) -> None:
    received: Received = []
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as runtime:
        episode = await runtime.cast(make_worker(received), "go")
        turns = [turn.id for turn in episode.thread]
    async with Runtime.open(url) as runtime:
        unknown = [await runtime.model_input(turn) for turn in turns]
    async with Runtime.open(url, cantrips=[make_worker([])]) as runtime:
        known = [await runtime.model_input(turn) for turn in turns]
    assert [given.is_exact for given in unknown] == [False] * 4
    assert [given.is_exact for given in known] == [True] * 4
    assert [[*given.messages] for given in known] == received
    assert [given.messages[:2] for given in unknown] == [given.messages[:2] for given in known]


async def test_the_input_of_an_unknown_and_of_a_forgotten_turn_is_an_error(tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url) as runtime:
        episode = await runtime.cast(make_worker([]), "go")
        with pytest.raises(LoomError):
            await runtime.model_input("nothing")
        await runtime.forget(episode.entity_id)
        with pytest.raises(LoomError):
            await runtime.model_input(episode.thread[0].id)
    with open_loom(url) as loom:
        assert loom.is_forgotten(episode.entity_id)
