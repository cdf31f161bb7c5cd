"""What an entity sees of a result: content first, once, and within bounds; what a person sees of a tool; and tasks."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    METHOD_NOT_FOUND,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListRootsRequest,
    TextContent,
    jsonrpc_message_adapter,
)
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, Image, Runtime, ask_first, gate, scripted
from cantrip_actors.mcp import Elicited, http, inproc
from cantrip_actors.mcp.results import FILES, convert_result
from cantrip_actors.mcp.server_tasks import CurrentTask, StartedTask, finish_task
from cantrip_actors.mcp_server import by_name, make_server
from cantrip_actors.mcp_server.stdio import find_local
from cantrip_actors.terms.tool_server import ListedTools, Tool
from cantrip_actors.wards import max_turns
from tests.mcp.test_servers import LEFT_OPEN
from tests.mcp.tools import PIXEL
from tests.mcp_server.clients import helper
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("W-40")

PNG = base64.b64encode(PIXEL).decode()
WAV = base64.b64encode(b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)).decode()
PICTURE = ImageContent(type="image", data=PNG, mime_type="image/png")
BLOCK = {"type": "image", "data": PNG, "mimeType": "image/png"}
IMAGE = Image(PIXEL)
TOOL = Tool("f", "", {"type": "object"})


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


@pytest.mark.parametrize(
    ("content", "structured", "value"),
    [
        ([text("3")], {"result": 3}, {"result": 3}),
        ([text('{"b": 1, "a": [2]}')], {"a": [2], "b": 1}, {"a": [2], "b": 1}),
        ([text("one"), text("two")], {"result": ["one", "two"]}, {"result": ["one", "two"]}),
        ([text("3 rows, sorted")], {"rows": 3}, ["3 rows, sorted", {"rows": 3}]),
        ([text("a"), PICTURE], None, ["a", IMAGE]),
        ([PICTURE], {"result": BLOCK}, [IMAGE]),
        ([PICTURE], {"result": [BLOCK], "note": None}, [IMAGE]),
        ([text(json.dumps(BLOCK)), PICTURE], {"result": BLOCK}, [IMAGE]),
        ([PICTURE], {"png": f"data:image/png;base64,{PNG}", "at": "Oslo"}, [IMAGE, {"png": IMAGE, "at": "Oslo"}]),
    ],
)
def test_content_comes_first_and_nothing_is_shown_twice(content: Any, structured: Any, value: Any) -> None:
    result = convert_result(CallToolResult(content=content, structured_content=structured), TOOL)
    assert _plain(result.value) == _plain(value)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda file: file.handle))


def test_audio_and_blobs_of_resources_are_files_with_their_names() -> None:
    blob = BlobResourceContents(uri="file:///a/report.pdf?v=2", blob=base64.b64encode(b"%PDF-1.7\n").decode())
    content = [
        AudioContent(type="audio", data=WAV, mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=blob),
    ]
    audio, report = convert_result(CallToolResult(content=content), TOOL).value
    assert audio.media_type.startswith("audio/")
    assert (report.media_type, report.filename) == ("application/pdf", "report.pdf")


def test_one_result_has_at_most_twenty_files() -> None:
    *files, note = convert_result(CallToolResult(content=[PICTURE] * 500), TOOL).value
    assert len(files) == FILES
    assert note.startswith("[480 more files left out")


def test_an_error_that_is_only_structured_says_why() -> None:
    failed = CallToolResult(content=[], structured_content={"code": 7}, is_error=True)
    assert convert_result(failed, TOOL) == ('{"code":7}', True)


class Answers:
    """A server in this process, with one answer for each method, in virtual time. A function gets the parameters."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.methods: list[str] = []

    async def __aenter__(self) -> Any:
        self._connection = self._connect()
        return await self._connection.__aenter__()

    async def __aexit__(self, *error: object) -> Any:
        return await self._connection.__aexit__(*error)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        to_client, read = anyio.create_memory_object_stream[Any](100)
        write, from_client = anyio.create_memory_object_stream[Any](100)
        async with anyio.create_task_group() as tasks, to_client, read, write, from_client:
            tasks.start_soon(self._serve, from_client, to_client)
            yield read, write
            tasks.cancel_scope.cancel()

    async def _serve(self, messages: Any, answers: Any) -> None:
        async for message in messages:
            asked = message.message.model_dump(by_alias=True, exclude_unset=True)
            method = asked["method"]
            self.methods.append(method)
            if "id" in asked:
                answer = {"jsonrpc": "2.0", "id": asked["id"], **self.answer(method, asked.get("params") or {})}
                await answers.send(SessionMessage(jsonrpc_message_adapter.validate_python(answer)))

    def answer(self, method: str, params: Any) -> dict[str, Any]:
        if method == "server/discover":
            return {"error": {"code": -32601, "message": "unknown"}}
        if method == "initialize":
            info = {"name": "x", "version": "1"}
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
        answer = self.answers[method.replace("/", "_")]
        return {"result": answer(params) if callable(answer) else answer}


async def cast(server: Any, *says: Any, more: Sequence[Any] = ()) -> Any:
    cantrip = Cantrip(scripted([*says, done("ok")]), circle=Circle(["done", server, *more], [max_turns(5)]))
    async with Runtime.open() as runtime:
        return (await runtime.cast(cantrip, "go")).thread[0].observations[0]


async def test_a_query_after_a_large_picture_has_the_picture_and_few_characters() -> None:
    png = PIXEL + random.Random(1).randbytes(720_000)
    block = {"type": "image", "data": base64.b64encode(png).decode(), "mimeType": "image/png"}
    both = {"content": [{"type": "text", "text": json.dumps(block)}, block], "structuredContent": {"result": block}}
    server = Answers(tools_list={"tools": [{"name": "shot", "inputSchema": {"type": "object"}}]}, tools_call=both)
    crystal = scripted([say("web__shot"), done("ok")])
    cantrip = Cantrip(crystal, circle=Circle(["done", inproc("web", server)], [max_turns(5)]))
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip, "go")
    shown = crystal.invocations[-1].messages[-1]
    assert [image.size for image in shown.images] == [len(png)]
    assert len(shown.content) < 200


@pytest.mark.real_time
@pytest.mark.filterwarnings(LEFT_OPEN)
@pytest.mark.rule("V-05")
async def test_an_answer_that_expands_to_more_than_16_mib_is_an_error_observation() -> None:
    bomb = gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "_meta": {"a": "' + b" " * 40_000_000)
    server = Answers(tools_list={"tools": [{"name": "bomb", "inputSchema": {"type": "object"}}]})

    async def serve(stream: Any) -> None:
        async with stream:
            head, rest = b"", b""
            while True:
                while b"\r\n\r\n" not in rest:
                    rest += await stream.receive()
                head, _, rest = rest.partition(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                while len(rest) < length:
                    rest += await stream.receive()
                asked, rest = json.loads(rest[:length] or b"{}"), rest[length:]
                status, kind, body = "202 Accepted", "", b""
                if asked.get("method") == "tools/call":
                    status, kind, body = "200 OK", "content-encoding: gzip\r\n", bomb
                elif "id" in asked:
                    answer = server.answer(asked["method"], asked.get("params") or {})
                    status, body = "200 OK", json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode()
                kind += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                await stream.send(f"HTTP/1.1 {status}\r\n{kind}\r\n".encode() + body)

    async def serve_until_gone(stream: Any) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await serve(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve_until_gone)
        observation = await cast(http("web", f"http://127.0.0.1:{port}/mcp"), say("web__bomb"))
        tasks.cancel_scope.cancel()
    assert observation.is_error
    assert "more than 16 MiB" in observation.result


@gate(risks=["private_data"])
def secret() -> str:
    """Return a secret."""
    return "s"


async def never_called(*_: Any) -> Any:
    raise AssertionError


HINTS = [
    ({"title": "Wipe", "destructiveHint": True, "openWorldHint": True}, ['"Wipe"', "destroy", "world outside"]),
    ({"readOnlyHint": True, "openWorldHint": False}, ["only reads", "within its own data"]),
    ({}, []),
]


@pytest.mark.parametrize(("hints", "words"), HINTS)
@pytest.mark.parametrize("is_named", [False, True])
async def test_a_person_sees_what_a_server_says_of_a_tool(hints: Any, words: Any, is_named: bool) -> None:
    tool = {"name": "drop", "inputSchema": {"type": "object"}, "annotations": hints}
    server = inproc(
        "db", Answers(tools_list={"tools": [tool]}, tools_call={"content": []}), ask=() if is_named else "all"
    )
    gates = [ask_first("db__drop")] if is_named else []
    circle = Circle(["done", server, *gates], [max_turns(5)])
    async with Runtime.open() as runtime, runtime.requests(follow=True) as requests:
        entity = await runtime.start(Cantrip(scripted([say("db__drop"), done("ok")]), circle=circle), "go")
        request = await anext(aiter(requests))
        lines = "\n".join(request.render(rows=20))
        assert all(word in request.text for word in words)
        assert bool(request.text) == bool(words)
        assert ("the server db says" in lines) == bool(words)
        await runtime.decide(request.id, "allow", remember="entity")
        assert (await entity.episode()).result == "ok"


@pytest.mark.parametrize(
    ("is_open", "risks", "trust", "is_lethal"),
    [
        (True, ["untrusted_content"], False, True),
        (False, ["untrusted_content"], False, False),
        (False, ["untrusted_content", "way_out"], False, True),
        (False, ["untrusted_content", "way_out"], True, False),
    ],
)
def test_a_tool_that_reaches_the_world_is_a_way_out_and_a_trusted_hint_takes_it_away(
    is_open: bool, risks: Any, trust: bool, is_lethal: bool
) -> None:
    server = inproc("web", None, risks=risks, trust_hints=trust)
    listed = ListedTools.of(server, [TOOL._replace(open_world=is_open)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # before its tools are listed, a server has all the risks that it declares
        circle = Circle(["done", secret, server], [max_turns(5)]).with_tools({"web": listed}, {"web": never_called})
    assert circle.has_lethal_trifecta == is_lethal


async def test_risks_that_only_the_hints_of_a_server_show_are_logged_once() -> None:
    tool = {"name": "post", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": True}}
    circle = Circle(["done", secret, inproc("web", Answers(tools_list={"tools": [tool]}))], [max_turns(5)])
    cantrip = Cantrip(scripted(lambda _: done("ok")), circle=circle)
    async with Runtime.open() as runtime:
        with capture_logs() as logs:
            await runtime.cast(cantrip, "go")
            await runtime.cast(cantrip, "go")
    (line,) = [line for line in logs if "trifecta" in line["event"]]
    assert line["way_out"] == ["web"]


def test_a_text_of_brackets_beside_structured_content_is_a_part_of_the_result() -> None:
    deep = "[" * 1_000 + "]" * 1_000
    result = CallToolResult(content=[TextContent(type="text", text=deep)], structured_content={"a": 1})
    assert convert_result(result, Tool("t", "", {})).value == [deep, {"a": 1}]


async def test_a_list_that_ends_with_an_empty_cursor_is_whole() -> None:
    server = Answers(
        tools_list={"tools": [{"name": "bake", "inputSchema": {"type": "object"}}], "nextCursor": ""},
        tools_call={"content": [{"type": "text", "text": "baked"}]},
    )
    assert (await cast(inproc("oven", server), say("oven__bake"))).result == "baked"


async def test_a_task_whose_question_this_client_does_not_answer_is_cancelled() -> None:
    sent: list[str] = []

    class Session:
        """A server whose task asks for something."""

        async def send_request(self, request: Any, _kind: Any) -> Any:
            sent.append(request.method)
            return CurrentTask(task_id="t1", status="input_required", input_requests={"q": ListRootsRequest()})

    async def refuse(_requests: Any) -> Any:
        raise MCPError(METHOD_NOT_FOUND, "this client answers no roots/list")

    with pytest.raises(MCPError, match="answers no roots/list"):
        await finish_task(Session(), StartedTask(task_id="t1"), refuse)  # type: ignore[arg-type]  # all that it uses
    assert sent == ["tasks/get", "tasks/cancel"]


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_a_tool_that_a_server_runs_as_a_task_only_returns_its_result(ends: str) -> None:
    states = ["working", "working", ends]

    def task(_params: Any) -> dict[str, Any]:
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}
        return {"taskId": "t1", "status": states.pop(0), "pollInterval": 60_000, **times}

    result = {"content": [{"type": "text", "text": "baked"}], "isError": ends == "failed"}
    tool = {"name": "bake", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    server = Answers(
        tools_list={"tools": [tool]},
        tools_call=lambda params: {"task": task(params)} if "task" in params else {"content": [], "isError": True},
        tasks_get=task,
        tasks_result=result,
    )
    observation = await cast(inproc("oven", server, timeout=None), say("oven__bake"))
    assert (observation.result, observation.is_error) == ("baked", ends == "failed")


async def test_an_interrupt_cancels_the_task_of_a_call() -> None:
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}
    task = {"taskId": "t1", "status": "working", **times}
    tool = {"name": "bake", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    server = Answers(tools_list={"tools": [tool]}, tools_call={"task": task}, tasks_get=task, tasks_cancel=task)
    circle = Circle(["done", inproc("oven", server, timeout=None)], [max_turns(5)])
    async with Runtime.open() as runtime:
        entity = await runtime.start(Cantrip(scripted([say("oven__bake")]), circle=circle), "go")
        while "tasks/get" not in server.methods:
            await anyio.sleep(0.5)
        await entity.interrupt("enough", now=True)
        await entity.episode()
    assert server.methods[-1] == "tasks/cancel"


async def allow(_: Elicited) -> dict[str, Any]:
    return {"decision": "allow"}


@pytest.mark.parametrize(("intent", "answer"), [("nap 20", "it said: slept"), ("pay 3", "it said: paid 3")])
async def test_a_current_server_may_answer_with_a_task_and_ask_in_it(intent: str, answer: str) -> None:
    helping = helper()
    async with Runtime.open("memory:", cantrips=[helping]) as inner:
        named = by_name([helping])
        server = inproc(
            "inner", make_server(named, lambda context: find_local(inner, named, context), inner), timeout=None
        )
        crystal = scripted([say("inner__helper", intent=intent), done("ok")])
        async with (
            Runtime.open() as runtime,
            runtime.requests(follow=True) as requests,
            anyio.create_task_group() as tasks,
        ):

            async def allow() -> None:
                async for request in requests:
                    await runtime.decide(request.id, answer={"decision": "allow"})

            tasks.start_soon(allow)
            outcome = await runtime.cast(Cantrip(crystal, circle=Circle(["done", server], [max_turns(5)])), "go")
            tasks.cancel_scope.cancel()
    observation = outcome.thread[0].observations[0]
    assert observation.result["result"] == answer
