"""A crystal whose queries go in batches: at half price, and answered within a day.

Queries that arrive within `every` seconds join one batch. Each gets a handle, which the runtime records before the
entity waits: the batch, and the query's id in it. That id is a digest of the query's identity (`Query.key`), so a query
that is repeated after a crash has the same id.

No query is paid for twice. If the process was killed or the connection was lost during a submission, it is unknown
whether the provider accepted the batch. The provider's list of batches is then read before the query is submitted
again. A batch that may contain the query, but does not yet show its contents, is waited for.

A query that the provider did not process (its batch expired, or the provider failed) is submitted again, at most four
times in all. A refusal teaches the crystal as usual, and the query joins the next batch without the refused parameter.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import Any, Final

import anyio

from cantrip_actors.crystal.batch_endpoints import WHOLE, BatchAnswers, BatchEndpoint, ListedBatch
from cantrip_actors.crystal.batch_families import make_endpoint
from cantrip_actors.crystal.client import ProviderRequest
from cantrip_actors.crystal.policy.handles import PostedAttempt, begin_attempt, repeat
from cantrip_actors.crystal.policy.wrapper import CrystalWrapper
from cantrip_actors.crystal.provider import AskAgain, ProviderCrystal
from cantrip_actors.crystal.query import Look, PostingCrystal, Query
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.crystal.shapes import reading_answers
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.terms.arguments import check, is_finite, is_whole
from cantrip_actors.terms.crystal import Crystal
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError
from cantrip_actors.terms.messages import Response

POLL: Final = 60.0
"""Seconds between two polls of a batch."""

LISTED: Final = 60.0
"""Seconds for which a provider's list of batches is reused."""

CLOCKS: Final = 300.0
"""Seconds by which the provider's clock may be behind ours."""

KEPT: Final = 4
"""How many batches' answers are kept in memory; those of other batches are fetched again."""

KNOWN: Final = 100_000
"""How many handles of waiting queries are kept in memory."""

_GONE: Final = frozenset((400, 404, 410))
"""Statuses after which polling stops; collecting the answer raises the error."""

_log = get_logger("cantrip_actors.crystal")


class _Group:
    """Queries that will form one batch."""

    def __init__(self, headers: Mapping[str, str], every: float) -> None:
        self.headers = headers
        self.requests: dict[str, bytes] = {}
        self.size = 0
        self.deadline = anyio.current_time() + every
        self.is_full = anyio.Event()
        self.sending = anyio.Lock()
        self.is_sent = False
        self.batch = ""
        self.error: ProviderError | None = None


class Batched(CrystalWrapper, PostingCrystal):
    """A crystal whose queries go in batches. Make one with `batched`."""

    def __init__(self, crystal: ProviderCrystal, endpoint: BatchEndpoint, every: float, at_most: int) -> None:
        super().__init__(crystal, "batch:")
        self._inner = crystal
        self._endpoint = endpoint
        self._every = every
        self._at_most = min(at_most, endpoint.most)
        self._open: dict[frozenset[tuple[str, str]], _Group] = {}
        self._joined: dict[str, _Group] = {}
        """The groups that were not yet sent, by the ids of their queries."""
        self._handles: OrderedDict[str, Any] = OrderedDict()
        """The handles of queries that this process submitted, by the ids of the queries."""
        self._unsure: dict[str, float] = {}
        """The queries that may or may not have been submitted, by id: since when, in seconds since the epoch."""
        self._looked: dict[str, float] = {}
        """When to poll a batch again, in event loop time; infinity for a batch that has ended."""
        self._answers: OrderedDict[str, BatchAnswers] = OrderedDict()
        self._fetching = anyio.Lock()
        self._listing = anyio.Lock()
        self._list: tuple[float, float, list[ListedBatch]] = (-inf, inf, [])
        """When the list of batches was read, the earliest creation time that it covers, and its batches."""

    async def post(self, query: Query) -> Any:
        """Submit a query with the next batch and return its handle. Raises ProviderError."""
        return await self._hand_in(query, begin_attempt(self.name, query))

    async def look(self, handles: Sequence[Any]) -> Look:
        """Return which of the queries are in batches that have ended. A batch is polled once in `POLL` seconds."""
        now = anyio.current_time()
        batches = dict.fromkeys(batch for handle in handles for batch in handle["batches"])
        for batch in batches:
            if self._looked.get(batch, now) <= now:
                self._looked[batch] = inf if await self._has_ended(batch) else now + POLL
        ready = [all(self._looked[batch] == inf for batch in handle["batches"]) for handle in handles]
        return Look(ready, max(0.0, min(map(self._looked.__getitem__, batches), default=now) - now))

    async def _has_ended(self, batch: str) -> bool:
        """Return whether a batch has ended and its answers were fetched."""
        try:
            with reading_answers(self.name):
                has_ended = await self._endpoint.has_ended(batch)
            if not has_ended:
                return False
            await self._fetch_answers(batch)
        except ProviderError as error:
            _log.warning("a batch cannot be looked at", batch=batch, why=str(error))
            return error.status in _GONE
        return True

    async def collect(self, handle: Any, query: Query) -> Response:
        """Return the answer to a query, or its new handle if it had to be submitted again. Raises ProviderError."""
        own, attempt = handle["id"], PostedAttempt.of(handle)
        answers = [await self._fetch_answers(batch) for batch in handle["batches"]]
        present = [answer[own] for answer in answers if own in answer]
        if not present and handle.get("unsure"):  # none of the batches that might have contained it does
            return Response(handle=await self._hand_in(query, attempt, is_new=True))
        answer = present[0] if present else next((answer[WHOLE] for answer in answers if WHOLE in answer), None)
        if answer is None:
            answer = ProviderError(f"{self.name}: the batch ended before it came to this query", retryable=True)
        if isinstance(answer, ProviderError) and answer.retryable:
            return Response(handle=await self._hand_in(query, repeat(attempt, answer)))
        try:
            response = await self._inner.read(query.invocation, query.options, answer, batch=True)
        except AskAgain as again:
            return Response(handle=await self._hand_in(query, repeat(attempt, again), again.request))
        except ProviderError as error:
            error.usage = attempt.spent + error.usage
            raise
        self._handles.pop(own, None)
        metadata = {**response.metadata, "batch": handle["batches"][0]}
        return replace(response, usage=attempt.spent + response.usage, metadata=metadata)

    # Handing in

    async def _hand_in(
        self, query: Query, attempt: PostedAttempt, request: ProviderRequest | None = None, *, is_new: bool = False
    ) -> Any:
        """Return the handle of a query; submit the query if it was not. `is_new` says that it certainly was not."""
        own = self._endpoint.make_id(query.key, attempt.number)
        if not is_new:
            handle = self._handles.get(own)
            if handle is not None:
                return handle
            since = self._unsure.get(own)
            if query.since is not None and own not in self._joined:
                since = datetime.fromisoformat(query.since).timestamp()
            batches = [] if since is None else await self._find(own, since)
            if batches:
                return self._handle(own, attempt, batches)
        group = self._joined.get(own)
        if group is None:
            request = request or await self._inner.prepare(query.invocation, query.options)
            group = self._join(own, request)
        batch = await self._submit(own, group)
        return self._handle(own, attempt, [ListedBatch(batch, 0.0, frozenset((own,)))])

    def _handle(self, own: str, attempt: PostedAttempt, batches: Sequence[ListedBatch]) -> Any:
        handle: dict[str, Any] = {"batches": [batch.batch for batch in batches], "id": own, **attempt.list_fields()}
        if any(batch.ids is None for batch in batches):
            handle["unsure"] = True
        self._unsure.pop(own, None)
        self._handles[own] = handle
        if len(self._handles) > KNOWN:
            self._handles.popitem(last=False)
        return handle

    async def _find(self, own: str, since: float) -> list[ListedBatch]:
        """Return the batch that contains a query, or all that may contain it; an empty list if no batch does."""
        async with self._listing:
            at, earliest, batches = self._list
            if anyio.current_time() - at > LISTED or earliest > since:
                with reading_answers(self.name):
                    batches = await self._endpoint.list_batches(since - CLOCKS)
                self._list = (anyio.current_time(), since, batches)
        sure = [batch for batch in batches if batch.ids is not None and own in batch.ids]
        return sure[:1] or [batch for batch in batches if batch.ids is None and batch.created >= since - CLOCKS]

    def _join(self, own: str, request: ProviderRequest) -> _Group:
        body, kind = self._endpoint.make_body(request), frozenset(request.headers.items())
        group = self._open.get(kind)
        if group is not None and group.size + len(body) > self._endpoint.largest:
            group.is_full.set()
            group = None
        if group is None or group.is_full.is_set():
            group = self._open[kind] = _Group(request.headers, self._every)
        self._joined[own] = group
        group.requests[own] = body
        group.size += len(body) + len(own) + 200  # the bytes that surround each request
        if len(group.requests) >= self._at_most:
            group.is_full.set()
        return group

    async def _submit(self, own: str, group: _Group) -> str:
        """Return the batch of a query's group; the first query whose wait is over submits the group."""
        try:
            with anyio.CancelScope(deadline=group.deadline):
                await group.is_full.wait()
            async with group.sending:
                if not group.is_sent:
                    await self._send(group)
        finally:
            if not group.is_sent:  # cancelled meanwhile
                group.requests.pop(own, None)
                self._joined.pop(own, None)
                if not group.requests:  # else the next query would join it, and be submitted alone when it is over
                    self._close(group)
        if group.error is not None:
            error = group.error
            raise ProviderError(
                str(error), status=error.status, retry_after=error.retry_after, retryable=error.retryable
            )
        return group.batch

    def _close(self, group: _Group) -> None:
        """Let no further query join a group."""
        for kind in [kind for kind, open_group in self._open.items() if open_group is group]:
            del self._open[kind]

    async def _send(self, group: _Group) -> None:
        self._close(group)
        group.is_sent, began = True, time.time()
        group.error = ProviderError(f"{self.name}: the batch was interrupted while it was submitted", retryable=True)
        try:
            with reading_answers(self.name):
                group.batch = await self._endpoint.submit(group.requests, group.headers)
            group.error = None
        except ProviderError as error:
            group.error = error
        finally:
            why = group.error
            is_unsure = why is not None and (why.status is None or why.status >= 500)
            for own in group.requests:
                self._joined.pop(own, None)
                if is_unsure:
                    self._unsure.setdefault(own, began)

    # Answers

    async def _fetch_answers(self, batch: str) -> BatchAnswers:
        async with self._fetching:
            answers = self._answers.get(batch)
            if answers is None:
                with reading_answers(self.name):
                    answers = self._answers[batch] = await self._endpoint.fetch_answers(batch)
                if len(self._answers) > KEPT:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(batch)
            return answers


def batched(
    crystal: Crystal | str,
    *,
    every: float = 60.0,
    at_most: int = 1000,
    bucket: str | None = None,
    role: str | None = None,
) -> Batched:
    """Return `crystal` in batches: its queries are answered at half price, within a day.

    A batch is submitted `every` seconds after its first query, or as soon as it has `at_most` queries. Use the one
    object that this returns wherever queries may share a batch. The crystal's limits, breaker and fallbacks do not
    apply to its batches.

    Vertex and Bedrock read and write files of a `bucket`, "gs://…" or "s3://…" with a folder, that of
    `VERTEX_BATCH_BUCKET` or `BEDROCK_BATCH_BUCKET` if left out; Bedrock does so in the `role` with this ARN, that of
    `BEDROCK_BATCH_ROLE` if left out.

    Raises InvalidCantrip for a crystal whose provider takes no batches, and for invalid numbers.
    """
    inner = resolve(crystal)
    endpoint = make_endpoint(inner, bucket=bucket, role=role)
    assert isinstance(inner, ProviderCrystal), "only these have an endpoint"
    check(is_finite(every, 0), "batch: every", "seconds >= 0", every, InvalidCantrip)
    check(is_whole(at_most, 1), "batch: at_most", "a number of queries >= 1", at_most, InvalidCantrip)
    return Batched(inner, endpoint, every, at_most)
