"""The proxy of one session, and the only way of its pages to the network.

Chromium sends every request to it: of frames, workers, WebSockets, redirects, prefetches and service workers. It
resolves the host, checks all of its addresses as `fetch` does, and connects to a checked address; so there is no second
resolution that could give another one (DNS rebinding). It answers one request per connection, or opens one tunnel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import httpx

from cantrip_actors.circle.browser.hosts import AllowedHost
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.fetch_request import resolve_public

HEAD: Final = 64 * 1024
"""The largest head of a request or an answer, in bytes."""

CHUNK: Final = 64 * 1024
CONNECT: Final = 10.0
"""Seconds to connect to an address."""

REFUSALS: Final = 10
"""Refused hosts that an entity is told of, for each call."""

_HOP: Final = (b"proxy-connection", b"proxy-authorization", b"connection", b"keep-alive")

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FilteringProxy:
    """An HTTP proxy on loopback that connects to allowed hosts. `left` are the bytes that pages may still receive."""

    def __init__(self, hosts: Sequence[AllowedHost], *, allow_private: bool, most_bytes: int) -> None:
        self._hosts = hosts
        self._allow_private = allow_private
        self.left = most_bytes
        self.refused: dict[str, None] = {}
        """Why requests were refused since the last call, in order."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD)

    @property
    def url(self) -> str:
        """Its URL, once it listens."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def explain_refusal(self, host: str, port: int) -> str | None:
        """Return why a host is not allowed; None if it is, as far as its name says."""
        if any(pattern.matches(host, port) for pattern in self._hosts):
            return None
        return f"{host}:{port} is not among the allowed hosts: {', '.join(map(str, self._hosts)) or 'none'}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # either side broke off, or spoke no HTTP, or the session closes: asyncio would report all as errors
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        is_tunnel = method == b"CONNECT"
        url = urlsplit(f"//{target.decode('ascii')}" if is_tunnel else target.decode("ascii"))
        if not is_tunnel and url.scheme != "http":
            raise ValueError(f"not a request to a proxy: {target!r}")
        host, port = (url.hostname or "").rstrip("."), url.port or 80
        try:
            upstream = await self._connect(host, port)
        except GateError as refusal:
            if len(self.refused) < REFUSALS:
                self.refused[str(refusal)] = None
            body = str(refusal).encode()
            writer.write(b"HTTP/1.1 403 Refused\r\ncontent-type: text/plain\r\nconnection: close\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                path = f"{url.path or '/'}{'?' + url.query if url.query else ''}".encode("ascii")
                upstream[1].write(b"%s %s HTTP/1.1\r\n%sconnection: close\r\n\r\n" % (method, path, headers))
            await self._exchange((reader, writer), upstream, is_tunnel=is_tunnel)
        finally:
            upstream[1].close()

    async def _connect(self, host: str, port: int) -> Connected:
        """Return a connection to a checked address of a host. Raises GateError for one that is not allowed."""
        if self.left <= 0:
            raise GateError("the bytes that this call may receive are used up")
        refusal = self.explain_refusal(host, port)
        if refusal is not None:
            raise GateError(refusal)
        if self._allow_private:
            addresses: list[str | None] = [host]
        else:
            name = f"[{host}]" if ":" in host else host
            addresses = await resolve_public(httpx.URL(f"http://{name}:{port}"))
        for address in addresses:
            with suppress(OSError, TimeoutError):
                return await asyncio.wait_for(asyncio.open_connection(address, port, limit=HEAD), CONNECT)
        raise GateError(f"{host}:{port} cannot be reached")

    async def _exchange(self, client: Connected, upstream: Connected, *, is_tunnel: bool) -> None:
        """Carry bytes both ways until the server has closed its side, or the bytes are used up."""
        sending = asyncio.create_task(_copy(client[0], upstream[1]))
        try:
            if not is_tunnel:
                await self._copy_heads(upstream[0], client[1])
            while data := await upstream[0].read(CHUNK):
                self.left -= len(data)
                if self.left <= 0:
                    self.refused["the bytes that one call may receive are used up: the rest was not loaded"] = None
                    return
                client[1].write(data)
                await client[1].drain()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _copy_heads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy the head of the answer, and those before it (1xx); say that the connection serves no other request.

        Otherwise the browser would send its next request, to any host, to this server.
        """
        status = b"100"
        while status.startswith(b"1"):
            _, status, headers = _parse_head(head := await reader.readuntil(b"\r\n\r\n"))
            line = head.partition(b"\r\n")[0]
            self.left -= len(head)
            writer.write(
                b"%s\r\n%s%s\r\n" % (line, headers, b"" if status.startswith(b"1") else b"connection: close\r\n")
            )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


def _parse_head(head: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the first two words of a head, and its headers without those about the connection."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2:
        raise ValueError("not HTTP")
    headers = [line for line in lines if line.partition(b":")[0].strip().lower() not in _HOP]
    return words[0], words[1], b"".join(line + b"\r\n" for line in headers)
