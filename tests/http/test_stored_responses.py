"""Responses of OpenAI's API as they are stored: the settings of their requests, their input items, their deletion."""

import base64
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from openai.pagination import SyncCursorPage
from openai.types.responses import Response, ResponseItem

from tests.http.serving import Served, echo, in_process, served, token
from tests.http.test_client_tools import FLAT
from tests.http.test_past_answers import Conversation, acting, look, read_data
from tests.http.test_person import interview
from tests.loom import postgres
from tests.pictures import png

pytestmark = pytest.mark.rule("W-21")

SETTINGS: dict[str, Any] = {
    "instructions": "Be brief.",
    "metadata": {"customer": "7"},
    "temperature": 0.5,
    "top_p": 1,
    "max_output_tokens": 64,
    "max_tool_calls": 3,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "reasoning": {"effort": "low"},
    "truncation": "disabled",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "user": "anna",
    "store": True,
    "background": False,
}


def select(response: Any) -> dict[str, Any]:
    return {name: response[name] for name in SETTINGS}


async def list_items(on: Served, id: str, query: str = "") -> list[Any]:
    page = await on.get(f"/v1/responses/{id}/input_items?order=asc{query}")
    items = SyncCursorPage[ResponseItem].model_validate(page, strict=True).data
    assert len({item.id for item in items}) == len(items)
    return list(page["data"])


async def test_a_response_repeats_the_settings_of_its_request_also_after_a_restart_and_from_another_worker(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with in_process([echo()], url=url) as on:
        body = {"model": "echo", "input": "hello", **SETTINGS, "tools": [{**FLAT, "strict": None}]}
        made = await on.post("/v1/responses", body, 200)
        Response.model_validate(made, strict=True)
        assert select(made) == SETTINGS
        assert made["tools"] == body["tools"]
        again = {**body, "stream": True, "previous_response_id": made["id"], "metadata": {"customer": "8"}}
        events = read_data((await on.ask("POST", "/v1/responses", 200, json=again)).text)
        shown = [event["response"] for event in events if "response" in event]
        assert [response["metadata"] for response in shown] == [{"customer": "8"}] * len(shown)
        plain = await on.post("/v1/responses", {"model": "echo", "input": "hello"}, 200)
    async with in_process([echo()], url=url) as other:
        for response in (made, shown[-1], plain):
            stored = await other.get(f"/v1/responses/{response['id']}")
            assert abs(stored["created_at"] - response["created_at"]) <= 1
            varying = {name: stored[name] for name in ("created_at", "output")}  # a streamed item has another id
            assert stored == {**response, **varying}


async def test_a_response_of_an_entity_names_the_model_and_the_time_of_its_own_request() -> None:
    async with in_process([echo()]) as on:
        await on.runtime.ensure("bob", on.service.cantrips["echo"])
        await on.post("/v1/responses", {"model": "entity:bob", "input": "one"}, 200)
        await anyio.sleep(3600)
        made = await on.post("/v1/responses", {"model": "entity:bob", "input": "two"}, 200)
        stored = await on.get(f"/v1/responses/{made['id']}")
        intent = on.runtime.loom.intents(on.runtime.loom.entities()[0])[-1]
        assert stored["model"] == made["model"] == "entity:bob"
        assert stored["previous_response_id"] is made["previous_response_id"] is None
        assert stored["created_at"] == int(datetime.fromisoformat(intent.at).timestamp())


async def test_a_response_repeats_the_settings_of_its_own_request_also_if_that_continued_another_one(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    cantrips = [acting({"go": [look("Oslo"), look("Rome"), "It snows."]}), interview()]
    answered: list[dict[str, Any]] = []
    async with in_process(cantrips, url=url) as on:
        for model, contents in (("acting", ["go", None, None]), ("interview", ["Go.", "Anna", "blue"])):
            talk = Conversation(on, model)
            for number, content in enumerate(contents):
                text = {"verbosity": ["low", "medium", "high"][number]}
                talk.more = {"metadata": {"number": str(number)}, "temperature": number / 10, "text": text}
                answered.append(await (talk.answer() if content is None else talk.post(content)))
                assert answered[-1]["text"] == {"format": {"type": "text"}, **text}
    async with in_process(cantrips, url=url) as other:
        for response in answered:
            stored = await other.get(f"/v1/responses/{response['id']}")
            assert stored == {**response, "created_at": stored["created_at"]}


@pytest.mark.parametrize(
    ("field", "value"), [("metadata", {"a": 1}), ("temperature", "hot"), ("reasoning", "low"), ("store", "yes")]
)
async def test_a_setting_of_the_wrong_type_is_refused(field: str, value: Any) -> None:
    async with in_process([echo()]) as on:
        refused = await on.post("/v1/responses", {"model": "echo", "input": "hello", field: value}, 400)
        assert refused["error"]["param"].partition(".")[0] == field


async def test_the_input_items_of_a_response_are_what_its_request_had() -> None:
    picture = "data:image/png;base64," + base64.b64encode(png(2, 2)).decode()
    shown = {"type": "input_image", "image_url": picture}
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "What is the weather?"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"role": "assistant", "content": "It is sunny."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": picture}],
        },
    ]
    async with in_process([echo()]) as on:
        made = await on.post("/v1/responses", {"model": "echo", "input": items, "instructions": "Be brief."}, 200)
        listed = await list_items(on, made["id"])
        assert [(item["type"], item.get("role")) for item in listed] == [
            ("message", "system"),
            ("message", "user"),
            ("function_call", None),
            ("function_call_output", None),
            ("message", "assistant"),
            ("message", "user"),
        ]
        assert listed[2]["arguments"] == '{"city":"Rome"}'
        assert listed[5]["content"] == [
            {"type": "input_text", "text": "Look."},
            {**shown, "detail": "auto"},
        ]
        newest = await on.get(f"/v1/responses/{made['id']}/input_items?limit=2&include[]=x")
        assert [item["id"] for item in newest["data"]] == [item["id"] for item in reversed(listed[4:])]
        assert (newest["has_more"], newest["last_id"]) == (True, listed[4]["id"])
        rest = await on.get(f"/v1/responses/{made['id']}/input_items?after={newest['last_id']}")
        assert [item["id"] for item in rest["data"]] == [item["id"] for item in reversed(listed[:4])]
        await on.get("/v1/responses/resp_nobody/input_items", 404)
        await on.get(f"/v1/responses/{made['id']}/input_items?after=nothing", 400)
        await on.get(f"/v1/responses/{made['id']}/input_items?limit=0", 400)


async def test_the_input_items_of_a_continued_response_are_the_results_or_the_reply() -> None:
    async with in_process([acting({"go": [look("Oslo", "Rome"), "It snows."]}), interview()]) as on:
        talk = Conversation(on)
        await talk.run("go")
        first, last = [await list_items(on, response["id"]) for response in talk.posted]
        assert [item["content"][0]["text"] for item in first] == ["go"]
        calls = [item["call_id"] for item in talk.posted[0]["output"]]
        assert [(item["call_id"], item["output"]) for item in last] == [
            (calls[0], '{"city":"Oslo"}'),
            (calls[1], '{"city":"Rome"}'),
        ]
        asked = Conversation(on, "interview")
        for text in ("Go.", "Anna", "blue"):
            response = await asked.post(text)
            assert [item["content"][0]["text"] for item in await list_items(on, response["id"])] == [text]


async def test_the_input_items_of_a_continued_response_have_the_message_that_was_sent_with_the_results() -> None:
    picture = "data:image/png;base64," + base64.b64encode(png(2, 2)).decode()
    async with in_process([acting({"go": [look("Oslo")], "Be quick.": ["It snows."]})]) as on:
        talk = Conversation(on)
        first = await talk.post("go")
        result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "snow"}
        parts = [{"type": "input_text", "text": "Be quick."}, {"type": "input_image", "image_url": picture}]
        last = await talk.post([result, {"role": "user", "content": parts}])
        listed = await list_items(on, last["id"])
        assert [item["type"] for item in listed] == ["function_call_output", "message"]
        assert [part.get("text", part.get("image_url")) for part in listed[1]["content"]] == ["Be quick.", picture]
        assert [item["type"] for item in await list_items(on, first["id"])] == ["message"]


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_each_of_several_deletions_of_one_response_at_two_servers_says_that_it_is_gone(
    tmp_path: Path, kind: str
) -> None:
    url = postgres.fresh() if kind == "postgres" else f"sqlite:{tmp_path / 'loom'}"
    codes: list[int] = []

    async def delete(on: Served, id: str) -> None:
        codes.append((await on.ask("DELETE", f"/v1/responses/{id}")).status_code)

    async with served(url=url) as on, served(url=url) as other:
        for _ in range(3):
            made = await on.post("/v1/responses", {"model": "echo", "input": "hello"}, 200)
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(delete, (on, other)[number % 2], made["id"])
            assert set(codes) <= {200, 404}
            assert 200 in codes
            codes.clear()
            await delete(other, made["id"])
            assert codes.pop() == 404


async def test_a_response_that_is_deleted_is_gone_with_its_content() -> None:
    few = token("few", "read", "cast", "send", "stop")
    async with in_process([echo()], few) as on:
        made = await on.post("/v1/responses", {"model": "echo", "input": "hello"}, 200)
        path = f"/v1/responses/{made['id']}"
        await on.ask("DELETE", path, 403, headers=on.as_token("few"))  # erasing is for those who own the loom
        deleted = await on.ask("DELETE", path, 200)
        assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
        for _ in range(2):
            await on.get(path, 404)
            await on.get(f"{path}/input_items", 404)
            await on.ask("DELETE", path, 404)
        running = await on.post("/v1/responses", {"model": "echo", "input": "nap 60", "background": True}, 200)
        await on.ask("DELETE", f"/v1/responses/{running['id']}", 200)
        first = await on.post("/v1/responses", {"model": "echo", "input": "one"}, 200)
        await on.post("/v1/responses", {"model": "echo", "input": "two", "previous_response_id": first["id"]}, 200)
        refused = await on.ask("DELETE", f"/v1/responses/{first['id']}", 409)
        assert "cantrip loom forget" in refused.text
        await on.runtime.ensure("bob", on.service.cantrips["echo"])
        named = await on.post("/v1/responses", {"model": "entity:bob", "input": "one"}, 200)
        await on.ask("DELETE", f"/v1/responses/{named['id']}", 409)
        await on.get(f"/v1/responses/{first['id']}")


@pytest.mark.rule("HTTP-08")
@pytest.mark.parametrize("model", ["echo", "entity:bob"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_repeated_request_says_at_each_door_that_it_is_repeated(is_stream: bool, model: str) -> None:
    said = [{"role": "user", "content": "hello"}]
    async with in_process([echo()]) as on:
        await on.runtime.ensure("bob", on.service.cantrips["echo"])
        bodies: dict[str, Any] = {
            "/v1/responses": {"input": "hello"},
            "/v1/chat/completions": {"messages": said},
            "/v1/messages": {"messages": said, "max_tokens": 9},
        }
        for path, fields in bodies.items():
            body, headers = (
                {"model": model, "stream": is_stream, **fields},
                {"idempotency-key": path[4:].replace("/", "-")},
            )
            asked = [await on.ask("POST", path, 200, json=body, headers=headers) for _ in range(2)]
            assert ["idempotency-replayed" in answer.headers for answer in asked] == [False, True]
            assert all("you said: hello" in answer.text for answer in asked)
