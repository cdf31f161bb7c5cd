"""The queries to one crystal: which run, which wait, and how its limits and its circuit breaker are applied.

The decisions are pure and live elsewhere: `limits.py` says which query may begin, `breaker.py` whether the provider is
asked at all, `estimate.py` how many tokens a query will take. This file keeps the queue and records each result.

A crystal without limits never makes a query wait; its queries are only counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from cantrip_actors.crystal.policy.breaker import (
    CLOSED,
    Circuit,
    CircuitOpen,
    Outcome,
    Pass,
    Phase,
    enter,
    outcome_of,
    phase,
    reopens,
)
from cantrip_actors.crystal.policy.breaker import ended as circuit_ended
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.limited import Terms
from cantrip_actors.crystal.policy.limits import (
    UNLIMITED,
    Asks,
    Clears,
    Ends,
    Event,
    Grant,
    Leaves,
    State,
    Ticks,
    advance,
    is_refusal,
)
from cantrip_actors.crystal.query import ChoiceIgnored, Query
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Response, Usage

__all__ = ["Books", "CrystalStatus", "Traffic"]


class CrystalStatus(NamedTuple):
    """How things stand with one crystal.

    `running` requests are with the provider, `waiting` for their turn. `paused_for` seconds nobody begins, because the
    provider said so; `window` is how many may run while a refusal is got over, None otherwise. `breaker` is "closed"
    where there is none; `reopens_in` is when it may be tried again.
    """

    name: str
    running: int = 0
    waiting: int = 0
    paused_for: float = 0.0
    window: int | None = None
    breaker: Phase = "closed"
    reopens_in: float = 0.0


class Books(NamedTuple):
    """What the next incarnation of the actor goes on with."""

    state: State
    circuit: Circuit
    estimator: Estimator


class _Waiter:
    """One attempt in the queue."""

    __slots__ = ("event", "grant", "refused")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.grant: Grant | None = None
        self.refused: CircuitOpen | None = None


_UNCOUNTED = Grant(0, 0.0, 0)
_CLOSED = Pass(0)


class Traffic:
    """One crystal's. `wake` is called with the seconds after which `tick` is to be called, None for not at all."""

    def __init__(
        self, name: str, terms: Terms, wake: Callable[[float | None], None], estimator: Estimator | None = None
    ) -> None:
        self._name = name
        self._limits = terms.limits or UNLIMITED
        self._breaker = terms.breaker
        self._wake = wake
        self._state = State()
        self._circuit = CLOSED
        self._estimator = estimator or Estimator()
        self._waiters: dict[int, _Waiter] = {}
        self._arrivals = self._ticket = 0
        self._running = 0
        self._counts_tokens = self._limits.tokens_per_minute is not None
        limits = (self._limits.concurrency, self._limits.requests_per_minute, self._limits.tokens_per_minute)
        self._limited = any(limit is not None for limit in limits)
        self._free = not self._limited
        """Whether everybody may begin: then `_running` is counted here, and the state says nothing of it."""

    # Attempts

    def arrival(self) -> int:
        """The number of a query that has just come: what its place in the queue goes by, for all of its attempts."""
        self._arrivals += 1
        return self._arrivals

    async def through(self, since: int, query: Query, attempt: Callable[[Query], Awaitable[Response]]) -> Response:
        """Make the attempt when its turn has come; `since` is the number of its query.

        Raises what it raises, CircuitOpen where it is not to be made.
        """
        given = _CLOSED if self._breaker is None else self._enter()
        grant = _UNCOUNTED
        if self._free:
            self._running += 1
        else:
            grant = await self._begin(since, query, given)
        end, outcome, why = Ends(grant), Outcome.unknown, ""
        try:
            response = await attempt(query)
        except ChoiceIgnored as made:
            end, outcome = self._answered(grant, query, made.response.usage), Outcome.answered
            raise
        except ProviderError as error:
            end, outcome, why = _failed(grant, error), outcome_of(error), str(error)
            raise
        except CrystalError:  # an answer, though one that breaks the contract
            end, outcome = Ends(grant, answered=True), Outcome.answered
            raise
        else:
            end, outcome = self._answered(grant, query, response.usage), Outcome.answered
            return response
        finally:
            self._over(end, given, outcome, why)

    def tick(self) -> None:
        """The time has come that `wake` was told."""
        if not self._free:
            self._advance(Ticks())

    # Seeing and keeping

    def status(self) -> CrystalStatus:
        """How things stand."""
        now, state, circuit = anyio.current_time(), self._state, self._circuit
        running = self._running if self._free else state.running
        paused = max(0.0, state.paused_until - now)
        return CrystalStatus(
            self._name, running, len(state.waiting), paused, state.window, phase(circuit, now), reopens(circuit, now)
        )

    def books(self) -> Books:
        """What is worth keeping when the actor is restarted: everything but who was on the way."""
        return Books(self._state.restarted(), self._circuit.restarted(), self._estimator)

    def go_on(self, books: Books) -> None:
        """Go on with what an earlier incarnation knew."""
        self._state, self._circuit, self._estimator = books
        self._free = not self._limited and self._state.is_open

    # Limits

    async def _begin(self, since: int, query: Query, given: Pass) -> Grant:
        """Wait until its turn has come."""
        self._ticket = ticket = self._ticket + 1
        waiter = self._waiters[ticket] = _Waiter()
        tokens = self._estimator.tokens(query.invocation, query.options) if self._counts_tokens else 0.0
        self._advance(Asks(ticket, tokens, since))
        if waiter.grant is None:
            try:
                await waiter.event.wait()
            except BaseException:
                self._gone(ticket, waiter, given)
                raise
        if waiter.refused is not None:
            self._leave(given)
            raise waiter.refused
        assert waiter.grant is not None, "woken with a grant or refused"
        return waiter.grant

    def _gone(self, ticket: int, waiter: _Waiter, given: Pass) -> None:
        """Who asked waits no more. Its turn may just have come all the same."""
        if waiter.grant is not None:
            self._over(Ends(waiter.grant, used=0), given, Outcome.unknown, "")
            return
        self._waiters.pop(ticket, None)
        self._advance(Leaves(ticket))
        self._leave(given)

    def _advance(self, event: Event) -> None:
        now = anyio.current_time()
        self._state, granted, wake_at = advance(self._limits, self._state, event, now)
        for grant in granted:
            waiter = self._waiters.pop(grant.ticket)
            waiter.grant = grant
            waiter.event.set()
        if self._state.waiting:
            self._wake(None if wake_at is None else max(0.0, wake_at - now))
        elif not self._limited and self._state.is_open:
            self._free, self._running = True, self._state.running

    def _over(self, end: Ends, given: Pass, outcome: Outcome, why: str) -> None:
        if self._breaker is not None:
            self._judge(given, outcome, why)
        if self._free:
            if not end.refused:
                self._running -= 1
                return
            # from here on it is not just counted: those on the way are those of this epoch
            self._free = False
            self._state = self._state.taken_up(self._running)
            end = end._replace(grant=_UNCOUNTED._replace(epoch=self._state.epoch))
        self._advance(end)

    def _answered(self, grant: Grant, query: Query, usage: Usage) -> Ends:
        if not self._counts_tokens:
            return Ends(grant, answered=True)
        if usage.estimated_tokens or not usage.total_tokens:  # it does not say: the estimate stands
            return Ends(grant, answered=True)
        self._estimator.learn(query.invocation, usage)
        return Ends(grant, used=usage.total_tokens, answered=True)

    # The breaker

    def _enter(self) -> Pass:
        assert self._breaker is not None
        now = anyio.current_time()
        self._circuit, given = enter(self._breaker, self._circuit, now)
        if given is None:
            raise self._open(now)
        return given

    def _judge(self, given: Pass, outcome: Outcome, why: str) -> None:
        assert self._breaker is not None
        now, before = anyio.current_time(), self._circuit
        self._circuit = after = circuit_ended(self._breaker, before, given, outcome, now, why)
        if after.epoch != before.epoch and after.until is not None:  # who waits would be waiting for nothing
            waiters, self._waiters = self._waiters, {}
            for waiter in waiters.values():
                waiter.refused = self._open(now)
                waiter.event.set()
            if waiters:
                self._advance(Clears())

    def _leave(self, given: Pass) -> None:
        if self._breaker is not None:
            self._judge(given, Outcome.unknown, "")

    def _open(self, now: float) -> CircuitOpen:
        seconds = reopens(self._circuit, now)
        until = f"for {seconds:.3g} s more" if seconds else "while it is being tried whether it works again"
        return CircuitOpen(
            f"{self._name} is not asked {until}: its circuit breaker is open after failures, the last of them: "
            f"{self._circuit.why}",
            retry_after=seconds,
            retryable=False,
        )


def _failed(grant: Grant, error: ProviderError) -> Ends:
    """What a failure is to the limits: one that the provider would not hear took nothing."""
    used = 0 if error.status is not None and error.status >= 400 else None
    if is_refusal(error):
        return Ends(grant, used, refused=True, pause=error.retry_after)
    return Ends(grant, used, answered=error.status is not None and error.status < 500)
