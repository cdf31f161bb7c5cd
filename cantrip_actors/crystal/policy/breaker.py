"""A circuit breaker: after repeated failures a provider gets no queries for a while, and then a few probes.

| phase | a call | turns into |
| --- | --- | --- |
| closed | goes through | open, when too many calls failed |
| open | fails at once, and says when to try again | half-open, when the time is up |
| half-open | some go through as probes, others fail at once | closed, when they succeeded; open, when one failed |

A failure is a sign of a broken provider: no answer, a status of 500 or above, a stream that breaks off. A refusal (429)
is a limit and not a fault: it makes all queries wait (`limits.py`) and does not open the breaker, so a storm of
refusals ends no entity. A request that is rejected for its content (400, 401) shows that the provider works.

This file has no clock: `now` is an argument, in seconds of any clock that does not run backwards. A circuit belongs to
the crystal's actor, which applies its decisions.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from cantrip_actors.crystal.policy.limits import AttemptOutcome
from cantrip_actors.terms.arguments import check, check_whole, is_positive
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError

BreakerPhase = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a crystal's calls are cut off: after `failures` in a row, or when more than `rate` (a share) of the last
    `window` calls failed.

    It stays open for `open_for` seconds, and twice as long after each failed probe, up to `longest`. Then `probes`
    calls have to succeed before it closes.
    """

    failures: int = 5
    rate: float | None = None
    window: int = 20
    open_for: float = 30.0
    longest: float = 300.0
    probes: int = 1

    def __post_init__(self) -> None:
        for name in ("failures", "window", "probes"):
            check_whole(f"breaker: {name}", getattr(self, name), 1, error=InvalidCantrip)
        fits = self.rate is None or (is_positive(self.rate) and self.rate < 1)
        check(fits, "breaker: rate", "a share between 0 and 1, or None", self.rate, InvalidCantrip)
        times = self.open_for, self.longest
        check(all(map(is_positive, times)), "breaker: open_for and longest", "seconds > 0", times, InvalidCantrip)


class CircuitOpen(ProviderError):
    """The breaker is open, so the provider was not queried. `retry_after` is how long it stays open, in seconds."""


class Pass(NamedTuple):
    """The permission for one call. The caller hands it back when the call has ended."""

    epoch: int
    probe: bool = False


NEVER: Final = Breaker(failures=sys.maxsize)
"""The breaker of a crystal that has none."""


@dataclass(slots=True)
class Circuit:
    """The state of a breaker. `until` is when a call may be tried again (None: closed), `openings` how often in a row
    it opened; `probing` and `proved` count the probes in flight and those that succeeded.

    `epoch` counts the changes of phase: a call that began in an earlier phase does not affect a later one.
    """

    breaker: Breaker = NEVER
    in_row: int = 0
    recent: tuple[bool, ...] = ()
    """The last calls, for the rate: whether each failed."""
    until: float | None = None
    openings: int = 0
    probing: int = 0
    proved: int = 0
    epoch: int = 0
    why: str = ""
    """The failure that opened the breaker."""

    def copy_for_restart(self) -> Circuit:
        """Return the same circuit without calls in flight."""
        return replace(self, probing=0)

    def get_phase(self, now: float) -> BreakerPhase:
        """Return the phase at `now`."""
        if self.until is None:
            return "closed"
        return "open" if now < self.until else "half-open"

    def get_time_to_reopen(self, now: float) -> float:
        """Return the seconds until a call may be tried; 0 if one may be tried now, or a probe is in flight."""
        return 0.0 if self.until is None else max(0.0, self.until - now)

    def enter(self, now: float) -> Pass | None:
        """Return the pass for a new call, or None if the call has to fail at once."""
        if self.until is None:
            return Pass(self.epoch)
        if now < self.until or self.probing + self.proved >= self.breaker.probes:
            return None
        self.probing += 1
        return Pass(self.epoch, probe=True)

    def end(self, ticket: Pass, outcome: AttemptOutcome, now: float, why: str = "") -> bool:
        """Record the outcome of a call that had a pass. Return whether it opened the circuit."""
        if ticket.epoch != self.epoch:
            return False
        failed = outcome == "failed"
        if ticket.probe:
            self.probing = max(0, self.probing - 1)
            self.proved += outcome == "answered"
            if self.proved >= self.breaker.probes:
                self._change_phase(until=None, openings=0)
        elif outcome != "unknown":
            self.in_row = self.in_row + 1 if failed else 0
            if self.breaker.rate is not None:
                self.recent = (*self.recent, failed)[-self.breaker.window :]
            failed = failed and (self.in_row >= self.breaker.failures or self._is_failing_too_often())
        if failed:
            longest = max(self.breaker.longest, self.breaker.open_for)
            seconds = min(longest, self.breaker.open_for * 2.0 ** min(self.openings, 62))
            self._change_phase(until=now + seconds, openings=self.openings + 1, why=why)
        return failed

    def _is_failing_too_often(self) -> bool:
        rate, count = self.breaker.rate, len(self.recent)
        return rate is not None and count == self.breaker.window and sum(self.recent) > rate * count

    def _change_phase(self, *, until: float | None, openings: int, why: str = "") -> None:
        self.in_row, self.recent, self.probing, self.proved = 0, (), 0, 0
        self.until, self.openings, self.why = until, openings, why
        self.epoch += 1
