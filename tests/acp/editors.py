"""An editor in the test's own process: it checks every message of the agent against the protocol's published schema."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from acp import schema
from pydantic import TypeAdapter

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, gate, scripted
from cantrip_actors.acp.agent import Agent
from cantrip_actors.acp.jsonrpc import RpcConnection
from cantrip_actors.gates import list_files, question, read, search, write
from cantrip_actors.wards import max_turns

RESULTS: Mapping[str, Any] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/prompt": schema.PromptResponse,
    "session/close": schema.CloseSessionResponse,
    "session/delete": schema.DeleteSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
}
REQUESTS: Mapping[str, Any] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
    "fs/read_text_file": schema.ReadTextFileRequest,
    "fs/write_text_file": schema.WriteTextFileRequest,
    "terminal/create": schema.CreateTerminalRequest,
    "terminal/output": schema.TerminalOutputRequest,
    "terminal/wait_for_exit": schema.WaitForTerminalExitRequest,
    "terminal/kill": schema.KillTerminalRequest,
    "terminal/release": schema.ReleaseTerminalRequest,
    "elicitation/create": schema.CreateFormSessionElicitationRequest,
    "$/cancel_request": schema.CancelRequestNotification,
}

ALL = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True, "elicitation": {"form": {}}}


class Refused(Exception):
    """The agent answered with an error, or the editor does."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error
        self.code = error["code"]


class Editor:
    """The client's side of one connection. `answers` has what it says to the agent's requests, by method."""

    def __init__(self, send: Any, answers: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        self._send = send
        self._answers = answers
        self._number = 0
        self._waiting: dict[Any, tuple[str, anyio.Event]] = {}
        self._results: dict[Any, dict[str, Any]] = {}
        self.messages: list[dict[str, Any]] = []
        """All that the agent sent."""
        self.asked: list[str] = []
        """The methods that the agent has called."""
        self._moved = anyio.Event()

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [one["params"]["update"] for one in self.messages if one.get("method") == "session/update"]

    def of(self, session: str) -> list[dict[str, Any]]:
        """The updates of one session."""
        told = [one["params"] for one in self.messages if one.get("method") == "session/update"]
        return [one["update"] for one in told if one["sessionId"] == session]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """The text of all updates of a kind."""
        return "".join(one["content"]["text"] for one in self.updates if one["sessionUpdate"] == kind)

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until something is there."""
        with anyio.fail_after(30):
            while not (value := found()):
                await self._moved.wait()
        return value

    async def line(self, text: str | bytes) -> None:
        await self._send.send(text.encode() if isinstance(text, str) else text)

    async def tell(self, method: str, **params: Any) -> None:
        await self.line(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))

    async def begin(self, method: str, params: Any, id: Any = None) -> Any:
        """Send a request; its id."""
        self._number += 1
        id = self._number if id is None else id
        self._waiting[id] = method, anyio.Event()
        await self.line(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
        return id

    async def end(self, id: Any) -> Any:
        """Wait for the answer to a request. Raises Refused."""
        with anyio.fail_after(60):
            await self._waiting[id][1].wait()
        message = self._results[id]
        if "error" in message:
            raise Refused(message["error"])
        return message["result"]

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.end(await self.begin(method, params))

    async def prompt(self, session: str, text: Any) -> str:
        return (await self.ask("session/prompt", sessionId=session, prompt=text))["stopReason"]

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        async with anyio.create_task_group() as tasks:
            async for line in lines:
                assert line.endswith(b"\n")
                assert line.count(b"\n") == 1
                message = json.loads(line)
                self.messages.append(message)
                if "method" not in message:
                    self._take(message)
                else:
                    TypeAdapter(REQUESTS[message["method"]]).validate_python(message["params"])
                    if "id" in message:
                        self.asked.append(message["method"])
                        tasks.start_soon(self._respond, message)
                self._moved.set()
                self._moved = anyio.Event()

    def _take(self, message: dict[str, Any]) -> None:
        if message["id"] in self._waiting:
            method, arrived = self._waiting[message["id"]]
            if "result" in message:
                TypeAdapter(RESULTS[method]).validate_python(message["result"])
            self._results[message["id"]] = message
            arrived.set()

    async def _respond(self, message: dict[str, Any]) -> None:
        try:
            said = self._answers[message["method"]](message["params"])
        except Refused as refusal:
            await self.line(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": refusal.error}))
            return
        if hasattr(said, "__await__"):
            said = await said
        if said is not None:
            await self.line(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": said}))


@asynccontextmanager
async def edited(
    recipe: Cantrip,
    url: str = "memory:",
    *,
    capabilities: Mapping[str, Any] | None = None,
    answers: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None,
    terminal: bool = False,
    runtime: Runtime | None = None,
    **options: Any,
) -> AsyncIterator[Editor]:
    """An editor that is connected and initialized."""
    if runtime is None:
        async with (
            Runtime.open(url, cantrips=[recipe], **options) as opened,
            edited(recipe, runtime=opened, capabilities=capabilities, answers=answers, terminal=terminal) as editor,
        ):
            yield editor
        return
    agent = Agent(runtime, recipe, terminal=terminal)
    ask, lines = anyio.create_memory_object_stream[bytes](100)
    told, back = anyio.create_memory_object_stream[bytes](100)
    agent.connection = RpcConnection(agent, told.send)
    editor = Editor(ask, answers or {})

    async def nothing() -> None:
        pass

    async with anyio.create_task_group() as tasks, lines, told, back, ask:
        await tasks.start(agent.run)
        tasks.start_soon(agent.connection.serve, lines, nothing)
        tasks.start_soon(editor.run, back)
        await editor.ask("initialize", protocolVersion=1, clientCapabilities=capabilities or {})
        yield editor
        tasks.cancel_scope.cancel()


@gate
async def nap(seconds: float) -> str:
    """Sleep."""
    await anyio.sleep(seconds)
    return "slept"


@gate
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@gate(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}]}


def answer(context: Any) -> dict[str, Any]:
    """Carry out what the last intent says: `GATE {args}`; anything else is answered by how many intents there were."""
    if context[-1].role == "tool":
        return {"content": f"it said: {context[-1].content}"}
    said = [one for one in context if one.role == "user" and not str(one.content).startswith("context:")]
    last = said[-1]
    name, _, rest = str(last.content).partition("\n")[0].partition(" ")
    if name in ("nap", "pay", "look", "read", "write", "list", "search", "question", "terminal"):
        return call(name, **json.loads(rest or "{}"))
    if name == "image":
        return {"content": f"{len(last.images)} images, {sum(one.size for one in last.images):,} bytes"}
    if name == "model":
        return {"content": "the first model"}
    return {"content": f"{last.content} is number {len(said)}", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def helper(root: Any = None, **more: Any) -> Cantrip:
    """A cantrip that does what it is told."""
    files = [] if root is None else [one.with_(root=root) for one in (read, write, list_files, search)]
    gates = ["done", nap, ask_first(pay), look, question, *files]
    crystal = scripted(answer, name="first", context_window=1000)
    return Cantrip(crystal, circle=Circle(gates, [max_turns(20)]), name="helper", **more)
