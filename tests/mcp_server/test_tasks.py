"""What a modern client comes back for: calls with a state, and tasks."""

import json
from typing import Any

import anyio
import pytest
from mcp import types
from mcp.client import advertise
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from cantrip_actors import Runtime
from tests.mcp_server.clients import connected, helper
from tests.mcp_server.test_requests import user

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"


@pytest.mark.rule("MCP-15")
async def test_a_call_continues_from_the_request_state_alone() -> None:
    async with connected(MODERN, elicitation_callback=user()) as (client, runtime):
        call = {"name": "helper", "arguments": {"intent": "pay 3"}}
        asked = await client.session.call_tool(**call, allow_input_required=True)
        assert isinstance(asked, types.InputRequiredResult)
        (request,) = runtime.requests()
        assert asked.request_state is not None
        assert request.id not in asked.request_state
        assert asked.input_requests is not None
        assert list(asked.input_requests) == [request.id]
        answers: Any = {request.id: types.ElicitResult(action="accept", content={"decision": "allow"})}
        forged = json.dumps({"work": request.entity, "put": []})
        for state, arguments in (
            (forged, call["arguments"]),
            (asked.request_state[:-2] + "xx", call["arguments"]),
            (asked.request_state, {"intent": "pay 5"}),
        ):
            with pytest.raises(MCPError, match="requestState"):
                await client.session.call_tool(
                    "helper",
                    arguments,  # type: ignore[arg-type]
                    input_responses=answers,
                    request_state=state,
                    allow_input_required=True,
                )
        assert len(runtime.requests()) == 1
        done = await client.session.call_tool(
            **call, input_responses=answers, request_state=asked.request_state, allow_input_required=True
        )
        assert isinstance(done, types.CallToolResult)
        assert done.content[0].text == "it said: paid 3"  # type: ignore[union-attr]
        assert len(list(runtime.loom.headers())) == 1


@pytest.mark.rule("MCP-15")
async def test_another_process_continues_a_call_that_waits(tmp_path: Any) -> None:
    url, call = f"sqlite:{tmp_path}/loom.db", {"name": "helper_send", "arguments": {"intent": "pay 3"}}
    async with (
        Runtime.open(url, cantrips=[helper()]) as runtime,
        connected(MODERN, runtime=runtime, elicitation_callback=user()) as (client, _),
    ):
        asked = await client.session.call_tool(**call, allow_input_required=True)
        (request,) = runtime.requests()
    answers: Any = {request.id: types.ElicitResult(action="accept", content={"decision": "allow"})}
    async with (
        Runtime.open(f"sqlite:{tmp_path}/other.db", cantrips=[helper()]) as runtime,
        connected(MODERN, runtime=runtime, elicitation_callback=user()) as (client, _),
    ):
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool(**call, input_responses=answers, request_state=asked.request_state)
    async with (
        Runtime.open(url, cantrips=[helper()]) as runtime,
        connected(MODERN, runtime=runtime, elicitation_callback=user()) as (client, _),
    ):
        done = await client.session.call_tool(**call, input_responses=answers, request_state=asked.request_state)
        assert done.content[0].text == "it said: paid 3"  # type: ignore[union-attr]


class Task(types.Result):
    """Any result, with all its fields."""

    model_config = ConfigDict(extra="allow")


class AboutTask(types.Request[dict[str, Any], str]):
    """A request that names its task in a header, too."""

    name_param = "taskId"


async def ask(client: Any, method: str, *, kind: Any = AboutTask, **params: Any) -> Any:
    """Send a request that the SDK has no method for; its result."""
    request = kind(method=method, params=params)
    result = await client.session.send_request(request, Task)
    return result.model_dump(by_alias=True, exclude_none=True)


def with_tasks(*more: Any, **options: Any) -> Any:
    return connected(MODERN, *more, extensions=[advertise(TASKS)], **options)


async def begin(client: Any, intent: str, tool: str = "helper", **arguments: Any) -> Any:
    """Call a tool, and return the task that it becomes."""
    call = types.CallToolRequest(
        params=types.CallToolRequestParams(name=tool, arguments={"intent": intent, **arguments})
    )
    result = await client.session.send_request(call, Task)
    return result.model_dump(by_alias=True, exclude_none=True)


@pytest.mark.rule("MCP-14")
async def test_work_of_more_than_five_seconds_is_a_task() -> None:
    async with with_tasks() as (client, runtime):
        assert (await begin(client, "nap 3"))["structuredContent"]["result"] == "it said: slept"
        began = anyio.current_time()
        task = await begin(client, "nap 60")
        assert anyio.current_time() - began == pytest.approx(5)
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert runtime.loom.has(task["taskId"])
        seen = await ask(client, "tasks/get", taskId=task["taskId"])
        assert (seen["resultType"], seen["status"]) == ("complete", "working")
        await anyio.sleep(60)
        done = await ask(client, "tasks/get", taskId=task["taskId"])
        assert done["status"] == "completed"
        assert done["result"]["structuredContent"]["result"] == "it said: slept"
        assert done["createdAt"] <= done["lastUpdatedAt"]


@pytest.mark.rule("MCP-14")
async def test_the_times_of_a_task_are_those_of_its_intent() -> None:
    async with with_tasks() as (client, runtime):
        entity = (await begin(client, "hello"))["structuredContent"]["entity_id"]
        await anyio.sleep(3600)
        napping = await begin(client, "nap 60", "helper_send", entity_id=entity)
        waiting = await begin(client, "hello", "helper_send", entity_id=entity)
        times = [task["createdAt"] for task in (napping, waiting)]
        assert runtime.loom.header(entity).at < times[0] < times[1] == waiting["lastUpdatedAt"]
        await anyio.sleep(600)
        done = [await ask(client, "tasks/get", taskId=task["taskId"]) for task in (napping, waiting)]
        assert done[0]["createdAt"] == times[0]
        assert done[0]["lastUpdatedAt"] <= done[1]["createdAt"] <= done[1]["lastUpdatedAt"]


@pytest.mark.rule("W-41")
async def test_a_task_of_a_client_without_forms_says_where_a_person_decides() -> None:
    async with with_tasks() as (client, runtime):
        began = anyio.current_time()
        task = await begin(client, "pay 3")
        assert (task["resultType"], anyio.current_time() - began < 5) == ("task", True)
        (request,) = runtime.requests()
        assert (task["status"], request.id in task["statusMessage"]) == ("working", True)
        seen = await ask(client, "tasks/get", taskId=task["taskId"])
        assert (seen["status"], request.id in seen["statusMessage"]) == ("working", True)
        await runtime.decide(request.id, "allow", by="anna")
        await anyio.sleep(1)
        done = await ask(client, "tasks/get", taskId=task["taskId"])
        assert done["result"]["structuredContent"]["result"] == "it said: paid 3"


async def test_a_client_without_the_extension_waits_and_may_not_ask_about_tasks() -> None:
    async with connected(MODERN) as (client, _):
        done = await client.call_tool("helper", {"intent": "nap 60"})
        assert done.structured_content is not None
        with pytest.raises(MCPError) as refused:
            await ask(client, "tasks/get", taskId=done.structured_content["entity_id"])
        assert refused.value.code == -32021


@pytest.mark.rule("MCP-15")
async def test_a_task_that_waits_for_a_person_is_updated_with_the_decision() -> None:
    async with with_tasks(elicitation_callback=user()) as (client, runtime):
        task = await begin(client, "pay 3")
        assert task["status"] == "input_required"
        (request,) = runtime.requests()
        seen = await ask(client, "tasks/get", taskId=task["taskId"])
        assert list(seen["inputRequests"]) == [request.id]
        assert seen["inputRequests"][request.id]["method"] == "elicitation/create"
        answer = {"action": "accept", "content": {"decision": "allow"}}
        for _ in range(2):  # the second one finds nothing to decide
            told = await ask(client, "tasks/update", taskId=task["taskId"], inputResponses={request.id: answer})
            assert told["resultType"] == "complete"
        await anyio.sleep(1)
        done = await ask(client, "tasks/get", taskId=task["taskId"])
        assert done["result"]["structuredContent"]["result"] == "it said: paid 3"


async def test_a_task_is_cancelled_and_stays_so() -> None:
    async with with_tasks() as (client, runtime):
        task = await begin(client, "nap 60")
        for _ in range(2):
            await ask(client, "tasks/cancel", taskId=task["taskId"])
            assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "cancelled"
        assert runtime.loom.is_over(task["taskId"])


async def test_an_intent_of_a_long_lived_entity_is_a_task_of_its_own() -> None:
    async with with_tasks() as (client, runtime):
        first = await begin(client, "hello", "helper_send")
        entity = first["structuredContent"]["entity_id"]
        tasks = [await begin(client, f"nap {n}", "helper_send", entity_id=entity) for n in (20, 30)]
        assert len({one["taskId"] for one in tasks} | {entity}) == 3
        await ask(client, "tasks/cancel", taskId=tasks[0]["taskId"])
        await anyio.sleep(60)
        seen = [await ask(client, "tasks/get", taskId=one["taskId"]) for one in tasks]
        assert [one["status"] for one in seen] == ["cancelled", "completed"]
        assert not runtime.loom.is_over(entity)


@pytest.mark.rule("C-19")
async def test_a_task_whose_intent_waits_is_taken_back() -> None:
    async with with_tasks() as (client, runtime):
        entity = (await begin(client, "hello", "helper_send"))["structuredContent"]["entity_id"]
        tasks = [await begin(client, intent, "helper_send", entity_id=entity) for intent in ("nap 60", "nap 61")]
        await ask(client, "tasks/cancel", taskId=tasks[1]["taskId"])
        seen = [(await ask(client, "tasks/get", taskId=one["taskId"]))["status"] for one in tasks]
        assert seen == ["working", "cancelled"]
        await anyio.sleep(100)
        assert (await ask(client, "tasks/get", taskId=tasks[0]["taskId"]))["status"] == "completed"
        assert len(runtime.loom.turns(entity)) == 3


async def test_unknown_tasks_are_errors() -> None:
    async with with_tasks([helper()]) as (client, runtime):
        other = await runtime.start(helper("hidden"), "hello")
        await other.episode()
        known = (await begin(client, "hello", "helper_send"))["structuredContent"]["entity_id"]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for task in ("nobody", other.id, f"{known}.nothing"):
                more = {"inputResponses": {}} if method == "tasks/update" else {}
                with pytest.raises(MCPError, match="not found") as refused:
                    await ask(client, method, taskId=task, **more)
                assert refused.value.code == -32602
        for gone in ("tasks/list", "tasks/result"):
            with pytest.raises(MCPError) as refused:
                await ask(client, gone, taskId=known)
            assert refused.value.code == -32601


@pytest.mark.rule("MCP-14")
async def test_another_process_answers_for_a_task(tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url, cantrips=[helper()]) as runtime, with_tasks([helper()], runtime=runtime) as both:
        task, works = await begin(both[0], "pay 3"), await begin(both[0], "nap 60")
        done = await begin(both[0], "hello")
    async with (
        Runtime.open(url, cantrips=[helper()], recover="resume") as runtime,
        with_tasks([helper()], runtime=runtime, elicitation_callback=user()) as (client, _),
    ):
        seen = await ask(client, "tasks/get", taskId=done["structuredContent"]["entity_id"])
        assert (seen["status"], seen["result"]["structuredContent"]["turns"]) == ("completed", 1)
        waits = await ask(client, "tasks/get", taskId=task["taskId"])
        assert waits["status"] == "input_required"
        (request,) = waits["inputRequests"]
        answers = {request: {"action": "accept", "content": {"decision": "allow"}}}
        await ask(client, "tasks/update", taskId=task["taskId"], inputResponses=answers)
        await anyio.sleep(1)
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "completed"
        seen = await ask(client, "tasks/get", taskId=works["taskId"])
        assert "unknown" in seen["result"]["structuredContent"]["result"]  # the outcome of the nap that was cut
