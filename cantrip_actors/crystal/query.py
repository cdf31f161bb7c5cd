"""One query to a crystal, which becomes a response or the error of the cast (CRYSTAL-1 … 6, D-006, SPEC 7.3).

A crystal is any object with `invoke`. This file calls it by its signature (`signature.py`), retries if a provider
failed, and asks again if the answer breaks a rule of `answer_contract.py`. Retries leave no trace in the loom: one
query is one response (PROD-2). Only the tokens of the attempts are added up, because they were paid for: in the
response, or in the error that the query ends with (`CrystalError.usage`). `policy/estimate.py` estimates the tokens of
an awaited crystal that reports none.

A crystal whose `invoke` has a parameter `emit` streams its answer in payloads (`stream/wire.py`). An observer
(`Query.emit`) sees one turn in the making: the first beginning of a response and no end, since gates follow. Items are
named by their block, and `AttemptFailed` says that those emitted before it are void and that the next attempt numbers
its blocks anew.

This file knows no provider, keeps nothing between queries and does not limit rates: the crystal actor does.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

from cantrip_actors.crystal.answer_contract import (
    INSISTENCE,
    NotAsAsked,
    ask_again,
    quote_output,
    read_answer,
)
from cantrip_actors.crystal.failures import find_retry_after
from cantrip_actors.crystal.policy.estimate import Estimator, find_estimator
from cantrip_actors.crystal.signature import find_arrangement
from cantrip_actors.stream.wire import (
    AttemptFailed,
    Emitted,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
    check_emitted,
)
from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import (
    NO_USAGE,
    Invocation,
    Message,
    Response,
    ToolChoice,
    ToolDefinition,
    Usage,
)
from cantrip_actors.terms.retry import Retry
from cantrip_actors.user_code import Failure, Threads, attempt, text_of
from cantrip_actors.user_code import attempt_now as call_now
from cantrip_actors.user_code.http_clients import get_http_errors

FAREWELL: Final = 5.0
"""Seconds that a cancelled caller waits for the provider to end the work on its query."""

THREADS: Final = 256
"""How many crystals with a blocking `invoke` may be waiting at once in one event loop."""

OVERFLOWS: Final = "the context is too long for the model: fold earlier (Folding), or let gates return less"

_threads: Final = Threads("cantrip_actors.crystal threads", THREADS)


class Earlier(NamedTuple):
    """The answer to a query is not acceptable."""

    handle: Any
    usage: Usage
    """The usage of this answer and of those before it."""


class Query(NamedTuple):
    """One query: the context with its tools, and the call's sampling parameters (`Call.sampling`)."""

    invocation: Invocation
    options: Mapping[str, Any] = {}
    emit: Callable[[Emitted], None] | None = None
    """Called with each payload as it arrives. It must not wait, and must not raise."""
    handle: Any = None
    """If it is not None, the crystal already took the query, and this handle collects the answer
    (`Response.handle`)."""
    key: str = ""
    """The identity of an entity's query: the same after a crash. A query without one is answered at once."""
    since: str | None = None
    """If a crash may have cut this query off: the time of the entity's last record, in ISO 8601. None for a new one."""
    earlier: Earlier | None = None
    retried: Callable[[ProviderError, float], None] | None = None
    """Called with the failure of an attempt, and the seconds until the next one. It must not wait or raise."""
    charge: Callable[[Usage], None] | None = None
    """Called with usage that no answer and no error has: of attempts before the query was cancelled."""

    def report_unanswered(self, usage: Usage) -> None:
        """Charge the usage of a query that is cancelled."""
        if self.charge is not None and usage is not NO_USAGE:
            self.charge(usage)


class Look(NamedTuple):
    """The result of a look at posted queries. `ready` has one value for each handle, `seconds` is the time to the next
    look.
    """

    ready: Sequence[bool]
    seconds: float

    @classmethod
    def read(cls, look: object, count: int) -> Look:
        """Return the answer of `PostingCrystal.look` for so many handles. Raises CrystalError for anything else."""
        if isinstance(look, cls):
            ready, seconds = look
            if isinstance(ready, list | tuple) and len(ready) == count and isinstance(seconds, int | float):
                return look
        raise CrystalError(f"look: expected a Look with {count} values in `ready`, and seconds; got {look!r:.200}")


class AnsweringCrystal(ABC):
    """A crystal that answers a `Query`. Its `invoke` makes one of the arguments of the contract (CRYSTAL-1)."""

    @abstractmethod
    async def answer_query(self, query: Query) -> Response:
        """Return one answer. Raises ProviderError, CrystalError."""

    def keep_connections(self) -> AbstractAsyncContextManager[object] | None:
        """Return a block in which connections stay open between queries, in this event loop; None without any."""
        return None

    async def invoke(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice | None = None,
        options: Mapping[str, Any] | None = None,
        emit: Callable[[Emitted], None] | None = None,
    ) -> Response:
        """Return one answer (CRYSTAL-1). `emit` gets its payloads as they arrive, if the crystal streams."""
        return await self.answer_query(Query(Invocation(messages, tools, tool_choice), options or {}, emit))


class PostingCrystal(AnsweringCrystal):
    """A crystal that takes queries and answers hours later: the asking entity waits without a task, and over restarts.

    Each query of an entity is posted, and its handle is recorded before anything waits. One `look` is for all queries
    that wait; the answer to a query that is ready is collected. One object serves all entities: it has no `bind`.
    """

    @abstractmethod
    async def post(self, query: Query) -> Any:
        """Hand in a query, and return its handle, a JSON value.

        A query that is posted again, in this process or with `since` in another, gets the handle of the first time.
        Raises ProviderError if the query was not taken, or may not have been.
        """

    @abstractmethod
    async def look(self, handles: Sequence[Any]) -> Look:
        """Return which of the queries can be collected. Raises ProviderError if that cannot be told now."""

    @abstractmethod
    async def collect(self, handle: Any, query: Query) -> Response:
        """Return the answer to a query, which is posted again if it has none: then the response has the new handle.

        Raises ProviderError if the provider refused the query.
        """

    async def abandon(self, handle: Any) -> None:
        """End the work on a query whose entity was interrupted or stopped; the default does nothing.

        Raises ProviderError if the provider could not be told.
        """

    async def answer_query(self, query: Query) -> Response:
        """Return one answer, and wait for it with a task."""
        query = Query(query.invocation, query.options, key=f"{random.getrandbits(128):032x}")
        handle = await self.post(query)
        try:
            while True:
                look = await self.look([handle])
                if look.ready[0]:
                    response = await self.collect(handle, query)
                    if response.handle is None:
                        return response
                    handle = response.handle
                else:
                    await anyio.sleep(look.seconds)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(FAREWELL, shield=True):
                await attempt(lambda: self.abandon(handle))
            raise


Through = Callable[[Query, Callable[[Query], Awaitable[Response]]], Awaitable[Response]]
"""A function around every attempt that waits: it takes the query and the function that makes the attempt."""


def attempt_now(crystal: Crystal, query: Query) -> Response | None:
    """Return the response of a crystal that never waits, without a task; None if this crystal has to be awaited.

    Such a crystal has `respond(invocation)`, which is not async.

    Raises ProviderError if the attempt failed: `ask(…, failed=error)` then continues; CrystalError if the contract is
    broken.
    """
    respond = getattr(crystal, "respond", None)
    if respond is None:
        return None
    return _unwrap(crystal, query, call_now(lambda: respond(query.invocation)))


async def ask(
    crystal: Crystal,
    query: Query,
    *,
    retry: Retry,
    failed: ProviderError | None = None,
    through: Through | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    chance: Callable[[], float] = random.random,
) -> Response:
    """Return the crystal's response, after as many attempts as `retry` allows.

    `failed` is the error of a first attempt (`attempt_now`). Failed attempts leave only their tokens and the wait
    before the next one. `through`, if given, limits each attempt.

    Raises ProviderError, with `attempts`, if the last failure is not to be retried or `retry` allows no more attempts;
    CrystalError if the crystal breaks its contract or raises. Both have the `usage` of all attempts.
    """
    failures, insisted, current, spent = 0, 0, query, NO_USAGE
    delay: float | None = 0.0
    watch = Watch(query.emit)
    try:
        while True:
            if failed is None:
                try:
                    reply = await _attempt_through(crystal, watch.prepare(current), through)
                except CrystalError as error:
                    error.usage = spent + error.usage
                    raise
                finally:
                    watch.close()
                if isinstance(reply, Response):
                    return reply if spent is NO_USAGE else replace(reply, usage=spent + reply.usage)
                failed = reply
            spent += failed.usage
            if isinstance(failed, NotAsAsked):
                insisted += 1
                if insisted > INSISTENCE:
                    name = get_crystal_name(crystal)
                    problem = f"{failed}: {name} was asked {INSISTENCE + 1} times; {failed.advice}"
                    raise CrystalError(problem, usage=spent)
            else:
                failures += 1
                delay = _choose_delay(retry, failures, failed, chance())
                if delay is None:
                    raise _give_up(failed, failures, retry, spent) from failed
            current = _prepare_next(failed, query, current, spent)
            watch.discard(str(failed))
            if query.retried is not None:
                query.retried(failed, delay or 0.0)
            if delay:
                await sleep(delay)
            failed, delay = None, 0.0
    except anyio.get_cancelled_exc_class():
        query.report_unanswered(spent)
        raise


def _prepare_next(failed: ProviderError, query: Query, current: Query, spent: Usage) -> Query:
    """Return the query after a failed attempt, which asked `current`."""
    if not isinstance(failed, NotAsAsked):
        generated = failed.generated
        return current if generated is None else query._replace(invocation=quote_output(query.invocation, generated))
    current = query._replace(invocation=ask_again(query.invocation, failed))
    if query.handle is None:
        return current
    # it is posted again, and only its handle knows the cost so far
    return current._replace(handle=None, earlier=Earlier(query.handle, spent))


async def _attempt_through(crystal: Crystal, query: Query, through: Through | None) -> Response | ProviderError:
    try:
        return await (_attempt(crystal, query) if through is None else through(query, partial(_attempt, crystal)))
    except ProviderError as error:
        return error


def _choose_delay(retry: Retry, failures: int, failed: ProviderError, chance: float) -> float | None:
    """Return how long to wait, or None to give up. The error's own `retryable` takes precedence over its status, unless
    it only follows from the status and the user has set other status codes.
    """
    if _is_up_to_codes(failed, retry):
        return retry.delay(failures, failed.status, failed.retry_after, chance)
    if failed.retryable is False:
        return None
    return retry.delay(failures, None if failed.retryable else failed.status, failed.retry_after, chance)


def _is_up_to_codes(failed: ProviderError, retry: Retry) -> bool:
    return failed.is_by_status and retry.has_own_codes


class Watch:
    """The stream of one query for its observer, if it has one, over all attempts."""

    def __init__(self, emit: Callable[[Emitted], None] | None) -> None:
        self._emit = emit
        self._attempt = 0
        self._started = False

    def prepare(self, query: Query) -> Query:
        """Return the query for the next attempt. The `emit` of an earlier attempt does nothing from now on."""
        observer = self._emit
        if observer is None:
            return query
        self._attempt += 1
        number = self._attempt

        def pass_on(emitted: Emitted) -> None:
            if number != self._attempt or isinstance(emitted, (ResponseDone, ResponseError)):
                return
            if isinstance(emitted, ResponseStart):
                if self._started:
                    return
                self._started = True
            observer(emitted)

        return query._replace(emit=pass_on)

    def discard(self, why: str) -> None:
        """Report that the current attempt failed."""
        if self._emit is not None:
            self._emit(AttemptFailed(StreamError("RETRY", why)))

    def close(self) -> None:
        """End the stream: nothing that a crystal emits after its query belongs to it."""
        self._attempt += 1


def make_emit(observer: Callable[[Emitted], None] | None) -> Callable[[Any], None]:
    """Return the `emit` that a crystal of the user's gets. It works the same with and without an observer.

    It raises InvalidStreamEvent for anything but a payload of the stream. Threads may call it, too: a plain `invoke`
    runs in one, and the observers belong to the event loop.
    """
    if observer is None:
        return check_emitted
    thread, token = threading.get_ident(), current_token()

    def emit(emitted: Any) -> None:
        check_emitted(emitted)
        if threading.get_ident() == thread:
            observer(emitted)
        else:
            from_thread.run_sync(observer, emitted, token=token)

    return emit


async def _attempt(crystal: Crystal, query: Query) -> Response:
    if isinstance(crystal, PostingCrystal) and query.key:
        if query.handle is None:
            handle = await attempt(lambda: crystal.post(query))
            return _unwrap(crystal, query, handle if isinstance(handle, Failure) else Response(handle=handle))
        return _unwrap(crystal, query, await attempt(lambda: crystal.collect(query.handle, query)))
    if query.handle is not None:
        collect: Any = getattr(crystal, "collect", None)
        if collect is None:
            name = get_crystal_name(crystal)
            raise CrystalError(f"{name} returned a handle, but has no `collect`: give it `async def collect(handle)`")
        return _unwrap(crystal, query, await attempt(lambda: collect(query.handle)), find_estimator(crystal))
    response = attempt_now(crystal, query)
    if response is not None:
        return response
    if not isinstance(crystal, AnsweringCrystal):
        query = query._replace(emit=make_emit(query.emit))
    elif type(crystal).invoke is AnsweringCrystal.invoke:
        return _unwrap(crystal, query, await attempt(lambda: crystal.answer_query(query)), find_estimator(crystal))
    return _unwrap(crystal, query, await _invoke(crystal.invoke, query), find_estimator(crystal))


async def _invoke(invoke: Callable[..., Any], query: Query) -> Any:
    """Return the result of `invoke`, or the Failure that it raises. A plain function may block, so it gets a thread."""
    invocation = query.invocation
    offered = {"messages": invocation.messages, "tools": invocation.tools, "tool_choice": invocation.tool_choice}
    arrange = find_arrangement(invoke)
    args, kwargs = arrange({**offered, "options": query.options, "emit": query.emit})
    call = partial(invoke, *args, **kwargs)
    answer = call_now(call) if arrange.is_async else await _threads.attempt(call)
    return await attempt(lambda: answer) if inspect.isawaitable(answer) else answer


def _unwrap(crystal: Crystal, query: Query, answer: Any, estimator: Estimator | None = None) -> Response:
    """Return the response in an answer, or raise the error in it. Raises as `attempt_now` does."""
    if isinstance(answer, Failure):
        error = _translate_error(crystal, answer.exception)
        if error is answer.exception:
            raise error
        raise error from answer.exception
    return read_answer(answer, query.invocation, estimator)


# ------------------------------------------------------------------------------------------------- errors of a provider


def _translate_error(crystal: Crystal, error: BaseException) -> CrystalError:
    """Return the error of the cast, or the failure to retry, for an exception of a crystal's own code."""
    leaf = error
    while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
        leaf = leaf.exceptions[0]
    if isinstance(leaf, CrystalError):
        return leaf
    if isinstance(leaf, asyncio.CancelledError):
        return CrystalError(f"{get_crystal_name(crystal)}: something that the crystal waited for was cancelled")
    text = text_of(leaf)
    message = f"{type(leaf).__name__}: {text}" if text else type(leaf).__name__
    if isinstance(leaf, get_http_errors("HTTPStatusError")):
        refusal: Any = leaf
        retry_after = find_retry_after(refusal.response.headers, time.time())
        return ProviderError(text, status=refusal.response.status_code, retry_after=retry_after)
    if isinstance(leaf, (ConnectionError, TimeoutError, *get_http_errors("TransportError"))):
        return ProviderError(f"{get_crystal_name(crystal)} could not be reached: {message}")
    return CrystalError(f"crystal raised {message}")


def _give_up(failed: ProviderError, attempts: int, retry: Retry, spent: Usage) -> ProviderError:
    status = "no answer" if failed.status is None else f"status {failed.status}"
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    advice = OVERFLOWS if failed.overflows else _advise(failed, retry)
    error = ProviderError(
        f"crystal gave up after {tries} ({status}): {failed}; {advice}",
        status=failed.status,
        retry_after=failed.retry_after,
        attempts=attempts,
        retryable=failed.retryable,
        usage=spent,
    )
    error.overflows, error.window = failed.overflows, failed.window
    return error


def _advise(failed: ProviderError, retry: Retry) -> str:
    status = failed.status
    again = f"raise Retry(max_retries={retry.max_retries})"
    match status:
        case None | 429 if failed.retryable is False:
            return "trying again would meet the same refusal or limit"
        case None:
            return f"check the network and the provider's address, or {again}"
        case 401 | 403:
            return "check the API key and what it may use"
        case 402:
            return "check the account's credit"
        case 404:
            return "check the model's name and the provider's address"
        case _ if status in retry.retryable_status_codes or (failed.retryable and not _is_up_to_codes(failed, retry)):
            return f"try later, or {again}"
        case _ if status < 500:
            return "the request itself was refused: the provider's message says why; it is not tried again"
        case _:
            return f"this status is not tried again: add {status} to Retry(retryable_status_codes=…)"
