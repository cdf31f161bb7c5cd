"""A campaign: the histories to run, their stores, and their results together.

For each store and durability half of the kills walk over all points of the workload, one history per point (as many
points as there are kills for, evenly spread); every second one is killed again while it recovers. The rest are random:
one to four kills per history, from outside or at any point. A problem found by a random kill is reported in the form in
which it can be repeated (`history`).
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.crash.compare import Story
from conformance.crash.history import History, HistoryResult, Kill, live_through

__all__ = ["Campaign", "Where", "campaign"]

AHEAD = 4
"""The number of waiting histories per lane."""


@dataclass(frozen=True)
class Where:
    """One kind of loom, and its number of kills; without a number each point once, and `at_random` more."""

    store: str
    durability: str
    kills: int | None = None
    at_random: int = 0
    workload: str = "small"


@dataclass
class Campaign:
    """The results of the histories of one kind of loom."""

    where: Where
    histories: int = 0
    at_points: int = 0
    from_outside: int = 0
    in_recovery: int = 0
    unknown: int = 0
    seconds: float = 0.0
    wrong: list[HistoryResult] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """The number of lives that were killed."""
        return self.at_points + self.from_outside

    def add(self, result: HistoryResult) -> None:
        """Count one history."""
        self.histories += 1
        self.at_points += result.at_points
        self.from_outside += result.from_outside
        self.in_recovery += result.in_recovery
        self.unknown += result.unknown
        if result.wrong:
            self.wrong.append(result)

    def as_json(self) -> dict[str, Any]:
        """Return the results as JSON data."""
        names = ("histories", "kills", "at_points", "from_outside", "in_recovery", "unknown")
        return {
            "store": self.where.store,
            "durability": self.where.durability,
            "workload": self.where.workload,
            **{name: getattr(self, name) for name in names},
            "seconds": round(self.seconds, 1),
            "wrong": [{"history": str(result.history), "what": result.wrong} for result in self.wrong],
        }


def campaign(
    where: Where,
    expected: Story,
    seed: int,
    *,
    server: str | None = None,
    keep: Path | None = None,
    jobs: int = 2,
    heard: Callable[[HistoryResult], None] = lambda _: None,
) -> Campaign:
    """Run histories until there were enough kills."""
    began = time.perf_counter()
    came = Campaign(where)
    chance = random.Random(f"{seed} {where.store} {where.durability} {where.workload}")
    calm = live_through(History(where.store, where.durability, (), where.workload), expected, server, keep)
    came.add(calm)
    heard(calm)
    lasts = max(calm.seconds, 0.02)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as lanes:
        wanted = where.kills
        batch: list[History] = list(_walk(where, calm.points, chance))
        if not batch:  # too few kills for a walk
            batch = list(_at_random(where, wanted or 0, calm.points, lasts, chance))
        while batch:
            for result in lanes.map(live_through, batch, *_same(len(batch), expected, server, keep), chunksize=AHEAD):
                came.add(result)
                heard(result)
            missing = (wanted or 0) - came.kills
            batch = list(_at_random(where, missing, calm.points, lasts, chance))
            if wanted is None and came.from_outside == 0:
                batch = list(_at_random(where, where.at_random, calm.points, lasts, chance, outside=1.0))
    came.seconds = time.perf_counter() - began
    return came


def _same(times: int, *values: Any) -> Iterator[Sequence[Any]]:
    for value in values:
        yield [value] * times


def _walk(where: Where, points: int, chance: random.Random) -> Iterator[History]:
    """Yield a history for each point of the workload, or for as many as there are kills."""
    count = points if where.kills is None else min(points, where.kills // 3)
    for n in range(count):
        point = 1 + n * points // count
        kills = [Kill(point)]
        if chance.random() < 0.5:
            kills.append(Kill(chance.randint(1, points - point + 10)))
        yield History(where.store, where.durability, tuple(kills), where.workload)


def _at_random(
    where: Where, kills: int, points: int, lasts: float, chance: random.Random, outside: float = 0.7
) -> Iterator[History]:
    while kills > 0:
        chain = []
        for _ in range(chance.choice((1, 1, 2, 3, 4))):
            from_outside = chance.random() < outside
            chain.append(Kill(seconds=chance.random() * lasts) if from_outside else Kill(chance.randint(1, points)))
        kills -= len(chain)
        yield History(where.store, where.durability, tuple(chain), where.workload)
