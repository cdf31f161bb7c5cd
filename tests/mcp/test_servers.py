"""Servers of tools that are programs and URLs: real processes and sockets, killed and restarted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse
from structlog.testing import capture_logs

from cantrip_actors import Runtime
from cantrip_actors.http import ServiceSettings
from cantrip_actors.http.server import listen, run_hypercorn
from cantrip_actors.mcp import ToolServerError, http, pipe, stdio
from cantrip_actors.mcp.look import call_once, with_connection
from cantrip_actors.terms.tool_server import Host
from tests.exhaustive import EXHAUSTIVE
from tests.mcp.test_gates import ERAS, seen, servers_of, spell
from tests.mcp.tools import tools
from tests.runtime.spells import done, say

pytestmark = pytest.mark.real_time

ROOT = str(Path(__file__).parent.parent.parent)


ENTITIES = 50 if EXHAUSTIVE else 8


def program(**options: Any) -> Any:
    return stdio("t", sys.executable, f"{ROOT}/tests/mcp/plain.py", cwd=ROOT, **options)


@asynccontextmanager
async def served(noticed: list[str] | None = None, *, era: str = "modern") -> AsyncIterator[str]:
    """Serve the tools on a socket; returns the URL."""
    app: Any = tools(noticed).streamable_http_app()
    if era == "handshake":
        app = older(app)
    stop, listening = anyio.Event(), anyio.Event()
    listener, url = listen(ServiceSettings("memory:", bind="127.0.0.1:0"))

    async def started() -> None:
        listening.set()
        await stop.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_hypercorn, app, listener, started)
        await listening.wait()
        yield f"{url}/mcp"
        stop.set()


def older(app: Any) -> Any:
    """A server that does not know the protocol of 2026: it has no `server/discover`."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        first = await receive()
        asked = json.loads(first["body"])
        if asked["method"] == "server/discover":
            error = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown"}}
            await JSONResponse(error)(scope, receive, send)
            return
        waiting = [first]

        async def again() -> Any:
            return waiting.pop() if waiting else await receive()

        await app(scope, again, send)

    return answer


LEFT_OPEN = "ignore:Async generator '(httpx2|httpcore2|mcp)[.]:ResourceWarning"
"""The SDK's transport for older servers leaves generators to the garbage collector, and trio says so."""


def is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.rule("MCP-01", "MCP-11", "MCP-12")
async def test_a_program_is_a_server_with_a_clean_environment_and_ends_with_its_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with Runtime.open() as runtime:
        says = [say("t__environment"), say("t__process"), done("ok")]
        outcome = await runtime.cast(spell(*says, server=program(env={"GIVEN": "yes"})), "go")
        (names, _), (process, _) = seen(outcome)[:2]
        assert {"GIVEN", "PATH", "HOME"} <= set(names["result"])
        known = {"GIVEN", "PATH", "HOME", "LANG", "TERM", "LC_CTYPE"}
        assert set(names["result"]) <= known
        with anyio.fail_after(10):
            while is_alive(process):
                await anyio.sleep(0.05)
        assert not servers_of(runtime)


@pytest.mark.rule("MCP-02")
async def test_a_call_whose_server_dies_is_of_unknown_outcome_and_the_next_call_works() -> None:
    async with Runtime.open() as runtime:
        cantrip = spell(say("t__die"), say("t__add", a=1, b=1), done("ok"), server=program())
        first, second, *_ = seen(await runtime.cast(cantrip, "go"))
    assert first[1]
    assert first[0].startswith("t__die: outcome unknown: the server t was lost during the call")
    assert second == ({"result": 2}, False)


@pytest.mark.rule("MCP-02")
async def test_a_server_killed_between_calls_is_started_again() -> None:
    async with Runtime.open() as runtime:
        says = [say("t__process"), done("ok"), say("t__process"), done("ok")]
        entity = await runtime.invoke(spell(*says, server=program()), "go")
        ((before, _), *_) = seen(await entity.result())
        os.kill(int(before), signal.SIGKILL)
        with anyio.fail_after(10):
            while is_alive(before):
                await anyio.sleep(0.02)
        ((after, is_error), *_) = seen(await entity.send("again"))[-2:]
        await entity.stop()
    assert not is_error
    assert before != after


@pytest.mark.rule("MCP-02")
async def test_a_program_that_does_not_start_is_an_error_with_its_last_output() -> None:
    in_parts = "import sys; w = sys.stderr; w.write('no li'); w.flush(); sys.stdin.readline(); w.write('cence')"
    async with Runtime.open() as runtime:
        for code in ("import sys; sys.exit('no licence')", in_parts):
            with pytest.raises(ToolServerError, match="no licence"):
                await runtime.cast(spell(done("ok"), server=stdio("t", sys.executable, "-c", code)), "go")
        with pytest.raises(ToolServerError, match=r"^server t cannot be used: it did not start: No such file"):
            await runtime.cast(spell(done("ok"), server=stdio("t", "/no/such/program")), "go")


@pytest.mark.rule("MCP-02")
async def test_a_program_that_writes_an_endless_line_is_ended() -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    async with Runtime.open() as runtime:
        with pytest.raises(ToolServerError, match=r"^server t cannot be used: it wrote a message of more than 16 MiB"):
            await runtime.cast(spell(done("ok"), server=stdio("t", sys.executable, "-c", flood)), "go")


@pytest.mark.rule("MCP-02")
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("greeting", "it does not speak the protocol: InitializeResult: "),
        ("list", "lists its tools wrongly: ListToolsResult: tools: "),
        ("schema", "lists its tools wrongly: ListToolsResult: tools.0.inputSchema.type: "),
        ("many", "lists more than 1000 tools"),
        ("content", "the server ran the call, but its answer is invalid: CallToolResult: content.0."),
        ("text as error", "the server's answer is no valid JSON-RPC message"),
        ("no answer", "the server's answer is no valid JSON-RPC message"),
    ],
)
async def test_a_server_that_breaks_the_protocol_is_an_error_that_says_how(mode: str, told: str) -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", mode)
    async with Runtime.open() as runtime:
        try:
            (first, is_error), *_ = seen(await runtime.cast(spell(say("t__f"), done("ok"), server=server), "go"))
        except ToolServerError as problem:
            first, is_error = str(problem), True
    assert is_error
    assert told in first


@pytest.mark.rule("MCP-02")
@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("many", "it lists more than 1000 tools"),
        ("list", "it lists its tools wrongly: ListToolsResult: tools: Input should be a valid list"),
    ],
)
async def test_an_error_of_a_server_names_it_once(mode: str, problem: str) -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", mode)
    async with Runtime.open() as runtime:
        with pytest.raises(ToolServerError) as failed:
            await runtime.cast(spell(done("ok"), server=server), "go")
    assert str(failed.value).startswith(f"server t cannot be used: {problem}")
    with pytest.raises(ToolServerError, match=f"^server t: {problem}"):
        await with_connection(server, call_once("f", {}))


@pytest.mark.rule("MCP-02")
@pytest.mark.parametrize("mode", ["one schema", "no type", "null", "missing", "faults"])
async def test_a_tool_is_called_though_a_schema_of_its_server_is_loose_or_invalid(mode: str) -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", mode)
    async with Runtime.open() as runtime:
        (first, is_error), *_ = seen(await runtime.cast(spell(say("t__f"), done("ok"), server=server), "go"))
        assert (first, is_error) == ("done", False)


@pytest.mark.rule("MCP-02")
async def test_invalid_entries_of_a_servers_lists_are_left_out_with_one_warning_that_names_them() -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", "faults")
    cantrips = [spell(say("t__f"), say("t__resources"), done("ok"), server=server) for _ in range(2)]
    with capture_logs() as logs:
        async with Runtime.open() as runtime, runtime.use_server(server) as connected:
            results = [seen(await runtime.cast(cantrip, "go")) for cantrip in cantrips]
            assert [prompt.name for prompt in await connected.prompts()] == ["p"]
    assert results == [[("done", False), ({"resources": [{"uri": "memo:n", "name": "n"}]}, False), ("ok", False)]] * 2
    warnings = [log["faults"] for log in logs if log["event"] == "invalid entries of a server's lists are left out"]
    assert [list(faults) for faults in warnings] == [
        ["7", "text", "hints", "words", "no object"],
        ["no address"],
        ["None"],
    ]
    assert warnings[0]["hints"].startswith("annotations.readOnlyHint: Input should be a valid boolean")


@pytest.mark.rule("MCP-02")
async def test_a_server_that_does_not_start_is_one_line_of_the_log() -> None:
    async with Runtime.open() as runtime:
        with capture_logs() as logs, pytest.raises(ToolServerError, match="No such file or directory"):
            await runtime.cast(spell(done("ok"), server=stdio("t", "/no/such/program")), "go")
    (line,) = [log for log in logs if log["event"] != "restart delayed"]
    assert line["reason"] == "shutdown: server t: it did not start: No such file or directory: /no/such/program"
    assert "exception" not in line


@pytest.mark.rule("MCP-02")
async def test_a_tool_with_an_invalid_schema_is_refused_if_the_user_names_it() -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", "one schema", only=["f", "draft_4"])
    async with Runtime.open() as runtime:
        with pytest.raises(ToolServerError, match="tool 'draft_4' has no valid JSON Schema: True is not of type"):
            await runtime.cast(spell(done("ok"), server=server), "go")


@pytest.mark.rule("MCP-02")
async def test_an_error_of_a_server_with_the_code_of_a_closed_connection_is_its_own() -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", "busy")
    async with Runtime.open() as runtime:
        (first, is_error), *_ = seen(await runtime.cast(spell(say("t__f"), done("ok"), server=server), "go"))
        assert (first, is_error) == ("t__f: too many requests: wait a minute", True)


IMPORTER = """
import sys, threading
import anyio
from cantrip_actors.mcp import ToolServerError, stdio
from cantrip_actors.terms.tool_server import Host

threads = set()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            threads.add(threading.current_thread() is threading.main_thread())

async def main():
    server = stdio("t", "/no/such/program")
    sys.meta_path.insert(0, Finder())
    await server.hold(print, Host(None))

try:
    anyio.run(main)
except ToolServerError:
    print(threads)
"""


@pytest.mark.rule("MCP-02")
def test_the_sdk_is_imported_beside_the_event_loop() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTER], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "{False}"


@pytest.mark.rule("MCP-12")
async def test_a_program_that_ignores_its_shutdown_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "GRACE", 0.2)
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "print('no message', flush=True)\n"
        "time.sleep(600)\n"
    )
    noted = tmp_path / "processes"

    async def leave(_: Any) -> None:
        raise AssertionError("it never answers")

    with anyio.move_on_after(20):
        async with anyio.create_task_group() as tasks:
            server = stdio("t", sys.executable, "-c", code, str(noted))
            tasks.start_soon(server.hold, lambda _: None, Host(leave))
            while not (noted.exists() and noted.read_text()):
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    with anyio.fail_after(10):
        while any(is_alive(one) for one in noted.read_text().split()):
            await anyio.sleep(0.05)


@pytest.mark.rule("MCP-01", "MCP-12")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.filterwarnings(LEFT_OPEN)
async def test_a_url_is_a_server(era: str) -> None:
    noticed: list[str] = []
    async with served(noticed, era=era) as url, Runtime.open() as runtime:
        cantrip = spell(say("t__add", a=1, b=2), say("t__say", text="x"), done("ok"), server=http("t", url))
        results = seen(await runtime.cast(cantrip, "go"))
    assert results[:2] == [({"result": 3}, False), ("said x", False)]


@pytest.mark.rule("MCP-01")
async def test_a_program_may_speak_the_older_protocol() -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", "honest")
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(spell(say("t__f"), done("ok"), server=server), "go")
    assert seen(outcome)[0] == ("done", False)


@pytest.mark.rule("V-02")
async def test_a_result_of_a_program_with_half_a_character_is_a_result() -> None:
    server = stdio("t", sys.executable, f"{ROOT}/tests/mcp/lying.py", "half")
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(spell(say("t__f"), done("ok"), server=server), "go")
    assert seen(outcome)[0] == ("\ufffd!", False)


@pytest.mark.rule("MCP-03")
@pytest.mark.parametrize("how", ["timeout", "interrupt"])
async def test_a_cancelled_call_reaches_a_program(how: str, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    server = program(env={"NOTED": str(noted)}, timeout=1 if how == "timeout" else None)
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(spell(say("t__wait", seconds=99), done("ok"), server=server), "go")
        with anyio.fail_after(20):
            while not noted.exists():
                await anyio.sleep(0.02)
            if how == "interrupt":
                await entity.interrupt(now=True)
            while noted.read_text().split() != ["waits", "cancelled"]:
                await anyio.sleep(0.02)


@pytest.mark.rule("MCP-06")
async def test_entities_share_one_process_which_ends_with_the_last_of_them() -> None:
    server = program()
    async with Runtime.open() as runtime:
        entities = [
            await runtime.invoke(spell(say("t__process"), done(n), server=server), "go") for n in range(ENTITIES)
        ]
        processes = {seen(await entity.episode())[0][0] for entity in entities}
        assert len(processes) == 1
        for entity in entities:
            assert is_alive(*processes)
            await entity.stop()
        with anyio.fail_after(10):
            while is_alive(*processes):
                await anyio.sleep(0.05)


@pytest.mark.rule("MCP-03")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.filterwarnings(LEFT_OPEN)
async def test_a_timeout_reaches_a_server_behind_a_url(era: str) -> None:
    noticed: list[str] = []
    async with served(noticed, era=era) as url, Runtime.open() as runtime:
        cantrip = spell(say("t__wait", seconds=60), done("ok"), server=http("t", url, timeout=0.5))
        entity = await runtime.invoke(cantrip, "go")
        (first, *_) = seen(await entity.episode())
        assert first == ("t__wait timed out after 0.5 s", True)
        with anyio.fail_after(5):
            while noticed != ["waits", "cancelled"]:
                await anyio.sleep(0.02)


@pytest.mark.rule("MCP-02")
async def test_a_url_without_a_server_is_refused_by_name() -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ToolServerError, match=r"^server t cannot be used: ConnectError"):
            await runtime.cast(spell(done("ok"), server=http("t", "http://127.0.0.1:9/mcp")), "go")
