"""Wards: the restrictions of an entity's action space, A = (L + G) - W.

A `Ward` is one restriction as a user writes it; `Wards` is the meet of a set of them. They form a meet-semilattice:
`a & b` is at least as strict as either, in any order and however often (D-009: numbers take the minimum, booleans OR,
removed gates the union). A child gets `parent.down(request)`: never more than its parent, one level of depth less.

This module measures nothing. `Wards.find_exhausted` is a pure function of a given usage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cantrip_actors.terms.arguments import check, check_whole, is_positive, is_text
from cantrip_actors.terms.call_limit import CallLimit
from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest
from cantrip_actors.terms.messages import ALIASES, Usage
from cantrip_actors.terms.period import Period, PeriodBudget, WhenSpent

DEFAULT_DEPTH = 1
"""How deep `call_agent` may nest if no ward says otherwise (SPEC 5.4)."""

LONGEST = 80
"""Characters of a wrong value that a message repeats."""

LEAST_MEMORY = 2**20
"""The least number of bytes with which a sandbox can run anything."""

PROGRAMS = ("max_compute", "max_memory", "max_output")
"""The wards that bound programs; they have no meaning in a circle without programs."""

TOKENS = "have it report usage, or add max_turns or timeout"
PRICES = "give the crystal prices=Prices({…}), or add max_turns, timeout or max_tokens"
"""Advice for budgets of tokens or dollars that cannot be measured."""

FREE_ANSWERS = 100
"""The number of answers of an episode after which the usage of a budget has to be above zero, if only that budget
bounds the entity."""

LEAST_COST = 1e-7
"""The least average cost of an answer, in US dollars, with which `max_cost` alone can bound an entity."""

_BOUNDS = ("max_turns", "timeout", "timeout_while_waiting", "max_tokens", "max_cost")


@dataclass(frozen=True, slots=True)
class Ward:
    """One restriction: its name and its value. Raises InvalidCantrip for an invalid one."""

    name: str
    value: Any

    def __post_init__(self) -> None:
        read = _CHECKS.get(self.name) if isinstance(self.name, str) else None
        if read is None:
            raise InvalidCantrip(f'unknown ward "{self.name}": {suggest_nearest(self.name, _CHECKS)}')
        object.__setattr__(self, "value", read(self.name, self.value))

    def __str__(self) -> str:
        if isinstance(self.value, PeriodBudget | CallLimit):
            return str(self.value)
        return f"{self.name}({self.value:g})" if isinstance(self.value, float) else f"{self.name}({self.value})"


def max_turns(count: int) -> Ward:
    """Limit one cast or send to `count` utterances; the gates of the last one still run (LOOP-4, reading 27)."""
    return Ward("max_turns", count)


def max_depth(levels: int) -> Ward:
    """Let `call_agent` nest `levels` deep, 1 by default; at 0 the delegation gates are removed (COMP-6)."""
    return Ward("max_depth", levels)


def timeout(seconds: float, *, while_waiting: bool = False) -> Ward:
    """Limit one cast or send, its children included, to `seconds` from the moment at which the intent is taken; time
    spent waiting for people counts only with `while_waiting`. A long-lived entity then waits for its next intent.
    """
    _check_truth("timeout: while_waiting", while_waiting)
    return Ward("timeout_while_waiting" if while_waiting else "timeout", seconds)


def max_tokens(
    count: int, *, per: Period | None = None, zone: str | None = None, when_spent: WhenSpent | None = None
) -> Ward:
    """Limit the entity and its subtree to `count` prompt and completion tokens: over its life, or in each period.

    The arguments are those of `max_cost`. Raises InvalidCantrip for invalid ones.
    """
    return _make_budget("max_tokens", count, per, zone, when_spent)


def max_cost(
    dollars: float, *, per: Period | None = None, zone: str | None = None, when_spent: WhenSpent | None = None
) -> Ward:
    """Limit the entity and its subtree to `dollars` US dollars: over its life, or in each period.

    An answer counts for the period in which it is recorded; the one that uses the budget up is the last one.

    Args:
        dollars: the amount.
        per: "intent" for each episode of a long-lived entity, "day" or "month"; left out, its whole life.
        zone: whose days and months, a name of the IANA database such as "Europe/Oslo"; left out, UTC.
        when_spent: "end" ends the entity once the budget is used up, or only the episode with `per="intent"`; "wait"
            has it continue in the next period; "ask" asks a person how much more it may spend in this one. Left out,
            it is "wait" for a day or a month, and "end" otherwise. A child of the entity waits with it, and ends where
            its parent asks a person.

    Raises InvalidCantrip for invalid arguments.
    """
    return _make_budget("max_cost", dollars, per, zone, when_spent)


def _make_budget(name: str, most: float, per: object, zone: object, when_spent: object) -> Ward:
    if per is None:
        options = {"zone": zone, "when_spent": when_spent}
        if stated := [option for option, value in options.items() if value is not None]:
            raise InvalidCantrip(f'{name}: {" and ".join(stated)}: expected together with per="day" or another period')
        return Ward(name, most)
    return Ward(name, {"most": most, "per": per, "zone": zone, "when_spent": when_spent})


def max_children(count: int) -> Ward:
    """Limit the entity to `count` children over its life, 10,000 by default. A delegation over the limit is an error
    observation and starts no child. One call can start 1,000 at most in any case.
    """
    return Ward("max_children", count)


def max_gate_calls(count: int) -> Ward:
    """Limit one turn to `count` gate calls. A program over the limit is ended and undone; further tool calls are
    refused, with an error observation each (CIRCLE-6). A program can make 100 at most in any case.
    """
    return Ward("max_gate_calls", count)


def max_calls(gate: str, count: int, *, per: Period = "intent", zone: str | None = None) -> Ward:
    """Limit the calls of one gate by the entity and its subtree to `count`, in each period.

    A call counts when it begins, also if it fails; one that is refused does not count. A call over the limit is an
    error observation, and the entity continues (CIRCLE-6). The loom has the count: it survives crashes and moves.

    Args:
        gate: the name of a gate with a function, or of a tool of a server.
        count: calls; 0 for none.
        per: "intent" for each episode, "day" or "month".
        zone: whose days and months, a name of the IANA database such as "Europe/Oslo"; left out, UTC.

    Raises InvalidCantrip for invalid arguments.
    """
    return Ward("max_calls", {"gate": gate, "most": count, "per": per, "zone": zone})


def max_compute(seconds: float) -> Ward:
    """Limit the computing time of a program to `seconds`, 5 at most, without the time that its gates take. A program
    over the limit is ended and undone. For media that run programs.
    """
    return Ward("max_compute", seconds)


def max_memory(size: int) -> Ward:
    """Limit the memory of a program, with all variables, to `size` bytes, from 1 MiB to 64 MiB. A program over the
    limit is ended and undone. For media that run programs.
    """
    return Ward("max_memory", size)


def max_output(characters: int) -> Ward:
    """Limit the output of a program to `characters`, 65,536 at most; the rest is cut. For media that run programs."""
    return Ward("max_output", characters)


def remove_gate(name: str) -> Ward:
    """Remove the gate `name`: calling it is an error observation (CIRCLE-6)."""
    return Ward("remove_gate", name)


def require_done_tool(required: bool = True) -> Ward:
    """Require `done` to end the entity: a text-only answer does not end it (D-004)."""
    return Ward("require_done_tool", required)


@dataclass(frozen=True, slots=True)
class Wards:
    """The meet of a set of wards. None means that the number is not restricted."""

    max_turns: int | None = None
    max_depth: int | None = None
    timeout: float | None = None
    timeout_while_waiting: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_gate_calls: int | None = None
    max_children: int | None = None
    max_compute: float | None = None
    max_memory: int | None = None
    max_output: int | None = None
    require_done_tool: bool = False
    removed: frozenset[str] = frozenset()
    budgets: tuple[PeriodBudget, ...] = ()
    """The budgets for periods, by their labels."""
    calls: tuple[CallLimit, ...] = ()
    """The limits of single gates, by their labels."""

    @classmethod
    def of(cls, wards: Iterable[Ward | Mapping[str, Any]]) -> Wards:
        """Return the meet of `wards`. A mapping such as `{"max_turns": 10}` is accepted too, as recipes write it."""
        met = cls()
        for ward in wards:
            for single in (ward,) if isinstance(ward, Ward) else parse(ward):
                met = met & cls._make_single(single)
        return met

    @classmethod
    def _make_single(cls, ward: Ward) -> Wards:
        if ward.name == "remove_gate":
            return cls(removed=frozenset((ward.value,)))
        if isinstance(ward.value, PeriodBudget):
            return cls(budgets=(ward.value,))
        if isinstance(ward.value, CallLimit):
            return cls(calls=(ward.value,))
        return cls(**{ward.name: ward.value})

    def __and__(self, other: Wards) -> Wards:
        least: dict[str, Any] = {name: _choose_least(getattr(self, name), getattr(other, name)) for name in NUMBERS}
        budgets = {budget.label: budget for budget in self.budgets}
        for budget in other.budgets:
            budgets[budget.label] = budget.join(budgets.get(budget.label, budget))
        return Wards(
            **least,
            require_done_tool=self.require_done_tool or other.require_done_tool,
            removed=self.removed | other.removed,
            budgets=tuple(budgets[label] for label in sorted(budgets)),
            calls=_meet_limits((*self.calls, *other.calls)),
        )

    @property
    def depth(self) -> int:
        """The remaining levels of children: `max_depth` if it is set, else 1."""
        return DEFAULT_DEPTH if self.max_depth is None else self.max_depth

    @property
    def bounded(self) -> bool:
        """True if some ward is sure to end the entity (CIRCLE-2, LOOP-2)."""
        return bool(self.bounds)

    def down(self, request: Wards) -> Wards:
        """Return the wards of a child that requests `request`: at least as strict, one level less deep (SPEC 5.4)."""
        below = max(self.depth - 1, 0)
        return replace(self & request, max_depth=below if request.max_depth is None else min(below, request.max_depth))

    def find_exhausted(self, usage: Usage) -> Ward | None:
        """Return the budget that `usage`, of a whole subtree, has used up; None if no budget is used up.

        If the only budget that bounds the entity cannot be measured, it counts as used up (LOOP-2).
        """
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return Ward("max_tokens", self.max_tokens)
        if self.max_cost is not None and (
            usage.cost >= self.max_cost or (usage.total_tokens and self.explain_unmeasured(usage))
        ):
            return Ward("max_cost", self.max_cost)
        return None

    def explain_unmeasured(self, usage: Usage) -> str | None:
        """Return why the usage of one answer does not count for any ward that ends the entity; None if it counts.

        Without this check an entity with such answers would never end (LOOP-2).
        """
        bounds = self.bounds
        if not bounds or not bounds <= {"max_tokens", "max_cost"}:
            return None
        if (usage.total_tokens and "max_tokens" in bounds) or (usage.cost and "max_cost" in bounds):
            return None
        if "max_tokens" in bounds:
            return f"max_tokens cannot be measured, because the crystal reported no tokens: {TOKENS}"
        return f"max_cost cannot be measured, because the crystal reported no cost and its prices are unknown: {PRICES}"

    def find_idle_budget(self, usage: Usage, answers: int) -> Ward | None:
        """Return the budget that would never end an entity with that `usage` after `answers` answers; None without one.

        Only budgets bound such an entity, and the crystal reports next to nothing that they count: less than a token,
        or `LEAST_COST`, an answer. So the entity ends after `FREE_ANSWERS` (LOOP-2).
        """
        bounds = self.bounds
        if answers < FREE_ANSWERS or not bounds or not bounds <= {"max_tokens", "max_cost"}:
            return None
        ending = self._list_ending_budgets()
        least = {"max_tokens": usage.total_tokens >= answers, "max_cost": usage.cost >= answers * LEAST_COST}
        return None if any(least[ward.name] for ward in ending) else ending[0]

    def _list_ending_budgets(self) -> list[Ward]:
        """Return the budgets that end the entity, or its episode, once they are used up; those of tokens first."""
        wards = [Ward(name, most) for name in ("max_tokens", "max_cost") if (most := getattr(self, name)) is not None]
        wards += [Ward(budget.ward, budget) for budget in self.budgets if budget.when_spent == "end"]
        return sorted(wards, key=lambda ward: ward.name, reverse=True)

    @property
    def bounds(self) -> frozenset[str]:
        """The wards that are sure to end the entity (CIRCLE-2, LOOP-2)."""
        ending = (budget.ward for budget in self.budgets if budget.when_spent == "end")
        return frozenset((*(name for name in _BOUNDS if getattr(self, name) is not None), *ending))

    def list_wards(self) -> tuple[Ward, ...]:
        """Return single wards whose meet this is."""
        single = (Ward(name, value) for name, value in self._state_values().items())
        removed = (Ward("remove_gate", name) for name in sorted(self.removed))
        budgets = (Ward(budget.ward, budget) for budget in self.budgets)
        return (*single, *removed, *budgets, *(Ward("max_calls", limit) for limit in self.calls))

    def as_json(self) -> dict[str, Any]:
        """Return the restrictions that are set, as the loom's header and the capability text show them."""
        lists = {
            "removed": sorted(self.removed),
            "budgets": [budget.as_json() for budget in self.budgets],
            "calls": [limit.as_json() for limit in self.calls],
        }
        return self._state_values() | {name: values for name, values in lists.items() if values}

    def _state_values(self) -> dict[str, Any]:
        return {
            name: value
            for name in _WARDS
            if (value := getattr(self, name)) is not None and value is not False  # 0 restricts, too
        }


_SETS = ("removed", "budgets", "calls")
_WARDS = tuple(f.name for f in fields(Wards) if f.name not in _SETS)
NUMBERS = tuple(name for name in _WARDS if name != "require_done_tool")
"""The wards whose meet is the minimum."""


def parse(ward: Mapping[str, Any]) -> list[Ward]:
    """Return the wards in a mapping such as `{"max_turns": 10}`. Raises InvalidCantrip for anything else."""
    fits = isinstance(ward, Mapping) and ward
    check(fits, "ward", "for example max_turns(50) or {'max_turns': 50}", ward, InvalidCantrip)
    wards: list[Ward] = []
    for name, value in ward.items():
        wards.extend(Ward(name, single) for single in _split_value(name, value))
    return wards


def _split_value(name: str, value: Any) -> Sequence[Any]:
    """Return the values of the single wards: a ward on calls may name several gates, as in `{"max_calls": {"search":
    5}}`.
    """
    if name == "remove_gate" and isinstance(value, (list, tuple)):
        return value
    if name == "max_calls" and isinstance(value, Mapping) and "gate" not in value and value:
        return [
            {"gate": gate, **(limit if isinstance(limit, Mapping) else {"most": limit})}
            for gate, limit in value.items()
        ]
    return (value,)


def _meet_limits(limits: Iterable[CallLimit]) -> tuple[CallLimit, ...]:
    """Return the strictest of the limits with the same label, by their labels."""
    least: dict[Any, CallLimit] = {}
    for limit in limits:
        other = least.get(limit.label)
        if other is None or limit.most < other.most:
            least[limit.label] = limit
    return tuple(least[label] for label in sorted(least))


def _choose_least(a: Any, b: Any) -> Any:
    if a is None:
        return b
    return a if b is None or a <= b else b


def _make_whole_check(least: int) -> Callable[[str, Any], int]:
    def read(name: str, value: int) -> int:
        check_whole(name, value, least, error=InvalidCantrip)
        return value

    return read


def _check_positive(name: str, value: Any) -> float:
    check(is_positive(value), name, "a number > 0", value, InvalidCantrip)
    return float(value)


def _make_budget_check(read: Callable[[str, Any], float]) -> Callable[[str, Any], float | PeriodBudget]:
    """Return a check of a budget: a number for life, or an object for a period."""

    def read_either(name: str, value: Any) -> float | PeriodBudget:
        if isinstance(value, PeriodBudget):
            return value
        return PeriodBudget.read(name, value) if isinstance(value, Mapping) else read(name, value)

    return read_either


def _check_gate_name(name: str, value: Any) -> str:
    check(is_text(value), name, "a gate's name", value, InvalidCantrip)
    return ALIASES.get(value, value)


def _check_limit(name: str, value: Any) -> CallLimit:
    if isinstance(value, CallLimit):
        return value
    expected = 'max_calls("search", 5), or {"gate": "search", "most": 5}'
    check(isinstance(value, Mapping), name, expected, value, InvalidCantrip)
    return CallLimit.read(value)


def _check_truth(name: str, value: Any) -> bool:
    check(isinstance(value, bool), name, "true or false", value, InvalidCantrip)
    return bool(value)


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "max_turns": _make_whole_check(least=1),
    "max_depth": _make_whole_check(least=0),
    "timeout": _check_positive,
    "timeout_while_waiting": _check_positive,
    "max_tokens": _make_budget_check(_make_whole_check(least=1)),
    "max_cost": _make_budget_check(_check_positive),
    "max_gate_calls": _make_whole_check(least=1),
    "max_calls": _check_limit,
    "max_children": _make_whole_check(least=0),
    "max_compute": _check_positive,
    "max_memory": _make_whole_check(least=LEAST_MEMORY),
    "max_output": _make_whole_check(least=1),
    "remove_gate": _check_gate_name,
    "require_done_tool": _check_truth,
}
