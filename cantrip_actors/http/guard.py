"""The first check of every request: its `Host`, its `Origin`, and CORS for allowed sites.

A page of another site that has its own name resolve to this machine (DNS rebinding) names its own host: 421. A page of
another site whose origin is not allowed gets 403, whatever it asks for. A request that is refused before its body was
read has its body read here, so that the client can use its connection for the next request.

A name may have a slash in it, which clients send as `%2F`. Servers decode the path before an application sees it, and
then it has a segment too many. So this file decodes the path again: `%2F` and `%25` stay as they are, and routes decode
them in the values of their parameters.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantrip_actors.http.problems import Problem
from cantrip_actors.http.service import Service

ALLOWED: Final = {"access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE", "access-control-max-age": "600"}
USUAL: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, MCP-Protocol-Version, Mcp-Session-Id, Mcp-Method, "
    "Mcp-Name"
)
"""The headers that a page of an allowed site may send; it may send any others that it asks for."""
_NAMES: Final = re.compile(r"[\w!#$%&'*+.^`|~, -]{0,4000}", re.ASCII)
EXPOSED: Final = "Location, Retry-After, Idempotency-Replayed, Mcp-Session-Id, WWW-Authenticate, X-Should-Retry"

REST: Final = 2.0
"""Seconds in which a client has to send the rest of the body of a refused request."""


class RequestGuard:
    """Checks `Host` and `Origin` before the application sees a request, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on an allowed request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no route takes websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = {**scope, "path": _read_path(scope)}
        headers = Headers(scope=scope)
        body = _Body(receive, headers)
        origin = headers.get("origin")
        allowed = origin if origin in self._service.origins else None
        answer = self._refusal(headers, origin, allowed)
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if answer is None and is_preflight and allowed is not None:
            # clients send headers of their own, for example x-stainless-* and traceparent
            wanted = headers.get("access-control-request-headers", "")
            names = f"{USUAL}, {wanted}" if wanted and _NAMES.fullmatch(wanted) else USUAL
            answer = Response(status_code=204, headers={**ALLOWED, "access-control-allow-headers": names})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
                if allowed is not None:
                    headers["access-control-allow-origin"] = allowed
                    headers["access-control-expose-headers"] = EXPOSED
                    headers.add_vary_header("origin")
                if not await body.read_rest(self._service.limiter.limits.body) and scope["http_version"] != "2":
                    headers["connection"] = "close"
            elif not body.is_read and scope["http_version"] != "2" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await body.discard_rest()  # a client that still sends loses the answer if the connection is closed
                message = {"type": "http.response.body"}
            await send(message)

        await (answer or self._app)(scope, body.receive, send_with_headers)

    def _refusal(self, headers: Headers, origin: str | None, allowed: str | None) -> Response | None:
        host = headers.get("host", "")
        if not self._service.is_open:
            detail = "the service is not open: keep `async with service.open()` around the application's lifespan"
            return Problem(503, "closed", detail).response()
        if not self._is_ours(host):
            detail = "this service has another name than this Host: add it by `serve --host NAME` or `Service(hosts=…)`"
            return Problem(421, "host", detail).response()
        if origin is not None and allowed is None and not is_same_origin(origin, host):
            return Problem(
                403, "origin", "pages of this origin may not use the service: --origin allows one"
            ).response()
        return None

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        hosts = self._service.hosts
        if name in hosts:
            return True
        return bool(hosts & {"0.0.0.0", "::"}) and _is_address(name)  # noqa: S104  # bound to all addresses of the machine


class _Body:
    """Records how much of a request's body was read.

    hypercorn closes the connection if the answer comes before the end of the request's body. The client gets no
    notice, and its next request on the connection fails.
    """

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self._receive = receive
        self._size = headers.get("content-length", "")
        self.is_read = self._size in ("", "0") and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """Return the next message of the client."""
        message = await self._receive()
        self.is_read = self.is_read or not message.get("more_body", False)
        return message

    async def read_rest(self, most: int) -> bool:
        """Read the rest of the body within a number of bytes and `REST` seconds; return whether that was all."""
        if not self.is_read and not (self._size.isdecimal() and int(self._size[:18]) > most):
            with anyio.move_on_after(REST):
                while not self.is_read and most > 0:
                    most -= len((await self.receive()).get("body", b""))
        return self.is_read

    async def discard_rest(self) -> None:
        """Read the rest of the body, for `REST` seconds."""
        with anyio.move_on_after(REST):
            while not self.is_read:
                await self.receive()


def _read_path(scope: Scope) -> str:
    """Return the decoded path of a request, in which the slashes and percent signs of values stay encoded: those behind
    the prefix of the application, which ASGI has decoded.
    """
    path, prefix, raw = str(scope["path"]), str(scope.get("root_path", "")), scope.get("raw_path")
    if raw is None:  # it is optional in ASGI
        rest = path.removeprefix(prefix)
        return path.removesuffix(rest) + rest.replace("%", "%25")
    text = bytes(raw).decode(errors="replace")
    ends = (match.start() for match in _SEGMENT.finditer(text))
    end = next((end for end in ends if unquote(text[:end]) == prefix), None)
    rest = text[end:].replace("%25", "%2525").replace("%2F", "%252F").replace("%2f", "%252F")
    return unquote(rest) if end is None else prefix + unquote(rest)


_SEGMENT: Final = re.compile("/|$")
"""Where a segment of a path begins, and the end of the last one."""
_HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]*+)\]|(?P<name>[^:]*+))(?::[0-9]*+)?")


def host_name(host: str) -> str:
    """Return the name in a `Host` header, without its port; "" if what follows the name is no port."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match["address"] or match["name"]).lower()


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an `Origin` is that of the service itself, reached by this `Host`."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
