"""How evenly streams show the words of a model that says 50 a second: a part of `python -m bench serve`.

The crystal notes when it says each word, and each reader when it sees something new. A *gap* is the longest time
between two updates; *beyond* is by how much it exceeds the crystal's own longest gap, and *first* how much later than
the crystal's first word a reader sees text.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import anyio
import anyio.abc
import orjson

from cantrip_actors import Cantrip, Circle, Runtime
from cantrip_actors.acp.agent import Agent
from cantrip_actors.acp.jsonrpc import RpcConnection
from cantrip_actors.stream.wire import FinalMessage, ItemDelta, ItemDone, ItemStart
from cantrip_actors.wards import max_turns

WORDS_A_SECOND = 50
LEAST_RATE = 40.0
"""Updates a second that a single reader gets at least."""
MOST_BEYOND = 100.0
"""Milliseconds by which a gap may exceed the crystal's own."""
MOST_LATE = 30.0
"""Milliseconds after the crystal's first word in which a reader sees text."""
MANY = "many: "
"""Begins the names of the paces with many readers, which share a processor with the service: they have no limit."""


class PacedCrystal:
    """A crystal that says numbers at a steady pace, and notes when it said them."""

    name = "paced"
    context_window = None

    def __init__(self, words: int) -> None:
        self.words = words
        self.times: list[float] = []

    async def invoke(self, messages: Any, emit: Callable[[Any], None]) -> str:
        """Say the words."""
        del messages
        self.times.clear()
        spoken = [f"{number} " for number in range(self.words)]
        emit(ItemStart("text", "message"))
        began = time.perf_counter()
        for number, word in enumerate(spoken):
            await anyio.sleep(max(0.0, began + number / WORDS_A_SECOND - time.perf_counter()))
            self.times.append(time.perf_counter())
            emit(ItemDelta("text", word))
        text = "".join(spoken)
        emit(ItemDone("text", FinalMessage(text, "agent")))
        return text


class Pace(NamedTuple):
    """What a reader saw: updates a second, and milliseconds."""

    rate: float
    beyond: float
    first: float

    @classmethod
    def of(cls, spoken: list[float], seen: list[float]) -> Pace:
        """Compare the times at which words were said with those at which they were seen."""
        gaps, own = _list_gaps(seen), _list_gaps(spoken)
        lasted = spoken[-1] - spoken[0]
        return cls((len(seen) - 1) / lasted, (max(gaps) - max(own)) * 1e3, (seen[0] - spoken[0]) * 1e3)


def _list_gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)] or [float("inf")]


def make_paced_cantrip(crystal: PacedCrystal) -> Cantrip:
    """Return the cantrip of a crystal that is paced."""
    return Cantrip(crystal, circle=Circle(["done"], [max_turns(1000)]), name="paced")


class _Lines:
    """The lines of a connection."""

    def __init__(self, stream: anyio.abc.ByteReceiveStream) -> None:
        self._stream = stream
        self._rest = b""

    async def read(self) -> list[bytes]:
        """Return the next whole lines; none at the end."""
        try:
            *lines, self._rest = (self._rest + await self._stream.receive()).split(b"\n")
        except anyio.EndOfStream:
            return []
        return lines or await self.read()


async def _send_request(url: str, method: str, path: str, body: Any = None) -> anyio.abc.SocketStream:
    """Return a connection to which a request was sent, and from which its answer comes."""
    host, port = url.partition("//")[2].split(":")
    connection = await anyio.connect_tcp(host, int(port))
    content = b"" if body is None else orjson.dumps(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
    await connection.send(f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content)
    return connection


async def _watch_stream(
    url: str, method: str, path: str, body: Any, has_text: Callable[[dict[str, Any]], bool], seen: list[float]
) -> None:
    """Note when text arrives in an event stream, to its end."""
    async with await _send_request(url, method, path, body) as connection:
        lines = _Lines(connection)
        while arrived := await lines.read():
            now = time.perf_counter()
            for line in arrived:
                if line == b"0\r":  # the end of the last chunk: some servers leave the connection open
                    return
                if line.startswith(b"data: {") and has_text(orjson.loads(line[6:])):
                    seen.append(now)


def _is_chat_text(event: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") for choice in event.get("choices", ()))


def _is_response_text(event: dict[str, Any]) -> bool:
    return event.get("type") == "response.output_text.delta"


def _is_upsert_of_text(event: dict[str, Any]) -> bool:
    """Return whether an event of a native stream shows an open text."""
    payload = event.get("payload", {})
    return payload.get("type") == "message" and payload.get("status") in ("create", "update")


async def _watch_native(runtime: Runtime, cantrip: Cantrip, url: str, seen: list[float]) -> None:
    entity = await runtime.start(cantrip, "say them")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            _watch_stream, url, "GET", f"/api/v1/entities/{entity.id}/events", None, _is_upsert_of_text, seen
        )
        await entity.episode()
        await anyio.sleep(0.2)
        tasks.cancel_scope.cancel()


async def _watch_run(runtime: Runtime, cantrip: Cantrip, seen: list[float]) -> None:
    async with runtime.stream(cantrip, "say them") as run:
        seen.extend([time.perf_counter() async for _ in run.text()])


async def _watch_editor(runtime: Runtime, cantrip: Cantrip, seen: list[float]) -> None:
    """Note when the text of an agent reaches an editor."""
    agent = Agent(runtime, cantrip, terminal=False)
    requests, lines = anyio.create_memory_object_stream[bytes](100)
    answers: dict[int, Any] = {}
    arrived = [anyio.Event(), anyio.Event(), anyio.Event()]

    async def receive(line: bytes) -> None:
        message = orjson.loads(line)
        if "id" in message:
            answers[message["id"]] = message["result"]
            arrived[message["id"]].set()
        elif message["params"]["update"]["sessionUpdate"] == "agent_message_chunk":
            seen.append(time.perf_counter())

    agent.connection = RpcConnection(agent, receive)

    async def ask(number: int, method: str, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await requests.send(orjson.dumps(request) + b"\n")
        await arrived[number].wait()
        return answers[number]

    async def end() -> None:
        pass

    async with anyio.create_task_group() as tasks, requests, lines:
        await tasks.start(agent.run)
        tasks.start_soon(agent.connection.serve, lines, end)
        await ask(0, "initialize", protocolVersion=1, clientCapabilities={})
        session = (await ask(1, "session/new", cwd="/", mcpServers=[]))["sessionId"]
        await ask(2, "session/prompt", sessionId=session, prompt=[{"type": "text", "text": "say them"}])
        tasks.cancel_scope.cancel()


async def measure_each(runtime: Runtime, crystal: PacedCrystal, cantrip: Cantrip, url: str) -> dict[str, Pace]:
    """Return the pace of each kind of stream, with one reader."""
    message = {"role": "user", "content": "say them"}
    chat = {"model": "paced", "stream": True, "messages": [message]}
    response = {"model": "paced", "stream": True, "input": "say them"}
    readers: dict[str, Callable[[list[float]], Awaitable[None]]] = {
        "chat completions": lambda seen: _watch_stream(url, "POST", "/v1/chat/completions", chat, _is_chat_text, seen),
        "responses": lambda seen: _watch_stream(url, "POST", "/v1/responses", response, _is_response_text, seen),
        "native events": lambda seen: _watch_native(runtime, cantrip, url, seen),
        "runtime.stream": lambda seen: _watch_run(runtime, cantrip, seen),
        "ACP": lambda seen: _watch_editor(runtime, cantrip, seen),
    }
    paces = {}
    for name, watch in readers.items():
        seen: list[float] = []
        await watch(seen)
        paces[name] = Pace.of(crystal.times, seen)
    return paces


async def measure_many(
    runtime: Runtime, crystal: PacedCrystal, cantrip: Cantrip, url: str, readers: int, wait: Callable[[str], Any]
) -> tuple[Pace, Pace]:
    """Return the paces of the median and of the slowest of the readers that follow one entity.

    `wait` waits until all of them follow it.
    """
    entity = await runtime.invoke(cantrip, "say them")
    await entity.episode()
    seen: list[list[float]] = [[] for _ in range(readers)]
    async with anyio.create_task_group() as tasks:
        for times in seen:
            tasks.start_soon(
                _watch_stream, url, "GET", f"/api/v1/entities/{entity.id}/events", None, _is_upsert_of_text, times
            )
        await wait(entity.id)
        await entity.send("say them")
        await anyio.sleep(0.5)
        tasks.cancel_scope.cancel()
    await entity.stop()
    paces = sorted((Pace.of(crystal.times, times) for times in seen), key=lambda pace: pace.beyond)
    return paces[len(paces) // 2], paces[-1]


def list_faults(paces: dict[str, Pace]) -> Iterator[str]:
    """Yield the streams whose single reader misses a limit."""
    for name, pace in paces.items():
        misses = pace.rate < LEAST_RATE or pace.beyond > MOST_BEYOND or pace.first > MOST_LATE
        if misses and not name.startswith(MANY):
            yield name
