"""What the processes of a simulation meet: the faults that are to come, and the latencies of stores and crystals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from cantrip_actors.testing.simulation.faults import FaultKind, InjectedFault

STORE: Final = 0.01
"""Seconds that one way to the store takes at most, if it is not slow."""
_SLOWER: Final = 100.0
"""By how much a slow store is slower."""


class SimulatedConditions:
    """The conditions of one run, as the seed draws them. Processes are known by their numbers."""

    def __init__(
        self, seed: str, path: Path, processes: int, faults: Sequence[InjectedFault], latency: tuple[float, float]
    ) -> None:
        self.path = path
        self.url = f"sqlite:{path}"
        self.is_shared = processes > 1 or any(fault.kind == "unsure" for fault in faults)
        """Whether the loom is like one on a server, for several processes: no other one loses answers to commits."""
        self.faults = list(faults)
        """The faults that have not come yet."""
        self.writes: Counter[int] = Counter()
        """How many writes each process has begun, in all of its lives."""
        self.troubles: Counter[tuple[int, FaultKind]] = Counter()
        """How many faults of each process, of each kind, have begun and are not over."""
        self._seed = seed
        self._latency = tuple(map(math.log, latency))
        self._waits = self.make_chance("store")
        self._share = self._waits.choice((0.0, 0.1, 0.5, 1.0))
        """How often an access to the store waits."""
        self._queries = self.make_chance("queries")

    def make_chance(self, what: str) -> Random:
        """Return random numbers for one purpose, from the seed."""
        return Random(f"{self._seed} {what}")

    def has_trouble(self, number: int, kind: FaultKind) -> bool:
        """Return whether a fault of this kind has begun and is not over."""
        return self.troubles[number, kind] > 0

    def must_wait(self, number: int) -> bool:
        """Return whether an access to the store waits."""
        return self.has_trouble(number, "slow") or self._waits.random() < self._share

    def draw_pause(self, number: int) -> float:
        """Return how long the next way to the store takes, in seconds."""
        return self._waits.random() * STORE * (_SLOWER if self.has_trouble(number, "slow") else 1.0)

    def draw_latency(self) -> float:
        """Return how long the next query takes, in seconds."""
        shortest, longest = self._latency
        return math.exp(shortest + (longest - shortest) * self._queries.random())

    def find_fault(self, number: int) -> InjectedFault | None:
        """Return the fault of the next write of a process, if it has one."""
        write = self.writes[number] + 1
        for fault in self.faults:
            if fault.process == number and fault.write is not None and fault.write <= write:
                return fault
        return None
