"""`cantrip mcp` as a process: the SDK's own client, what it prints, kill -9."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio import to_thread
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from cantrip_actors.loom import open_store, verify_loom
from tests.forked import COMMAND, Forked
from tests.mcp_server.clients import ERAS
from tests.mcp_server.test_tasks import MODERN, TASKS, ask, begin

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def started(era: str, url: str, backend: str, log: Any, **options: Any) -> AsyncIterator[Client]:
    """Start the command and connect to it."""
    command = ["-m", "cantrip_actors.cli.main", "mcp", "tests.mcp_server.noisy:noisy", "--loom", url]
    server = StdioServerParameters(
        command=sys.executable,
        args=[*command, "--backend", backend],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PID_FILE": f"{log.name}.pid"},
        cwd=ROOT,
    )
    async with Client(stdio_client(server, errlog=log), mode=era, **options) as client:
        yield client


@asynccontextmanager
async def forked(era: str, url: str, backend: str, log: Any, *offer: str, **options: Any) -> AsyncIterator[Client]:
    """Fork the command, which takes less time than to start it, and connect to it."""
    arguments = ["mcp", *(offer or ["tests.mcp_server.noisy:noisy"]), "--loom", url, "--backend", backend]
    environment = {**os.environ, "PID_FILE": f"{log.name}.pid"}
    pipe = subprocess.PIPE
    with Forked(COMMAND, *arguments, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=log) as process:
        async with Client(connect_pipes(process), mode=era, **options) as client:
            yield client


@asynccontextmanager
async def connect_pipes(process: Any) -> AsyncIterator[Any]:
    """Yield the streams of a connection over the pipes of a process."""
    to_client, received = anyio.create_memory_object_stream[Any](9)
    sent, to_server = anyio.create_memory_object_stream[Any](9)

    async def read() -> None:
        async with to_client:
            while line := await to_thread.run_sync(process.stdout.readline):
                with contextlib.suppress(anyio.BrokenResourceError):
                    await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(line)))

    async def write() -> None:
        async for one in to_server:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            with contextlib.suppress(OSError):  # the process may have been killed
                process.stdin.write(f"{text}\n".encode())
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    async with anyio.create_task_group() as tasks, received, to_server:
        tasks.start_soon(read)
        tasks.start_soon(write)
        async with sent:
            yield received, sent


def backend_of(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("anyio_backend")[0])


@pytest.mark.rule("MCP-13")
async def test_a_client_that_starts_the_command_calls_the_tool(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    era = dict(zip(("asyncio", "trio"), ERAS, strict=True))[backend_of(request)]  # a process takes seconds to start
    url = f"jsonl:{tmp_path}/loom.jsonl"
    with (tmp_path / "log").open("w") as log, anyio.fail_after(60):
        async with started(era, url, backend_of(request), log) as client:
            result = await client.call_tool("noisy", {"intent": "shout"})
            assert result.structured_content is not None
            assert result.structured_content["result"] == "it said: shouted"
    told = (tmp_path / "log").read_text()
    assert "a gate prints this" in told  # on standard error: standard output has messages alone
    assert "Traceback" not in told
    store = open_store(url)
    try:
        assert verify_loom(store).ok
    finally:
        store.close()


@pytest.mark.rule("MCP-13")
async def test_a_function_that_the_command_line_names_provides_the_dependencies_of_gates(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, source = f"jsonl:{tmp_path}/loom.jsonl", "tests.mcp_server.desk"
    offer = (f"{source}:desk", "--dependencies", f"{source}:provide")
    with (tmp_path / "log").open("w") as log, anyio.fail_after(60):
        async with forked(ERAS[0], url, backend_of(request), log, *offer) as client:
            result = await client.call_tool("desk", {"intent": "What did I order?"})
    assert result.structured_content is not None
    assert result.structured_content["result"].startswith("tea for ")


@pytest.mark.rule("MCP-16")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_server_while_a_client_holds_its_input(
    tmp_path: Path, request: pytest.FixtureRequest, number: signal.Signals
) -> None:
    log, url = tmp_path / "log", f"jsonl:{tmp_path}/loom.jsonl"
    with log.open("w") as file, anyio.fail_after(60):
        async with forked(ERAS[0], url, backend_of(request), file) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(_call_in_vain, client)
            while not (entities := list(Path(tmp_path).glob("loom.jsonl"))) or not entities[0].stat().st_size:
                await anyio.sleep(0.02)
            process = int((tmp_path / "log.pid").read_text())
            os.kill(process, number)
            while Path(f"/proc/{process}").exists() and " Z " not in Path(f"/proc/{process}/stat").read_text():
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    assert "Traceback" not in log.read_text()
    with open_store(url) as store:
        assert not store.unfinished(idle=False)


async def _call_in_vain(client: Client) -> None:
    with contextlib.suppress(MCPError):
        await client.call_tool("noisy", {"intent": "nap 60"})


@pytest.mark.rule("MCP-14")
async def test_a_task_survives_kill_9_of_its_server(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url, backend = f"sqlite:{tmp_path}/loom.db", backend_of(request)
    options: dict[str, Any] = {"extensions": [advertise(TASKS)], "elicitation_callback": _never}
    with (tmp_path / "log").open("w") as log, anyio.fail_after(60):
        async with forked(MODERN, url, backend, log, **options) as client:
            done = (await begin(client, "hello", "noisy"))["structuredContent"]["entity_id"]
            task = (await begin(client, "pay 3", "noisy"))["taskId"]
            os.kill(int((tmp_path / "log.pid").read_text()), signal.SIGKILL)
        async with forked(MODERN, url, backend, log, **options) as client:
            seen = await ask(client, "tasks/get", taskId=done)
            assert (seen["status"], seen["result"]["isError"]) == ("completed", False)
            seen = await ask(client, "tasks/get", taskId=task)
            assert seen["status"] == "input_required"
            (request_id,) = seen["inputRequests"]
            answers = {request_id: {"action": "accept", "content": {"decision": "allow"}}}
            await ask(client, "tasks/update", taskId=task, inputResponses=answers)
            while (seen := await ask(client, "tasks/get", taskId=task))["status"] == "working":
                await anyio.sleep(0.05)
            assert seen["result"]["structuredContent"]["result"] == "it said: paid 3"


async def _never(_context: Any, _params: Any) -> Any:
    raise AssertionError("a task asks by tasks/get")


@pytest.mark.rule("MCP-13")
@pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")
async def test_the_http_server_ends_in_order_while_a_client_listens(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = ["mcp", "tests.mcp_server.noisy:noisy", "--http", "--bind", "127.0.0.1:0"]
    options = ["--loom", f"sqlite:{tmp_path}/loom.db", "--backend", backend_of(request)]
    with anyio.fail_after(60):
        with Forked(COMMAND, *command, *options, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            told, words = "", None
            while words is None:
                line = await to_thread.run_sync(process.stderr.readline)
                assert line, told
                told += line
                words = re.search(r"serving MCP at (\S+)\nauthorization: Bearer (\S+)\n", told)
            headers = {"authorization": f"Bearer {words[2]}"}
            async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
                connection = streamable_http_client(words[1], http_client=http)
                async with Client(connection, mode="legacy") as client:
                    result = await client.call_tool("noisy", {"intent": "hello"})
                    assert not result.is_error
                    process.send_signal(signal.SIGTERM)
                    told += await to_thread.run_sync(process.stderr.read)
                    assert await to_thread.run_sync(process.wait) == 0
    assert "Traceback" not in told
    assert words[2] not in told[words.end() :]
