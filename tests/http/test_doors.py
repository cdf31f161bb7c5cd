"""One cantrip through every door: HTTP, OpenAI's API, MCP, an editor, the command line and Python."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from mcp import Client

from cantrip_actors import Cantrip, Circle, gate, scripted
from cantrip_actors.looms import open_loom
from cantrip_actors.mcp_server import by_name, make_server
from cantrip_actors.mcp_server.stdio import find_local
from cantrip_actors.wards import max_turns
from tests.acp.editors import edited
from tests.forked import COMMAND, Forked
from tests.http.serving import served

ROOT = Path(__file__).parent.parent.parent
RECIPE = """
name: counter
crystal: python:tests.http.test_doors:model
circle: {gates: [done, "python:tests.http.test_doors:count"], wards: [{max_turns: 5}]}
"""


@gate
async def count(text: str) -> int:
    """Count the letters of a text."""
    return len(text)


def answer(context: Any) -> dict[str, Any]:
    if context[-1].role == "tool":
        return {"content": f"{context[-1].content} letters", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    return {"content": "I count.", "tool_calls": [{"gate": "count", "args": {"text": "actors"}}]}


model = scripted(answer)
counter = Cantrip(model, circle=Circle(["done", count], [max_turns(5)]), name="counter")


@pytest.mark.real_time
@pytest.mark.rule("HTTP-02", "PROD-1")
async def test_a_cast_through_any_door_leaves_the_same_turns(tmp_path: Path) -> None:
    intent = "How long is it?"
    async with served([counter]) as on:
        await on.runtime.cast(counter, intent)
        await on.post("casts", {"cantrip": "counter", "intent": intent, "wait": 5}, 200)
        said = {"model": "counter", "messages": [{"role": "user", "content": intent}]}
        await on.ask("POST", "/v1/chat/completions", 200, json=said)
        named = by_name([counter])
        async with Client(
            make_server(named, lambda context: find_local(on.runtime, named, context), on.runtime)
        ) as client:
            await client.call_tool("counter", {"intent": intent})
        async with edited(counter, runtime=on.runtime) as editor:
            session = (await editor.ask("session/new", cwd=str(tmp_path), mcpServers=[]))["sessionId"]
            await editor.prompt(session, intent)
        found = [turns_of(on.runtime.loom, entity) for entity in on.runtime.loom.entities()]
    file = f"sqlite:{tmp_path}/loom.db"
    recipe = tmp_path / "counter.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    command = Forked(COMMAND, "cast", recipe, intent, "--loom", file, cwd=ROOT, stdout=subprocess.DEVNULL)
    assert await to_thread.run_sync(command.wait) == 0
    with open_loom(file) as loom:
        found += [turns_of(loom, entity) for entity in loom.entities()]
    assert len(found) == 6
    assert all(one == found[0] for one in found)
    assert len(found[0]) == 2


def turns_of(loom: Any, entity: str) -> list[Any]:
    return [(one.utterance, one.observation, one.terminated, one.sequence) for one in loom.turns(entity)]
