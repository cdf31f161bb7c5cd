"""The messages of a chat, for a page that is loaded again."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, call, echo, in_process, token
from tests.http.test_front_ends import parts_of, say

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-24")]
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAC"
    "hwGA60e6kgAAAABJRU5ErkJggg=="
)


async def messages_of(on: Served, chat: str = "bob", **more: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = (await on.get(f"chat/echo/{chat}", **more))["messages"]
    return messages


def texts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for message in messages for part in message["parts"] if part["type"] == "text"]


async def test_a_chat_that_is_loaded_again_has_the_messages_of_both_sides_with_their_ids() -> None:
    async with in_process([echo()]) as on:
        assert await messages_of(on) == []
        streamed = await parts_of(on, say("hello"))
        file = {"type": "file", "mediaType": "image/png", "url": DOT}
        message = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "look"}, file]}
        await parts_of(on, {"id": "bob", "messages": [message]})
        first, answer, second, _ = await messages_of(on)
        assert first == {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
        assert (answer["id"], answer["role"]) == (streamed[0]["messageId"], "assistant")
        assert answer["parts"] == [
            {"type": "step-start"},
            {"type": "text", "text": "you said: hello", "state": "done"},
        ]
        assert second == message
        assert (await messages_of(on, params={"limit": 1}))[0]["id"] == "m2"
        await on.ask("GET", "chat/echo/bob?limit=0", 422)


async def test_the_calls_of_a_chat_that_is_loaded_again_have_their_outcomes() -> None:
    script = [
        call("pay", amount=3),
        call("pay", amount=4),
        {"tool_calls": [{"gate": "nap", "args": {"seconds": -1}}]},
        call("done", answer={"n": 3}),
    ]
    async with in_process([echo(crystal=scripted(script))]) as on:
        await parts_of(on, say("go"))
        (request,) = on.runtime.requests()
        (user,) = await messages_of(on)  # the stream of the chat brings the rest, with its question
        assert user["role"] == "user"
        await on.runtime.decide(request.id, "allow", by="anna")
        async with on.runtime.requests(follow=True) as requests:
            await on.runtime.decide((await anext(requests)).id, "deny", by="anna")
        await on.runtime.get_entity(str(request.entity)).episode()
        parts = [part for part in (await messages_of(on))[1]["parts"] if part["type"].startswith("tool-")]
        assert [(part["type"], part["state"], part["input"]) for part in parts] == [
            ("tool-pay", "output-available", {"amount": 3}),
            ("tool-pay", "output-denied", {"amount": 4}),
            ("tool-nap", "output-error", {"seconds": -1}),
        ]
        assert parts[0]["output"] == "paid 3"
        assert "ValueError" in parts[2]["errorText"]
        assert texts_of(await messages_of(on))[-1] == '{"n":3}'


async def test_an_undone_message_is_not_in_a_chat_that_is_loaded_again() -> None:
    async with in_process([echo()]) as on:
        await parts_of(on, say("one"))
        await parts_of(on, say("two", id="m2"))
        await on.post("entities/bob/undo", {}, 200)
        assert texts_of(await messages_of(on)) == ["one", "you said: one"]


async def test_a_chat_with_a_person_that_is_loaded_again_has_each_reply_and_its_answer() -> None:
    script: list[Any] = ["Name?", "Age?", call("done", answer="Bye.")]
    cantrip = Cantrip(scripted(script), circle=Circle(["done"], [max_turns(9)], medium="person"), name="echo")
    async with in_process([cantrip]) as on:
        streams = [await parts_of(on, say(text, id=text)) for text in ("go", "Anna")]
        assert texts_of(await messages_of(on)) == ["go", "Name?", "Anna", "Age?"]
        streams.append(await parts_of(on, say("7", id="7")))
        messages = await messages_of(on)
        assert texts_of(messages) == ["go", "Name?", "Anna", "Age?", "7", "I call done", "Bye."]
        answers = [message["id"] for message in messages if message["role"] == "assistant"]
        assert answers == [stream[0]["messageId"] for stream in streams]


async def test_a_chat_is_loaded_again_only_for_a_token_that_may_read_it_and_without_secrets() -> None:
    tokens = [token("reader", "read"), token("other", "read", cantrips=frozenset({"other"})), token("caster", "cast")]
    async with in_process([echo(), echo("other")], *tokens) as on:
        await parts_of(on, say("my key is sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"))
        shown = str(await messages_of(on, headers=on.as_token("reader")))
        assert "my key is" in shown
        assert "abcdefghijklmnop" not in shown
        await on.ask("GET", "chat/echo/bob", 404, headers=on.as_token("other"))
        await on.ask("GET", "chat/echo/bob", 403, headers=on.as_token("caster"))
        await on.ask("GET", "chat/other/bob", 409)
