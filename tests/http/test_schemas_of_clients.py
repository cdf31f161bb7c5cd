"""The schemas of clients' tools: a request with very many of them costs little, and delays no other request."""

import threading
import time
from typing import Any

import pytest

from cantrip_actors.http import episode_tools
from tests.http.serving import echo, in_process

pytestmark = pytest.mark.rule("V-36", "Z-02")

GO: Any = [{"role": "user", "content": "go"}]


def make_schemas(tools: int, properties: int, **also: Any) -> dict[str, dict[str, Any]]:
    """Return schemas of tools by their names, no two of them equal."""
    return {
        f"tool_{tool}": {
            "type": "object",
            "properties": {f"{tool}_{n}": {"type": "string", **also} for n in range(properties)},
        }
        for tool in range(tools)
    }


def ask_openai(schemas: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n, schema in schemas.items()]
    return "/v1/chat/completions", {"model": "echo", "messages": GO, "tools": tools}


def ask_anthropic(schemas: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    tools = [{"name": name, "input_schema": schema} for name, schema in schemas.items()]
    return "/v1/messages", {"model": "echo", "max_tokens": 9, "messages": GO, "tools": tools}


def ask_ag_ui(schemas: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    tools = [{"name": name, "description": "", "parameters": schema} for name, schema in schemas.items()]
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "go"}], "tools": tools}
    return "/api/v1/ag-ui/echo", body


ASKERS = pytest.mark.parametrize(
    "make_request", [ask_openai, ask_anthropic, ask_ag_ui], ids=["openai", "anthropic", "ag-ui"]
)


@ASKERS
async def test_a_hundred_tools_of_many_properties_are_checked_at_once(make_request: Any) -> None:
    path, body = make_request(make_schemas(100, 20, description="a text"))
    async with in_process([echo()]) as on:
        before = time.process_time()
        assert (await on.client.post(path, json=body)).status_code == 200
        assert time.process_time() - before < 2, "jsonschema alone needs eight seconds for them"


@ASKERS
async def test_tools_whose_schemas_take_long_to_check_are_bounded_together(make_request: Any) -> None:
    path, body = make_request(make_schemas(10, 20, **{"$anchor": "a"}))
    async with in_process([echo()]) as on:
        answer = await on.client.post(path, json=body)
    assert answer.status_code == 400
    assert "it has more than 100 objects and lists" in answer.text


@ASKERS
async def test_the_schemas_of_a_client_are_checked_beside_the_event_loop(
    make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def check(param: str, schema: object) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(episode_tools, "check_schema", check)
    path, body = make_request(make_schemas(1, 1))
    async with in_process([echo()]) as on:
        assert (await on.client.post(path, json=body)).status_code == 200
    assert threads
    assert threading.current_thread() not in threads
