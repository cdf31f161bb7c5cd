"""The ends of a command that are none of the runtime's: a signal, and a loom that cannot be opened."""

from __future__ import annotations

import signal

from cantrip_actors import LoomError

__all__ = ["Interrupted", "LoomUnusable"]


class Interrupted(Exception):  # no error: somebody wanted it
    """A signal ended the run. `code` is the exit code that shells expect of that."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        super().__init__(signal.Signals(number).name)


class LoomUnusable(LoomError):
    """The loom that was named cannot be opened."""
