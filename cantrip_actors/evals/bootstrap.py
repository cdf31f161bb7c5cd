"""A confidence interval of a mean, by the percentile bootstrap: no distribution is assumed, and few cases will do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

RESAMPLES: Final = 2000
LEVEL: Final = 0.95
"""The share of intervals that contain the mean."""


class Interval(NamedTuple):
    """A mean, and the ends of its 95% confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of `values` with its 95% confidence interval; the same values and seed give the same interval.

    For paired values, pass their differences. Raises ValueError without values.
    """
    if not values:
        raise ValueError("values: expected at least one number")
    size, chance = len(values), Random(seed)
    means = sorted(sum(chance.choices(values, k=size)) / size for _ in range(resamples))
    tail = (1 - LEVEL) / 2
    return Interval(sum(values) / size, _find_quantile(means, tail), _find_quantile(means, 1 - tail))


def _find_quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which that share of the ordered values lies, interpolated between two neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
