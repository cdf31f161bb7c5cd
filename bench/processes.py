"""Processes of their own for measurements: what one holds in memory is then the measurement's."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool

__all__ = ["alone"]


def alone() -> Pool:
    """A process for each call, one after the other. Use it as `with alone() as one: one.apply(function, arguments)`."""
    return multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
