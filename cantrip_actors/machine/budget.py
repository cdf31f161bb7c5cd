"""Count the usage of subtrees of entities, and find exhausted budgets (PROD-3, readings 26 and 27).

Each entity has a `Ledger` that is linked to its parent's, so that a budget of the parent ends a child too. All ledgers
of a tree live in one event loop. The machine sees a `Budget`, a value that the ledger computes on request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from cantrip_actors.terms.call_limit import CallLimit
from cantrip_actors.terms.messages import NO_USAGE, Usage
from cantrip_actors.terms.period import PeriodBudget
from cantrip_actors.terms.ward import Ward, Wards


class PeriodLevel(NamedTuple):
    """A budget for a period, with the usage of the other entities of its subtree in the present period."""

    budget: PeriodBudget
    rest: Usage
    period: str = ""
    """The name of the present period; empty for an intent."""
    left: float = math.inf
    """Seconds until it ends."""


class Level(NamedTuple):
    """The wards of an entity or an ancestor, with the usage of the other entities of that subtree over its life."""

    wards: Wards
    rest: Usage
    periods: tuple[PeriodLevel, ...] = ()
    is_own: bool = True
    """Whether the wards are those of the entity itself."""


class BudgetGrant(NamedTuple):
    """The amount that people have granted beyond a budget, in one period."""

    period: str
    amount: float


class Spent(NamedTuple):
    """A budget that is used up."""

    ward: Ward
    level: PeriodLevel | None = None
    """Its period; None if the budget is for life."""
    is_own: bool = True

    @property
    def ends(self) -> bool:
        """Whether the entity, or its episode, ends with it, and neither asks a person nor waits for the next period.

        A child cannot ask for more of its parent's budget: its parent asks.
        """
        if self.level is None:
            return True
        when_spent = self.level.budget.when_spent
        return when_spent == "end" or (when_spent == "ask" and not self.is_own)

    @property
    def ends_entity(self) -> bool:
        """Whether a long-lived entity ends with it, and not only its episode."""
        return self.level is None or self.level.budget.per != "intent"


class Budget(NamedTuple):
    """The budgets that limit an entity: its own and those of its ancestors.

    `levels` are their wards, each with the usage of the other entities of that subtree. `below` is the usage of the
    entity's children and their subtrees. `spent_calls` has the limit of each gate that may not be called any more.
    """

    levels: tuple[Level, ...] = ()
    below: Usage = NO_USAGE
    spent_calls: Mapping[str, CallLimit] = {}  # nothing writes to it

    def find_exhausted(self, own: Usage, granted: Mapping[str, BudgetGrant], episode: int) -> Spent | None:
        """Return an exhausted budget, one that ends the entity first; None if no budget is exhausted.

        Args:
            own: the entity's own usage.
            granted: what people have granted beyond its own budgets, by their labels.
            episode: the number of its present episode.
        """
        spent: list[Spent] = []
        for level in self.levels:
            if (ward := level.wards.find_exhausted(level.rest + own)) is not None:
                return Spent(ward)
            for period in level.periods:
                budget = period.budget
                most, grant = budget.most, granted.get(budget.label)
                if level.is_own and grant is not None and grant.period == (period.period or str(episode)):
                    most += grant.amount
                if budget.measure(period.rest + own) >= most:
                    spent.append(Spent(Ward(budget.ward, budget), period, level.is_own))
        return next((budget for budget in spent if budget.ends), spent[0]) if spent else None


NO_BUDGET: Final = Budget()


class LoadedUsage(NamedTuple):
    """The usage of an entity's descendants, and of its whole subtree in the present period of each of its budgets.

    `now` is the time that decides which period is the present one, in seconds since 1970.
    """

    below: Usage
    in_period: Mapping[PeriodBudget, Usage] = {}  # nothing writes to it
    now: float = 0.0
    calls: Mapping[CallLimit, int] = {}
    """The calls that the subtree has begun in the present period of each limit."""


class _PeriodStart(NamedTuple):
    """The usage of a subtree when the present period began, and when that ends, in seconds since 1970."""

    usage: Usage
    end: float


@dataclass(slots=True)
class _CallCount:
    """The calls that a subtree has begun in one period, and when that ends, in seconds since 1970."""

    calls: int
    end: float


class Ledger:
    """The recorded usage of an entity and of all entities below it, and their calls of limited gates."""

    __slots__ = ("_calls", "_is_loaded", "_starts", "above", "below", "limits", "own", "wards")

    def __init__(self, wards: Wards, above: Ledger | None = None, *, is_new: bool = True) -> None:
        self._is_loaded = is_new
        self._starts: dict[PeriodBudget, _PeriodStart] = {}
        has_budget = wards.max_tokens is not None or wards.max_cost is not None or wards.budgets
        self.wards = wards if has_budget else None
        self.limits = wards.calls
        self._calls: dict[CallLimit, _CallCount] = {}
        self.above = above
        self.own = NO_USAGE
        self.below = NO_USAGE

    def add(self, usage: Usage) -> None:
        """Add usage of the entity itself, here and in all ledgers above."""
        self.own = self.own + usage
        ledger = self.above
        while ledger is not None:
            ledger.below = ledger.below + usage
            ledger = ledger.above

    def load(self, own: Usage, loaded: LoadedUsage) -> None:
        """Set the usage of a loaded entity and of all entities below it, as its log says.

        The ledgers above have counted this usage already. A later incarnation only adds what the last one recorded and
        did not count; entities below count for themselves.
        """
        if not self._is_loaded:
            self.own, self.below, self._is_loaded = own, loaded.below, True
            for budget, usage in loaded.in_period.items():
                self._starts[budget] = _PeriodStart(own + loaded.below - usage, budget.find_end(loaded.now))
            for limit, calls in loaded.calls.items():
                self._calls[limit] = _CallCount(calls, limit.find_end(loaded.now))
        elif own != self.own:
            self.add(own - self.own)

    def begin_intent(self) -> None:
        """Begin to count for the budgets of an intent anew."""
        if self.wards is not None:
            for budget in self.wards.budgets:
                if budget.per == "intent":
                    self._starts[budget] = _PeriodStart(self.own + self.below, math.inf)
        for limit in self.limits:
            if limit.per == "intent":
                self._calls.pop(limit, None)

    @contextmanager
    def counting_calls(self, gates: Sequence[str], read_time: Callable[[], float]) -> Iterator[None]:
        """Count calls of these gates, here and in all ledgers above, while their beginning is recorded.

        Other entities of the tree decide about their calls meanwhile. Calls whose record fails have not begun.
        """
        counted: list[tuple[_CallCount, int]] = []
        ledger: Ledger | None = self
        while ledger is not None:
            for limit in ledger.limits:
                if (calls := gates.count(limit.gate)) > 0:
                    count = ledger.get_call_count(limit, read_time())
                    count.calls += calls
                    counted.append((count, calls))
            ledger = ledger.above
        is_recorded = False
        try:
            yield
            is_recorded = True
        finally:
            if not is_recorded:
                for count, calls in counted:  # of the period in which they were counted, also if that is over now
                    count.calls -= calls

    def get_call_count(self, limit: CallLimit, wall: float) -> _CallCount:
        """Return the count of the present period, which begins now if the last one is over."""
        count = self._calls.get(limit)
        if count is None or wall >= count.end:
            count = self._calls[limit] = _CallCount(0, limit.find_end(wall))
        return count

    def make_budget(self, read_time: Callable[[], float]) -> Budget:
        """Return the budgets as they are now. `read_time` returns the seconds since 1970; only periods need it."""
        if self.above is None and self.wards is None and self.below is NO_USAGE and not self.limits:
            return NO_BUDGET
        levels: list[Level] = []
        spent: dict[str, CallLimit] = {}
        ledger: Ledger | None = self
        while ledger is not None:
            for limit in ledger.limits:
                if ledger.get_call_count(limit, read_time()).calls >= limit.most:
                    spent[limit.gate] = limit
            if ledger.wards is not None:
                rest = ledger.own + ledger.below - self.own
                periods = tuple(ledger.make_period(budget, rest, read_time()) for budget in ledger.wards.budgets)
                levels.append(Level(ledger.wards, rest, periods, ledger is self))
            ledger = ledger.above
        return Budget(tuple(levels), self.below, spent)

    def make_period(self, budget: PeriodBudget, rest: Usage, wall: float) -> PeriodLevel:
        """Return a budget with the usage of the present period, which begins now if the last one is over."""
        start = self._starts.get(budget)
        if start is None or wall >= start.end:
            start = self._starts[budget] = _PeriodStart(self.own + self.below, budget.find_end(wall))
        period = "" if budget.per == "intent" else budget.name_period(wall)
        return PeriodLevel(budget, rest - start.usage, period, start.end - wall)
