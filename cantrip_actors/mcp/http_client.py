"""The HTTP client of a connection to an MCP server: it notices requests that the server never took.

A server may forget its sessions: it was restarted, or they expired. It may be out of reach, or refuse the tokens of a
login. In each case the request had no effect, so it may be sent again in a new session. The SDK's caller gets a
JSON-RPC error with one of the codes below, for exactly that request.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import httpx2
import orjson
from mcp.client.auth import OAuthFlowError
from mcp_types import METHOD_NOT_FOUND

from cantrip_actors.mcp.pipe import LONGEST
from cantrip_actors.terms.half_characters import HalfCharacterFilter
from cantrip_actors.terms.tool_server import ToolServerError

SESSION: Final = "mcp-session-id"
"""The header with the server's id of a session."""

NEVER_TAKEN: Final = -32_098
"""The code of the error of a request that the server never took; a new session may take it."""

LOGIN_REFUSED: Final = -32_097
"""The code of the error of a request whose login was refused; a person may have to log in first."""

_OVER: Final = re.compile(
    r"\bsession\b.*\b(not found|expired|terminated|invalid|unknown|missing|required)\b"
    r"|\b(no valid|invalid|missing|unknown|expired)\b.*\bsession\b|not initialized",
    re.IGNORECASE | re.DOTALL,
)
"""The words of servers, with status 400, about a session that they do not know."""

_SEARCHED: Final = 2_000
"""Characters of an answer that are searched."""


def tells_of_no_session(text: str) -> bool:
    """Return whether an error message says that a session is unknown or over.

    >>> tells_of_no_session("Bad Request: No valid session ID provided"), tells_of_no_session("n: expected a number")
    (True, False)
    """
    return _OVER.search(text[:_SEARCHED]) is not None


class SessionClient(httpx2.AsyncClient):
    """A client whose requests end with an error of their own if the server never took them.

    `is_connected` says whether the connection is established; before that, errors are raised.
    """

    def __init__(self, *, is_connected: Callable[[], bool], **settings: Any) -> None:
        hooks = settings.pop("event_hooks", {})
        super().__init__(**settings, event_hooks={**hooks, "response": [*hooks.get("response", ()), _bound]})
        self._is_connected = is_connected

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        """Send a request, as the base class does."""
        try:
            response = await super().send(request, **settings)
        except (httpx2.ConnectError, OAuthFlowError, ToolServerError, AnswerTooLong) as problem:
            if isinstance(problem, AnswerTooLong) and not self._is_connected():
                raise ToolServerError(str(problem)) from problem
            if not self._is_connected():
                raise
            if isinstance(problem, httpx2.ConnectError):
                return await _refuse(request, NEVER_TAKEN, f"it cannot be reached: {problem}")
            return await _refuse(request, LOGIN_REFUSED, str(problem))
        if SESSION in request.headers and response.status_code in (400, 404):
            try:
                text = (await response.aread())[:_SEARCHED].decode(errors="replace")
            except AnswerTooLong:
                text = ""
            is_unknown_path = response.status_code == 404 and str(METHOD_NOT_FOUND) not in text
            if is_unknown_path or tells_of_no_session(text):  # the server does not know the session
                return await _refuse(request, NEVER_TAKEN, "its session is over")
        return response


class AnswerTooLong(httpx2.StreamError):
    """An answer has more bytes than one message of a server may have, as it was sent or decompressed."""


class _BoundedStream(httpx2.AsyncByteStream):
    """The decompressed body of an answer, bounded, and without half characters, which the SDK does not read.

    A stream of events has no end; the SDK bounds each of its events.
    """

    def __init__(self, response: httpx2.Response) -> None:
        encodings = [(name, value) for name, value in response.headers.raw if name.lower() == b"content-encoding"]
        stream = cast("httpx2.AsyncByteStream", response.stream)
        self._encoded = httpx2.Response(200, headers=encodings, stream=stream, request=response.request)
        self._is_endless = response.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        text, size = HalfCharacterFilter(), 0
        async with contextlib.aclosing(self._encoded.aiter_bytes()) as pieces:
            async for piece in pieces:  # at most 1 MiB, also of one that was compressed
                size += len(piece)
                if size > LONGEST and not self._is_endless:
                    raise AnswerTooLong(f"its answer has more than {LONGEST >> 20} MiB")
                if mended := text.feed(piece):
                    yield mended
        yield text.finish()

    async def aclose(self) -> None:
        await self._encoded.aclose()


async def _bound(response: httpx2.Response) -> None:
    """Bound the body of an answer, before anyone reads it."""
    response.stream = _BoundedStream(response)
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        response.headers.pop(name, None)


async def _refuse(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    """Return the answer to a request that the server never took."""
    content = await request.aread()
    body = orjson.loads(content) if content else {}
    error = {"jsonrpc": "2.0", "id": body.get("id"), "error": {"code": code, "message": message}}
    return httpx2.Response(404, json=error, request=request)
