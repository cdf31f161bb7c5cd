"""The send buffer of an HTTP/2 stream, bounded: hypercorn's own lets a writer continue while the client reads nothing.

In hypercorn 0.18 `StreamBuffer.pop` wakes the writer after every pop of few bytes, also after one of no bytes because
the client's window is closed. So a client that opens a stream and reads nothing made the service keep all of it.
"""

from __future__ import annotations

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


def bound_buffers() -> None:
    """Have hypercorn use bounded buffers from now on."""
    hypercorn_h2.StreamBuffer = _BoundedBuffer  # type: ignore[misc]  # a class is replaced
