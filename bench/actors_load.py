"""The amount of work of each measure of `python -m bench actors`, the same for every subject."""

from __future__ import annotations

Figures = dict[str, float]

CALLS = 20_000
CASTS = 200_000
IDLE = 100_000
STOPPED = 10_000
RESTARTS = 2_000
IN_A_ROW = 50  # restarts of one supervisor
CELLS = 2_000
