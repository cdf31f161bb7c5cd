"""Spans of calls to servers of tools."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from cantrip_actors import Runtime
from cantrip_actors.mcp import http, inproc, stdio
from tests.forked import Forked
from tests.mcp.test_gates import spell
from tests.mcp.test_servers import LEFT_OPEN, program, served
from tests.observe.spans import Sdk
from tests.runtime.spells import done, say

ROOT = Path(__file__).parent.parent.parent

SPELL = """
import anyio, json, sys
from opentelemetry import trace
from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.mcp import inproc
from cantrip_actors.wards import max_turns
from tests.mcp.tools import tools
from tests.observe.spans import Sdk
from tests.runtime.spells import done, say

sdk = Sdk()
trace.set_tracer_provider(sdk.provider)  # the SDK of MCP opens spans wherever a program has one, for good


async def main():
    circle = Circle(["done", inproc("t", tools(), era=sys.argv[1])], [max_turns(4)])
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(Cantrip(scripted([say("t__add", a=1, b=2), done("ok")]), circle=circle), "go")


anyio.run(main, backend=sys.argv[2])
ours = sdk.one("execute_tool t__add")
below = [span.name for span in sdk.below(ours)]
told = {name: ours.attributes[name] for name in (
    "gen_ai.tool.type", "mcp.method.name", "network.transport", "mcp.protocol.version")}
print(json.dumps({"told": told, "below": below, "trace": len({
    span.context.trace_id for span in sdk.spans if "add" in span.name})}))
"""


@pytest.mark.real_time
@pytest.mark.rule("OTEL-13")
@pytest.mark.parametrize(
    ("era", "backend", "version"),
    [("modern", "asyncio", MODERN_PROTOCOL_VERSIONS[-1]), ("handshake", "trio", HANDSHAKE_PROTOCOL_VERSIONS[-1])],
)
def test_a_call_has_one_span_here_and_that_of_the_server_is_below_it(era: str, backend: str, version: str) -> None:
    pipe = subprocess.PIPE
    with Forked(SPELL, era, backend, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as ran:
        out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0, err
    told = json.loads(out)
    assert told["told"] == {
        "gen_ai.tool.type": "extension",
        "mcp.method.name": "tools/call",
        "network.transport": "inproc",
        "mcp.protocol.version": version,
    }
    assert len(told["below"]) == 1
    assert told["below"][0].endswith("tools/call add")
    assert told["trace"] == 1


TRANSPORT = ("network.transport", "mcp.protocol.version", "mcp.session.id")


@pytest.mark.real_time
@pytest.mark.rule("OTEL-13")
@pytest.mark.filterwarnings(LEFT_OPEN)
async def test_a_call_over_http_has_the_session_that_the_server_began() -> None:
    sdk = Sdk()
    async with served(era="handshake") as url, Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell(say("t__add", a=1, b=2), done("ok"), server=http("t", url)), "go")
    call = sdk.one("execute_tool t__add").attributes
    transport, version, session = (call[name] for name in TRANSPORT)
    assert (transport, version) == ("tcp", HANDSHAKE_PROTOCOL_VERSIONS[-1])
    assert re.fullmatch(r"[0-9a-f]{32}", str(session))


@pytest.mark.real_time
@pytest.mark.rule("OTEL-13")
async def test_a_call_of_a_program_has_the_version_of_the_protocol_and_no_session() -> None:
    sdk = Sdk()
    server = program()
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell(say("t__add", a=1, b=2), done("ok"), server=server), "go")
    call = sdk.one("execute_tool t__add").attributes
    assert [call.get(name) for name in TRANSPORT] == ["pipe", MODERN_PROTOCOL_VERSIONS[-1], None]


TELLING = """
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("telling")


@server.tool(structured_output=False)
def told(ctx: Context) -> str:
    "Return the traceparent that this call came with."
    return str(dict(ctx.request_context.meta or {}).get("traceparent"))


server.run()
"""


@pytest.mark.real_time
@pytest.mark.rule("OTEL-13")
async def test_a_server_in_another_process_gets_the_traceparent_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    sdk = Sdk()
    server = stdio("t", sys.executable, str(tmp_path / "telling.py"))
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        outcome = await runtime.cast(spell(say("t__told"), done("ok"), server=server), "go")
    call = sdk.one("execute_tool t__told").context
    assert str(outcome.thread[0].observation).startswith(f"00-{call.trace_id:032x}-{call.span_id:016x}-")
    assert sdk.below(sdk.one("execute_tool t__told")) == []  # the SDK of MCP has no provider here


@pytest.mark.rule("OTEL-10", "OTEL-13")
async def test_the_error_of_a_server_is_a_tool_error_whatever_its_text_looks_like() -> None:
    server = MCPServer("scripts")

    @server.tool(structured_output=False)
    def fail() -> CallToolResult:
        """Fail as a server in JavaScript does."""
        told = "TypeError: Cannot read properties of undefined"
        return CallToolResult(content=[TextContent(type="text", text=told)], is_error=True)

    sdk = Sdk()
    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        await runtime.cast(spell(say("t__fail"), done("ok"), server=inproc("t", server)), "go")
    assert sdk.one("execute_tool t__fail").attributes["error.type"] == "tool_error"
