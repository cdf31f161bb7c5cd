"""Spans of episodes, queries and gates: who is whose parent, what they are called, and that nothing depends on them."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import anyio
import httpx
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketStream
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from cantrip_actors import (
    Call,
    Cantrip,
    Circle,
    Companion,
    Folding,
    Invocation,
    Node,
    ProviderError,
    Retry,
    Runtime,
    ask_first,
    gate,
    scripted,
)
from cantrip_actors.crystals import local
from cantrip_actors.gates import GateError, ask
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.backfill import build_spans, otlp_json
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.crystals.crystal_actor import CrystalActor
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import max_depth, max_turns
from tests.drawings import folder_for, trace_svg
from tests.observe.spans import Sdk, links_of, parent_of
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_recovery import Killed, Process, crash_at


@pytest.fixture
def sdk() -> Sdk:
    return Sdk()


@gate
async def look(what: str = "x") -> str:
    """Look at something."""
    return f"saw {what}"


def current() -> int:
    """The span that is current here."""
    return trace.get_current_span().get_span_context().span_id


# What the tree of spans is


@pytest.mark.rule("OTEL-01")
async def test_a_cast_with_two_turns_a_child_and_a_code_circle_gives_the_tree(sdk: Sdk) -> None:
    script = {
        "go": [{"code": "seen = look('one')\nx = 1"}, {"code": "done(call_agent('below'))"}],
        "below": [{"code": "done(look('two'))"}],
    }

    def policy(context: Invocation) -> object:
        intent = next(m.content for m in context if m.role == "user")
        return script[intent][sum(m.role == "assistant" for m in context)]

    circle = Circle(["done", "call_agent", look], [max_turns(5), max_depth(1)], medium="python")
    spell = Cantrip(scripted(policy), circle=circle, name="notes")
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("request"):
            assert (await runtime.cast(spell, "go")).result == "saw two"
    child = (
        "invoke_agent",
        ["chat scripted", ("execute_tool python", ["execute_tool look", "execute_tool done"])],
    )
    tree = [
        "chat scripted",
        ("execute_tool python", ["execute_tool look"]),
        "chat scripted",
        ("execute_tool python", [("execute_tool call_agent", [child]), "execute_tool done"]),
    ]
    assert sdk.tree() == [("request", [("invoke_agent notes", tree)])]


@pytest.mark.rule("OTEL-01")
async def test_turns_are_spans_if_configured(sdk: Sdk) -> None:
    async with Runtime.open(telemetry=sdk.telemetry(turn_spans=True)) as runtime:
        await runtime.cast(cantrip([say("look"), done(1)], look), "go")
    turns = [("turn 1", ["chat scripted", "execute_tool look"]), ("turn 2", ["chat scripted", "execute_tool done"])]
    assert sdk.tree() == [("invoke_agent", turns)]


class Model:
    """A crystal that stands for a provider."""

    name = "anthropic:claude-sonnet-4-5"
    address = "https://api.anthropic.com/v1"

    def __init__(self, *answers: object) -> None:
        self._answers = iter(answers)

    async def invoke(self, messages: object) -> object:
        await anyio.sleep(0.5)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "cached_tokens": 3, "cost": 0.5}
METADATA = {"id": "msg_1", "model": "claude-sonnet-4-5-x", "stop_reason": "tool_use", "reasoning_tokens": 2}


@pytest.mark.rule("OTEL-02")
async def test_spans_have_the_names_kinds_and_attributes_of_the_conventions(sdk: Sdk) -> None:
    answers = [{**say("look", what="a"), "usage": USAGE, "metadata": METADATA}, {**done(1), "usage": USAGE}]
    spell = cantrip(Model(*answers), look, name="notes", call=Call(temperature=0.5, max_tokens=100, stop=["x"], seed=1))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        entity = await runtime.invoke(spell, "go", name="mine")
        await entity.episode()
    episode, chat, tool = (
        sdk.one("invoke_agent notes"),
        sdk.named("chat claude-sonnet-4-5")[0],
        sdk.one("execute_tool look"),
    )
    turn = dict(tool.attributes or {}).pop("cantrip.turn.id")
    call = dict(tool.attributes or {})["gen_ai.tool.call.id"]
    assert {one.instrumentation_scope.schema_url for one in sdk.spans} == {
        "https://opentelemetry.io/schemas/gen-ai/1.42.0"
    }
    assert (episode.kind, chat.kind, tool.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert dict(episode.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "notes",
        "gen_ai.conversation.id": entity.id,
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "cantrip.entity.id": entity.id,
        "cantrip.name": "mine",
        "cantrip.depth": 0,
        "cantrip.attempt": 1,
        "cantrip.turns": 2,
        "cantrip.end.reason": "terminated",
        "cantrip.usage.input_tokens": 20,
        "cantrip.usage.output_tokens": 8,
        "cantrip.cost.usd": 1.0,
    }
    assert dict(chat.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-sonnet-4-5",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.seed": 1,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.response.model": "claude-sonnet-4-5-x",
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.conversation.id": entity.id,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "server.address": "api.anthropic.com",
        "server.port": 443,
        "cantrip.turn.sequence": 1,
        "cantrip.attempts": 1,
        "cantrip.cost.usd": 0.5,
    }
    assert dict(tool.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": call,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look at something.",
        "cantrip.turn.id": turn,
    }


@pytest.mark.rule("OTEL-02")
@pytest.mark.parametrize("medium", ["python", "javascript"])
async def test_a_program_has_its_medium_computing_time_and_memory(sdk: Sdk, medium: str) -> None:
    @gate
    async def wait() -> str:
        """Take a minute."""
        await anyio.sleep(60)
        return "x"

    code = {"python": "kept = 'x' * 100_000\nwait()", "javascript": "kept = 'x'.repeat(100000); wait()"}[medium]
    circle = Circle(["done", wait], [max_turns(3)], medium=medium)
    spell = Cantrip(scripted([{"code": code}, {"code": "done(1)"}]), circle=circle)
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell, "go")
    program = dict(sdk.named(f"execute_tool {medium}")[0].attributes or {})
    assert 0 < program.pop("cantrip.compute") < 30
    assert program.pop("cantrip.memory") > 100_000
    assert program == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": medium,
        "gen_ai.tool.type": "extension",
        "cantrip.medium": medium,
        "cantrip.replayed": False,
    }


@pytest.mark.rule("OTEL-02", "METRIC-02")
async def test_tokens_of_each_modality_are_counted_where_the_provider_says_so(sdk: Sdk) -> None:
    modalities = {"input": {"image": 7, "text": 2, "smell": 1}, "output": {"audio": 4}}
    answer = {**done(1), "usage": USAGE, "metadata": {**METADATA, "modality_tokens": modalities}}
    telemetry = sdk.telemetry()
    async with Runtime.open(telemetry=telemetry) as runtime:
        episode = await runtime.cast(cantrip(Model(answer)), "go")
        counted = {
            side: {
                labels[-1]: count
                for labels, count in telemetry.counters.read_values(
                    f"gen_ai.client.inference.usage.{side}_tokens"
                ).items()
            }
            for side in ("input", "output")
        }
        recorded = build_spans(runtime.loom.records(episode.entity_id), runtime.loom.header(episode.entity_id), None)
    assert counted == {"input": {"unknown": 1, "image": 7, "text": 2}, "output": {"unknown": 0, "audio": 4}}
    live = {
        name: value
        for name, value in dict(sdk.one("chat claude-sonnet-4-5").attributes or {}).items()
        if name.startswith("gen_ai.usage.")
    }
    assert live == {
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.usage.image.input_tokens": 7,
        "gen_ai.usage.text.input_tokens": 2,
        "gen_ai.usage.audio.output_tokens": 4,
    }
    (again,) = [one.attributes for one in recorded if one.attributes["gen_ai.operation.name"] == "chat"]
    assert {name: value for name, value in again.items() if name.startswith("gen_ai.usage.")} == live


# What it costs, and that nothing depends on it


async def _lines(**options: Any) -> list[dict[str, Any]]:
    """The records of one run, without ids and times."""
    from cantrip_actors.records.codec import encode

    spell = cantrip([say("look"), say("call_agent", intent="x"), done(1), done(2)], look, "call_agent")
    async with Runtime.open(**options) as runtime:
        episode = await runtime.cast(spell, "go")
        lines = [
            json.loads(encode(r)) for one in runtime.loom.subtree(episode.entity_id) for r in runtime.loom.records(one)
        ]
    ids = (
        "entity",
        "turn",
        "parent",
        "child",
        "at",
        "duration_ms",
        "trace",
        "parent_entity",
        "parent_turn",
        "utterance",
    )
    return [{name: value for name, value in line.items() if name not in ids} for line in lines]


@pytest.mark.rule("OTEL-03")
async def test_the_loom_is_the_same_with_and_without_an_sdk(sdk: Sdk) -> None:
    plain = await _lines()
    assert plain == await _lines(telemetry=Telemetry(tracer_provider=trace.NoOpTracerProvider()))
    assert plain == await _lines(telemetry=sdk.telemetry(content="both"))
    assert sdk.spans


@pytest.mark.rule("OTEL-03")
async def test_without_an_sdk_no_span_is_kept_and_no_trace_recorded() -> None:
    seen = []

    @gate
    async def peek() -> str:
        """Look around."""
        seen.extend(cell.spans for cell in runtime._tree.living)
        return "x"

    async with Runtime.open(telemetry=Telemetry(tracer_provider=trace.NoOpTracerProvider())) as runtime:
        episode = await runtime.cast(cantrip([say("peek"), done(1)], peek), "go")
        records = runtime.loom.records(episode.entity_id)
    assert seen == [None]
    assert [getattr(record, "trace", None) for record in records] == [None] * len(records)


@pytest.mark.rule("OTEL-03")
def test_nothing_of_opentelemetry_is_imported_without_telemetry() -> None:
    code = (
        "import sys, anyio\n"
        "from cantrip_actors import Cantrip, Circle, Runtime, scripted\n"
        "from cantrip_actors.wards import max_turns\n"
        "import cantrip_actors.observe\n"
        "async def main():\n"
        "    async with Runtime.open() as runtime:\n"
        '        await runtime.cast(Cantrip(scripted(["hi"]), circle=Circle(["done"], [max_turns(1)])), "go")\n'
        "anyio.run(main)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.rule("OTEL-03")
def test_telemetry_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match="cantrip-actors\\[otel\\]"):
        Telemetry()


class Faulty:
    """A span processor that raises wherever it is called."""

    def __init__(self, *, where: str) -> None:
        self._where = where

    def on_start(self, span: object, parent_context: object = None) -> None:
        if self._where == "start":
            raise ValueError("a bug of the user's")

    def on_end(self, span: object) -> None:
        if self._where == "end":
            raise ValueError("a bug of the user's")

    def _on_ending(self, span: object) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


@pytest.mark.rule("OTEL-04")
@pytest.mark.parametrize("where", ["start", "end"])
async def test_a_processor_that_raises_changes_nothing_of_the_entity(sdk: Sdk, where: str) -> None:
    sdk.provider.add_span_processor(Faulty(where=where))
    assert await _lines(telemetry=sdk.telemetry()) == await _lines()


class Blocking(SpanExporter):
    """An exporter whose back end does not answer until `go_on` is set."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.go_on = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.go_on.wait()
        return SpanExportResult.SUCCESS


@pytest.mark.rule("OTEL-04")
@pytest.mark.real_time
async def test_an_exporter_that_blocks_changes_nothing_of_the_entity(sdk: Sdk) -> None:
    exporter = Blocking()
    processor = BatchSpanProcessor(exporter, schedule_delay_millis=1)
    sdk.provider.add_span_processor(processor)
    try:
        await _lines(telemetry=sdk.telemetry())
        await to_thread.run_sync(exporter.is_asked.wait)  # it hangs from here on
        assert await _lines(telemetry=sdk.telemetry()) == await _lines()
        assert not exporter.go_on.is_set()
    finally:
        exporter.go_on.set()
        processor.shutdown()


@pytest.mark.rule("OTEL-04")
async def test_content_that_the_users_function_refuses_changes_nothing(sdk: Sdk) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no room")

    assert await _lines(telemetry=sdk.telemetry(on_content=refuse)) == await _lines()


# Context


@pytest.mark.rule("OTEL-05")
async def test_spans_made_in_a_gate_are_below_the_gates_span_in_threads_and_tasks(sdk: Sdk) -> None:
    def make(name: str) -> None:
        sdk.tracer.start_span(name).end()

    @gate
    def threaded() -> str:
        """Work in a thread."""
        make("in a thread")
        return "x"

    @gate
    async def grouped() -> str:
        """Work in a task group."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, make, "in a task's thread")
        make("in a task")
        return "x"

    spell = cantrip([say("threaded"), say("grouped"), done(1)], threaded, grouped)
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell, "go")
    assert sdk.below(sdk.one("execute_tool threaded")) == sdk.named("in a thread")
    assert {s.name for s in sdk.below(sdk.one("execute_tool grouped"))} == {"in a task", "in a task's thread"}


@pytest.mark.rule("OTEL-05")
async def test_spans_made_by_a_crystal_are_below_the_query(sdk: Sdk) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        sdk.tracer.start_span("POST").end()
        return httpx.Response(200)

    class Asking(Model):
        async def invoke(self, messages: object) -> object:
            async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
                await client.post("https://models.example")
            return await super().invoke(messages)

    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(cantrip(Asking(done(1))), "go")
    assert sdk.below(sdk.one("chat claude-sonnet-4-5")) == [sdk.one("POST")]


@asynccontextmanager
async def provider_at_home() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """Serve one answer to everyone; yield the address and the headers of each request."""
    seen: list[dict[str, str]] = []
    answer = json.dumps(
        {
            "id": "a",
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    ).encode()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
            head, _, body = head.partition(b"\r\n\r\n")
            lines = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
            headers = {name.lower(): value for name, value in lines}
            while len(body) < int(headers["content-length"]):
                body += await stream.receive()
            seen.append(headers)
            kind = f"content-type: application/json\r\ncontent-length: {len(answer)}\r\nconnection: close"
            await stream.send(f"HTTP/1.1 200 OK\r\n{kind}\r\n\r\n".encode() + answer)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port = listener.extra(SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}/v1", seen
        tasks.cancel_scope.cancel()


@pytest.mark.real_time
@pytest.mark.rule("OTEL-05")
async def test_a_provider_gets_the_traceparent_of_the_query_only_if_configured(sdk: Sdk) -> None:
    async with provider_at_home() as (url, seen):
        spell = Cantrip(local(url, "m"), circle=Circle(["done"], [max_turns(1)]))
        async with Runtime.open(telemetry=sdk.telemetry(outgoing_traceparent=True)) as runtime:
            await runtime.cast(spell, "two and two")
        chat = sdk.one("chat m").context
        async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
            await runtime.cast(spell, "two and two")
    told, silent = seen
    assert told["traceparent"] == f"00-{chat.trace_id:032x}-{chat.span_id:016x}-01"
    assert "traceparent" not in silent


@pytest.mark.real_time
@pytest.mark.rule("OTEL-05")
async def test_a_header_of_the_crystal_takes_precedence_over_the_traceparent_of_the_query(sdk: Sdk) -> None:
    async with provider_at_home() as (url, seen):
        spell = Cantrip(local(url, "m", headers={"Traceparent": "mine"}), circle=Circle(["done"], [max_turns(1)]))
        async with Runtime.open(telemetry=sdk.telemetry(outgoing_traceparent=True)) as runtime:
            await runtime.cast(spell, "two and two")
    assert [headers["traceparent"] for headers in seen] == ["mine"]


@pytest.mark.rule("OTEL-05")
async def test_a_companion_sees_the_episode(sdk: Sdk) -> None:
    seen: list[int] = []

    class Watching(Companion):
        async def begins(self, here: object) -> str | None:
            seen.append(current())
            return None

        async def ends(self, here: object, outcome: object) -> None:
            seen.append(current())

    circle = Circle(["done", look], [max_turns(5)], companion=Watching())
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(Cantrip(scripted([say("look"), done(1)]), circle=circle), "go")
    assert seen == [sdk.one("invoke_agent").context.span_id] * 2


@pytest.mark.rule("OTEL-05")
async def test_each_send_belongs_to_the_request_that_made_it(sdk: Sdk) -> None:
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("first"):
            entity = await runtime.invoke(cantrip(lambda _: done(1)), "one")
            await entity.episode()
        with sdk.tracer.start_as_current_span("second"):
            await entity.send("two")
        await entity.send("three")
    parents = [parent_of(span) for span in sdk.named("invoke_agent")]
    assert parents == [sdk.one("first").context.span_id, sdk.one("second").context.span_id, None]


@pytest.mark.rule("OTEL-05")
async def test_posted_mail_carries_the_span_of_its_sender(sdk: Sdk, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    spell = cantrip(lambda _: done(1))
    async with Runtime.open(url, telemetry=sdk.telemetry()) as runtime:
        entity = await runtime.invoke(spell, "one", name="mine")
        await entity.episode()
        with sdk.tracer.start_as_current_span("request"):
            receipt = await entity.post("two")
        await receipt.episode()
    assert parent_of(sdk.named("invoke_agent")[1]) == sdk.one("request").context.span_id


@pytest.mark.rule("N-84")
async def test_an_episode_on_another_node_is_part_of_its_senders_trace(sdk: Sdk, tmp_path: Path) -> None:
    url, there = f"sqlite:{tmp_path / 'loom.db'}", Sdk()
    desk = cantrip(lambda _: done(1), name="desk")
    node = Runtime.open(url, cantrips=[desk], node=Node("w1"), telemetry=there.telemetry())
    async with node, Runtime.open(url, telemetry=sdk.telemetry()) as client:
        await (await node.invoke(desk, "one", name="mine")).episode()
        with sdk.tracer.start_as_current_span("post"):
            receipt = await client.entity("mine").post("two")
        with sdk.tracer.start_as_current_span("submit"):
            submission = await client.submit("desk", "three")
        await receipt.episode()
        await submission.episode()
    assert sdk.named("invoke_agent desk") == []
    _, posted, submitted = there.named("invoke_agent desk")
    assert {posted.context.trace_id, submitted.context.trace_id} == {
        sdk.one(n).context.trace_id for n in ("post", "submit")
    }
    assert {parent_of(posted), parent_of(submitted)} == {sdk.one(n).context.span_id for n in ("post", "submit")}


@pytest.mark.rule("OTEL-05")
async def test_an_entity_that_asks_another_is_the_parent_of_its_episode(sdk: Sdk) -> None:

    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        other = await runtime.invoke(cantrip(lambda _: done("yes"), name="other"), "hello", name="other")
        await other.episode()
        spell = cantrip([say("ask", to="other", message="well?"), done(1)], ask.with_(to=["other"]), name="asker")
        await runtime.cast(spell, "go")
    assert sdk.tree(sdk.one("execute_tool ask")) == [("invoke_agent other", ["chat scripted", "execute_tool done"])]


@pytest.mark.rule("OTEL-05")
async def test_a_cast_by_a_gate_is_below_the_gate(sdk: Sdk) -> None:
    @gate
    async def delegate() -> Any:
        """Cast another cantrip."""
        return (await runtime.cast(cantrip([done("yes")], name="inner"), "go")).result

    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(cantrip([say("delegate"), done(1)], delegate), "go")
    inner = ("invoke_agent inner", ["chat scripted", "execute_tool done"])
    assert sdk.tree(sdk.one("execute_tool delegate")) == [inner]


@pytest.mark.real_time
@pytest.mark.rule("OTEL-05")
def test_a_cast_of_synchronous_code_is_below_the_callers_span(sdk: Sdk) -> None:
    with Runtime.blocking("memory:", telemetry=sdk.telemetry()) as runtime, sdk.tracer.start_as_current_span("request"):
        runtime.cast(cantrip([done(1)]), "go")
    assert sdk.tree() == [("request", [("invoke_agent", ["chat scripted", "execute_tool done"])])]


@pytest.mark.rule("OTEL-05")
async def test_two_casts_at_once_never_mix(sdk: Sdk) -> None:
    seen: dict[str, int] = {}

    @gate
    async def slow(who: str) -> str:
        """Wait, and say who asked."""
        await anyio.sleep(1)
        seen[who] = trace.get_current_span().get_span_context().trace_id
        return who

    async def cast(who: str) -> None:
        with sdk.tracer.start_as_current_span(who):
            await runtime.cast(cantrip([say("slow", who=who), done(1)], slow), who)

    async with Runtime.open(telemetry=sdk.telemetry()) as runtime, anyio.create_task_group() as tasks:
        for who in "abc":
            tasks.start_soon(cast, who)
    assert {who: sdk.one(who).context.trace_id for who in "abc"} == seen
    assert len({*seen.values()}) == 3


@pytest.mark.rule("OTEL-06")
@pytest.mark.parametrize("actor", [StepRecorder, GatesActor])
async def test_a_restarted_actor_keeps_the_parent(sdk: Sdk, monkeypatch: pytest.MonkeyPatch, actor: type) -> None:
    method, at = ("record_step", 2) if actor is StepRecorder else ("handle_call", 1)
    crash_at(monkeypatch, actor, method, after=True, at=at)
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("request"):
            episode = await runtime.cast(cantrip([say("look"), say("look"), done(1)], look), "go")
    assert episode.result == 1
    ((name, below),) = sdk.tree(sdk.one("request"))
    assert name == "invoke_agent"
    assert below.count("chat scripted") == 3
    assert below[-1] == "execute_tool done"


@pytest.mark.rule("OTEL-06")
async def test_a_restarted_crystal_keeps_the_parent(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, CrystalActor, "handle_call", after=False, at=2)
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("request"):
            assert (await runtime.cast(cantrip([say("look"), done(1)], look), "go")).result == 1
    below = ["chat scripted", "execute_tool look", "chat scripted", "chat scripted", "execute_tool done"]
    assert sdk.tree() == [("request", [("invoke_agent", below)])]
    assert [span.attributes.get("error.type") for span in sdk.named("chat scripted")] == [None, "Died", None]


@pytest.mark.rule("OTEL-06")
async def test_a_gate_of_a_restarted_program_is_below_the_program(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, CircleActor, "handle_call", after=False, at=3)  # between the call and the program's end
    circle = Circle(["done", look], [max_turns(5)], medium="python")
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("request"):
            spell = Cantrip(scripted([{"code": "seen = look('1')"}, {"code": "done(look('2'))"}]), circle=circle)
            assert (await runtime.cast(spell, "go")).result == "saw 2"
    first = ["chat scripted", ("execute_tool python", ["execute_tool look"]), "execute_tool python"]
    second = ["chat scripted", ("execute_tool python", ["execute_tool look", "execute_tool done"])]
    assert sdk.tree() == [("request", [("invoke_agent", [*first, *second])])]


# The past


@pytest.mark.rule("OTEL-07")
async def test_an_entity_killed_in_a_gate_is_linked_and_its_lost_spans_are_made(sdk: Sdk, tmp_path: Path) -> None:
    process = Process(tmp_path)
    dying = []

    @gate
    async def effect() -> str:
        """Change the world."""
        if dying:
            await process.die_in(dying.pop())
        return "x"

    spell = cantrip([say("effect"), done(1)], effect, name="notes")
    lost = Sdk()
    with contextlib.suppress(Exception):
        async with process.open(telemetry=lost.telemetry()) as runtime:
            dying.append(runtime)
            await runtime.cast(spell, "go")
    async with process.open(telemetry=sdk.telemetry()) as runtime:
        (header,) = runtime.interrupted()
        assert (await (await runtime.resume(header.entity_id, cantrip=spell)).episode()).result == 1
        lines = list(otlp_json(runtime.loom, [header.entity_id]))
    was = lost.one("invoke_agent notes")
    again, new = sorted(sdk.named("invoke_agent notes"), key=lambda span: "cantrip.backfilled" not in span.attributes)
    assert links_of(new) == [("resume", was.context.span_id)]
    assert new.attributes["cantrip.attempt"] == 2
    assert new.context.trace_id != was.context.trace_id
    assert (again.context.trace_id, again.context.span_id) == (was.context.trace_id, was.context.span_id)
    assert abs(again.start_time - was.start_time) < 1e9
    backfilled = [span for span in sdk.spans if "cantrip.backfilled" in span.attributes]
    assert sorted(span.name for span in backfilled) == ["execute_tool effect", "invoke_agent notes"]
    gate_span = next(span for span in backfilled if span.name == "execute_tool effect")
    assert parent_of(gate_span) == again.context.span_id
    assert gate_span.attributes["error.type"] == "outcome_unknown"
    unknown = [span for span in sdk.named("execute_tool effect") if span is not gate_span]
    assert [span.attributes["error.type"] for span in unknown] == ["outcome_unknown"]
    whole = json.loads(lines[0])["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in whole] == [
        "chat scripted",
        "execute_tool effect",
        "chat scripted",
        "execute_tool done",
        "invoke_agent notes",
    ]
    assert {span["traceId"] for span in whole} == {f"{was.context.trace_id:032x}"}
    assert whole[-1]["spanId"] == f"{was.context.span_id:016x}"


@pytest.mark.rule("OTEL-07")
async def test_spans_made_from_records_are_the_same_each_time() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip([say("look"), done(1)], look), "go")
        first, second = ([*otlp_json(runtime.loom, [episode.entity_id])] for _ in range(2))
    assert first == second


@pytest.mark.rule("OTEL-08")
async def test_a_fork_links_to_its_origin_and_a_send_to_the_episode_before(sdk: Sdk) -> None:
    spell = cantrip(lambda _: done(1))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        entity = await runtime.invoke(spell, "one")
        first = await entity.episode()
        await entity.send("two")
        await entity.send("three")
        await runtime.fork(first.thread[0].id, intent="otherwise")
    one, two, three, fork = sdk.named("invoke_agent")
    assert links_of(one) == []
    assert links_of(two) == [("previous", one.context.span_id)]
    assert links_of(three) == [("previous", two.context.span_id)]
    assert links_of(fork) == [("fork", one.context.span_id)]
    assert fork.links[0].attributes["cantrip.turn.id"] == first.thread[0].id


# What goes wrong


@pytest.mark.rule("OTEL-09")
async def test_a_retry_is_an_event_of_the_one_query(sdk: Sdk) -> None:
    model = Model(ProviderError("busy", status=503), ProviderError("busy", status=429, retry_after=2.0), done(1))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(cantrip(model, retry=Retry(max_retries=3)), "go")
    chat = sdk.one("chat claude-sonnet-4-5")
    assert chat.attributes["cantrip.attempts"] == 3
    assert [event.attributes["http.response.status_code"] for event in chat.events] == [503, 429]
    assert chat.events[1].attributes["cantrip.retry.delay"] >= 2.0
    assert chat.status.status_code is StatusCode.UNSET


@gate
async def failing(how: str) -> str:
    """Fail in some way."""
    if how == "raises":
        raise KeyError("x")
    if how == "hangs":
        await anyio.sleep_forever()
    raise GateError("no such thing")


SHORT = gate(timeout=2)(failing.function)


@pytest.mark.rule("OTEL-10")
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (say("failing", how="raises"), "KeyError"),
        (say("failing", how="says"), "tool_error"),
        (say("failing", how="hangs"), "timeout"),
        (say("failing"), "refused"),
        (say("nothing"), "refused"),
    ],
)
async def test_a_gate_that_fails_says_how_and_the_episode_does_not(sdk: Sdk, call: Any, kind: str) -> None:
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(cantrip([call, done(1)], SHORT), "go")
    failed = sdk.below(sdk.one("invoke_agent"))[1]
    assert (failed.attributes["error.type"], failed.status.status_code) == (kind, StatusCode.ERROR)
    assert sdk.one("invoke_agent").status.status_code is StatusCode.UNSET


@pytest.mark.rule("OTEL-10")
async def test_a_call_that_a_person_denies_is_refused_and_the_approval_is_two_events(sdk: Sdk) -> None:
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        entity = await runtime.start(cantrip([say("look"), done(1)], ask_first(look)), "go")
        async for request in runtime.requests(follow=True):
            await runtime.decide(request.id, "deny", by="ann")
            break
        await entity.episode()
    episode = sdk.one("invoke_agent")
    assert [event.name for event in episode.events] == ["cantrip.approval.asked", "cantrip.approval.decided"]
    assert sdk.named("execute_tool look")[-1].attributes["error.type"] == "refused"


@pytest.mark.rule("OTEL-10")
async def test_a_provider_that_fails_is_an_error_of_the_episode_too(sdk: Sdk) -> None:
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with contextlib.suppress(ProviderError):
            await runtime.cast(cantrip(Model(ProviderError("no", status=400))), "go")
    for name in ("chat claude-sonnet-4-5", "invoke_agent"):
        assert (sdk.one(name).attributes["error.type"], sdk.one(name).status.status_code) == ("400", StatusCode.ERROR)


@pytest.mark.rule("OTEL-10")
async def test_a_truncated_episode_is_not_an_error_and_a_cancelled_query_is_cancelled(sdk: Sdk) -> None:
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(cantrip(lambda _: say("look"), look, wards=(max_turns(1),)), "go")
        with anyio.move_on_after(0.2):
            await runtime.cast(cantrip(Model(done(1))), "go")
    truncated, cancelled = sdk.named("invoke_agent")
    assert (truncated.attributes["cantrip.end.reason"], truncated.attributes["cantrip.ward"]) == (
        "truncated",
        "max_turns",
    )
    assert truncated.status.status_code is StatusCode.UNSET
    assert cancelled.attributes["cantrip.end.reason"] == "cancelled"
    assert sdk.one("chat claude-sonnet-4-5").attributes["error.type"] == "cancelled"


@pytest.mark.rule("OTEL-10")
async def test_a_permanently_crashed_entity_is_an_error_with_the_class_of_its_exception(
    sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StepRecorder.record_step

    async def crashing(self: Any, *args: Any) -> Any:
        await whole(self, *args)
        raise Killed

    monkeypatch.setattr(StepRecorder, "record_step", crashing)
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with contextlib.suppress(Exception):
            await runtime.cast(cantrip([done(1)]), "go")
    episode = sdk.named("invoke_agent")[-1]
    assert (episode.attributes["cantrip.end.reason"], episode.attributes["error.type"]) == ("crashed", "Killed")
    assert episode.status.status_code is StatusCode.ERROR


@pytest.mark.rule("OTEL-12")
async def test_a_query_after_a_fold_says_that_its_context_is_compacted(sdk: Sdk) -> None:
    spell = cantrip([*[say("look")] * 4, done(1)], look, folding=Folding(trigger_after_turns=2, keep_turns=1))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell, "go")
    compacted = [chat.attributes.get("gen_ai.conversation.compacted") for chat in sdk.named("chat scripted")]
    assert compacted[:3] == [None] * 3
    assert compacted[-1] is True
    assert False not in compacted


@pytest.mark.rule("OTEL-14")
async def test_the_tokens_of_all_spans_are_those_of_the_loom(sdk: Sdk) -> None:
    def policy(context: Invocation) -> object:
        intent = next(m.content for m in context if m.role == "user")
        said = sum(m.role == "assistant" for m in context)
        usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
        if context[0].role == "system":
            return {"content": "in short", **usage}
        if intent == "child" or said == 5:
            return {**done(1), **usage}
        return {**say("call_agent", intent="child"), **usage}

    spell = cantrip(policy, "call_agent", folding=Folding(trigger_after_turns=2, keep_turns=1, summary=True))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        with contextlib.suppress(ProviderError):
            await runtime.cast(cantrip(Model(ProviderError("no", status=400, usage=spent()))), "go")
        await runtime.cast(spell, "go")
        loom = runtime.loom
        usage = [loom.usage(one) for one in loom.entities()]
    for name, field in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        counted = sum(span.attributes.get(f"gen_ai.usage.{name}_tokens", 0) for span in sdk.spans)
        assert counted == sum(getattr(one, field) for one in usage) > 0


def spent() -> Any:
    from cantrip_actors.terms.usage import Usage

    return Usage(11, 0)


@pytest.mark.real_time
@pytest.mark.rule("OTEL-01")
async def test_the_picture_of_a_trace_has_each_span_of_the_run(tmp_path: Path) -> None:
    """`PICTURES=1` writes the picture of docs/traces.md."""
    sdk = Sdk()

    @gate
    async def search(words: str) -> str:
        """Search the notes."""
        await anyio.sleep(0.03)
        if "cheese" in words:
            raise TimeoutError("the index does not answer")
        return "two notes"

    async def notes(context: Any) -> dict[str, Any]:
        await anyio.sleep(0.05)
        asked, turn = str(context[0].content), sum(one.role == "assistant" for one in context)
        if asked.startswith("Read"):
            return say("search", words="milk") if turn == 0 else done("Two notes are about milk.")
        child = say("call_agent", intent="Read the notes about milk")
        steps = [say("search", words="cheese"), child, done("Buy milk.")]
        return steps[turn]

    circle = Circle(["done", "call_agent", search], [max_turns(9)])
    async with Runtime.open("memory:", telemetry=sdk.telemetry()) as runtime:
        with sdk.tracer.start_as_current_span("GET /notes"):
            await runtime.cast(Cantrip(scripted(notes), name="notes", circle=circle), "What shall I buy?")
    picture = trace_svg(sdk.spans)
    (folder_for(tmp_path) / "trace.svg").write_text(picture, encoding="utf-8")
    texts = [text.text or "" for text in fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(texts[::2]) == sorted(span.name for span in sdk.spans)
    assert len(sdk.spans) == 13
    assert sum(text.endswith("TimeoutError") for text in texts[1::2]) == 1
