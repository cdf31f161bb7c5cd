"""Calls of OpenAI's API that wait for a person: a client that gives up undoes nothing, and finds the answer later."""

from typing import Any

import anyio
import httpx
import pytest

from tests.http.serving import served
from tests.mcp_server.clients import helper

pytestmark = [pytest.mark.real_time, pytest.mark.rule("W-41")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_a_client_that_runs_out_of_patience_cancels_nothing_that_waits_for_a_person(
    path: str, stream: bool
) -> None:
    async with served([helper()]) as on, httpx.AsyncClient() as client:
        content = {"messages": [{"role": "user", "content": "pay 3"}]} if path[0] == "c" else {"input": "pay 3"}

        async def call() -> None:
            body = {"model": "helper", "stream": stream, **content}
            headers = {"authorization": "Bearer admin-token"}
            async with client.stream("POST", f"{on.url}/v1/{path}", json=body, headers=headers, timeout=60) as answer:
                await answer.aread()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            request = await until(lambda: next(iter(on.runtime.requests()), None))
            tasks.cancel_scope.cancel()
        response = f"{on.url}/v1/responses/resp_{request.entity}"
        headers = {"authorization": "Bearer admin-token"}
        await anyio.sleep(0.5)
        waiting = (await client.get(response, headers=headers)).json()
        assert waiting["status"] == "in_progress"
        assert waiting["metadata"] == {
            "waits_for": "a person",
            "requests": request.id,
            "link": f"{on.url}/#/e/{request.entity}",
        }
        await on.runtime.decide(request.id, "allow", by="anna")

        async def find_end() -> Any:
            found = (await client.get(response, headers=headers)).json()
            return found if found["status"] == "completed" else None

        with anyio.fail_after(30):
            while (done := await find_end()) is None:
                await anyio.sleep(0.05)
        assert done["output"][0]["content"][0]["text"] == "it said: paid 3"
        assert done["metadata"] == {}


async def until(find: Any) -> Any:
    with anyio.fail_after(30):
        while (found := find()) is None:
            await anyio.sleep(0.02)
    return found
