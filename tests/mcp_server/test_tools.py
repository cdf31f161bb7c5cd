"""A cantrip as a tool: what is offered, what a call returns, how it reports and how it is cancelled."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequest, CallToolRequestParams, CallToolResult
from pydantic import BaseModel

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.mcp_server import by_name
from cantrip_actors.mcp_server.tools import offers_of
from cantrip_actors.observe import Telemetry
from cantrip_actors.wards import max_turns, require_done_tool
from tests.mcp_server.clients import ERAS, connected, helper
from tests.runtime.test_outages import ALL_METHODS, failing

pytestmark = pytest.mark.parametrize("era", ERAS)


@pytest.mark.rule("MCP-13")
async def test_tools_are_listed_in_a_fixed_order_and_may_be_cached(era: str) -> None:
    async with connected(era, [helper("b"), helper("a")]) as (client, _):
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["b", "b_send", "b_fork", "a", "a_send", "a_fork", "continue"]
        if era != "legacy":
            assert (listed.ttl_ms, listed.cache_scope) == (60_000, "private")
        tool = listed.tools[0]
        assert tool.input_schema["required"] == ["intent"]
        assert set(tool.input_schema["properties"]) == {"intent", "context"}
        assert tool.output_schema is not None
        assert "entity_id" in tool.output_schema["required"]


@pytest.mark.rule("W-40")
async def test_each_cantrip_is_a_prompt_that_has_the_clients_model_call_its_tool(era: str) -> None:
    async with connected(era, [helper("b"), helper("a")]) as (client, _):
        prompts = (await client.list_prompts()).prompts
        assert [(prompt.name, [argument.name for argument in prompt.arguments or []]) for prompt in prompts] == [
            ("b", ["intent"]),
            ("a", ["intent"]),
        ]
        (message,) = (await client.get_prompt("a", {"intent": "count the notes"})).messages
        assert "the tool a " in message.content.text  # type: ignore[union-attr]
        assert message.content.text.endswith("count the notes")  # type: ignore[union-attr]
        for name, arguments in (("c", {"intent": "x"}), ("a", {}), ("a", {"intent": " "})):
            with pytest.raises(MCPError, match=r"Unknown prompt|intent is missing"):
                await client.get_prompt(name, arguments)


@pytest.mark.rule("W-40")
async def test_a_tool_only_reads_if_all_gates_of_its_cantrip_do(era: str) -> None:
    see = gate(lambda: "x", name="see", read_only=True)
    look = Cantrip(scripted([]), circle=Circle(["done", see], [max_turns(3)]), name="look")
    async with connected(era, [helper(), look]) as (client, _):
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert [hints[name].read_only_hint for name in ("helper", "look")] == [False, True]  # type: ignore[union-attr]


@pytest.mark.rule("MCP-13")
async def test_a_call_casts_the_cantrip_and_returns_its_result(era: str) -> None:
    async with connected(era) as (client, runtime):
        result = await client.call_tool("helper", {"intent": "hello"})
        assert not result.is_error
        told: Any = result.structured_content
        assert result.content[0].text == told["result"] == "intent 1: hello"  # type: ignore[union-attr]
        assert (told["turns"], told["tokens"], told["cost"]) == (1, 10, 0)
        begun = runtime.loom.records(told["entity_id"])
        assert any(getattr(one, "sender", None) == "mcp:mcp" for one in begun)


async def test_a_truncated_and_a_failed_entity_are_errors(era: str) -> None:
    def fail(_context: Any) -> Any:
        raise RuntimeError("no such luck")

    async with connected(era, [helper(), helper("broken", scripted(fail))]) as (client, _):
        cut = await client.call_tool("helper", {"intent": "loop"})
        assert cut.is_error
        assert "max_turns" in cut.content[0].text  # type: ignore[union-attr]
        assert cut.structured_content is not None
        assert cut.structured_content["turns"] == 4
        failed = await client.call_tool("broken", {"intent": "try"})
        assert failed.is_error
        assert failed.structured_content is not None
        assert failed.structured_content["result"] is None


@pytest.mark.parametrize("arguments", [{}, {"intent": ""}, {"intent": 3}, {"intent": "x", "more": 1}])
async def test_invalid_arguments_are_an_error_that_a_model_can_read(era: str, arguments: Any) -> None:
    async with connected(era) as (client, runtime):
        refused = await client.call_tool("helper", arguments)
        assert refused.is_error
        assert refused.content[0].text.startswith("helper: ")  # type: ignore[union-attr]
        assert not list(runtime.loom.headers())
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("nobody", {"intent": "x"})


async def test_context_is_data_for_the_entity(era: str) -> None:
    async with connected(era) as (client, runtime):
        result = await client.call_tool("helper", {"intent": "hello", "context": {"colour": "green"}})
        (begun,) = [
            one
            for one in runtime.loom.records(result.structured_content["entity_id"])  # type: ignore[index]
            if hasattr(one, "context") and hasattr(one, "intent")
        ]
        assert begun.context == {"colour": "green"}


@pytest.mark.rule("MCP-13")
async def test_a_progress_notification_is_sent_for_each_turn(era: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, _total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with connected(era) as (client, _):
        await client.call_tool("helper", {"intent": "nap 1"}, progress_callback=hear)
        await anyio.sleep(1)
        assert told == [(1, "turn 1"), (2, "turn 2")]


@pytest.mark.rule("MCP-13")
async def test_the_progress_of_each_turn_is_reported_when_another_process_runs_the_entity(
    era: str, tmp_path: Path
) -> None:
    url, offered = f"sqlite:{tmp_path / 'loom.db'}", helper()
    turns: list[str | None] = []

    async def hear(_progress: float, _total: float | None, message: str | None) -> None:
        turns.append(message)

    async with Runtime.open(url, cantrips=[offered]) as worker:
        entity = await worker.invoke(offered, "begin")
        await entity.episode()
        async with Runtime.open(url, cantrips=[offered]) as runtime, connected(era, [offered], runtime=runtime) as pair:
            await anyio.sleep(0.3)  # the events are polled after the mail
            arguments = {"intent": "nap 1", "entity_id": entity.id}
            result = await pair[0].call_tool("helper_send", arguments, progress_callback=hear)
            assert result.structured_content["result"] == "it said: slept"  # type: ignore[index]
            await anyio.sleep(1)
    assert turns == ["turn 2", "turn 3"]


@pytest.mark.rule("MCP-13", "N-71")
async def test_the_progress_of_each_turn_is_reported_after_the_loom_was_away(era: str, tmp_path: Path) -> None:
    url, offered = f"sqlite:{tmp_path / 'loom.db'}", helper()
    turns: list[str | None] = []

    async def hear(_progress: float, _total: float | None, message: str | None) -> None:
        turns.append(message)

    async with Runtime.open(url, cantrips=[offered]) as worker:
        entity = await worker.invoke(offered, "begin")
        await entity.episode()
        async with (
            Runtime.open(url, cantrips=[offered]) as runtime,
            connected(era, [offered], runtime=runtime) as (client, _),
            anyio.create_task_group() as tasks,
        ):
            arguments = {"intent": "nap 6", "entity_id": entity.id}
            tasks.start_soon(partial(client.call_tool, "helper_send", arguments, progress_callback=hear))
            await anyio.sleep(1.75)  # between two polls
            with failing(runtime._tree.store, "standing", "tip", "records"):
                await anyio.sleep(2)
    assert turns == ["turn 2", "turn 3"]


@pytest.mark.rule("MCP-13", "N-71")
@pytest.mark.parametrize(("length", "methods"), [(3, ALL_METHODS), (90, ALL_METHODS), (3, ("append", "post"))])
@pytest.mark.parametrize("tool", ["helper", "helper_send", "helper_send to a new one", "helper_fork"])
async def test_a_call_that_is_made_while_the_loom_is_away_is_answered_once_it_is_back(
    era: str, tmp_path: Path, length: float, methods: tuple[str, ...], tool: str
) -> None:
    url, offered = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with (
        Runtime.open(url, cantrips=[offered]) as runtime,
        connected(era, [offered], runtime=runtime) as (client, _),
    ):
        entity = await runtime.invoke(offered, "begin")
        await entity.episode()
        more = {"helper_send": {"entity_id": entity.id}, "helper_fork": {"at": entity.id}}.get(tool, {})
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool(tool.partition(" ")[0], {"intent": "nap 2", **more}))

        async with anyio.create_task_group() as tasks:
            with failing(runtime._tree.store, *methods):
                tasks.start_soon(call)
                await anyio.sleep(length)
        assert not results[0].is_error, results
        assert len([turn for id in runtime.loom.entities() for turn in runtime.loom.turns(id)]) == 3


@pytest.mark.rule("MCP-13", "N-71")
@pytest.mark.parametrize("length", [1, 90])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_call_is_answered_though_the_loom_was_away_while_this_process_worked_on_it(
    era: str, tmp_path: Path, length: float, is_first: bool
) -> None:
    url, offered = f"sqlite:{tmp_path / 'loom.db'}", helper()
    async with (
        Runtime.open(url, cantrips=[offered]) as runtime,
        connected(era, [offered], runtime=runtime) as (client, _),
    ):
        entity = await runtime.invoke(offered, "begin")
        await entity.episode()
        results: list[Any] = []

        async def call() -> None:
            name, more = ("helper", {}) if is_first else ("helper_send", {"entity_id": entity.id})
            results.append(await client.call_tool(name, {"intent": "nap 2", **more}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.sleep(1)
            with failing(runtime._tree.store, "append", "facts", "records", "standing", "find_mail"):
                await anyio.sleep(length)
    assert not results[0].is_error, results


@pytest.mark.rule("METRIC-02")
async def test_a_call_is_a_reader_while_it_waits_for_its_entity(era: str) -> None:
    telemetry, seen = Telemetry(otel=False), []

    @gate
    async def peek() -> str:
        """Look at the metrics."""
        await anyio.sleep(1)
        seen.append(telemetry.counters.read_values("cantrip.streams")["mcp",])
        return "x"

    says: Any = [{"tool_calls": [{"gate": "peek", "args": {}}]}, {"content": "so"}]
    offered = Cantrip(scripted(says), circle=Circle(["done", peek], [max_turns(5)]), name="peeking")
    async with (
        Runtime.open(cantrips=[offered], telemetry=telemetry) as runtime,
        connected(era, [offered], runtime=runtime) as (client, _),
    ):
        await client.call_tool("peeking", {"intent": "go"})
        assert seen == [1]
        assert telemetry.counters.read_values("cantrip.streams")["mcp",] == 0


@pytest.mark.rule("MCP-16")
async def test_a_cancelled_call_stops_the_entity(era: str) -> None:
    async with connected(era) as (client, runtime):
        with anyio.move_on_after(2):
            await client.call_tool("helper", {"intent": "nap 60"})
        await anyio.sleep(1)
        (header,) = runtime.loom.headers()
        assert runtime.loom.is_over(header.entity_id)
        assert anyio.current_time() < 60


async def test_a_long_lived_entity_remembers_and_is_forked(era: str) -> None:
    async with connected(era, [helper(), helper("other")]) as (client, _):

        async def ask(tool: str, **arguments: Any) -> Any:
            return (await client.call_tool(tool, {"intent": "more", **arguments})).structured_content

        first = await ask("helper_send")
        second = await ask("helper_send", entity_id=first["entity_id"])
        assert (second["result"], second["entity_id"]) == ("intent 2: more", first["entity_id"])
        fork = await ask("helper_fork", at=first["entity_id"])
        assert fork["result"] == "intent 3: more"
        assert fork["entity_id"] != first["entity_id"]
        again = await ask("helper_send", entity_id=fork["entity_id"])
        assert again["result"] == "intent 4: more"
        one_shot = await ask("helper")
        for tool, handle in (
            ("other_send", {"entity_id": first["entity_id"]}),
            ("helper_send", {"entity_id": one_shot["entity_id"]}),
            ("helper_send", {"entity_id": "nobody"}),
            ("helper_fork", {"at": "nothing"}),
        ):
            assert (await client.call_tool(tool, {"intent": "x", **handle})).is_error


async def test_a_cancelled_send_interrupts_and_keeps_the_entity(era: str) -> None:
    async with connected(era) as (client, runtime):
        told: Any = (await client.call_tool("helper_send", {"intent": "hello"})).structured_content
        with anyio.move_on_after(2):
            await client.call_tool("helper_send", {"intent": "nap 60", "entity_id": told["entity_id"]})
        await anyio.sleep(1)
        assert not runtime.loom.is_over(told["entity_id"])
        again = await client.call_tool("helper_send", {"intent": "more", "entity_id": told["entity_id"]})
        assert again.structured_content is not None
        assert again.structured_content["result"] == "intent 3: more"


@pytest.mark.rule("MCP-16", "C-19")
async def test_a_cancelled_send_that_waits_is_taken_back_and_disturbs_no_other(era: str) -> None:
    async with connected(era) as (client, runtime):
        told: Any = (await client.call_tool("helper_send", {"intent": "hello"})).structured_content
        other = await runtime.get_entity(told["entity_id"]).post("nap 60")
        with anyio.move_on_after(2):
            await client.call_tool("helper_send", {"intent": "unwanted", "entity_id": told["entity_id"]})
        assert (await other.episode()).terminated
        again = await client.call_tool("helper_send", {"intent": "more", "entity_id": told["entity_id"]})
        assert again.structured_content is not None
        assert again.structured_content["result"] == "intent 3: more"


async def test_resources_show_the_loom_without_secrets(era: str) -> None:
    async with connected(era) as (client, _):
        secret = "sk-ant-api03-" + "a" * 80
        told: Any = (await client.call_tool("helper", {"intent": f"keep {secret}"})).structured_content
        entity = await client.read_resource(f"cantrip://entities/{told['entity_id']}")
        text = entity.contents[0].text  # type: ignore[union-attr]
        assert '"state"' in text
        assert secret not in text
        assert secret not in str(told)
        (listed,) = (await client.list_resources()).resources
        assert str(listed.uri) == f"cantrip://entities/{told['entity_id']}"
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.uri_template for one in templates] == ["cantrip://entities/{id}", "cantrip://turns/{id}"]
        for unknown in ("cantrip://entities/x", "cantrip://turns/x", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="not found"):
                await client.read_resource(unknown)


async def test_names_that_clash_are_refused(era: str) -> None:
    for names in (("a", "a_send"), ("é", "è")):
        with pytest.raises(InvalidCantrip, match="rename one"):
            offers_of(by_name(map(helper, names)))
    with pytest.raises(InvalidCantrip, match="another name"):
        by_name([helper(), helper()])


async def test_the_schema_of_the_answer_is_that_of_done(era: str) -> None:
    class Sum(BaseModel):
        total: int

    @gate(name="done")
    def finish(answer: Sum) -> None:
        """Finish."""

    script = scripted([{"tool_calls": [{"gate": "done", "args": {"answer": {"total": 4}}}]}])
    circle = Circle([finish], [max_turns(2), require_done_tool()])
    async with connected(era, [Cantrip(script, circle=circle, name="sum")]) as (client, _):
        (tool, *_) = (await client.list_tools()).tools
        assert tool.output_schema is not None
        assert tool.output_schema["$defs"]["Sum"]["required"] == ["total"]
        result = await client.call_tool("sum", {"intent": "2 + 2"})
        assert result.structured_content is not None
        assert result.structured_content["result"] == {"total": 4}


@pytest.mark.rule("METRIC-01")
async def test_requests_of_clients_are_timed_by_method_and_offered_tool(era: str) -> None:
    telemetry = Telemetry(otel=False)
    async with (
        Runtime.open("memory:", cantrips=[helper()], telemetry=telemetry) as runtime,
        connected(era, [helper()], runtime=runtime) as (client, _),
    ):
        await client.call_tool("helper", {"intent": "hello"})
        with contextlib.suppress(MCPError):
            await client.call_tool("made_up", {})
        timed = telemetry.counters.read_histograms()["mcp.server.operation.duration"]
    calls = {labels[1]: (labels[2], one.count) for labels, one in timed.items() if labels[0] == "tools/call"}
    assert calls["helper"] == ("", 1)
    assert calls["_OTHER"][0] != ""
    assert "made_up" not in str(list(timed))


@pytest.mark.rule("METRIC-02", "METRIC-06")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_call_of_a_tool_whose_name_is_not_a_text_is_refused_and_counted(era: str) -> None:
    telemetry = Telemetry(otel=False)
    params = CallToolRequestParams.model_construct(name=["x"], arguments={})
    request = CallToolRequest.model_construct(method="tools/call", params=params)
    async with (
        Runtime.open("memory:", cantrips=[helper()], telemetry=telemetry) as runtime,
        connected(era, [helper()], runtime=runtime) as (client, _),
    ):
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(request, CallToolResult)
        timed = telemetry.counters.read_histograms()["mcp.server.operation.duration"]
    assert refused.value.error.code == INVALID_PARAMS
    calls = {labels[1:]: one.count for labels, one in timed.items() if labels[0] == "tools/call"}
    assert calls == {("_OTHER", "ValidationError"): 1}


@pytest.mark.rule("W-02")
async def test_a_call_is_refused_once_the_allowance_of_the_runtime_is_spent(era: str) -> None:
    async with connected(era) as (client, runtime):
        runtime.set_allowance(0.0)
        refused = await client.call_tool("helper", {"intent": "hello"})
        assert refused.is_error
        assert "may have a cost of $0 a day, which is spent" in refused.content[0].text  # type: ignore[union-attr]
        assert runtime.loom.entities() == []
