"""Anthropic's API beyond what its published clients show (tests/clients tries those)."""

from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, CrystalError, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, echo, in_process, served, token
from tests.http.test_chat_history import DOT
from tests.http.test_client_tools import CITY, looking

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-23")]

HELLO = [{"role": "user", "content": "hello"}]
SAID: dict[str, Any] = {"model": "echo", "max_tokens": 9, "messages": HELLO}


async def test_errors_have_the_shape_of_anthropics_api() -> None:
    def breaks(_: Any) -> Any:
        raise CrystalError("it is broken")

    broken = Cantrip(scripted(breaks), circle=Circle(["done"], [max_turns(3)]), name="broken")
    tool = {"name": "x", "input_schema": {"type": "object"}}
    result = {"type": "tool_result", "tool_use_id": "call_of_another", "content": "3"}
    file = [{"type": "document", "source": {"type": "file", "file_id": "f"}}]
    async with served([echo(), broken], tokens=[token("reader", "read")]) as on:
        for status, kind, more, headers in (
            (400, "invalid_request_error", {"tools": [{"type": "web_search_20250305", "name": "x"}]}, {}),
            (400, "invalid_request_error", {"tools": [{**tool, "input_schema": 7}]}, {}),
            (400, "invalid_request_error", {"messages": [*HELLO, {"role": "user", "content": [result]}]}, {}),
            (400, "invalid_request_error", {"tools": [tool, tool], "tool_choice": {"type": "any"}}, {}),
            (400, "invalid_request_error", {"tools": [tool], "tool_choice": {"type": "tool", "name": "y"}}, {}),
            (400, "invalid_request_error", {"mcp_servers": [{"url": "x"}]}, {}),
            (400, "invalid_request_error", {"output_config": {"format": {"type": "json_schema"}}}, {}),
            (400, "invalid_request_error", {"messages": []}, {}),
            (400, "invalid_request_error", {"messages": [{"role": "user", "content": []}]}, {}),
            (400, "invalid_request_error", {"messages": [{"role": "user", "content": file}]}, {}),
            (400, "invalid_request_error", {"messages": [{"role": "user", "content": [{"type": "video"}]}]}, {}),
            (401, "authentication_error", {}, {"authorization": "Bearer no"}),
            (403, "permission_error", {}, on.as_token("reader")),
            (404, "not_found_error", {"model": "nobody"}, {}),
        ):
            answer = await on.ask("POST", "/v1/messages", status, json={**SAID, **more}, headers=headers)
            assert (answer.json()["type"], answer.json()["error"]["type"]) == ("error", kind)
            assert answer.headers["x-should-retry"] == "false"
        assert not on.runtime.loom.entities()
        for stream in (False, True):
            answer = await on.ask("POST", "/v1/messages", json={**SAID, "model": "broken", "stream": stream})
            assert answer.headers.get("x-should-retry") == (None if stream else "false")
            assert "it is broken" in answer.text
            assert ("event: error" in answer.text) == stream
        assert len(on.runtime.loom.entities()) == 2


async def test_unknown_paths_and_methods_below_messages_have_the_shape_of_anthropics_api() -> None:
    async with in_process([echo()]) as on:
        wrong = await on.ask("GET", "/v1/messages", 405)
        unknown = await on.ask("POST", "/v1/messages/batches", 404, json={})
        kinds = [(answer.json()["type"], answer.json()["error"]["type"]) for answer in (wrong, unknown)]
        assert kinds == [("error", "invalid_request_error"), ("error", "not_found_error")]
        assert wrong.headers["allow"] == "POST"
        assert "code" in (await on.ask("POST", "/v1/batches", 404, json={})).json()["error"]  # OpenAI's


async def test_a_request_has_what_anthropics_clients_send_with_it() -> None:
    async with served() as on:
        del on.client.headers["authorization"]
        headers = {"x-api-key": ADMIN, "anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b"}
        more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "x"}, "top_k": 3}
        tool = {"name": "x", "input_schema": {"type": "object"}}
        more |= {"tools": [tool], "tool_choice": {"type": "none"}}
        said = {**SAID, **more, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "x"}}]}
        answer = await on.ask("POST", "/v1/messages?beta=true", 200, json=said, headers=headers)
        assert answer.json()["usage"]["input_tokens"] in (0, 7)
        (entity,) = on.runtime.loom.entities()
        given: Any = on.runtime.loom.records(entity)[1]
        assert (given.intent, [(past.role, past.content) for past in given.history]) == (
            "hello",
            [("system", "Be brief.")],
        )
        counted = await on.ask("POST", "/v1/messages/count_tokens?beta=true", 200, json=SAID, headers=headers)
        assert 0 < counted.json()["input_tokens"] < 50
        models = (await on.ask("GET", "/v1/models?limit=1000", 200, headers=headers)).json()
        assert (models["first_id"], models["has_more"], models["data"][0]["type"]) == ("echo", False, "model")


async def test_a_client_that_disables_parallel_use_gets_one_call_in_each_message() -> None:
    async with in_process([looking()]) as on:
        choice: dict[str, Any] = {"type": "auto", "disable_parallel_tool_use": True}
        tools = [{"name": "weather", "input_schema": CITY}]
        messages: list[Any] = [{"role": "user", "content": "go"}]
        body = {"model": "looks", "max_tokens": 9, "messages": messages, "tools": tools, "tool_choice": choice}
        cities = []
        while (answer := await on.post("/v1/messages", body, 200))["stop_reason"] == "tool_use":
            (use,) = [block for block in answer["content"] if block["type"] == "tool_use"]
            cities.append(use["input"]["city"])
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"fine in {cities[-1]}"}
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
        assert cities == ["Oslo", "Rome"]
        assert answer["content"][-1]["text"] == "fine in Oslo | own | fine in Rome"
        choice["disable_parallel_tool_use"] = "yes"
        assert "expected true or false" in (await on.post("/v1/messages", body, 400))["error"]["message"]


async def test_a_form_by_its_earlier_name_is_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    answers = scripted([{"tool_calls": [{"gate": "done", "args": {"answer": {"total": 3}}}]}])
    adding = Cantrip(answers, circle=Circle(["done"], [max_turns(3)]), name="echo")
    async with in_process([adding]) as on:
        body = {**SAID, "output_format": {"type": "json_schema", "schema": schema}, "output_config": {"effort": "low"}}
        answer = await on.post("/v1/messages", body, 200)
        assert answer["content"][0]["text"] == '{"total":3}'
        (entity,) = on.runtime.loom.entities()
        done = next(gate for gate in on.runtime.loom.header(entity).circle["gates"] if gate["name"] == "done")
        assert done["parameters"]["properties"]["answer"]["required"] == ["total"]


async def test_an_error_of_a_tool_keeps_the_labels_of_its_images() -> None:
    def act(context: Any) -> Any:
        calls = [{"gate": "look", "args": {}}]
        return {"tool_calls": calls} if context[-1].role == "user" else {"content": context[-1].content}

    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    async with in_process([Cantrip(scripted(act), circle=Circle(["done"], [max_turns(3)]), name="echo")]) as on:
        called = await on.post("/v1/messages", {**SAID, "tools": tools}, 200)
        source = {"type": "base64", "media_type": "image/png", "data": DOT.partition(",")[2]}
        content = [{"type": "text", "text": "too dark"}, {"type": "image", "source": source}]
        id = called["content"][0]["id"]
        result = {"type": "tool_result", "tool_use_id": id, "is_error": True, "content": content}
        messages = [*HELLO, {"role": "assistant", "content": called["content"]}, {"role": "user", "content": [result]}]
        answer = await on.post("/v1/messages", {**SAID, "tools": tools, "messages": messages}, 200)
        assert answer["content"][0]["text"] == "too dark\n[image/png, 70 B, 1×1]"
