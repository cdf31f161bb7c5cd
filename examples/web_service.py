"""A Starlette service: one runtime for the application's life, casts in requests, and runs that outlive them.

`POST /cast` waits for the answer: a client that goes away stops its entity. `POST /runs` begins one and answers at
once; `GET /runs/{id}/events` tells what it does as server-sent events, which may be read late, more than once, and from
where a lost connection stopped (`Last-Event-ID`); `DELETE /runs/{id}` stops it. Run it with any ASGI server:
`uvicorn examples.web_service:app`. A shutdown gives what is under way ten seconds.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cantrip_actors import (
    Cantrip,
    CantripError,
    Circle,
    Entity,
    EntityEvent,
    Injected,
    InvalidIntent,
    Invocation,
    LoomError,
    MissedEvent,
    Runtime,
    RuntimeClosed,
    StepCompleteEvent,
    gate,
    scripted,
)
from cantrip_actors.wards import max_turns, timeout

GRACE = 10.0
"""Seconds that a shutdown waits for what is under way."""
QUIET = 15.0
"""Seconds after which a comment keeps a connection alive on which nothing happens."""


@gate
async def orders(user: Injected[str]) -> list[str]:
    """What the user has ordered."""
    return [f"tea for {user}"]


def policy(context: Invocation) -> dict[str, object]:
    """Stands for a model."""
    if context[0].content == "What did I order?" and context[-1].role == "user":
        return {"tool_calls": [{"gate": "orders", "args": {}}]}
    last = context[-1]
    return {"content": f"You asked: {last.content}" if last.role == "user" else f"You ordered: {last.content}"}


MODEL = scripted(policy)


def cantrip(request: Request) -> Cantrip:
    """Each request's own: its gates have the user who asks, and no other request's have."""
    user = request.headers.get("x-user", "nobody")
    return Cantrip(MODEL, circle=Circle(["done", orders.with_(user=user)], [max_turns(20), timeout(60)]))


class State(TypedDict):
    """What requests find in `request.state`."""

    runtime: Runtime


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[State]:
    """One runtime for the application's life. A service that is to remember opens `sqlite:loom.db`."""
    async with Runtime.open("memory:") as runtime:
        yield {"runtime": runtime}
        await runtime.drain(GRACE)


async def cast(request: Request) -> Response:
    """Cast on the intent in the body, and answer with the episode."""
    runtime: Runtime = request.state.runtime
    body = await request.json()
    episode = await runtime.cast(cantrip(request), body.get("intent"))
    cost = {"tokens": episode.subtree_usage.total_tokens, "dollars": episode.subtree_usage.cost}
    told = {"answer": episode.result, "reason": episode.reason, "entity": episode.entity_id, "cost": cost}
    return JSONResponse(told)


async def begin(request: Request) -> Response:
    """Cast, and answer at once with where to look."""
    runtime: Runtime = request.state.runtime
    body = await request.json()
    entity = await runtime.start(cantrip(request), body.get("intent"))
    return JSONResponse({"run": entity.id}, 202, {"location": f"/runs/{entity.id}/events"})


async def events(request: Request) -> Response:
    """What a run does: its turns after `Last-Event-ID`, then those to come, then how it ended."""
    runtime: Runtime = request.state.runtime
    entity = runtime.find(request.path_params["run"])
    last = request.headers.get("last-event-id", "")
    story = told(runtime, entity, int(last) if last.isdecimal() else 0)
    return StreamingResponse(story, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def told(runtime: Runtime, entity: Entity, last: int) -> AsyncIterator[str]:
    """Server-sent events from the loom, which has everything. Those of the runtime only say when to look again."""
    news = entity.events()  # before the loom is read, so that nothing falls between the two
    over = False
    while True:
        begun = runtime.loom.has(entity.id)
        over = over or (begun and runtime.loom.is_over(entity.id))
        for turn in runtime.loom.turns(entity.id)[last:] if begun else ():
            last = turn.sequence
            yield server_sent("turn", {"said": turn.content, "saw": turn.observation}, last)
        if over:
            yield server_sent("end", {"state": runtime.loom.state(entity.id)}, last)
            return
        with anyio.move_on_after(QUIET) as quiet:
            over = not await goes_on(news)
        if quiet.cancelled_caught:
            yield ": still here\n\n"


async def goes_on(news: AsyncIterator[EntityEvent]) -> bool:
    """Wait until there is a turn more; False where there is nothing more to come."""
    async for event in news:
        if isinstance(event, (StepCompleteEvent, MissedEvent)):
            return True
    return False


def server_sent(kind: str, data: object, number: int) -> str:
    """One event as it goes over the wire."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


async def stop(request: Request) -> Response:
    """End a run and everything below it."""
    runtime: Runtime = request.state.runtime
    await runtime.find(request.path_params["run"]).stop()
    return Response(status_code=204)


async def refused(_request: Request, error: Exception) -> Response:
    """Whose mistake it was: the client's, nobody's just now, or somebody's behind us."""
    statuses: dict[type[Exception], int] = {InvalidIntent: 400, RuntimeClosed: 503, LoomError: 404}
    told = {"error": str(error), "entity": getattr(error, "entity_id", None)}
    return JSONResponse(told, statuses.get(type(error), 502))


app = Starlette(
    routes=[
        Route("/cast", cast, methods=["POST"]),
        Route("/runs", begin, methods=["POST"]),
        Route("/runs/{run}/events", events),
        Route("/runs/{run}", stop, methods=["DELETE"]),
    ],
    exception_handlers={CantripError: refused},
    lifespan=lifespan,
)
