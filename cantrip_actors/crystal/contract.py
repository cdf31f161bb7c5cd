"""The crystal contract: how a query becomes a response, or the error of the cast (CRYSTAL-1 … 6, D-006, SPEC 7.3).

A crystal is any object with `invoke`. This file calls it in the way its signature wants, checks what it returns
(`Response.of`), tries again where a provider failed, and asks again where `tool_choice` is "required" and no call came.
None of that leaves a trace: one query is one response, whatever it took (PROD-2). Only the tokens of answers that were
asked for again are added up, because they were paid for.

A crystal that has an `emit` among the parameters of its `invoke` tells of its answer while it comes, in payloads of the
canonical stream. What a watcher sees (`Query.emit`) is one turn in the making, so of its beginning only the first is
passed on and its end never, since gates follow (specs/streaming.md, 8.1). Items are numbered by attempt (`2:0` is the
first of the second), and those of an attempt that failed are closed before the next begins.

It knows no provider, keeps nothing between queries and does not limit rates: that is the crystal actor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
from anyio.lowlevel import RunVar

from cantrip_actors.crystal.failures import retry_after
from cantrip_actors.model.cantrip import Crystal, Retry, crystal_name
from cantrip_actors.model.context import Shared, View
from cantrip_actors.model.errors import CantripError, CrystalError, ProviderError
from cantrip_actors.model.messages import NO_USAGE, Invocation, Message, Response
from cantrip_actors.model.stream import (
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Payload,
    ResponseStart,
    StreamError,
)

__all__ = ["NoCall", "Query", "Through", "Watch", "ask", "attempt_now", "retry_after"]

INSISTENCE: Final = 3
"""How often a crystal is asked again for the call that it must make (CRYSTAL-5)."""

THREADS: Final = 256
"""Crystals with a blocking `invoke` that may be waiting at once in one event loop."""

_limiter: RunVar[anyio.CapacityLimiter] = RunVar("cantrip_actors.crystal threads")


class Query(NamedTuple):
    """What is asked: the context with its tools, and the call's sampling parameters (`Call.sampling`)."""

    invocation: Invocation
    options: Mapping[str, Any] = {}
    emit: Callable[[Payload], None] | None = None
    """Called with each payload of the canonical stream as it arrives. It must not wait, and must not raise."""


class NoCall(ProviderError):
    """An answer without the call that had to come. `ask` goes on from it: only what attempts go `Through` meets it."""

    def __init__(self, response: Response) -> None:
        super().__init__("crystal returned no tool call although tool_choice is required")
        self.response = response


Through = Callable[[Query, Callable[[Query], Awaitable[Response]]], Awaitable[Response]]
"""What every attempt that waits goes through: given the query and what makes the attempt, it answers as that does."""


def attempt_now(crystal: Crystal, query: Query) -> Response | None:
    """The response of a crystal that never waits, without a task; None where this one has to be awaited.

    Such a crystal has `respond(invocation)`, which is not async.

    Raises ProviderError where the attempt failed: `ask(…, failed=error)` then carries on from there; CrystalError where
    the contract is broken.
    """
    respond = getattr(crystal, "respond", None)
    if respond is None:
        return None
    try:
        return _checked(respond(query.invocation), query)
    except CantripError:
        raise
    except Exception as error:
        raise _translated(crystal, error) from error


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
    """The crystal's response, after as many attempts as `retry` allows.

    `failed` is what a first attempt already came to (`attempt_now`). Failed attempts leave nothing behind but the wait
    before the next. Each attempt goes `through` what limits them, if there is something.

    Raises ProviderError, with `attempts`, where the provider's last failure is not to be retried or once too often;
    CrystalError where the crystal breaks its contract or raises.
    """
    failures, insisted, asked, spent = 0, 0, query, NO_USAGE
    delay: float | None = 0.0
    watch = None if query.emit is None else Watch(query.emit)
    while True:
        if failed is None:
            try:
                shown = asked if watch is None else asked._replace(emit=watch.attempt())
                if through is None:
                    response = await _attempt(crystal, shown)
                else:
                    response = await through(shown, partial(_attempt, crystal))
            except ProviderError as error:
                failed = error
            else:
                return response if spent is NO_USAGE else replace(response, usage=spent + response.usage)
        if isinstance(failed, NoCall):
            insisted += 1
            if insisted > INSISTENCE:
                raise _never_called(crystal, query)
            spent += failed.response.usage
            asked = _insisting(query, failed.response)
        else:
            failures += 1
            delay = _delay(retry, failures, failed, chance())
            if delay is None:
                raise _gave_up(failed, failures, retry) from failed
        if watch is not None:
            watch.discard(str(failed))
        if delay:
            await sleep(delay)
        failed, delay = None, 0.0


def _delay(retry: Retry, failures: int, failed: ProviderError, chance: float) -> float | None:
    """How long to wait, or None to give up. What a provider's error means goes before what its status usually does."""
    if failed.retryable is False:
        return None
    return retry.delay(failures, None if failed.retryable else failed.status, failed.retry_after, chance)


class Watch:
    """What one query shows of itself, over all of its attempts."""

    def __init__(self, emit: Callable[[Payload], None]) -> None:
        self._emit = emit
        self._attempt = 0
        self._started = False
        self._items: list[str] = []

    def attempt(self) -> Callable[[Payload], None]:
        """The `emit` of the next attempt."""
        self._attempt += 1
        self._items = []
        prefix, emit = f"{self._attempt}:", self._emit

        def pass_on(payload: Payload) -> None:
            if isinstance(payload, ItemDelta):
                emit(ItemDelta(prefix + payload.item_id, payload.delta_content))
            elif isinstance(payload, (ItemStart, ItemDone, ItemError, ItemCancelled)):
                named = replace(payload, item_id=prefix + payload.item_id)
                if isinstance(payload, ItemStart):
                    self._items.append(named.item_id)
                emit(named)
            elif isinstance(payload, ResponseStart) and not self._started:
                self._started = True
                emit(payload)

        return pass_on

    def discard(self, why: str) -> None:
        """Close the items of an attempt that came to nothing, those included that had been finished."""
        for item in self._items:
            self._emit(ItemError(item, StreamError("RETRY", why)))
        self._items = []


async def _attempt(crystal: Crystal, query: Query) -> Response:
    """One attempt: the named boundary around the provider call (D-011)."""
    response = attempt_now(crystal, query)
    if response is not None:
        return response
    call = _caller(crystal.invoke)
    try:
        return _checked(await call(query), query)
    except CantripError:
        raise
    except asyncio.CancelledError as stray:
        if _is_cancelled():
            raise
        raise CrystalError(f"{crystal_name(crystal)}: something that the crystal waited for was cancelled") from stray
    except Exception as error:
        raise _translated(crystal, error) from error
    except BaseExceptionGroup as group:
        # cancelled while something inside failed as well: only the cancellation may leave, see circle/gates.py
        cancelled, others = group.split(anyio.get_cancelled_exc_class())
        if cancelled is None or (others is not None and not isinstance(others, Exception)):
            raise
        leaf: BaseException = cancelled
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        raise leaf from None


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is None or task.cancelling() > 0


def _checked(answer: Any, query: Query) -> Response:
    response = Response.of(answer)
    if query.invocation.tool_choice == "required" and not (response.tool_calls or response.code):
        raise NoCall(response)
    return response


# --------------------------------------------------------------------------------------------- asking again (CRYSTAL-5)


def _insisting(query: Query, response: Response) -> Query:
    """The same query, with the answer that would not do and what is wanted: seen by the crystal, kept by nobody."""
    given = query.invocation
    names = ", ".join(tool.name for tool in given.tools)
    wanted = Message("user", f"[a tool call is required here: call at least one of {names or 'your tools'}]")
    said = Message("assistant", response.content, thinking=response.thinking, blocks=response.blocks)
    number = given.messages.query if isinstance(given.messages, View) else 0
    messages = View(Shared([*given.messages, said, wanted]), query=number)
    return query._replace(invocation=Invocation(messages, given.tools, given.tool_choice))


def _never_called(crystal: Crystal, query: Query) -> CrystalError:
    names = ", ".join(tool.name for tool in query.invocation.tools) or "none were offered"
    return CrystalError(
        f"crystal returned no tool call although tool_choice is required: {crystal_name(crystal)} was asked "
        f"{INSISTENCE + 1} times (tools: {names}); use tool_choice='auto', or a crystal that can be made to call"
    )


# ------------------------------------------------------------------------------------------------- errors of a provider


def _translated(crystal: Crystal, error: Exception) -> CrystalError:
    """What a crystal's own code raised, as the error that the cast ends with or the failure that is retried."""
    leaf: BaseException = error
    while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
        leaf = leaf.exceptions[0]
    if isinstance(leaf, CrystalError):
        return leaf
    text = str(leaf)
    said = f"{type(leaf).__name__}: {text}" if text else type(leaf).__name__
    httpx = sys.modules.get("httpx")  # it is not imported for this: an error of its own comes from where it was
    if httpx is not None and isinstance(leaf, httpx.HTTPStatusError):
        return ProviderError(
            text, status=leaf.response.status_code, retry_after=retry_after(leaf.response.headers, time.time())
        )
    unreached = (ConnectionError, TimeoutError, *(() if httpx is None else (httpx.TransportError,)))
    if isinstance(leaf, unreached):
        return ProviderError(f"{crystal_name(crystal)} could not be reached: {said}")
    return CrystalError(f"crystal raised {said}")


def _gave_up(failed: ProviderError, attempts: int, retry: Retry) -> ProviderError:
    status = "no answer" if failed.status is None else f"status {failed.status}"
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return ProviderError(
        f"crystal gave up after {tries} ({status}): {failed}; {_advice(failed, retry)}",
        status=failed.status,
        retry_after=failed.retry_after,
        attempts=attempts,
        retryable=failed.retryable,
    )


def _advice(failed: ProviderError, retry: Retry) -> str:
    status = failed.status
    again = f"raise Retry(max_retries={retry.max_retries})"
    match status:
        case None | 429 if failed.retryable is False:
            return "the provider's message says why trying again would not help"
        case None:
            return f"check the network and the provider's address, or {again}"
        case 401 | 403:
            return "check the API key and what it may use"
        case 402:
            return "check the account's credit"
        case 404:
            return "check the model's name and the provider's address"
        case _ if failed.retryable or status in retry.retryable_status_codes:
            return f"try later, or {again}"
        case _ if status < 500:
            return "the request itself was refused: the provider's message says why; it is not tried again"
        case _:
            return f"this status is not tried again: add {status} to Retry(retryable_status_codes=…)"


# ----------------------------------------------------------------------------------------- calling what a user has made

_Caller = Callable[[Query], Awaitable[Any]]
_callers: weakref.WeakKeyDictionary[Any, Callable[[Query], tuple[Sequence[Any], Mapping[str, Any]]]] = (
    weakref.WeakKeyDictionary()
)


def _caller(invoke: Callable[..., Any]) -> _Caller:
    """How this `invoke` wants to be called. A plain function may block, so it gets a thread."""
    arrange = _arrangement(invoke)
    method = inspect.unwrap(invoke)
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004  # it is the method that is asked

        async def awaited(query: Query) -> Any:
            args, kwargs = arrange(query)
            answer = invoke(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        return awaited

    async def threaded(query: Query) -> Any:
        args, kwargs = arrange(query)
        work = partial(invoke, *args, **kwargs)
        # in a tuple, because trio takes a bare coroutine that comes back from a thread for a mistake
        (answer,) = await anyio.to_thread.run_sync(lambda: (work(),), abandon_on_cancel=True, limiter=_threads())
        return await answer if inspect.isawaitable(answer) else answer

    return threaded


def _threads() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        made = anyio.CapacityLimiter(THREADS)
        _limiter.set(made)
        return made


def _arrangement(invoke: Callable[..., Any]) -> Callable[[Query], tuple[Sequence[Any], Mapping[str, Any]]]:
    """How to pass a query to `invoke`: looked up once for each function, since a signature is slow to read."""
    key = getattr(invoke, "__func__", invoke)
    try:
        return _callers[key]
    except (KeyError, TypeError):  # TypeError: a callable that cannot be referred to weakly, or has no hash
        pass
    arrange = _arranged(invoke)
    with contextlib.suppress(TypeError):
        _callers[key] = arrange
    return arrange


_GIVEN: Final = ("messages", "tools", "tool_choice", "options", "emit")


def _arranged(invoke: Callable[..., Any]) -> Callable[[Query], tuple[Sequence[Any], Mapping[str, Any]]]:
    """Read the signature: what it names is passed by name; its other positional parameters take the rest, in order."""
    try:
        parameters = list(inspect.signature(invoke).parameters.values())
    except (TypeError, ValueError):  # built in C, or a mock: the contract's own order
        return lambda query: ((query.invocation.messages, query.invocation.tools, query.invocation.tool_choice), {})
    by_name = (p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    named = {name for name in by_name if name in _GIVEN}
    by_order: list[str] = []
    left = [name for name in _GIVEN[:3] if name not in named]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_order.extend(left)
            left = []
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update([*left, "options"])
            left = []
        elif parameter.kind is parameter.POSITIONAL_ONLY or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in named
        ):
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in left:
                left.remove(parameter.name)
                by_order.append(parameter.name)
            elif parameter.default is parameter.empty and left:
                by_order.append(left.pop(0))

    def arrange(query: Query) -> tuple[Sequence[Any], Mapping[str, Any]]:
        invocation, options, emit = query
        given = {
            "messages": invocation.messages,
            "tools": invocation.tools,
            "tool_choice": invocation.tool_choice,
            "options": options,
            "emit": emit,
        }
        return [given[name] for name in by_order], {name: given[name] for name in named}

    return arrange
