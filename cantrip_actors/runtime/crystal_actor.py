"""The crystal actor: every query to one crystal goes through it.

Retries stay inside (D-006): a caller gets one answer, as a value: a Response, or the CrystalError of the last
attempt. A crystal that answers without waiting is answered inline. For any other crystal each query is a task of
this actor. If the caller is gone (cancelled, or past its deadline), its query leaves the queue or closes its
connection at once.

The crystal's policy (`crystal/policy/limited.py`) holds for all entities that use the crystal, because they all ask
this actor: limits and breaker apply to each attempt, the deadline to the whole query. A crystal with fallbacks
(`crystal/policy/fallback.py`) has an actor of another class, which asks the actors of its crystals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import anyio

from cantrip_actors.crystal.policy.breaker import CircuitOpen
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.hedge import Waits, hedged
from cantrip_actors.crystal.policy.limited import NO_TERMS, Terms
from cantrip_actors.crystal.policy.traffic import Books, CrystalStatus, Traffic
from cantrip_actors.crystal.query import Query, Through, ask, attempt_now
from cantrip_actors.runtime.context_variables import ContextVariables, bound_variables
from cantrip_actors.terms.cantrip import Crystal, Retry, crystal_name
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Response
from supervisors import NO_REPLY, Actor, ActorRef, Caller
from supervisors.backend import Timer

__all__ = ["STATUS", "CrystalActor", "CrystalRequest", "FallbackActor"]


class CrystalRequest(NamedTuple):
    """A query to this actor's crystal. `crystal` is that crystal, bound for the asking entity."""

    crystal: Crystal
    query: Query
    retry: Retry
    context_variables: ContextVariables = ()
    """The context variables of the caller that the query is for."""


class _Status(NamedTuple):
    """A request for the status of a crystal."""


STATUS = _Status()
"""A crystal's actor replies to this message with a `CrystalStatus`."""

_TICK = object()


class CrystalActor(Actor):
    """Queries one crystal for all entities that use it."""

    has_tasks: ClassVar[bool] = True

    def __init__(self, name: str = "crystal", terms: Terms = NO_TERMS, estimator: Estimator | None = None) -> None:
        self._name = name
        self._terms = terms
        self._answers_inline = terms is NO_TERMS
        self._traffic = Traffic(name, terms, self._wake, estimator)
        self._waits = Waits()
        self._timer: Timer | None = None

    def snapshot(self) -> Books:
        """Return the accounts, so that limits still count earlier requests after a restart."""
        return self._traffic.books()

    def restore(self, state: Books) -> None:
        """Restore the accounts of the last incarnation."""
        self._traffic.go_on(state)

    async def handle_call(self, message: CrystalRequest | _Status, caller: Caller) -> Any:
        """A Response or a CrystalError for an `CrystalRequest`, a CrystalStatus for `STATUS`."""
        if message.__class__ is _Status:
            return self._traffic.status()
        assert isinstance(message, CrystalRequest), "a crystal's actor is asked for answers and for its status"
        failed: ProviderError | None = None
        if self._answers_inline:
            try:
                with bound_variables(message.context_variables):
                    response = attempt_now(message.crystal, message.query)
            except ProviderError as error:
                failed = error
            except CrystalError as error:
                return error
            else:
                if response is not None:
                    return response
        self.tasks.start_soon(self._wait_for, message, failed, caller)
        return NO_REPLY

    async def handle_info(self, message: Any) -> None:
        """Start the waiting queries whose time has come."""
        if message is _TICK:
            self._timer = None
            self._traffic.tick()

    def _wake(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.send_after(seconds, _TICK)

    async def _wait_for(self, message: CrystalRequest, failed: ProviderError | None, caller: Caller) -> None:
        with anyio.CancelScope() as scope, bound_variables(message.context_variables):
            caller.on_abandoned(scope.cancel)
            caller.reply(await self._answer(message, failed))

    async def _answer(self, message: CrystalRequest, failed: ProviderError | None) -> Response | CrystalError:
        deadline = self._terms.deadline
        if deadline is None:
            return await self._ask(message, failed)
        with anyio.move_on_after(deadline):
            return await self._ask(message, failed)
        return ProviderError(f"{self._name}: no answer within {deadline:g} s (deadline), with all waiting and retries")

    async def _ask(self, message: CrystalRequest, failed: ProviderError | None) -> Response | CrystalError:
        # a query that fails at once on a crystal without terms is retried without a place in the queue
        through = None if failed is not None else self._way(self._traffic.arrival())
        try:
            return await ask(message.crystal, message.query, retry=message.retry, failed=failed, through=through)
        except CrystalError as error:
            return error.__cause__ if isinstance(error.__cause__, CircuitOpen) else error

    def _way(self, since: int) -> Through:
        """Return the policy that each attempt of a query passes through; `since` is the query's number."""
        hedge, limited = self._terms.hedge, partial(self._traffic.through, since)
        return limited if hedge is None else partial(hedged, hedge, self._waits, limited)


class FallbackActor(Actor):
    """Queries one crystal with fallbacks. `members` are the actors of its member crystals, in order."""

    has_tasks: ClassVar[bool] = True

    def __init__(self, name: str, members: Sequence[ActorRef]) -> None:
        self._name = name
        self._members = members
        self._running = 0

    async def handle_call(self, message: CrystalRequest | _Status, caller: Caller) -> Any:
        """A Response or a CrystalError for an `CrystalRequest`, a CrystalStatus for `STATUS`."""
        if message.__class__ is _Status:
            return CrystalStatus(self._name, self._running)
        assert isinstance(message, CrystalRequest), "a crystal's actor is asked for answers and for its status"
        self.tasks.start_soon(self._wait_for, message, caller)
        return NO_REPLY

    async def _wait_for(self, message: CrystalRequest, caller: Caller) -> None:
        crystal, query, retry, context_variables = message
        assert isinstance(crystal, Fallback), f"{crystal_name(crystal)} does not fall back"

        async def ask_one(number: int, one: Crystal, query: Query) -> Response | CrystalError:
            reply: Response | CrystalError = await self._members[number].call(
                CrystalRequest(one, query, retry, context_variables)
            )
            return reply

        self._running += 1
        try:
            with anyio.CancelScope() as scope, bound_variables(context_variables):
                caller.on_abandoned(scope.cancel)
                caller.reply(await crystal.answer(query, ask_one))
        finally:
            self._running -= 1
