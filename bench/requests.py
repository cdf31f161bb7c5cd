"""`python -m bench requests`: the cost of unloaded entities that wait for people.

*held* is the bytes of memory that each of them holds in the runtime (at most 1,024); *list* is the CPU
microseconds of `runtime.requests()` for each; *decide* is those for deciding a request, loading the entity, running its
gate and ending it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import anyio
import orjson

from cantrip_actors import Cantrip, Circle, Invocation, Runtime, ask_first, gate, scripted
from cantrip_actors.wards import max_turns

__all__ = ["main"]

LIMIT = 1024.0
"""Bytes that an unloaded entity may hold."""
PASSIVE = 0.05
"""Seconds after which a waiting entity is unloaded here."""


@gate
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def _answer(context: Invocation) -> dict[str, Any]:
    if context.messages[-1].role == "tool":
        return {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}
    return {"tool_calls": [{"gate": "pay", "args": {"amount": 3}}]}


PAYS = Cantrip(scripted(_answer, record=False), circle=Circle(["done", ask_first(pay)], [max_turns(5)]))


async def _wait(runtime: Runtime, number: int) -> None:
    """Begin entities, and return when all of them are unloaded."""
    ids = [(await runtime.start(PAYS, "go")).id for _ in range(number)]
    while any(runtime.get_entity(entity_id).loaded for entity_id in ids):  # noqa: ASYNC110  # no event says so
        await anyio.sleep(PASSIVE)
    gc.collect()


async def measure(number: int) -> dict[str, float]:
    """Return the costs of `number` waiting entities."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(f"sqlite:{folder}/loom.db", passivate_after=PASSIVE) as runtime:
            await _wait(runtime, number)  # the event loop's own tables grow to their size
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            await _wait(runtime, number)
            memory = (tracemalloc.get_traced_memory()[0] - before) / number
            tracemalloc.stop()
            began = time.process_time()
            requests = runtime.requests()
            listed = (time.process_time() - began) / len(requests) * 1e6
            some = requests[: min(200, number)]
            began = time.process_time()
            for request in some:
                await runtime.decide(request.id, "allow")
            for request in some:
                assert request.entity is not None
                await runtime.get_entity(request.entity).episode()
            return {"held": memory, "list": listed, "decide": (time.process_time() - began) / len(some) * 1e6}


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if the limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench requests", description=__doc__)
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = anyio.run(measure, options.entities)
    is_over = figures["held"] > LIMIT
    if options.json:
        print(orjson.dumps({**figures, "over": is_over}).decode())
    else:
        print(f"{options.entities:,} entities that wait for a person, unloaded, in SQLite")
        print(f"held    {figures['held']:>10,.0f} bytes each (limit {LIMIT:,.0f})")
        print(f"list    {figures['list']:>10,.1f} us of CPU each")
        print(f"decide  {figures['decide']:>10,.1f} us of CPU each")
    return 1 if is_over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
