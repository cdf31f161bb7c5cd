"""Values of the wrong type are refused at every door, and names that no path can have."""

from typing import Any

import pytest

from tests.http.serving import echo, in_process

GO = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": CITY}
CALL = {"id": "toolu_1", "type": "tool_use", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x", "is_error": "yes"}
USER_PART = {"id": "m", "role": "user"}
RESPONDED = {"type": "tool-pay", "toolCallId": "c", "state": "approval-responded"}


def tool(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**FUNCTION, **more}}]}


LOOSE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"stream": "yes"}, "stream"),
    ("/v1/chat/completions", {"stream": 1}, "stream"),
    ("/v1/chat/completions", {"n": "1"}, "n"),
    ("/v1/chat/completions", {"n": True}, "n"),
    ("/v1/chat/completions", {"model": 3}, "model"),
    ("/v1/chat/completions", {"logprobs": "no"}, "logprobs"),
    ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": "no"}}, "include_usage"),
    ("/v1/chat/completions", {"modalities": "text"}, "modalities"),
    ("/v1/chat/completions", tool(strict="yes"), "strict"),
    ("/v1/chat/completions", tool(description=3), "description"),
    (
        "/v1/chat/completions",
        {**tool(), "tool_choice": {"type": "function", "function": {"name": ["x"]}}},
        "tool_choice",
    ),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": "yes"}}},
        "strict",
    ),
    ("/v1/responses", {"stream": "yes"}, "stream"),
    ("/v1/responses", {"background": "no"}, "background"),
    ("/v1/responses", {"top_logprobs": "0"}, "top_logprobs"),
    ("/v1/responses", {"instructions": 3}, "instructions"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": 3, "schema": CITY}}}, "name"),
    ("/v1/messages", {"stream": "yes"}, "stream"),
    ("/v1/messages", {"stream": 0}, "stream"),
    ("/v1/messages", {"tools": [{"name": "weather", "input_schema": CITY, "strict": "no"}]}, "strict"),
    (
        "/v1/messages",
        {"messages": [*GO, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]},
        "is_error",
    ),
    ("/api/v1/casts", {"wait": "5"}, "wait"),
    ("/api/v1/chat/echo", {"messages": [{**USER_PART, "parts": [{"type": "text", "text": None}]}]}, "text"),
    ("/api/v1/chat/echo", {"messages": [{**USER_PART, "parts": [{"type": "text", "text": 5}]}]}, "text"),
    ("/api/v1/chat/echo", {"messages": [{**USER_PART, "parts": [{**RESPONDED, "approval": "yes"}]}]}, "approval"),
    (
        "/api/v1/chat/echo",
        {"messages": [{**USER_PART, "parts": [{**RESPONDED, "approval": {"id": "r", "approved": "no"}}]}]},
        "approved",
    ),
    ("/api/v1/ag-ui/echo", {"messages": [{**USER_PART, "content": [{"type": "text", "text": 5}]}]}, "text"),
    ("/api/v1/ag-ui/echo", {"resume": [{"interruptId": "r", "status": "maybe"}]}, "status"),
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "echo", "messages": GO},
    "/v1/responses": {"model": "echo", "input": "hi"},
    "/v1/messages": {"model": "echo", "max_tokens": 9, "messages": GO},
    "/api/v1/casts": {"cantrip": "echo", "intent": "hi"},
    "/api/v1/chat/echo": {"id": "bob"},
    "/api/v1/ag-ui/echo": {"threadId": "bob", "runId": "r"},
}


@pytest.mark.rule("WIRE-03", "W-23", "W-24")
async def test_a_value_of_another_type_than_the_field_has_is_refused_before_anything_begins() -> None:
    async with in_process([echo()]) as on:
        for path, more, field in LOOSE:
            answer = await on.ask("POST", path, json={**BODIES[path], **more})
            assert answer.status_code == (422 if path.startswith("/api") else 400), (path, more, answer.text)
            assert field in answer.text, (path, more, answer.text)
        assert not on.runtime.loom.entities()


@pytest.mark.rule("W-24")
async def test_a_payload_that_is_no_decision_leaves_the_request_of_a_run_open() -> None:
    async with in_process([echo()]) as on:
        message = {"id": "m", "role": "user", "content": "pay 3"}
        run = {"threadId": "bob", "runId": "r"}
        await on.ask("POST", "ag-ui/echo", 200, json={**run, "messages": [message]})
        (request,) = on.runtime.requests()
        for payload in ({"approved": "yes"}, "yes", 1, None, {"approved": True, "reason": 3}, {"reason": "fine"}):
            answer = {"interruptId": request.id, "status": "resolved", "payload": payload}
            await on.ask("POST", "ag-ui/echo", 422, json={**run, "resume": [answer]})
            assert on.runtime.requests() == [request]
        answer = {"interruptId": request.id, "status": "cancelled"}
        text = (await on.ask("POST", "ag-ui/echo", 200, json={**run, "resume": [answer]})).text
        assert "denied" in text or "deny" in text, text


@pytest.mark.rule("HTTP-01")
@pytest.mark.parametrize("name", [".", ".."])
async def test_an_entity_gets_no_name_that_clients_leave_out_of_a_path(name: str) -> None:
    async with in_process([echo()]) as on:
        cast = {"cantrip": "echo", "intent": "hi", "name": name}
        message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}], "content": "hi"}
        chat = {"id": name, "threadId": name, "runId": "r", "messages": [message]}
        refused = [
            await on.post("entities", cast, 422),
            await on.post("chat/echo", {**chat, "id": name}, 422),
            await on.post("ag-ui/echo", {key: value for key, value in chat.items() if key != "id"}, 422),
        ]
        assert {problem["type"] for problem in refused} == {"urn:cantrip:invalid-name"}
        await on.post("casts", {"cantrip": "echo", "intent": "hi"}, 400, headers={"idempotency-key": name})
        assert not on.runtime.loom.entities()
        await on.post("entities", {**cast, "name": "a.b"}, 201)
