"""What a supervisor decides, as pure functions over frozen data: no clock, no I/O, no event loop, no actor.

Rules of this room: every decision of `supervisor.erl` that S-14 ... S-33 and S-45 ... S-48 pin lives here; time and
chance come in as arguments; nothing here knows what a task is. `supervisor.py` and `dynamic.py` carry out what is
decided.

Theory of operation. A child's exit asks two questions. *What becomes of it?* is `after_exit`, a table over restart
type and reason. If the answer is a restart, *may there be one more?* is the `RestartWindow`. If so, `plan` says whom
the strategy stops and starts:

| strategy     | stopped, in this order         | started, in this order          |
|--------------|--------------------------------|---------------------------------|
| one_for_one  | nobody                         | the failed child                |
| rest_for_one | those after it, last first     | the failed child, those after it |
| one_for_all  | all others, last first         | all                             |

A start that fails asks the second question again (S-28), with the child that failed to start in the failed one's
place (S-23, S-24).
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from supervisors.reasons import ExitReason, is_abnormal

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
AutoShutdown: TypeAlias = Literal["never", "any_significant", "all_significant"]


class Verdict(enum.Enum):
    """What becomes of a child that ended."""

    RESTART = "restart"
    KEEP = "keep"  # it stays ended; its spec stays known
    DROP = "drop"  # it and its spec are gone


def after_exit(restart: Restart, reason: ExitReason) -> Verdict:
    """What becomes of a child that ended by itself (S-14, S-15, S-16)."""
    if restart == "permanent":
        return Verdict.RESTART
    if restart == "temporary":
        return Verdict.DROP
    return Verdict.RESTART if is_abnormal(reason) else Verdict.KEEP


def ends_supervisor(auto_shutdown: AutoShutdown, *, significant: bool, others_active: bool) -> bool:
    """Whether the end of a child that is not restarted ends its supervisor (S-46, S-47).

    Args:
        auto_shutdown: the supervisor's flag.
        significant: whether the child that ended is.
        others_active: whether another significant child runs or is being restarted.
    """
    if not significant or auto_shutdown == "never":
        return False
    return auto_shutdown == "any_significant" or not others_active


@dataclass(frozen=True, slots=True)
class Plan:
    """Whom to stop and whom to start after a failure, each in the order of the doing."""

    stop: tuple[Hashable, ...]
    start: tuple[Hashable, ...]


def plan(strategy: Strategy, children: Sequence[Hashable], failed: Hashable) -> Plan:
    """The strategy's answer to a failure (S-19, S-20, S-21).

    Args:
        strategy: the supervisor's.
        children: the ids of all its children in start order.
        failed: the one that ended, or whose start failed.

    Raises:
        ValueError: if `failed` is none of `children`.
    """
    if strategy == "one_for_one":
        return Plan((), (failed,))
    at = list(children).index(failed)
    if strategy == "rest_for_one":
        after = tuple(children[at + 1 :])
        return Plan(after[::-1], (failed, *after))
    others = (*children[:at], *children[at + 1 :])
    return Plan(others[::-1], tuple(children))


@dataclass(frozen=True, slots=True)
class RestartWindow:
    """How many restarts there were lately: a sliding window, one for a whole supervisor (S-26).

    A restart exactly `period` seconds old still counts (S-27).

    Args:
        max_restarts: so many within `period` are fine, the next is fatal. 0: the first is (S-30).
        period: seconds.
        times: when the counted ones were, oldest first.
    """

    max_restarts: int = 1
    period: float = 5.0
    times: tuple[float, ...] = ()

    def add(self, now: float) -> RestartWindow:
        """The window with a restart at `now`, in seconds of any steady clock, and without those that have left it."""
        times, period = self.times, self.period
        young = 0
        if times and now - times[0] > period:  # else all are young: the case of a storm, which is not to pay for it
            young = bisect_left(times, True, key=lambda t: now - t <= period)
        # No more than one above the limit is ever needed to know that it is exceeded.
        young = max(young, len(times) - self.max_restarts)
        return RestartWindow(self.max_restarts, period, (*times[young:], now) if young else (*times, now))

    @property
    def exceeded(self) -> bool:
        """Whether there were more than `max_restarts`: give up (S-31)."""
        return len(self.times) > self.max_restarts


@lru_cache(maxsize=64)
def quiet(max_restarts: int, period: float) -> RestartWindow:
    """A window without restarts: one for all supervisors of the same limits."""
    return RestartWindow(max_restarts, period)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a restart: twice as long each time, within bounds, back to nothing after quiet. OTP has
    none.

    Args:
        first: seconds before the second restart in a row; the first restart is immediate.
        maximum: seconds; the longest wait.
        factor: how much longer each wait is than the one before.
        jitter: the part of the wait that chance may take away, 0 to 1, so that children that fell together do not
            come back together.
        reset: a child that ran for so many seconds begins anew.
    """

    first: float = 0.1
    maximum: float = 30.0
    factor: float = 2.0
    jitter: float = 0.2
    reset: float = 60.0

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait before restart `attempt` in a row, counted from 0.

        Args:
            attempt: restarts since the last quiet time.
            chance: 0 to 1, from outside.
        """
        if attempt <= 0:
            return 0.0
        # 2.0 ** 1024 overflows, and the bound is reached long before.
        wait = min(self.maximum, self.first * self.factor ** min(attempt - 1, 64))
        return wait * (1.0 - self.jitter * chance)

    def next_attempt(self, attempt: int, ran: float) -> int:
        """The number of the next restart of a child that ran `ran` seconds after restart `attempt`."""
        return 0 if ran >= self.reset else attempt + 1
