"""Texts of children in the chats of front ends."""

import json
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, ask_first, gate, scripted
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


@gate
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def paying() -> Cantrip:
    """Return a cantrip that answers as its child does, which pays or asks a person."""

    def work(context: Any) -> dict[str, Any]:
        first, last = str(context[0].content), context[-1]
        if last.role == "tool":
            return {"content": f"{first}: {last.content}"}
        if first == "go":
            return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "pay"}, "id": "c"}]}
        if first == "go twice":
            return {"tool_calls": [{"gate": "call_agent_batch", "args": {"intents": ["pay", "pay"]}, "id": "c"}]}
        if first == "go and ask":
            return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "ask"}, "id": "c"}]}
        if first == "ask":
            return {"tool_calls": [{"gate": "question", "args": {"text": "Which?"}, "id": "c"}]}
        return {"content": "I pay.", "tool_calls": [{"gate": "pay", "args": {"amount": 3}, "id": "c"}]}

    gates = ["done", "call_agent", "call_agent_batch", "question", ask_first(pay)]
    return Cantrip(scripted(work), circle=Circle(gates, [max_turns(9), max_depth(1)]), name="asks")


def find(parts: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only part of a kind."""
    (part,) = [part for part in parts if part["type"] == kind]
    return part


@pytest.mark.rule("W-28")
class TestRequestsOfChildren:
    """What a child asks a person is asked, and answered, in the chat of its parent."""

    @staticmethod
    async def answer_chat(on: Served, part: dict[str, Any], expected: int = 200) -> Any:
        message = {"id": "a", "role": "assistant", "parts": [part]}
        answered = await on.ask("POST", "chat/asks", expected, json={"id": "bob", "messages": [message]})
        lines = answered.text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")] if expected == 200 else answered

    @staticmethod
    async def resume_run(on: Served, answer: dict[str, Any]) -> list[dict[str, Any]]:
        body = {"threadId": "ann", "runId": "r2", "messages": [], "resume": [answer]}
        answered = await on.ask("POST", "ag-ui/asks", 200, json=body)
        return [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: ")]

    @pytest.mark.parametrize("is_approved", [True, False])
    async def test_a_page_approves_the_call_of_a_child(self, is_approved: bool) -> None:
        async with in_process([paying()]) as on:
            asked = await chat(on, "go")
            request = find(asked, "tool-approval-request")
            shown = next(part for part in asked if part.get("toolName") == "pay")
            assert (shown["toolCallId"], shown["input"]) == (request["toolCallId"], {"amount": 3})
            assert request["toolCallId"] != "c"  # the id of the call of the parent
            assert asked[-1] == {"type": "finish", "finishReason": "tool-calls"}
            approval = {"id": request["approvalId"], "approved": is_approved}
            part = {"toolCallId": request["toolCallId"], "state": "approval-responded", "approval": approval}
            rest = await self.answer_chat(on, part)
            if is_approved:
                output = {"type": "tool-output-available", "toolCallId": request["toolCallId"], "output": "paid 3"}
                assert output in rest
            else:
                assert find(rest, "tool-output-denied")["toolCallId"] == request["toolCallId"]
            said = [part["delta"] for part in rest if part["type"] == "text-delta"]
            assert said[-1].startswith("go: pay: paid 3" if is_approved else "go: pay: pay was not run")
            assert not [part for part in rest if part.get("toolName") == "pay"]  # the page has it
            refused = await self.answer_chat(on, part, 409)
            assert refused.json()["type"] == "urn:cantrip:already-decided"

    async def test_a_run_is_interrupted_by_the_call_of_a_child_and_resumed_with_its_approval(self) -> None:
        async with in_process([paying()]) as on:
            asked = await run_agent(on, "go")
            (interrupt,) = asked[-1]["outcome"]["interrupts"]
            call = next(event for event in asked if event.get("toolCallName") == "pay")
            assert call["toolCallId"] == interrupt["toolCallId"]
            rest = await self.resume_run(
                on, {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
            )
            results = {event["toolCallId"]: event["content"] for event in rest if event["type"] == "TOOL_CALL_RESULT"}
            assert results == {interrupt["toolCallId"]: "paid 3", "c": "pay: paid 3"}
            kinds = [event["type"] for event in rest if "subagentRunId" in event]
            assert (kinds[0], kinds[-1]) == ("SUBAGENT_STARTED", "SUBAGENT_FINISHED")
            assert rest[-1]["result"] == "go: pay: paid 3"

    async def test_a_page_answers_the_question_of_a_child(self) -> None:
        async with in_process([paying()]) as on:
            asked = await chat(on, "go and ask")
            question = find(asked, "data-question")["data"]
            assert question["text"] == "Which?"
            part = {"toolCallId": question["toolCallId"], "state": "output-available", "output": "the blue one"}
            rest = await self.answer_chat(on, part)
            assert [part["delta"] for part in rest if part["type"] == "text-delta"][-1] == (
                "go and ask: ask: the blue one"
            )

    async def test_the_requests_of_two_children_are_asked_one_after_the_other(self) -> None:
        async with in_process([paying()]) as on:
            parts, decided = await chat(on, "go twice"), set()
            for _ in range(2):
                request = find(parts, "tool-approval-request")
                decided.add(request["toolCallId"])
                approval = {"id": request["approvalId"], "approved": True}
                part = {"toolCallId": request["toolCallId"], "state": "approval-responded", "approval": approval}
                parts = await self.answer_chat(on, part)
            assert len(decided) == 2
            assert parts[-1] == {"type": "finish", "finishReason": "stop"}

    async def test_a_request_that_another_door_decides_leaves_no_trace_in_a_stream_made_again(self) -> None:
        async with in_process([paying()]) as on:
            request = find(await chat(on, "go"), "tool-approval-request")
            await on.runtime.decide(request["approvalId"], "allow")
            parts = await chat(on, "go")  # the same message again
            assert not [part for part in parts if part.get("toolName") == "pay"]
            assert not [part for part in parts if part.get("toolCallId") == request["toolCallId"]]
            assert parts[-1] == {"type": "finish", "finishReason": "stop"}
