"""Numbers about one entity's records. A `Tally` is a sum, and tallies add up.

Durations are kept as counts in steps of a fifth, not one by one: their percentiles are off by a tenth at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cantrip_actors.machine.project.entity import status_of, usage_of
from cantrip_actors.machine.project.turns import rewards_of
from cantrip_actors.records.records import Committed, Folded, GateFinished, Header, Record, Utterance
from cantrip_actors.terms.messages import NO_USAGE, Usage

__all__ = ["Durations", "GateTally", "Tally", "tally"]

_STEP = 1.2


@dataclass(slots=True)
class Durations:
    """How long something took, in milliseconds: how often, in all, at most, and percentiles."""

    count: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0
    steps: Counter[int] = field(default_factory=Counter)

    def take(self, duration_ms: float) -> None:
        """One more."""
        self.count += 1
        self.total_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)
        self.steps[math.ceil(math.log(max(duration_ms, 1e-3), _STEP)) if duration_ms < math.inf else 2000] += 1

    def add(self, other: Durations) -> None:
        """All of another's."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        self.steps.update(other.steps)

    @property
    def mean_ms(self) -> float:
        """The mean; 0 for none."""
        return self.total_ms / self.count if self.count else 0.0

    def percentile(self, share: float) -> float:
        """The milliseconds within which this share (0 to 1) of them stayed; 0 for none."""
        left = share * self.count
        for step in sorted(self.steps):
            left -= self.steps[step]
            if left <= 1e-9:
                return min(math.pow(_STEP, step - 0.5), self.max_ms)
        return self.max_ms

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "count": self.count,
            "total_ms": self.total_ms,
            "mean_ms": self.mean_ms,
            "p50_ms": self.percentile(0.5),
            "p95_ms": self.percentile(0.95),
            "max_ms": self.max_ms,
        }


@dataclass(slots=True)
class GateTally:
    """What came of the calls of one gate."""

    errors: int = 0
    durations: Durations = field(default_factory=Durations)

    @property
    def calls(self) -> int:
        """How often it was called and answered."""
        return self.durations.count

    @property
    def error_rate(self) -> float:
        """The share of the calls that were errors; 0 for none."""
        return self.errors / self.calls if self.calls else 0.0

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "error_rate": self.error_rate,
            "durations": self.durations.as_json(),
        }


@dataclass(slots=True)
class Tally:
    """The sums over some entities. `utterances` are what was paid for; a turn that continues one costs nothing.

    `states` counts how entities stand or ended, `rewards` holds the latest reward of each turn that has one.
    """

    entities: int = 0
    turns: int = 0
    utterances: int = 0
    usage: Usage = NO_USAGE
    folds: int = 0
    turn_durations: Durations = field(default_factory=Durations)
    crystal_durations: Durations = field(default_factory=Durations)
    gates: dict[str, GateTally] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    rewarded: int = 0
    reward_total: float = 0.0

    def add(self, other: Tally) -> None:
        """All of another's."""
        self.entities += other.entities
        self.turns += other.turns
        self.utterances += other.utterances
        self.usage = self.usage + other.usage
        self.folds += other.folds
        self.turn_durations.add(other.turn_durations)
        self.crystal_durations.add(other.crystal_durations)
        for name, gate in other.gates.items():
            mine = self.gates.setdefault(name, GateTally())
            mine.errors += gate.errors
            mine.durations.add(gate.durations)
        self.states.update(other.states)
        self.rewarded += other.rewarded
        self.reward_total += other.reward_total

    @property
    def gate_calls(self) -> int:
        """Calls of all gates."""
        return sum(gate.calls for gate in self.gates.values())

    @property
    def errors(self) -> int:
        """Error observations of all gates."""
        return sum(gate.errors for gate in self.gates.values())

    @property
    def mean_reward(self) -> float | None:
        """The mean of the latest rewards; None where no turn has one."""
        return self.reward_total / self.rewarded if self.rewarded else None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        usage = self.usage
        return {
            "entities": self.entities,
            "turns": self.turns,
            "utterances": self.utterances,
            "tokens_prompt": usage.prompt_tokens,
            "tokens_completion": usage.completion_tokens,
            "tokens_cached": usage.cached_tokens,
            "cost": usage.cost,
            "folds": self.folds,
            "turn_durations": self.turn_durations.as_json(),
            "crystal_durations": self.crystal_durations.as_json(),
            "gate_calls": self.gate_calls,
            "errors": self.errors,
            "gates": {name: self.gates[name].as_json() for name in sorted(self.gates)},
            "states": dict(sorted(self.states.items())),
            "rewarded": self.rewarded,
            "mean_reward": self.mean_reward,
        }


def tally(records: Sequence[Record]) -> Tally:
    """Return the sums of one entity, from its whole log (PROD-3, LOOM-9)."""
    made = Tally(usage=usage_of(records))
    for record in records:
        match record:
            case Header():
                made.entities += 1
            case Utterance():
                made.utterances += 1
                made.crystal_durations.take(record.duration_ms)
            case GateFinished():
                gate = made.gates.setdefault(record.gate, GateTally())
                gate.errors += record.is_error
                gate.durations.take(record.duration_ms)
            case Committed():
                made.turns += 1
                made.turn_durations.take(record.duration_ms)
            case Folded():
                made.folds += 1
            case _:
                pass
    made.states[status_of(records)] += 1
    rewards = [given[-1].reward for given in rewards_of(records).values()]
    made.rewarded, made.reward_total = len(rewards), math.fsum(rewards)
    return made
