"""An editor and an entity that talks: an utterance ends the prompt, and the next prompt is the reply."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_turns
from tests.acp.editors import ALL, edited
from tests.runtime.spells import done

pytestmark = pytest.mark.rule("B-10")


def policy(context: Any) -> Any:
    said = [message.content for message in context if message.role == "assistant" and message.content]
    if "Colour?" in said:
        return done(f"You like {context[-1].content}.")
    return "Colour?" if "Name?" in said else "Name?"


INTERVIEW = Cantrip(scripted(policy, record=False), circle=Circle(["done"], [max_turns(9)], medium="person"))


async def test_the_next_prompt_is_the_reply_to_an_utterance() -> None:
    async with edited(INTERVIEW) as editor:
        session = (await editor.ask("session/new"))["sessionId"]
        for prompt, text in (("Go.", "Name?"), ("Anna", "Name?Colour?"), ("blue", "Name?Colour?You like blue.")):
            assert await editor.prompt(session, prompt) == "end_turn"
            assert editor.text() == text
        assert not [update for update in editor.updates if update["sessionUpdate"].startswith("tool_call")]
        assert editor.asked == []  # an utterance is no form for the user


async def test_an_editor_that_loads_a_conversation_shows_both_sides_and_replies() -> None:
    async with edited(INTERVIEW, capabilities=ALL) as editor:
        session = (await editor.ask("session/new"))["sessionId"]
        await editor.prompt(session, "Go.")
        await editor.prompt(session, "Anna")
        before = len(editor.updates)
        await editor.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        shown = [
            (update["sessionUpdate"].partition("_")[0], update["content"]["text"])
            for update in editor.updates[before:]
            if update["sessionUpdate"].endswith("message_chunk")
        ]
        assert shown == [("user", "Go."), ("agent", "Name?"), ("user", "Anna"), ("agent", "Colour?")]
        assert await editor.prompt(session, "blue") == "end_turn"
        assert editor.text().endswith("You like blue.")


async def test_an_editor_that_loads_a_conversation_shows_an_intent_that_waits_behind_it() -> None:
    async with Runtime.open(cantrips=[INTERVIEW]) as runtime, edited(INTERVIEW, runtime=runtime) as first:
        session = (await first.ask("session/new"))["sessionId"]
        await first.prompt(session, "Go.")
        await runtime.get_entity(runtime.loom.entities()[0]).post("And then?")
        async with edited(INTERVIEW, runtime=runtime) as second:
            await second.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
            assert await second.prompt(session, "Anna") == "end_turn"
            assert await second.prompt(session, "blue") == "end_turn"
            await second.until(lambda: "You like And then?." in second.text())
            assert second.text("user_message_chunk").endswith("And then?")
