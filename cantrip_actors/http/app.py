"""The ASGI application: every route of the table behind the same steps, in the same order.

Host and origin, token, scope, rate, key, query, body, and then the handler. It is plain ASGI: hypercorn runs it on both
backends, and any other server can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, nullcontext
from functools import cache, partial
from typing import Any, Final
from urllib.parse import unquote

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.status import HTTP_405_METHOD_NOT_ALLOWED
from starlette.types import ASGIApp

from cantrip_actors.http.anthropic import ANTHROPIC_ROUTES, as_anthropic_error
from cantrip_actors.http.approvals import approval_routes
from cantrip_actors.http.bodies import DOT_SEGMENTS, read_body, read_json, validate
from cantrip_actors.http.calls import BASE, HttpCall, JsonAnswer
from cantrip_actors.http.chats import CHAT_ROUTES
from cantrip_actors.http.endpoint import Endpoint, keep_problem
from cantrip_actors.http.extension import ServiceExtension, list_scopes
from cantrip_actors.http.guard import RequestGuard
from cantrip_actors.http.live_page import page_routes
from cantrip_actors.http.mcp import mcp_routes
from cantrip_actors.http.openai import OPENAI_ROUTES, as_openai_error
from cantrip_actors.http.openapi import document
from cantrip_actors.http.prefix import add_prefix, strip_prefix
from cantrip_actors.http.problems import DescribeError, Problem, describe_no_error
from cantrip_actors.http.protected_resource import metadata_routes
from cantrip_actors.http.service import Service
from cantrip_actors.http.sessions import authenticate, check_scope, session_shape, start_session
from cantrip_actors.http.table import OPERATIONS, ROUTES, ApiRoute
from cantrip_actors.user_code.threads import run_for_client

_ALL: Final = (*ROUTES, *OPENAI_ROUTES, *ANTHROPIC_ROUTES, *CHAT_ROUTES, *OPERATIONS)

_CONVERTERS: Final = {"problem": keep_problem, "openai": as_openai_error, "anthropic": as_anthropic_error}
"""The function that converts a problem to each style of errors."""


def make_app(
    service: Service, routes: Iterable[ApiRoute] = _ALL, *, extensions: Iterable[ServiceExtension] = ()
) -> ASGIApp:
    """Return the application of a service with these routes, and with those of extensions.

    Its lifespan opens the service, unless it is open. The runtime has to be open around it, and also lists the requests
    of the extensions from now on. Raises ValueError for a route with an unknown scope.
    """
    extensions = tuple(extensions)
    service.scopes = list_scopes(extensions)
    for extension in extensions:
        if extension.requests is not None:
            service.runtime.add_request_source(extension.requests)
    table: list[tuple[ApiRoute, DescribeError]] = [(row, describe_no_error) for row in routes]
    for extension in extensions:
        table += [(row, extension.describe_error) for row in extension.whole_routes]

    @cache
    def describe() -> dict[str, Any]:
        return document(row for row, _ in table)

    async def openapi(request: Request) -> Response:
        described = await run_for_client(describe)  # the first time it takes a tenth of a second
        servers = [{"url": add_prefix(request, "") or "/"}]
        return Response(orjson.dumps({**described, "servers": servers}), media_type="application/json")

    async def session(request: Request) -> Response:
        if request.headers.get("authorization") is None:
            raise Problem(401, "token", "expected authorization: Bearer TOKEN", headers={"www-authenticate": "Bearer"})
        await authenticate(service, request)
        return start_session(request)

    async def whoami(request: Request) -> Response:
        return JSONResponse(session_shape(await authenticate(service, request), service.scopes))

    plain = [Route(f"{BASE}/openapi.json", Endpoint(service, f"{BASE}/openapi.json", openapi), methods=["GET"])]
    if service.page:
        plain += [
            Route("/session", Endpoint(service, "/session", session), methods=["POST"]),
            Route("/session", Endpoint(service, "/session", whoami), methods=["GET"]),
            *page_routes(),
        ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with nullcontext() if service.is_open else service.open():
            yield

    rows = [
        Route(
            row.path,
            Endpoint(service, row.path, partial(_answer, service, row), _CONVERTERS[row.style], describe_error),
            methods=[row.method],
        )
        for row, describe_error in table
    ]
    everything = [*rows, *plain, *metadata_routes(service), *mcp_routes(service), *approval_routes(service)]
    answer_not_found = partial(_answer_not_found, everything)
    handlers: dict[Any, Any] = {404: answer_not_found, 405: answer_not_found}
    return RequestGuard(Starlette(routes=everything, lifespan=lifespan, exception_handlers=handlers), service)


async def _answer_not_found(routes: Iterable[BaseRoute], request: Request, error: Any) -> Response:
    """Return the answer to a path or a method that does not exist; `Allow` names the methods of all its routes."""
    problem = Problem(404, "path", "no such path")
    if error.status_code == HTTP_405_METHOD_NOT_ALLOWED:
        here = [route for route in routes if isinstance(route, Route) and route.matches(request.scope)[0] != Match.NONE]
        methods = sorted({method for route in here for method in route.methods or ()})
        allowed = ", ".join(methods)
        problem = Problem(405, "method", f"expected one of the methods {allowed}", headers={"allow": allowed})
    answer, path = problem.response(), strip_prefix(request)
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return as_anthropic_error(answer)
    return as_openai_error(answer) if path.startswith("/v1/") else answer


async def _answer(service: Service, row: ApiRoute, request: Request) -> Response:
    token = await authenticate(service, request)
    request.state.token = token
    check_scope(token, row.scope)
    service.limiter.count_request(token)
    runtime = service.runtime_of(token)
    path = {name: unquote(value) for name, value in request.path_params.items()}  # the guard left slashes encoded
    call = HttpCall(service, token, runtime, request, path)
    parameters = request.query_params
    twice = next((name for name in row.query.model_fields if len(parameters.getlist(name)) > 1), None)
    if twice is not None:
        raise Problem(422, "invalid", f"{twice}: this parameter is given twice")
    call.query = validate(row.query, dict(parameters), strict=False)
    limits = service.limiter.limits.of(token)
    body = await read_body(request, limits.body, limits.patience)
    if row.method == "POST":
        call.key = _read_key(request)
    if row.body is not None:
        value = read_json(request, body) if body or row.needs_body else {}
        call.body = validate(row.body, value)
    answer = await row.work(call)
    return answer.response() if isinstance(answer, JsonAnswer) else answer


def _read_key(request: Request) -> str | None:
    """Return the Idempotency-Key. Raises Problem 400 for anything but 1 to 255 visible characters."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    text = key.strip()
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):  # the draft has a quoted string
        text = text[1:-1]
    is_visible = all("!" <= sign <= "~" for sign in text)
    if not (0 < len(text) <= 255 and is_visible) or text in DOT_SEGMENTS:  # the draft's limit; keys are in paths
        expected = "Idempotency-Key: expected 1 to 255 visible ASCII characters, other than . and .."
        raise Problem(400, "idempotency-key", expected)
    return text
