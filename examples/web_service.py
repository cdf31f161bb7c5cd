"""A Starlette service: one runtime for the application's life, casts in requests, and runs that outlive them.

`POST /cast` waits for the answer: a client that hangs up stops its entity. `POST /runs` starts one and answers at
once; `GET /runs/{id}/events` sends its turns as server-sent events, which may be read late, more than once, and from
where a lost connection stopped (`Last-Event-ID`); `DELETE /runs/{id}` stops it. Run it with any ASGI server:
`uvicorn examples.web_service:app`. A shutdown waits ten seconds for running entities.
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
    EntityEndedEvent,
    EntityEvent,
    Injected,
    Invocation,
    Runtime,
    StepCompleteEvent,
    gate,
    scripted,
)
from cantrip_actors.http import answer_error
from cantrip_actors.wards import max_turns, timeout

GRACE = 10.0
"""Seconds that a shutdown waits for running entities."""
QUIET = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""


@gate
async def orders(user: Injected[str]) -> list[str]:
    """List the orders of the user."""
    return [f"tea for {user}"]


def policy(context: Invocation) -> dict[str, object]:
    """Answer in place of a model."""
    if context[0].content == "What did I order?" and context[-1].role == "user":
        return {"tool_calls": [{"gate": "orders", "args": {}}]}
    last = context[-1]
    return {"content": f"You asked: {last.content}" if last.role == "user" else f"You ordered: {last.content}"}


MODEL = scripted(policy)


def cantrip(request: Request) -> Cantrip:
    """Return the cantrip of one request; its gates know the user of this request only."""
    user = request.headers.get("x-user", "nobody")
    return Cantrip(MODEL, circle=Circle(["done", orders.with_(user=user)], [max_turns(20), timeout(60)]))


class State(TypedDict):
    """The values in `request.state`."""

    runtime: Runtime


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[State]:
    """Open one runtime for the application's life. To keep the loom, open `sqlite:loom.db`."""
    async with Runtime.open("memory:") as runtime:
        yield {"runtime": runtime}
        await runtime.drain(GRACE)


async def cast(request: Request) -> Response:
    """Cast on the intent in the body, and answer with the episode; the cast is cancelled if the client hangs up."""
    runtime: Runtime = request.state.runtime
    body = await request.json()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_on_disconnect, request, tasks.cancel_scope)
        try:
            episode = await runtime.cast(cantrip(request), body.get("intent"))
        except CantripError as error:  # outside the group it would be an ExceptionGroup
            return await answer_error(request, error)
        finally:
            tasks.cancel_scope.cancel()
        cost = {"tokens": episode.subtree_usage.total_tokens, "dollars": episode.subtree_usage.cost}
        answer = {"answer": episode.result, "reason": episode.reason, "entity": episode.entity_id, "cost": cost}
        return JSONResponse(answer)
    return Response(status_code=499)  # the client has gone


async def cancel_on_disconnect(request: Request, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the client hangs up: the server tells the application, and cancels nothing itself."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def begin(request: Request) -> Response:
    """Start an entity, and answer at once with the address of its events."""
    runtime: Runtime = request.state.runtime
    body = await request.json()
    entity = await runtime.start(cantrip(request), body.get("intent"))
    return JSONResponse({"run": entity.id}, 202, {"location": f"/runs/{entity.id}/events"})


async def events(request: Request) -> Response:
    """Send the turns of a run after `Last-Event-ID`, as they come, and its final state."""
    runtime: Runtime = request.state.runtime
    entity = runtime.get_entity(request.path_params["run"])
    feed = entity.events(after=request.headers.get("last-event-id") or "0")
    lines = follow(runtime, entity, feed)
    return StreamingResponse(lines, media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def follow(runtime: Runtime, entity: Entity, feed: AsyncIterator[EntityEvent]) -> AsyncIterator[str]:
    """Yield server-sent events: the turns among the entity's events, which come from the loom, and its end."""
    while True:
        event = None
        with anyio.move_on_after(QUIET) as quiet:
            event = await anext(feed, None)
        if isinstance(event, StepCompleteEvent):
            turn = runtime.loom.turn(event.turn_id)
            yield format_event("turn", {"said": turn.content, "saw": turn.observation}, event.id)
        elif isinstance(event, EntityEndedEvent):
            yield format_event("end", {"state": runtime.loom.state(entity.id)}, event.id)
            return
        elif quiet.cancelled_caught:
            yield ": still here\n\n"
        elif event is None:
            return


def format_event(kind: str, data: object, id: str) -> str:
    """Return one event in the format of the wire."""
    return f"id: {id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


async def stop(request: Request) -> Response:
    """Stop a run and its children."""
    runtime: Runtime = request.state.runtime
    await runtime.get_entity(request.path_params["run"]).stop()
    return Response(status_code=204)


app = Starlette(
    routes=[
        Route("/cast", cast, methods=["POST"]),
        Route("/runs", begin, methods=["POST"]),
        Route("/runs/{run}/events", events),
        Route("/runs/{run}", stop, methods=["DELETE"]),
    ],
    exception_handlers={CantripError: answer_error},
    lifespan=lifespan,
)
