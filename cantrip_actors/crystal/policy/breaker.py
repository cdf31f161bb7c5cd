"""A circuit breaker: a provider that fails again and again is left alone for a while, and asked carefully then.

| phase | a call | turns into |
| --- | --- | --- |
| closed | goes through | open, when too many failed |
| open | fails at once, and says until when | half-open, when the time is up |
| half-open | some go through as probes, others fail at once | closed, when they succeeded; open, when one failed |

What counts as a failure is what a provider does when it is broken: no answer, a status of 500 and above, a stream that
breaks off. A refusal (429) is a limit and not a fault: it has everybody wait (`limits.py`), and trips nothing, so that
a storm of them ends no entity. A request that is refused for what it is (400, 401) shows that the provider works.

There is no clock here: `now` is given, in seconds of any clock that does not run backwards. What carries it out is the
crystal's actor, which a circuit belongs to.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal, NamedTuple

from cantrip_actors.crystal.policy.limits import Outcome
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError

__all__ = ["Breaker", "Circuit", "CircuitOpen", "Pass", "Phase"]


Phase = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class Breaker:
    """When a crystal's calls are cut off: after `failures` in a row, or when more than `rate` (a share) of the last
    `window` calls failed.

    It stays open for `open_for` seconds, twice as long each time that a probe fails, up to `longest`. Then `probes`
    calls have to succeed.
    """

    failures: int = 5
    rate: float | None = None
    window: int = 20
    open_for: float = 30.0
    longest: float = 300.0
    probes: int = 1

    def __post_init__(self) -> None:
        for name in ("failures", "window", "probes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidCantrip(f"breaker: {name}: expected a whole number >= 1, got {value!r}")
        rate, numbers = self.rate, (int, float)
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, numbers) or not 0 < rate < 1):
            raise InvalidCantrip(f"breaker: rate: expected a share between 0 and 1, or None, got {rate!r}")
        times = self.open_for, self.longest
        if any(isinstance(one, bool) or not isinstance(one, numbers) for one in times):
            raise InvalidCantrip(f"breaker: open_for and longest: expected seconds, got {times!r}")
        if not all(0 < one < inf for one in times):
            raise InvalidCantrip(f"breaker: open_for and longest: expected seconds > 0, got {times!r}")


class CircuitOpen(ProviderError):
    """The breaker is open: the provider was not asked. `retry_after` is how long it stays so."""


class Pass(NamedTuple):
    """What lets a call through. It is handed back when the call has ended."""

    epoch: int
    probe: bool = False


NEVER: Final = Breaker(failures=sys.maxsize)
"""The breaker of a crystal that has none."""


@dataclass(slots=True)
class Circuit:
    """What a breaker remembers. `until` is when it may be tried again (None: closed), `openings` how often in a row it
    was opened; `probing` and `proved` count the probes on their way and those that succeeded.

    `epoch` counts the changes of phase: what began before one says nothing about what is after it.
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
    """The failure that opened it."""

    def restarted(self) -> Circuit:
        """The same circuit with nobody on the way."""
        return replace(self, probing=0)

    def phase(self, now: float) -> Phase:
        """In which phase it is."""
        if self.until is None:
            return "closed"
        return "open" if now < self.until else "half-open"

    def reopens(self, now: float) -> float:
        """Seconds until it may be tried; 0 where it may be tried now, or is being tried."""
        return 0.0 if self.until is None else max(0.0, self.until - now)

    def enter(self, now: float) -> Pass | None:
        """A call wants through: the pass that it gets, None where it has to fail at once."""
        if self.until is None:
            return Pass(self.epoch)
        if now < self.until or self.probing + self.proved >= self.breaker.probes:
            return None
        self.probing += 1
        return Pass(self.epoch, probe=True)

    def end(self, given: Pass, outcome: Outcome, now: float, why: str = "") -> bool:
        """A call that had a pass has ended. Return whether that opened the circuit."""
        if given.epoch != self.epoch:
            return False
        failed = outcome == "failed"
        if given.probe:
            self.probing = max(0, self.probing - 1)
            self.proved += outcome == "answered"
            if self.proved >= self.breaker.probes:
                self._turn(until=None, openings=0)
        elif outcome != "unknown":
            self.in_row = self.in_row + 1 if failed else 0
            if self.breaker.rate is not None:
                self.recent = (*self.recent, failed)[-self.breaker.window :]
            failed = failed and (self.in_row >= self.breaker.failures or self._fails_too_often())
        if failed:
            longest = max(self.breaker.longest, self.breaker.open_for)
            seconds = min(longest, self.breaker.open_for * 2.0 ** min(self.openings, 62))
            self._turn(until=now + seconds, openings=self.openings + 1, why=why)
        return failed

    def _fails_too_often(self) -> bool:
        rate, count = self.breaker.rate, len(self.recent)
        return rate is not None and count == self.breaker.window and sum(self.recent) > rate * count

    def _turn(self, *, until: float | None, openings: int, why: str = "") -> None:
        self.in_row, self.recent, self.probing, self.proved = 0, (), 0, 0
        self.until, self.openings, self.why = until, openings, why
        self.epoch += 1
