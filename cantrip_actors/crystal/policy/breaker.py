"""A circuit breaker: a provider that fails again and again is left alone for a while, and asked carefully then.

| phase | a call | turns into |
| --- | --- | --- |
| closed | goes through | open, when too many failed |
| open | fails at once, and says until when | half-open, when the time is up |
| half-open | some go through as probes, others fail at once | closed, when they succeeded; open, when one failed |

What counts as a failure is what a provider does when it is broken: no answer, a status of 500 and above, a stream that
breaks off. A refusal (429) is a limit and not a fault: it has everybody wait (`limits.py`), and trips nothing, so that
a storm of them ends no entity. A request that is refused for what it is (400, 401) shows that the provider works.

Pure: `now` is given, in seconds of any clock that does not run backwards. What carries it out is the crystal's actor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Final, Literal, NamedTuple

from cantrip_actors.crystal.policy.limits import is_refusal
from cantrip_actors.terms.errors import InvalidCantrip, ProviderError

__all__ = ["CLOSED", "Breaker", "Circuit", "CircuitOpen", "Outcome", "Pass", "Phase"]
__all__ += ["ended", "enter", "outcome_of", "phase", "reopens"]


class Outcome(Enum):
    """How a call ended: `unknown` where it was cancelled or refused, which says nothing of the provider's health."""

    answered = "answered"
    failed = "failed"
    unknown = "unknown"


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


@dataclass(frozen=True, slots=True)
class Circuit:
    """What a breaker remembers. `until` is when it may be tried again (None: closed), `openings` how often in a row it
    was opened; `probing` and `proved` count the probes on their way and those that succeeded.

    `epoch` counts the changes of phase: what began before one says nothing about what is after it.
    """

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


class Pass(NamedTuple):
    """What lets a call through. It is handed back when the call has ended."""

    epoch: int
    probe: bool = False


CLOSED: Final = Circuit()


def phase(circuit: Circuit, now: float) -> Phase:
    """In which phase it is."""
    if circuit.until is None:
        return "closed"
    return "open" if now < circuit.until else "half-open"


def reopens(circuit: Circuit, now: float) -> float:
    """Seconds until it may be tried; 0 where it may be tried now, or is being tried."""
    return 0.0 if circuit.until is None else max(0.0, circuit.until - now)


def enter(breaker: Breaker, circuit: Circuit, now: float) -> tuple[Circuit, Pass | None]:
    """A call wants through: the pass that it gets, None where it has to fail at once."""
    if circuit.until is None:
        return circuit, Pass(circuit.epoch)
    if now < circuit.until or circuit.probing + circuit.proved >= breaker.probes:
        return circuit, None
    return replace(circuit, probing=circuit.probing + 1), Pass(circuit.epoch, probe=True)


def ended(breaker: Breaker, circuit: Circuit, given: Pass, outcome: Outcome, now: float, why: str = "") -> Circuit:
    """A call that had a pass has ended."""
    if given.epoch != circuit.epoch:
        return circuit
    if given.probe:
        circuit = replace(circuit, probing=max(0, circuit.probing - 1))
        if outcome is Outcome.failed:
            return _opened(breaker, circuit, now, why)
        if outcome is Outcome.answered:
            circuit = replace(circuit, proved=circuit.proved + 1)
            if circuit.proved >= breaker.probes:
                return Circuit(epoch=circuit.epoch + 1)
        return circuit
    if outcome is Outcome.unknown:
        return circuit
    failed = outcome is Outcome.failed
    recent = (*circuit.recent, failed)[-breaker.window :] if breaker.rate is not None else ()
    circuit = replace(circuit, in_row=circuit.in_row + 1 if failed else 0, recent=recent)
    too_often = breaker.rate is not None and len(recent) == breaker.window and sum(recent) > breaker.rate * len(recent)
    if failed and (circuit.in_row >= breaker.failures or too_often):
        return _opened(breaker, circuit, now, why)
    return circuit


def _opened(breaker: Breaker, circuit: Circuit, now: float, why: str) -> Circuit:
    longest = max(breaker.longest, breaker.open_for)
    seconds = min(longest, breaker.open_for * 2.0 ** min(circuit.openings, 62))
    return Circuit(until=now + seconds, openings=circuit.openings + 1, epoch=circuit.epoch + 1, why=why)


def outcome_of(error: ProviderError) -> Outcome:
    """What a failed attempt says of the provider's health."""
    if is_refusal(error) and (error.status is None or error.status < 500):
        return Outcome.unknown
    if error.status is None or error.status >= 500 or error.status == 408:
        return Outcome.failed
    return Outcome.answered
