"""`python -m bench listings`: the cost of listing entities, in a loom with few of them and in one with many.

A listing costs what it returns: a page of `runtime.entities(limit=20)`, the first look of an overview, and a
later one after a new entity. Each loom is filled through its store, with ended one-shot entities of an earlier day.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import orjson

from bench.loom import make_beginning
from cantrip_actors import Runtime
from cantrip_actors.looms import Ended, IntentGiven, Record, Store
from cantrip_actors.observe.overview import Overview

__all__ = ["main"]

LIMIT = 2.0
"""The highest ratio of the cost with many entities to that with few."""
BATCH = 2000
"""Entities of one append."""
AT = "2026-01-01T00:00:00.000Z"


def fill(store: Store, first: int, count: int) -> None:
    """Add ended one-shot entities to a loom."""
    for start in range(first, first + count, BATCH):
        batch: list[Record] = []
        for number in range(start, min(start + BATCH, first + count)):
            entity = f"{number:032x}"
            header, _ = make_beginning(entity)
            batch += [header, IntentGiven(entity, "hello", AT), Ended(entity, "failed", AT)]
        store.append(batch)


async def _measure_cost(work: Callable[[], Awaitable[Any]], rounds: int) -> float:
    """Return the milliseconds that some work takes, the least of some rounds."""
    costs = []
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        costs.append((time.perf_counter() - began) * 1e3)
    return min(costs)


async def measure(url: str, count: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each listing of a loom with so many entities."""
    async with Runtime.open(url) as runtime:
        loom = runtime.loom
        store = loom._store  # noqa: SLF001  # filled as no runtime would
        await anyio.to_thread.run_sync(fill, store, 0, count)
        fresh = iter(range(count, count + rounds + 1))

        async def look_first() -> None:
            await anyio.to_thread.run_sync(Overview(loom).look)

        overview = Overview(loom)
        overview.look()

        async def look_again() -> None:
            fill(store, next(fresh), 1)
            await anyio.to_thread.run_sync(overview.look)

        return {
            "entities": await _measure_cost(partial(runtime.entities, limit=20), rounds),
            "overview": await _measure_cost(look_first, rounds),
            "overview again": await _measure_cost(look_again, rounds),
        }


def main(argv: Sequence[str]) -> int:
    """Measure and print; with `--check` return 1 if a ratio is above its limit, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench listings", description=__doc__)
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--stores", default="memory,sqlite")
    parser.add_argument("--check", action="store_true", help=f"fail if a ratio is above {LIMIT:g}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for kind in filter(None, options.stores.split(",")):
            costs = []
            for count in (options.few, options.many):
                url = "memory:" if kind == "memory" else f"{kind}:{folder}/{kind}-{count}.db"
                costs.append(anyio.run(measure, url, count, options.rounds))
            few, many = costs
            figures[kind] = {
                what: {"few": few[what], "many": many[what], "ratio": many[what] / few[what]} for what in few
            }
    if options.json:
        print(orjson.dumps(figures).decode())
    else:
        print(f"{'store':10} {'listing':16} {options.few:>8,} entities {options.many:>8,} entities  ratio   (ms)")
        for kind, listings in figures.items():
            for what, row in listings.items():
                print(f"{kind:10} {what:16} {row['few']:17.2f} {row['many']:17.2f} {row['ratio']:6.1f}")
    highest = max(row["ratio"] for listings in figures.values() for row in listings.values())
    return 1 if options.check and highest > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
