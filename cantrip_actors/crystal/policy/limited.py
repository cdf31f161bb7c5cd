"""The terms of a crystal: its limits, its breaker, a deadline, and a second attempt if the first is slow.

A crystal has them as optional attributes (`limits`, `breaker`, `deadline`, `hedge`): `limited(crystal, …)` adds them to
any crystal, and your own class can define them. The crystal's actor enforces them for all entities that use this very
object: two objects have separate limits, even if they stand for the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from cantrip_actors.crystal.policy.breaker import Breaker
from cantrip_actors.crystal.policy.fallback import Fallback
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.policy.wrapper import CrystalWrapper
from cantrip_actors.crystal.query import AnsweringCrystal, PostingCrystal, Query, ask
from cantrip_actors.crystal.resolve import resolve
from cantrip_actors.terms.arguments import check, check_kind, is_finite, is_number, is_positive
from cantrip_actors.terms.crystal import Crystal, check_crystal, get_crystal_name
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.terms.messages import Response
from cantrip_actors.terms.retry import Retry

_ONCE: Final = Retry(max_retries=0)

_KNOWN: Final = 20
"""How many answers are needed before their times define what is slow."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """A second attempt if the first is silent for too long; the one that speaks first is used, the other is cancelled.

    Too long means `after` seconds. If `after` is left out, it means longer than the share `quantile` of the crystal's
    last answers took to begin; until enough answers are known there is no second attempt. The limits apply to both.
    """

    after: float | None = None
    quantile: float = 0.95

    def __post_init__(self) -> None:
        fits = self.after is None or is_finite(self.after, 0)
        check(fits, "hedge: after", "seconds >= 0, or None", self.after, InvalidCantrip)
        fits = is_positive(self.quantile) and self.quantile < 1
        check(fits, "hedge: quantile", "a share between 0 and 1", self.quantile, InvalidCantrip)

    def threshold(self, waits: Sequence[float]) -> float | None:
        """Return the seconds of silence before a second attempt, None for never. `waits`: those of the last answers."""
        if self.after is not None:
            return self.after
        if len(waits) < _KNOWN:
            return None
        return sorted(waits)[min(len(waits) - 1, ceil(len(waits) * self.quantile) - 1)]


class LimitTerms(NamedTuple):
    """The terms of one crystal. `deadline` is in seconds, for a whole query: waiting, attempts and pauses."""

    limits: Limits | None = None
    breaker: Breaker | None = None
    deadline: float | None = None
    hedge: Hedge | None = None


NO_TERMS: Final = LimitTerms()


def read_terms(crystal: object) -> LimitTerms:
    """Return the terms that a crystal has as attributes. Attributes of other types (a mock's, say) are ignored."""
    limits, breaker = getattr(crystal, "limits", None), getattr(crystal, "breaker", None)
    deadline, hedge = getattr(crystal, "deadline", None), getattr(crystal, "hedge", None)
    terms = LimitTerms(
        limits if isinstance(limits, Limits) else None,
        breaker if isinstance(breaker, Breaker) else None,
        deadline if is_number(deadline) else None,
        hedge if isinstance(hedge, Hedge) else None,
    )
    return NO_TERMS if terms == NO_TERMS else terms


class Limited(CrystalWrapper, AnsweringCrystal):
    """A crystal with terms. Make one with `limited`.

    Only its actor enforces them: `invoke` without a runtime queries the inner crystal directly.
    """

    def __init__(self, crystal: Crystal, terms: LimitTerms) -> None:
        super().__init__(crystal)
        self.limits, self.breaker, self.deadline, self.hedge = terms

    def bind(self) -> Crystal:
        """Return the inner crystal for one entity, bound if it has a `bind`, without the terms: its actor has them."""
        bind = getattr(self.crystal, "bind", None)
        bound: Crystal = self.crystal if bind is None else bind()
        return bound

    async def answer_query(self, query: Query) -> Response:
        """Make one attempt at the inner crystal."""
        return await ask(self.crystal, query, retry=_ONCE)

    def __repr__(self) -> str:
        agreed = [f"{name}={value!r}" for name, value in read_terms(self)._asdict().items() if value is not None]
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
    """Return `crystal` with terms: `limits` (or their fields), a circuit breaker, a deadline in seconds, a hedge.

    Use the one object that this returns wherever the terms should be shared.

    Raises InvalidCantrip for invalid terms, and for a crystal that already has terms or is a fallback.
    """
    inner = resolve(crystal)
    if isinstance(inner, Fallback):
        raise InvalidCantrip("limited: limit the crystals one by one: fallback(limited(…), limited(…))")
    if isinstance(inner, PostingCrystal):
        raise InvalidCantrip(f"limited: {get_crystal_name(inner)} answers hours later: its provider limits it")
    if read_terms(inner) is not NO_TERMS:
        raise InvalidCantrip(f"limited: {get_crystal_name(inner)} has terms already: give all of them at once")
    check_crystal("limited", inner)
    fields = (concurrency, requests_per_minute, tokens_per_minute)
    if any(field is not None for field in fields):
        if limits is not None:
            raise InvalidCantrip("limited: give either limits=Limits(…) or its fields, not both")
        limits = Limits(*fields)
    fits = deadline is None or is_positive(deadline)
    check(fits, "limited: deadline", "seconds > 0", deadline, InvalidCantrip)
    for name, value, kind in (("limits", limits, Limits), ("breaker", breaker, Breaker), ("hedge", hedge, Hedge)):
        check_kind(f"limited: {name}", value, kind | None, f"a {kind.__name__}", InvalidCantrip)
    return Limited(inner, LimitTerms(limits, breaker, deadline, hedge))
