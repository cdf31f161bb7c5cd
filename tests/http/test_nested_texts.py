"""Texts of children in the chats of front ends."""

import json
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, scripted
from cantrip_actors.wards import max_depth, max_turns
from tests.http.serving import Served, in_process

pytestmark = pytest.mark.rule("W-24")


def answer(context: Any) -> dict[str, Any]:
    """Do what the first message says: ask one child, ask two, or answer in two turns."""
    first, last = str(context[0].content), context[-1]
    if last.role == "tool" and first.startswith("ask"):
        return {"content": f"They say {last.content}"}
    gate, _, rest = first.partition(" ")
    if gate == "ask":
        return {"content": "I ask.", "tool_calls": [{"gate": "call_agent", "args": {"intent": rest}, "id": "c"}]}
    if gate == "askall":
        return {"tool_calls": [{"gate": "call_agent_batch", "args": {"intents": rest.split()}, "id": "c"}]}
    if last.role == "user":
        return {
            "content": f"I look at {first}.",
            "thinking": "hm",
            "tool_calls": [{"gate": "echo", "args": {"text": "x"}}],
        }
    return {"tool_calls": [{"gate": "done", "args": {"answer": f"{first}!"}}]}


def asking() -> Cantrip:
    gates = ["done", "echo", "call_agent", "call_agent_batch"]
    return Cantrip(scripted(answer), circle=Circle(gates, [max_turns(9), max_depth(3)]), name="asks")


async def chat(on: Served, text: str) -> list[dict[str, Any]]:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    answered = await on.ask("POST", "chat/asks", 200, json={"id": "bob", "messages": [message]})
    return [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: {")]


async def run_agent(on: Served, text: str) -> list[dict[str, Any]]:
    body = {"threadId": "ann", "runId": "r", "messages": [{"id": "m1", "role": "user", "content": text}]}
    answered = await on.ask("POST", "ag-ui/asks", 200, json=body)
    return [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: ")]


async def test_the_texts_of_a_child_are_the_preliminary_output_of_its_call() -> None:
    async with in_process([asking()]) as on:
        parts = await chat(on, "ask plum")
        assert await chat(on, "ask plum") == parts  # read again, from the loom
    outputs = [part for part in parts if part["type"] == "tool-output-available"]
    assert [(part["output"], part.get("preliminary")) for part in outputs[-1:]] == [("plum!", None)]
    assert all(part["preliminary"] and part["toolCallId"] == "c" for part in outputs[:-1])
    nested = outputs[-2]["output"]
    assert (nested["id"], nested["role"]) == ("c", "assistant")
    texts = [(part["type"], part["text"], part["state"]) for part in nested["parts"]]
    assert texts == [("reasoning", "hm", "done"), ("text", "I look at plum.", "done")]
    assert not any(part["type"] == "tool-input-available" and part["toolName"] == "echo" for part in parts)


async def test_a_child_is_a_subagent_of_the_run_until_its_call_has_its_result() -> None:
    async with in_process([asking()]) as on:
        events = await run_agent(on, "ask plum")
    of_child = [event for event in events if "subagentRunId" in event]
    started, *between, finished = of_child
    names = ("type", "name", "description", "parentToolCallId")
    assert [started[name] for name in names] == ["SUBAGENT_STARTED", "child", "plum", "c"]
    assert (finished["type"], {event["subagentRunId"] for event in of_child}) == (
        "SUBAGENT_FINISHED",
        {started["subagentRunId"]},
    )
    assert [event["delta"] for event in between if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["I look at plum."]
    assert [event["delta"] for event in between if event["type"] == "REASONING_MESSAGE_CONTENT"] == ["hm"]
    kinds = [event["type"] for event in events]
    assert kinds.index("SUBAGENT_FINISHED") < kinds.index("TOOL_CALL_RESULT") < kinds.index("RUN_FINISHED")


async def test_the_children_of_one_call_are_told_apart_and_those_below_name_their_parent() -> None:
    async with in_process([asking()]) as on:
        events = await run_agent(on, "askall plum pear")
        started = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
        texts = {
            event["subagentRunId"]: event["delta"] for event in events if "subagentRunId" in event and "delta" in event
        }
        assert sorted(texts.values()) == ["I look at pear.", "I look at plum."]
        assert len(started) == 2
        nested = await chat(on, "askall plum pear")
        message = [part["output"] for part in nested if part.get("preliminary")][-1]
        assert sorted(part["text"] for part in message["parts"] if part["type"] == "text") == sorted(texts.values())
    async with in_process([asking()]) as on:
        events = await run_agent(on, "ask ask plum")
        above, below = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
        assert (below["parentSubagentRunId"], "parentToolCallId" in below) == (above["subagentRunId"], False)
        ends = [event["subagentRunId"] for event in events if event["type"] == "SUBAGENT_FINISHED"]
        assert ends == [below["subagentRunId"], above["subagentRunId"]]


async def test_a_child_that_fails_is_an_error_of_its_subagent_and_not_of_the_run() -> None:
    def fail(context: Any) -> dict[str, Any]:
        if str(context[0].content) == "plum":
            return {"error": {"status": 400, "message": "broken"}}
        return answer(context)

    broken = Cantrip(scripted(fail), circle=Circle(["done", "call_agent"], [max_turns(9), max_depth(1)]), name="asks")
    async with in_process([broken]) as on:
        events = await run_agent(on, "ask plum")
    (error,) = [event for event in events if event["type"] == "SUBAGENT_ERROR"]
    assert (error["message"], error["code"]) == ("it ended: failed", "failed")
    assert events[-1]["type"] == "RUN_FINISHED"
