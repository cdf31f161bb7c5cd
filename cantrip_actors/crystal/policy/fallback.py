"""A crystal that falls back: if one crystal gives up, the next one is queried in the same turn.

Each crystal is queried by its own actor, with its own retries, limits and breaker, which also apply to cantrips that
use it directly. The next crystal is queried when that can help: after retries were exhausted, or while a breaker is
open. An error that another crystal would repeat or hide (a request rejected for its content, a wrong key, a missing
model) is raised instead. The answer names the crystal that gave it (`metadata["crystal"]`), and the crystals that
failed with their errors (`metadata["fell_back"]`).

All crystals share one context: each writes it for its own provider, and reasoning goes back only to the crystal that
produced it (`encode.py`). Items streamed by a crystal that then gave up are closed before the next one begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final

import anyio

from cantrip_actors.crystal.policy.breaker import CircuitOpen
from cantrip_actors.crystal.query import AnsweringCrystal, PostingCrystal, Query, Watch, ask
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.terms.crystal import Crystal, check_crystal, get_crystal_name
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.file import File
from cantrip_actors.terms.messages import NO_USAGE, Response, Usage
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.server_tools import ServerTool

AskOne = Callable[[int, Crystal, Query], Awaitable[Response | CrystalError]]
"""Queries the crystal with this number, with all retries; returns its response, or the error after the last retry."""

_AGAIN: Final = frozenset((408, 409, 425, 429))


def worth_another(error: CrystalError) -> bool:
    """Return whether another crystal may succeed: this one's provider is down, overloaded, or limits the rate."""
    if isinstance(error, CircuitOpen):
        return True
    if not isinstance(error, ProviderError) or error.retryable is False:
        return False
    return error.status is None or error.status in _AGAIN or error.status >= 500


class Fallback(AnsweringCrystal):
    """Several crystals in order of preference. Make one with `fallback`."""

    def __init__(self, members: Sequence[Crystal | str], when: Callable[[CrystalError], bool]) -> None:
        self.given: tuple[Crystal | str, ...] = tuple(members)
        self.crystals: tuple[Crystal, ...] = tuple(map(resolve, members))
        self.when = when
        self.name: str = f"fallback({', '.join(map(get_crystal_name, self.crystals))})"
        windows = [getattr(crystal, "context_window", None) for crystal in self.crystals]
        # the smallest, so that folding happens in time for every crystal
        self.context_window: int | None = min((window for window in windows if isinstance(window, int)), default=None)
        # a budget in dollars might never be exhausted if one crystal has no prices
        self.has_prices: bool = not any(getattr(crystal, "has_prices", None) is False for crystal in self.crystals)
        self._bound: dict[int, Crystal] = {}

    def check_server_tools(self, tools: Sequence[ServerTool]) -> None:
        """Raise InvalidCantrip if one of the crystals does not accept one of the tools."""
        for crystal in self.crystals:
            check = getattr(crystal, "check_server_tools", None)
            if callable(check):
                check(tools)

    def why_not(self, file: File) -> str | None:
        """Return why one of the crystals does not accept a file, or None if all do: any of them may receive it."""
        questions = (getattr(crystal, "why_not", None) for crystal in self.crystals)
        return next((why for ask_one in questions if callable(ask_one) and (why := ask_one(file)) is not None), None)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The secrets of all the crystals."""
        secrets: dict[str, str] = {}
        for number, crystal in enumerate(self.crystals):
            own = getattr(crystal, "secrets", None)
            for name, text in own.items() if isinstance(own, Mapping) else ():
                # two crystals may use one name for different keys
                secrets[name if secrets.get(name, text) == text else f"{name} of crystal {number}"] = text
        return secrets

    def bind(self) -> Fallback:
        """Return this crystal for one entity. The first member is bound now, in request order; others when queried."""
        bound: Fallback = copy(self)
        bound._bound = {}
        bound.member(0)
        return bound

    def member(self, number: int) -> Crystal:
        """Return one of the crystals, bound if it has a `bind`."""
        bound = self._bound.get(number)
        if bound is None:
            crystal = self.crystals[number]
            bind = getattr(crystal, "bind", None)
            bound = self._bound[number] = crystal if bind is None else bind()
        return bound

    async def answer(self, query: Query, ask_one: AskOne) -> Response | CrystalError:
        """Return the first response; else the first error that ends the fallback, or one error for all crystals."""
        watch = Watch(query.emit)
        failed: list[tuple[str, CrystalError]] = []
        for number, crystal in enumerate(self.crystals):
            name = get_crystal_name(crystal)
            try:
                reply = await ask_one(number, self.member(number), watch.prepare(query))
            except anyio.get_cancelled_exc_class():
                query.report_unanswered(_sum_usage(failed))
                raise
            if isinstance(reply, Response):
                metadata: dict[str, Any] = {**reply.metadata, "crystal": name}
                if failed:
                    metadata["fell_back"] = [{"crystal": which, "error": str(error)} for which, error in failed]
                return replace(reply, metadata=metadata, usage=_sum_usage(failed) + reply.usage)
            failed.append((name, reply))
            if not self.when(reply):
                break
            if number + 1 < len(self.crystals):
                watch.discard(f"{name} gave up: {reply}")
        return failed[0][1] if len(failed) == 1 else _make_error(failed)

    async def answer_query(self, query: Query) -> Response:
        """Return one answer without a runtime, each crystal with the default retries."""

        async def ask_one(_number: int, crystal: Crystal, query: Query) -> Response | CrystalError:
            try:
                return await ask(crystal, query, retry=Retry())
            except CrystalError as error:
                return error

        reply = await self.answer(query, ask_one)
        if isinstance(reply, Response):
            return reply
        raise reply

    def __repr__(self) -> str:
        return f"<{self.name}>"


def fallback(*crystals: Crystal | str, when: Callable[[CrystalError], bool] = worth_another) -> Fallback:
    """Return a crystal that queries the first of `crystals` and, if it gives up, the next one in the same turn.

    `when` decides, given an error, whether to query the next crystal; the default is `worth_another`.

    Raises InvalidCantrip for fewer than two crystals, and for an object that is not a crystal.
    """
    if len(crystals) < 2:
        raise InvalidCantrip("fallback: expected at least two crystals: fallback('anthropic:…', 'openai:…')")
    for crystal in crystals:
        if isinstance(crystal, Fallback):
            raise InvalidCantrip("fallback: name all crystals in one fallback(…), in their order")
        posts = (
            crystal.startswith(("batch:", "background:"))
            if isinstance(crystal, str)
            else isinstance(crystal, PostingCrystal)
        )
        if posts:
            raise InvalidCantrip("fallback: expected crystals that answer at once: a batch takes hours to fail")
        check_crystal("fallback", crystal)
    return Fallback(crystals, when)


def _sum_usage(failed: Sequence[tuple[str, CrystalError]]) -> Usage:
    return sum((error.usage for _, error in failed), NO_USAGE)


def _make_error(failed: Sequence[tuple[str, CrystalError]]) -> ProviderError:
    """Return one error for all crystals, with the status of the last; not retryable, because each one was retried."""
    reasons = "; ".join(f"{name}: {error}" for name, error in failed)
    errors = [error for _, error in failed]
    last = errors[-1]
    failure = ProviderError(
        f"none of {len(failed)} crystals answered: {reasons}",
        status=last.status if isinstance(last, ProviderError) else None,
        attempts=sum(error.attempts if isinstance(error, ProviderError) else 1 for error in errors),
        retryable=False,
        usage=_sum_usage(failed),
    )
    failure.overflows, failure.__cause__ = last.overflows, last
    return failure
