"""A Starlette service: the runtime opens with the application and closes with it; each POST /cast is a cast.

Run it with any ASGI server: `uvicorn examples.web_service:app`. A client that goes away stops its entity, and the loom
says so; a shutdown stops all of them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cantrip_actors import Cantrip, CantripError, Circle, InvalidIntent, Invocation, Runtime, scripted
from cantrip_actors.wards import max_turns, timeout


def answer(context: Invocation) -> dict[str, object]:
    """Stands for a model."""
    return {"content": f"You asked: {context[0].content}"}


CANTRIP = Cantrip(crystal=scripted(answer), circle=Circle(gates=["done"], wards=[max_turns(20), timeout(60)]))


class State(TypedDict):
    """What requests find in `request.state`."""

    runtime: Runtime


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[State]:
    """One runtime for the application's life."""
    async with Runtime.open("memory:") as runtime:
        yield {"runtime": runtime}


async def cast(request: Request) -> JSONResponse:
    """Cast on the intent in the body, and answer with the episode."""
    runtime: Runtime = request.state.runtime
    body = await request.json()
    try:
        episode = await runtime.cast(CANTRIP, body.get("intent"))
    except InvalidIntent as error:
        return JSONResponse({"error": str(error)}, 400)
    except CantripError as error:
        return JSONResponse({"error": str(error), "entity": error.entity_id}, 502)
    return JSONResponse({"answer": episode.result, "reason": episode.reason, "entity": episode.entity_id})


async def turns(request: Request) -> JSONResponse:
    """What an entity did."""
    runtime: Runtime = request.state.runtime
    told = [turn.utterance for turn in runtime.loom.turns(request.path_params["entity"])]
    return JSONResponse(told)


app = Starlette(
    routes=[Route("/cast", cast, methods=["POST"]), Route("/entities/{entity}/turns", turns)], lifespan=lifespan
)
