"""Streams of typed answers: their only text is the answer, and the reasoning before it flows."""

import json
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, in_process

pytestmark = pytest.mark.rule("W-20", "W-23")

BILL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
GO = [{"role": "user", "content": "go"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": GO},
    "responses": {"input": "go"},
    "messages": {"messages": GO, "max_tokens": 9},
}
FORMS: dict[str, dict[str, Any]] = {
    "chat/completions": {"response_format": {"type": "json_schema", "json_schema": {"name": "bill", "schema": BILL}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "bill", "schema": BILL}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": BILL}}},
}
TOOLS: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "tools": [{"type": "function", "function": {"name": "bill", "parameters": BILL}}],
        "tool_choice": "required",
    },
    "responses": {"tools": [{"type": "function", "name": "bill", "parameters": BILL}], "tool_choice": "required"},
    "messages": {"tools": [{"name": "bill", "input_schema": BILL}], "tool_choice": {"type": "any"}},
}


def adding() -> Cantrip:
    """Answer twice: the first answer does not fit, and the loop asks again."""
    answers = [{"total": "three"}, {"total": 3}]
    script: Any = [
        {"thinking": f"try {number}", "content": "I add.", "tool_calls": [{"gate": "done", "args": {"answer": answer}}]}
        for number, answer in enumerate(answers)
    ]
    return Cantrip(scripted(script), circle=Circle(["done"], [max_turns(9)]), name="adds")


async def stream(on: Served, path: str, **more: Any) -> list[dict[str, Any]]:
    body = {"model": "adds", "stream": True, **BODIES[path], **more}
    answer = await on.ask("POST", f"/v1/{path}", 200, json=body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def read_texts(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the deltas of an answer in any dialect, and whether each is of the reasoning, the text or a call."""
    texts = []
    for event in events:
        match event:
            case {"type": "response.reasoning_summary_text.delta", "delta": text}:
                texts.append(("reasoning", text))
            case {"delta": {"type": "thinking_delta", "thinking": text}}:
                texts.append(("reasoning", text))
            case {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": text}}]}}]}:
                texts.append(("call", text))
            case {"type": "response.function_call_arguments.delta", "delta": text}:
                texts.append(("call", text))
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                texts.append(("call", text))
            case {"choices": [{"delta": {"content": str(text)}}]} if text:
                texts.append(("text", text))
            case {"type": "response.output_text.delta", "delta": text}:
                texts.append(("text", text))
            case {"delta": {"type": "text_delta", "text": text}}:
                texts.append(("text", text))
    return texts


@pytest.mark.parametrize("path", [*BODIES])
@pytest.mark.parametrize("is_tool", [False, True])
async def test_a_typed_stream_has_the_reasoning_and_of_the_texts_only_the_answer_that_fits(
    path: str, is_tool: bool
) -> None:
    async with in_process([adding()]) as on:
        events = await stream(on, path, **(TOOLS if is_tool else FORMS)[path])
    thoughts = [] if path == "chat/completions" else [("reasoning", "try 0"), ("reasoning", "try 1")]
    assert read_texts(events) == [*thoughts, ("call" if is_tool else "text", '{"total":3}')]
    indices = [event[name] for event in events for name in ("index", "output_index") if name in event]
    assert indices == sorted(indices)
    if path == "responses":
        kinds = [item["type"] for item in events[-1]["response"]["output"]]
        assert kinds == ["reasoning", "reasoning", "function_call" if is_tool else "message"]


def billing() -> Cantrip:
    """Return a cantrip whose answers have a type of their own: the lines of a bill."""

    @gate
    def done(answer: list[str]) -> None:
        """Finish with the lines."""

    script: Any = [{"tool_calls": [{"gate": "done", "args": {"answer": ["tea"]}}]}] * 9
    return Cantrip(scripted(script), circle=Circle([done], [max_turns(3)]), name="bills")


LINES = {
    "type": "object",
    "properties": {"answer": {"type": "array", "items": {"type": "string"}}},
    "required": ["answer"],
}
BARE = {"format": {"type": "json_schema", "name": "bill", "schema": BILL, "strict": False}}
RETRIEVED: dict[str, tuple[str, dict[str, Any]]] = {
    "a form of its own": ("adds", {"text": BARE}),
    "any object": ("adds", {"text": {"format": {"type": "json_object"}}}),
    "a demanded tool": ("adds", TOOLS["responses"]),
    "a wrapped answer": ("bills", {"text": {"format": {"type": "json_schema", "name": "lines", "schema": LINES}}}),
    "text": ("adds", {}),
}


@pytest.mark.parametrize("name", RETRIEVED)
async def test_a_retrieved_response_has_the_format_and_the_answer_that_its_request_asked_for(name: str) -> None:
    model, more = RETRIEVED[name]
    async with in_process([adding(), billing()]) as on:
        body = {"model": model, "input": "go", **more}
        answer = await on.post("/v1/responses", body, 200)
        retrieved = await on.get(f"/v1/responses/{answer['id']}")
        assert retrieved["text"] == answer["text"] == more.get("text", {"format": {"type": "text"}})
        assert retrieved["output"] == answer["output"]
        if model == "bills":
            body["background"] = True
            waiting = await on.post("/v1/responses", {**body, "previous_response_id": answer["id"]}, 200)
            assert (waiting["status"], waiting["text"]) == ("queued", more["text"])
            while (retrieved := await on.get(f"/v1/responses/{waiting['id']}"))["status"] != "completed":
                assert retrieved["text"] == more["text"]
                await anyio.sleep(0.1)
            assert retrieved["output"][0]["content"][0]["text"] == '{"answer":["tea"]}'
