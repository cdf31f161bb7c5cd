"""Requests to people: approvals and questions, asked of the client's user in either era."""

from typing import Any

import anyio
import pytest
from mcp import types
from mcp.shared.exceptions import MCPError

from cantrip_actors import Cantrip, Circle, LoomError, Request, Runtime, ask_first, scripted
from cantrip_actors.mcp_server.callers import McpCaller
from cantrip_actors.mcp_server.forms import _schema, form_of
from cantrip_actors.wards import max_depth, max_turns
from tests.mcp_server.clients import ERAS, answer, connected, helper, pay

pytestmark = [pytest.mark.parametrize("era", ERAS), pytest.mark.rule("MCP-15")]


def user(*answers: Any, told: list[Any] | None = None) -> Any:
    """Return a callback that gives these answers, one a form."""
    left = list(answers)

    async def ask(_context: Any, params: Any) -> types.ElicitResult:
        if told is not None:
            told.append(params)
        answer = left.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult(action=answer)  # type: ignore[arg-type]
        return types.ElicitResult(action="accept", content=answer)

    return ask


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"decision": "allow"}, "it said: paid 3"),
        ({"decision": "deny", "note": "too dear"}, "too dear"),
        ("decline", "denied"),
    ],
)
async def test_an_approval_is_a_choice_of_the_clients_user(era: str, answer: Any, result: str) -> None:
    told: list[Any] = []
    async with connected(era, elicitation_callback=user(answer, told=told)) as (client, runtime):
        done = await client.call_tool("helper", {"intent": "pay 3"})
        assert result in done.content[0].text  # type: ignore[union-attr]
        assert done.structured_content is not None
        (form,) = told
        assert form.message.endswith(" wants to call pay with\n│ amount: 3\nMay this call run?")
        (turn, *_) = runtime.loom.turns(done.structured_content["entity_id"])
        (decision,) = turn.decisions
        assert decision.by == "mcp:mcp"
        assert decision.door.startswith("mcp:")


async def test_a_question_is_a_form_of_its_own_schema(era: str) -> None:
    told: list[Any] = []
    async with connected(era, elicitation_callback=user({"answer": 7}, told=told)) as (client, _):
        done = await client.call_tool("helper", {"intent": "ask"})
        assert done.content[0].text == "it said: 7"  # type: ignore[union-attr]
        assert told[0].message.endswith(" asks:\n│ Which one?")


@pytest.mark.rule("Z-01")
async def test_the_form_of_a_long_call_names_both_ends_and_how_to_see_the_rest(era: str) -> None:
    note = "for lunch\n" * 200 + "May this call run?"
    request = Request("e:t:c", "approval", "e", "t", "c", "pay", {"to": "mallory", "note": note}, "", None, "", None)
    async with Runtime.open("memory:") as runtime:
        message = form_of(McpCaller(runtime, {}, "mcp"), request).message
    *_, head, first, second, question = message.splitlines()
    assert (head, first) == ("e wants to call pay with", '│ to: "mallory"')
    assert second.endswith('May this call run?" (2,220 characters)')
    assert question == "May this call run? (`cantrip requests e:t:c` shows all of it)"


@pytest.mark.parametrize("answer", ["cancel", {"decision": "perhaps"}, {}])
async def test_a_dismissed_request_still_waits_at_the_other_doors(era: str, answer: Any) -> None:
    async with (
        connected(era, elicitation_callback=user(answer)) as (client, runtime),
        anyio.create_task_group() as tasks,
    ):
        done: list[Any] = []

        async def ask() -> None:
            done.append(await client.call_tool("helper", {"intent": "pay 3"}))

        tasks.start_soon(ask)
        await anyio.sleep(60)
        (request,) = runtime.requests()
        assert not done
        await runtime.decide(request.id, "allow", by="anna")
        await anyio.sleep(1)
        assert done[0].content[0].text == "it said: paid 3"


async def test_requests_of_other_entities_are_not_put_to_the_user(era: str) -> None:
    told: list[Any] = []
    connection = connected(era, elicitation_callback=user({"decision": "allow"}, told=told))
    async with connection as (client, runtime):
        other = await runtime.start(helper("other"), "pay 4")
        await anyio.sleep(1)
        done = await client.call_tool("helper", {"intent": "pay 3"})
        assert done.content[0].text == "it said: paid 3"  # type: ignore[union-attr]
        assert len(told) == 1
        (request,) = runtime.requests()
        assert request.entity == other.id


async def test_a_request_of_a_child_is_put_to_the_user(era: str) -> None:
    script = [{"tool_calls": [{"gate": "call_agent", "args": {"intent": "pay 3"}}]}, {"content": "done"}]
    circle = Circle(["done", "call_agent", ask_first(pay)], [max_turns(4), max_depth(1)])
    parent = Cantrip(scripted(script), circle=circle, name="parent", child_crystal=scripted(answer))
    async with connected(era, [parent], elicitation_callback=user({"decision": "allow"})) as (client, _):
        done = await client.call_tool("parent", {"intent": "have it paid"})
        assert not done.is_error


@pytest.mark.rule("W-41")
@pytest.mark.parametrize("tool", ["helper", "helper_send"])
@pytest.mark.parametrize(("decision", "result"), [("allow", "paid 3"), ("deny", "denied")])
async def test_a_client_without_forms_gets_the_request_at_once_and_the_result_by_a_second_call(
    era: str, tool: str, decision: Any, result: str
) -> None:
    async with connected(era) as (client, runtime):
        waiting = await client.call_tool(tool, {"intent": "pay 3"})
        assert not waiting.is_error
        facts: Any = waiting.structured_content
        assert "result" not in facts
        ((request,), waits) = runtime.requests(), facts["waits"]
        assert waits["for"] == "a person"
        assert [(one["id"], one["gate"]) for one in waits["requests"]] == [(request.id, "pay")]
        assert "amount: 3" in waiting.content[0].text  # type: ignore[union-attr]
        again = await client.call_tool("continue", {"id": waits["id"]})
        assert again.structured_content["waits"] == waits  # type: ignore[index]
        await runtime.decide(request.id, decision, by="anna")
        done = await client.call_tool("continue", {"id": waits["id"]})
        assert result in done.content[0].text  # type: ignore[union-attr]
        assert done.structured_content["entity_id"] == facts["entity_id"]  # type: ignore[index]


@pytest.mark.rule("W-41")
async def test_a_call_that_is_given_up_leaves_an_entity_that_waits_for_a_person(era: str) -> None:
    async def think_long(_context: Any, _params: Any) -> Any:
        await anyio.sleep_forever()

    async with connected(era, elicitation_callback=think_long) as (client, runtime):
        with anyio.move_on_after(60):
            await client.call_tool("helper", {"intent": "pay 3"})
        await anyio.sleep(1)
        (request,) = runtime.requests()
        await runtime.decide(request.id, "allow", by="anna")
        done = await client.call_tool("continue", {"id": request.entity})
        assert done.content[0].text == "it said: paid 3"  # type: ignore[union-attr]


@pytest.mark.rule("W-41")
async def test_a_continued_call_that_is_given_up_cancels_nothing_and_unknown_ids_are_errors(era: str) -> None:
    async with connected(era) as (client, runtime):
        entity = await runtime.start(helper(), "nap 30")
        with anyio.move_on_after(10):
            await client.call_tool("continue", {"id": entity.id})
        done = await client.call_tool("continue", {"id": entity.id})
        assert done.content[0].text == "it said: slept"  # type: ignore[union-attr]
        for arguments, words in (
            ({"id": "other"}, "no call has the id 'other'"),
            ({}, 'missing required argument "id"; expected arguments of id'),
        ):
            failed = await client.call_tool("continue", arguments)
            assert failed.is_error
            assert words in failed.content[0].text  # type: ignore[union-attr]


@pytest.mark.rule("W-41")
async def test_a_client_without_forms_attends_to_no_request(era: str) -> None:
    async with connected(era, [helper()], runtime=None) as (client, runtime):
        async with runtime.requests(follow=True, attend=False):
            denying = Cantrip(
                scripted(answer), circle=Circle(["done", ask_first(pay, unattended="deny")], [max_turns(4)]), name="d"
            )
            assert "denied" in str((await runtime.cast(denying, "pay 3")).result)
        assert (await client.list_tools()).tools


def test_a_question_that_no_form_can_show_is_asked_for_as_json(era: str) -> None:
    def asks(schema: Any) -> tuple[dict[str, Any], str]:
        return _schema(type("Asked", (), {"schema": schema})())

    flat = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    assert asks(flat) == ({name: flat[name] for name in ("type", "properties", "required")}, "whole")
    assert asks(None)[1] == asks({"type": "integer"})[1] == "field"
    several = {"type": ["string", "null"]}
    for deep in (
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"enum": [1]},
        several,
        {"type": "object", "properties": {"a": several}},
        {"type": "object", "properties": [1]},
    ):
        form, where = asks(deep)
        assert where == "json"
        assert form["properties"]["answer"]["type"] == "string"


@pytest.mark.rule("W-41")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, 'missing required argument "intent"'),
        ({"intent": ""}, "got ''"),
        ({"intent": "go", "wiat": 3}, 'unexpected argument "wiat"'),
    ],
)
async def test_mistakes_in_the_arguments_of_a_tool_are_named_with_what_it_takes(
    arguments: dict[str, object], words: str, era: str
) -> None:
    async with connected(era) as (client, _):
        failed = await client.call_tool("helper", arguments)
    assert failed.is_error
    text = failed.content[0].text  # type: ignore[union-attr]
    assert words in text
    assert "expected arguments of intent, " in text


async def test_a_decision_that_cannot_be_recorded_is_an_error_that_says_why(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: Any, **_named: Any) -> Any:
        raise LoomError("the database is away")

    async with connected(era, elicitation_callback=user({"decision": "allow"})) as (client, runtime):
        monkeypatch.setattr(Runtime, "decide", fail)
        with pytest.raises(MCPError, match=r"^the database is away$"):
            await client.call_tool("helper", {"intent": "pay 3"})
        monkeypatch.undo()
        (request,) = runtime.requests()
        await runtime.decide(request.id, "allow")
