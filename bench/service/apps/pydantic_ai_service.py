"""pydantic-ai as its documentation streams a run: `run_stream_events`. Nothing is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic_ai import (  # type: ignore[import-not-found]
    Agent,
    AgentRunResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

from bench.service.apps.wire import INSTRUCTIONS, MODEL, PROVIDER, Question, Report, render_event, respond

app = FastAPI()
agent = Agent(
    OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=PROVIDER, api_key="none")),
    output_type=Report,
    instructions=INSTRUCTIONS,
)


@agent.tool_plain  # type: ignore[untyped-decorator]
async def weather(city: str) -> str:
    """Look up the weather of a city."""
    return f"11 degrees in {city}"


@app.post("/ask")
async def ask(question: Question) -> StreamingResponse:
    """Stream the run: texts, calls, results, and the report."""
    return respond(_stream(question))


async def _stream(question: Question) -> AsyncIterator[str]:
    async with agent.run_stream_events(question.city) as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=text)) if text:
                    yield render_event("text", text)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    yield render_event("text", text)
                case FunctionToolCallEvent(part=part):
                    yield render_event("call", {"tool": part.tool_name, "args": part.args})
                case FunctionToolResultEvent(part=part):
                    yield render_event("result", {"tool": part.tool_name, "result": part.content})
                case AgentRunResultEvent(result=result):
                    yield render_event("report", result.output.model_dump())
                case _:
                    pass
