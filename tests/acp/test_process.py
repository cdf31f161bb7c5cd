"""`cantrip acp` as a process: the SDK's own client, rubbish, kill -9, the end of input."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

from cantrip_actors.loom import open_store, verify_loom
from tests.forked import COMMAND, Forked

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
RECIPE = ["acp", "tests.acp.noisy:noisy"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "TEAM_KEY": "sk-hunter2-hunter2-hunter2"}


class Process:
    """The agent, spoken to line by line."""

    def __init__(self, *options: str, general: Sequence[str] = ()) -> None:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = Forked(COMMAND, *general, *RECIPE, *options, cwd=ROOT, env=ENVIRONMENT, **pipes)
        self.messages: list[dict[str, Any]] = []

    def send(self, line: Any) -> None:
        text = line if isinstance(line, str) else json.dumps(line)
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        self.messages.append(json.loads(line))
        return self.messages[-1]

    def ask(self, id: Any, method: str, **params: Any) -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        while (message := self.read()).get("id") != id:
            pass
        return message

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out.decode(), err.decode()


@contextmanager
def agent(*options: str, general: Sequence[str] = ()) -> Iterator[Process]:
    started = Process(*options, general=general)
    try:
        assert started.ask(0, "initialize", protocolVersion=1)["result"]["protocolVersion"] == 1
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.mark.rule("ACP-03")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_sdks_client_works_with_the_agent(backend: str, tmp_path: Path) -> None:
    class Client:
        def __init__(self) -> None:
            self.text = ""
            self.asked = 0

        async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
            if isinstance(update, schema.AgentMessageChunk):
                self.text += update.content.text

        async def request_permission(self, **_: Any) -> Any:
            self.asked += 1
            outcome = schema.AllowedOutcome(outcome="selected", option_id="allow")
            return schema.RequestPermissionResponse(outcome=outcome)

        def on_connect(self, conn: Any) -> None:
            pass

    async def work() -> None:
        client = Client()
        url = f"sqlite:{tmp_path / 'loom.db'}"
        command = ["-m", "cantrip_actors.cli.main", *RECIPE, "--backend", backend, "--loom", url]
        async with acp.spawn_agent_process(client, sys.executable, *command, env=ENVIRONMENT, cwd=ROOT) as (conn, _):
            await conn.initialize(protocol_version=1)
            session = (await conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id

            async def prompt(text: str) -> str:
                return (await conn.prompt(session_id=session, prompt=[acp.text_block(text)])).stop_reason

            assert await prompt("hello") == "end_turn"
            assert "hello is number 1" in client.text
            assert await prompt('pay {"amount": 3}') == "end_turn"
            assert client.asked == 1
            hanging = asyncio.ensure_future(prompt('nap {"seconds": 1000}'))
            await asyncio.sleep(0.5)
            await conn.cancel(session_id=session)
            assert await hanging == "cancelled"
            assert [one.session_id for one in (await conn.list_sessions()).sessions] == [session]
            client.text = ""
            await conn.load_session(session_id=session, cwd=str(tmp_path), mcp_servers=[])
            assert "hello is number 1" in client.text

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.rule("W-42")
def test_the_sdks_client_sees_in_a_loaded_session_what_runs_after_its_permission(tmp_path: Path) -> None:
    class Client:
        def __init__(self, allows: bool) -> None:
            self.allows = allows
            self.asked, self.answered = asyncio.Event(), asyncio.Event()
            self.outputs: list[Any] = []
            self.text = ""

        async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
            if isinstance(update, schema.ToolCallProgress) and update.status == "completed":
                self.outputs.append(update.raw_output)
            if isinstance(update, schema.AgentMessageChunk):
                self.text += update.content.text
                if "paid 3" in self.text:
                    self.answered.set()

        async def request_permission(self, **_: Any) -> Any:
            self.asked.set()
            if not self.allows:
                await asyncio.sleep(1000)
            outcome = schema.AllowedOutcome(outcome="selected", option_id="allow")
            return schema.RequestPermissionResponse(outcome=outcome)

        def on_connect(self, conn: Any) -> None:
            pass

    async def work() -> None:
        command = ["-m", "cantrip_actors.cli.main", *RECIPE, "--loom", f"sqlite:{tmp_path / 'loom.db'}"]
        first, second = Client(allows=False), Client(allows=True)
        async with acp.spawn_agent_process(first, sys.executable, *command, env=ENVIRONMENT, cwd=ROOT) as (conn, _):
            await conn.initialize(protocol_version=1)
            session = (await conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
            prompt = [acp.text_block('pay {"amount": 3}')]
            waiting = asyncio.ensure_future(conn.prompt(session_id=session, prompt=prompt))
            await first.asked.wait()
            waiting.cancel()
        async with acp.spawn_agent_process(second, sys.executable, *command, env=ENVIRONMENT, cwd=ROOT) as (conn, _):
            await conn.initialize(protocol_version=1)
            await conn.load_session(session_id=session, cwd=str(tmp_path), mcp_servers=[])
            await second.answered.wait()
        assert second.outputs == [{"output": "paid 3"}]

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.rule("ACP-04", "ACP-06", "ACP-07", "ACP-08")
def test_invalid_input_and_printed_output_do_not_break_the_connection() -> None:
    with agent("--loom", "memory:", general=["--log-level", "debug"]) as on:
        assert on.ask("a", "initialize", protocolVersion=65535)["result"]["protocolVersion"] == 1
        for line, code in (
            ("rubbish", -32700),
            ("[]", -32600),
            ("{}", -32600),
            ("3", -32600),
            ('{"id": 7, "method": 3}', -32600),
        ):
            on.send(line)
            answered = on.read()
            assert (answered["id"], answered["error"]["code"]) == (None, code)
        on.send({"jsonrpc": "2.0", "id": {}, "method": "initialize"})
        assert on.read()["error"]["code"] == -32600
        on.send("")
        on.send({"jsonrpc": "2.0", "method": "no/such"})
        on.send({"jsonrpc": "2.0", "method": "session/cancel", "params": 3})
        on.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        for method in ("no/such", "_mine", "authenticate", "logout"):
            assert on.ask(method, method)["error"]["code"] == -32601
        assert on.ask(5, "session/new", cwd="here")["error"]["code"] == -32602
        session = on.ask("new", "session/new")["result"]["sessionId"]
        prompt = on.ask(2**40, "session/prompt", sessionId=session, prompt="shout")
        assert prompt["result"] == {"stopReason": "end_turn"}
        assert "shouted" in json.dumps(on.messages)
        assert on.process.stdin is not None
        on.process.stdin.close()
        on.process.stdin = None
        code, out, err = on.end()
        assert code == 0
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
        assert "a gate prints this" in err
        assert "a program prints this" in err
        assert "a gate warns of this" in err
        assert "a program of a gate prints this" in err
        assert "a gate logs this" in err


@pytest.mark.rule("ACP-10")
def test_a_session_continues_after_kill_9_in_the_middle_of_a_prompt(tmp_path: Path) -> None:
    loom = ["--loom", f"sqlite:{tmp_path / 'loom.db'}"]
    with agent(*loom) as on:
        session = on.ask(1, "session/new", cwd=str(tmp_path))["result"]["sessionId"]
        on.ask(2, "session/prompt", sessionId=session, prompt="one")
        params = {"sessionId": session, "prompt": 'nap {"seconds": 1}'}
        on.send({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params})
        while on.read().get("params", {}).get("update", {}).get("sessionUpdate") != "tool_call":
            pass
        on.process.send_signal(signal.SIGKILL)
        on.process.wait()
    with agent(*loom) as on:
        assert "result" in on.ask(1, "session/load", sessionId=session, cwd=str(tmp_path))
        told = json.dumps(on.messages)
        assert "one is number 1" in told
        assert "nap" in told
        assert on.ask(2, "session/prompt", sessionId=session, prompt="three")["result"] == {"stopReason": "end_turn"}
        assert "three is number 3" in json.dumps(on.messages)


@pytest.mark.rule("ACP-21")
def test_the_end_of_input_ends_the_agent_soon_with_a_sound_loom(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    with agent("--loom", url) as on:
        session = on.ask(1, "session/new")["result"]["sessionId"]
        params = {"sessionId": session, "prompt": 'nap {"seconds": 1000}'}
        on.send({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": params})
        while on.read().get("params", {}).get("update", {}).get("sessionUpdate") != "tool_call":
            pass
        assert on.process.stdin is not None
        on.process.stdin.close()
        on.process.stdin = None
        began = time.monotonic()
        code, _, err = on.end()
        assert (code, "Traceback" in err) == (0, False)
        assert time.monotonic() - began < 10  # 2 s on a quiet machine
    with open_store(url) as store:
        assert verify_loom(store).ok


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_ends_the_agent_while_an_editor_holds_its_input(backend: str, number: signal.Signals) -> None:
    with agent("--loom", "memory:", "--backend", backend) as editor:
        editor.process.send_signal(number)
        assert editor.process.wait(timeout=30) == 0


@pytest.mark.rule("ACP-22")
def test_check_tries_the_protocol_and_debug_writes_it_without_secrets(tmp_path: Path) -> None:
    with Forked(COMMAND, *RECIPE, "--check", cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as checked:
        told, _ = checked.communicate(timeout=60)
    assert checked.returncode == 0
    assert told.splitlines()[-3:] == ["initialize: ok", "session/new: ok", "session/prompt: ok"]
    debug = tmp_path / "debug"
    with agent("--loom", "memory:", "--debug", str(debug)) as on:
        session = on.ask(1, "session/new")["result"]["sessionId"]
        on.ask(2, "session/prompt", sessionId=session, prompt="secret")
        assert "hunter2" not in json.dumps(on.messages)
    written = debug.read_text()
    assert '<- {"jsonrpc":"2.0","id":0,"method":"initialize"' in written
    assert '-> {"jsonrpc":"2.0","id":0,"result"' in written
    assert "hunter2" not in written
    assert debug.stat().st_mode & 0o777 == 0o600
    missing = tmp_path / "missing" / "debug"
    options = ["--loom", "memory:", "--debug", str(missing)]
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked(COMMAND, *RECIPE, *options, cwd=ROOT, env=ENVIRONMENT, **pipes) as refused:
        _, told = refused.communicate(timeout=60)
    expected = f"error: {missing}: the messages cannot be written there: No such file or directory"
    assert (refused.returncode, told.splitlines()[-1]) == (1, expected)
