"""A provider that misbehaves on purpose, over real sockets: for tests of crystals, ours and yours.

A `FaultyServer` listens on a port of this machine and answers each request with the next `Reply` of its script. A reply
can be cut off at any byte, stall there, arrive in small pieces, have the wrong type, or lack the framing that marks its
end. Afterwards the server has the requests, the number of connections, and how many the client closed in the middle of
an answer.

    async with FaultyServer([rate_limited(retry_after=0), Reply(events({…}, {…}))]) as server:
        crystal = openai("gpt-4o", chat=True, base_url=server.url, api_key="test")

It runs on either backend, in the event loop of the test; time is real (`@pytest.mark.real_time` in this project).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
import orjson
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from cantrip_actors.terms.exact_json import dump_exactly

__all__ = ["FaultyServer", "ReceivedRequest", "Reply", "events", "failing", "garbage", "rate_limited"]


@dataclass(frozen=True)
class Reply:
    """The answer to one request.

    `cut` drops the connection after so many bytes of the body; `stall` sends no more after so many, and keeps it open.
    `drip` sends so many bytes at a time, `pause` seconds apart. `delay` is the time before the first byte. Without
    `framed`, only the end of the connection ends the body: a cut looks like an end.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    cut: int | None = None
    stall: int | None = None
    drip: int | None = None
    pause: float = 0.0
    delay: float = 0.0
    framed: bool = True

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the body."""
        ends = [end for end in (self.cut, self.stall) if end is not None]
        body = self.body[: min(ends)] if ends else self.body
        size = self.drip or max(1, len(body))
        for at in range(0, len(body), size):
            yield body[at : at + size]


def events(*values: Any, names: bool = True, done: bool = False) -> bytes:
    """Return server-sent events with these values as JSON, each named by its `type` if it has one."""
    lines = []
    for value in values:
        data = value if isinstance(value, bytes) else dump_exactly(value)
        name = value.get("type") if names and isinstance(value, Mapping) else None
        lines.append((b"event: %b\n" % str(name).encode() if name else b"") + b"data: %b\n\n" % data)
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def rate_limited(retry_after: float | None = None, **headers: str) -> Reply:
    """Return a 429 that asks for a wait, in seconds."""
    all_headers = dict(headers) if retry_after is None else {"retry-after": f"{retry_after:g}", **headers}
    return failing(429, {"error": {"type": "rate_limit_error", "message": "slow down"}}, all_headers)


def failing(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an error: JSON for a mapping, an HTML page for a text."""
    if isinstance(body, str):
        return Reply(body.encode(), status, headers or {}, "text/html")
    return Reply(orjson.dumps(body or {"error": {"message": "failed"}}), status, headers or {}, "application/json")


def garbage(size: int = 2000) -> Reply:
    """Return meaningless bytes, always the same."""
    return Reply(bytes((n * 7919 + n // 7) % 256 for n in range(size)))


class ReceivedRequest(NamedTuple):
    """One received request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return orjson.loads(self.body)


ProviderScript = Sequence[Reply] | Callable[[ReceivedRequest], Reply]


class FaultyServer:
    """A provider with a script of replies. Further requests get the last reply.

    `requests` are the received requests, `connections` is the number of opened connections, and `hung_up` the number of
    connections that the client closed before it had the whole answer; `hangs_up` is set then.
    """

    def __init__(self, script: ProviderScript) -> None:
        self._script = script
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.hung_up = 0
        self.hangs_up = anyio.Event()
        self.url = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen at `url`."""
        async with AsyncExitStack() as stack:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
            await stack.enter_async_context(listener)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(listener.serve, self._serve)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no query set
            self.url = f"http://127.0.0.1:{port}"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _serve(self, stream: SocketStream) -> None:
        self.connections += 1
        async with stream:
            received = BufferedByteReceiveStream(stream)
            try:
                while (request := await _read_request(received)) is not None:
                    self.requests.append(request)
                    if not await self._answer(stream, self._reply(request)):
                        return
            except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
                return

    def _reply(self, request: ReceivedRequest) -> Reply:
        if callable(self._script):
            return self._script(request)
        return self._script[min(len(self.requests), len(self._script)) - 1]

    async def _answer(self, stream: SocketStream, reply: Reply) -> bool:
        """Return whether the connection may be used again."""
        if reply.delay:
            await self._wait(stream, reply.delay)
        lines = [f"HTTP/1.1 {reply.status} Said", f"content-type: {reply.content_type}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        lines.append("transfer-encoding: chunked" if reply.framed else "connection: close")
        await stream.send("\r\n".join([*lines, "", ""]).encode())
        try:
            for piece in reply.pieces():
                await stream.send(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.framed else piece)
                if reply.pause:
                    await self._wait(stream, reply.pause)
            if reply.stall is not None:
                await self._wait(stream, float("inf"))
        except anyio.BrokenResourceError:
            self.hung_up += 1
            self.hangs_up.set()
            return False
        if reply.cut is not None or not reply.framed:
            return False
        await stream.send(b"0\r\n\r\n")
        return True

    async def _wait(self, stream: SocketStream, seconds: float) -> None:
        """Wait, and notice if the client hangs up; it sends nothing else meanwhile."""
        with anyio.move_on_after(seconds):
            try:
                await stream.receive()
            except anyio.EndOfStream as end:
                raise anyio.BrokenResourceError from end


async def _read_request(received: BufferedByteReceiveStream) -> ReceivedRequest | None:
    """Return the next request of a connection, None if the client has closed it."""
    try:
        head = await received.receive_until(b"\r\n\r\n", 65536)
    except (anyio.IncompleteRead, anyio.EndOfStream):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await received.receive_exactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, path, headers, body)
