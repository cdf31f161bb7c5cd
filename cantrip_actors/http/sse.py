"""Server-sent events: their wire form, and the response.

Only durable events have an id, so `Last-Event-ID` names a record on disk (WHATWG: an event without an id does not
change it).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cantrip_actors.http.problems import Problem
from cantrip_actors.records.codec import dump_json

RETRY: Final = b"retry: 2000\n\n"
COMMENT: Final = b": still here\n\n"
QUEUED: Final = b": queued: the entity works on another intent\n\n"
"""The comment in a stream whose intent waits for the end of another one."""
QUIET: Final = 15.0
"""Seconds after which a comment keeps a quiet connection alive."""
CHUNK: Final = 1 << 15
"""Bytes that are sent at once: a client that reads slowly, and not too slowly, gets them within its patience."""

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


def encode_event(kind: str, data: dict[str, Any], id: str | None = None) -> bytes:
    """Return one event. JSON on one line has no newline in it, so one `data:` line is enough."""
    head = f"event: {kind}\n" if id is None else f"id: {id}\nevent: {kind}\n"
    return b"".join((head.encode(), b"data: ", dump_json(data, mark=False), b"\n\n"))


def end_quietly(_problem: Problem) -> bytes:
    """Return the last part of a stream whose reader connects again after its end, and gets the problem then."""
    return b""


async def send_part(send: Send, part: bytes, patience: float) -> None:
    """Send a part of a stream. Raises TimeoutError for a client that reads nothing for `patience` seconds.

    This sees clients of HTTP/2; for HTTP/1.1 the kernel closes the connection (0044).
    """
    for at in range(0, len(part), CHUNK):
        with anyio.fail_after(patience):
            await send({"type": "http.response.body", "body": part[at : at + CHUNK], "more_body": True})


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStreamResponse(Response):
    """A response of events, or of other parts, until they end or the client hangs up.

    A reader never cancels anything but itself.

    It also ends if the client reads nothing for `patience` seconds. `on_close` is called once when the response ends
    for any reason. `beside` runs meanwhile, and is cancelled then. `fail` returns the last part of a stream that ends
    early because of a problem; without it the connection breaks, so that no client takes the stream for whole.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        patience: float,
        on_close: Callable[[], object] = lambda: None,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
        headers: Mapping[str, str] = HEADERS,
        fail: Callable[[Problem], bytes] | None = None,
    ) -> None:
        super().__init__(status_code=200, headers=headers)
        del self.headers["content-length"]
        self.fail = fail
        self._events = events
        self._patience = patience
        self._on_close = on_close
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the answer to HEAD has none."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                if self._beside is not None:
                    tasks.start_soon(self._beside)
                await self._send(send, is_head=scope["method"] == "HEAD")
                tasks.cancel_scope.cancel()
        finally:
            self._on_close()
            with anyio.CancelScope(shield=True):
                await self._events.aclose()

    async def _send(self, send: Send, *, is_head: bool) -> None:
        # closing a generator runs its `finally` only if it has begun, also for a client that hangs up at once
        part = await anext(self._events, None)
        with suppress(OSError):  # the client has gone, or has not read for too long
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while part is not None and not is_head:
                await send_part(send, part, self._patience)
                part = await anext(self._events, None)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await until_disconnect(receive)
        scope.cancel()
