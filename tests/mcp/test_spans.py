"""Spans of calls to servers of tools."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
told = {name: ours.attributes[name] for name in ("gen_ai.tool.type", "mcp.method.name", "network.transport")}
print(json.dumps({"told": told, "below": below, "trace": len({
    span.context.trace_id for span in sdk.spans if "add" in span.name})}))
"""


@pytest.mark.real_time
@pytest.mark.rule("OTEL-13")
@pytest.mark.parametrize(("era", "backend"), [("modern", "asyncio"), ("handshake", "trio")])
def test_a_call_has_one_span_here_and_that_of_the_server_is_below_it(era: str, backend: str) -> None:
    command = [sys.executable, "-c", SPELL, era, backend]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["told"] == {
        "gen_ai.tool.type": "extension",
        "mcp.method.name": "tools/call",
        "network.transport": "inproc",
    }
    assert len(told["below"]) == 1
    assert told["below"][0].endswith("tools/call add")
    assert told["trace"] == 1
