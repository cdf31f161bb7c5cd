"""The trace of a client goes on in the entity that its call casts."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.forked import Forked

ROOT = Path(__file__).parent.parent.parent

SPELL = """
import anyio, json, sys
from opentelemetry import trace
from cantrip_actors import Runtime
from tests.mcp_server.clients import connected, helper
from tests.observe.spans import Sdk

sdk = Sdk()
trace.set_tracer_provider(sdk.provider)  # the SDK of MCP opens spans wherever a program has one, for good


async def main():
    meta = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with Runtime.open(telemetry=sdk.telemetry(), cantrips=[helper()]) as runtime:
        async with connected(sys.argv[1], [helper()], runtime=runtime) as (client, _):
            await client.call_tool("helper", {"intent": "hello"}, meta=meta)


anyio.run(main, backend=sys.argv[2])
ours = next(span for span in sdk.spans if span.name.startswith("invoke_agent"))
spans = {span.context.span_id: span for span in sdk.spans}
print(json.dumps({"parent": spans[ours.parent.span_id].name, "kind": spans[ours.parent.span_id].kind.name,
                  "trace": f"{ours.context.trace_id:032x}"}))
"""


@pytest.mark.real_time
@pytest.mark.parametrize(("era", "backend"), [("2026-07-28", "asyncio"), ("legacy", "trio")])
def test_an_episode_is_below_the_call_that_cast_it(era: str, backend: str) -> None:
    pipe = subprocess.PIPE
    with Forked(SPELL, era, backend, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as ran:
        out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0, err
    told = json.loads(out)
    assert (told["parent"], told["kind"]) == ("tools/call helper", "SERVER")
    if era != "legacy":  # the SDK's client writes the trace of its own span over the given one there
        assert told["trace"] == "0af7651916cd43dd8448eb211c80319c"
