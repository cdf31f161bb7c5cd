"""When a life ends by its own hand: at the n-th of the points that it passes.

Points are the borders of the loom's appends (before, in the middle, after) and the lines of the ledger; a process
counts them as it meets them. It dies by SIGKILL, as it would by anybody else's: nothing runs after that. Or it freezes
there, by SIGSTOP, until somebody thaws it.
"""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["Fate", "die"]


class Fate:
    """Dies at point number `at`; never, where that is None. With `freezes` it freezes there, or at the next border.

    Nothing freezes in the middle of an append: it would hold what only a killed process lets go of, the lock of a file.
    """

    def __init__(self, at: int | None = None, *, freezes: bool = False) -> None:
        self.at = at
        self.freezes = freezes
        self.met = 0
        self._lock = threading.Lock()  # gates and blocking stores work in threads

    @property
    def is_next(self) -> bool:
        """Whether it dies at the next point: what can be done by halves is then done by half."""
        return self.met + 1 == self.at and not self.freezes

    def meet(self, *, middle: bool = False) -> None:
        """Pass a point, or die there."""
        with self._lock:
            self.met += 1
            if self.at is None or self.met < self.at:
                return
            if not self.freezes:
                die()
            elif not middle:
                self.at = None
                os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # other threads may run on for an instant, this one never
