"""An MCP server behind an authorization server, on one socket: for tests of logins."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cantrip_actors.http import ServiceSettings
from cantrip_actors.http.server import listen, run_hypercorn
from tests.mcp.tools import tools


@dataclass
class Guarded:
    """What the servers were asked; `lasts` is how many seconds a token lasts, `good` are the tokens that count."""

    url: str = ""
    lasts: int = 3600
    good: set[str] = field(default_factory=set)
    grants: list[str] = field(default_factory=list)
    registered: int = 0
    refuses: bool = False


@asynccontextmanager
async def guarded(**options: Any) -> AsyncIterator[Guarded]:
    """Serve the tools of `tests.mcp.tools` to whoever has a token."""
    at = Guarded(**options)
    base = ""

    async def resource(_: Request) -> Response:
        return JSONResponse({"resource": at.url, "authorization_servers": [base]})

    async def metadata(_: Request) -> Response:
        return JSONResponse(
            {
                "issuer": base,
                "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/token",
                "registration_endpoint": f"{base}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            }
        )

    async def register(request: Request) -> Response:
        at.registered += 1
        return JSONResponse({**await request.json(), "client_id": f"client-{at.registered}"}, 201)

    async def authorize(request: Request) -> Response:
        given = request.query_params
        answer = {"error": "access_denied"} if at.refuses else {"code": "the-code"}
        return RedirectResponse(f"{given['redirect_uri']}?{urlencode({**answer, 'state': given['state']})}")

    async def token(request: Request) -> Response:
        given = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        at.grants.append(given["grant_type"])
        if at.refuses:
            return JSONResponse({"error": "invalid_grant"}, 400)
        made = f"token-{len(at.grants)}"
        at.good = {made}
        return JSONResponse(
            {"access_token": made, "token_type": "Bearer", "expires_in": at.lasts, "refresh_token": f"more-{made}"}
        )

    mcp = tools().streamable_http_app()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        said = dict(scope["headers"]).get(b"authorization", b"").decode()
        if said.removeprefix("Bearer ") in at.good:
            await mcp({**scope, "path": "/mcp", "root_path": ""}, receive, send)
        else:
            await Request(scope, receive).body()  # a connection with an unread body is closed after the answer
            where = f'Bearer resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
            await Response(status_code=401, headers={"www-authenticate": where})(scope, receive, send)

    app = Starlette(
        routes=[
            Route("/.well-known/oauth-protected-resource/mcp", resource),
            Route("/.well-known/oauth-authorization-server", metadata),
            Route("/register", register, methods=["POST"]),
            Route("/authorize", authorize),
            Route("/token", token, methods=["POST"]),
        ],
        lifespan=lambda _: mcp.router.lifespan_context(mcp),
    )

    async def route(scope: Any, receive: Any, send: Any) -> None:  # a mount would redirect, and leave the body unread
        await (guard if scope.get("path") == "/mcp" else app)(scope, receive, send)

    stop, listening = anyio.Event(), anyio.Event()
    listener, base = listen(ServiceSettings("memory:", bind="127.0.0.1:0"))
    at.url = f"{base}/mcp"

    async def started() -> None:
        listening.set()
        await stop.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_hypercorn, route, listener, started)
        await listening.wait()
        try:
            yield at
        finally:
            stop.set()
