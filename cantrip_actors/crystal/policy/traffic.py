"""The queries to one crystal, running and waiting; applies its limits and its circuit breaker.

The decisions are in other files, without a clock and without tasks: `limits.py` says which query may begin,
`breaker.py` whether the provider is asked at all, `estimate.py` how many tokens a query will take. This file waits, and
records each result. A crystal without limits makes a query wait only while its provider refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from cantrip_actors.crystal.answer_contract import NotAsAsked
from cantrip_actors.crystal.policy.breaker import NEVER, BreakerPhase, Circuit, CircuitOpen, Pass
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.limited import LimitTerms
from cantrip_actors.crystal.policy.limits import UNLIMITED, Attempt, AttemptEnd, AttemptQueue, classify_end
from cantrip_actors.crystal.policy.shared import AccountRequest, Grant, add, make_ask
from cantrip_actors.crystal.query import Query
from cantrip_actors.terms.errors import CrystalError
from cantrip_actors.terms.messages import Response, Usage


class CrystalStatus(NamedTuple):
    """The status of one crystal.

    `running` requests are at the provider, and `waiting` requests are in the queue. `paused_for` is the seconds for
    which no request begins, because the provider asked for a pause; `window` is how many may run during the recovery
    from a refusal, None otherwise. `breaker` is "closed" for a crystal without a breaker; `reopens_in` is the seconds
    until it may be tried again.
    """

    name: str
    running: int = 0
    waiting: int = 0
    paused_for: float = 0.0
    window: int | None = None
    breaker: BreakerPhase = "closed"
    reopens_in: float = 0.0


class Books(NamedTuple):
    """The state that the next incarnation of the actor resumes with."""

    queue: AttemptQueue
    circuit: Circuit


_NOT_BEGUN = AttemptEnd("unknown", used=0)
_CANCELLED = AttemptEnd("unknown")
_ANSWERED = AttemptEnd("answered")


class Traffic:
    """The queries to one crystal. `wake` is called with the seconds after which to call `tick`, None for never."""

    def __init__(
        self,
        name: str,
        terms: LimitTerms,
        wake: Callable[[float | None], None],
        estimator: Estimator | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._wake = wake
        self._look = look
        """Called when a queue with shared limits may want to draw more."""
        self._queue = AttemptQueue(terms.limits or UNLIMITED)
        self._circuit = Circuit(terms.breaker or NEVER)
        self._estimator = estimator or Estimator()
        self._arrivals = 0
        self._counts_tokens = self._queue.limits.tokens_per_minute is not None

    # Attempts

    def count_arrival(self) -> int:
        """Return the number of a query that has just arrived; it decides the queue position of all its attempts."""
        self._arrivals += 1
        return self._arrivals

    async def pass_through(self, since: int, query: Query, attempt: Callable[[Query], Awaitable[Response]]) -> Response:
        """Make the attempt when its turn comes; `since` is the number of its query.

        Raises the attempt's own error, or CircuitOpen if the breaker is open.
        """
        # first, because a crystal's own estimate may raise, and a probe would then stay under way for ever
        tokens = self._estimator.estimate_tokens(query.invocation, query.options) if self._counts_tokens else 0.0
        now = anyio.current_time()
        passed = self._circuit.enter(now)
        if passed is None:
            raise self._make_open_error(now)
        place, ended = Attempt(tokens, since), _NOT_BEGUN
        try:
            self._note(self._queue.ask(place, now), now)
            if place.epoch is None:
                await self._wait_for_turn(place)
            ended = _CANCELLED
            try:
                response = await attempt(query)
            except CrystalError as error:
                ended = (
                    self._record_answer(query, error.usage) if isinstance(error, NotAsAsked) else classify_end(error)
                )
                raise
            ended = self._record_answer(query, response.usage)
            return response
        finally:
            self._end_attempt(place, passed, ended)

    def tick(self) -> None:
        """Handle the end of the wait that was passed to `wake`."""
        now = anyio.current_time()
        self._note(self._queue.admit(now), now)

    # Seeing and keeping

    def get_status(self, now: float) -> CrystalStatus:
        """Return the crystal's status at a time of its event loop; from any thread."""
        queue, circuit = self._queue, self._circuit
        paused = max(0.0, queue.paused_until - now)
        waiting, phase = len(queue.waiting), circuit.get_phase(now)
        return CrystalStatus(
            self._name, queue.running, waiting, paused, queue.window, phase, circuit.get_time_to_reopen(now)
        )

    def copy_books(self) -> Books:
        """Return the state to keep when the actor is restarted: everything but the attempts in flight."""
        return Books(self._queue.copy_for_restart(), self._circuit.copy_for_restart())

    def restore(self, books: Books) -> None:
        """Resume with the state of an earlier incarnation."""
        self._queue, self._circuit = books

    @property
    def is_idle(self) -> bool:
        """Return whether no query waits or runs, and nothing drawn from the account is left."""
        queue = self._queue
        return not (queue.waiting or queue.running or queue.places or queue.requests.left > 0 or queue.tokens.left > 0)

    # Changes

    async def _wait_for_turn(self, place: Attempt) -> None:
        """Wait for the attempt's turn. Raises CircuitOpen if the breaker opens meanwhile."""
        turn = anyio.Event()
        place.wake = turn.set
        await turn.wait()
        if place.epoch is None:
            raise self._make_open_error(anyio.current_time())

    def _end_attempt(self, place: Attempt, passed: Pass, ended: AttemptEnd) -> None:
        now = anyio.current_time()
        if self._circuit.end(passed, ended.outcome, now, ended.why):
            for attempt in self._queue.clear():  # the waiting attempts would wait in vain
                if attempt.wake is not None:
                    attempt.wake()
        begun = place.epoch is not None
        self._note(self._queue.end(place, ended, now) if begun else self._queue.leave(place, now), now)

    def make_ask(self, holder: str, since: float) -> AccountRequest | None:
        """Return the request to the shared account, None if nothing is needed."""
        return make_ask(self._queue, holder, anyio.current_time(), since)

    def add(self, ask: AccountRequest, grant: Grant) -> None:
        """Start the attempts that a grant allows."""
        now = anyio.current_time()
        self._note(add(self._queue, ask, grant, now), now)

    def _note(self, wake_at: float | None, now: float) -> None:
        self._look()
        if self._queue.waiting:
            self._wake(None if wake_at is None else max(0.0, wake_at - now))

    def _record_answer(self, query: Query, usage: Usage) -> AttemptEnd:
        if not self._counts_tokens or usage.estimated_tokens or not usage.total_tokens:
            return _ANSWERED  # without reported usage, the estimate stands
        self._estimator.learn(query.invocation, usage)
        return AttemptEnd("answered", used=usage.total_tokens)

    def _make_open_error(self, now: float) -> CircuitOpen:
        seconds = self._circuit.get_time_to_reopen(now)
        until = f"for {seconds:.3g} s more" if seconds else "while it is being tried whether it works again"
        return CircuitOpen(
            f"{self._name} is not asked {until}: its circuit breaker is open after failures, the last of them: "
            f"{self._circuit.why}",
            retry_after=seconds,
            retryable=False,
        )
