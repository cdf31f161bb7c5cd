"""Calls of OpenAI's and Anthropic's APIs that wait for a person: they return at once, and the answer comes later."""

from typing import Any

import anthropic
import httpx2
import openai
import pytest

from cantrip_actors import Cantrip, Circle, LoomError, ask_first, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, Served, in_process, pay, token
from tests.mcp_server.clients import answer, helper

pytestmark = [
    pytest.mark.rule("W-41"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # openai's streams leave generators on trio
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # likewise
]

PAY: Any = {"role": "user", "content": "pay 3"}
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
FORM: Any = {"type": "json_schema", "name": "bill", "schema": TOTAL}


class Chat:
    """A conversation of one client with the service."""

    def __init__(self, on: Served, api: str, *, is_stream: bool) -> None:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=on.app))
        self.openai = openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key=ADMIN, max_retries=0, http_client=http)
        self.anthropic = anthropic.AsyncAnthropic(base_url=on.url, api_key=ADMIN, max_retries=0, http_client=http)
        self.api = api
        self.is_stream = is_stream
        self.messages: list[Any] = []

    async def say(self, text: str) -> tuple[str, Any]:
        """Return the text of the answer to a message, and the answer."""
        self.messages.append({"role": "user", "content": text})
        text, whole = await getattr(self, self.api)()
        self.messages.append({"role": "assistant", "content": text})
        return text, whole

    async def chat(self) -> tuple[str, Any]:
        asked: Any = {"model": "helper", "messages": self.messages}
        if self.is_stream:
            async with self.openai.chat.completions.stream(**asked) as stream:
                whole: Any = await stream.get_final_completion()
        else:
            whole = await self.openai.chat.completions.create(**asked)
        assert whole.choices[0].finish_reason == "stop"
        return whole.choices[0].message.content, whole

    async def responses(self) -> tuple[str, Any]:
        asked: Any = {"model": "helper", "input": self.messages}
        if self.is_stream:
            async with self.openai.responses.stream(**asked) as stream:
                whole: Any = await stream.get_final_response()
        else:
            whole = await self.openai.responses.create(**asked)
        return "\n\n".join(item.content[0].text for item in whole.output), whole

    async def claude(self) -> tuple[str, Any]:
        asked: Any = {"model": "helper", "messages": self.messages, "max_tokens": 99}
        if self.is_stream:
            async with self.anthropic.messages.stream(**asked) as stream:
                whole: Any = await stream.get_final_message()
        else:
            whole = await self.anthropic.messages.create(**asked)
        assert whole.stop_reason == "end_turn"
        return "\n\n".join(block.text for block in whole.content), whole


def client_of(on: Served) -> openai.AsyncOpenAI:
    return Chat(on, "", is_stream=False).openai


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "claude"])
async def test_a_call_that_waits_for_a_person_returns_at_once_and_its_answer_comes_with_a_later_message(
    api: str, is_stream: bool
) -> None:
    async with in_process([helper()]) as on:
        chat = Chat(on, api, is_stream=is_stream)
        text, whole = await chat.say("pay 3")
        (request,) = on.runtime.requests()
        link = f"{on.url}/#/e/{request.entity}"
        assert text.startswith(f"I call pay\n\nThis call waits for a person, who decides at {link}")
        assert f"`cantrip requests {request.id}`" in text
        assert "wants to call pay with" in text
        if api == "responses" or not is_stream:  # their clients join streams without it
            assert whole.metadata["link"] == link
            assert whole.metadata["requests"] == request.id
        assert f"cantrip requests {request.id}" in (await chat.say("and now?"))[0]  # it still waits
        await on.runtime.decide(request.id, "allow", by="anna")
        assert (await chat.say("continue"))[0].endswith("it said: paid 3")
        assert len(on.runtime.loom.entities()) == 1


async def test_a_later_conversation_has_neither_the_wait_nor_the_messages_that_asked_again() -> None:
    async with in_process([helper()]) as on:
        chat = Chat(on, "chat", is_stream=False)
        await chat.say("pay 3")
        (request,) = on.runtime.requests()
        await chat.say("and now?")
        await on.runtime.decide(request.id, "allow", by="anna")
        await chat.say("continue")
        assert (await chat.say("hello"))[0] == "intent 2: hello"
        newest = on.runtime.loom.entities()[-1]
        (intent,) = on.runtime.loom.intents(newest)
        assert [past.content for past in intent.history] == ["pay 3", "it said: paid 3"]


async def test_a_response_that_waits_is_in_progress_and_is_retrieved_until_it_has_the_answer() -> None:
    async with in_process([helper()]) as on, client_of(on) as client:
        begun = await client.responses.create(model="helper", input="pay 3")
        waiting = await client.responses.retrieve(begun.id)
        assert (begun.status, waiting.status) == ("in_progress", "in_progress")
        assert waiting.output_text == begun.output_text
        (request,) = on.runtime.requests()
        asked: Any = {"model": "helper", "input": "and now?", "previous_response_id": begun.id}
        assert (await client.responses.create(**asked)).id == begun.id  # the same call still waits
        await on.runtime.decide(request.id, "allow", by="anna")
        await on.runtime.get_entity(request.entity or "").episode()
        done = await client.responses.retrieve(begun.id)
        assert (done.status, done.output_text, done.metadata) == ("completed", "it said: paid 3", {})
        assert (await client.responses.create(**asked)).output_text == "intent 2: and now?"


async def test_an_item_reference_to_the_text_of_a_wait_asks_for_its_answer() -> None:
    async with in_process([helper()]) as on, client_of(on) as client:
        begun = await client.responses.create(model="helper", input="pay 3")
        references: list[Any] = [{"type": "item_reference", "id": item.id} for item in begun.output]
        again: Any = [PAY, *references, {"role": "user", "content": "continue"}]
        assert (await client.responses.create(model="helper", input=again)).id == begun.id
        (request,) = on.runtime.requests()
        await on.runtime.decide(request.id, "allow", by="anna")
        assert (await client.responses.create(model="helper", input=again)).output_text == "it said: paid 3"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_wait_in_place_of_a_typed_answer_is_a_refusal(is_stream: bool) -> None:
    typed: Any = {"text": {"format": FORM}}
    form: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "bill", "schema": TOTAL}}}
    async with in_process([helper()]) as on, client_of(on) as client:
        if is_stream:
            async with client.chat.completions.stream(model="helper", messages=[PAY], **form) as stream:
                completion: Any = await stream.get_final_completion()
            async with client.responses.stream(model="helper", input="pay 3", **typed) as events:
                response: Any = await events.get_final_response()
        else:
            completion = await client.chat.completions.create(model="helper", messages=[PAY], **form)
            response = await client.responses.create(model="helper", input="pay 3", **typed)
        message = completion.choices[0].message
        assert not message.content
        assert message.refusal.startswith("This call waits for a person")
        assert response.output[-1].content[0].refusal.startswith("This call waits for a person")
        asked: Any = [PAY, {"role": "assistant", "refusal": message.refusal}, {"role": "user", "content": "?"}]
        again = await client.chat.completions.create(model="helper", messages=asked)
        assert again.id == completion.id


async def test_a_child_that_waits_for_a_person_makes_the_call_return() -> None:

    def delegate(context: Any) -> Any:
        if context[0].content == "pay" and len(context) == 1:
            return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "pay 3"}}]}
        return "it has" if context[0].content == "pay" else answer(context)

    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(4)])
    async with in_process([Cantrip(scripted(delegate), circle=circle, name="helper")]) as on:
        chat = Chat(on, "chat", is_stream=False)
        text, _ = await chat.say("pay")
        (request,) = on.runtime.requests()
        assert f"#/e/{request.entity}" not in text  # the link is that of the call
        await on.runtime.decide(request.id, "allow", by="anna")
        assert (await chat.say("continue"))[0] == "it has"


async def test_a_call_that_its_token_may_not_see_is_not_continued() -> None:
    tokens = [token("other", "read", "cast", cantrips=frozenset({"other"}))]
    async with in_process([helper(), helper("other")], *tokens) as on:
        text, _ = await Chat(on, "chat", is_stream=False).say("pay 3")
        messages = [PAY, {"role": "assistant", "content": text}, {"role": "user", "content": "continue"}]
        body = {"model": "other", "messages": messages}
        refused = await on.post("/v1/chat/completions", body, 404, headers=on.as_token("other"))
        assert "no call has the id" in refused["error"]["message"]


async def test_a_loom_that_cannot_be_read_when_a_call_comes_to_wait_ends_no_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with in_process([helper()]) as on:
        loom, failed = type(on.runtime.loom), list[str]()
        find_ancestry = loom.ancestry

        def fail_once(self: Any, entity_id: str) -> Any:
            if not failed:
                failed.append(entity_id)
                raise LoomError("the database is away")
            return find_ancestry(self, entity_id)

        monkeypatch.setattr(loom, "ancestry", fail_once)
        for _ in range(2):
            answered = await on.post("/v1/chat/completions", {"model": "helper", "messages": [PAY]}, 200)
            assert "waits for a person" in answered["choices"][0]["message"]["content"]
        assert failed
