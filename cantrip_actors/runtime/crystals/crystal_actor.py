"""The crystal actor: every query to one crystal goes through it.

Retries stay inside (D-006): a caller gets one answer, as a value: a Response, or the CrystalError of the last
attempt. A crystal that answers without waiting is answered inline. For any other crystal each query is a task of
this actor. If the caller is cancelled, or past its deadline, its query leaves the queue or closes its connection, and
the caller waits for that, up to `GRACE` seconds. A crystal that breaks ends the query of one caller, which crashes.

The crystal's policy (`crystal/policy/limited.py`) holds for all entities that use the crystal, because they all ask
this actor: limits and breaker apply to each attempt, the deadline to the whole query. A crystal with fallbacks
(`crystal/policy/fallback.py`) has an actor of another class, which asks the actors of its crystals.

A crystal of a provider keeps its connections (`keep_connections`) from the first query until it was not asked for
`QUIET` seconds: a turn that follows another needs no new connection.

Queries that were posted (`PostingCrystal`) are watched: one task polls all of them together, and their entities wait
without a task.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple
from uuid import uuid4

import anyio
from anyio.abc import TaskStatus

from cantrip_actors.crystal.policy.breaker import CircuitOpen
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.hedge import REMEMBERED, run_hedged
from cantrip_actors.crystal.policy.limited import NO_TERMS, LimitTerms
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.policy.shared import FRESH, AccountRequest, Grant
from cantrip_actors.crystal.policy.traffic import Books, CrystalStatus, Traffic
from cantrip_actors.crystal.query import AnsweringCrystal, Look, PostingCrystal, Query, Through, ask, attempt_now
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.one_shot_event import OneShotEvent
from cantrip_actors.runtime.events.context_variables import ContextVariables, bind_variables
from cantrip_actors.terms.crystal import Crystal, get_crystal_name
from cantrip_actors.terms.errors import CrystalError, LoomError, ProviderError
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.retry import Retry
from cantrip_actors.terms.value import Value
from cantrip_actors.user_code import Failure, attempt, text_of
from supervisors import Actor, ActorRef, Alarm, Caller


class CrystalRequest(Value, frozen=True):
    """A query to this actor's crystal. `crystal` is that crystal, bound for the asking entity."""

    crystal: Crystal
    query: Query
    retry: Retry
    context_variables: ContextVariables = ()
    """The context variables of the caller that the query is for."""


class Watched:
    """A posted query for which an entity waits. `ready` is set when its answer can be collected."""

    __slots__ = ("handle", "is_left", "ready")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.ready = OneShotEvent()
        self.is_left = False
        """Whether the entity does not wait any more."""


class Abandoned(NamedTuple):
    """A posted query whose entity was interrupted or stopped."""

    handle: Any


Draw = Callable[[Limits, AccountRequest], Awaitable[Grant]]
"""Draws a slice of limits that other processes share. Raises LoomError."""

_TICK = object()

PATIENCE = 60.0
"""Seconds until posted queries are polled again after a poll that failed."""

GRACE: Final = 5.0
"""Seconds that a cancelled query has to end."""

BREATH = 0.2
"""The least seconds between two polls of posted queries."""

QUIET: Final = 10.0
"""Seconds without a query after which a crystal's connections are closed."""

_log = get_logger("cantrip_actors.runtime")


class CrystalActor(Actor):
    """Queries one crystal for all entities that use it."""

    has_tasks: ClassVar[bool] = True

    def __init__(
        self,
        name: str = "crystal",
        terms: LimitTerms = NO_TERMS,
        estimator: Estimator | None = None,
        posting: PostingCrystal | None = None,
        watched: list[Watched] | None = None,
        draw: Draw | None = None,
    ) -> None:
        self._name = name
        self._posting = posting
        self._watched = [] if watched is None else watched
        """The posted queries that entities wait for. The next incarnation has the same list."""
        self._news = anyio.Event()
        self._terms = terms
        self._answers_inline = terms is NO_TERMS
        self._draw = draw
        self._drawing = anyio.Event()
        is_shared = draw is not None and terms.limits is not None and terms.limits.shared is not None
        again: tuple[Callable[[], object], ...] = (self._look_again,) if is_shared else ()
        self._traffic = Traffic(name, terms, self._wake, estimator, *again)
        self._waits: deque[float] = deque(maxlen=REMEMBERED)
        self._timer: Alarm | None = None
        self._begun = self._ended = 0
        self._is_connected = False

    async def init(self) -> None:
        """Watch the queries that the last incarnation watched."""
        if self._posting is not None:
            self.tasks.start_soon(self._watch, self._posting)
        limits = self._terms.limits
        if limits is not None and limits.shared is not None and self._draw is not None:
            self.tasks.start_soon(self._keep_drawing, limits, self._draw)

    def _look_again(self) -> None:
        self._drawing.set()

    async def _keep_drawing(self, limits: Limits, draw: Draw) -> None:
        """Draw what queries need from an account that other processes share, and return the unused rest."""
        holder, since = uuid4().hex, -math.inf
        while True:
            self._drawing = anyio.Event()
            ask = self._traffic.make_ask(holder, since)
            if ask is None:
                with anyio.move_on_after(FRESH):
                    await self._drawing.wait()
                if not self._drawing.is_set() and self._traffic.is_idle:
                    await self._drawing.wait()
                continue
            try:
                grant = await draw(limits, ask)
            except LoomError as error:  # until the account is back, no query begins beyond the drawn slice
                _log.warning("shared limits cannot be read", crystal=self._name, limits=limits.shared, why=str(error))
                await anyio.sleep(FRESH)
                continue
            since = anyio.current_time()
            self._traffic.add(ask, grant)
            if ask.requests and not grant.requests:
                await anyio.sleep(min(max(grant.wait, BREATH / 10), FRESH))

    def get_status(self, now: float) -> CrystalStatus:
        """Return the status of the crystal at a time of the event loop; from any thread."""
        return self._traffic.get_status(now)

    def snapshot(self) -> Books:
        """Return the accounts, so that limits still count earlier requests after a restart."""
        return self._traffic.copy_books()

    def restore(self, state: Books) -> None:
        """Restore the accounts of the last incarnation."""
        self._traffic.restore(state)

    async def handle_call(self, message: CrystalRequest, caller: Caller) -> Any:
        """Return a Response or a CrystalError."""
        failed: ProviderError | None = None
        if self._answers_inline:
            try:
                with bind_variables(message.context_variables):
                    response = attempt_now(message.crystal, message.query)
            except ProviderError as error:
                failed = error
            except CrystalError as error:
                return error
            else:
                if response is not None:
                    return response
        return self.answer(caller, self._answer, message, failed)

    async def handle_cast(self, message: Watched | Abandoned) -> None:
        """Watch a posted query, or end the provider's work on it."""
        if isinstance(message, Abandoned):
            if self._posting is not None:
                self.tasks.start_soon(self._abandon, self._posting, message.handle)
            return
        self._watched.append(message)
        self._news.set()

    async def _watch(self, posting: PostingCrystal) -> None:
        """Poll the posted queries, and report which can be collected."""
        while True:
            self._news = anyio.Event()
            self._watched[:] = [one for one in self._watched if not (one.is_left or one.ready.is_set)]
            watched = list(self._watched)
            if not watched:
                await self._news.wait()
                continue
            look = await attempt(partial(self._look, posting, [query.handle for query in watched]))
            if isinstance(look, Failure):
                why = text_of(look.exception)
                _log.warning("posted queries cannot be looked at", crystal=self._name, why=why)
                look = Look([False] * len(watched), PATIENCE)
            for one, is_ready in zip(watched, look.ready, strict=True):
                if is_ready:
                    one.ready.set()
            if not any(look.ready):
                with anyio.move_on_after(max(BREATH, look.seconds)):
                    await self._news.wait()
                await anyio.sleep(BREATH)  # many entities begin to wait together

    async def _look(self, posting: PostingCrystal, handles: Sequence[Any]) -> Look:
        return Look.read(await posting.look(handles), len(handles))

    async def _abandon(self, posting: PostingCrystal, handle: Any) -> None:
        failed = await attempt(partial(posting.abandon, handle))
        if isinstance(failed, Failure):
            why = text_of(failed.exception)
            _log.warning("the work on a posted query cannot be ended", crystal=self._name, why=why)

    async def handle_info(self, message: Any) -> None:
        """Start the waiting queries whose time has come."""
        if message is _TICK:
            self._timer = None
            self._traffic.tick()

    def _wake(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.send_after(seconds, _TICK)

    async def _answer(self, message: CrystalRequest, failed: ProviderError | None) -> Response | CrystalError:
        self._begun += 1
        try:
            crystal = message.crystal
            if not self._is_connected and isinstance(crystal, AnsweringCrystal):
                connections = crystal.keep_connections()
                if connections is not None:
                    self._is_connected = True
                    await self.tasks.start(self._keep_connections, connections)
            return await self._answer_in_time(message, failed)
        finally:
            self._ended += 1

    async def _keep_connections(
        self, connections: AbstractAsyncContextManager[object], *, task_status: TaskStatus[None]
    ) -> None:
        """Keep the connections until the crystal has not been asked for a while."""
        try:
            async with connections:
                task_status.started()
                counts: tuple[int, int] | None = None
                while counts != (self._begun, self._ended) or self._begun != self._ended:
                    counts = self._begun, self._ended
                    await anyio.sleep(QUIET)
        finally:
            self._is_connected = False

    async def _answer_in_time(self, message: CrystalRequest, failed: ProviderError | None) -> Response | CrystalError:
        deadline = self._terms.deadline
        with bind_variables(message.context_variables):
            if deadline is None:
                return await self._ask(message, failed)
            with anyio.move_on_after(deadline):
                return await self._ask(message, failed)
        return ProviderError(f"{self._name}: no answer within {deadline:g} s (deadline), with all waiting and retries")

    async def _ask(self, message: CrystalRequest, failed: ProviderError | None) -> Response | CrystalError:
        # a query that fails at once on a crystal without terms is retried without a place in the queue
        through = None if failed is not None else self._make_policy(self._traffic.count_arrival())
        try:
            return await ask(message.crystal, message.query, retry=message.retry, failed=failed, through=through)
        except CrystalError as error:
            return error.__cause__ if isinstance(error.__cause__, CircuitOpen) else error

    def _make_policy(self, since: int) -> Through:
        """Return the policy that each attempt of a query passes through; `since` is the query's number."""
        hedge, limited = self._terms.hedge, partial(self._traffic.pass_through, since)
        return limited if hedge is None else partial(run_hedged, hedge, self._waits, limited)


class FallbackActor(Actor):
    """Queries one crystal with fallbacks. `members` are the actors of its member crystals, in order."""

    has_tasks: ClassVar[bool] = True

    def __init__(self, name: str, members: Sequence[ActorRef[Any]]) -> None:
        self._name = name
        self._members = members
        self._running = 0

    def get_status(self, now: float) -> CrystalStatus:  # noqa: ARG002  # it has no clock of its own
        """Return how many queries run."""
        return CrystalStatus(self._name, self._running)

    async def handle_call(self, message: CrystalRequest, caller: Caller) -> Any:
        """Return a Response or a CrystalError."""
        return self.answer(caller, self._answer, message)

    async def _answer(self, message: CrystalRequest) -> Response | CrystalError:
        crystal, retry, context_variables = message.crystal, message.retry, message.context_variables
        assert isinstance(crystal, Fallback), f"{get_crystal_name(crystal)} does not fall back"

        async def ask_one(number: int, one: Crystal, query: Query) -> Response | CrystalError:
            request = CrystalRequest(one, query, retry, context_variables)
            call = partial(self._members[number].call, request, grace=GRACE)
            reply: Response | CrystalError = await call(on_late_reply=lambda late: query.report_unanswered(late.usage))
            return reply

        self._running += 1
        try:
            with bind_variables(context_variables):
                return await crystal.answer(message.query, ask_one)
        finally:
            self._running -= 1
