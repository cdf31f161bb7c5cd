"""One measurement in a process of its own, so that peak memory is its own too: `python -m bench.turns_worker JSON`.

The job is what a user would write: a crystal that is a function of its context, an async gate, a memory or JSONL loom.
The first casts warm up (imports, schemas) and do not count. Short runs are repeated until they are long enough to
measure.
"""

from __future__ import annotations

import gc
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson

from bench.turns_floor import run_floor
from cantrip_actors import Cantrip, Circle, Invocation, Runtime, gate, scripted
from cantrip_actors.wards import max_turns

__all__ = ["EARLY", "LATE", "LONG", "Job", "run_job"]

ENOUGH = 2000
"""The fewest turns of a measurement."""

EARLY, LATE, LONG = (51, 150), (9_001, 11_000), 11_000
"""The windows around turn 100 and around turn 10,000, and the number of turns that an entity needs for the latter."""


@dataclass(frozen=True, slots=True)
class Job:
    """A measurement: `what` is runtime, floor or flat; `store` is memory, jsonl or sqlite."""

    what: str
    store: str
    turns: int
    entities: int
    backend: str = "asyncio"


@gate
async def echo(text: str) -> str:
    """Give back the text."""
    return text


def answer(turn: int, turns: int) -> Mapping[str, Any]:
    """Return the crystal's answer in turn `turn`, counted from 0."""
    call = {"gate": "done", "args": {"answer": "ok"}} if turn == turns - 1 else _call_echo(turn)
    return {"tool_calls": [call], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def _call_echo(turn: int) -> Mapping[str, Any]:
    return {"gate": "echo", "args": {"text": f"hello {turn}"}}


def payload(turns: int) -> int:
    """Return the bytes of arguments and results, as JSON, in this many turns."""
    argument_bytes = sum(len(orjson.dumps(answer(turn, turns)["tool_calls"][0]["args"])) for turn in range(turns))
    return (
        argument_bytes + sum(len(orjson.dumps(f"hello {turn}")) for turn in range(turns - 1)) + len(orjson.dumps("ok"))
    )


def cantrip_of(turns: int, marks: dict[int, float] | None = None) -> Cantrip:
    """Return a cantrip whose entity has `turns` turns. `marks` receives the CPU time at which its turns begin."""

    def policy(context: Invocation) -> Mapping[str, Any]:
        turn = len(context) // 2
        if marks is not None and turn in marks:
            marks[turn] = time.process_time()
        return answer(turn, turns)

    crystal = scripted(policy, record=False)
    return Cantrip(crystal=crystal, circle=Circle(gates=["done", echo], wards=[max_turns(turns + 1)]))


async def _cast(runtime: Runtime, turns: int, entities: int) -> float:
    """Return the CPU seconds of this many concurrent entities."""
    cantrip = cantrip_of(turns)
    began = time.process_time()
    async with anyio.create_task_group() as casts:
        for _ in range(entities):
            casts.start_soon(runtime.cast, cantrip, "go")
    return time.process_time() - began


def _name_loom(store: str, file: Path) -> str:
    return "memory:" if store == "memory" else f"{store}:{file}"


async def _runtime(job: Job, folder: Path) -> dict[str, float]:
    file = folder / f"loom.{job.store}"
    repeat = max(1, ENOUGH // (job.turns * job.entities))
    async with Runtime.open(_name_loom(job.store, file)) as runtime:
        await _cast(runtime, 50, 2)
        size = file.stat().st_size if job.store == "jsonl" else 0
        gc.collect()
        resident = _read_peak()
        spent = sum([await _cast(runtime, job.turns, job.entities) for _ in range(repeat)])
        turns = job.turns * job.entities * repeat
        figures = {
            "cpu_us": spent / turns * 1e6,
            "peak_mb": _read_peak() / 2**20,
            "per_turn_b": (_read_peak() - resident) / turns,
        }
        if job.store == "jsonl":
            written = (file.stat().st_size - size) / turns
            figures |= {"written_b": written, "overhead_b": written - payload(job.turns) / job.turns}
    return figures


async def _measure_flat(job: Job, folder: Path) -> dict[str, float]:
    """Return the cost of a turn around number 100 and of one around number 10,000, in one process."""
    async with Runtime.open(_name_loom(job.store, folder / f"loom.{job.store}")) as runtime:
        await _cast(runtime, 50, 2)
        gc.collect()
        early = [await _measure_window(runtime, EARLY, EARLY[1] + 10) for _ in range(10)]
        late = await _measure_window(runtime, LATE, LONG + 10)
        early += [await _measure_window(runtime, EARLY, EARLY[1] + 10) for _ in range(10)]
    mean = sum(early) / len(early)
    return {"early_us": mean * 1e6, "late_us": late * 1e6, "ratio": late / mean}


async def _measure_window(runtime: Runtime, window: tuple[int, int], turns: int) -> float:
    first, last = window[0] - 1, window[1]
    marks = {first: 0.0, last: 0.0}
    await runtime.cast(cantrip_of(turns, marks), "go")
    return (marks[last] - marks[first]) / (last - first)


async def _measure_floor(job: Job, folder: Path) -> dict[str, float]:
    file = None if job.store == "memory" else str(folder / "floor")
    await run_floor(50, 2, job.store, file)
    gc.collect()
    repeat = max(1, ENOUGH // (job.turns * job.entities))
    spent = sum([await run_floor(job.turns, job.entities, job.store, file) for _ in range(repeat)])
    return {"cpu_us": spent / (job.turns * job.entities * repeat) * 1e6}


def _read_peak() -> float:
    """Return the peak resident memory of this process, in bytes."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


_WORK = {"runtime": _runtime, "flat": _measure_flat, "floor": _measure_floor}


def run_job(job: Job) -> dict[str, float]:
    """Measure here, in this process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return anyio.run(partial(_WORK[job.what], job, Path(folder)), backend=job.backend)


def main(argv: Sequence[str]) -> int:
    """Measure the job in the JSON on the command line; print the figures as JSON."""
    job = Job(**orjson.loads(argv[0]))
    print(orjson.dumps({"job": asdict(job), "figures": run_job(job)}).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
