"""The answer to a refused request names the expected and the actual value."""

import json
from typing import Any

import pytest

from tests.http.serving import ADMIN, echo, in_process

CHAT: Any = {"model": "echo", "messages": [{"role": "user", "content": "go"}]}
NAMELESS: Any = {**CHAT, "tools": [{"type": "function", "function": {}}]}
LOOK: Any = {"type": "tool", "name": "look"}


@pytest.mark.rule("HTTP-14")
@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/api/v1/casts", {"cantrip": "echo", "intent": "go", "wait": 0}, "wait: expected more than 0, got 0"),
        ("/api/v1/casts", {"cantrip": "echo", "intent": 7}, "intent: expected a text, got 7"),
        ("/api/v1/casts", {"cantrip": "echo", "intent": {"a": 1}}, "intent: expected a text, got an object of 1"),
        ("/api/v1/casts", {"cantrip": "echo", "intent": "go", "wait": float("nan")}, "expected JSON: got NaN"),
        ("/v1/chat/completions", {**CHAT, "messages": []}, "expected an array with at least 1 item"),
        ("/v1/chat/completions", NAMELESS, "expected a function with a name"),
        ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}, "auto or none in a request without tools"),
        ("/v1/messages", {**CHAT, "max_tokens": 9, "tool_choice": LOOK}, "auto or none in a request without tools"),
    ],
)
async def test_a_refusal_says_what_was_expected_and_what_came(path: str, body: dict[str, Any], expected: str) -> None:
    async with in_process([echo()]) as on:
        answer = await on.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert expected in answer.text.replace("\\", "")


@pytest.mark.rule("HTTP-14")
@pytest.mark.parametrize(
    ("method", "path", "token", "status", "expected"),
    [
        ("GET", "/api/v1/entities?since=2026-01-01", ADMIN, 422, "a time with its zone"),
        ("GET", "/api/v1/entities", "typo", 401, "got one that is unknown, has expired or was revoked"),
        ("PATCH", "/api/v1/entities", ADMIN, 405, "expected one of the methods GET, HEAD, POST"),
    ],
)
async def test_a_refusal_names_what_is_allowed(method: str, path: str, token: str, status: int, expected: str) -> None:
    async with in_process([echo()]) as on:
        answer = await on.client.request(method, path, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == status
    assert expected in answer.text


@pytest.mark.rule("HTTP-01")
async def test_an_answer_after_the_longest_wait_has_the_state_of_the_entity() -> None:
    async with in_process([echo()]) as on:
        answer = await on.client.post("/api/v1/casts", json={"cantrip": "echo", "intent": "pay 3", "wait": 1})
    assert (answer.status_code, answer.json()["state"]) == (202, "waiting")
