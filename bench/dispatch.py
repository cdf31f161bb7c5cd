"""`python -m bench dispatch`: the cost of a turn of an entity with a dispatch, compared with the same entity without.

Both do the same: one gate per turn, the same words from the same crystal, which answers at once. The entity with a
dispatch has its gates wrapped, and writes progress every few turns, each entry fsynced; the other one calls a gate
there that does nothing. Rounds alternate, in one process; CPU time counts, with the threads that wait for the disk.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted
from cantrip_actors.dispatch import Contract, Dispatcher
from cantrip_actors.wards import max_turns

__all__ = ["main"]

LIMIT = 1.2
"""The highest ratio of a turn with a dispatch to one without."""

EVERY = 29
"""Turns between two entries of progress: as rare as the rules allow, since a checkpoint is due after 30 calls."""

OFTEN = 10
"""The same for an entity that writes often: the difference of the two gives the cost of an entry."""


@gate
async def echo(text: str) -> str:
    """Give back the text."""
    return text


@gate(name="progress")
async def ignore_progress(kind: str, text: str, item: int | None = None) -> dict[str, Any]:
    """Stand in for the gate of a dispatch."""
    return {"entry": 1, "without_evidence": [], "kind": kind, "text": text, "item": item}


@gate(name="set_status")
async def ignore_status(status: str, result: str) -> dict[str, str]:
    """Stand in for the gate of a dispatch."""
    return {"status": status, "result": result}


def policy(turns: int, every: int) -> Callable[[Any], Mapping[str, Any]]:
    """Return the responses of the crystal: echo calls, progress now and then, evidence, the status, done."""

    def say(context: Any) -> Mapping[str, Any]:
        turn = len(context) // 2  # utterance and observation per turn
        left = turns - turn
        if left <= 1:
            return _call("done", answer="ok")
        if left == 2:
            return _call("set_status", status="completed", result="all is done")
        if left == 3:
            return _call("progress", kind="verification", text=f"counted {turn} turns", item=1)
        if turn % every == every - 1:
            return _call("progress", kind="milestone", text=f"came to turn {turn}")
        return _call("echo", text=f"hello {turn}")

    return say


def _call(name: str, **args: Any) -> Mapping[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def cantrip(turns: int, every: int, *gates: Any) -> Cantrip:
    """Return the cantrip with the parts that both entities share."""
    circle = Circle(gates=["done", echo, *gates], wards=[max_turns(turns + 3)])
    return Cantrip(crystal=scripted(policy(turns, every), record=False), circle=circle)


def contract(number: int) -> Contract:
    """Return a contract with one criterion."""
    return Contract(
        dispatch_id=f"d{number}",
        title="Count turns",
        project="bench",
        repo="/srv/bench",
        priority="low",
        dispatched_at="2026-01-01",
        needs_approval=False,
        objective="Take so many turns.",
        acceptance=("the turns are counted",),
        scope=("nothing else",),
        background="Somebody wants to know what it costs.",
        sources=({"path": "/srv/bench/dispatch.py", "description": "what is measured"},),  # type: ignore[arg-type]
        technical_context="One process, one entity at a time.",
        tasks=("take turns",),
        verification="the turns are in the loom",
    )


async def without(turns: int) -> float:
    """Return the CPU seconds of an entity without a dispatch."""
    async with Runtime.open() as runtime:
        worker = cantrip(turns, EVERY, ignore_progress, ignore_status)
        gc.collect()
        began = time.process_time()
        entity = await runtime.invoke(worker, "Take so many turns.", name="it")
        episode = await entity.episode()
        spent = time.process_time() - began
    assert episode.terminated
    return spent


async def with_one(turns: int, folder: Path, number: int, every: int = EVERY) -> float:
    """Return the CPU seconds of an entity with a dispatch."""
    async with Runtime.open() as runtime:
        dispatcher = Dispatcher(runtime, folder)
        worker = cantrip(turns, every)
        record = await dispatcher.dispatch(contract(number), author="bench")
        gc.collect()
        began = time.process_time()
        record = await dispatcher.run(record.id, worker)
        spent = time.process_time() - began
    assert record.status == "completed", (record.status, record.reason, record.blocker)
    return spent


async def measure(turns: int, rounds: int) -> tuple[float, float, float]:
    """Return the median CPU microseconds of a turn without a dispatch, with one, and with many entries."""
    plain: list[float] = []
    dispatched: list[float] = []
    often: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            undispatched, other = await without(turns), await with_one(turns, Path(folder), 2 * number)
            third = await with_one(turns, Path(folder), 2 * number + 1, OFTEN)
            if number:  # the first round warms up
                plain.append(undispatched / turns * 1e6)
                dispatched.append(other / turns * 1e6)
                often.append(third / turns * 1e6)
    return median(plain), median(dispatched), median(often)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code is 0, or with `--check` 1 where the limit does not hold."""
    parser = argparse.ArgumentParser(prog="python -m bench dispatch", description="What a turn under a dispatch costs.")
    parser.add_argument("--turns", type=int, default=2000, help="of an entity; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit code 1 if the limit does not hold")
    options = parser.parse_args(argv)
    plain, dispatched, often = anyio.run(measure, options.turns, options.rounds, backend=options.backend)
    ratio = dispatched / plain
    an_entry = (often - dispatched) / (1 / OFTEN - 1 / EVERY)
    print(f"CPU microseconds a turn; medians of {options.rounds} rounds of {options.turns} turns ({options.backend})\n")
    print(f"without a dispatch   {plain:7.1f}")
    print(
        f"with one             {dispatched:7.1f}   x {ratio:.2f} (limit {LIMIT}) {'ok' if ratio <= LIMIT else 'OVER'}"
    )
    print(f"written to often     {often:7.1f}   x {often / plain:.2f} (every {OFTEN} turns; above, every {EVERY})")
    around = dispatched - an_entry / EVERY - plain
    print(f"\nan entry takes {an_entry:.0f}; a turn without one takes {around:.1f} more than without a dispatch")
    return 1 if options.check and ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
