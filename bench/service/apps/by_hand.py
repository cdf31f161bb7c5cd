"""No agent library: a loop around the client of OpenAI. It keeps nothing, and is the floor of the comparison."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from openai import AsyncOpenAI

from bench.service.apps.wire import INSTRUCTIONS, MODEL, PROVIDER, Question, Report, render_event, respond

app = FastAPI()
client = AsyncOpenAI(base_url=PROVIDER, api_key="none")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Look up the weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "final_result", "parameters": Report.model_json_schema()}},
]


@app.post("/ask")
async def ask(question: Question) -> StreamingResponse:
    """Stream the run: texts, calls, results, and the report."""
    return respond(_stream(question))


async def _stream(question: Question) -> AsyncIterator[str]:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question.city},
    ]
    while True:
        text, call = "", {"id": "", "name": "", "arguments": ""}
        stream = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, stream=True)
        async for chunk in stream:
            delta = chunk.choices[0].delta if chunk.choices else None
            if delta is not None and delta.content:
                text += delta.content
                yield render_event("text", delta.content)
            for piece in (delta.tool_calls or ()) if delta is not None else ():
                assert piece.function is not None
                call["id"] = piece.id or call["id"]
                call["name"] = piece.function.name or call["name"]
                call["arguments"] += piece.function.arguments or ""
        args = json.loads(call["arguments"])
        if call["name"] == "final_result":
            yield render_event("report", Report.model_validate(args).model_dump())
            return
        yield render_event("call", {"tool": call["name"], "args": args})
        result = f"11 degrees in {args['city']}"
        yield render_event("result", {"tool": call["name"], "result": result})
        function = {"name": call["name"], "arguments": call["arguments"]}
        calls = [{"id": call["id"], "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
