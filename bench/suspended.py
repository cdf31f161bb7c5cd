"""`python -m bench suspended`: what entities hold in memory while they wait in the middle of a program for a child.

Each is a parent whose Python program has called `call_agent`, and its child, which waits for its crystal: a pair, of
which `--pairs` wait at once in one process with a loom on disk. Then each child answers, each program goes on, and all
answers are checked. Beside that the same with tools: the difference is what the suspended programs take.

Figures are what the process has grown by, divided by how many wait; threads and processes are counted, since none may
be held by who waits. Two seconds pass before it is looked at, in which those around an entity give their tasks back.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson

from bench.processes import alone, resident
from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.wards import max_depth, max_turns

__all__ = ["main"]

LIMIT = 8.0
"""KB for an entity that waits; a pair is two."""
SETTLED = 2.5
"""Seconds, of which `hibernate_after` of what surrounds an entity is one."""
PROGRAM = "seen = list(range(10))\nanswer = call_agent('look')\nsubmit_answer(answer)"


class Waits:
    """A crystal that answers when it is allowed to."""

    name = "waits"

    def __init__(self, expected: int, said: Mapping[str, Any]) -> None:
        self.may_answer, self.all_wait = anyio.Event(), anyio.Event()
        self._left = expected
        self._said = said

    async def invoke(self, query: object) -> Mapping[str, Any]:  # noqa: ARG002 - whatever it is asked
        """Wait, and end the child."""
        self._left -= 1
        if not self._left:
            self.all_wait.set()
        await self.may_answer.wait()
        return self._said


def main(argv: Sequence[str]) -> int:
    """Measure and print; with `--check` 1 where a limit is not kept."""
    parser = argparse.ArgumentParser(prog="python -m bench suspended", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=2_000)
    parser.add_argument("--settle", type=float, default=SETTLED, help="seconds that pass before it is looked at")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit does not hold")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    told = {}
    for name, measure in (("python", _pairs), ("tools", _plain_pairs)):
        with alone() as one:
            told[name] = one.apply(measure, (asked.pairs, asked.settle))
    over = [
        f"{name}: {figures['kb'] / 2:.1f} KB an entity, where {LIMIT:g} are wanted"
        for name, figures in told.items()
        if figures["kb"] / 2 > LIMIT
    ]
    over += [f"{name}: {figures['threads']:g} threads" for name, figures in told.items() if figures["threads"] > 8]
    if asked.json:
        sys.stdout.buffer.write(orjson.dumps({"pairs": asked.pairs, "told": told, "over": over}) + b"\n")
    else:
        print(f"  {f'{asked.pairs} pairs wait':<30}{'KB a pair':>12}{'threads':>10}{'processes':>11}")
        for name, figures in told.items():
            print(f"  {name:<30}{figures['kb']:>12.1f}{figures['threads']:>10.0f}{figures['processes']:>11.0f}")
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over and asked.check else 0


def _pairs(count: int, settle: float) -> dict[str, float]:
    told: dict[str, float] = anyio.run(_waiting, count, settle, "python")
    return told


def _plain_pairs(count: int, settle: float) -> dict[str, float]:
    told: dict[str, float] = anyio.run(_waiting, count, settle, "tools")
    return told


async def _waiting(count: int, settle: float, language: str) -> dict[str, float]:
    if language == "python":
        waits = Waits(count, {"code": "submit_answer('seen')"})
        crystal = scripted(lambda _: {"code": PROGRAM}, record=False, name="parent")
        circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1)], medium="python")
    else:
        waits = Waits(count, {"tool_calls": [{"gate": "done", "args": {"answer": "seen"}}]})
        crystal = scripted(_plain, record=False, name="parent")
        circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1)])
    spell, results = Cantrip(crystal, circle=circle, child_crystal=waits), []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(f"sqlite:{folder}/loom.db") as runtime:

            async def one() -> None:
                results.append((await runtime.cast(spell, "go")).result)

            before = _held()
            async with anyio.create_task_group() as tasks:
                for _ in range(count):
                    tasks.start_soon(one)
                await waits.all_wait.wait()
                await anyio.sleep(settle)
                told = _grown(before, count)
                waits.may_answer.set()
    assert results == ["seen"] * count
    return told


def _plain(context: Sequence[Any]) -> Mapping[str, Any]:
    if context[-1].role == "tool":
        return {"tool_calls": [{"gate": "done", "args": {"answer": context[-1].content}}]}
    return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "look"}}]}


def _held() -> tuple[int, int, int]:
    gc.collect()
    children = [path.read_text(encoding="ascii").split() for path in Path("/proc/self/task").glob("*/children")]
    return resident(), threading.active_count(), sum(map(len, children))


def _grown(before: tuple[int, int, int], count: int) -> dict[str, float]:
    now = _held()
    return {
        "kb": (now[0] - before[0]) / count / 1024,
        "threads": float(now[1] - before[1]),
        "processes": float(now[2] - before[2]),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
