"""`python -m bench reads`: the cost of reading an entity with many turns over HTTP, compared with one with few.

Both entities are long-lived, fold their older turns, and are in one loom. A read is the handler's whole work, measured
in CPU time of the process (`time.process_time`): the entity, a page of turns from the middle, and the tree
below it. What a read costs may depend on what it returns, and not on the turns that it does not return.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import anyio
import httpx
import orjson

from cantrip_actors import Cantrip, Circle, Folding, Invocation, Runtime, gate, scripted
from cantrip_actors.http import Service, ServiceLimits, make_app
from cantrip_actors.wards import max_turns

__all__ = ["main"]

LIMIT = 2.0
"""The highest ratio of the cost of a read with many turns to that with few."""
PAGE = 20


@gate
async def look(at: int) -> str:
    """Look at something."""
    return f"nothing special at {at}"


def _answer(context: Invocation) -> dict[str, Any]:
    return {
        "content": "I look again.",
        "tool_calls": [{"gate": "look", "args": {"at": len(context)}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }


WALKER = Cantrip(
    scripted(_answer, record=False),
    circle=Circle(["done", look], [max_turns(100)]),
    folding=Folding(trigger_after_turns=40),
    name="walker",
)


async def _make_entity(runtime: Runtime, turns: int) -> str:
    entity = await runtime.invoke(WALKER, "walk", name=f"walker-{turns}")
    await entity.episode()
    for _ in range(turns // 100 - 1):
        await entity.send("walk on")
    return entity.id


async def _measure_cost(read: Callable[[], Awaitable[httpx.Response]], rounds: int) -> float:
    """Return the milliseconds of CPU that a read costs, the median of some rounds."""
    costs = []
    for _ in range(rounds):
        began = time.process_time()
        answer = await read()
        costs.append((time.process_time() - began) * 1e3)
        answer.raise_for_status()
    return median(costs)


async def measure(url: str, few: int, many: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return for each read its cost with few turns, with many, and their ratio."""
    figures: dict[str, dict[str, float]] = {}
    limits = ServiceLimits(rate=1e9, burst=1e9)
    async with Runtime.open(url, cantrips=[WALKER]) as runtime:
        entities = [await _make_entity(runtime, few), await _make_entity(runtime, many)]
        service = Service(runtime, [WALKER], tokens=None, limits=limits)
        async with (
            service.open(),
            httpx.AsyncClient(transport=httpx.ASGITransport(make_app(service)), base_url="http://127.0.0.1") as client,
        ):
            for what in ("", "/turns", "/tree"):
                costs = []
                for entity, turns in zip(entities, (few, many), strict=True):
                    query = f"?after={turns // 2}&limit={PAGE}" if what == "/turns" else ""
                    path = f"/api/v1/entities/{entity}{what}{query}"
                    costs.append(await _measure_cost(lambda path=path: client.get(path), rounds))  # type: ignore[misc]
                figures[what or "/"] = {"few": costs[0], "many": costs[1], "ratio": costs[1] / costs[0]}
    return figures


def main(argv: Sequence[str]) -> int:
    """Measure and print; with `--check` return 1 if a ratio is above its limit, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench reads", description=__doc__)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--stores", default="memory,jsonl,sqlite")
    parser.add_argument("--postgres", metavar="URL", help="measure on this server, too")
    parser.add_argument("--check", action="store_true", help=f"fail if a ratio is above {LIMIT:g}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        places = {"memory": "memory:", "jsonl": f"jsonl:{folder}/loom.jsonl", "sqlite": f"sqlite:{folder}/loom.db"}
        wanted = {store: places[store] for store in options.stores.split(",") if store}
        if options.postgres:
            wanted["postgres"] = options.postgres
        for store, url in wanted.items():
            figures[store] = anyio.run(measure, url, options.few, options.many, options.rounds)
    if options.json:
        print(orjson.dumps(figures).decode())
    else:
        print(f"{'store':10} {'read':8} {options.few:>8,} turns {options.many:>8,} turns  ratio   (ms of CPU)")
        for store, reads in figures.items():
            for read, row in reads.items():
                print(f"{store:10} {read:8} {row['few']:14.2f} {row['many']:14.2f} {row['ratio']:6.1f}")
    highest = max(row["ratio"] for reads in figures.values() for row in reads.values())
    return 1 if options.check and highest > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
