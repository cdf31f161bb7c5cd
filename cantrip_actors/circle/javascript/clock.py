"""The clock of the JavaScript engine: it advances the engine's epoch while a program computes.

At each epoch the program checks its budget: CPU seconds of its thread, so that a busy machine does not use up a
program's budget, and a short extra time in which it may wait for a CPU. One clock serves all programs, and it stops
while no program computes.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cantrip_actors.circle.javascript.engine import Guest

WAITING: Final = 0.7
"""Seconds that a turn may take beyond its computing time, because on a busy machine it waits for a CPU."""

TICK: Final = 0.01
"""Seconds between two checks of the budget."""

GRACE: Final = 10.0
"""Seconds after which a halted program that still runs is a bug of this library."""


class _EpochClock:
    """Advance the engine's epoch while programs compute: one thread for all of them, parked while none does."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with no thread and no program, as a forked process does."""
        self._changed = threading.Condition()
        self._running: list[Guest] = []
        self._thread: threading.Thread | None = None

    @contextmanager
    def run_guest(self, guest: Guest) -> Iterator[None]:
        """Advance the epoch during this `with` block, in which the guest computes."""
        with self._changed:
            self._running.append(guest)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._tick, name="javascript clock", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(guest)

    def _tick(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._running)
                self._running[0].tick()
            time.sleep(TICK)

    def end_all(self) -> None:
        """End all running programs at exit, because they would crash the interpreter."""
        ends = time.monotonic() + GRACE
        while self._running and time.monotonic() < ends:
            for guest in list(self._running):
                guest.halt("interrupted")
            time.sleep(0.001)


clock: Final = _EpochClock()
atexit.register(clock.end_all)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=clock.reset)
