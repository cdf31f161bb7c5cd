"""Tools that OpenAI defines and a gate runs: their results in the shapes that its API publishes (R-10)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from cantrip_actors import Call, Cantrip, Circle, Runtime, gate
from cantrip_actors.crystal.testing import FaultyServer, Reply, events
from cantrip_actors.crystals import openai
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Message, ToolCall
from cantrip_actors.wards import max_turns
from tests.crystal.asking import request
from tests.crystal.streams import fed
from tests.pictures import png

pytestmark = pytest.mark.rule("R-10")
GPT = openai("gpt-5", api_key="k")
SHELL = {"action": {"commands": ["ls"], "max_output_length": 900}}
PATCH = {"operation": {"type": "delete_file", "path": "a"}}
SEARCH = {"execution": "client", "arguments": {"query": "files"}}


def answered(kind: str, fields: dict[str, Any], content: str, *, is_error: bool = False, images: Any = ()) -> Any:
    """The item that goes back for the result of such a call."""
    call = {"type": f"{kind}_call", "id": "x", "call_id": "c1", "status": "completed", **fields}
    response = fed("openai", {"object": "response", "status": "completed", "output": [call]}, model="gpt-5")
    (made,) = response.tool_calls
    said = Message("assistant", None, (made,), blocks=response.blocks)
    result = Message("tool", content, (), "c1", made.gate, is_error, images=images)
    item = request(GPT, [Message("user", "go"), said, result])["input"][-1]
    import openai.types.responses as openai_types  # takes a second: only in the process that runs this

    TypeAdapter(openai_types.ResponseInputItemParam).validate_python(item)
    return item


def ran(stdout: str, stderr: str, **outcome: Any) -> list[dict[str, Any]]:
    return [{"stdout": stdout, "stderr": stderr, "outcome": outcome}]


@pytest.mark.parametrize(
    ("content", "is_error", "output"),
    [
        ("a b", False, ran("a b", "", type="exit", exit_code=0)),
        ("no such file", True, ran("", "no such file", type="exit", exit_code=1)),
        ('{"stdout": "a", "stderr": "b", "exit_code": 3}', False, ran("a", "b", type="exit", exit_code=3)),
        ('{"output": [{"stdout": "a", "timed_out": true}]}', False, ran("a", "", type="timeout")),
    ],
)
def test_the_result_of_a_shell_has_its_output_and_its_exit_code(content: str, is_error: bool, output: Any) -> None:
    item = answered("shell", SHELL, content, is_error=is_error)
    assert item == {"type": "shell_call_output", "call_id": "c1", "output": output, "max_output_length": 900}


def test_the_result_of_a_patch_says_whether_it_was_applied() -> None:
    applied = {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": "done"}
    assert answered("apply_patch", PATCH, "done") == applied
    failed = {**applied, "status": "failed", "output": "no such file"}
    assert answered("apply_patch", PATCH, "no such file", is_error=True) == failed


def test_the_result_of_a_tool_search_is_a_list_of_definitions() -> None:
    found = answered("tool_search", SEARCH, '[{"name": "list_files", "description": "List."}]')
    assert (found["type"], found["execution"], found["status"]) == ("tool_search_output", "client", "completed")
    assert [(tool["type"], tool["name"]) for tool in found["tools"]] == [("function", "list_files")]
    assert answered("tool_search", SEARCH, "failed", is_error=True)["tools"] == []


def test_a_tool_search_of_the_server_is_not_a_gate_call() -> None:
    call = {"type": "tool_search_call", "call_id": "c1", "execution": "server", "arguments": {}}
    text = {"type": "message", "content": [{"type": "output_text", "text": "ok"}]}
    assert fed("openai", {"object": "response", "status": "completed", "output": [call, text]}).tool_calls == ()


def test_results_of_local_shell_and_computer_have_the_published_shape() -> None:
    local = answered("local_shell", {"action": {"type": "exec", "command": ["ls"], "env": {}}}, "a b")
    assert local == {"type": "local_shell_call_output", "id": "c1", "output": '"a b"'}
    image = Image(png(4, 4))
    screen = answered("computer", {"pending_safety_checks": []}, "", images=(image,))
    assert screen["output"]["type"] == "computer_screenshot"
    assert screen["output"]["image_url"].startswith("data:image/png;base64,")


def test_a_result_is_sent_when_the_recorded_type_of_its_call_is_not_a_text() -> None:
    block = {"type": ["function_call"], "call_id": "c1", "name": "look", "arguments": "{}"}
    said = Message(
        "assistant",
        None,
        (ToolCall("c1", "look", {}),),
        blocks=({"provider": "openai", "model": "gpt-5", "content": [block]},),
    )
    result = Message("tool", "seen", (), "c1", "look")
    assert request(GPT, [Message("user", "go"), said, result])["input"][-1]["output"] == "seen"


@pytest.mark.real_time
async def test_a_gate_answers_a_shell_call_of_the_model() -> None:
    @gate
    async def shell(action: dict[str, Any]) -> dict[str, Any]:
        """Run commands."""
        return {"stdout": f"ran {action['commands'][0]}", "exit_code": 0}

    call = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed", "action": {"commands": ["ls"]}}
    done = {"type": "function_call", "call_id": "c2", "name": "done", "arguments": '{"answer": "yes"}'}
    script = [
        Reply(events({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [one]}}))
        for one in (call, done)
    ]
    async with FaultyServer(script) as server:
        crystal = openai("gpt-5", base_url=server.url, api_key="k")
        options = Call(options={"tools": [{"type": "shell", "environment": {"type": "local"}}]})
        circle = Circle(gates=["done", shell], wards=[max_turns(3)])
        async with Runtime.open() as runtime:
            episode = await runtime.cast(Cantrip(crystal, options, circle), "go")
        sent = server.requests[-1].json
    assert episode.result == "yes"
    assert [item.get("type") for item in sent["input"]] == [None, "shell_call", "shell_call_output"]
    assert sent["input"][-1]["output"][0]["stdout"] == "ran ls"
