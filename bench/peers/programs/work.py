"""The work that every program does, measured in its process: `python -m bench.peers.programs.NAME JOB`, a job in JSON.

It needs Python's own library only, because it runs in the environments of all libraries.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["Job", "Program", "main", "note_query"]

KILL_AT = 100
"""The query, counted from 0, at which a process kills itself in the job `kill`."""
KEY = "the run that is killed"
WARM_UP = 3
"""Turns of the run before the measured ones: imports that wait for their first use, schemas."""


@dataclass(frozen=True)
class Job:
    """One measurement: what is done (`run`, `delegate`, `stream`, `kill` or `resume`), how often, and where."""

    what: str
    count: int
    """Turns, children or chunks."""
    agents: int = 1
    """Agents at the same time."""
    repeat: int = 1
    store: str = "memory"
    """`memory`, `sqlite`, `sqlite sync` where a library writes later by default, or the URL of a Postgres database."""
    folder: str = "."
    """An empty folder for files."""


class Program:
    """The agents of one library. `async with` opens its store."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self.folder = folder

    async def __aenter__(self) -> Self:
        """Open the store."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""

    async def run(self, turns: int, key: str) -> None:
        """Run an agent whose model calls `echo` in each turn and answers in the last one; `key` names the run."""
        raise NotImplementedError

    async def delegate(self, children: int) -> None:
        """Run an agent that asks this many others, each of which answers at once."""
        raise NotImplementedError

    async def stream(self, chunks: int) -> str:
        """Return the text of an agent whose model streams it in this many chunks."""
        raise NotImplementedError

    async def resume(self, turns: int, key: str) -> None:
        """Finish the run that a process killed in the middle left."""
        await self.run(turns, key)


class _Queries:
    """What the process notes of the queries to its model."""

    def __init__(self) -> None:
        self.seen = 0
        self.kill_at: int | None = None
        self.first: tuple[float, float] | None = None
        """CPU and wall clock of the first one."""

    def note(self, turn: int) -> None:
        if turn == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.first is None:
            self.first = read_clocks()
        self.seen += 1


_queries = _Queries()
note_query = _queries.note
"""Each scripted model calls this with the number of the turn."""


def read_clocks() -> tuple[float, float]:
    """Return the CPU seconds of this process, user and system, and the wall clock."""
    return time.process_time(), time.perf_counter()


async def _do(program: Program, job: Job, number: int) -> None:
    if job.what == "run":
        await asyncio.gather(*(program.run(job.count, f"{number}-{agent}") for agent in range(job.agents)))
    elif job.what == "delegate":
        await program.delegate(job.count)
    else:
        text = await program.stream(job.count)
        assert text.split() == ["word"] * job.count, f"expected {job.count} words, got {text[:80]!r}"


async def _measure(program: Program, job: Job) -> dict[str, float]:
    async with program:
        await program.run(WARM_UP, "warm up")
        await program.run(WARM_UP, "warm up again")
        gc.collect()
        cpu, wall = read_clocks()
        for number in range(job.repeat):
            await _do(program, job, number)
        after_cpu, after_wall = read_clocks()
    units = job.count * job.agents * job.repeat
    return {
        "cpu_us": (after_cpu - cpu) / units * 1e6,
        "wall_us": (after_wall - wall) / units * 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    }


async def _run_until_killed(program: Program, job: Job) -> dict[str, float]:
    _queries.kill_at = KILL_AT
    async with program:
        await program.run(job.count, KEY)
    raise AssertionError(f"the process reached turn {job.count} without being killed at {KILL_AT}")


async def _resume(program: Program, job: Job) -> dict[str, float]:
    cpu, wall = read_clocks()
    async with program:
        await program.resume(job.count, KEY)
    assert _queries.first is not None, "the model was never asked"
    return {
        "cpu_ms": (_queries.first[0] - cpu) * 1e3,
        "wall_ms": (_queries.first[1] - wall) * 1e3,
        "queries_again": _queries.seen - (job.count - KILL_AT),
    }


def main(make_program: Callable[[str, Path], Program]) -> None:
    """Do the job on the command line, and print the figures as JSON."""
    job = Job(**json.loads(sys.argv[1]))
    jobs: dict[str, Any] = {"kill": _run_until_killed, "resume": _resume}
    figures = asyncio.run(jobs.get(job.what, _measure)(make_program(job.store, Path(job.folder)), job))
    print(f"\n{json.dumps(figures)}", flush=True)  # a line of its own, whatever the library has printed
