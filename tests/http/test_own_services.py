"""A service of one's own, on FastAPI, answers each error of the runtime as `cantrip serve` does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from cantrip_actors import PROVIDED, Cantrip, CantripError, Injected, Runtime, gate, scripted
from cantrip_actors.http import Problem, answer_error


@gate
async def orders(user: Injected[str]) -> str:
    """List the orders of the user."""
    return f"tea for {user}"


def call(name: str, **args: object) -> dict[str, object]:
    return {"tool_calls": [{"gate": name, "args": args}]}


CANTRIPS = {
    "answering": Cantrip(scripted(lambda context: call("done", answer=1)), answer=int, max_turns=2),
    "misfit": Cantrip(scripted(lambda context: call("done", answer="much")), answer=int, max_turns=2),
    "provided": Cantrip(scripted(lambda context: "hi"), gates=[orders.with_(user=PROVIDED)], max_turns=2),
}


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Runtime]]:
    async with Runtime.open("memory:") as runtime:
        yield {"runtime": runtime}


app = FastAPI(
    lifespan=lifespan,
    exception_handlers={CantripError: answer_error, TimeoutError: answer_error, Problem: answer_error},
)


@app.post("/casts/{name}")
async def cast(name: str, request: Request, text: str, key: str | None = None) -> Any:
    if name == "slow":
        raise TimeoutError
    if name == "unpaid":
        raise Problem(402, "unpaid", "the bill is not paid")
    return (await request.state.runtime.cast(CANTRIPS[name], text, key=key)).result


@app.post("/requests/{id}")
async def decide(id: str, request: Request) -> None:
    await request.state.runtime.decide(id, "allow")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_fastapi_service_answers_each_error_with_its_status_and_its_reason(backend: Any) -> None:
    with TestClient(app, backend=backend) as client:

        def post(path: str, status: int, **params: str) -> dict[str, Any]:
            answer = client.post(path, params=params)
            problem = answer.json()
            assert (answer.status_code, problem["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
            return problem

        assert client.post("/casts/answering", params={"text": "go", "key": "a"}).json() == 1
        assert post("/casts/answering", 422, text="other", key="a")["type"] == "urn:cantrip:idempotency-key-reused"
        assert "intent is required" in post("/casts/answering", 422, text="")["detail"]
        truncated = post("/casts/misfit", 502, text="go")
        assert (truncated["type"], truncated["ward"]) == ("urn:cantrip:truncated", "max_turns")
        assert post("/casts/provided", 503, text="go")["type"] == "urn:cantrip:dependencies-unknown"
        assert "the same key" in post("/casts/slow", 503, text="go")["detail"]
        assert post("/casts/unpaid", 402, text="go")["detail"] == "the bill is not paid"
        assert post("/requests/none", 404)["type"] == "urn:cantrip:unknown-request"
