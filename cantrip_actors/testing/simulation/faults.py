"""The faults of a simulation: what happens to a process or to its loom, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Final, Literal, TypeAlias, get_args

from cantrip_actors.terms.arguments import check_kind, check_whole, is_number

__all__ = ["FAULT_KINDS", "FaultKind", "InjectedFault", "draw_faults"]

FaultKind: TypeAlias = Literal["kill", "lose", "freeze", "outage", "slow", "unsure"]
FAULT_KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

MOST: Final = 4
"""The most faults that a seed draws."""
_WRITES: Final = 120
"""The highest number of a write at which a drawn fault comes."""


@dataclass(frozen=True, slots=True, repr=False)
class InjectedFault:
    """A fault of one process, at one of its writes or at a time.

    - "kill": the process dies, as by `kill -9`, and is started again `seconds` later.
    - "lose": its machine dies: likewise, but other processes only notice it when its leases expire.
    - "freeze": it does not run for `seconds`.
    - "outage": for `seconds` it cannot reach its loom.
    - "slow": for `seconds` each access to its loom takes a hundred times as long.
    - "unsure": it is not told whether one write is recorded.

    Args:
        kind: what happens.
        process: the number of the process, from 1 on.
        write: the number of the write, from 1 on, counted over all lives of the process.
        at: simulated seconds since the beginning. Exactly one of `write` and `at`.
        recorded: whether the loom has this write, for "kill", "lose" and "unsure".
        seconds: how long it takes.

    Raises:
        ValueError: a value is outside of its range, or not exactly one of `write` and `at` is there.
    """

    kind: FaultKind
    process: int = 1
    write: int | None = None
    at: float | None = None
    recorded: bool = False
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"kind: expected {', '.join(map(repr, FAULT_KINDS))}, got {self.kind!r}")
        check_whole("process", self.process, 1)
        check_kind("recorded", self.recorded, bool, "True or False")
        if (self.write is None) == (self.at is None):
            raise ValueError("expected one of write and at")
        if self.write is not None:
            check_whole("write", self.write, 1)
        for name, value in (("at", self.at), ("seconds", self.seconds)):
            if value is not None and not (is_number(value) and 0 <= value < math.inf):
                raise ValueError(f"{name}: expected seconds from 0 on, got {value!r}")

    def __repr__(self) -> str:
        values = [(field.name, getattr(self, field.name), field.default) for field in fields(self)[1:]]
        stated = "".join(f", {name}={value!r}" for name, value, default in values if value != default)
        return f"{type(self).__name__}({self.kind!r}{stated})"


def draw_faults(chance: Random, processes: int, within: float, kinds: Sequence[FaultKind]) -> tuple[InjectedFault, ...]:
    """Return faults for a simulation: none, or some, most of them at a write."""
    if not kinds:
        return ()
    many = min(chance.randrange(MOST + 1), chance.randrange(MOST + 1))  # few faults more often than many
    return tuple(_draw_fault(chance, processes, within, kinds) for _ in range(many))


def _draw_fault(chance: Random, processes: int, within: float, kinds: Sequence[FaultKind]) -> InjectedFault:
    kind = chance.choice(kinds)
    process = chance.randrange(processes) + 1
    write, at = None, None
    if chance.random() < 0.6:
        write = int(_WRITES ** chance.random())
    else:
        at = round(within * chance.random(), 3)
    seconds = round(60 ** (2 * chance.random() - 0.7), 2)  # from a moment to minutes
    return InjectedFault(kind, process, write, at, chance.random() < 0.5, seconds)
