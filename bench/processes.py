"""Processes of their own for measurements: what one holds in memory is then the measurement's."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool
from pathlib import Path

__all__ = ["alone", "resident"]


def alone() -> Pool:
    """One process after the other: with it open as `one`, `one.apply(function, arguments)` calls in a fresh one."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
