"""Bodies of requests on the wire: sent late, sent slowly, not sent."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import h11
import pytest

from cantrip_actors.http import ServiceLimits, server
from tests.http.serving import Reader, Served, served

pytestmark = [pytest.mark.real_time, pytest.mark.rule("HTTP-14")]


@asynccontextmanager
async def line_to(on: Served) -> AsyncIterator[Reader]:
    host, port = on.url.partition("//")[2].split(":")
    async with await anyio.connect_tcp(host, int(port)) as socket:
        yield Reader(socket, h11.Connection(h11.CLIENT))


async def begin(line: Reader, path: str, size: int, method: str = "POST", **headers: str) -> None:
    """Send the head of a request with a body of so many bytes, and wait until the service has it."""
    given = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(size), **headers}
    head = line.http.send(h11.Request(method=method, target=path, headers=list(given.items())))
    await line.socket.send(head or b"")
    await anyio.sleep(0.1)


async def finish(line: Reader, body: bytes = b"") -> int:
    """Send the rest of a request; return the status of its answer, which is read to its end."""
    sent = line.http.send(h11.Data(data=body)) if body else b""
    await line.socket.send((sent or b"") + (line.http.send(h11.EndOfMessage()) or b""))
    return await read(line)


async def read(line: Reader) -> int:
    status: int = (await line.receive()).status_code
    while not isinstance(await line.receive(), h11.EndOfMessage):
        pass
    return status


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/nothing", {}, 404),
        ("/api/v1/casts", {}, 401),
        ("/api/v1/casts", {"host": "elsewhere.example"}, 421),
        ("/api/v1/cantrips", {"authorization": "Bearer admin-token"}, 405),
    ],
)
async def test_a_connection_is_reused_after_a_request_that_was_refused_unread(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with served() as on, line_to(on) as line:
        for _ in range(2):
            await begin(line, path, 10, **headers)
            assert await finish(line, b" " * 10) == status
            line.http.start_next_cycle()  # raises if the service closes the connection


async def test_a_body_that_is_too_large_is_answered_with_connection_close() -> None:
    async with served(limits=ServiceLimits(body=1000)) as on, line_to(on) as line:
        await begin(line, "/api/v1/casts", 10**9, authorization="Bearer admin-token")
        answer = await line.receive()
        assert answer.status_code == 413
        assert (b"connection", b"close") in answer.headers


async def test_a_compressed_body_is_refused_with_what_is_accepted() -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with served() as on:
        refused = await on.ask("POST", "casts", 415, content=gzip.compress(b"{}"), headers=headers)
        assert refused.headers["accept-encoding"] == "identity"
        assert refused.json()["detail"] == "expected a body as it is, without content-encoding, got gzip"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_client_that_sends_a_large_body_to_its_end_gets_the_answer(is_chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(128):
            yield b" " * 65_536

    headers = {"content-type": "application/json"}
    async with served(limits=ServiceLimits(body=1000)) as on:
        body = parts() if is_chunked else b" " * (8 << 20)
        refused = await on.ask("POST", "casts", 413, content=body, headers=headers)
        assert (refused.json()["limit"], refused.headers["connection"]) == ("body_size", "close")


@pytest.mark.parametrize("start", [b"", b"GET /api", b"GET /api/v1/cantrips HTTP/1.1\r\nhost: 127.0.0.1\r\n"])
async def test_a_connection_whose_request_never_ends_is_closed(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.2)
    async with served() as on, line_to(on) as line:
        if start:
            await line.socket.send(start)
        with anyio.fail_after(10):
            assert isinstance(await line.receive(), h11.ConnectionClosed)


async def test_a_body_that_stops_arriving_ends_its_request() -> None:
    async with served(limits=ServiceLimits(patience=0.2)) as on, line_to(on) as line:
        await begin(line, "/api/v1/casts", 100, authorization="Bearer admin-token")
        await line.socket.send(b"{")
        with anyio.fail_after(10):
            assert await read(line) == 408
        assert not on.runtime.loom.entities()
