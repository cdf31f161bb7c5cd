"""`python -m bench partition`: what several Postgres databases would carry, by a model with measured times.

It measures on a Postgres server of its own: the CPU of the server for a turn, that of the node, and the round trips.
Then it simulates entities that think for a second (the model's time) and record a turn in the database of their
partition, which has so many cores, each with one turn at a time, in order of arrival. Entities are assigned by root, so
that each tree has one database, or by tenant, whose sizes follow Zipf's law. The offered load is that of which one
database carries a quarter.

The model leaves out disks, replication, vacuum and locks between the turns of one database: it shows how evenly the
work is spread, and what the largest tenant bounds, not what a server of yours does in a second.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import heapq
import random
import sys
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import NamedTuple

import orjson

from bench.service.servers import read_tree_cpu
from bench.turns_worker import cantrip_of
from cantrip_actors import Runtime
from conformance.postgres import MISSING, Server

__all__ = ["Costs", "Outcome", "assign", "main", "simulate"]

THINK = 1.0
"""Seconds of the model for a turn."""
DATABASES = (1, 2, 4, 8)
CORES = 8
TENANTS = 1000
SECONDS = 4.0
"""Simulated seconds; the first one does not count."""
LOAD = 4.0
"""How many databases the offered load fills."""


class Costs(NamedTuple):
    """What a turn costs: seconds of CPU of the server, and of the node."""

    server: float
    node: float


class Outcome(NamedTuple):
    """What a number of databases carries."""

    turns_s: float
    p95_ms: float
    """Until a turn is recorded: waiting and service."""
    busiest: float
    """The share of the busiest database's time that it works."""


async def _measure_turns(url: str, turns: int, entities: int, postmaster: int) -> Costs:
    async with Runtime.open(url) as runtime:

        async def run(turns: int) -> Costs:
            before = read_tree_cpu(postmaster), time.process_time()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(entities):
                    tasks.create_task(runtime.cast(cantrip_of(turns), "go"))
            return Costs(read_tree_cpu(postmaster) - before[0], time.process_time() - before[1])

        await run(2)
        few, many = await run(1), await run(turns + 1)
        return Costs(*((all_ - first) / (turns * entities) for all_, first in zip(many, few, strict=True)))


def measure_costs(turns: int, entities: int) -> Costs:
    """Return the costs of a turn of many entities at once. Raises FileNotFoundError without Postgres."""
    with Server() as server:
        postmaster = int((server.folder / "data" / "postmaster.pid").read_text(encoding="ascii").split()[0])
        return asyncio.run(_measure_turns(server.url, turns, entities, postmaster))


def assign(entities: int, databases: int, by: str) -> list[int]:
    """Return the database of each entity, by its root or by its tenant: the one with the highest hash (rendezvous).

    With another database, only its own share moves to it.
    """
    if by == "root":
        keys = [str(number) for number in range(entities)]
        return [_choose(key, databases) for key in keys]
    weights = [1 / rank for rank in range(1, TENANTS + 1)]
    chosen = {tenant: _choose(f"tenant {tenant}", databases) for tenant in range(TENANTS)}
    return [chosen[tenant] for tenant in random.Random(1).choices(range(TENANTS), weights, k=entities)]


def _choose(key: str, databases: int) -> int:
    return max(range(databases), key=lambda number: hashlib.sha256(f"{number} {key}".encode()).digest())


def simulate(places: Sequence[int], databases: int, service: float, cores: int = CORES) -> Outcome:
    """Simulate entities that think and then record a turn in the database of their place."""
    chance = random.Random(1)
    free = [[0.0] * cores for _ in range(databases)]
    arrivals = [(chance.random() * THINK, entity) for entity in range(len(places))]
    heapq.heapify(arrivals)
    delays, work = list[float](), [0.0] * databases
    while arrivals and arrivals[0][0] < SECONDS:
        now, entity = arrivals[0]
        lanes = free[places[entity]]
        done = max(now, lanes[0]) + service
        heapq.heapreplace(lanes, done)
        heapq.heapreplace(arrivals, (done + chance.expovariate(1 / THINK), entity))
        if 1.0 <= done <= SECONDS:
            delays.append(done - now)
            work[places[entity]] += service
    seconds = SECONDS - 1.0
    return Outcome(len(delays) / seconds, quantiles(delays, n=20)[-1] * 1e3, max(work) / cores / seconds)


def main(argv: Sequence[str]) -> int:
    """Measure, simulate and print; the exit code is 1 without Postgres."""
    parser = argparse.ArgumentParser(prog="python -m bench partition", description=__doc__)
    parser.add_argument("--cores", type=int, default=CORES, help="of each database")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--entities", type=int, default=50, help="of the measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        costs = measure_costs(options.turns, options.entities)
    except FileNotFoundError:
        print(MISSING, file=sys.stderr)
        return 1
    entities = int(LOAD * options.cores / costs.server * THINK)
    rows = {
        (by, databases): simulate(assign(entities, databases, by), databases, costs.server, options.cores)
        for by in ("root", "tenant")
        for databases in DATABASES
    }
    if options.json:
        cells = [{"by": by, "databases": databases, **row._asdict()} for (by, databases), row in rows.items()]
        print(orjson.dumps({**costs._asdict(), "entities": entities, "rows": cells}).decode())
        return 0
    print(f"a turn: {costs.server * 1e6:,.0f} us of CPU of the server, {costs.node * 1e6:,.0f} us of the node")
    print(f"{entities:,} entities that think for {THINK:g} s, {options.cores} cores a database, {TENANTS:,} tenants")
    for (by, databases), row in rows.items():
        print(
            f"by {by:<7} {databases} databases  {row.turns_s:>9,.0f} turns a second  p95 {row.p95_ms:>8,.1f} ms"
            f"  the busiest works {row.busiest:.0%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
