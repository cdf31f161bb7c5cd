"""Wards: what is taken away from an entity's action space, A = (L + G) - W.

A `Ward` is one restriction as a user writes it; `Wards` is the meet of a set of them. They form a meet-semilattice:
`a & b` is at least as strict as either, in any order and however often (D-009: numbers take the minimum, booleans OR,
removed gates the union). A child gets `parent.down(request)`: never more than its parent, one level of depth less.

This file measures nothing. Whether a budget is spent is a pure question (`Wards.exhausted`) about a given usage.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cantrip_actors.terms.errors import InvalidCantrip, nearest
from cantrip_actors.terms.messages import ALIASES, Usage

__all__ = [
    "DEFAULT_DEPTH",
    "LEAST_MEMORY",
    "NUMBERS",
    "PROGRAMS",
    "Ward",
    "Wards",
    "max_children",
    "max_compute",
    "max_cost",
    "max_depth",
    "max_gate_calls",
    "max_memory",
    "max_output",
    "max_tokens",
    "max_turns",
    "remove_gate",
    "require_done_tool",
    "timeout",
]

DEFAULT_DEPTH = 1
"""How deep `call_agent` may nest where no ward says otherwise (SPEC 5.4)."""

LONGEST = 80
"""Characters of a wrong value that are repeated."""

LEAST_MEMORY = 2**20
"""Bytes below which no sandbox could run anything."""

PROGRAMS = ("max_compute", "max_memory", "max_output")
"""The wards that bound programs, and mean nothing where the entity writes none."""

TOKENS = "have it report usage, or add max_turns or timeout"
PRICES = "give the crystal prices=Prices({…}), or add max_turns, timeout or max_tokens"
"""What to do where a budget of tokens, or of dollars, cannot be measured."""

_BOUNDS = ("max_turns", "timeout", "timeout_while_waiting", "max_tokens", "max_cost")


@dataclass(frozen=True, slots=True)
class Ward:
    """One restriction: its name and its value. Raises InvalidCantrip for one that cannot be."""

    name: str
    value: Any

    def __post_init__(self) -> None:
        check = _CHECKS.get(self.name)
        if check is None:
            raise InvalidCantrip(f'unknown ward "{self.name}": {nearest(str(self.name), _CHECKS)}')
        object.__setattr__(self, "value", check(self.name, self.value))

    def __str__(self) -> str:
        return f"{self.name}({self.value:g})" if isinstance(self.value, float) else f"{self.name}({self.value})"


def max_turns(count: int) -> Ward:
    """At most `count` utterances for one cast or send; the last one's gates still run (LOOP-4, reading 27)."""
    return Ward("max_turns", count)


def max_depth(levels: int) -> Ward:
    """`call_agent` may nest `levels` deep; at 0 the delegation gates are gone (COMP-6). Without it: 1."""
    return Ward("max_depth", levels)


def timeout(seconds: float, *, while_waiting: bool = False) -> Ward:
    """The entity may live for `seconds`, its children included; the time that it waits for people counts only with
    `while_waiting` (core.md 4).
    """
    return Ward("timeout_while_waiting" if while_waiting else "timeout", seconds)


def max_tokens(count: int) -> Ward:
    """At most `count` prompt and completion tokens over the entity's life and its whole subtree."""
    return Ward("max_tokens", count)


def max_cost(dollars: float) -> Ward:
    """At most `dollars` US dollars over the entity's life and its whole subtree."""
    return Ward("max_cost", dollars)


def max_children(count: int) -> Ward:
    """At most `count` children over the entity's life, 10,000 without it; a delegation that would go beyond is an error
    observation, and starts none. One call may start 1,000 anyway.
    """
    return Ward("max_children", count)


def max_gate_calls(count: int) -> Ward:
    """At most `count` gate calls in one turn: a program that makes more is ended and undone; of tool calls the rest is
    refused, an error observation each (CIRCLE-6). A program may make 100 anyway.
    """
    return Ward("max_gate_calls", count)


def max_compute(seconds: float) -> Ward:
    """A program may compute for `seconds`, 5 at most, without the time that its gates take. One that takes longer is
    ended and undone. For the media that run programs.
    """
    return Ward("max_compute", seconds)


def max_memory(size: int) -> Ward:
    """A program, with all variables, may use `size` bytes: at least 1 MiB, at most 64. One that needs more is ended and
    undone. For the media that run programs.
    """
    return Ward("max_memory", size)


def max_output(characters: int) -> Ward:
    """Of what a program prints `characters` are kept, 65,536 at most; the rest is cut. For the same media."""
    return Ward("max_output", characters)


def remove_gate(name: str) -> Ward:
    """The gate `name` is not there: calling it is an error observation (CIRCLE-6)."""
    return Ward("remove_gate", name)


def require_done_tool(required: bool = True) -> Ward:
    """A text-only answer does not end the entity; only `done` does (D-004)."""
    return Ward("require_done_tool", required)


@dataclass(frozen=True, slots=True)
class Wards:
    """The meet of a set of wards. `None` means that nothing restricts that number."""

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

    @classmethod
    def of(cls, wards: Iterable[Ward | Mapping[str, Any]]) -> Wards:
        """The meet of `wards`; a mapping such as `{"max_turns": 10}` is taken too, as recipes write it."""
        met = cls()
        for ward in wards:
            for one in (ward,) if isinstance(ward, Ward) else parse(ward):
                met = met & cls._alone(one)
        return met

    @classmethod
    def _alone(cls, ward: Ward) -> Wards:
        if ward.name == "remove_gate":
            return cls(removed=frozenset((ward.value,)))
        return cls(**{ward.name: ward.value})

    def __and__(self, other: Wards) -> Wards:
        least: dict[str, Any] = {name: _least(getattr(self, name), getattr(other, name)) for name in NUMBERS}
        return Wards(
            **least,
            require_done_tool=self.require_done_tool or other.require_done_tool,
            removed=self.removed | other.removed,
        )

    @property
    def depth(self) -> int:
        """The levels of children that are left: what `max_depth` says, else 1."""
        return DEFAULT_DEPTH if self.max_depth is None else self.max_depth

    @property
    def bounded(self) -> bool:
        """True if some ward is sure to end the entity (CIRCLE-2, LOOP-2)."""
        return bool(self.bounds)

    def down(self, request: Wards) -> Wards:
        """The wards of a child that asks for `request`: at least as strict as these, one level less deep (SPEC 5.4)."""
        below = max(self.depth - 1, 0)
        return replace(self & request, max_depth=below if request.max_depth is None else min(below, request.max_depth))

    def exhausted(self, usage: Usage) -> Ward | None:
        """Return the budget that `usage`, of a whole subtree, has used up; None while there is some left.

        A budget that alone bounds the entity and that cannot be measured counts as used up (LOOP-2).
        """
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return Ward("max_tokens", self.max_tokens)
        if self.max_cost is not None and (
            usage.cost >= self.max_cost or (usage.total_tokens and self.unmeasured(usage))
        ):
            return Ward("max_cost", self.max_cost)
        return None

    def unmeasured(self, usage: Usage) -> str | None:
        """Return why this usage, of one answer, counts for none of the wards that end the entity; None if it counts.

        An entity of such answers would never end (LOOP-2).
        """
        bounds = self.bounds
        if not bounds or not bounds <= {"max_tokens", "max_cost"}:
            return None
        if (usage.total_tokens and "max_tokens" in bounds) or (usage.cost and "max_cost" in bounds):
            return None
        if "max_tokens" in bounds:
            return f"max_tokens cannot be measured, because the crystal reported no tokens: {TOKENS}"
        return f"max_cost cannot be measured, because the crystal reported no cost and its prices are unknown: {PRICES}"

    @property
    def bounds(self) -> frozenset[str]:
        """The wards that are sure to end the entity (CIRCLE-2, LOOP-2)."""
        return frozenset(name for name in _BOUNDS if getattr(self, name) is not None)

    def as_json(self) -> dict[str, Any]:
        """Only what restricts, as the loom's header and the capability text show it."""
        kept: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = sorted(self.removed) if name == "removed" else getattr(self, name)
            if value is not None and value is not False and value != []:  # 0 restricts, and is equal to False
                kept[name] = value
        return kept


NUMBERS = tuple(f.name for f in fields(Wards) if f.name not in ("require_done_tool", "removed"))
"""The wards of which the least number holds."""


def parse(ward: Mapping[str, Any]) -> list[Ward]:
    """The wards that a mapping such as `{"max_turns": 10}` states; raises InvalidCantrip for anything else."""
    if not isinstance(ward, Mapping) or not ward:
        raise InvalidCantrip(f"ward {ward!r}: expected for example max_turns(50) or {{'max_turns': 50}}")
    made: list[Ward] = []
    for name, value in ward.items():
        values = value if name == "remove_gate" and isinstance(value, (list, tuple)) else (value,)
        made.extend(Ward(name, one) for one in values)
    return made


def _least(a: Any, b: Any) -> Any:
    if a is None:
        return b
    return a if b is None or a <= b else b


def _whole(least: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidCantrip(f"{name}: expected a whole number >= {least}, got {value!r}")
        return value

    return check


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise InvalidCantrip(f"{name}: expected a number > 0, got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _gate_name(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidCantrip(f"{name}: expected a gate's name, got {value!r}")
    return ALIASES.get(value, value)


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidCantrip(f"{name}: expected true or false, got {value!r}")
    return value


_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "max_turns": _whole(least=1),
    "max_depth": _whole(least=0),
    "timeout": _positive,
    "timeout_while_waiting": _positive,
    "max_tokens": _whole(least=1),
    "max_cost": _positive,
    "max_gate_calls": _whole(least=1),
    "max_children": _whole(least=0),
    "max_compute": _positive,
    "max_memory": _whole(least=LEAST_MEMORY),
    "max_output": _whole(least=1),
    "remove_gate": _gate_name,
    "require_done_tool": _truth,
}
