"""The service. Run it with `uvicorn payments_desk.service:app --workers 4`; all workers share one loom.

LOOM is the URL of the loom, `sqlite:desk.db` or `postgresql://…`; BANK is the file that stands in for the bank.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from cantrip_actors import CantripError, EpisodeScope, Runtime
from cantrip_actors.http import answer_error
from payments_desk.agent import make_desk
from payments_desk.bank import Account, FileBank

LOOM = os.environ.get("LOOM", "sqlite:desk.db")
BANK = FileBank(Path(os.environ.get("BANK", "bank.db")))
PATIENCE = 15.0
"""Seconds that a request waits for an answer: less than uvicorn waits for open requests when it stops. A payment that
waits for a person may take days."""

DESK = make_desk()


def provide(episode: EpisodeScope) -> Mapping[str, Any]:
    """Return the account of the user whose intent it is, in whichever worker it runs."""
    return {"account": Account(BANK, episode.sender)}


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Runtime]]:
    """Open the worker's runtime, and at the end finish what is under way."""
    async with Runtime.open(LOOM, cantrips=[DESK], dependencies=provide, recover="resume") as runtime:
        yield {"runtime": runtime}
        await runtime.drain(10)


app = FastAPI(lifespan=lifespan, exception_handlers={CantripError: answer_error})


def get_runtime(request: Request) -> Runtime:
    """Return this worker's runtime."""
    runtime: Runtime = request.state.runtime
    return runtime


Running = Annotated[Runtime, Depends(get_runtime)]
User = Annotated[str, Header(alias="x-user")]  # a real service checks a token
Key = Annotated[str, Header(alias="idempotency-key")]


@app.post("/intents")
async def ask(text: str, runtime: Running, user: User, key: Key) -> JSONResponse:
    """Give an intent to the user's entity. 202: it waits for a person; send the same request again for the answer."""
    entity = await runtime.ensure(f"desk-{user}", DESK)
    work = await entity.post(text, by=user, key=key)
    with anyio.move_on_after(PATIENCE):
        return JSONResponse({"answer": (await work.episode()).result})
    return JSONResponse({"answer": None}, 202)


@app.get("/requests")
async def list_requests(runtime: Running) -> list[dict[str, Any]]:
    """List the payments about which a person has to decide."""
    return [{"id": request.id, "payment": request.args} for request in runtime.requests()]


@app.post("/requests/{request_id}")
async def decide(request_id: str, allow: bool, runtime: Running, user: User) -> None:
    """Allow a payment, or deny it."""
    await runtime.decide(request_id, "allow" if allow else "deny", by=user)


@app.get("/health")
async def health(runtime: Running) -> None:
    """Answer 200 if this worker can write to the loom."""
    await runtime.check_writer()
