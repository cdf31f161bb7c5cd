"""The bytes of a provider's response, decompressed and bounded: the one way in which a body is read.

Requests ask for uncompressed answers. A provider or a proxy may compress them all the same: gzip and deflate are
decompressed here in small pieces, because one piece of 64 kB may hold 64 MB of zeros. Other encodings are refused.
The event loop runs between two pieces, so that a large answer holds up nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Final

import anyio.lowlevel
import httpx

from cantrip_actors.terms.errors import ProviderError

LARGEST_ANSWER: Final = 128 * 1024 * 1024
"""The most bytes of an answer, and of any compressed body: 300,000 tokens that are streamed one by one need less."""

LARGEST_FILE: Final = 1024 * 1024 * 1024
"""The most bytes of a file with the results of a batch."""

_PIECE: Final = 64 * 1024
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_PLAIN: Final = frozenset(("", "identity"))
_COMPRESSED: Final = frozenset(("gzip", "x-gzip", "deflate"))


class Body:
    """The body of a response, to be iterated in pieces, once.

    It stops itself, or is stopped, by cancelling the scope around the iteration: httpx's own generators can only be
    ended where they wait. `error` says then why: the body is too large, has an unknown encoding, or is broken.
    """

    def __init__(self, response: httpx.Response, provider: str, largest: int, scope: anyio.CancelScope) -> None:
        self.error: ProviderError | None = None
        self._response = response
        self._provider = provider
        self._scope = scope
        self._encoding = response.headers.get("content-encoding", "").strip().lower()
        self._largest = min(largest, LARGEST_ANSWER) if self._encoding in _COMPRESSED else largest
        self._is_stopped = False

    def stop(self) -> None:
        """Read no further."""
        self._is_stopped = True
        self._scope.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces."""
        if self._response.is_stream_consumed:  # a transport of the caller's client has read and decompressed it
            yield self._response.content
            return
        if self._encoding not in _PLAIN | _COMPRESSED:
            problem = f"sent its answer with the encoding {self._encoding[:40]!r}, which was not asked for"
            self._fail(f"{problem}: expected an uncompressed answer, gzip or deflate", retryable=False)
            return
        size, member = 0, zlib.decompressobj(_GZIP_OR_ZLIB)
        async for chunk in self._response.aiter_raw():
            rest, piece = chunk, b""
            while not self._is_stopped and (rest or len(piece) == _PIECE):  # zlib may hold more than a full piece
                piece, rest = rest, b""
                if self._encoding in _COMPRESSED:
                    try:
                        piece = member.decompress(piece, _PIECE)
                    except zlib.error as error:
                        self._fail(f"sent a compressed answer that is broken: {error}", retryable=None)
                        break
                    rest = member.unconsumed_tail
                    if member.eof:  # another member of the same body may follow
                        rest, member = member.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
                size += len(piece)
                if size > self._largest:
                    self._fail(f"sent an answer of more than {self._largest:,} bytes", retryable=False)
                elif piece:
                    yield piece
                    if rest:
                        await anyio.lowlevel.cancel_shielded_checkpoint()

    def _fail(self, problem: str, *, retryable: bool | None) -> None:
        self.error = ProviderError(f"{self._provider} {problem}", retryable=retryable)
        self.stop()


async def read_body(response: httpx.Response, provider: str, largest: int) -> bytes:
    """Return the whole body. Raises ProviderError if it is larger than `largest`."""
    with anyio.CancelScope() as scope:
        body = Body(response, provider, largest, scope)
        pieces = [piece async for piece in body]
    if body.error is not None:
        raise body.error
    return b"".join(pieces)
