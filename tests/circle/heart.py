"""Measure by how much a program delays the event loop, beyond the delay by the machine.

One heart beats in the loop, another in a process of its own, which has no part in what the loop does: if both are late,
the machine is busy, and the test is not at fault.
"""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
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
        latest = 0.0

        async def beat() -> None:
            nonlocal latest
            while True:
                before = time.perf_counter()
                await anyio.sleep(BEAT)
                latest = max(latest, time.perf_counter() - before - BEAT)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            await anyio.sleep(2 * BEAT)  # until it beats
            await work()
            tasks.cancel_scope.cancel()
        return latest - self._read()

    def _read(self) -> float:
        assert self._beside.stdin is not None
        assert self._beside.stdout is not None
        self._beside.stdin.write("\n")
        self._beside.stdin.flush()
        return float(self._beside.stdout.readline())
