"""Processes of their own for measurements: what one holds in memory is then the measurement's."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool

__all__ = ["alone"]


def alone() -> Pool:
    """One process after the other: with it open as `one`, `one.apply(function, arguments)` calls in a fresh one."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
