"""What clients add to a long-lived entity for one intent: tools, forms of answers, and the data of a page."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Entity, gate, scripted
from cantrip_actors.wards import max_turns
from tests.http.serving import Served, in_process

pytestmark = pytest.mark.rule("W-20")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLAUDE_TOOL = {"name": "weather", "input_schema": CITY}
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name"],
    "additionalProperties": False,
}


@gate(deferred=True)
async def locate() -> str:
    """Ask the page where it is."""


async def policy(context: Any) -> Any:
    """Call the client's tool if there is one; else say which tools there are."""
    if context[-1].content == "rest":
        await anyio.sleep(30)
        return {"content": "rested"}
    if "think" in str(context[-1].content):
        await anyio.sleep(30)
    last, names = context[-1], sorted(tool.name for tool in context.tools)
    if last.role == "tool" and last.content == "again":
        return {"tool_calls": [{"gate": "weather", "args": {"city": "Rome"}}]}
    if last.role == "tool":
        return {"content": f"{'error' if last.is_error else 'result'}: {last.content}"}
    if "answer" in str(last.content):
        trees = [{"name": "a", "children": [{"nam": "b"}]}, {"name": "a", "children": [{"name": "b"}]}]
        answers = [{"gate": "done", "args": {"answer": tree}} for tree in trees]
        return {"tool_calls": answers}
    if "weather" in names:
        return {"tool_calls": [{"gate": "weather", "args": {"city": "Oslo"}}]}
    return {"content": ", ".join(names)}


def looking(system: str | None = None) -> Cantrip:
    circle = Circle(["done", locate], [max_turns(9)])
    return Cantrip(scripted(policy, record=False), circle=circle, name="looks", system=system)


async def chat(on: Served, messages: list[Any], status: int = 200, **more: Any) -> Any:
    body = {"model": "entity:bob", "messages": messages, **more}
    answer = await on.post("/v1/chat/completions", body, status)
    return answer["choices"][0]["message"] if status == 200 else answer["error"]["message"]


async def begin(on: Served) -> Entity:
    return await on.runtime.ensure("bob", on.service.cantrips["looks"])


async def test_a_long_lived_entity_has_a_clients_tools_for_one_intent() -> None:
    async with in_process([looking()]) as on:
        entity = await begin(on)
        asked: list[Any] = [{"role": "user", "content": "go"}]
        message = await chat(on, asked, tools=[TOOL])
        (call,) = message["tool_calls"]
        asked += [message, {"role": "tool", "tool_call_id": call["id"], "content": "snow"}]
        assert (await chat(on, asked, tools=[TOOL]))["content"] == "result: snow"
        asked += [{"role": "assistant", "content": "result: snow"}, {"role": "user", "content": "which?"}]
        assert (await chat(on, asked))["content"] == "done, locate"
        assert len(on.runtime.loom.intents(entity.id)) == 2


async def test_a_long_lived_entity_answers_in_a_form_for_one_intent() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "tree", "schema": TREE}}
    async with in_process([looking()]) as on:
        await begin(on)
        message = await chat(on, [{"role": "user", "content": "answer"}], response_format=form)
        assert json.loads(message["content"]) == {"name": "a", "children": [{"name": "b"}]}  # the first one did not fit
        assert (await chat(on, [{"role": "user", "content": "which?"}]))["content"] == "done, locate"


async def test_an_intent_that_waits_for_another_one_is_worked_on_with_its_own_tools() -> None:
    async with in_process([looking()]) as on:
        entity = await begin(on)
        answers: dict[str, Any] = {}

        async def ask(name: str, tools: list[Any]) -> None:
            messages = [{"role": "user", "content": "rest" if name == "first" else name}]
            answers[name] = await chat(on, messages, tools=tools)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "first", [])
            await anyio.sleep(1)
            tasks.start_soon(ask, "second", [TOOL])
            await anyio.sleep(1)
            tasks.start_soon(ask, "which?", [])
            await anyio.sleep(1)
            assert [intent.intent for intent in on.runtime.loom.intents(entity.id)] == ["rest"]
            await anyio.sleep(60)
            (call,) = answers["second"]["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "snow"}
            messages = [{"role": "user", "content": "second"}, answers["second"], result]
            assert (await chat(on, messages, tools=[TOOL]))["content"] == "result: snow"
        assert answers["first"]["content"] == "rested"
        assert answers["which?"]["content"] == "done, locate"


async def finish(on: Served, message: Any, **more: Any) -> Any:
    """Send the result of the call of an answer, and return the next answer."""
    (call,) = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "snow"}
    return await chat(on, [{"role": "user", "content": "go"}, message, result], **more)


async def test_a_process_that_runs_an_entity_adds_the_tools_of_a_request_to_another_process(tmp_path: Path) -> None:
    url, asked = f"sqlite:{tmp_path / 'loom.db'}", [{"role": "user", "content": "go"}]
    async with in_process([looking()], url=url) as one, in_process([looking()], url=url) as two:
        entity = await begin(one)
        assert (await chat(one, asked))["content"] == "done, locate"
        message = await chat(two, asked, tools=[TOOL])
        assert (await finish(two, message, tools=[TOOL]))["content"] == "result: snow"
        assert entity.loaded
        assert (await chat(two, asked))["content"] == "done, locate"
        assert (await finish(one, await chat(two, asked, tools=[TOOL])))["content"] == "result: snow"


async def test_a_result_without_the_tools_continues_an_entity_of_an_earlier_release(tmp_path: Path) -> None:
    url, asked = f"sqlite:{tmp_path / 'loom.db'}", [{"role": "user", "content": "go"}]
    async with in_process([looking()], url=url) as on:
        await begin(on)
        message = await chat(on, asked, tools=[TOOL])
    async with in_process([looking(system="Be brief.")], url=url) as on:
        with anyio.fail_after(60):
            assert (await finish(on, message))["content"] == "result: snow"
            assert (await chat(on, asked))["content"] == "done, locate"


async def test_a_run_of_a_page_continues_with_a_result_in_a_later_release(tmp_path: Path) -> None:
    url, tool = f"sqlite:{tmp_path / 'loom.db'}", {"name": "weather", "description": "The weather.", "parameters": CITY}
    async with in_process([looking()], url=url) as on:
        events = await run_agent(on, run("go", tools=[tool]))
        (call,) = [event for event in events if event["type"] == "TOOL_CALL_START"]
    async with in_process([looking(system="Be brief.")], url=url) as on:
        result = {"id": "t", "role": "tool", "toolCallId": call["toolCallId"], "content": "snow"}
        with anyio.fail_after(60):
            assert (await run_agent(on, {**run("go"), "messages": [result]}))[-1]["result"] == "result: snow"


async def test_an_episode_with_the_tools_of_a_client_is_resumed_by_the_next_process(tmp_path: Path) -> None:
    url, body = f"sqlite:{tmp_path / 'loom.db'}", {"model": "entity:bob", "tools": [TOOL]}
    body["messages"] = [{"role": "user", "content": "think, and go"}]
    key = {"idempotency-key": "k"}
    async with in_process([looking()], url=url) as on:
        await begin(on)
        with anyio.move_on_after(5):
            await on.post("/v1/chat/completions", body, 200, headers=key)
    async with in_process([looking()], url=url) as on:
        with anyio.fail_after(120):
            answer = await on.post("/v1/chat/completions", body, 200, headers=key)
            assert (await finish(on, answer["choices"][0]["message"]))["content"] == "result: snow"


@pytest.mark.parametrize(
    "reference", ["#", "#/properties/a", "#/$defs/none", "https://example.org/schema", "#anchor", "other.json#/x"]
)
async def test_a_schema_with_a_reference_that_leads_nowhere_is_refused(reference: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    schema = {"$ref": reference} if reference == "#" else schema
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    async with in_process([looking()]) as on:
        body = {"model": "looks", "messages": [{"role": "user", "content": "go"}], "tools": [tool]}
        refused = await on.post("/v1/chat/completions", body, 400)
        is_own = reference in ("#", "#/properties/a")
        expected = (
            "a reference that leads to itself" if is_own else f"the reference '{reference}' leads to no part of it"
        )
        assert expected in refused["error"]["message"]


async def test_a_failed_call_of_anthropics_api_is_an_error_for_the_entity() -> None:
    async with in_process([looking()]) as on:
        asked: dict[str, Any] = {"model": "looks", "max_tokens": 9, "tools": [CLAUDE_TOOL]}
        messages: list[Any] = [{"role": "user", "content": "go"}]
        answer = await on.post("/v1/messages", {**asked, "messages": messages}, 200)
        (block,) = answer["content"]
        failed = [{"type": "text", "text": "no"}, {"type": "text", "text": "network"}]
        result = {"type": "tool_result", "tool_use_id": block["id"], "is_error": True, "content": failed}
        messages += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        for _ in range(2):  # a client that tries again gets the same
            answer = await on.post("/v1/messages", {**asked, "messages": messages}, 200)
            assert answer["content"][0]["text"] == "error: no\nnetwork"


def run(text: str, **more: Any) -> dict[str, Any]:
    message = {"id": f"m-{text}", "role": "user", "content": text}
    return {"threadId": "bob", "runId": "r", "messages": [message], "state": {}, "context": [], "tools": [], **more}


async def run_agent(on: Served, body: Any, status: int = 200) -> list[dict[str, Any]]:
    answer = await on.ask("POST", "ag-ui/looks", status, json=body)
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


@pytest.mark.rule("W-24")
async def test_tools_context_and_state_of_a_page_are_those_of_its_run() -> None:
    async with in_process([looking()]) as on:
        tool = {"name": "weather", "description": "The weather.", "parameters": CITY}
        own = {"name": "locate", "description": "Where?", "parameters": {"type": "object"}}
        fact = {"description": "The page", "value": "Oslo"}
        events = await run_agent(on, run("go", tools=[tool, own], context=[fact], state={"zoom": 3}))
        (call,) = [event for event in events if event["type"] == "TOOL_CALL_START"]
        assert events[-1]["outcome"]["pendingToolCallIds"] == [call["toolCallId"]]
        entity = on.runtime.entity("bob")
        assert entity is not None
        (intent,) = on.runtime.loom.intents(entity.id)
        assert intent.context == {"context": [fact], "state": {"zoom": 3}}
        result = {"id": "t", "role": "tool", "toolCallId": call["toolCallId"], "content": "snow"}
        events = await run_agent(on, {**run("go", tools=[tool]), "messages": [result]})
        assert events[-1]["result"] == "result: snow"
        events = await run_agent(on, run("which?"))
        assert events[-1]["result"] == "done, locate"
        assert on.runtime.loom.intents(entity.id)[-1].context is None


async def test_instructions_that_come_with_results_again_are_no_further_message() -> None:
    shown: list[list[tuple[str, str]]] = []

    def act(context: Any) -> Any:
        shown.append([(message.role, str(message.content)) for message in context])
        asks = {"tool_calls": [{"gate": "weather", "args": {"city": "Oslo"}}]}
        return {"content": "snow"} if context[-1].role == "tool" else asks

    here = Cantrip(scripted(act, record=False), circle=Circle(["done"], [max_turns(9)]), name="looks")
    async with in_process([here]) as on:
        tool = {"type": "function", "name": "weather", "parameters": CITY}
        body = {"model": "looks", "tools": [tool], "instructions": "Be brief."}
        asked = await on.post("/v1/responses", {**body, "input": "go"}, 200)
        result = {"type": "function_call_output", "call_id": asked["output"][0]["call_id"], "output": "snow"}
        more = {**body, "input": [result], "previous_response_id": asked["id"]}
        for _ in range(2):  # a client that tries again gets the same
            answer = await on.post("/v1/responses", more, 200)
            assert answer["output"][0]["content"][0]["text"] == "snow"
        assert [role for role, _ in shown[-1]] == ["system", "user", "assistant", "tool"]
        assert [text for _, text in shown[-1]].count("Be brief.") == 1


@pytest.mark.rule("W-24")
async def test_a_page_sends_the_results_of_two_calls_at_once_and_is_asked_for_none_again() -> None:
    def act(context: Any) -> Any:
        results = [f"{message.is_error} {message.content}" for message in context if message.role == "tool"]
        return {"content": " | ".join(results)} if results else {"tool_calls": [{"gate": "locate"}] * 2}

    here = Cantrip(scripted(act, record=False), circle=Circle(["done", locate], [max_turns(9)]), name="looks")
    async with in_process([here]) as on:
        begun = await run_agent(on, run("go"))
        calls = [event["toolCallId"] for event in begun if event["type"] == "TOOL_CALL_START"]
        results = [{"id": id, "role": "tool", "toolCallId": id, "content": "Oslo"} for id in calls]
        results[1]["error"] = "lost"
        events = await run_agent(on, {**run("go"), "messages": results})
        assert events[-1]["result"] == "False Oslo | True lost"
        said = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
        begun = (await on.ask("POST", "chat/looks", 200, json={"id": "ann", "messages": [said]})).text
        parts = [
            {"type": "tool-locate", "toolCallId": id, "state": "output-available", "output": "Rome"} for id in calls
        ]
        parts[1] |= {"state": "output-error", "errorText": "lost"}
        answered = {"id": "m2", "role": "assistant", "parts": parts}
        rest = (await on.ask("POST", "chat/looks", 200, json={"id": "ann", "messages": [said, answered]})).text
        assert all(id in begun for id in calls)
        assert "False Rome | True lost" in rest


@pytest.mark.rule("W-24")
async def test_a_tool_of_a_page_that_cannot_be_a_gate_is_refused() -> None:
    async with in_process([looking()]) as on:
        await run_agent(on, run("go", tools=[{"name": "done", "parameters": CITY}]), 400)
        await run_agent(on, run("go", tools=[{"name": "x", "parameters": {"type": "objekt"}}]), 400)
        assert on.runtime.entity("bob") is None


async def test_a_retrieved_response_after_results_names_the_one_before_it() -> None:
    tool = {"type": "function", **TOOL["function"]}
    async with in_process([looking()]) as on:
        posted: list[Any] = []

        async def ask(content: Any) -> Any:
            previous = posted[-1]["id"] if posted else None
            body = {"model": "looks", "input": content, "tools": [tool], "previous_response_id": previous}
            posted.append(await on.post("/v1/responses", body, 200))
            return posted[-1]

        for _ in range(2):
            answer = await ask("go twice")
            for text in ("again", "snow"):
                (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
                answer = await ask([{"type": "function_call_output", "call_id": call["call_id"], "output": text}])
            assert answer["output"][0]["content"][0]["text"] == "result: snow"
        ids = [None, *(response["id"] for response in posted)]
        assert [response["previous_response_id"] for response in posted] == ids[:-1]
        read = [await on.get(f"/v1/responses/{response['id']}") for response in posted]
        assert [response["previous_response_id"] for response in read] == ids[:-1]


@pytest.mark.parametrize("is_tool", [False, True])
async def test_a_form_whose_members_are_all_optional_is_asked_for_too(is_tool: bool) -> None:
    def act(context: Any) -> Any:
        done = next(tool for tool in context.tools if tool.name == "done").parameters["properties"]
        answer = {"city": "Oslo"} if "city" in done["answer"].get("properties", {}) else "Oslo"
        return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}

    schema = {"type": "object", "properties": {"city": {"type": "string", "default": "Rome"}}}
    tools = {
        "tools": [{"type": "function", "function": {"name": "find", "parameters": schema}}],
        "tool_choice": "required",
    }
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "find", "schema": schema}}}
    async with in_process([Cantrip(scripted(act), circle=Circle(["done"], [max_turns(3)]), name="finds")]) as on:
        body = {"model": "finds", "messages": [{"role": "user", "content": "Where?"}], **(tools if is_tool else form)}
        message = (await on.post("/v1/chat/completions", body, 200))["choices"][0]["message"]
        text = message["tool_calls"][0]["function"]["arguments"] if is_tool else message["content"]
        assert json.loads(text) == {"city": "Oslo"}
