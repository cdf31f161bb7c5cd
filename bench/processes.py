"""Separate processes for measurements, so that the memory of a process belongs to one measurement."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool
from pathlib import Path

__all__ = ["alone", "resident"]


def alone() -> Pool:
    """One process after the other: with it open as `one`, `one.apply(function, arguments)` calls in a fresh one."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)


def resident() -> int:
    """Return the bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
