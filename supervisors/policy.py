"""The decisions of a supervisor, as pure functions over frozen data: no clock, no I/O, no event loop, no actor.

Rules of this module: every decision of `supervisor.erl` is here; time and
chance are arguments; nothing here knows tasks. `supervisor.py` carries the decisions out.

Theory of operation. A child's exit raises two questions. *Is the child restarted?* `should_restart` answers it, from
restart type and reason. If so, *is one more restart allowed?* The `RestartWindow` answers that. If it is,
`plan` returns which children the strategy stops and starts:

| strategy     | stopped, in this order         | started, in this order          |
|--------------|--------------------------------|---------------------------------|
| one_for_one  | none                           | the failed child                |
| rest_for_one | those after it, last first     | the failed child, those after it |
| one_for_all  | all others, last first         | all                             |

A failed start raises the second question again, and the child that failed to start takes the place of the failed
child.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from supervisors.reasons import ExitReason, is_abnormal

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
AutoShutdown: TypeAlias = Literal["never", "any_significant", "all_significant"]


def should_restart(restart: Restart, reason: ExitReason) -> bool:
    """Return whether a child that ended without a request of its supervisor is restarted."""
    return restart == "permanent" or (restart == "transient" and is_abnormal(reason))


def should_end_supervisor(auto_shutdown: AutoShutdown, *, significant: bool, others_active: bool) -> bool:
    """Return whether the end of a child that is not restarted ends its supervisor.

    Args:
        auto_shutdown: the supervisor's flag.
        significant: whether the child that ended is significant.
        others_active: whether another significant child runs or is being restarted.
    """
    if not significant or auto_shutdown == "never":
        return False
    return auto_shutdown == "any_significant" or not others_active


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The children to stop and to start after a failure, each in order."""

    stop: tuple[Hashable, ...]
    start: tuple[Hashable, ...]


def plan(strategy: Strategy, children: Sequence[Hashable], failed: Hashable) -> RestartPlan:
    """Return the children that the strategy stops and starts after a failure.

    Args:
        strategy: the supervisor's strategy.
        children: the ids of all its children in start order.
        failed: the child that ended, or whose start failed.

    Raises:
        ValueError: if `failed` is not among `children`.
    """
    if strategy == "one_for_one":
        return RestartPlan((), (failed,))
    at = list(children).index(failed)
    if strategy == "rest_for_one":
        after = tuple(children[at + 1 :])
        return RestartPlan(after[::-1], (failed, *after))
    others = (*children[:at], *children[at + 1 :])
    return RestartPlan(others[::-1], tuple(children))


#: Restarts that are counted, for reports, where any number is allowed.
_MOST_COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class RestartWindow:
    """The recent restarts: a sliding window, one for a whole supervisor.

    A restart exactly `period` seconds old still counts.

    Args:
        max_restarts: how many are allowed within `period`; one more is fatal. With 0 the first one is fatal.
            `math.inf` for no limit.
        period: seconds.
        times: the times of the counted restarts, oldest first.
    """

    max_restarts: float = 1
    period: float = 5.0
    times: tuple[float, ...] = ()

    def add(self, now: float) -> RestartWindow:
        """Return the window with a restart at `now`, in seconds of any steady clock, and without expired ones."""
        times, period = self.times, self.period
        young = 0
        if times and now - times[0] > period:  # else none has expired: in a storm of restarts this stays cheap
            young = bisect_left(times, True, key=lambda t: now - t <= period)
        # One more than the limit is enough to know that it is exceeded.
        limit = _MOST_COUNTED if self.max_restarts == math.inf else int(self.max_restarts)
        young = max(young, len(times) - limit)
        return RestartWindow(self.max_restarts, period, (*times[young:], now) if young else (*times, now))

    def count(self, now: float) -> int:
        """Return the number of restarts that are not expired at `now`; at most one more than counts."""
        return sum(now - time <= self.period for time in self.times)

    @property
    def exceeded(self) -> bool:
        """Whether there were more than `max_restarts`, so that the supervisor gives up."""
        return len(self.times) > self.max_restarts


@dataclass(frozen=True, slots=True)
class Backoff:
    """A bounded exponential backoff between restarts, reset after a quiet time. OTP has none.

    Args:
        first: seconds before the second restart in a row; the first restart is immediate.
        maximum: seconds; the longest wait, at least `first`.
        factor: the ratio of each wait to the one before.
        jitter: the share of the wait, 0 to 1, that is random, so that children that crashed together do not restart
            together.
        reset: seconds after which a running child's backoff starts over.
    """

    first: float = 0.1
    maximum: float = 30.0
    factor: float = 2.0
    jitter: float = 0.2
    reset: float = 60.0

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait before restart `attempt` in a row, counted from 0.

        Args:
            attempt: restarts since the last reset.
            chance: a random number from 0 to 1.
        """
        if attempt <= 0:
            return 0.0
        try:
            wait = min(self.maximum, self.first * float(self.factor) ** (attempt - 1))
        except OverflowError:
            wait = self.maximum if self.first else 0.0
        return wait * (1.0 - self.jitter * chance)

    def next_attempt(self, attempt: int, ran: float) -> int:
        """Return the number of the next restart of a child that ran `ran` seconds after restart `attempt`."""
        return 0 if ran >= self.reset else attempt + 1
