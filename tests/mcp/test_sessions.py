"""A server that forgets its sessions, or is started again: a new session begins, and no call is made twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.mcp import http
from cantrip_actors.mcp.http_client import tells_of_no_session
from cantrip_actors.wards import max_turns
from tests.runtime.spells import say

pytestmark = [pytest.mark.real_time, pytest.mark.rule("V-13")]

VERSION = "2025-11-25"


class Refusal(NamedTuple):
    """What a server answers to a request in a session that it does not know."""

    status: str
    error: dict[str, Any] | str


REFUSALS = {
    "as the protocol says": Refusal("404 Not Found", {"code": -32001, "message": "Session not found"}),
    "an empty 404": Refusal("404 Not Found", ""),
    "a page": Refusal("404 Not Found", "<h1>nothing here</h1>"),
    "a bad request": Refusal(
        "400 Bad Request", {"code": -32000, "message": "Bad Request: No valid session ID provided"}
    ),
    "a new transport": Refusal("400 Bad Request", {"code": -32000, "message": "Bad Request: Server not initialized"}),
    "an answer": Refusal("200 OK", {"code": -32600, "message": "Session not found"}),
}


class ForgetfulServer:
    """A Streamable HTTP server with one tool; it forgets sessions on request."""

    def __init__(self, refusal: Refusal, keeps: int | None = None) -> None:
        self.refusal, self.keeps = refusal, keeps
        """After so many requests in a session it forgets the session; None for never."""
        self.sessions: dict[str, int] = {}
        self.calls: list[Any] = []
        self.begun = 0

    async def serve(self, stream: Any) -> None:
        async with stream:
            buffer = b""
            while True:
                try:
                    while b"\r\n\r\n" not in buffer:
                        buffer += await stream.receive()
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    method, *lines = head.decode().split("\r\n")
                    headers = {
                        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
                    }
                    length = int(headers.get("content-length", 0))
                    while len(buffer) < length:
                        buffer += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return
                body, buffer = buffer[:length], buffer[length:]
                status, answer, more = self.answer(method.split()[0], headers.get("mcp-session-id"), body)
                text = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                kind = "text/html" if isinstance(answer, str) else "application/json"
                told = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n{more}\r\n"
                await stream.send(told.encode() + text)

    def answer(self, method: str, session: str | None, body: bytes) -> tuple[str, Any, str]:
        if method != "POST":
            return ("405 Method Not Allowed" if method == "GET" else "200 OK"), "", ""
        message = json.loads(body)
        number, name = message.get("id"), message["method"]
        result: dict[str, Any]
        if name == "initialize":
            self.begun += 1
            self.sessions[f"s{self.begun}"] = 0
            result = {
                "protocolVersion": VERSION,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "d", "version": "1"},
            }
            return "200 OK", {"jsonrpc": "2.0", "id": number, "result": result}, f"mcp-session-id: s{self.begun}\r\n"
        if session is None and name == "server/discover":
            return "400 Bad Request", {"jsonrpc": "2.0", "id": number, "error": {"code": -32600, "message": "no"}}, ""
        if session not in self.sessions:
            error = self.refusal.error
            told = error if isinstance(error, str) else {"jsonrpc": "2.0", "id": number, "error": error}
            return self.refusal.status, told, ""
        if "id" not in message:
            return "202 Accepted", "", ""
        self.sessions[session] += 1
        if self.keeps is not None and self.sessions[session] > self.keeps:
            del self.sessions[session]
            return self.answer(method, session, body)
        if name == "tools/list":
            result = {"tools": [{"name": "add", "inputSchema": {"type": "object", "properties": {"n": {}}}}]}
        else:
            n = message["params"]["arguments"]["n"]
            self.calls.append(n)
            result = {"content": [{"type": "text", "text": f"added {n}"}]}
        return "200 OK", {"jsonrpc": "2.0", "id": number, "result": result}, ""


@asynccontextmanager
async def serving(server: ForgetfulServer, port: int = 0) -> AsyncIterator[int]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port, reuse_port=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()
    await listener.aclose()


def policy(context: Any) -> Any:
    last = context[-1]
    return say("desk__add", n=last.content) if last.role == "user" else {"content": f"{last.is_error}: {last.content}"}


def make_cantrip(port: int) -> Cantrip:
    circle = Circle(["done", http("desk", f"http://127.0.0.1:{port}/mcp")], [max_turns(4)])
    return Cantrip(scripted(policy), circle=circle)


@pytest.mark.parametrize("kind", list(REFUSALS))
async def test_a_call_in_a_session_that_the_server_forgot_is_made_once_in_a_new_one(kind: str) -> None:
    server = ForgetfulServer(REFUSALS[kind])
    async with serving(server) as port, Runtime.open() as runtime:
        spell = make_cantrip(port)
        entity = await runtime.invoke(spell, "1")
        results = [(await entity.episode()).result]
        for intent in ("2", "3"):
            server.sessions.clear()
            results.append((await entity.send(intent)).result)
        server.sessions.clear()
        results.append((await runtime.cast(spell, "4")).result)
        restarts = [node.id for node in runtime.inspect().tree.walk() if node.restarts]
    assert results == [f"False: added {n}" for n in "1234"]
    assert server.calls == list("1234")
    assert not restarts


async def test_a_server_that_was_started_again_gets_the_call_in_a_new_session() -> None:
    server, spell = ForgetfulServer(REFUSALS["an empty 404"]), None
    async with Runtime.open() as runtime:
        async with serving(server) as port:
            spell = make_cantrip(port)
            entity = await runtime.invoke(spell, "1")
            assert (await entity.episode()).result == "False: added 1"
        server.sessions.clear()
        async with serving(server, port):
            assert (await entity.send("2")).result == "False: added 2"
    assert server.calls == ["1", "2"]


async def test_a_server_that_ends_every_session_at_once_is_an_error_and_not_an_endless_loop() -> None:
    server = ForgetfulServer(REFUSALS["as the protocol says"])
    async with serving(server) as port, Runtime.open() as runtime:
        entity = await runtime.invoke(make_cantrip(port), "1")
        await entity.episode()
        server.sessions.clear()
        server.keeps, before = 1, server.begun
        result = (await entity.send("2")).result
    assert "took nothing in 3 sessions" in str(result)
    assert server.calls == ["1"]
    assert server.begun - before <= 3


@pytest.mark.parametrize(
    ("text", "is_over"),
    [
        ("Session not found", True),
        ("Invalid session id: 7", True),
        ("Bad Request: Mcp-Session-Id header is required", True),
        ("n: expected a number", False),
        ("the database has no table", False),
        ("", False),
    ],
)
def test_only_words_about_a_session_say_that_it_is_over(text: str, is_over: bool) -> None:
    assert tells_of_no_session(text) is is_over


class HalfCharacterServer(ForgetfulServer):
    """A server that cuts its texts within an emoji."""

    def answer(self, method: str, session: str | None, body: bytes) -> tuple[str, Any, str]:
        status, answer, more = super().answer(method, session, body)
        if "content" in (answer or {}).get("result", {}):
            answer["result"]["content"][0]["text"] += " 😀 \ud83d"
        return status, answer, more


@pytest.mark.rule("V-02")
async def test_a_result_with_half_a_character_is_a_result() -> None:
    async with serving(HalfCharacterServer(REFUSALS["an empty 404"])) as port, Runtime.open() as runtime:
        assert (await runtime.cast(make_cantrip(port), "1")).result == "False: added 1 😀 \ufffd"
