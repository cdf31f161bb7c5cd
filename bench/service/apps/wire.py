"""What all services have in common: the request, the answer, the tool, and how an event is written.

It needs FastAPI only, because it runs in the environments of all libraries.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

__all__ = ["INSTRUCTIONS", "LOOM", "MODEL", "PROVIDER", "Question", "Report", "render_event", "respond"]

PROVIDER = os.environ.get("BENCH_PROVIDER", "http://127.0.0.1:9/v1")
LOOM = os.environ.get("BENCH_LOOM", "memory:")
MODEL = "gpt-5-mini"
INSTRUCTIONS = "Report the weather of a city. Look it up first."


class Question(BaseModel):
    """A request."""

    city: str


class Report(BaseModel):
    """The typed answer of the agent."""

    city: str
    celsius: float
    advice: str


def render_event(kind: str, data: object) -> str:
    """Return an event of a stream of server-sent events."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def respond(events: AsyncIterator[str]) -> StreamingResponse:
    """Return the response that streams these events."""
    return StreamingResponse(events, media_type="text/event-stream")
