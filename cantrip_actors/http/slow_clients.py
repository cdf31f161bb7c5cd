"""Protection against clients that read nothing, which hypercorn 0.18 lacks.

**The buffer of an HTTP/2 stream is bounded.** `StreamBuffer.pop` wakes the writer after every pop of few bytes, also
after one of no bytes because the client's window is closed. So a client that opens a stream and reads nothing made the
service keep all of it.

**A shutdown cuts connections off.** hypercorn cancels them after its `graceful_timeout`. If a client does not read what
was sent, its cancelled connection still waits until the kernel gives up: on asyncio for its buffer to be empty, on trio
in a shielded send.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import anyio
import hypercorn.protocol.h2 as hypercorn_h2


class _BoundedBuffer(hypercorn_h2.StreamBuffer):
    """Wakes the writer when little is left in the buffer, and not when little was taken out of it."""

    async def pop(self, max_length: int) -> bytes:
        """Take up to `max_length` bytes out."""
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < hypercorn_h2.BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class _CutOff:
    """A connection that ends, whatever its client reads, `graceful_timeout` seconds after the shutdown began."""

    config: Any
    context: Any

    async def run(self) -> None:
        """Serve the connection."""
        scope = anyio.CancelScope(shield=True)  # hypercorn cancels everything in this block at about the same time
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cut_off, scope)
            try:
                with suppress(TimeoutError):  # of the kernel, which gives a client up that takes no bytes
                    await super().run()  # type: ignore[misc]  # of hypercorn's class
            finally:
                scope.cancel()

    async def _cut_off(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self.context.terminated.wait()
            await anyio.sleep(self.config.graceful_timeout)
            self._drop()

    def _drop(self) -> None:
        """Close the connection at once, without what its client has not read."""
        raise NotImplementedError


def protect_asyncio() -> None:
    """Have hypercorn on asyncio bound its buffers and cut connections off, from now on."""
    import hypercorn.asyncio.run as runner
    from hypercorn.asyncio.tcp_server import TCPServer

    class Server(_CutOff, TCPServer):
        def _drop(self) -> None:
            self.writer.transport.abort()

    hypercorn_h2.StreamBuffer = _BoundedBuffer  # type: ignore[misc]  # a class is replaced
    runner.TCPServer = Server  # type: ignore[attr-defined]  # likewise


def protect_trio() -> None:
    """Have hypercorn on trio bound its buffers and cut connections off, from now on."""
    import hypercorn.trio.run as runner
    from hypercorn.trio.tcp_server import TCPServer

    class Server(_CutOff, TCPServer):
        def _drop(self) -> None:
            with suppress(OSError):  # it has ended
                self.stream.socket.shutdown(socket.SHUT_RDWR)

    hypercorn_h2.StreamBuffer = _BoundedBuffer  # type: ignore[misc]  # a class is replaced
    runner.TCPServer = Server  # type: ignore[attr-defined]  # likewise
