"""Tools and forms of answer that clients of OpenAI's API give a cantrip for one episode (W-20)."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from cantrip_actors import Cantrip, Circle, Gate, Runtime, scripted
from cantrip_actors.terms.gate import Gate as AnyGate
from cantrip_actors.wards import max_turns
from tests.http.serving import ADMIN, Served, in_process, served

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.rule("W-20"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # openai's streams leave generators on trio
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # likewise
]

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}
FLAT: Any = {"type": "function", "name": "weather", "description": "The weather.", "parameters": CITY, "strict": False}
GO: Any = [{"role": "user", "content": "go"}]


def policy(context: Any) -> Any:
    """Look at two cities with the client's tool, and at the cantrip's own gate between; then say what came."""
    last = context[-1]
    if last.role == "tool":
        return {"content": " | ".join(str(one.content) for one in context if one.role == "tool")}
    if last.content == "json":
        return {"tool_calls": [{"gate": "done", "args": {"answer": {"total": 3}}}]}
    looks = [("weather", {"city": "Oslo"}), ("echo", {"text": "own"}), ("weather", {"city": "Rome"})]
    calls = [{"gate": name, "args": args} for name, args in looks]
    return {"content": "I look.", "tool_calls": calls, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def looking() -> Cantrip:
    circle = Circle(["done", "echo"], [max_turns(9)])
    return Cantrip(scripted(policy, record=False), circle=circle, name="looks")


def client_of(on: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{on.url}/v1", api_key=ADMIN, max_retries=0)


def answer_calls(message: Any, *results: str) -> list[Any]:
    """Return the messages of the next request: those before, the answer, and a result of each call."""
    pairs = zip(message.tool_calls, results, strict=True)
    told = [{"role": "tool", "tool_call_id": one.id, "content": text} for one, text in pairs]
    return [*GO, message.model_dump(exclude_none=True), *told]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_carries_out_parallel_calls_and_its_entity_continues(is_stream: bool) -> None:
    async with served([looking()]) as on, client_of(on) as client:
        if is_stream:
            async with client.chat.completions.stream(model="looks", messages=GO, tools=[TOOL]) as stream:
                asked: Any = await stream.get_final_completion()
        else:
            asked = await client.chat.completions.create(model="looks", messages=GO, tools=[TOOL])
        choice = asked.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
        assert [one.function.arguments for one in choice.message.tool_calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
        messages = answer_calls(choice.message, "snow", "sun")
        for _ in range(2):  # a client that tries again gets the same
            answer = await client.chat.completions.create(model="looks", messages=messages, tools=[TOOL])
            assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("snow | own | sun", "stop")
        assert len(on.runtime.loom.entities()) == 1


@pytest.mark.parametrize(
    ("change", "status", "expected"),
    [
        (lambda results: [{**results[0], "tool_call_id": "call_of_another"}], 400, "no call has the id"),
        (lambda results: results[:1], 400, "expected a result of each call"),
        (lambda results: [{**results[0], "tool_call_id": 7}], 400, "expected the id of the call"),
    ],
)
async def test_results_that_belong_to_no_waiting_call_are_refused(change: Any, status: int, expected: str) -> None:
    async with served([looking()]) as on, client_of(on) as client:
        asked = await client.chat.completions.create(model="looks", messages=GO, tools=[TOOL])
        messages = answer_calls(asked.choices[0].message, "snow", "sun")
        with pytest.raises(openai.APIStatusError, match=expected) as refused:
            await client.chat.completions.create(
                model="looks", messages=[*messages[:-2], *change(messages[-2:])], tools=[TOOL]
            )
        assert refused.value.status_code == status
        await client.chat.completions.create(model="looks", messages=messages, tools=[TOOL])
        other = answer_calls(asked.choices[0].message, "snow", "rain")
        with pytest.raises(openai.ConflictError, match="has a result already"):
            await client.chat.completions.create(model="looks", messages=other, tools=[TOOL])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_continues_with_the_results_of_its_calls(is_stream: bool) -> None:
    async with served([looking()]) as on, client_of(on) as client:
        asked = await client.responses.create(model="looks", input="go", tools=[FLAT])
        assert [item.type for item in asked.output] == ["message", "function_call", "function_call"]
        assert [item.type for item in (await client.responses.retrieve(asked.id)).output] == [
            item.type for item in asked.output
        ]
        calls = [item for item in asked.output if item.type == "function_call"]
        results: Any = [
            {"type": "function_call_output", "call_id": one.call_id, "output": text}
            for one, text in zip(calls, ("snow", "sun"), strict=True)
        ]
        more: Any = {"model": "looks", "input": results, "tools": [FLAT], "previous_response_id": asked.id}
        if is_stream:
            async with client.responses.stream(**more) as stream:
                answer: Any = await stream.get_final_response()
        else:
            answer = await client.responses.create(**more)
        assert answer.output_text == "snow | own | sun"
        further = await client.responses.create(model="looks", input="go", previous_response_id=answer.id, tools=[FLAT])
        assert further.output[-1].type == "function_call"


async def test_an_entity_waits_for_its_client_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with served([looking()], url=url) as on, client_of(on) as client:
        asked = await client.chat.completions.create(model="looks", messages=GO, tools=[TOOL])
    messages = answer_calls(asked.choices[0].message, "snow", "sun")
    async with served([looking()], url=url) as on, client_of(on) as client:
        answer = await client.chat.completions.create(model="looks", messages=messages, tools=[TOOL])
        assert answer.choices[0].message.content == "snow | own | sun"


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([{**TOOL, "function": {**TOOL["function"], "name": "echo"}}], "the cantrip has a gate called 'echo'"),
        ([{**TOOL, "function": {**TOOL["function"], "name": "a b"}}], "expected a name of letters"),
        ([{**TOOL, "function": {**TOOL["function"], "parameters": {"type": "objekt"}}}], "expected a JSON Schema"),
        ([{**TOOL, "function": {**TOOL["function"], "parameters": 7}}], "expected a JSON Schema"),
        ([{"type": "web_search"}], "expected a function, got 'web_search'"),
        ([TOOL, TOOL], "two tools are called 'weather'"),
        ([TOOL] * 129, "at most 128 tools"),
    ],
)
async def test_a_tool_that_cannot_be_offered_is_refused(tools: Any, expected: str) -> None:
    async with served([looking()]) as on, client_of(on) as client:
        with pytest.raises(openai.BadRequestError, match=expected):
            await client.chat.completions.create(model="looks", messages=GO, tools=tools)
        assert on.runtime.loom.entities() == []


@pytest.mark.parametrize("how", ["json_schema", "json_object", "required", "named"])
async def test_any_form_of_answer_is_a_typed_answer_of_the_episode(how: str) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    function: Any = {"type": "function", "function": {"name": "bill", "parameters": schema}}
    more: Any = {
        "json_schema": {"response_format": {"type": how, "json_schema": {"name": "bill", "schema": schema}}},
        "json_object": {"response_format": {"type": how}},
        "required": {"tools": [function], "tool_choice": "required"},
        "named": {"tools": [function], "tool_choice": {"type": "function", "function": {"name": "bill"}}},
    }[how]
    async with served([looking()]) as on, client_of(on) as client:
        said: Any = [{"role": "user", "content": "json"}]
        answer = await client.chat.completions.create(model="looks", messages=said, **more)
        message: Any = answer.choices[0].message
        assert (message.tool_calls[0].function.arguments if "tools" in more else message.content) == '{"total":3}'


async def test_a_response_repeats_its_format_and_gives_the_answer_to_a_demanded_tool_of_the_same_schema() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    form = {"type": "json_schema", "name": "bill", "schema": schema, "strict": True}
    asked: Any = {"model": "looks", "input": "json", "text": {"format": form}}
    demanded: Any = {
        "tools": [{"type": "function", "name": "bill", "parameters": schema}],
        "tool_choice": {"type": "function", "name": "bill"},
    }
    async with served([looking()]) as on, client_of(on) as client:
        answer: Any = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            streamed: Any = await stream.get_final_response()
        for response in (answer, streamed):
            assert response.output_text == '{"total":3}'
            assert response.text.format.model_dump(by_alias=True, exclude_none=True) == form
        (item,) = (await client.responses.create(**asked, **demanded)).output
        assert (item.type, getattr(item, "arguments", None)) == ("function_call", '{"total":3}')
        plain: Any = await client.responses.create(model="looks", input="go")
        assert plain.text.format.type == "text"


async def test_an_episode_ends_if_its_client_never_sends_a_result(anyio_backend: Any) -> None:
    gate: AnyGate = Gate.of(None, name="weather", parameters=CITY, kind="deferred")
    circle = Circle(["done", "echo", gate.with_(expires=0.2, ends_episode=True)], [max_turns(9)])
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(scripted(policy, record=False), circle=circle), "go")
        assert (episode.truncated, len(episode.thread)) == (True, 1)


@pytest.mark.rule("Z-02")
@pytest.mark.parametrize("is_tool", [False, True])
async def test_a_form_that_refers_to_itself_is_refused_before_an_entity_begins(is_tool: bool) -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": endless}}
    form = {"type": "json_schema", "json_schema": {"name": "endless", "schema": endless}}
    body = {"tools": [tool], "tool_choice": "required"} if is_tool else {"response_format": form}
    async with served([looking()]) as on:
        refused = await on.ask("POST", "/v1/chat/completions", 400, json={"model": "looks", "messages": GO, **body})
        assert "a reference that leads to itself" in refused.json()["error"]["message"]
        assert on.runtime.loom.entities() == []


def hand_over(context: Any) -> Any:
    """Call the tool that the client offers; then answer with all results."""
    offered = [tool.name for tool in context.tools]
    results = [str(message.content) for message in context if message.role == "tool"]
    for name, count in (("transfer", 2), ("weather", 1), ("book", 1)):
        if name in offered and name not in " ".join(results):
            return {"tool_calls": [{"gate": name, "args": {"city": "Oslo"}} for _ in range(count)]}
    done = next(tool for tool in context.tools if tool.name == "done")
    answer = {"all": results}
    is_member = "answer" in done.parameters["properties"]
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer} if is_member else answer}]}


ALL: Any = {"type": "object", "properties": {"all": {"type": "array"}}, "required": ["all"]}


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_request_with_results_brings_the_tools_and_the_form_of_the_rest_of_the_work(
    tmp_path: Path, *, restarts: bool
) -> None:
    """As the handoff of the Agents SDK does: the next agent has other tools."""
    url = f"sqlite:{tmp_path / 'loom.db'}"
    desk = Cantrip(scripted(hand_over, record=False), circle=Circle(["done"], [max_turns(9)]), name="desk")
    responses: list[Any] = []
    body: dict[str, Any] = {"input": "go"}
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(in_process([desk], url=url))
        for name in ("transfer", "weather", "book", None):
            body |= {"model": "desk", "tools": [{**FLAT, "name": name or "other"}]}
            body |= {} if name else {"text": {"format": {"type": "json_schema", "name": "all", "schema": ALL}}}
            responses.append(await on.post("/v1/responses", body, 200))
            calls = [item for item in responses[-1]["output"] if item["type"] == "function_call"]
            assert {item["name"] for item in calls} == ({name} if name else set())
            results = [
                {"type": "function_call_output", "call_id": item["call_id"], "output": f"{name} {number}"}
                for number, item in enumerate(calls)
            ]
            body = {"input": results, "previous_response_id": responses[-1]["id"]}
            if restarts:
                await stack.aclose()
                on = await stack.enter_async_context(in_process([desk], url=url))
        answer = json.loads(responses[-1]["output"][0]["content"][0]["text"])
        assert answer == {"all": ["transfer 0", "transfer 1", "weather 0", "book 0"]}
        assert len(on.runtime.loom.entities()) == 1
        for response in responses:
            stored = await on.get(f"/v1/responses/{response['id']}")
            assert (stored["output"], stored["tools"]) == (response["output"], response["tools"])
        turns = on.runtime.loom.turns(on.runtime.loom.entities()[0])
        shown = [await on.get(f"turns/{turn.id}/input") for turn in turns if turn.content or turn.tool_calls]
        names = [{gate["name"] for gate in context["tools"]} - {"done"} for context in shown]
        assert [name for each in names for name in each][:3] == ["transfer", "weather", "book"]
