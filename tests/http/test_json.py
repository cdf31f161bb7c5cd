"""JSON that clients send: the HTTP and MCP doors read it as answers of models are read."""

import json
from typing import Any

import httpx
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, gate, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import served

pytestmark = [pytest.mark.real_time, pytest.mark.rule("V-02")]

WRITTEN = f'{{"a": 1, "a": {10**30}, "b": "\\ud83d", "c": "\\ud83d\\ude00"}}'
READ = {"a": 10**30, "b": "\ufffd", "c": "😀"}
JSON = {"content-type": "application/json"}
ACCEPT = {"accept": "application/json, text/event-stream"}
GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


@gate
async def keep(a: int, b: str, c: str) -> str:
    """Keep values."""
    return json.dumps({"a": a, "b": b, "c": c})


def policy(context: Any) -> Any:
    last = context[-1]
    if last.role == "tool":
        return {"content": last.content}
    if last.content == "keep":
        return {"tool_calls": [{"gate": "keep", "args": {"a": 1, "b": "", "c": ""}}]}
    return {"content": next(text for message in context if (text := str(message.content)).startswith("context:"))}


def read_context(text: str) -> Any:
    return json.loads(text.removeprefix("context:"))


def make_cantrip() -> Cantrip:
    return Cantrip(scripted(policy), circle=Circle(["done", ask_first(keep)], [max_turns(3)]), name="keeper")


async def test_a_cast_has_the_context_that_its_client_wrote() -> None:
    async with served([make_cantrip()]) as on:
        body = f'{{"cantrip": "keeper", "intent": "show", "context": {WRITTEN}, "wait": 20}}'
        answer = (await on.ask("POST", "casts", 200, content=body, headers=JSON)).json()
        assert read_context(answer["result"]) == READ


async def test_changed_arguments_of_an_approval_are_those_that_its_client_wrote() -> None:
    async with served([make_cantrip()]) as on:
        entity = await on.runtime.start(make_cantrip(), "keep")
        async with on.runtime.requests(follow=True) as requests:
            request = await anext(requests)
        body = f'{{"decision": "allow", "args": {WRITTEN}}}'
        await on.ask("POST", f"requests/{request.id}", 200, content=body, headers=JSON)
        assert json.loads((await entity.episode()).result) == READ


async def test_a_program_may_approve_with_half_a_character() -> None:
    async with Runtime.open("memory:") as runtime:
        entity = await runtime.start(make_cantrip(), "keep")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        await runtime.decide(request.id, "allow", args={"a": 10**30, "b": "\ud83d", "c": "😀"})
        assert json.loads((await entity.episode()).result) == READ


async def test_arguments_of_a_tool_are_those_that_an_mcp_client_wrote() -> None:
    async with served([make_cantrip()]) as on:

        async def send(body: str, **more: str) -> httpx.Response:
            return await on.ask("POST", "/mcp", 200, content=body, headers={**JSON, **ACCEPT, **more})

        session = (await send(json.dumps(GREETING))).headers["mcp-session-id"]
        arguments = f'{{"intent": "show", "context": {WRITTEN}}}'
        params = f'{{"name": "keeper", "arguments": {arguments}}}'
        call = f'{{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {params}}}'
        answer = await send(call, **{"mcp-session-id": session})
        data = next(line for line in answer.text.splitlines() if line.startswith("data: {"))
        assert read_context(json.loads(data[6:])["result"]["structuredContent"]["result"]) == READ


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"a": 1e400}', "expected JSON: expected a number that a float can hold"),
        ('{"a": %s}' % ("9" * 5_000), "expected JSON: expected a number of fewer digits, got 5,000"),
        ("[" * 300 + "]" * 300, "expected JSON of at most 100 levels"),
        ("[" * 5_000 + "]" * 5_000, "expected JSON of at most 100 levels"),
        ('{"a": ', "expected JSON: "),
        (b'{"a": "\xff"}', "expected JSON: "),
    ],
)
async def test_a_body_that_is_refused_says_what_is_wrong(body: str | bytes, reason: str) -> None:
    async with served([make_cantrip()]) as on:
        problem = (await on.ask("POST", "casts", 400, content=body, headers=JSON)).json()
        assert (problem["type"].rpartition("/")[2].rpartition(":")[2], problem["detail"][: len(reason)]) == (
            "invalid-json",
            reason,
        )
