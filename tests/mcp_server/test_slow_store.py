"""An MCP server on a loom on a server that takes long to answer: no statement is sent from the event loop's thread."""

from typing import Any

import anyio
import pytest
from mcp import types
from mcp.client import advertise

from cantrip_actors import Runtime
from tests.loom import postgres
from tests.loom.statements import Watched, watch_statements
from tests.mcp_server.clients import ERAS, connected, helper
from tests.mcp_server.test_requests import user
from tests.mcp_server.test_tasks import MODERN, TASKS, ask, begin

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-13")]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watch_statements(monkeypatch)


@pytest.mark.parametrize("era", ERAS)
async def test_no_call_of_a_tool_waits_for_the_server_in_the_event_loop(watched: Watched, era: str) -> None:
    async def hear(_progress: float, _total: float | None, _message: str | None) -> None: ...

    async with (
        Runtime.open(postgres.fresh(), cantrips=[helper()]) as runtime,
        connected(era, runtime=runtime, elicitation_callback=user({"decision": "allow"})) as (client, _),
    ):
        with watched.watching():
            await client.call_tool("helper", {"intent": "pay 3"}, progress_callback=hear)
            first = await client.call_tool("helper_send", {"intent": "hello"})
            facts: Any = first.structured_content
            entity = facts["entity_id"]
            await client.call_tool("helper_send", {"intent": "more", "entity_id": entity}, progress_callback=hear)
            await client.call_tool("helper_fork", {"intent": "else", "at": entity})
            assert (await client.call_tool("helper_send", {"intent": "x", "entity_id": "nobody"})).is_error
            assert (await client.list_resources()).resources
            assert (await client.read_resource(f"cantrip://entities/{entity}")).contents
            with anyio.move_on_after(0.3):
                await client.call_tool("helper", {"intent": "nap 60"})


async def test_no_request_about_a_task_waits_for_the_server_in_the_event_loop(watched: Watched) -> None:
    async with (
        Runtime.open(postgres.fresh(), cantrips=[helper()]) as runtime,
        connected(MODERN, runtime=runtime, extensions=[advertise(TASKS)], elicitation_callback=user()) as (client, _),
    ):
        with watched.watching():
            task = (await begin(client, "pay 3"))["taskId"]
            asked = await ask(client, "tasks/get", taskId=task)
            answers = {
                key: types.ElicitResult(action="accept", content={"decision": "allow"}).model_dump(by_alias=True)
                for key in asked["inputRequests"]
            }
            await ask(client, "tasks/update", taskId=task, inputResponses=answers)
            with anyio.fail_after(20):
                while (await ask(client, "tasks/get", taskId=task))["status"] != "completed":
                    await anyio.sleep(0.1)
            waiting = (await begin(client, "pay 4"))["taskId"]
            await ask(client, "tasks/cancel", taskId=waiting)
