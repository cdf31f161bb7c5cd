"""The fate of a life: the process kills or freezes itself at the n-th point that it passes.

Points are the borders of the loom's appends (before, in the middle, after) and the lines of the ledger; a process
counts them as it meets them. It dies by its own SIGKILL, after which no code runs. Or it freezes by SIGSTOP, until
another process thaws it.
"""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["Fate", "die"]


class Fate:
    """Ends the process at point `at`; never, if `at` is None. With `freezes` it freezes there, or at the next border.

    A process never freezes in the middle of an append, because it would hold the lock of a file.
    """

    def __init__(self, at: int | None = None, *, freezes: bool = False) -> None:
        self.at = at
        self.freezes = freezes
        self.met = 0
        self._lock = threading.Lock()  # gates and blocking stores work in threads

    @property
    def is_next(self) -> bool:
        """Whether the process dies at the next point: a write that can be split is then half done."""
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
    threading.Event().wait()  # other threads may run for another instant, this one never
