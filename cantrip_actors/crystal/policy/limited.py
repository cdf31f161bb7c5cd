"""On which terms a crystal is asked: its limits, its breaker, a deadline, a second attempt where the first is slow.

A crystal has them as attributes (`limits`, `breaker`, `deadline`, `hedge`), all of them optional: `limited(crystal, …)`
gives them to any crystal, one's own class can simply have them. Who keeps to them is the crystal's actor, for all
entities that use this very object: two objects have two accounts, also where they stand for one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.policy.breaker import Breaker
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.policy.wrapper import CrystalWrapper
from cantrip_actors.crystal.query import PostingCrystal, Query, ask
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.stream.wire import Emitted
from cantrip_actors.terms.cantrip import Crystal, Retry, crystal_name
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolChoice, ToolDefinition

__all__ = ["NO_TERMS", "Hedge", "Limited", "Terms", "limited", "terms_of"]

_ONCE: Final = Retry(max_retries=0)

_KNOWN: Final = 20
"""Answers that have to be known before their times tell what is slow."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """A second attempt where the first says nothing for too long; the one that speaks first is heard, the other ended.

    Too long is `after` seconds or, left out, longer than the share `quantile` of the crystal's last answers took to
    begin; until enough are known there is no second attempt. It needs a place within the limits like any other.
    """

    after: float | None = None
    quantile: float = 0.95

    def __post_init__(self) -> None:
        after, numbers = self.after, (int, float)
        if after is not None and (isinstance(after, bool) or not isinstance(after, numbers) or not 0 <= after < inf):
            raise InvalidCantrip(f"hedge: after: expected seconds >= 0, or None, got {after!r}")
        if isinstance(self.quantile, bool) or not isinstance(self.quantile, numbers) or not 0 < self.quantile < 1:
            raise InvalidCantrip(f"hedge: quantile: expected a share between 0 and 1, got {self.quantile!r}")

    def threshold(self, waits: Sequence[float]) -> float | None:
        """Seconds without a sign after which to ask again; None for never. `waits` are the last answers' own."""
        if self.after is not None:
            return self.after
        if len(waits) < _KNOWN:
            return None
        return sorted(waits)[min(len(waits) - 1, ceil(len(waits) * self.quantile) - 1)]


class Terms(NamedTuple):
    """What is agreed on for one crystal. `deadline` is in seconds, for all of a query: waiting, attempts, pauses."""

    limits: Limits | None = None
    breaker: Breaker | None = None
    deadline: float | None = None
    hedge: Hedge | None = None


NO_TERMS: Final = Terms()


def terms_of(crystal: object) -> Terms:
    """The terms that a crystal has as attributes. Others of these names (a mock has all names) are none."""
    limits, breaker = getattr(crystal, "limits", None), getattr(crystal, "breaker", None)
    deadline, hedge = getattr(crystal, "deadline", None), getattr(crystal, "hedge", None)
    seconds = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    terms = Terms(
        limits if isinstance(limits, Limits) else None,
        breaker if isinstance(breaker, Breaker) else None,
        deadline if seconds else None,
        hedge if isinstance(hedge, Hedge) else None,
    )
    return NO_TERMS if terms == NO_TERMS else terms


class Limited(CrystalWrapper):
    """A crystal with terms. Make one with `limited`.

    Only its actor keeps to them: to `invoke` it without a runtime is to ask the crystal itself.
    """

    def __init__(self, crystal: Crystal, terms: Terms) -> None:
        super().__init__(crystal)
        self.limits, self.breaker, self.deadline, self.hedge = terms

    def bind(self) -> Crystal:
        """The crystal for one entity: bound as it is bound itself, and without the terms, which its actor has."""
        bind = getattr(self.crystal, "bind", None)
        bound: Crystal = self.crystal if bind is None else bind()
        return bound

    async def invoke(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        tool_choice: ToolChoice | None = None,
        options: Mapping[str, Any] | None = None,
        emit: Callable[[Emitted], None] | None = None,
    ) -> Response:
        """One attempt at the crystal itself (CRYSTAL-1)."""
        query = Query(Invocation(messages, tools, tool_choice), options or {}, emit)
        return await ask(self.crystal, query, retry=_ONCE)

    def __repr__(self) -> str:
        agreed = [f"{name}={value!r}" for name, value in terms_of(self)._asdict().items() if value is not None]
        return f"limited({self.crystal!r}, {', '.join(agreed)})"


def limited(
    crystal: Crystal | str,
    limits: Limits | None = None,
    *,
    concurrency: int | None = None,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    breaker: Breaker | None = None,
    deadline: float | None = None,
    hedge: Hedge | None = None,
) -> Limited:
    """`crystal` on terms: `limits` (or its fields one by one), a circuit breaker, a deadline in seconds, a hedge.

    Use the one object that this returns wherever the terms are to be shared.

    Raises InvalidCantrip for terms that cannot be, and for a crystal that has terms already or falls back.
    """
    inner = resolve(crystal)
    if isinstance(inner, Fallback):
        raise InvalidCantrip("limited: limit the crystals one by one: fallback(limited(…), limited(…))")
    if isinstance(inner, PostingCrystal):
        raise InvalidCantrip(f"limited: {crystal_name(inner)} answers hours later: its provider limits it")
    if terms_of(inner) is not NO_TERMS:
        raise InvalidCantrip(f"limited: {crystal_name(inner)} has terms already: give all of them at once")
    if not callable(getattr(inner, "invoke", None)):
        raise InvalidCantrip(f"limited: expected 'family:model' or an object with invoke, got {crystal!r}")
    fields = (concurrency, requests_per_minute, tokens_per_minute)
    if any(field is not None for field in fields):
        if limits is not None:
            raise InvalidCantrip("limited: give either limits=Limits(…) or its fields, not both")
        limits = Limits(*fields)
    if deadline is not None and (
        isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline < inf
    ):
        raise InvalidCantrip(f"limited: deadline: expected seconds > 0, got {deadline!r}")
    for name, given, kind in (("limits", limits, Limits), ("breaker", breaker, Breaker), ("hedge", hedge, Hedge)):
        if given is not None and not isinstance(given, kind):
            raise InvalidCantrip(f"limited: {name}: expected a {kind.__name__}, got {given!r}")
    return Limited(inner, Terms(limits, breaker, deadline, hedge))
