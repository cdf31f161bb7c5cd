"""The ASGI application: every route of the table behind the same steps, in the same order.

Host and origin, token, scope, rate, key, query, body, and then the handler. It is plain ASGI: hypercorn runs it on both
backends, and any other server can.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantrip_actors import CantripError
from cantrip_actors.http.bodies import Strict, read_body, read_json, validate
from cantrip_actors.http.calls import Answer, Call
from cantrip_actors.http.guard import Guard
from cantrip_actors.http.live_page import page_routes
from cantrip_actors.http.mcp import mcp_routes
from cantrip_actors.http.openai import OPENAI_ROUTES, as_openai_error
from cantrip_actors.http.openapi import document
from cantrip_actors.http.problems import Problem, problem_of, report
from cantrip_actors.http.service import Service
from cantrip_actors.http.sessions import authenticate, check_scope, session_shape, start_session
from cantrip_actors.http.table import BASE, OPERATIONS, ROUTES, Row
from cantrip_actors.redact.logs import get_logger

_log = get_logger("cantrip_actors.http")
_access = get_logger("cantrip_actors.http.access")

Handler = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, routes: Iterable[Row] = (*ROUTES, *OPENAI_ROUTES, *OPERATIONS)) -> ASGIApp:
    """Return the application of a service. Its lifespan opens the service, unless it is open.

    The runtime has to be open around it.
    """
    rows = tuple(routes)
    described = document(rows)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(described)

    async def session(request: Request) -> Response:
        if request.headers.get("authorization") is None:
            raise Problem(401, "token", "expected authorization: Bearer TOKEN", headers={"www-authenticate": "Bearer"})
        authenticate(service, request)
        return start_session(request)

    async def whoami(request: Request) -> Response:
        return JSONResponse(session_shape(authenticate(service, request)))

    plain = [Route(f"{BASE}/openapi.json", _guard_handler(service, openapi), methods=["GET"])]
    if service.page:
        plain += [
            Route("/session", _guard_handler(service, session), methods=["POST"]),
            Route("/session", _guard_handler(service, whoami), methods=["GET"]),
            *page_routes(),
        ]
    table = [Route(row.path, _Endpoint(service, row), methods=[row.method]) for row in rows]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with nullcontext() if service.is_open else service.open():
            yield

    handlers: dict[Any, Any] = {404: _answer_not_found, 405: _answer_not_found}
    return Guard(
        Starlette(routes=[*table, *plain, *mcp_routes(service)], lifespan=lifespan, exception_handlers=handlers),
        service,
    )


async def _answer_not_found(_request: Request, error: Any) -> Response:
    kind, told = ("method", "this path has other methods") if error.status_code == 405 else ("path", "no such path")
    return Problem(error.status_code, kind, told, headers=error.headers).response()


def _guard_handler(service: Service, work: Handler) -> Handler:
    """Return a handler whose errors are problems: the boundary around requests."""

    async def answer(request: Request) -> Response:
        try:
            return await work(request)
        except Problem as problem:
            return problem.response(service.runtime.redact)
        except CantripError as error:
            return problem_of(error).response(service.runtime.redact)
        except Exception as error:  # a bug in a handler ends its request, not the service
            return report(error).response()

    return answer


class _Sent:
    """Passes an answer on and counts its bytes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.bytes = 0

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        self.bytes += len(message.get("body", b""))
        await self._send(message)


class _Endpoint:
    """One route of the table, as an ASGI application, so that its handler can listen to the client."""

    def __init__(self, service: Service, row: Row) -> None:
        self._service = service
        self._row = row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request, began, sent = Request(scope, receive), time.monotonic(), _Sent(send)
        answer = await _guard_handler(self._service, partial(self._answer, receive=receive))(request)
        if self._row.style == "openai":
            answer = as_openai_error(answer)
        try:
            await answer(scope, receive, sent)
        finally:
            if self._service.access_log:
                _access.info(
                    "request",
                    method=self._row.method,
                    route=self._row.path,
                    status=answer.status_code,
                    ms=round((time.monotonic() - began) * 1e3, 1),
                    bytes=sent.bytes,
                    token=getattr(request.state, "token_name", ""),
                )

    async def _answer(self, request: Request, *, receive: Receive) -> Response:
        service, row = self._service, self._row
        token = authenticate(service, request)
        request.state.token_name = token.name
        check_scope(token, row.scope)
        service.limiter.count_request(token)
        runtime = service.runtime if token.tenant is None else service.runtime.tenant(token.tenant)
        path = {name: unquote(value) for name, value in request.path_params.items()}  # the guard left slashes encoded
        call = Call(service, token, runtime, request, path, receive=receive)
        given = request.query_params
        if len(given.multi_items()) != len(given):
            raise Problem(422, "invalid", "a parameter is given twice")
        call.query = validate(row.query, dict(given), strict=False)
        limits = service.limiter.limits
        body = await read_body(request, limits.body, limits.patience)
        if row.method == "POST":
            call.key = _read_key(request)
        if row.body is not None:
            call.body = self._body(request, body, row.body)
        telemetry = service.telemetry
        with (
            nullcontext()
            if telemetry is None
            else telemetry.request(row.method, row.path, request.headers.get("traceparent"))
        ):
            answer = await row.work(call)
        return answer.response() if isinstance(answer, Answer) else answer

    def _body(self, request: Request, body: bytes, model: Any) -> Any:
        is_optional = not any(field.is_required() for field in model.model_fields.values())
        value = {} if is_optional and not body else read_json(request, body)
        return validate(model, value, strict=issubclass(model, Strict))


def _read_key(request: Request) -> str | None:
    """Return the Idempotency-Key. Raises Problem 400 for anything but 1 to 255 visible characters."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    text = key.strip()
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):  # the draft has a quoted string
        text = text[1:-1]
    if not (0 < len(text) <= 255 and all("!" <= sign <= "~" for sign in text)):  # the draft's limit
        raise Problem(400, "idempotency-key", "Idempotency-Key: expected 1 to 255 visible ASCII characters")
    return text
