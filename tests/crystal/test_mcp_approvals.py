"""OpenAI asks whether it may call a tool of an MCP server: a person decides, and the next query takes the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors import Call, Cantrip, Circle, Folding, InvalidCantrip, InvalidDecision, Request, Runtime
from cantrip_actors.crystal.testing import FaultyServer, ReceivedRequest, Reply, events
from cantrip_actors.crystals import anthropic, openai, xai
from cantrip_actors.server_tools import mcp_connector
from cantrip_actors.terms.messages import Message
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from tests.crystal.asking import request
from tests.crystal.streams import fed
from tests.runtime.kills import attempt

pytestmark = [pytest.mark.rule("V-37"), pytest.mark.real_time]
LISTED = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []}
DOCS = mcp_connector("docs", "https://mcp.example.org/", ask_first=True)


def wish(arguments: str = '{"page": 7}', item_id: str = "mcpr_1", tool: str = "delete") -> dict[str, Any]:
    """Return the item with which the provider asks."""
    return {
        "type": "mcp_approval_request",
        "id": item_id,
        "server_label": "docs",
        "name": tool,
        "arguments": arguments,
    }


def answer(*items: Mapping[str, Any]) -> Reply:
    usage = {"input_tokens": 9, "output_tokens": 2}
    response = {"id": "r", "model": "gpt-5", "status": "completed", "output": items, "usage": usage}
    return Reply(events({"type": "response.completed", "response": response}))


class Provider:
    """OpenAI's side: it validates the history, and calls a tool only if that was approved."""

    def __init__(self, *wishes: Mapping[str, Any]) -> None:
        self.wishes = wishes
        self.decisions: list[dict[str, Any]] = []
        self.tools: list[Any] = []

    def __call__(self, received: ReceivedRequest) -> Reply:
        body = received.json
        self.tools = body["tools"]
        items = body["input"]
        asked = [item["id"] for item in items if item.get("type") == "mcp_approval_request"]
        self.decisions = [item for item in items if item.get("type") == "mcp_approval_response"]
        decided = [decision["approval_request_id"] for decision in self.decisions]
        if asked != decided:
            return Reply(orjson.dumps({"error": {"message": f"{decided} answer {asked}"}}), 400)
        if not decided:
            return answer(LISTED, *self.wishes)
        done = {"type": "function_call", "id": "fc", "call_id": "c9", "name": "done", "arguments": '{"answer": "ok"}'}
        return answer(done)


def make_cantrip(url: str, *tools: Any, **options: Any) -> Cantrip:
    call = Call(server_tools=[*tools], options=options)
    return Cantrip(openai("gpt-5", base_url=url, api_key="k"), call, Circle(["done"], [max_turns(5)]), name="librarian")


async def next_request(runtime: Runtime) -> Request:
    async with runtime.requests(follow=True) as feed:
        return await anext(feed)


@pytest.mark.parametrize(
    ("decision", "note", "sent"),
    [
        ("allow", "", {"approve": True}),
        ("deny", "keep it", {"approve": False, "reason": "mcp_approval was not run: anna denied it: keep it"}),
    ],
)
async def test_a_decision_goes_back_to_the_provider_after_a_restart(
    decision: Any, note: str, sent: Any, tmp_path: Path
) -> None:
    provider, url = Provider(wish()), f"sqlite:{tmp_path / 'loom'}"
    async with FaultyServer(provider) as server:
        cantrip = make_cantrip(server.url, DOCS)
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            entity = await runtime.start(cantrip, "tidy up")
            asked = await next_request(runtime)
            assert (asked.kind, asked.gate) == ("approval", "mcp_approval")
            assert asked.args == {"server": "docs", "tool": "delete", "arguments": {"page": 7}}
            assert asked.text == "the provider calls delete of the MCP server docs"
        async with Runtime.open(url, cantrips=[cantrip]) as runtime:
            with pytest.raises(InvalidDecision, match="allow it as it is"):
                await runtime.decide(asked.id, "allow", args={**asked.args, "arguments": {}})
            await runtime.decide(asked.id, decision, by="anna", note=note)
            assert (await runtime.get_entity(entity.id).episode()).result == "ok"
        assert len(server.requests) == 2
    assert provider.decisions == [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"} | sent,
    ]


@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", range(1, 7))
async def test_a_process_killed_at_any_write_sends_the_decision(at: int, durable: bool, tmp_path: Path) -> None:
    provider, url = Provider(wish()), f"sqlite:{tmp_path / 'loom'}"

    async def live(runtime: Runtime, cantrip: Cantrip) -> Any:
        entity = await runtime.start(cantrip, "tidy up", key="only")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approve, runtime)
            episode = await attempt(entity.episode())
            tasks.cancel_scope.cancel()
        return episode

    async def approve(runtime: Runtime) -> None:
        async with runtime.requests(follow=True) as feed:
            async for asked in feed:
                await attempt(runtime.decide(asked.id, "allow"))

    async with FaultyServer(provider) as server:
        cantrip = make_cantrip(server.url, DOCS)
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            Process(Crash(at, durable)).attach(runtime)
            with anyio.move_on_after(5):
                await attempt(live(runtime, cantrip))
        async with Runtime.open(url, cantrips=[cantrip], recover="resume") as runtime:
            assert (await live(runtime, cantrip)).result == "ok"
    assert [decision["approve"] for decision in provider.decisions] == [True]


async def test_each_request_of_an_answer_has_its_own_decision() -> None:
    provider = Provider(wish(), wish(item_id="mcpr_2", tool="find"), wish(item_id="mcpr_1"))
    async with FaultyServer(provider) as server, Runtime.open() as runtime:
        entity = await runtime.start(make_cantrip(server.url, DOCS), "tidy up")
        for decision in ("allow", "deny", "allow"):
            await runtime.decide((await next_request(runtime)).id, decision)  # type: ignore[arg-type]
        assert (await entity.episode()).result == "ok"
    assert [decision["approve"] for decision in provider.decisions] == [True, False, True]


async def test_an_approval_survives_a_fold_of_results() -> None:
    provider = Provider(wish())
    done = {"type": "function_call", "call_id": "c9", "name": "done", "arguments": '{"answer": "ok"}'}

    def reply(received: ReceivedRequest) -> Reply:
        first = provider(received)
        calls = sum(item.get("type") == "function_call" for item in received.json["input"])
        echo = {"type": "function_call", "call_id": f"c{calls}", "name": "echo", "arguments": '{"text": "a long text"}'}
        return first if not provider.decisions else answer(done if calls == 3 else echo)

    async with FaultyServer(reply) as server, Runtime.open() as runtime:
        call, circle = Call(server_tools=[DOCS]), Circle(["done", "echo"], [max_turns(9)])
        folding = Folding(trigger_after_turns=3, keep_turns=1, selective=True)
        cantrip = Cantrip(openai("gpt-5", base_url=server.url, api_key="k"), call, circle, folding=folding)
        entity = await runtime.start(cantrip, "tidy up")
        await runtime.decide((await next_request(runtime)).id, "allow")
        assert (await entity.episode()).result == "ok"
        assert b"[folded:echo]" in server.requests[-1].body
    assert [decision["approve"] for decision in provider.decisions] == [True]


async def test_a_remembered_decision_is_about_one_tool() -> None:
    provider = Provider(wish(), wish(item_id="mcpr_2"), wish(item_id="mcpr_3", tool="find"))
    async with FaultyServer(provider) as server, Runtime.open() as runtime:
        entity = await runtime.start(make_cantrip(server.url, DOCS), "tidy up")
        await runtime.decide((await next_request(runtime)).id, "allow", remember="entity")
        asked = await next_request(runtime)
        assert asked.args["tool"] == "find"
        await runtime.decide(asked.id, "deny")
        assert (await entity.episode()).result == "ok"
    assert [decision["approve"] for decision in provider.decisions] == [True, True, False]


async def test_a_server_among_the_options_asks_too() -> None:
    server_tool = {"type": "mcp", "server_label": "docs", "server_url": "https://mcp.example.org/"}
    provider = Provider(wish())
    async with FaultyServer(provider) as server, Runtime.open(unattended="deny") as runtime:
        assert (await runtime.cast(make_cantrip(server.url, tools=[server_tool]), "tidy up")).result == "ok"
    assert [decision["approve"] for decision in provider.decisions] == [False]
    assert [tool.get("name") for tool in provider.tools if tool["type"] == "function"] == ["done"]


@pytest.mark.parametrize("arguments", ["not JSON", "[1]", "null", "", '{"a": ' * 3000])
async def test_arguments_that_are_no_object_are_shown_as_their_text(arguments: str) -> None:
    provider = Provider(wish(arguments))
    async with FaultyServer(provider) as server, Runtime.open() as runtime:
        entity = await runtime.start(make_cantrip(server.url, DOCS), "tidy up")
        asked = await next_request(runtime)
        assert asked.args["arguments"] == arguments
        await runtime.decide(asked.id, "allow")
        assert (await entity.episode()).result == "ok"
    assert [decision["approve"] for decision in provider.decisions] == [True]


@given(content=st.text(), is_error=st.booleans())
def test_nothing_but_an_approval_approves(content: str, is_error: bool) -> None:
    """A call that did not run, was interrupted or was folded is not an approval."""
    response = fed("openai", {"object": "response", "status": "completed", "output": [wish()]}, model="gpt-5")
    (call,) = response.tool_calls
    said = Message("assistant", None, (call,), blocks=response.blocks)
    result = Message("tool", content, (), call.id, call.gate, is_error)
    item = request(openai("gpt-5", api_key="k"), [Message("user", "go"), said, result])["input"][-1]
    assert item["type"] == "mcp_approval_response"
    assert item["approve"] is (content == "approved" and not is_error)


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, "never"),
        ({"ask_first": True}, "always"),
        ({"ask_first": True, "approved_tools": ["find"]}, {"never": {"tool_names": ["find"]}}),
    ],
)
async def test_the_setting_says_which_calls_wait(settings: Any, sent: Any) -> None:
    provider = Provider()
    done = answer({"type": "function_call", "id": "f", "call_id": "c", "name": "done", "arguments": '{"answer": 1}'})

    def reply(received: ReceivedRequest) -> Reply:
        provider(received)
        return done

    async with FaultyServer(reply) as server, Runtime.open() as runtime:
        tool = mcp_connector("mail", connector_id="connector_gmail", **settings)
        await runtime.cast(make_cantrip(server.url, tool), "go")
    assert provider.tools[-1] == {
        "type": "mcp",
        "server_label": "mail",
        "connector_id": "connector_gmail",
        "require_approval": sent,
    }


@pytest.mark.parametrize("make", [xai, anthropic])
def test_a_provider_that_cannot_ask_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidCantrip, match="ask_first"):
        Cantrip(make("m", api_key="k"), Call(server_tools=[DOCS]), Circle(["done"], [max_turns(5)]))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"approved_tools": ["find"]}, "ask_first=True"),
        ({"ask_first": "yes"}, "True or False"),
        ({"connector_id": "connector_gmail"}, "not both"),
        ({"url": None}, "url"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, why: str) -> None:
    with pytest.raises(InvalidCantrip, match=why):
        mcp_connector("docs", **{"url": "https://mcp.example.org/", **settings})
