"""Measure by how much a program delays the event loop, beyond the delay by the machine.

One heart beats in the loop, another in a process of its own, which has no part in what the loop does: if both are late,
the machine is busy, and the test is not at fault. Nor is it if the threads of this process could run, and waited for a
core: Linux counts that time.
"""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

BEAT = 0.005
LATE = 0.050
"""Seconds that no program may delay the loop by."""

BESIDE = f"""
import select, sys, time
latest = 0.0
while True:
    before = time.perf_counter()
    if select.select([sys.stdin], [], [], {BEAT})[0]:
        if not sys.stdin.readline():
            break
        print(latest, flush=True)
        latest = 0.0
    else:
        latest = max(latest, time.perf_counter() - before - {BEAT})
"""


def read_waits() -> float:
    """Return how many seconds the threads of this process have waited for a core; 0 if the system does not count."""
    waits = 0
    for statistics in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # that thread has just ended
            waits += int(statistics.read_text().split()[1])
    return waits / 1e9


class Hearts:
    """Both hearts; the one beside beats while this is entered."""

    def __init__(self) -> None:
        self._beside = subprocess.Popen(
            [sys.executable, "-S", "-c", BESIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._beside.communicate()

    async def late_by(self, work: Callable[[], Awaitable[object]]) -> float:
        """How much later than the machine the loop was at its latest, in seconds, while `work` was done."""
        self._read()
        latest = latest_by_itself = 0.0

        async def beat() -> None:
            nonlocal latest, latest_by_itself
            while True:
                before, waits = time.perf_counter(), read_waits()
                await anyio.sleep(BEAT)
                late = time.perf_counter() - before - BEAT
                latest = max(latest, late)
                latest_by_itself = max(latest_by_itself, late - (read_waits() - waits))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            await anyio.sleep(2 * BEAT)  # until it beats
            await work()
            tasks.cancel_scope.cancel()
        return min(latest - self._read(), latest_by_itself)

    def _read(self) -> float:
        assert self._beside.stdin is not None
        assert self._beside.stdout is not None
        self._beside.stdin.write("\n")
        self._beside.stdin.flush()
        return float(self._beside.stdout.readline())
