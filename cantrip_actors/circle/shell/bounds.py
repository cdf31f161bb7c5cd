"""The bounds of a jail on disk and shared memory, checked often and at little cost.

A full check walks through all files and processes. It runs four times a second, and at once if the machine's free disk
or shared memory shrinks quickly: checking that costs a microsecond, and no process can hide from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cantrip_actors.circle.shell import process_tree
from cantrip_actors.circle.shell.files import ShellFiles
from cantrip_actors.circle.step import Limit

FILE: Final = 64 * 1024 * 1024
"""Bytes of one file."""

DUE: Final = 0.25
"""Seconds between two full checks."""

QUICK: Final = 32 * 1024 * 1024
"""Bytes that all processes of the machine may take before the next full check."""


class Bounds:
    """The bounds of one shell: `processes` yields those of its jail; `shares` allows shared memory without a file."""

    def __init__(self, files: ShellFiles, processes: Callable[[], Iterator[int]], *, shares: bool) -> None:
        self._files = files
        self._processes = processes
        self._shares = shares
        self._looked = 0.0
        self._taken = 0

    def begin(self) -> None:
        """Reset the count at the start of a program."""
        self._looked, self._taken = time.monotonic(), self._measure_machine()

    def find_exceeded(self) -> Limit | None:
        """Return the exceeded limit as soon as it can be known; otherwise, and in most checks, None."""
        machine_use = self._measure_machine()
        if time.monotonic() - self._looked < DUE and machine_use - self._taken < QUICK:
            return None
        self._taken = machine_use
        hidden = self.measure_unnamed()
        exceeded = hidden if isinstance(hidden, str) else "disk" if self._files.has_too_much(hidden) else None
        self._looked = time.monotonic()
        return exceeded

    def measure_unnamed(self) -> int | Limit:
        """Return the bytes of files without a name, or the exceeded limit."""
        try:
            hidden = process_tree.measure_hidden(self._processes(), FILE)
        except OSError:  # the files of a process cannot be inspected
            return "disk"
        return "memory" if hidden.shares and not self._shares else hidden.size

    def _measure_machine(self) -> int:
        """Return the bytes in use on the files' disk and of shared memory; only differences are meaningful."""
        disk = os.statvfs(self._files.folder)
        words = Path("/proc/meminfo").read_bytes().partition(b"\nShmem:")[2].split(maxsplit=1)
        return int(words[0]) * 1024 - disk.f_bfree * disk.f_frsize
