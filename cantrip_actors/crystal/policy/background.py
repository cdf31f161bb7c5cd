"""A crystal that answers in the background: OpenAI's Responses, which work on a query without a connection.

For models that think longer than connections last. The provider stores the answer (`store`), and a query's handle is
the id of its response. The provider has no list of responses: a query that was submitted just before its process was
killed, before its handle was recorded, is submitted again, and paid twice. That is one query an entity at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import anyio

from cantrip_actors.crystal.client import ProviderRequest
from cantrip_actors.crystal.families.azure import AzureResponses
from cantrip_actors.crystal.families.responses import Responses
from cantrip_actors.crystal.policy.handles import PostedAttempt, begin_attempt, repeat
from cantrip_actors.crystal.policy.wrapper import CrystalWrapper
from cantrip_actors.crystal.provider import AskAgain, ProviderCrystal
from cantrip_actors.crystal.query import Look, PostingCrystal, Query
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.shapes import reading_answers
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError
from cantrip_actors.terms.exact_json import dump_exactly, parse_exactly
from cantrip_actors.terms.messages import Response

BACKGROUND: Final = (Responses, AzureResponses)
"""The families whose providers have a background mode."""

SOONEST: Final = 2.0
"""Seconds until the first poll of a response; each further poll waits half as long again."""

LATEST: Final = 30.0
"""The most seconds between two polls."""

TOGETHER: Final = 8
"""How many responses are polled at the same time."""

LESSONS: Final = 6
"""How many refusals in a row one query learns from."""

_log = get_logger("cantrip_actors.crystal")


class _WatchedResponse:
    """A response that the provider is working on."""

    def __init__(self) -> None:
        self.pause = SOONEST
        self.at = anyio.current_time() + SOONEST
        self.body: bytes | None = None
        self.error: ProviderError | None = None

    @property
    def is_over(self) -> bool:
        return self.body is not None or self.error is not None


class Background(CrystalWrapper, PostingCrystal):
    """A crystal that answers in the background. Make one with `background`."""

    def __init__(self, crystal: ProviderCrystal) -> None:
        super().__init__(crystal, "background:")
        self._inner = crystal
        self._watched: dict[str, _WatchedResponse] = {}
        self._few = anyio.CapacityLimiter(TOGETHER)

    async def post(self, query: Query) -> Any:
        """Start a response and return its handle. Raises ProviderError."""
        attempt = begin_attempt(self.name, query)
        request = await self._inner.prepare(query.invocation, query.options)
        for _ in range(LESSONS):
            try:
                return await self._begin(request, attempt)
            except ProviderError as error:  # a parameter that is refused is refused at once
                request = await self._learn(query, error)
        return await self._begin(request, attempt)

    async def _learn(self, query: Query, error: ProviderError) -> ProviderRequest:
        try:
            await self._inner.read(query.invocation, query.options, error)
        except AskAgain as again:
            return again.request
        raise AssertionError("an error instead of a response")

    async def _begin(self, request: ProviderRequest, attempt: PostedAttempt) -> Any:
        fields: dict[str, Any] = parse_exactly(request.body)
        fields.update(background=True, store=True)
        del fields["stream"]
        body = await self._inner.fetch("POST", request.path, dump_exactly(fields), request.headers)
        with reading_answers(self.name):
            return {"response": str(parse_exactly(body)["id"]), **attempt.list_fields()}

    async def look(self, handles: Sequence[Any]) -> Look:
        """Return which of the responses are ready."""
        now = anyio.current_time()
        watched = [self._watched.setdefault(handle["response"], _WatchedResponse()) for handle in handles]
        async with anyio.create_task_group() as tasks:
            for handle, state in zip(handles, watched, strict=True):
                if not state.is_over and state.at <= now:
                    tasks.start_soon(self._look_at, handle["response"], state)
        soonest = min((state.at for state in watched if not state.is_over), default=now)
        return Look([state.is_over for state in watched], max(0.0, soonest - anyio.current_time()))

    async def _look_at(self, response: str, state: _WatchedResponse) -> None:
        async with self._few:
            try:
                body = await self._inner.fetch("GET", f"{self._inner.family.path}/{response}")
                with reading_answers(self.name):
                    is_over = parse_exactly(body).get("status") not in ("queued", "in_progress")
            except ProviderError as error:
                if error.status == 404:
                    state.error = error
                else:
                    _log.warning("a response cannot be looked at", response=response, why=str(error))
            else:
                state.body = body if is_over else None
        state.at = anyio.current_time() + state.pause
        state.pause = min(LATEST, state.pause * 1.5)

    async def collect(self, handle: Any, query: Query) -> Response:
        """Return the answer to a query. Raises ProviderError."""
        state = self._watched.setdefault(handle["response"], _WatchedResponse())
        if not state.is_over:
            await self._look_at(handle["response"], state)
        answer = state.error or state.body
        if answer is None:
            raise ProviderError(f"{self.name}: response {handle['response']} is still worked on", retryable=True)
        del self._watched[handle["response"]]  # it is fetched again if this is interrupted
        attempt = PostedAttempt.of(handle)
        try:
            response = await self._inner.read(query.invocation, query.options, answer)
        except AskAgain as again:
            return Response(handle=await self._begin(again.request, repeat(attempt, again)))
        except ProviderError as error:
            if not error.retryable:
                error.usage = attempt.spent + error.usage
                raise
            request = await self._inner.prepare(query.invocation, query.options)
            return Response(handle=await self._begin(request, repeat(attempt, error)))
        return replace(response, usage=attempt.spent + response.usage)

    async def abandon(self, handle: Any) -> None:
        """Cancel a response; its tokens so far are paid for. Raises ProviderError."""
        response = handle["response"]
        self._watched.pop(response, None)
        await self._inner.fetch("POST", f"{self._inner.family.path}/{response}/cancel", b"{}")


def background(crystal: Crystal | str) -> Background:
    """Return `crystal` in the background: it may think for hours, and its answer survives this process.

    Raises InvalidCantrip for a crystal whose provider has no background mode.
    """
    inner = resolve(crystal)
    if not isinstance(inner, ProviderCrystal) or type(inner.family) not in BACKGROUND:
        name = getattr(inner, "name", type(inner).__name__)
        raise InvalidCantrip(f"background: expected a crystal of openai or azure, over Responses, got {name}")
    return Background(inner)
