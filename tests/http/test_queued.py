"""A message to an entity that works on another intent: its stream says that it waits, and has its own answer only."""

import json
from functools import partial
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Entity, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, in_process

pytestmark = pytest.mark.rule("W-27")

WAITS = ": queued: the entity works on another intent"


def slow() -> Cantrip:
    async def answer(context: Any) -> Any:
        last = context[-1].content
        return {"content": f"so: {last}", "delay": 40.0 if last == "slow" else 1.0}

    return Cantrip(scripted(answer), circle=Circle(["done"], [max_turns(5)]), name="echo")


async def occupy(on: Served) -> Entity:
    """Return the entity "bob", which works on an intent for forty seconds."""
    entity = await on.runtime.ensure("bob", slow())
    await entity.post("slow")
    await anyio.sleep(1)
    return entity


def bodies(text: str = "quick") -> dict[str, Any]:
    """Return the body of a streamed message to "bob" for each door."""
    said = [{"role": "user", "content": text}]
    return {
        "/v1/chat/completions": {"model": "entity:bob", "stream": True, "messages": said},
        "/v1/responses": {"model": "entity:bob", "stream": True, "input": text},
        "/v1/messages": {"model": "entity:bob", "stream": True, "messages": said, "max_tokens": 9},
        "chat/echo": {
            "id": "bob",
            "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}],
        },
        "ag-ui/echo": {"threadId": "bob", "runId": "r", "messages": [{"id": "n", "role": "user", "content": text}]},
    }


@pytest.mark.parametrize("path", bodies())
async def test_a_stream_has_only_the_answer_to_its_own_message(path: str) -> None:
    async with in_process([slow()]) as on:
        entity = await occupy(on)
        async with anyio.create_task_group() as tasks:

            async def follow_up() -> None:
                await anyio.sleep(20)
                await entity.post("later")

            tasks.start_soon(follow_up)
            streamed = (await on.ask("POST", path, 200, json=bodies()[path])).text
        assert "so: quick" in streamed
        assert "so: slow" not in streamed
        assert "so: later" not in streamed


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_comments_say_that_a_message_waits_and_keep_its_connection(path: str) -> None:
    async with in_process([slow()]) as on:
        await occupy(on)
        streamed = (await on.ask("POST", path, 200, json=bodies()[path])).text
        assert streamed.count(WAITS) == 3  # at once, and after each 15 of 39 seconds
        quiet = (await on.ask("POST", path, 200, json=bodies()[path])).text
        assert WAITS not in quiet


def read_events(streamed: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]


async def test_a_response_is_queued_until_it_is_in_progress() -> None:
    async with in_process([slow()]) as on:
        await occupy(on)
        for kinds in (["response.created", "response.queued", "response.in_progress"], ["response.created"]):
            streamed = (await on.ask("POST", "/v1/responses", 200, json=bodies()["/v1/responses"])).text
            events = read_events(streamed)
            assert [event["type"] for event in events][: len(kinds)] == kinds
            if "response.queued" in kinds:
                assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
            else:
                assert events[1]["type"] == "response.in_progress"


async def test_a_page_gets_a_part_that_says_that_its_message_waits() -> None:
    async with in_process([slow()]) as on:
        await occupy(on)
        parts = read_events((await on.ask("POST", "chat/echo", 200, json=bodies()["chat/echo"])).text)
        assert parts[1] == {"type": "data-queued", "data": {}, "transient": True}
        await occupy(on)
        events = read_events((await on.ask("POST", "ag-ui/echo", 200, json=bodies()["ag-ui/echo"])).text)
        assert events[1] == {"type": "CUSTOM", "name": "queued", "value": {}}


async def test_a_repeated_request_streams_the_answer_that_is_under_way() -> None:
    async with in_process([slow()]) as on:
        await occupy(on)
        path, keyed = "/v1/chat/completions", {"headers": {"idempotency-key": "k"}}
        texts: list[str] = []

        async def ask(delay: float) -> None:
            await anyio.sleep(delay)
            texts.append((await on.ask("POST", path, 200, json=bodies()[path], **keyed)).text)

        async with anyio.create_task_group() as tasks:
            for delay in (0, 39.5, 60):  # it waits, is worked on, and has its answer
                tasks.start_soon(ask, delay)
        assert all(text.count("so: quick") == 1 and "so: slow" not in text for text in texts)
        assert len(texts) == 3


async def test_a_page_that_is_loaded_again_shows_the_messages_that_wait_behind_the_answer_under_way() -> None:
    async def list_texts(on: Served, path: str = "chat/echo/bob") -> list[list[str]]:
        chat = await on.get(path)
        return [
            [part["text"] for message in chat[name] for part in message["parts"] if part["type"] == "text"]
            for name in ("messages", "waiting")
        ]

    async def resume() -> str:
        return (await on.ask("GET", "chat/echo/bob/stream", 200)).text

    async with in_process([slow()]) as on:
        await occupy(on)
        async with anyio.create_task_group() as tasks:
            for text, id in (("quick", "m"), ("next", "n")):
                body = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
                tasks.start_soon(partial(on.ask, "POST", "chat/echo", json={"id": "bob", "messages": [body]}))
                await anyio.sleep(5)
            waiting = (await on.get("chat/echo/bob"))["waiting"]
            assert [(message["id"], message["role"]) for message in waiting] == [("m", "user"), ("n", "user")]
            for path in ("chat/echo/bob", "chat/echo/bob?limit=1"):
                assert await list_texts(on, path) == [
                    ["slow"],
                    ["quick", "next"],
                ]  # the stream continues the first list
            assert "so: slow" in await resume()
        assert await list_texts(on) == [["slow", "so: slow", "quick", "so: quick", "next", "so: next"], []]


async def test_a_page_gets_the_stream_of_a_message_that_waits_while_nothing_runs() -> None:
    async with in_process([slow()]) as on:
        entity = await on.runtime.ensure("bob", slow())
        await on.ask("GET", "chat/echo/bob/stream", 204)
        for text in ("quick", "next"):
            await entity.post(text)
        chat = await on.get("chat/echo/bob")
        assert [len(chat["messages"]), len(chat["waiting"])] == [1, 1]  # the stream has the answer to the first
        streamed = read_events((await on.ask("GET", "chat/echo/bob/stream", 200)).text)
        assert "so: quick" in str(streamed)
