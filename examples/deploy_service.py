"""A service that is deployed while it works: several workers, keys, health, a clean shutdown, another prompt.

`POST /ask` gives an intent to the caller's long-lived entity, `POST /jobs` casts a new one; both need the headers
`x-user` and `idempotency-key`, so that a request which a deploy interrupts can be sent again to any worker.
`GET /health` says whether the worker can write. docs/deploy.md explains each part. Run it with

    LOOM=sqlite:service.db uvicorn examples.deploy_service:app --workers 4 --timeout-graceful-shutdown 20

The environment says what a deploy changes: RELEASE is the prompt, and from release 2 on there is another gate.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import anyio
from fastapi import Depends, FastAPI, Header, Request

from cantrip_actors import (
    PROVIDED,
    Call,
    Cantrip,
    CantripError,
    Circle,
    EpisodeScope,
    Injected,
    InvalidIntent,
    Invocation,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.http import answer_error
from cantrip_actors.wards import max_turns

LOOM = os.environ.get("LOOM", "sqlite:service.db")
RELEASE = int(os.environ.get("RELEASE", "1"))
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))
GRACE = 10.0
"""Seconds that a shutdown waits for work under way."""
PATIENCE = 15.0
"""Seconds that a request waits for its answer: less than uvicorn waits for open requests when it stops."""


class Account:
    """The account of one user: another user must never reach it."""

    def __init__(self, user: str) -> None:
        self.user = user

    def charge(self, item: str) -> None:
        """Write a line to the ledger."""
        with LEDGER.open("a") as ledger:
            ledger.write(f"{self.user} {item}\n")


@gate(blocking=False)
def order(item: str, account: Injected[Account]) -> str:
    """Order an item for the user, and charge the user's account."""
    account.charge(item)
    return f"{item} for {account.user}"


@gate
async def opening_hours() -> str:
    """Say when the shop is open."""
    return "always"


def policy(context: Invocation) -> dict[str, object]:
    """Answer in place of a model: order what the intent names, and say so."""
    if context[-1].role == "user":
        return {"tool_calls": [{"gate": "order", "args": {"item": context[-1].content}}]}
    return {"content": f"{context[0].content} {context[-1].content}"}


GATES: list[Any] = ["done", order.with_(account=PROVIDED), *([opening_hours] if RELEASE > 1 else [])]
DESK = Cantrip(scripted(policy), Call(f"Release {RELEASE}:"), Circle(GATES, [max_turns(20)]), name="desk")


def provide(episode: EpisodeScope) -> Mapping[str, Any]:
    """Return the dependencies of the gates for one episode, in whichever worker it runs."""
    return {"account": Account(episode.sender)}


class State(TypedDict):
    """The values in `request.state`."""

    runtime: Runtime


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
    """Open the worker's runtime; at the end finish what is under way, and leave the rest to the other workers."""
    async with Runtime.open(LOOM, cantrips=[DESK], dependencies=provide, recover="resume") as runtime:
        yield {"runtime": runtime}
        await runtime.drain(GRACE)


def get_runtime(request: Request) -> Runtime:
    """Return this worker's runtime."""
    runtime: Runtime = request.state.runtime
    return runtime


class Caller(NamedTuple):
    """The user of a request, and its key."""

    user: str
    key: str


def identify(
    x_user: Annotated[str | None, Header()] = None, idempotency_key: Annotated[str | None, Header()] = None
) -> Caller:
    """Return whose request it is. A real service checks a token here."""
    if not x_user or not idempotency_key:
        raise InvalidIntent("expected the headers x-user and idempotency-key")
    return Caller(x_user, idempotency_key)


async def read_text(request: Request) -> str:
    """Return the body of a request."""
    return (await request.body()).decode()


app = FastAPI(lifespan=lifespan, exception_handlers={CantripError: answer_error, TimeoutError: answer_error})

Running = Annotated[Runtime, Depends(get_runtime)]
By = Annotated[Caller, Depends(identify)]
Text = Annotated[str, Depends(read_text)]


@app.post("/ask")
async def ask(runtime: Running, by: By, text: Text) -> dict[str, str]:
    """Give an intent to the entity of the user, which any worker may be running."""
    with anyio.fail_after(PATIENCE):
        entity = await runtime.ensure(f"desk-{by.user}", DESK)
        return {"answer": (await entity.send(text, by=by.user, key=by.key)).result}


@app.post("/jobs")
async def work(runtime: Running, by: By, text: Text) -> dict[str, str]:
    """Cast a new entity, and wait for its answer. With the same key the next attempt waits for the same one."""
    with anyio.fail_after(PATIENCE):
        return {"answer": (await runtime.cast(DESK, text, by=by.user, key=f"{by.user}:{by.key}")).result}


@app.get("/health")
async def health(runtime: Running) -> dict[str, int]:
    """Answer 200 if this worker's loom can be written; a load balancer sends no request to any other."""
    await runtime.check_writer()
    return {"release": RELEASE}
