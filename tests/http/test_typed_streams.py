"""Streams of typed answers: their only text is the answer, and the reasoning before it flows."""

import json
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
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
