"""`python -m bench entities`: the cost of many unloaded long-lived entities, and of loading one.

Each entity is invoked under its own name, answers its first intent with one gate call, and is unloaded: only its log
remains (decision 0008). One process makes all entities, `--at-once` at a time, and measures the memory that each
further part takes: an unloaded entity must not take any. Then another process opens the loom, loads some entities by
name and sends each a further intent. With `--million` it makes as many entities as the limits apply to; without it a
number that takes less than a minute.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import anyio
import orjson

from bench.processes import alone, resident
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.wards import max_turns

__all__ = ["main"]

MILLION = 1_000_000
PARTS = 5
WOKEN = 200
DISK, GROWTH, WAKE = 4e9, 50.0, 0.02
"""Limits: bytes for a million entities, MB of growth after the first fifth, seconds to load one and run an episode."""


@gate
async def remember(what: str) -> str:
    """Take note of something."""
    return f"noted {what}"


def policy(context: Invocation) -> dict[str, object]:
    """Make one gate call for each intent, and then answer."""
    if context[-1].role == "user":
        return {"tool_calls": [{"gate": "remember", "args": {"what": context[-1].content}}]}
    return {"tool_calls": [{"gate": "done", "args": {"answer": "kept"}}]}


KEEPER = Cantrip(scripted(policy, record=False, name="keeper"), circle=Circle(["done", remember], [max_turns(4)]))


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench entities", description=__doc__)
    parser.add_argument("--entities", type=int, default=50_000)
    parser.add_argument("--million", action="store_true", help="a million of them, which takes a quarter of an hour")
    parser.add_argument("--store", choices=("sqlite", "jsonl"), default="sqlite")
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    count = MILLION if options.million else options.entities
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, alone() as process:
        url = f"{options.store}:{folder}/loom.{'db' if options.store == 'sqlite' else 'jsonl'}"
        report: dict[str, float] = process.apply(_make, (url, count, options.at_once))
        report["bytes"] = float(sum(path.stat().st_size for path in Path(folder).iterdir()))
        report |= process.apply(_measure_loading, (url, count))
    over = []
    if report["bytes"] > DISK / MILLION * count:
        over.append(f"{report['bytes'] / count:.0f} bytes an entity, not {DISK / MILLION:.0f}")
    if options.store == "sqlite" and report["growth_mb"] > GROWTH:
        over.append(f"memory grew by {report['growth_mb']:.0f} MB, not {GROWTH:.0f}")
    if report["wake_s"] > WAKE:
        over.append(f"a wake takes {report['wake_s'] * 1e3:.1f} ms, not {WAKE * 1e3:.0f}")
    if options.json:
        print(orjson.dumps({"entities": count, "store": options.store, **report, "over": over}).decode())
    else:
        print(f"{count} entities, {options.store}")
        for name, figure in report.items():
            print(f"  {name:<26}{figure:>18,.4f}" if name.endswith("_s") else f"  {name:<26}{figure:>18,.1f}")
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


def _make(url: str, count: int, at_once: int) -> dict[str, float]:
    return anyio.run(_make_entities, url, count, at_once)


async def _make_entities(url: str, count: int, at_once: int) -> dict[str, float]:
    began, sizes = time.perf_counter(), []
    async with Runtime.open(url, cantrips=[KEEPER], passivate_after=0.0) as runtime:
        for part in range(PARTS):
            numbers = iter(range(part * count // PARTS, (part + 1) * count // PARTS))
            async with anyio.create_task_group() as tasks:
                for _ in range(at_once):
                    tasks.start_soon(_run_each, runtime, numbers)
            await anyio.sleep(1)  # until all entities are unloaded
            gc.collect()
            sizes.append(resident() / 1e6)
    took = time.perf_counter() - began
    return {"make_s": took, "first_mb": sizes[0], "last_mb": sizes[-1], "growth_mb": sizes[-1] - sizes[0]}


async def _run_each(runtime: Runtime, numbers: Iterator[int]) -> None:
    for number in numbers:
        entity = await runtime.invoke(KEEPER, f"note {number}", name=f"entity-{number}")
        await entity.episode()


def _measure_loading(url: str, count: int) -> dict[str, float]:
    return anyio.run(_load_entities, url, count)


async def _load_entities(url: str, count: int) -> dict[str, float]:
    before, began = resident() / 1e6, time.perf_counter()
    wakes, chance = [], random.Random(count)
    async with Runtime.open(url, cantrips=[KEEPER], passivate_after=0.0) as runtime:
        opened = time.perf_counter() - began
        memory = resident() / 1e6 - before
        for number in chance.sample(range(count), min(WOKEN, count)):
            began = time.perf_counter()
            entity = runtime.entity(f"entity-{number}")
            assert entity is not None
            episode = await entity.send("and more")
            wakes.append(time.perf_counter() - began)
            assert episode.result == "kept"
    wakes.sort()
    return {"open_s": opened, "open_mb": memory, "wake_s": median(wakes), "wake_p99_s": wakes[-1 - len(wakes) // 100]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
