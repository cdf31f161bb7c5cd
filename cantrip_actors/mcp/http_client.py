"""The HTTP client of a connection to an MCP server: it notices requests that the server never took.

A server may forget its sessions: it was restarted, or they expired. It may be out of reach, or refuse the tokens of a
login. In each case the request had no effect, so it may be sent again in a new session. The SDK's caller gets a
JSON-RPC error with one of the codes below, for exactly that request.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx2
import orjson
from mcp.client.auth import OAuthFlowError
from mcp_types import METHOD_NOT_FOUND

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
"""What servers say about a session that they do not know, with a status of 400."""

_LONGEST: Final = 2_000
"""Characters of an answer that are searched."""


def tells_of_no_session(text: str) -> bool:
    """Return whether an error message says that a session is unknown or over.

    >>> tells_of_no_session("Bad Request: No valid session ID provided"), tells_of_no_session("n: expected a number")
    (True, False)
    """
    return _OVER.search(text[:_LONGEST]) is not None


class SessionClient(httpx2.AsyncClient):
    """A client whose requests end with an error of their own if the server never took them.

    `is_connected` says whether the connection is established; before that, errors are raised.
    """

    def __init__(self, *, is_connected: Callable[[], bool], **settings: Any) -> None:
        super().__init__(**settings)
        self._is_connected = is_connected

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        """Send a request, as the base class does."""
        try:
            response = await super().send(request, **settings)
        except (httpx2.ConnectError, OAuthFlowError, ToolServerError) as problem:
            if not self._is_connected():
                raise
            if isinstance(problem, httpx2.ConnectError):
                return await _refuse(request, NEVER_TAKEN, f"it cannot be reached: {problem}")
            return await _refuse(request, LOGIN_REFUSED, str(problem))
        if SESSION in request.headers and response.status_code in (400, 404):
            text = (await response.aread())[:_LONGEST].decode(errors="replace")
            if _ends_session(response.status_code, text):
                return await _refuse(request, NEVER_TAKEN, "its session is over")
        return _mend(response) if settings.get("stream") else response


class _MendedStream(httpx2.AsyncByteStream):
    """The decoded body of an answer, without half characters, which the SDK does not read."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        text = HalfCharacterFilter()
        async for piece in self._response.aiter_bytes():
            if mended := text.feed(piece):
                yield mended
        yield text.finish()

    async def aclose(self) -> None:
        await self._response.aclose()


def _mend(response: httpx2.Response) -> httpx2.Response:
    """Return an answer whose body has no half characters."""
    changed = (b"content-encoding", b"content-length", b"transfer-encoding")
    return httpx2.Response(
        response.status_code,
        headers=[(name, value) for name, value in response.headers.raw if name.lower() not in changed],
        stream=_MendedStream(response),
        request=response.request,
        extensions=response.extensions,
    )


def _ends_session(status: int, text: str) -> bool:
    """Return whether a refusal means that the server does not know the session."""
    return tells_of_no_session(text) or (status == 404 and str(METHOD_NOT_FOUND) not in text)


async def _refuse(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    """Return the answer to a request that the server never took."""
    content = await request.aread()
    body = orjson.loads(content) if content else {}
    error = {"jsonrpc": "2.0", "id": body.get("id"), "error": {"code": code, "message": message}}
    return httpx2.Response(404, json=error, request=request)
