"""`/mcp`: the service's cantrips as MCP tools, for the same tokens and tenants as the rest of the service.

The SDK is imported at the first request, in a thread: it takes about a second, and most services never need it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from cantrip_actors import CantripError
from cantrip_actors.http.problems import Problem, problem_of
from cantrip_actors.http.service import Service
from cantrip_actors.http.sessions import authenticate
from cantrip_actors.http.tokens import Token
from cantrip_actors.redact.logs import get_logger

PATH: Final = "/mcp"

_access = get_logger("cantrip_actors.http.access")


def mcp_routes(service: Service) -> list[Route]:
    """Return the route, if the extra `mcp` is installed."""
    if find_spec("mcp") is None:
        return []
    return [Route(PATH, _Endpoint(service), methods=["GET", "POST", "DELETE"])]


class _Endpoint:
    """Authenticates a request and passes it to the SDK."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = anyio.Lock()
        self._manager: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        service, request = self._service, Request(scope, receive)
        began, status, name = time.monotonic(), 0, ""

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            token = authenticate(service, request)
            name = token.name
            service.limiter.count_request(token)
            if service.is_ending:
                raise Problem(503, "closing", "the service shuts down", headers={"retry-after": "1"})
            manager = await self._start_manager()
            _mark(service, scope, token)
            await manager.asgi_app(scope, receive, send_noting)
        except Problem as problem:
            await problem.response(service.runtime.redact)(scope, receive, send_noting)
        except CantripError as error:  # two tools of one name
            await problem_of(error).response(service.runtime.redact)(scope, receive, send_noting)
        finally:
            if service.access_log:
                ms = round((time.monotonic() - began) * 1e3, 1)
                _access.info("request", method=request.method, route=PATH, status=status, ms=ms, token=name)

    async def _start_manager(self) -> Any:
        """Return the manager of client sessions; it starts with the first request and ends with the service."""
        async with self._lock:
            if self._manager is None:
                await to_thread.run_sync(import_module, "cantrip_actors.mcp_server")
                self._manager = await self._service.start_door(self._run)
        return self._manager

    async def _run(self, *, task_status: anyio.abc.TaskStatus[Any]) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from cantrip_actors.mcp_server import Caller, make_server

        service = self._service

        def find(context: Any) -> Caller:
            caller: Caller = context.request.state.mcp_caller
            return caller

        server = make_server(service.cantrips, find, service.runtime)
        # the service has checked host and origin
        manager = StreamableHTTPSessionManager(server, max_request_body_size=service.limiter.limits.body)
        async with manager.run():
            task_status.started(manager)
            await anyio.sleep_forever()


def _mark(service: Service, scope: Scope, token: Token) -> None:
    """Add the client to a request: for our handlers, and for the SDK, whose sessions belong to one token each."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    from cantrip_actors.mcp_server import Caller, Refused

    async def check_cost() -> None:
        try:
            await service.limiter.check_cost(token)
            await service.limiter.forget_ended(token)
        except Problem as problem:
            raise Refused(problem.detail) from problem

    @contextmanager
    def reserve_start() -> Iterator[Callable[[str], None]]:
        try:
            with service.limiter.reserve_start(token) as count:
                yield count
        except Problem as problem:
            raise Refused(problem.detail) from problem

    caller = Caller(
        service.runtime if token.tenant is None else service.runtime.tenant(token.tenant),
        {name: cantrip for name, cantrip in service.cantrips.items() if token.may_cast(name)},
        by=token.sender,
        door=token.sender,
        allows=token.allows,
        check_cost=check_cost,
        starting=reserve_start,
    )
    scope["state"] = {**scope.get("state", {}), "mcp_caller": caller}
    scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=token.name, scopes=[], subject=token.digest))
