"""`python -m bench suspended`: the memory of entities that wait in the middle of a program for a child.

Each entity has called `call_agent`, and so has its child, `--depth` deep and one more; the last one of each chain waits
for its crystal. Then the crystals answer, each program continues, and all answers are checked. A second run uses tools
instead of programs.

The figure is the memory per waiting entity: the memory of this process, with its loom on disk, minus that of a process
with as many chains of depth one, divided by the number of additional entities, `--entities`. (Both include the memory
of the first programs of a process, and of those that compute at the same time.) Threads and processes are counted,
because a waiting entity may hold none. The measurement begins after two seconds, when the programs of waiting entities
are put away.
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
from cantrip_actors import Cantrip, Circle, Runtime
from cantrip_actors.wards import max_depth, max_turns

__all__ = ["main"]

LIMIT = 8.0
"""The limit of KB for a waiting entity."""
THREADS = 8
"""The limit for all entities together."""
SETTLED = 2.5
"""Seconds until the programs of waiting entities are put away."""
LANGUAGES = ("python", "tools")
PROGRAM = "seen = list(range(10))\nanswer = call_agent('{left}')\nsubmit_answer(answer)"


class Delegates:
    """A crystal that delegates to a child, as deep as its intent says; the last child answers on command."""

    name = "delegates"

    def __init__(self, language: str, chains: int) -> None:
        self.may_answer, self.all_wait = anyio.Event(), anyio.Event()
        self._language = language
        self._left = chains

    async def invoke(self, context: Sequence[Any]) -> Mapping[str, Any]:
        """Return the entity's next response."""
        intent = int(next(message.content for message in context if message.role == "user"))
        if intent and self._language == "python":
            return {"code": PROGRAM.format(left=intent - 1)}
        if intent and context[-1].role != "tool":
            return _list_calls("call_agent", intent=str(intent - 1))
        if intent:
            return _list_calls("done", answer=context[-1].content)
        self._left -= 1
        if not self._left:
            self.all_wait.set()
        await self.may_answer.wait()
        return {"code": "submit_answer('seen')"} if self._language == "python" else _list_calls("done", answer="seen")


def main(argv: Sequence[str]) -> int:
    """Measure and print; return 1 if `--check` is given and a limit does not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench suspended", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--entities", type=int, default=10_000, help="entities that wait for a child (default: 10,000)")
    parser.add_argument("--depth", type=int, default=20, help="how deep each chain of them is (default: 20)")
    parser.add_argument("--settle", type=float, default=SETTLED, help="seconds that pass before it is looked at")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit does not hold")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if not 1 <= args.depth <= args.entities:
        parser.error(f"expected at least as many entities as the chains are deep, got {args.entities}, {args.depth}")
    chains = args.entities // args.depth
    report = {language: _measure(language, chains, args.depth, args.settle) for language in LANGUAGES}
    over = []
    for name, figures in report.items():
        if figures["kb"] > LIMIT:
            over.append(f"{name}: {figures['kb']:.1f} KB an entity that waits, where {LIMIT:g} are wanted")
        if figures["threads"] > THREADS:
            over.append(f"{name}: {figures['threads']:g} threads")
    if args.json:
        shape = {"entities": chains * args.depth, "depth": args.depth}
        sys.stdout.buffer.write(orjson.dumps({**shape, "told": report, "over": over}) + b"\n")
    else:
        print(f"  {f'{chains * args.depth:,} wait, {args.depth} deep':<26}", end="")
        print(f"{'KB each':>10}{'KB at work':>12}{'threads':>10}{'processes':>11}")
        for name, figures in report.items():
            print(f"  {name:<26}{figures['kb']:>10.1f}{figures['kb_at_work']:>12.1f}", end="")
            print(f"{figures['threads']:>10.0f}{figures['processes']:>11.0f}")
        print(f"over: {'; '.join(over)}" if over else "every limit holds")
    return 1 if over and args.check else 0


def _measure(language: str, chains: int, depth: int, settle: float) -> dict[str, float]:
    """Return the memory of a waiting entity, and of an entity at work, which waits for its crystal."""
    grown = []
    for deep in (0, 1, depth + 1):
        with alone() as process:
            grown.append(process.apply(_measure_process, (language, chains, deep, settle)))
    working, one_waits, all_wait = grown
    waiting = all_wait["kb"] - one_waits["kb"]
    return {**all_wait, "kb": waiting / (chains * depth), "kb_at_work": working["kb"] / chains}


def _measure_process(language: str, chains: int, depth: int, settle: float) -> dict[str, float]:
    figures: dict[str, float] = anyio.run(_measure_waiting, language, chains, depth, settle)
    return figures


async def _measure_waiting(language: str, chains: int, depth: int, settle: float) -> dict[str, float]:
    crystal, results = Delegates(language, chains), []
    medium: Any = language
    circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(max(depth, 1))], medium=medium)
    spell, first = Cantrip(crystal, circle=circle), Delegates(language, 1)
    first.may_answer.set()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(f"sqlite:{folder}/loom.db") as runtime:

            async def run_one() -> None:
                results.append((await runtime.cast(spell, str(depth))).result)

            await runtime.cast(
                Cantrip(first, circle=circle), "1"
            )  # resources that only the first program of a process takes
            before = _count_held()
            async with anyio.create_task_group() as tasks:
                for _ in range(chains):
                    tasks.start_soon(run_one)
                await crystal.all_wait.wait()
                await anyio.sleep(settle)
                now = _count_held()
                crystal.may_answer.set()
    assert results == ["seen"] * chains
    return {
        "kb": (now[0] - before[0]) / 1024,
        "threads": float(now[1] - before[1]),
        "processes": float(now[2] - before[2]),
    }


def _list_calls(gate: str, **args: Any) -> Mapping[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def _count_held() -> tuple[int, int, int]:
    gc.collect()
    children = [path.read_text(encoding="ascii").split() for path in Path("/proc/self/task").glob("*/children")]
    return resident(), threading.active_count(), sum(map(len, children))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
