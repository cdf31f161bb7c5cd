"""Conversations over HTTP: an utterance is the answer of one request, and the reply the message of the next."""

import json
from typing import Any

import anthropic
import anyio
import openai
import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.gates import person
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, Served, served
from tests.pictures import PDF, data_url, png
from tests.runtime.spells import done, say

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.rule("B-10"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # openai's streams leave generators on trio
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # likewise
]


PDF_URL = data_url(PDF, "application/pdf")
ROUNDS = [("Go.", "Name?"), ("Anna", "Colour?"), ("blue", "Anna likes blue")]


def policy(context: Any) -> Any:
    """Ask for a name, then for a colour; then say both."""
    heard = [message.content for message in context if message.role == "user"]
    said = [message.content for message in context if message.role == "assistant" and message.content]
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    if "Colour?" in said:
        return done(" likes ".join(heard[-2:]))
    return {"content": "Colour?" if "Name?" in said else "Name?", "usage": usage}


def interview(*gates: Any) -> Cantrip:
    circle = Circle(["done", *gates], [max_turns(9)], medium="person")
    return Cantrip(scripted(policy, record=False), circle=circle, name="interview")


def client_of(on: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key=ADMIN, max_retries=0)


async def complete(client: openai.AsyncOpenAI, model: str, messages: list[Any], *, is_stream: bool, **more: Any) -> Any:
    if not is_stream:
        return await client.chat.completions.create(model=model, messages=messages, **more)
    async with client.chat.completions.stream(model=model, messages=messages, **more) as stream:
        return await stream.get_final_completion()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_client_talks_with_an_entity(is_stream: bool) -> None:
    async with served([interview()]) as on, client_of(on) as client:
        entity = await on.runtime.ensure("anna", interview())
        messages: list[Any] = []
        answers = []
        for text in ("Go.", "Anna", "blue"):
            messages.append({"role": "user", "content": text})
            answer = await complete(client, "entity:anna", messages, is_stream=is_stream)
            choice = answer.choices[0]
            answers.append((choice.message.content, choice.finish_reason))
            messages.append({"role": "assistant", "content": choice.message.content})
        assert answers == [("Name?", "stop"), ("Colour?", "stop"), ("Anna likes blue", "stop")]
        turns = on.runtime.loom.turns(entity.id)
        assert [one.by for turn in turns for one in turn.decisions] == ["admin", "admin"]
        assert len(on.runtime.loom.intents(entity.id)) == 1


async def test_a_repeated_request_is_one_reply() -> None:
    async with served([interview()]) as on, client_of(on) as client:
        entity = await on.runtime.ensure("anna", interview())
        for key, (text, expected) in enumerate(ROUNDS):
            for _ in range(2):
                answer = await client.chat.completions.create(
                    model="entity:anna",
                    messages=[{"role": "user", "content": text}],
                    extra_headers={"idempotency-key": str(key)},
                )
                assert answer.choices[0].message.content == expected
        assert [turn.observation for turn in on.runtime.loom.turns(entity.id)][:2] == ["Anna", "blue"]


async def test_a_chat_client_of_a_cantrip_holds_the_conversation_itself() -> None:
    async with served([interview()]) as on, client_of(on) as client:
        messages: list[Any] = []
        for text, expected in ROUNDS:
            messages.append({"role": "user", "content": text})
            answer = await client.chat.completions.create(model="interview", messages=messages)
            assert answer.choices[0].message.content == expected
            messages.append({"role": "assistant", "content": expected})
        assert list(on.runtime.requests()) == []  # no entity waits for a reply that cannot come


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_is_replied_to_by_the_next_one(is_stream: bool) -> None:
    async with served([interview()]) as on, client_of(on) as client:
        previous, texts = None, []
        for text in ("Go.", "Anna", "blue"):
            asked: Any = {"model": "interview", "input": text, "previous_response_id": previous}
            if is_stream:
                async with client.responses.stream(**{k: v for k, v in asked.items() if v}) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(**asked)
            assert response.status == "completed"
            texts.append(response.output_text)
            if text == "Go.":
                assert (await client.responses.retrieve(response.id)).output_text == "Name?"
            previous = response.id
        assert texts == ["Name?", "Colour?", "Anna likes blue"]
        assert len(on.runtime.loom.entities()) == 1


async def test_a_client_of_anthropics_api_talks_with_an_entity() -> None:
    async with (
        served([interview()]) as on,
        anthropic.AsyncAnthropic(base_url=on.url, api_key=ADMIN, max_retries=0) as client,
    ):
        await on.runtime.ensure("anna", interview())
        for text, expected in ROUNDS:
            answer: Any = await client.messages.create(
                model="entity:anna", max_tokens=99, messages=[{"role": "user", "content": text}]
            )
            assert (answer.content[0].text, answer.stop_reason) == (expected, "end_turn")


async def test_a_client_replies_to_a_child_of_its_entity() -> None:
    def child(context: Any) -> Any:
        return done(context[-1].content) if any(one.role == "assistant" for one in context) else "Child: which?"

    def parent(context: Any) -> Any:
        last = context[-1]
        return done(f"it said {last.content}") if last.role == "tool" else say("call_agent", intent="Ask.")

    circle = Circle(["done", "call_agent"], [max_turns(9)], medium="person")
    spell = Cantrip(scripted(parent, record=False), circle=circle, child_crystal=scripted(child), name="interview")
    async with served([spell]) as on, client_of(on) as client:
        await on.runtime.ensure("anna", spell)
        for text, expected in (("Go.", "Child: which?"), ("this one", "it said this one")):
            answer = await complete(client, "entity:anna", [{"role": "user", "content": text}], is_stream=False)
            assert answer.choices[0].message.content == expected


@pytest.mark.rule("B-11")
async def test_requests_are_listed_for_one_person_and_answered_with_files() -> None:
    seen: list[Any] = []

    def answer(context: Any) -> Any:
        seen.append(context[-1])
        return done("ok") if any(message.role == "assistant" for message in context) else "@anna: a picture of you?"

    circle = Circle(["done", person.with_(to=["anna", "ben"])], [max_turns(9)], medium="person")
    spell = Cantrip(scripted(answer, record=False), circle=circle, name="talk")
    async with served([spell]) as on:
        entity = await on.runtime.start(spell, "Go.")
        while not (items := (await on.get("requests?to=anna"))["items"]):
            await anyio.sleep(0.02)
        (request,) = items
        assert (request["text"], request["to"], request["is_utterance"]) == ("@anna: a picture of you?", "anna", True)
        assert (await on.get("requests?to=ben"))["items"] == []
        await on.post(f"requests/{request['id']}", {"answer": "  "}, 422)
        body = {
            "answer": "Here I am.",
            "images": [data_url(png(), "image/png")],
            "files": [{"url": PDF_URL, "filename": "cv.pdf"}],
        }
        await on.post(f"requests/{request['id']}", body, 200)
        assert (await entity.episode()).result == "ok"
    assert seen[-1].content == "admin: Here I am."
    assert [file.media_type for file in seen[-1].images] == ["image/png", "application/pdf"]


# Front ends


def message(text: str, id: str) -> dict[str, Any]:
    part = {"type": "text", "text": text}
    return {"id": "anna", "trigger": "submit-message", "messages": [{"id": id, "role": "user", "parts": [part]}]}


def read_parts(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_a_chat_of_use_chat_talks_with_an_entity_once_for_each_message() -> None:
    async with served([interview()]) as on:
        ids = set()
        for id, (text, expected) in enumerate(ROUNDS):
            for _ in range(2):  # the client lost the first answer
                parts = read_parts((await on.ask("POST", "chat/interview", 200, json=message(text, f"m{id}"))).text)
                assert "".join(part["delta"] for part in parts if part["type"] == "text-delta") == expected
                assert [part["type"] for part in parts if part["type"].startswith(("tool", "data"))] == []
                assert parts[-1] == {"type": "finish", "finishReason": "stop"}
                ids.add(parts[0]["messageId"])
            if id < 2:
                assert (await on.ask("GET", "chat/interview/anna/stream")).status_code == 204
        assert len(ids) == 3
        (entity,) = on.runtime.loom.entities()
        assert [turn.observation for turn in on.runtime.loom.turns(entity)][:2] == ["Anna", "blue"]


async def test_a_client_of_ag_ui_talks_with_an_entity_once_for_each_message() -> None:
    async with served([interview()]) as on:
        messages: list[Any] = []
        for id, (text, expected) in enumerate(ROUNDS):
            messages.append({"id": f"m{id}", "role": "user", "content": text})
            body = {"threadId": "t", "runId": f"r{id}", "messages": messages}
            for _ in range(2):
                events = read_parts((await on.ask("POST", "ag-ui/interview", 200, json=body)).text)
                texts = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
                kinds = [event["type"] for event in events]
                assert "".join(texts) == expected
                assert kinds.count("TEXT_MESSAGE_START") == kinds.count("TEXT_MESSAGE_END") == 1
                assert "TOOL_CALL_START" not in kinds
                assert events[-1]["outcome"] == {"type": "success"}
