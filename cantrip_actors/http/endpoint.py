"""A route as an ASGI application: its errors are problems, and each request is a line in the log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cantrip_actors import CantripError
from cantrip_actors.http.problems import DescribeError, Problem, describe_no_error, problem_of, report
from cantrip_actors.http.service import Service
from cantrip_actors.http.sse import EventStreamResponse, end_quietly
from cantrip_actors.observe.requests import FinishRequest, ignore_end
from cantrip_actors.redact.logs import get_logger

_access = get_logger("cantrip_actors.http.access")


def keep_problem(problem: Response) -> Response:
    """Return a problem as it is."""
    return problem


class Endpoint:
    """The route at `path`. `work` returns the answer to a request, and `convert` gives problems another form.

    `describe` returns the problem for an error that the service does not know, and None for others.
    """

    def __init__(
        self,
        service: Service,
        path: str,
        work: Callable[[Request], Awaitable[ASGIApp]],
        convert: Callable[[Response], Response] = keep_problem,
        describe: DescribeError = describe_no_error,
    ) -> None:
        self._service = service
        self._path = path
        self._work = work
        self._convert = convert
        self._describe = describe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request, began, status, size = Request(scope, receive), time.monotonic(), 0, 0
        is_open = False
        """Whether the answer has begun and not ended."""

        async def count(message: Message) -> None:
            nonlocal status, size, is_open
            status, size = message.get("status", status), size + len(message.get("body", b""))
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        try:
            with self._observe(request) as end:
                answer = await self._answer(request)
                try:
                    with self._service.answering(getattr(request.state, "token", None)) as valid:
                        await answer(scope, receive, count)
                    if valid.cancel_called and is_open:
                        await self._end(answer, count)
                    elif valid.cancel_called and not status:
                        await self._convert(self._service.explain_cut().response())(scope, receive, count)
                finally:
                    end(status, getattr(request.state, "error", ""))
        finally:
            if self._service.access_log:
                _access.info(
                    "request",
                    method=request.method,
                    route=self._path,
                    status=status,
                    ms=round((time.monotonic() - began) * 1e3, 1),
                    bytes=size,
                    token=getattr(getattr(request.state, "token", None), "name", ""),
                )

    async def _end(self, answer: ASGIApp, send: Send) -> None:
        """End an open answer that was cut off."""
        fail = answer.fail if isinstance(answer, EventStreamResponse) else end_quietly
        if fail is not None:
            last = fail(self._service.explain_cut())
            await send({"type": "http.response.body", "body": last, "more_body": False})

    def _observe(self, request: Request) -> AbstractContextManager[FinishRequest]:
        """Return a context in which the request is observed; it takes the status of the answer."""
        telemetry = self._service.telemetry
        if telemetry is None:
            return nullcontext(ignore_end)
        url, parent = request.url, request.headers.get("traceparent")
        return telemetry.request(request.method, self._path, parent, path=url.path, scheme=url.scheme)

    async def _answer(self, request: Request) -> ASGIApp:
        """Return the answer to a request: the boundary around handlers."""
        try:
            return await self._work(request)
        except Problem as error:
            problem = error
        except CantripError as error:
            problem = self._describe(error) or problem_of(error)
        except Exception as error:  # a bug in a handler ends its request, not the service
            request.state.error = type(error).__name__
            problem = report(error)
        return self._convert(problem.response(self._service.runtime.redact))
