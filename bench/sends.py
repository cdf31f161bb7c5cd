"""`python -m bench sends`: the cost of a send to an idle entity, and of loading one with a long history.

- *idle*: a further intent for a loaded long-lived entity that waits, CPU microseconds. `--beside TREE` measures a
  checkout of another commit in the same rounds; a send may cost 1.1 times the cost there.
- *load*: the first intent for an unloaded entity, less the cost of a send to an idle one, after few and after many
  intents. Its context is folded, so the many may cost twice as much as the few, and loading may stop the event loop for
  at most 20 ms.

Every measurement runs in a process of its own; the figures are the least of all rounds.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from cantrip_actors import Cantrip, Circle, Folding, Runtime, scripted
from cantrip_actors.wards import max_turns

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
STORES = {"memory": "memory:", "jsonl": "jsonl:{folder}/loom.jsonl", "sqlite": "sqlite:{folder}/loom.db"}
NAME = "keeper"
SENDS = 500

IDLE_LIMIT, LOAD_LIMIT, STALL_LIMIT = 1.1, 2.0, 0.02
"""Limits: the ratio to the other commit's send, the ratio to a load after few intents, seconds that the loop stands
still."""

TICK = 0.001
"""Seconds between two readings of the clock, which show for how long the event loop stands still."""

CANTRIP = Cantrip(
    scripted(lambda context: f"noted: {context[-1].content}", record=False, name="keeper"),
    circle=Circle(["done"], [max_turns(4)]),
    folding=Folding(trigger_after_turns=20, keep_turns=4),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench sends", description=__doc__)
    parser.add_argument("--few", type=int, default=200)
    parser.add_argument("--many", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    report: dict[str, dict[str, float]] = {}
    for store in STORES:
        report[store] = figures = _measure_idle(store, options.rounds, options.beside)
        if store == "sqlite":  # the others have no checkpoints on disk
            figures |= _loads(store, options.few, options.many, options.rounds)
    over = [f"{store}: {what}" for store, figures in report.items() for what in _list_excesses(figures)]
    if options.json:
        print(orjson.dumps({**report, "over": over}, option=orjson.OPT_INDENT_2).decode())
    else:
        for store, figures in report.items():
            print(f"{store:<8}" + "  ".join(f"{what} {figure:,.2f}" for what, figure in figures.items()))
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over else 0


def _list_excesses(figures: dict[str, float]) -> list[str]:
    limits = {"x_beside": IDLE_LIMIT, "x_load": LOAD_LIMIT, "stall_s": STALL_LIMIT}
    return [
        f"{what} is {figures[what]:.3f}, not {limit:g}"
        for what, limit in limits.items()
        if figures.get(what, 0) > limit
    ]


def _measure_idle(store: str, rounds: int, beside: Path | None) -> dict[str, float]:
    trees = [ROOT] if beside is None else [ROOT, beside]
    here = Path(__file__).resolve()
    least = dict.fromkeys(trees, float("inf"))
    for _ in range(rounds):
        for tree in trees:
            # the other commit may lack this file, so this one runs and imports the modules of that tree
            command = [sys.executable, str(here), "idle", store]
            ran = subprocess.run(
                command, cwd=tree, env={"PYTHONPATH": str(tree.resolve())}, stdout=subprocess.PIPE, check=True
            )
            least[tree] = min(least[tree], orjson.loads(ran.stdout))
    figures = {"idle_us": least[ROOT]}
    if beside is not None:
        figures["x_beside"] = least[ROOT] / least[beside]
    return figures


def _loads(store: str, few: int, many: int, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, intents in (("few", few), ("many", many)):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            anyio.run(_make, store, folder, intents)
            seen = [_run_in_process("load", store, folder) for _ in range(rounds)]
        figures[f"load_{name}_us"] = min(sample["load_us"] for sample in seen)
        figures["stall_s"] = max(figures.get("stall_s", 0.0), min(sample["stall_s"] for sample in seen))
    figures["x_load"] = figures["load_many_us"] / figures["load_few_us"]
    return figures


def _run_in_process(*arguments: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "bench.sends", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return orjson.loads(ran.stdout)


async def _make(store: str, folder: str, intents: int) -> None:
    async with Runtime.open(STORES[store].format(folder=folder)) as runtime:
        entity = await runtime.invoke(CANTRIP, "note 0", name=NAME)
        await entity.episode()
        for number in range(1, intents):
            await entity.send(f"note {number}")


async def _send_idle(store: str) -> float:
    """Return the CPU microseconds of a send to an idle entity."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(STORES[store].format(folder=folder)) as runtime:
            entity = await runtime.invoke(CANTRIP, "note 0", name=NAME)
            await entity.episode()
            for number in range(100):
                await entity.send(f"warm {number}")
            gc.collect()
            began = time.process_time()
            for number in range(SENDS):
                await entity.send(f"note {number}")
            return (time.process_time() - began) / SENDS * 1e6


async def _load(store: str, folder: str) -> dict[str, float]:
    """Return the CPU microseconds of a first send, less those of a later one, and the event loop's standstill."""
    async with Runtime.open(STORES[store].format(folder=folder), cantrips=[CANTRIP]) as runtime:
        warm = await runtime.invoke(CANTRIP, "warm")
        await warm.episode()
        await warm.send("warm")
        entity = runtime.entity(NAME)
        assert entity is not None
        async with anyio.create_task_group() as tasks:
            gaps: list[float] = []
            tasks.start_soon(_watch, gaps)
            await anyio.sleep(10 * TICK)
            gaps.clear()
            began = time.process_time()
            await entity.send("the first")
            first = time.process_time() - began
            await anyio.sleep(2 * TICK)
            stall = max(gaps) - TICK
            tasks.cancel_scope.cancel()
        began = time.process_time()
        await entity.send("the next")
        return {"load_us": (first - (time.process_time() - began)) * 1e6, "stall_s": stall}


async def _watch(gaps: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await anyio.sleep(TICK)
        gaps.append(time.perf_counter() - began)


if __name__ == "__main__":
    if sys.argv[1] == "idle":
        print(anyio.run(_send_idle, sys.argv[2]))
    else:
        print(orjson.dumps(anyio.run(_load, sys.argv[2], sys.argv[3])).decode())
