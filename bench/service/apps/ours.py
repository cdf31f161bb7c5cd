"""This project: each request is a cast, streamed, with every turn in the loom before the next one begins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from bench.service.apps.wire import INSTRUCTIONS, LOOM, MODEL, PROVIDER, Question, Report, render_event, respond
from bench.service.where import note_phases
from cantrip_actors import Cantrip, DeltaEvent, Runtime, TextEvent, ToolCallEvent, ToolResultEvent, gate
from cantrip_actors.crystals import openai


class State(TypedDict):
    """The values in `request.state`."""

    runtime: Runtime


@gate
async def weather(city: str) -> str:
    """Look up the weather of a city."""
    return f"11 degrees in {city}"


agent = Cantrip(
    openai(MODEL, chat=True, base_url=PROVIDER, api_key="none"),
    system=INSTRUCTIONS,
    gates=[weather],
    answer=Report,
    max_turns=5,
)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
    """Open the worker's runtime."""
    async with Runtime.open(LOOM) as runtime:
        with note_phases():
            yield {"runtime": runtime}


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(question: Question, request: Request) -> StreamingResponse:
    """Stream the episode: texts, calls, results, and the report."""
    return respond(_stream(request.state.runtime, question))


async def _stream(runtime: Runtime, question: Question) -> AsyncIterator[str]:
    shown = ""
    async with runtime.stream(agent, question.city) as run:
        async for event in run.events():
            match event:
                case DeltaEvent(kind="message", text=text) if text:
                    shown += text
                    yield render_event("text", text)
                case TextEvent(text=text):  # a reader that is late gets the rest of a text at once
                    if rest := text[len(shown) :]:
                        yield render_event("text", rest)
                    shown = ""
                case ToolCallEvent(gate="weather", args=args):
                    yield render_event("call", {"tool": "weather", "args": args})
                case ToolResultEvent(gate="weather", result=result):
                    yield render_event("result", {"tool": "weather", "result": result})
                case _:
                    pass
        yield render_event("report", (await run.result()).result.model_dump())
