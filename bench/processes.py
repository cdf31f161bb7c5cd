"""Separate processes for measurements, so that each process's memory belongs to one measurement."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool
from pathlib import Path

__all__ = ["alone", "resident"]


def alone() -> Pool:
    """Return a pool of one process at a time: `one.apply(function, arguments)` calls in a fresh process."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)


def resident() -> int:
    """Return the bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
