"""`/mcp`: the service's cantrips as MCP tools, for the same tokens and tenants as all other routes.

The SDK is imported at the first request, in a thread: it takes about a second, and most services never need it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantrip_actors.http.bodies import read_body
from cantrip_actors.http.endpoint import Endpoint
from cantrip_actors.http.prefix import service_url
from cantrip_actors.http.problems import Problem
from cantrip_actors.http.protected_resource import MCP
from cantrip_actors.http.service import Service
from cantrip_actors.http.sessions import authenticate
from cantrip_actors.http.token import Token
from cantrip_actors.terms.half_characters import replace_half_characters
from cantrip_actors.user_code.threads import run_for_client


def mcp_routes(service: Service) -> list[Route]:
    """Return the route, if the extra `mcp` is installed."""
    if find_spec("mcp") is None:
        return []
    return [Route(MCP, Endpoint(service, MCP, _Door(service).answer), methods=["GET", "POST", "DELETE"])]


class _Door:
    """Authenticates a request and passes it to the SDK."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = anyio.Lock()
        self._manager: Any = None

    async def answer(self, request: Request) -> ASGIApp:
        """Return the application that answers a request: the SDK's. Raises Problem, InvalidCantrip."""
        service = self._service
        token = await authenticate(service, request)
        request.state.token = token
        service.limiter.count_request(token)
        if service.is_ending:
            raise Problem(503, "closing", "the service shuts down", headers={"retry-after": "1"})
        manager = await self._start_manager()
        _mark(service, request, token)
        application: ASGIApp = manager.asgi_app
        if request.method == "GET":
            return _count_stream(application, service, token)
        if request.method != "POST":
            return application
        limits = service.limiter.limits.of(token)
        return _mend(application, await read_body(request, limits.body, limits.patience))

    async def _start_manager(self) -> Any:
        """Return the manager of client sessions; it starts with the first request and ends with the service."""
        async with self._lock:
            if self._manager is None:
                await run_for_client(import_module, "cantrip_actors.mcp_server")
                self._manager = await self._service.start_door(self._run)
        return self._manager

    async def _run(self, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from cantrip_actors.mcp_server import McpCaller, make_server

        service = self._service

        def find(context: Any) -> McpCaller:
            caller: McpCaller = context.request.state.mcp_caller
            return caller

        server = make_server(service.cantrips, find, service.runtime)
        # the service has checked host and origin
        manager = StreamableHTTPSessionManager(server, max_request_body_size=sys.maxsize)  # the body is read above
        async with manager.run():
            task_status.started(manager)
            await anyio.sleep_forever()


def _count_stream(application: ASGIApp, service: Service, token: Token) -> ASGIApp:
    """Return an application that counts as an open stream of the token until it has answered. Raises Problem 429."""
    stack = ExitStack()
    stack.enter_context(service.limiter.stream(token))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        with stack:
            await application(scope, receive, send)

    return answer


def _mend(application: ASGIApp, body: bytes) -> ASGIApp:
    """Return an application for a request with this body, without half characters: the SDK refuses them."""
    pieces: list[Message] = [{"type": "http.request", "body": replace_half_characters(body), "more_body": False}]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_mended() -> Message:
            return pieces.pop() if pieces else await receive()

        await application(scope, receive_mended, send)

    return answer


def _mark(service: Service, request: Request, token: Token) -> None:
    """Add the client to a request: for our handlers, and for the SDK, whose sessions belong to one token each."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    from cantrip_actors.mcp_server import CallerRefused, McpCaller

    @contextmanager
    def refuse() -> Iterator[None]:
        try:
            yield
        except Problem as problem:
            raise CallerRefused(problem.detail) from problem

    @asynccontextmanager
    async def reserve_start() -> AsyncIterator[Callable[[str], None]]:
        with refuse():
            async with service.limiter.reserve_start(token) as count:
                yield count

    request.state.mcp_caller = McpCaller(
        service.runtime_of(token),
        {name: cantrip for name, cantrip in service.cantrips.items() if token.may_cast(name)},
        by=token.sender,
        door=token.sender,
        allows=token.allows,
        starting=reserve_start,
        page=f"{service_url(request)}/" if service.page else None,
    )
    user = AccessToken(
        token="", client_id=token.name, scopes=[], subject=token.digest or f"{token.tenant}:{token.name}"
    )
    request.scope["user"] = AuthenticatedUser(user)
