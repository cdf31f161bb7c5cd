"""The thread of an entity as messages (Y-21)."""

from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    Folding,
    Message,
    Runtime,
    ThreadMessage,
    UnknownEntity,
    gate,
    scripted,
)
from cantrip_actors.loom.reading.view import fold_entity
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("Y-21")


@gate
def look(name: str) -> str:
    """Look something up."""
    return f"the text of {name}"


def think(context: Any) -> dict[str, Any]:
    last = context[-1]
    if last.role == "tool":
        return {"content": None, "tool_calls": [{"gate": "done", "args": {"answer": f"read: {last.content}"}}]}
    return {"content": "I look.", "tool_calls": [{"gate": "look", "args": {"name": last.content}}]}


DESK = Cantrip(
    scripted(think),
    Call("Be terse."),
    Circle(["done", look], [max_turns(5)]),
    folding=Folding(trigger_after_turns=4, keep_turns=2),
    name="desk",
)


async def test_messages_have_both_sides_with_senders_and_times() -> None:
    async with Runtime.open() as runtime:
        desk = await runtime.ensure("notes", DESK)
        assert await desk.messages() == []
        await desk.steer("be quick", by="ben")
        await desk.send("milk", by="anna", context={"list": 1})
        told = await desk.messages()
        assert [(one.role, one.content, one.by) for one in told] == [
            ("user", "be quick", "ben"),
            ("user", "milk", "anna"),
            ("user", 'context:\n{"list":1}', "anna"),
            ("assistant", "I look.", "notes"),
            ("tool", 'the text of context:\n{"list":1}', "notes"),
            ("assistant", None, "notes"),
            ("tool", 'read: the text of context:\n{"list":1}', "notes"),
        ]
        assert [one.is_steering for one in told[:2]] == [True, False]
        assert all(isinstance(one, Message) and isinstance(one, ThreadMessage) for one in told)
        assert [one.turn_id for one in told[3:]] == [turn.id for turn in runtime.loom.turns(desk.id) for _ in "12"]
        assert sorted(one.at for one in told) == [one.at for one in told]
        assert [await runtime.messages(one) for one in ("notes", desk.id, desk)] == [told] * 3
        fork = await runtime.start_fork(told[3].turn_id or "", intent="bread", by="carl")
        await fork.episode()
        assert [(one.content, one.by) for one in await fork.messages()][:7] == [
            *((one.content, one.by) for one in told[:3]),
            ("I look.", fork.id),
            (told[4].content, fork.id),
            ("bread", "carl"),
            ("I look.", fork.id),
        ]
        with pytest.raises(UnknownEntity):
            await runtime.messages("nobody")


async def test_messages_that_are_not_folded_are_those_that_the_crystal_reads() -> None:
    async with Runtime.open() as runtime:
        desk = await runtime.ensure("notes", DESK)
        for number in range(8):
            await desk.send(f"intent {number}")
            if number in (2, 4):
                await desk.steer(f"hurry {number}")
            if number == 3:
                assert await desk.undo()
            told, state = await desk.messages(), fold_entity(runtime.loom, desk.id)
            read = [one for one in state.conversation.context if isinstance(one, Message) and one.role != "system"]
            shown = [(one.role, one.content) for one in told if not one.is_folded]
            assert shown == [(one.role, one.content) for one in read if "folded" not in (one.content or "")[:9]]
        assert any(one.is_folded for one in told)
        assert [one.content for one in told if one.role == "user" and not one.is_steering] == [
            f"intent {number}" for number in range(8) if number != 3
        ]


async def test_an_entity_that_is_steered_before_its_first_intent_has_its_system_prompt() -> None:
    seen: list[list[str | None]] = []

    def answer(context: Any) -> str:
        seen.append([one.content for one in context])
        return "ok"

    def spell(prompt: str) -> Cantrip:
        return Cantrip(scripted(answer), Call(prompt), Circle(["done"], [max_turns(2)]), name="desk")

    async with Runtime.open(passivate_after=1.0) as runtime:
        for name, moves in (("stays", False), ("moves", True)):
            entity = await runtime.ensure(name, spell("one"))
            await entity.steer("hurry")
            await anyio.sleep(5)
            if moves:
                entity = runtime.get_entity(name, cantrip=spell("other"))
            await entity.send("go")
            await entity.send("more")
    assert seen == [[prompt, "hurry", "go", *rest] for prompt in ("one", "other") for rest in ([], ["ok", "more"])]
